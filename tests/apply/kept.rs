//! Things that a run does not touch, and the amount of work that it does.

use std::fs;
use std::time::Duration;

use mig_mps::internals::apply::Allowed;
use mig_mps::internals::plan::Purge;
use serde_json::Value;

use crate::apply::faults::{AFTER, BEFORE};
use crate::apply::testbed::{Hand, Testbed};
use testkit::{Sim, assert_contains, in_state};

fn server(device: &Value) -> &Value {
    &device["servers"][0]["pid"]
}

#[test]
fn a_client_on_a_kept_device_notices_nothing() {
    let testbed = Testbed::with("a100-80gb", 2);
    testbed.hand.bring_to(BEFORE).unwrap();
    let before = testbed.sim.device("0.4");
    let app = testbed.sim.client("0.4");
    testbed.hand.bring_to(AFTER).unwrap();
    let after = testbed.sim.device("0.4");
    assert!(server(&before).is_number(), "{before:#}");
    assert_eq!(server(&before), server(&after));
    assert_eq!(before["uuid"], after["uuid"]);
    assert_eq!(before["daemon_pid"], after["daemon_pid"]);
    assert_eq!(after["client_count"], 1);
    let finished = app.finish();
    assert!(finished.status.success(), "{}", finished.output);
}

/// The number of times that a call was made with that answer.
fn calls(testbed: &Testbed, call: &str, code: u32) -> usize {
    let events = testbed.sim.node.events();
    events
        .iter()
        .filter(|event| event.what == call && event.detail["code"] == code)
        .count()
}

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
const DESTROY: &str = "nvmlComputeInstanceDestroy";

#[test]
fn no_instance_is_made_that_is_not_wanted() {
    let testbed = Testbed::with("a100-80gb", 2);
    testbed.hand.bring_to(BEFORE).unwrap();
    assert_eq!(calls(&testbed, CREATE, 0), 4);
    testbed.hand.bring_to(AFTER).unwrap();
    assert_eq!(calls(&testbed, CREATE, 0), 4 + 2);
    assert_eq!(testbed.sim.happened(CREATE), 4 + 2);
    assert_eq!(calls(&testbed, DESTROY, 0), 3);
}

#[test]
fn what_is_in_use_for_a_moment_is_tried_again() {
    let testbed = Testbed::with("a100-80gb", 1);
    testbed.hand.bring_to("3g.40gb@0").unwrap();
    for nth in [1, 2, 3] {
        testbed.sim.node.fault(DESTROY).nth(nth).fails(19).unwrap();
    }
    testbed.sim.node.fault(CREATE).fails(19).unwrap();
    testbed.hand.bring_to("2g.20gb@0").unwrap();
    assert_eq!(
        (calls(&testbed, DESTROY, 19), calls(&testbed, DESTROY, 0)),
        (3, 1)
    );
    assert_eq!(
        (calls(&testbed, CREATE, 19), calls(&testbed, CREATE, 0)),
        (1, 2)
    );
}

#[test]
fn a_process_that_keeps_an_instance_in_use_is_named() {
    let testbed = Testbed::with("a100-80gb", 1);
    testbed.hand.bring_to("3g.40gb@0 3g.40gb@4").unwrap();
    let before = testbed.things();
    let app = testbed.sim.outside("0.0");
    let error = testbed.hand.bring_to("2g.20gb@0 3g.40gb@4").unwrap_err();
    let text = error.to_string();
    assert!(error.is_busy(), "{text}");
    assert_contains(&text, &format!("kept open by pid {} (", app.pid()));
    assert_contains(&text, "cuda-app hold");
    // The daemon that was ended for it serves again.
    assert_eq!(testbed.things(), before, "{text}");
    assert!(calls(&testbed, DESTROY, 19) > 3, "it was tried for a while");
    app.finish();
    testbed.hand.bring_to("2g.20gb@0 3g.40gb@4").unwrap();
}

#[test]
fn a_name_that_moves_to_another_gpu_waits_for_the_daemon_that_had_it() {
    let sim = Sim::with("a100-80gb", 2);
    let named = |first: &str, second: &str| {
        let block = |gpu: u32, name: &str| {
            format!(
                "[[gpu]]\nselect = {{ index = [{gpu}] }}\ndevices = [ {{ profile = \"3g\", name = \"{name}\" }} ]\n"
            )
        };
        block(0, first) + &block(1, second)
    };
    sim.up(&named("x", "y"), &[]).ended(0);
    // One GPU takes its time to let go of a name that the other one is to have.
    let slow = Duration::from_millis(500);
    sim.node.fault("quit").nth(2).slow(slow).unwrap();
    sim.up(&named("y", "x"), &["--yes"]).ended(0);
    let events = sim.node.events();
    let nth = |what: &str, nth: usize| {
        let mut found = (0..events.len()).filter(|at| events[*at].what == what);
        found.nth(nth).unwrap()
    };
    // Each GPU starts a daemon under the name of one that the other GPU ends.
    assert!(nth("daemon end", 1) < nth("daemon start", 2));
    assert_eq!(in_state(&sim.status(), "ready"), ["y", "x"]);
    assert_eq!(sim.device("x")["gpu"], 1);
}

/// A user may have written more than can be removed at once.
#[test]
fn a_purge_ends_in_time_and_goes_on_the_next_time() {
    let mut testbed = Testbed::with("a100-80gb", 1);
    let log = testbed.hand.directories.log.join("GPU-gone");
    fs::create_dir_all(log.join("a/b")).unwrap();
    let purge = |hand: &Hand| {
        let node = hand.observe();
        let mut plan = hand.reconfigure(&node, "off");
        plan.purge = Some(Purge::All);
        hand.run(&node, &plan, Allowed::default())
    };
    // As the manual says.
    assert_eq!(
        testbed.hand.environment.purge_limit,
        Duration::from_secs(30)
    );
    testbed.hand.environment.purge_limit = Duration::ZERO;
    let error = purge(&testbed.hand).unwrap_err().to_string();
    assert_contains(&error, "it has too many files to remove in time");
    assert!(log.exists());
    testbed.hand.environment.purge_limit = Duration::from_secs(30);
    purge(&testbed.hand).unwrap();
    assert!(!log.exists());
}
