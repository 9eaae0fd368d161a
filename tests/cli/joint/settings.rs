//! The settings of a joint device, which hold on each of its GPUs.

use serde_json::json;
use simnode::node::ComputeMode::{self, Default, ExclusiveProcess, Prohibited};
use testkit::{App, Sim, assert_contains};

use crate::cli::devices::uuids::nvidia_smi;

use super::{TRAINERS, clients, joint, problems, trainers};

const VARIABLE: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// A client that has lifted its memory limits: the driver lets go of them if the variable is about another GPU, on the GPUs with these ordinals.
fn unlimited(sim: &Sim, ordinals: &str, mebibytes: &str) -> App {
    let mut program = sim.node.program("cuda-app");
    program
        .args(["hold", "--on", ordinals, "--alloc", mebibytes])
        .env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe_link("trainers"))
        .env(VARIABLE, "7=90G");
    let mut app = App::start(program);
    while !app.wait_up().contains(" no error") {}
    app
}

#[test]
fn a_client_above_its_limit_on_one_gpu_is_seen() {
    for ordinal in ["0", "1"] {
        let sim = joint("pinned-memory-limit = \"4G\"");
        let within = unlimited(&sim, "all", "3000");
        assert_eq!(problems(&sim), [""; 0], "each GPU has its own limit");
        let above = unlimited(&sim, ordinal, "6000");
        assert_eq!(problems(&sim), ["memory-over-limit"]);
        for client in clients(&sim) {
            let is_above = client["pid"] == above.pid();
            assert_eq!(client["is_over_memory_limit"], is_above, "{client:#}");
        }
        within.finish();
        above.finish();
    }
}

const SET_BY_HAND: [&str; 2] = [
    "set_default_device_pinned_mem_limit 0 3G\n",
    "set_default_device_pinned_mem_limit 1 3G\n",
];

fn limits(sim: &Sim) -> [String; 2] {
    ["0", "1"].map(|gpu| {
        let query = format!("get_default_device_pinned_mem_limit {gpu}\n");
        sim.ask("trainers", &query).trim().to_owned()
    })
}

/// Whichever GPU has another limit, each of the ways sets it again on both.
#[test]
fn a_limit_changed_by_hand_on_one_gpu_is_drift_and_set_again() {
    let profile = trainers("pinned-memory-limit = \"20G\"");
    let sim = joint("pinned-memory-limit = \"20G\"");
    let path = sim.profile(&profile).display().to_string();
    let cures: [&[&str]; 4] = [
        &["up", &path, "--yes"],
        &["set", "trainers", "pinned-memory-limit=20G", "--yes"],
        &["restart", "trainers", "--yes"],
        &["set", "trainers", "pinned-memory-limit=30G", "--yes"],
    ];
    for cure in cures {
        for set in SET_BY_HAND {
            sim.ask("trainers", set);
            let doctor = sim.run(&["doctor"]).ended(3);
            assert_contains(
                &doctor.stdout,
                "pinned-memory-limit is different on its GPUs, but mig-mps set it to 20G",
            );
            let plan = sim.run(&["plan", &path, "--exit-code"]).ended(3);
            let change = "pinned-memory-limit  different on its GPUs in the daemon";
            assert_contains(&plan.stdout, change);
            sim.run(cure).ended(0);
            let limit = if cure.contains(&"pinned-memory-limit=30G") {
                "30G"
            } else {
                "20G"
            };
            assert_eq!(limits(&sim), [limit, limit], "{cure:?}");
            sim.run(&["up", &path, "--yes"]).ended(0);
        }
    }
}

#[test]
fn a_server_has_the_limit_of_both_gpus_that_set_gives() {
    let sim = joint("pinned-memory-limit = \"20G\"");
    sim.run(&["set", "trainers", "pinned-memory-limit=2G"])
        .ended(0);
    for ordinal in ["0", "1"] {
        let app = sim.app(
            "trainers",
            &["run", "0", "--on", ordinal, "--alloc", "3000"],
        );
        assert_contains(&app.finish().output, "alloc 3000 MiB -> 2 ");
    }
    // A limit on one GPU does not count what is on the other.
    let both = ["run", "0", "--on", "all", "--alloc", "1200"];
    assert_contains(&sim.app("trainers", &both).finish().output, "-> 0 ");
}

/// GPU 2 is in no profile.
fn compute_modes(sim: &Sim) -> Vec<ComputeMode> {
    let state = sim.node.node().state().unwrap();
    state.gpus.iter().map(|gpu| gpu.compute_mode).collect()
}

const EXCLUSIVE: &str = "compute-mode = \"exclusive-process\"";

#[test]
fn the_compute_mode_of_all_its_gpus_is_set_and_restored() {
    let sim = Sim::with("h200", 3);
    let before = compute_modes(&sim);
    let ran = sim.up(&trainers(EXCLUSIVE), &[]).ended(0);
    assert_contains(
        &ran.stdout,
        "~ set compute mode of GPUs 0-1 to exclusive-process: MPS alone computes (restored by down)",
    );
    assert_eq!(
        compute_modes(&sim),
        [ExclusiveProcess, ExclusiveProcess, Default]
    );
    sim.up_does_nothing(&trainers(EXCLUSIVE));
    // Somebody changes the mode of one GPU.
    let update = sim
        .node
        .node()
        .update(|state| state.gpus[1].compute_mode = Default);
    update.unwrap();
    assert_eq!(problems(&sim), ["compute-mode"]);
    sim.up(&trainers(EXCLUSIVE), &["--yes"]).ended(0);
    assert_eq!(
        compute_modes(&sim),
        [ExclusiveProcess, ExclusiveProcess, Default]
    );
    let ran = sim.up(TRAINERS, &["--yes"]).ended(0);
    assert_contains(
        &ran.stdout,
        "~ set compute mode of GPUs 0-1 back to default (as before its daemon)",
    );
    assert_eq!(compute_modes(&sim), before);
    sim.up(&trainers(EXCLUSIVE), &["--yes"]).ended(0);
    sim.run(&["down", "--yes"]).ended(0);
    assert_eq!(compute_modes(&sim), before);
}

/// The changes of compute modes that a plan shows, in text and in JSON.
fn planned_modes(sim: &Sim, args: &[&str]) -> (Vec<String>, Vec<(u64, String)>) {
    let text = sim.run(args).stdout;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| line.starts_with("~ set compute mode"));
    let document = sim.run(&[args, &["--json"]].concat()).json();
    let plan = document.get("plan").unwrap_or(&document);
    let mut changes: Vec<(u64, String)> = Vec::new();
    for gpu in plan["gpus"].as_array().unwrap() {
        for change in gpu["compute_modes"].as_array().unwrap() {
            let to = change["to"].as_str().unwrap().to_owned();
            changes.push((change["index"].as_u64().unwrap(), to));
        }
    }
    changes.sort();
    (lines.map(ToOwned::to_owned).collect(), changes)
}

/// Each GPU whose mode changes is in the plan once, and no other GPU.
#[test]
fn a_plan_shows_the_compute_mode_of_each_gpu() {
    let joint_of = |gpus: &str| trainers(EXCLUSIVE).replace("[0, 1]", gpus);
    let one = format!(
        "[[gpu]]\nselect = {{ index = [1] }}\nmig = false\nname = \"one\"\nmps = {{ {EXCLUSIVE} }}\n"
    );
    let (to, back) = (
        "to exclusive-process: MPS alone computes (restored by down)",
        "back to default (as before its daemon)",
    );
    let (exclusive, default) = ("exclusive-process", "default");
    let sim = Sim::with("h200", 4);
    let steps = [
        (
            one.clone(),
            vec![format!("~ set compute mode {to}")],
            vec![(1, exclusive)],
        ),
        (
            joint_of("[0, 1]"),
            vec![format!("~ set compute mode of GPU 0 {to}")],
            vec![(0, exclusive)],
        ),
        (
            joint_of("[0, 1, 2, 3]"),
            vec![format!("~ set compute mode of GPUs 2-3 {to}")],
            vec![(2, exclusive), (3, exclusive)],
        ),
        (
            joint_of("[2, 3]"),
            vec![format!("~ set compute mode of GPUs 0-1 {back}")],
            vec![(0, default), (1, default)],
        ),
        (
            joint_of("[0, 2]"),
            vec![
                format!("~ set compute mode of GPU 3 {back}"),
                format!("~ set compute mode of GPU 0 {to}"),
            ],
            vec![(0, exclusive), (3, default)],
        ),
        (
            one,
            vec![
                format!("~ set compute mode of GPUs 0,2 {back}"),
                format!("~ set compute mode {to}"),
            ],
            vec![(0, default), (1, exclusive), (2, default)],
        ),
    ];
    for (profile, mut lines, changes) in steps {
        let path = sim.profile(&profile);
        let up = ["up", path.to_str().unwrap(), "--prune", "--dry-run"];
        let (mut shown, planned) = planned_modes(&sim, &up);
        lines.sort();
        shown.sort();
        assert_eq!(shown, lines, "{profile}");
        let changes: Vec<_> = changes
            .into_iter()
            .map(|(gpu, mode)| (gpu, mode.to_owned()))
            .collect();
        assert_eq!(planned, changes, "{profile}");
        let before = compute_modes(&sim);
        sim.up(&profile, &["--prune", "--yes"]).ended(0);
        let after = compute_modes(&sim);
        let touched = (0..4).filter(|gpu| before[*gpu] != after[*gpu]);
        let touched: Vec<u64> = touched.map(|gpu| gpu as u64).collect();
        let planned: Vec<u64> = planned.into_iter().map(|(gpu, _)| gpu).collect();
        assert_eq!(touched, planned, "{profile}");
    }
}

/// The command that ends what a killed one has begun shows what it does.
#[test]
fn a_plan_shows_the_modes_that_are_left_to_restore() {
    let sim = joint(EXCLUSIVE);
    sim.kill_daemon("trainers");
    set_mode(&sim, 0, Default);
    let down = ["down", "--dry-run"];
    let left =
        vec!["~ set compute mode of GPU 1 back to default (as before its daemon)".to_owned()];
    assert_eq!(planned_modes(&sim, &down).0, left);
    let doctor = sim.run(&["doctor", "--all"]).stdout;
    assert!(!doctor.contains("not by a profile"), "{doctor}");
    sim.run(&["down", "--yes"]).ended(0);
    assert_eq!(compute_modes(&sim)[..2], [Default, Default]);
}

fn set_mode(sim: &Sim, index: usize, mode: ComputeMode) {
    let node = sim.node.node();
    let update = node.update(|state| state.gpus[index].compute_mode = mode);
    update.unwrap();
}

/// The record has one mode to restore.
#[test]
fn no_daemon_starts_on_gpus_in_different_modes() {
    for modes in [[Prohibited, Default], [Default, ExclusiveProcess]] {
        let sim = joint(EXCLUSIVE);
        sim.run(&["down", "trainers", "--yes"]).ended(0);
        set_mode(&sim, 0, modes[0]);
        set_mode(&sim, 1, modes[1]);
        let refused = sim.run(&["start", "trainers", "--yes"]).ended(1);
        assert_contains(&refused.stderr, "needs GPUs in one mode");
        assert_eq!(compute_modes(&sim)[..2], modes);
        sim.run(&["down", "--yes"]).ended(0);
        assert_eq!(compute_modes(&sim)[..2], modes);
    }
}

#[test]
fn the_gpus_whose_mode_somebody_has_changed_are_named() {
    let sim = joint(EXCLUSIVE);
    for (changed, gpus) in [(&[1][..], "GPU 1"), (&[0, 1], "GPUs 0-1")] {
        for gpu in changed {
            set_mode(&sim, *gpu, Default);
        }
        let what = format!("trainers: the compute mode of {gpus} was changed from outside mig-mps");
        assert_contains(&sim.run(&["status"]).stdout, &what);
    }
}

/// A GPU in MIG mode has no compute mode: it keeps no other GPU from getting back its own.
#[test]
fn down_restores_the_mode_of_the_other_gpus_when_one_is_in_mig_mode() {
    for index in [0, 1] {
        let sim = joint(EXCLUSIVE);
        sim.kill_daemon("trainers");
        nvidia_smi(&sim, &format!("-i {index} -mig 1"));
        sim.run(&["down", "--force", "--yes"]).ended(0);
        assert_eq!(compute_modes(&sim)[1 - index], Default);
        let runs = sim.run_dir();
        assert!(
            !runs.iter().any(|entry| entry.starts_with("JOINT")),
            "{runs:?}"
        );
    }
}

/// The mode that a daemon set is not the mode of the GPU.
#[test]
fn gpus_join_that_their_daemons_had_in_exclusive_mode() {
    let sim = Sim::with("h200", 3);
    let before = compute_modes(&sim);
    let alone =
        format!("[[gpu]]\nselect = {{ index = [1] }}\nmig = false\nmps = {{ {EXCLUSIVE} }}\n");
    sim.up(&alone, &[]).ended(0);
    assert_eq!(compute_modes(&sim), [Default, ExclusiveProcess, Default]);
    sim.up(&trainers(EXCLUSIVE), &["--yes"]).ended(0);
    assert_eq!(
        compute_modes(&sim),
        [ExclusiveProcess, ExclusiveProcess, Default]
    );
    let others = trainers(EXCLUSIVE).replace("[0, 1]", "[1, 2]");
    let freed = "[[gpu]]\nselect = { index = [0] }\nmig = false\nmps = false\n";
    sim.up(&format!("{others}{freed}"), &["--yes"]).ended(0);
    assert_eq!(
        compute_modes(&sim),
        [Default, ExclusiveProcess, ExclusiveProcess]
    );
    sim.run(&["down", "--yes"]).ended(0);
    assert_eq!(compute_modes(&sim), before);
}

#[test]
fn the_percentage_is_of_each_gpu() {
    let sim = joint("share = 2");
    let status = sim.device("trainers");
    assert_eq!(
        status["active_thread_percentage"],
        json!(51.5),
        "{status:#}"
    );
    let app = sim.app("trainers", &["run", "0", "--on", "all"]).finish();
    let on_each = app.output.matches("sm 66 ").count();
    assert_eq!(on_each, 2, "{}", app.output);
}

#[test]
fn check_lists_a_joint_device_once_with_its_gpus() {
    let sim = Sim::with("h200", 3);
    let path = sim.profile(TRAINERS).display().to_string();
    let check = sim.run(&["check", &path, "--json"]).json();
    let gpus = &check["gpus"];
    let device = &gpus[0]["devices"][0];
    assert_eq!(device["joint_gpus"], json!([0, 1]), "{check:#}");
    assert_eq!(gpus[1]["devices"], json!([]), "{check:#}");
    let models = sim.run(&["check", &path, "--models"]).ended(0);
    let becomes = "\n  its GPUs as one joint device, on any model\n";
    assert_contains(&models.stdout, becomes);
    let models = sim.run(&["check", &path, "--models", "--json"]).json();
    let device = &models["blocks"][0]["models"][0]["devices"][0];
    assert_eq!(device["joint_gpus"], json!([0, 1]), "{models:#}");
}

#[test]
fn a_name_that_begins_as_a_uuid_is_refused() {
    let sim = Sim::with("h200", 3);
    let path = sim.profile(&TRAINERS.replace("trainers", "JOINT-x"));
    let ran = sim.run(&["check", path.to_str().unwrap()]).ended(2);
    let beginnings = "it may not begin with \".\", \"-\", \"GPU-\", \"MIG-\" or \"JOINT-\"";
    assert_contains(&ran.stderr, beginnings);
}

#[test]
fn every_step_of_a_joint_device_has_its_gpus() {
    let sim = joint("share = 2");
    let words = ["set", "trainers", "max-clients=3", "--dry-run", "--json"];
    let document = sim.run(&words).json();
    let step = &document["plan"]["gpus"][0]["steps"][0];
    assert_eq!(
        (&step["action"], &step["joint_gpus"]),
        (&json!("set"), &json!([0, 1]))
    );
}
