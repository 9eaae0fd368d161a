//! `kill -9` at each point of a reconfiguration.

use std::collections::BTreeSet;
use std::fs;

use mig_mps::internals::apply::pick_up;
use mig_mps::internals::state::RunDir;

use crate::apply::child;
use crate::apply::faults::{Change, JOIN_PARTS, RECONFIGURE, REJOIN, SPLIT_INTO_PARTS};
use crate::apply::testbed::{Layout, Testbed};

/// A process that is killed in a call that only reads leaves what the change before left, and so does one that is killed at
/// the beginning of the next change. A fault at the start of a server kills the server.
fn leaves_something(name: &str) -> bool {
    let tells = ["Create", "Destroy", "GetInfo"];
    name != "server start"
        && (!name.starts_with("nvml") || tells.iter().any(|part| name.contains(part)))
}

/// Kills the process that reconfigures at the nth occurrence; false where there are fewer.
fn killed(testbed: &Testbed, after: &Layout, on: &str, nth: u32) -> bool {
    let faults = testbed.sim.happened("fault");
    let mut child = child::start(testbed, after, "");
    testbed.sim.node.fault(on).nth(nth).kills().unwrap();
    child.press("go\n");
    let ended = child.end();
    testbed.sim.node.node().clear_faults().unwrap();
    let is_met = testbed.sim.happened("fault") > faults;
    assert!(is_met || ended.status == 0, "{on} number {nth}: {ended:?}");
    is_met
}

fn each_point(change: Change, share: usize, recover: impl Fn(&Testbed, &BTreeSet<String>, &str)) {
    let testbed = change.testbed();
    testbed.hand.bring_to(change.after).unwrap();
    let wanted = testbed.things();
    testbed.hand.bring_to(change.before).unwrap();
    let points = child::points(&testbed, change.after, share, leaves_something);
    let mut count = 0;
    for (on, nth) in &points {
        testbed.hand.bring_to(change.before).unwrap();
        if killed(&testbed, change.after, on, *nth) {
            count += 1;
            recover(&testbed, &wanted, &format!("{on} number {nth}"));
        }
    }
    // How often a daemon is asked depends on how fast it answers, so some points are not met again.
    assert!(
        count * 2 >= points.len(),
        "killed {count} times: {points:?}"
    );
}

in_thirds! {
    killed_anywhere_the_next_run_finishes: the_next_run_finishes(RECONFIGURE),
    killed_anywhere_down_leaves_nothing: down_leaves_nothing(RECONFIGURE),
    killed_where_parts_join_the_next_run_finishes: the_next_run_finishes(JOIN_PARTS),
    killed_where_a_joint_device_is_split_the_next_run_finishes: the_next_run_finishes(SPLIT_INTO_PARTS),
    killed_where_gpus_join_otherwise_the_next_run_finishes: the_next_run_finishes(REJOIN),
    killed_where_gpus_join_otherwise_down_leaves_nothing: down_leaves_nothing(REJOIN),
}

fn the_next_run_finishes(change: Change, share: usize) {
    each_point(change, share, |testbed, wanted, at| {
        // What each command that changes something does first.
        let run_dir = RunDir::at(&testbed.hand.directories.run);
        let node = testbed.hand.observe();
        let picked_up = pick_up(&testbed.hand.environment, &run_dir, &node, true).unwrap();
        assert!(picked_up.is_some(), "killed at {at}: no journal");
        let next = testbed.hand.bring_to(change.after);
        next.unwrap_or_else(|error| panic!("killed at {at}: {error}"));
        assert_eq!(testbed.things(), *wanted, "killed at {at}");
        testbed.is_tidy();
    });
}

fn down_leaves_nothing(change: Change, share: usize) {
    each_point(change, share, |testbed, _, at| {
        let down = ["down", "--destroy-mig", "--force", "--yes"];
        let mut ran = testbed.sim.run(&down);
        // A daemon that the killed run was starting may come up between the plan and the change.
        if ran.status == 4 && ran.stderr.contains("the node has changed") {
            ran = testbed.sim.run(&down);
        }
        assert_eq!(ran.status, 0, "killed at {at}: {ran:?}");
        let (modes, left): (Vec<String>, Vec<String>) = testbed
            .things()
            .into_iter()
            .partition(|thing| thing.ends_with("MIG mode on"));
        assert!(left.is_empty(), "killed at {at}: {left:?}: {ran:?}");
        // That the mode is mig-mps's doing stays known, for --disable-mig.
        let files = ["lock", "node.json"];
        let files = if modes.is_empty() {
            &files[..1]
        } else {
            &files
        };
        assert_eq!(testbed.sim.run_dir(), files, "killed at {at}");
        assert!(testbed.ledger().is_empty(), "killed at {at}");
    });
}

#[test]
fn half_made_files_are_removed() {
    let testbed = Testbed::with("a100-80gb", 1);
    testbed.hand.bring_to("3g.40gb@0").unwrap();
    let run = testbed.sim.node.run_dir();
    let half = run.join("MIG-00000000-0000-0000-0000-000000000000");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("device.json.new"), "{").unwrap();
    fs::write(run.join("node.json.new"), "{").unwrap();
    fs::write(
        run.join(testbed.sim.uuid("0.0")).join("device.json.new"),
        "{",
    )
    .unwrap();
    std::os::unix::fs::symlink("../MIG-1", run.join("by-name/.0.4.new")).unwrap();
    std::os::unix::fs::symlink("../MIG-1", run.join("by-name/0.4")).unwrap();
    // A device was renamed.
    let target = format!("../{}", testbed.sim.uuid("0.0"));
    std::os::unix::fs::symlink(target, run.join("by-name/earlier")).unwrap();
    let kept = run.join("somebody-elses");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "").unwrap();
    let mut child = child::start(&testbed, "3g.40gb@0 3g.40gb@4", "");
    testbed.sim.node.fault("daemon start").kills().unwrap();
    child.press("go\n");
    let _ = child.end().ended(-1);
    testbed.sim.run(&["down"]).ended(0);
    assert!(kept.join("file").exists());
    fs::remove_dir_all(&kept).unwrap();
    assert_eq!(testbed.sim.run_dir(), ["lock", "node.json"]);
}
