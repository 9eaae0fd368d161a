//! The GPUs of a joint device change together, or not at all.

use std::collections::BTreeSet;
use std::time::Duration;

use mig_mps::internals::apply::{Allowed, OnFailure};

use crate::apply::child;
use crate::apply::faults::{Change, REJOIN, SPLIT_INTO_PARTS};
use crate::apply::testbed::{Layout, Testbed};
use testkit::assert_contains;

/// Two GPUs become a joint device, and a third one changes beside it.
const BESIDE: Change = Change {
    before: "3g.71gb@0 / 1g.18gb@0 3g.71gb@4 / 3g.71gb@0",
    after: "joint / joint / off",
    ..SPLIT_INTO_PARTS
};

const APART: Change = Change {
    before: BESIDE.after,
    after: BESIDE.before,
    ..BESIDE
};

fn keeping_going(change: Change) -> Testbed {
    let mut testbed = change.testbed();
    testbed.hand.on_failure = OnFailure::LeaveOut;
    testbed
}

impl Change {
    /// True if GPU 2 is of a joint device as well, before or afterwards.
    fn joins_all(self) -> bool {
        [self.before, self.after]
            .iter()
            .any(|layout| layout.ends_with("joint / joint") && layout.matches('/').count() == 2)
    }

    /// The things on the GPUs that change together, and those on GPU 2 where it does not.
    fn by_device(self, testbed: &Testbed) -> [BTreeSet<String>; 2] {
        let is_apart = |thing: &String| !self.joins_all() && thing.starts_with("GPU 2 ");
        let (third, joint) = testbed.things().into_iter().partition(is_apart);
        [joint, third]
    }
}

fn leaves_no_half(change: Change, share: usize) {
    let testbed = keeping_going(change);
    testbed.hand.bring_to(change.after).unwrap();
    let wanted = change.by_device(&testbed);
    testbed.hand.bring_to(change.before).unwrap();
    let before = change.by_device(&testbed);
    let points = child::points(&testbed, change.after, share, |_| true);
    let (mut alone, mut runs) = (0, 0);
    for (on, nth) in &points {
        testbed.hand.bring_to(change.before).unwrap();
        let node = testbed.hand.observe();
        let plan = testbed.hand.reconfigure(&node, change.after);
        let code = if on.starts_with("nvml") { 999 } else { 2 };
        testbed.sim.node.fault(on).nth(*nth).fails(code).unwrap();
        let result = testbed.hand.run(&node, &plan, Allowed::default());
        testbed.sim.node.node().clear_faults().unwrap();
        let now = change.by_device(&testbed);
        let what = format!("{on} number {nth}: {result:?}");
        for ((now, before), wanted) in now.iter().zip(&before).zip(&wanted) {
            assert!(now == before || now == wanted, "{what}: {now:#?}");
        }
        runs += usize::from(result.is_err());
        alone += usize::from((now[0] == wanted[0]) != (now[1] == wanted[1]));
        testbed
            .hand
            .bring_to(change.after)
            .unwrap_or_else(|error| panic!("{what}: then: {error}"));
        assert_eq!(change.by_device(&testbed), wanted, "{what}: then");
        testbed.is_tidy();
    }
    assert!(runs * 3 >= points.len(), "{runs} of {}", points.len());
    assert!(change.joins_all() || alone * 2 >= runs, "{alone} of {runs}");
}

in_thirds! {
    joining_with_keep_going_leaves_no_half: leaves_no_half(BESIDE),
    splitting_with_keep_going_leaves_no_half: leaves_no_half(APART),
    joining_otherwise_with_keep_going_leaves_no_half: leaves_no_half(REJOIN),
}

/// Applies what a GPU that is held open does not let happen, and says what the error is.
fn with_held_gpu(testbed: &Testbed, gpu: usize, after: &Layout) -> String {
    let holder = testbed.sim.node.holder(&[gpu]);
    let error = testbed.hand.bring_to(after).unwrap_err();
    assert!(error.is_busy(), "{error}");
    let text = error.to_string();
    assert_contains(&text, &format!("kept open by pid {} (", holder.pid()));
    holder.finish();
    text
}

#[test]
fn a_held_gpu_keeps_the_daemons_of_other_devices_going() {
    for gpu in [0, 1] {
        let testbed = BESIDE.testbed();
        testbed.hand.bring_to(BESIDE.before).unwrap();
        let before = testbed.things();
        let daemon = testbed.sim.device("2.0")["daemon_pid"].clone();
        let text = with_held_gpu(&testbed, gpu, BESIDE.after);
        assert_eq!(testbed.things(), before, "{text}");
        assert_eq!(testbed.sim.device("2.0")["daemon_pid"], daemon, "{text}");
        testbed.hand.bring_to(BESIDE.after).unwrap();
    }
}

#[test]
fn with_keep_going_a_held_gpu_keeps_its_joint_device_away_and_no_other() {
    for gpu in [0, 1] {
        let testbed = keeping_going(BESIDE);
        testbed.hand.bring_to(BESIDE.after).unwrap();
        let wanted = BESIDE.by_device(&testbed);
        testbed.hand.bring_to(BESIDE.before).unwrap();
        let before = BESIDE.by_device(&testbed);
        let text = with_held_gpu(&testbed, gpu, BESIDE.after);
        let [joint, third] = BESIDE.by_device(&testbed);
        assert_eq!(joint, before[0], "{text}");
        assert_eq!(third, wanted[1], "{text}");
        testbed.hand.bring_to(BESIDE.after).unwrap();
        assert_eq!(BESIDE.by_device(&testbed), wanted);
    }
}

/// A daemon that is started without one of its GPUs would serve less than it should.
#[test]
fn no_joint_daemon_starts_after_a_failure_on_one_of_its_gpus() {
    let mut failed_there = 0;
    for nth in 1..=4 {
        let testbed = keeping_going(BESIDE);
        testbed.hand.bring_to(BESIDE.before).unwrap();
        let [before, _] = BESIDE.by_device(&testbed);
        let started = testbed.sim.happened("daemon start");
        let fault = testbed.sim.node.fault("nvmlGpuInstanceDestroy");
        fault.nth(nth).fails(999).unwrap();
        let error = testbed.hand.bring_to(BESIDE.after).unwrap_err();
        let [now, third] = BESIDE.by_device(&testbed);
        // The third GPU comes first in some runs: then it is the one that fails.
        if now == before {
            failed_there += 1;
            let again = before
                .iter()
                .filter(|thing| thing.contains("daemon of"))
                .count();
            assert_eq!(
                testbed.sim.happened("daemon start"),
                started + again + 1,
                "{error}"
            );
            assert!(
                third.iter().any(|thing| thing.contains("daemon of 2 ")),
                "{third:?}"
            );
        }
    }
    assert!(failed_there > 0);
}

/// What serves the joint device must not start while a GPU of it is still in MIG mode.
#[test]
fn a_joint_daemon_comes_back_when_all_its_gpus_are_whole_again() {
    // On one GPU the switch back takes its time.
    for slow in [3, 4] {
        let testbed = SPLIT_INTO_PARTS.testbed();
        testbed.hand.bring_to(SPLIT_INTO_PARTS.before).unwrap();
        let before = testbed.things();
        let switches = testbed.sim.happened("nvmlDeviceSetMigMode");
        let fault = |on: &str| testbed.sim.node.fault(on);
        fault("nvmlDeviceCreateGpuInstanceWithPlacement")
            .nth(3)
            .fails(999)
            .unwrap();
        fault("nvmlDeviceSetMigMode")
            .nth(slow)
            .slow(Duration::from_millis(500))
            .unwrap();
        let error = testbed.hand.bring_to(SPLIT_INTO_PARTS.after).unwrap_err();
        assert_eq!(testbed.things(), before, "{error}");
        let events = testbed.sim.node.events();
        let last = |what: &str| events.iter().rposition(|event| event.what == what).unwrap();
        assert_eq!(testbed.sim.happened("nvmlDeviceSetMigMode"), switches + 4);
        assert!(
            last("nvmlDeviceSetMigMode") < last("daemon start"),
            "{error}"
        );
    }
}

#[test]
fn a_joint_daemon_does_not_come_back_without_one_of_its_gpus() {
    let testbed = SPLIT_INTO_PARTS.testbed();
    testbed.hand.bring_to(SPLIT_INTO_PARTS.before).unwrap();
    let before = testbed.things();
    // One GPU is switched, and not switched back.
    for nth in 2..20 {
        let fault = testbed.sim.node.fault("nvmlDeviceSetMigMode");
        fault.nth(nth).fails(999).unwrap();
    }
    let error = testbed.hand.bring_to(SPLIT_INTO_PARTS.after).unwrap_err();
    testbed.sim.node.node().clear_faults().unwrap();
    let things = testbed.things();
    assert!(
        !things.iter().any(|thing| thing.contains("daemon of")),
        "{things:?}"
    );
    assert_contains(&error.to_string(), " is in MIG mode");
    testbed.hand.bring_to(SPLIT_INTO_PARTS.before).unwrap();
    assert_eq!(testbed.things(), before);
}

/// A daemon that does not start is no reason to go back where none ran, but on another GPU of the device there was one.
#[test]
fn what_ran_on_any_gpu_of_a_joint_device_comes_back_with_keep_going() {
    for before in ["3g.71gb@0 / ", " / 3g.71gb@0", "off / ", " / off"] {
        let change = Change {
            before,
            after: "joint / joint",
            ..BESIDE
        };
        let testbed = keeping_going(change);
        testbed.hand.bring_to(before).unwrap();
        let things = testbed.things();
        testbed.sim.node.fault("daemon start").fails(1).unwrap();
        let error = testbed.hand.bring_to(change.after).unwrap_err();
        assert_eq!(testbed.things(), things, "{before}: {error}");
        testbed.hand.bring_to(change.after).unwrap();
    }
}
