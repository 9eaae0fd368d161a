//! Joint devices beside others: with other records, other users, and GPUs that are not there.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::{App, Ran, Sim, assert_contains, in_state, needs_root, under, wait_until};

use super::{TRAINERS, gpu, joint, trainers};
use crate::cli::devices::uuids::nvidia_smi;

fn copy(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    Ran::of(command.arg("-a").args([from, to])).ended(0);
}

/// Daemons that have died leave records: of a GPU and of the joint device that had it, in either order.
#[test]
fn records_of_a_gpu_and_of_a_joint_device_with_it_are_cleaned_up() {
    let alone = "[[gpu]]\nselect = { index = [1] }\nmig = false\nname = \"alone\"\n";
    // The profile that has GPU 1 alone does not select GPU 0: then the user ends what is dead.
    let cases = [
        (alone, "alone", TRAINERS, 0),
        (TRAINERS, "trainers", alone, 4),
    ];
    for (first, name, second, status) in cases {
        let sim = Sim::served("h200", 2, first);
        let record = sim.node.run_dir().join(sim.uuid(name));
        let kept = sim.node.dir().join("kept");
        copy(&record, &kept);
        sim.run(&["down", name, "--yes"]).ended(0);
        sim.up(second, &["--yes"]).ended(0);
        copy(&kept, &record);
        let shown = sim.status();
        assert_eq!(in_state(&shown, "ready").len(), 1, "{shown:#}");
        assert_eq!(in_state(&shown, "dead"), [name], "{shown:#}");
        let ran = sim.up(second, &["--yes"]).ended(status);
        if status != 0 {
            assert_contains(&ran.stderr, &format!("mig-mps down {name}"));
            sim.run(&["down", name, "--yes"]).ended(0);
        }
        sim.up_does_nothing(second);
        assert!(!record.exists());
    }
}

#[test]
fn a_plain_user_joins_gpus_that_root_does_not_serve() {
    needs_root!();
    let sim = Sim::with("h200", 3);
    let own = "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\nname = \"mine\"\njoint = true\n";
    let path = sim.profile(own).display().to_string();
    let mut up = sim.by_nobody(&["up", &path]);
    Ran::of(&mut up).ended(0);
    let status = Ran::of(&mut sim.by_nobody(&["status", "--json"])).json();
    assert_eq!(in_state(&status, "ready"), ["mine"]);
    assert_eq!(status["devices"][0]["serve"], "self");
    let app = ["run", "mine", "--", "cuda-app", "run", "0", "--on", "all"];
    let ran = Ran::of(&mut sim.by_nobody(&app)).ended(0);
    assert_contains(&ran.stdout, " up devices 2 ");
    // Root sees who has the GPUs.
    let seen = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&seen, "nobody");
    Ran::of(&mut sim.by_nobody(&["down", "--yes"])).ended(0);
}

#[test]
fn while_a_gpu_is_lost_the_others_are_no_devices_without_a_daemon() {
    let sim = joint("share = 2");
    let daemon = sim.device("trainers")["daemon_pid"].clone();
    sim.node.node().lose_gpu(1).unwrap();
    let status = sim.status();
    assert_eq!(in_state(&status, "gpu lost"), ["trainers"], "{status:#}");
    assert_eq!(in_state(&status, "no daemon"), ["2"], "{status:#}");
    // It does not become smaller, nor is it touched.
    let alone = "[[gpu]]\nselect = { index = [0] }\nmig = false\n";
    for profile in [&trainers("share = 2"), alone] {
        for options in [["--yes"].as_slice(), &["--yes", "--keep-going"]] {
            let ran = sim.up(profile, options).ended(4);
            assert_contains(&ran.stderr, "GPU 1 is lost");
        }
    }
    assert_eq!(sim.device("trainers")["daemon_pid"], daemon);
    sim.run(&["down", "trainers", "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0", "2"]);
    sim.up(alone, &["--yes"]).ended(0);
    assert_eq!(sim.device("0")["uuid"], gpu(&sim, 0));
}

/// A daemon of somebody else on a GPU.
pub(super) fn unmanaged_daemon(sim: &Sim, index: usize) -> Value {
    let pipe = sim.node.dir().join("other");
    fs::create_dir(&pipe).unwrap();
    let mut daemon = sim.node.program("nvidia-cuda-mps-control");
    daemon
        .arg("-d")
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
        .env("CUDA_MPS_LOG_DIRECTORY", &pipe)
        .env("CUDA_VISIBLE_DEVICES", gpu(sim, index));
    Ran::of(&mut daemon).ended(0);
    sim.status()["unmanaged"][0]["pid"].clone()
}

#[test]
fn an_unmanaged_daemon_on_any_of_its_gpus_is_shown_with_it() {
    for index in [0, 1] {
        let sim = joint("share = 2");
        unmanaged_daemon(&sim, index);
        let status = sim.status();
        let unmanaged = &status["unmanaged"][0];
        assert_eq!(unmanaged["devices"], json!(["trainers"]), "{status:#}");
        // Before there is a joint device.
        let sim = Sim::with("h200", 3);
        let pid = unmanaged_daemon(&sim, index);
        let ran = sim.up(TRAINERS, &["--yes"]).ended(0);
        let beside = format!("(only an unmanaged daemon, pid {pid}, serves it)");
        assert_contains(&ran.stdout, &beside);
        // And when it is split again.
        let split = "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\nname = \"t{gpu}\"\n";
        let plan = sim.up(split, &["--yes", "--dry-run"]).ended(0).stdout;
        assert_contains(&plan, &format!("serves it): t{index}\n"));
        assert_contains(&plan, &format!("(no daemon yet): t{}\n", 1 - index));
    }
}

/// What `down` has stopped is forgotten when one of its GPUs becomes something else.
#[test]
fn a_stopped_device_is_forgotten_with_one_of_its_gpus() {
    for index in [0, 1] {
        let sim = joint("share = 2");
        sim.run(&["down", "trainers", "--yes"]).ended(0);
        assert_eq!(in_state(&sim.status(), "stopped"), ["trainers"]);
        let bare = format!("[[gpu]]\nselect = {{ index = [{index}] }}\nmig = false\nmps = false\n");
        sim.up(&bare, &["--yes"]).ended(0);
        assert_eq!(in_state(&sim.status(), "no daemon"), ["0", "1", "2"]);
    }
}

/// `run --private --joint` on these GPUs, with this program.
fn private(sim: &Sim, visible: &str, program: &[&str]) -> Command {
    let mut command = sim.command(&[&["run", "--private", "--joint", "--"], program].concat());
    command
        .env("TMPDIR", sim.node.run_dir().parent().unwrap())
        .env("CUDA_VISIBLE_DEVICES", visible)
        .env_remove("MIG_MPS_LOG_DIR");
    command
}

#[test]
fn a_private_joint_device_refuses_another_with_one_of_its_gpus() {
    let sim = Sim::with("h200", 3);
    let mut first = App::start(private(&sim, "0,1", &["cuda-app", "hold", "--on", "all"]));
    assert_contains(&first.wait_up(), " up devices 2 ");
    for visible in ["1,2", "0", "1", "0,1,2"] {
        let ran = Ran::of(&mut private(&sim, visible, &["true"])).ended(125);
        assert_contains(&ran.stderr, "already has an MPS daemon");
    }
    let program = ["cuda-app", "run", "0", "--on", "all"];
    for visible in ["0,1", "1,0"] {
        let ran = Ran::of(&mut private(&sim, visible, &program)).ended(0);
        assert_contains(&ran.stdout, " up devices 2 ");
    }
    assert_eq!(sim.node.processes("nvidia-cuda-mps-control -d").len(), 1);
    Ran::of(&mut private(&sim, "2", &["true"])).ended(0);
    assert!(first.finish().status.success());
}

/// Each has looked for other daemons before one of them has started.
#[test]
fn private_daemons_that_start_at_once_do_not_share_a_gpu() {
    for second in [&["--joint", "1,2"][..], &["--joint", "0,1"], &["1"]] {
        let sim = Sim::with("h200", 3);
        let meet = sim.node.dir().join("meet");
        fs::create_dir(&meet).unwrap();
        let control = sim.control_script(&format!(
            "case \"$*\" in *-d*) touch {0}/$$; while [ $(ls {0} | wc -l) -lt 2 ]; do sleep 0.01; done; esac\nexec $real \"$@\"",
            meet.display()
        ));
        let start = |job: &str, words: &[&str]| {
            let (visible, options) = words.split_last().unwrap();
            let app = ["--", "cuda-app", "hold", "--on", "all"];
            let mut command = sim.command(&[&["run", "--private"], options, &app].concat());
            command
                .env("TMPDIR", sim.node.run_dir().parent().unwrap())
                .env("MIG_MPS_CONTROL", &control)
                .env("SLURM_JOB_ID", job)
                .env("CUDA_VISIBLE_DEVICES", visible)
                .env_remove("MIG_MPS_LOG_DIR");
            App::start(under(&["sh", "-c", "exec \"$@\" 2>&1", "sh"], &command))
        };
        let apps = [start("1", &["--joint", "0,1"]), start("2", second)];
        wait_until("one of them is refused", || {
            sim.happened("server ready") == 2
                && sim.node.processes("nvidia-cuda-mps-control -d").len() == 1
        });
        let ended = apps.map(App::finish);
        let (good, refused): (Vec<_>, Vec<_>) =
            ended.iter().partition(|ended| ended.status.success());
        assert_eq!((good.len(), refused.len()), (1, 1), "{ended:?}");
        assert_eq!(refused[0].status.code(), Some(125));
        assert_contains(&refused[0].output, "already has an MPS daemon: pid ");
        assert_eq!(sim.node.processes("nvidia-cuda-mps-control -d").len(), 0);
    }
}

#[test]
fn a_private_joint_device_in_another_is_the_same_one() {
    let sim = Sim::with("h200", 3);
    let mig_mps = sim.program();
    let nested = [mig_mps.as_str(), "run", "--private", "--joint", "--"];
    let program = ["cuda-app", "run", "0", "--on", "all"];
    let starts = sim.happened("daemon start");
    let mut command = private(&sim, "1,2", &[&nested[..], &program].concat());
    let ran = Ran::of(&mut command).ended(0);
    assert_contains(&ran.stdout, " up devices 2 ");
    assert_eq!(sim.happened("daemon start"), starts + 1);
}

/// Three H200s; the daemon of the first two, as one device, runs without its record.
fn without_record(record: Option<&str>) -> Sim {
    let sim = joint("share = 2");
    let path = sim.node.run_dir().join(sim.uuid("trainers"));
    match record {
        Some(text) => fs::write(path.join("device.json"), text).unwrap(),
        None => fs::remove_file(path.join("device.json")).unwrap(),
    }
    sim
}

fn daemons(sim: &Sim) -> usize {
    sim.node.processes("nvidia-cuda-mps-control -d").len()
}

#[test]
fn no_second_daemon_starts_beside_one_that_has_lost_its_record() {
    let two = "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\n";
    let three = TRAINERS.replace("[0, 1]", "[0, 1, 2]");
    for record in [None, Some("{")] {
        for (profile, started) in [(two, 2), (&three, 1)] {
            let sim = without_record(record);
            assert_eq!(in_state(&sim.status(), "hidden"), ["0", "1"]);
            let refused = sim.up(profile, &["--yes"]).ended(4);
            let why = "the daemon of device trainers cannot be asked for its clients: its record is missing or cannot be read";
            assert_contains(&refused.stderr, why);
            assert_eq!(daemons(&sim), 1);
            let ran = sim.up(profile, &["--yes", "--force"]).ended(0);
            assert!(!ran.stdout.contains("unmanaged"), "{}", ran.stdout);
            assert_eq!(daemons(&sim), started);
            sim.up_does_nothing(profile);
        }
        // A profile that has one of its GPUs alone.
        let alone = "[[gpu]]\nselect = { index = [1] }\nmig = false\n";
        let sim = without_record(record);
        let refused = sim.up(alone, &["--yes"]).ended(4);
        let part = "GPU 1 is part of the joint device trainers, but GPU 0 is left as it is";
        assert_contains(&refused.stderr, part);
        assert_contains(&refused.stderr, "`mig-mps down 1 --force`\n");
        sim.run(&["down", "1", "--force", "--yes"]).ended(0);
        assert_eq!(daemons(&sim), 0);
        sim.up(alone, &["--yes"]).ended(0);
        assert_eq!(daemons(&sim), 1);
    }
}

#[test]
fn a_joint_device_does_not_start_beside_a_daemon_that_has_lost_its_record() {
    for index in [0, 1] {
        let alone = format!("[[gpu]]\nselect = {{ index = [{index}] }}\nmig = false\n");
        let sim = Sim::served("h200", 3, &alone);
        let record = sim.node.run_dir().join(gpu(&sim, index));
        fs::remove_file(record.join("device.json")).unwrap();
        let refused = sim.up(TRAINERS, &["--yes"]).ended(4);
        assert_contains(&refused.stderr, "its record is missing or cannot be read");
        assert_eq!(daemons(&sim), 1);
        sim.up(TRAINERS, &["--yes", "--force"]).ended(0);
        assert_eq!(daemons(&sim), 1);
        assert_eq!(in_state(&sim.status(), "ready"), ["trainers"]);
    }
}

/// The remedy can be carried out, and each cause is named once.
#[test]
fn what_keep_going_leaves_out_for_a_lost_gpu_is_said_once() {
    let sim = Sim::with("h200", 4);
    let profile = TRAINERS.replace("[0, 1]", "[0, 1, 2]");
    sim.node.node().lose_gpu(1).unwrap();
    let refused = sim.up(&profile, &["--keep-going", "--yes"]).ended(4);
    assert!(!refused.stderr.contains("--keep-going"), "{refused:?}");
    let rest = "[[gpu]]\nselect = { index = [3] }\nmig = false\n";
    let both = profile.clone() + rest;
    let ran = sim.up(&both, &["--keep-going", "--yes"]).ended(1);
    let count = ran.stderr.matches("GPU 1 is lost (").count();
    assert_eq!(count, 1, "{ran:?}");
    assert_contains(
        &ran.stderr,
        "device trainers needs all its GPUs: GPU 1 is lost (",
    );
    // Also where the device is served.
    let sim = Sim::served("h200", 4, &both);
    sim.node.node().lose_gpu(1).unwrap();
    let ran = sim.up(&both, &["--keep-going", "--yes"]).ended(1);
    assert_contains(
        &ran.stderr,
        "  device trainers needs all its GPUs: GPU 1 is lost (",
    );
    assert!(!ran.stderr.contains("select all its GPUs"), "{ran:?}");
    // Its GPUs stay with it, and others change.
    let alone = "[[gpu]]\nselect = { index = [0, 3] }\nmig = false\nname = \"x{gpu}\"\n";
    let ran = sim.up(alone, &["--keep-going", "--yes"]).ended(1);
    assert_contains(
        &ran.stderr,
        "hint: stop its daemon first with `mig-mps down trainers`\n",
    );
    assert_eq!(in_state(&sim.status(), "ready"), ["x3"]);
    // Also where the profile no longer has the joint device, and selects the lost GPU.
    let apart = alone.replace("[0, 3]", "[0, 1, 3]");
    let ran = sim.up(&apart, &["--keep-going", "--yes"]).ended(1);
    assert_contains(
        &ran.stderr,
        "  GPU 0 is part of the joint device trainers, but GPU 1 is lost (",
    );
    let count = ran.stderr.matches("GPU 1 is lost (").count();
    assert_eq!(count, 1, "{ran:?}");
    let problems = sim.status()["problems"].to_string();
    let left_out = problems.matches("profile-incomplete").count();
    assert_eq!(left_out, 1, "{problems}");
}

/// A GPU that cannot leave MIG mode leaves the device out.
#[test]
fn a_failure_on_one_gpu_names_the_joint_device_that_is_left_out() {
    let sim = Sim::with("h100-80gb-sxm", 3);
    nvidia_smi(&sim, "-i 1 -mig 1");
    let _holder = sim.node.holder(&[1]);
    let rest = "[[gpu]]\nselect = { index = [2] }\nmig = false\n";
    let ran = sim
        .up(&format!("{TRAINERS}{rest}"), &["--keep-going", "--yes"])
        .ended(1);
    let what = "device trainers needs all its GPUs: GPU 1 is left out";
    assert_contains(&ran.stderr, &format!("left out:\n  {what}\n  GPU 1 (GPU-"));
    let status = sim.run(&["status"]).stdout;
    assert_contains(
        &status,
        &format!("the applied profile is incomplete: {what}"),
    );
    assert_contains(&status, "the applied profile is incomplete: GPU 1 (GPU-");
    // Nothing of a profile is there that has no other device.
    let ran = sim.up(TRAINERS, &["--keep-going", "--yes"]).ended(1);
    assert_contains(
        &ran.stderr,
        &format!("no part of the profile could be applied; left out:\n  {what}\n"),
    );
}

#[test]
fn the_table_of_programs_outside_mps_has_their_gpus() {
    let sim = joint("share = 2");
    let outside = |ordinals: &str| {
        let mut program = sim.node.program("cuda-app");
        program
            .args(["hold", "--on", ordinals])
            .env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
        let mut app = App::start(program);
        app.wait_up();
        app
    };
    let apps = [outside("1"), outside("0,1")];
    let status = sim.status();
    let programs = status["outside_mps"].as_array().unwrap();
    let of = |app: &App| {
        let its = |program: &&Value| program["pid"] == app.pid();
        let gpus = programs.iter().find(its).unwrap()["gpus"]
            .as_array()
            .unwrap();
        gpus.iter()
            .map(|gpu| gpu["index"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (of(&apps[0]), of(&apps[1])),
        (vec![1], vec![0, 1]),
        "{status:#}"
    );
    let shown = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&shown, "OUTSIDE MPS  GPU ");
    assert_contains(&shown, &format!("trainers       1  {}", apps[0].pid()));
    assert_contains(&shown, &format!("trainers     0-1  {}", apps[1].pid()));
    let problems = status["problems"].to_string();
    assert_contains(&problems, " MiB, GPU 1) computes outside MPS");
    assert_contains(&problems, " MiB, GPUs 0-1) computes outside MPS");
}

/// A program that may use all GPUs of the node.
#[test]
fn a_private_joint_device_without_a_lost_gpu_says_so() {
    let sim = Sim::with("h200", 4);
    sim.node.node().lose_gpu(1).unwrap();
    let private = |visible: Option<&str>| {
        let mut command = private(&sim, "", &["cuda-app", "run", "0", "--on", "all"]);
        match visible {
            Some(visible) => command.env("CUDA_VISIBLE_DEVICES", visible),
            None => command.env_remove("CUDA_VISIBLE_DEVICES"),
        };
        Ran::of(&mut command)
    };
    let said = private(None).ended(0).stderr;
    assert!(said.starts_with("note: GPU 1 is lost ("), "{said}");
    assert_contains(&said, "): the program does not use this GPU\n");
    // Numbers are indices, which a lost GPU keeps.
    assert_eq!(private(Some("2,3")).ended(0).stderr, "");
    let refused = private(Some("1,2")).ended(125).stderr;
    assert_contains(
        &refused,
        "CUDA_VISIBLE_DEVICES contains \"1\", but GPU 1 is lost (",
    );
}

#[test]
fn the_gpus_of_a_private_daemon_are_a_range() {
    let sim = Sim::with("h200", 4);
    let mut app = App::start(private(&sim, "0,1,3", &["cuda-app", "hold", "--on", "all"]));
    app.wait_up();
    let shown = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&shown, "  0-1,3  ");
    assert!(app.finish().status.success());
}
