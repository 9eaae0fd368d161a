//! Joint devices of which a GPU is no longer there after a reboot.

use serde_json::json;
use testkit::{Ran, Sim, TestNode, assert_contains, in_state};

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
    lose_gpu(sim, count - 1)
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

/// Boots the node without the GPU with this index; returns its UUID.
fn lose_gpu(sim: &Sim, index: usize) -> String {
    let lost = gpu(sim, index);
    sim.node.reboot();
    let removed = sim.node.node().update(|state| {
        state.gpus.remove(index);
    });
    removed.unwrap();
    lost
}

/// Four H200s and an A100 after them.
fn mixed(profile: &str) -> Sim {
    let node = TestNode::builder().gpu("h200", 4).gpu("a100-80gb", 1);
    let sim = Sim { node: node.build() };
    sim.up(profile, &["--yes"]).ended(0);
    sim
}

#[test]
fn it_is_known_by_a_name_from_a_template_too() {
    for (template, name) in [("j{gpu}", "j0"), ("j{n}", "j0"), ("j{gpu}-{n}", "j0-0")] {
        let profile = PRODUCT.replace("trainers", template);
        let sim = Sim::served("h200", 4, &profile);
        let last = lose_last_gpu(&sim);
        let why =
            format!("device {template} needs all its GPUs: {last} (formerly GPU 3) does not exist");
        for args in [&[][..], &["--keep-going"]] {
            assert_contains(&up(&sim, args).ended(4).stderr, &why);
        }
        let why = format!("{name} is stopped, and cannot start: {last} (formerly GPU 3)");
        assert_contains(&sim.run(&["start", name]).ended(2).stderr, &why);
        let index = profile.replace("product = \"H200\"", "index = [0, 1, 2]");
        sim.up(&index, &["--yes"]).ended(0);
        sim.up_does_nothing(&profile);
    }
}

/// The second device has another index after the boot, and so another name.
#[test]
fn devices_of_one_template_are_told_apart() {
    let block =
        "[[gpu]]\nselect = { product = \"A100\" }\nmig = false\nname = \"j{gpu}\"\njoint = true\n";
    let profile = format!("{block}{}", block.replace("A100", "H200"));
    for (lost, former) in [(0, "GPU 0"), (4, "GPU 4")] {
        let node = TestNode::builder().gpu("a100-80gb", 3).gpu("h200", 3);
        let sim = Sim { node: node.build() };
        sim.up(&profile, &["--yes"]).ended(0);
        assert_eq!(in_state(&sim.status(), "ready"), ["j0", "j3"]);
        let lost = lose_gpu(&sim, lost);
        let why = format!("needs all its GPUs: {lost} (formerly {former}) does not exist");
        for _ in 0..2 {
            assert_contains(&up(&sim, &["--keep-going"]).ended(1).stderr, &why);
            assert_contains(&up(&sim, &[]).ended(4).stderr, &why);
        }
    }
}

/// After the boot, the last index is that of the A100.
#[test]
fn an_index_with_a_product_is_no_decision_to_be_smaller() {
    let both = PRODUCT.replace("\"H200\"", "\"H200\", index = [0, 1, 2, 3]");
    let sim = mixed(&both);
    let last = lose_gpu(&sim, 3);
    let why = format!("device trainers needs all its GPUs: {last} (formerly GPU 3) does not exist");
    assert_contains(&up(&sim, &[]).ended(4).stderr, &why);
    let index = both.replace(
        "product = \"H200\", index = [0, 1, 2, 3]",
        "index = [0, 1, 2]",
    );
    sim.up(&index, &["--yes"]).ended(0);
}

/// After the boot, GPU 1 is the one that was GPU 2, of the other device.
#[test]
fn an_index_with_a_product_takes_no_gpu_of_another_device() {
    let block = PRODUCT.replace("\"H200\"", "\"H200\", index = [0, 1]");
    let other = block
        .replace("[0, 1]", "[2, 3]")
        .replace("trainers", "others");
    // In the first profile, there is no GPU 3 either.
    for (profile, status) in [(format!("{block}{other}"), 2), (block, 4)] {
        let sim = Sim::served("h200", 4, &profile);
        let lost = lose_gpu(&sim, 0);
        let why =
            format!("device trainers needs all its GPUs: {lost} (formerly GPU 0) does not exist");
        let refused = up(&sim, &[]).ended(status).stderr;
        assert!(status != 4 || refused.contains(&why), "{refused}");
        let _ = up(&sim, &["--keep-going"]);
        assert_eq!(in_state(&sim.status(), "ready"), [""; 0]);
    }
}

#[test]
fn a_renamed_device_does_not_become_smaller() {
    for former in [ALL, PRODUCT] {
        let sim = Sim::served("h200", 4, former);
        let last = lose_last_gpu(&sim);
        let renamed = PRODUCT.replace("trainers", "large");
        let why =
            format!("device large needs all its GPUs: {last} (formerly GPU 3) does not exist");
        assert_contains(&sim.up(&renamed, &["--yes"]).ended(4).stderr, &why);
    }
}

/// It has none of the GPUs of the other one.
#[test]
fn another_device_of_the_same_name_is_no_obstacle() {
    let sim = Sim {
        node: TestNode::builder()
            .gpu("h200", 3)
            .gpu("a100-80gb", 2)
            .build(),
    };
    sim.up(PRODUCT, &["--yes"]).ended(0);
    let lost = lose_gpu(&sim, 0);
    let other = PRODUCT.replace("H200", "A100");
    sim.up(&other, &["--yes"]).ended(0);
    let why = format!("device trainers needs all its GPUs: {lost} (formerly GPU 0) does not exist");
    assert_contains(&sim.up(PRODUCT, &["--yes"]).ended(4).stderr, &why);
}

/// Without GPU 0, the next GPU has its index.
#[test]
fn a_gpu_that_another_block_takes_after_a_boot_is_missed() {
    let sim = Sim::served("h200", 4, FIRST_AND_REST);
    let second = gpu(&sim, 1);
    lose_gpu(&sim, 0);
    let why = format!(
        "device trainers needs all its GPUs: its block no longer selects {second} (formerly GPU 1)"
    );
    let refused = up(&sim, &[]).ended(4).stderr;
    assert_contains(&refused, &why);
    assert_contains(
        &refused,
        "select them by index: select = { index = [1, 2] }\n",
    );
    sim.up(
        &FIRST_AND_REST.replace("all = true", "index = [1, 2]"),
        &["--yes"],
    )
    .ended(0);
    sim.up_does_nothing(FIRST_AND_REST);
}

#[test]
fn the_only_gpu_that_is_left_is_no_joint_device() {
    let sim = Sim::served("h200", 2, ALL);
    lose_last_gpu(&sim);
    let hint = "hint: to use the other GPU, omit joint\n";
    assert_contains(&up(&sim, &[]).ended(4).stderr, hint);
    sim.up(&ALL.replace("joint = true\n", ""), &["--yes"])
        .ended(0);
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

/// The hint leads to a profile that can be applied.
#[test]
fn one_that_was_removed_while_the_daemon_runs_is_named() {
    let sim = Sim::served("h200", 4, ALL);
    let last = gpu(&sim, 3);
    let removed = sim.node.node().update(|state| state.gpus.truncate(3));
    removed.unwrap();
    let status = sim.run(&["status"]).stdout;
    let what = format!("{last} (formerly GPU 3) no longer exists, but its daemon runs");
    assert_contains(&status, &what);
    assert_contains(
        &status,
        "run `mig-mps down trainers` to remove what is left",
    );
    assert!(!status.contains("to restore it"), "{status}");
    sim.run(&["down", "trainers", "--yes"]).ended(0);
}

/// The GPUs behind one that was removed have other indices.
#[test]
fn the_gpus_that_are_left_are_shown_and_counted() {
    let first = ALL.replace("all = true", "index = [0, 1]");
    let second = ALL.replace("all = true", "index = [2, 3]");
    let profile = format!("{first}{}", second.replace("trainers", "others"));
    for removed in [0, 1] {
        let sim = Sim::served("h200", 4, &profile);
        let uuids = [gpu(&sim, 0), gpu(&sim, 1)];
        let changed = sim.node.node().update(|state| {
            state.gpus.remove(removed);
        });
        changed.unwrap();
        let shown = sim.run(&["status"]).stdout;
        assert_contains(&shown, "trainers    0  ");
        assert_contains(&shown, "others    1-2  ");
        assert_contains(&shown, "2 devices on 3 GPUs: ");
        let map = sim.run(&["status", "--map"]).stdout;
        let titles: Vec<&str> = map.lines().filter(|line| line.starts_with("GPU")).collect();
        assert!(
            titles.iter().any(|title| title.starts_with("GPUs 1-2 ")),
            "{map}"
        );
        assert!(
            !titles.iter().any(|title| title.starts_with("GPUs 0-1 ")),
            "{map}"
        );
        for (index, devices) in [
            ("0", &["trainers"][..]),
            ("1", &["others"]),
            ("2", &["others"]),
        ] {
            let of_gpu = sim.run(&["status", "--gpu", index, "--json"]).json();
            let named = of_gpu["devices"].as_array().unwrap().iter();
            let named: Vec<_> = named
                .map(|device| device["name"].as_str().unwrap())
                .collect();
            assert_eq!(named, devices, "GPU {index}");
        }
        let gpus = sim.device("trainers")["joint_gpus"].clone();
        assert_eq!(
            gpus[1 - removed],
            json!({ "index": 0, "uuid": uuids[1 - removed] })
        );
    }
}

/// The index of a GPU that was removed is that of another one.
#[test]
fn the_uuid_of_a_removed_gpu_means_no_other_gpu() {
    let joint = ALL.replace("all = true", "index = [0, 1]");
    let single = "[[gpu]]\nselect = { index = [2] }\nmig = false\nname = \"single\"\n";
    let sim = Sim::served("h200", 3, &format!("{joint}{single}"));
    let uuid = gpu(&sim, 1);
    let changed = sim.node.node().update(|state| {
        state.gpus.remove(1);
    });
    changed.unwrap();
    for command in ["down", "restart", "start"] {
        let ran = sim.run(&[command, &uuid, "--yes"]).ended(2);
        assert_contains(&ran.stderr, &format!("no GPU has the name \"{uuid}\""));
    }
    assert_eq!(in_state(&sim.status(), "ready"), ["single"]);
}
