//! The rollback after a failure, in detail.

use mig_mps::internals::apply::Allowed;
use simnode::node::Placement;

use crate::apply::testbed::Testbed;
use testkit::{Sim, assert_contains, in_state};

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";

/// Compute instances that are made again in another order get each other's UUIDs, as the driver numbers them in order.
#[test]
fn a_device_that_has_another_uuid_afterwards_is_served_by_its_daemon() {
    let sim = Sim::with("a100-80gb", 1);
    let profile =
        |devices: &str| format!("[[gpu]]\nselect = {{ all = true }}\ndevices = [ {devices} ]\n");
    let parts = profile(
        r#"{ name = "part-{n}", profile = "2g", at = 0, compute = ["1c", "1c"], mps = { server = "lazy" } }"#,
    );
    sim.up(&parts, &[]).ended(0);
    let uuids = || ["part-0", "part-1"].map(|name| sim.device(name)["uuid"].clone());
    let before = (uuids(), sim.list());
    sim.node.fault(CREATE).fails(999).unwrap();
    let ran = sim
        .up(&profile(r#"{ profile = "4g", at = 0 }"#), &["--yes"])
        .ended(1);
    assert!(!ran.stderr.contains("missing"), "{}", ran.stderr);
    let [first, second] = before.0;
    assert_eq!(
        uuids(),
        [second, first],
        "otherwise this test shows nothing"
    );
    assert_eq!(
        in_state(&sim.status(), "no server yet"),
        ["part-0", "part-1"]
    );
    for name in ["part-0", "part-1"] {
        // Which device a program gets is the daemon's affair: it must be the one of that name.
        let app = sim.client(name);
        assert_eq!(sim.device(name)["client_count"], 1);
        assert!(app.finish().status.success());
    }
    let again = sim.up(&parts, &[]).ended(0);
    assert!(
        again.stderr.starts_with("Nothing to do"),
        "{}",
        again.stderr
    );
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
}

#[test]
fn what_others_made_is_theirs_again() {
    let testbed = Testbed::with("a100-80gb", 1);
    testbed.hand.bring_to("3g.40gb@4").unwrap();
    let place = Placement { start: 0, size: 4 };
    let update = testbed.sim.node.node().update(|state| {
        let id = state.create_gpu_instance(0, 9, Some(place))?;
        state.create_compute_instance(0, id, 2, None)
    });
    update.unwrap().unwrap();
    let (before, ours) = (testbed.things(), testbed.ledger());
    testbed.sim.node.fault(CREATE).nth(2).fails(999).unwrap();
    let error = testbed
        .hand
        .bring_to("2g.20gb@0 1g.10gb@2 3g.40gb@4")
        .unwrap_err();
    assert_eq!(testbed.things(), before, "{error}");
    assert_eq!(testbed.ledger(), ours, "{error}");
    // What is not mig-mps's stays.
    testbed
        .sim
        .run(&["down", "--destroy-mig", "--yes"])
        .ended(0);
    assert_eq!(testbed.hand.observe().gpus[0].instances.len(), 1);
}

/// An instance that was made and could not be read back is not left behind, nor made twice.
#[test]
fn what_was_made_and_not_understood_is_removed() {
    let testbed = Testbed::with("a100-80gb", 1);
    testbed.hand.bring_to("3g.40gb@4").unwrap();
    let before = testbed.things();
    let with_faults = |faults: [&str; 2]| {
        let node = testbed.hand.observe();
        let plan = testbed.hand.reconfigure(&node, "3g.40gb@0 3g.40gb@4");
        for on in faults {
            testbed.sim.node.fault(on).fails(999).unwrap();
        }
        let run = testbed.hand.run(&node, &plan, Allowed::default());
        run.unwrap_err()
    };
    // It is not destroyed at once either: only undoing the run does it.
    let error = with_faults([
        "nvmlComputeInstanceGetInfo_v2",
        "nvmlComputeInstanceDestroy",
    ]);
    let text = error.to_string();
    assert_contains(&text, "the cleanup failed as well");
    assert!(error.rolled_back.stands.is_empty(), "{error}");
    assert_eq!(testbed.things(), before, "{error}");
    let error = with_faults(["nvmlGpuInstanceGetInfo", "nvmlGpuInstanceDestroy"]);
    assert!(error.rolled_back.stands.is_empty(), "{error}");
    assert_eq!(testbed.things(), before, "{error}");
    testbed.hand.bring_to("3g.40gb@0 3g.40gb@4").unwrap();
    assert_eq!(testbed.sim.happened(CREATE), 4);
}
