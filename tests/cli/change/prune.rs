//! Devices that no block of a profile selects any more.

use insta::assert_snapshot;

use testkit::{Sim, assert_contains, in_state, plain};

const EACH: &str = "[[gpu]]\nselect = { all = true }\nmig = false\n";
const FIRST: &str = "[[gpu]]\nselect = { index = [0] }\nmig = false\n";

#[test]
fn daemons_in_no_block_are_named_and_stopped_by_prune_alone() {
    let sim = Sim::served("h200", 3, EACH);
    let ran = sim.up(FIRST, &[]).ended(0);
    assert_snapshot!(ran.stderr, @"
    note: this profile does not select GPUs 1-2, which still have 2 mig-mps devices; use up --prune to stop them
    Nothing to do: the node matches the profile.
    ");
    assert_eq!(in_state(&sim.status(), "ready"), ["0", "1", "2"]);
    let ran = sim.run(&["plan"]).ended(0);
    assert!(
        ran.stderr.contains("use up --prune to stop them"),
        "{}",
        ran.stderr
    );
    let plan = sim.run(&["plan", "--prune"]).ended(0);
    assert_snapshot!(plain(&plan.stdout), @"
    GPUs 1-2  NVIDIA H200
      - stop 2 daemons in all (not in any block of the profile): 1, 2

    Plan: stop 2 daemons.
    Apply with: mig-mps up --prune
    ");
    let document = sim.run(&["plan", "--json"]).json();
    assert_eq!(
        document["remarks"].as_array().unwrap().len(),
        1,
        "{document:#}"
    );

    // It asks, and clients are in the way as of any change.
    let client = sim.client("1");
    let refused = sim.up(FIRST, &["--prune", "--yes"]).ended(4).stderr;
    assert!(refused.contains("1 client is still running"), "{refused}");
    assert!(client.finish().status.success());
    let refused = sim.up(FIRST, &["--prune"]).ended(4).stderr;
    assert!(refused.contains("this would stop 2 daemons"), "{refused}");
    let ran = sim.answered("up --prune", "y\r").ended(0);
    assert!(ran.stdout.contains("- stop 2 daemons"), "{}", ran.stdout);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    let ran = sim.up(FIRST, &["--prune"]).ended(0);
    assert_eq!(ran.stderr, "Nothing to do: the node matches the profile.\n");
}

/// Only daemons stop: what holds them stays, as after `down`.
#[test]
fn instances_in_no_block_stay() {
    let sim = Sim::served(
        "a100-80gb",
        2,
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\" } ]\n",
    );
    let first = "[[gpu]]\nselect = { index = [0] }\ndevices = [ { profile = \"3g\" } ]\n";
    let ran = sim.up(first, &["--prune", "--yes"]).ended(0);
    assert!(!ran.stderr.contains("in no block"), "{}", ran.stderr);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    assert_eq!(in_state(&sim.status(), "no daemon"), ["1.0"]);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    let list = sim.list();
    assert_eq!(
        list["gpus"][1]["gpu_instances"].as_array().unwrap().len(),
        0
    );
}

/// The GPUs of a joint device of which the profile selects one.
#[test]
fn prune_stops_a_joint_device_that_loses_a_gpu() {
    for (count, last) in [(3, 2), (4, 3), (3, 0), (3, 1)] {
        let all = format!("{EACH}name = \"trainers\"\njoint = true\n");
        for options in [
            &["--yes", "--prune"][..],
            &["--yes", "--prune", "--keep-going"],
        ] {
            let sim = Sim::served("h200", count, &all);
            let alone = FIRST.replace('0', &last.to_string());
            let refused = sim.up(&alone, &["--yes"]).ended(4);
            assert_contains(&refused.stderr, "is part of the joint device trainers");
            let client = sim.client("trainers");
            let refused = sim.up(&alone, options).ended(4);
            assert_contains(
                &refused.stderr,
                &format!("trainers: pid {} (", client.pid()),
            );
            assert!(client.finish().status.success());
            sim.up(&alone, options).ended(0);
            let status = sim.status();
            assert_eq!(
                in_state(&status, "ready"),
                [last.to_string()],
                "{options:?}"
            );
            assert_eq!(
                status["devices"].as_array().unwrap().len(),
                count,
                "{status:#}"
            );
            assert_eq!(sim.node.processes("nvidia-cuda-mps-control -d").len(), 1);
            sim.up_does_nothing(&alone);
        }
    }
}
