//! Joint devices beside others: with other records, other users, and GPUs that are not there.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::{App, Ran, Sim, assert_contains, in_state, needs_root};

use super::{TRAINERS, gpu, joint, trainers};

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
