//! Joint devices of which a GPU is no longer there after a reboot.

use serde_json::json;
use testkit::{Ran, Sim, assert_contains, in_state};

use super::gpu;

/// All GPUs as one device.
const ALL: &str =
    "[[gpu]]\nselect = { all = true }\nmig = false\nname = \"trainers\"\njoint = true\n";

/// The same, in another way.
const PRODUCT: &str =
    "[[gpu]]\nselect = { product = \"H200\" }\nmig = false\nname = \"trainers\"\njoint = true\n";

/// GPU 0, and all others as one device.
const FIRST_AND_REST: &str = "[[gpu]]\nselect = { index = [0] }\nmig = false\nname = \"first\"\n\
     [[gpu]]\nselect = { all = true }\nmig = false\nname = \"trainers\"\njoint = true\n";

/// Boots the node without its last GPU; returns its UUID.
fn lose_last_gpu(sim: &Sim) -> String {
    let count = sim.node.node().state().unwrap().gpus.len();
    let last = gpu(sim, count - 1);
    sim.node.reboot();
    let removed = sim.node.node().update(|state| {
        state.gpus.truncate(count - 1);
    });
    removed.unwrap();
    last
}

fn up(sim: &Sim, args: &[&str]) -> Ran {
    sim.run(&[&["up", "--yes"], args].concat())
}

#[test]
fn it_does_not_become_smaller_by_itself() {
    for (profile, is_stopped) in [(ALL, false), (PRODUCT, false), (ALL, true)] {
        let sim = Sim::served("h200", 4, profile);
        if is_stopped {
            sim.run(&["down", "trainers", "--yes"]).ended(0);
        }
        let last = lose_last_gpu(&sim);
        let why =
            format!("device trainers needs all its GPUs: {last} (formerly GPU 3) does not exist");
        let path = sim.profile(profile).display().to_string();
        for args in [
            &["up", "--yes"][..],
            &["up", "--yes", &path],
            &["up", "--yes", "--keep-going"],
            &["plan"],
            &["plan", &path],
        ] {
            let ran = sim.run(args).ended(4);
            assert_contains(&ran.stderr, &why);
        }
        let why = format!(
            "trainers is stopped, and cannot start: {last} (formerly GPU 3) does not exist"
        );
        for words in [
            ["start", "trainers"],
            ["restart", "trainers"],
            ["status", "trainers"],
        ] {
            assert_contains(&sim.run(&words).ended(2).stderr, &why);
        }
        sim.run(&["heal"]).ended(0);
        assert_eq!(in_state(&sim.status(), "ready"), [""; 0]);
        assert_eq!(sim.node.processes("nvidia-cuda-mps-control -d").len(), 0);
        // The hint can be followed, and the profile is good again afterwards.
        assert_contains(
            &up(&sim, &[]).ended(4).stderr,
            "hint: to use the other GPUs, select them by index: select = { index = [0, 1, 2] }\n",
        );
        sim.up(&ALL.replace("all = true", "index = [0, 1, 2]"), &["--yes"])
            .ended(0);
        sim.up_does_nothing(profile);
    }
}

/// What is left out is not forgotten, and neither is what another profile did not have.
#[test]
fn its_gpus_are_known_until_a_profile_says_otherwise() {
    let sim = Sim::served("h200", 4, FIRST_AND_REST);
    let last = lose_last_gpu(&sim);
    let why = format!("device trainers needs all its GPUs: {last} (formerly GPU 3) does not exist");
    for _ in 0..2 {
        let ran = up(&sim, &["--keep-going"]).ended(1);
        assert_contains(&ran.stderr, &why);
        assert_eq!(in_state(&sim.status(), "ready"), ["first"]);
        assert_contains(&up(&sim, &[]).ended(4).stderr, &why);
    }
    sim.run(&["down", "--yes"]).ended(0);
    let sim = Sim::served("h200", 4, ALL);
    let apart = "[[gpu]]\nselect = { all = true }\nmig = false\n";
    sim.up(apart, &["--yes"]).ended(0);
    let last = lose_last_gpu(&sim);
    sim.up(apart, &["--yes"]).ended(0);
    let why = format!("device trainers needs all its GPUs: {last} (formerly GPU 3) does not exist");
    assert_contains(&sim.up(ALL, &["--yes"]).ended(4).stderr, &why);
    assert_contains(&up(&sim, &["--previous"]).ended(4).stderr, &why);
    assert_eq!(in_state(&sim.status(), "ready"), ["0", "1", "2"]);
}

/// A GPU that was replaced leaves the device as large as it was.
#[test]
fn another_gpu_takes_the_place_of_one_that_was_replaced() {
    let sim = Sim::served("h200", 4, ALL);
    let old = gpu(&sim, 3);
    let new = old.replace(&old[4..8], "0000");
    sim.node.reboot();
    let replaced = sim.node.node().update(|state| {
        state.gpus[3].uuid.clone_from(&new);
    });
    replaced.unwrap();
    up(&sim, &[]).ended(0);
    let gpus = sim.device("trainers")["joint_gpus"].clone();
    assert_eq!(gpus.as_array().unwrap().len(), 4);
    assert_eq!(gpus[3], json!({ "index": 3, "uuid": new }), "{gpus}");
    sim.up_does_nothing(ALL);
}

/// A profile that has one of them elsewhere, or fewer of them, is a decision.
#[test]
fn fewer_gpus_that_are_there_are_no_obstacle() {
    let sim = Sim::served("h200", 4, ALL);
    let two = ALL.replace("all = true", "index = [0, 1]");
    for profile in [FIRST_AND_REST, &two, ALL] {
        sim.run(&["down", "--yes"]).ended(0);
        sim.up(profile, &["--yes"]).ended(0);
        sim.up_does_nothing(profile);
    }
}
