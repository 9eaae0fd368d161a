//! Steps that fail half-way, and changes that meet.

use std::fs;

use serde_json::json;
use testkit::{Ran, SMALL, Sim, WHOLE, assert_contains, in_state};

#[test]
fn a_failed_up_leaves_the_node_as_it_was() {
    let sim = Sim::with("a100-80gb", 2);
    for nth in [3, 4] {
        sim.node.fault("daemon start").nth(nth).fails(100).unwrap();
    }
    let ran = sim.up(SMALL, &[]).ended(1);
    assert_contains(
        &ran.stderr,
        "did not start (exit status 100): CUDA sees no device MIG-",
    );
    assert_contains(&ran.stderr, "earlier changes were undone");
    let list = sim.list();
    for gpu in list["gpus"].as_array().unwrap() {
        assert_eq!(gpu["gpu_instances"], json!([]), "{list:#}");
    }
    // MIG mode stays on: on an A100 it takes a reset to switch it off. Whose doing that is stays known.
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
    assert_eq!(sim.happened("daemon start"), sim.happened("daemon end"));
    // Nothing stands in the way of the next one. The fourth start may not have been tried any more.
    sim.node.node().clear_faults().unwrap();
    sim.up(SMALL, &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
}

/// One of two daemons is started with the new setting; then both get the old one back.
#[test]
fn what_ran_before_a_failed_up_runs_after_it() {
    let sim = Sim::small();
    let before = sim.status();
    let half = format!("{SMALL}\n[mps]\nnofile = 4096\nactive-thread-percentage = 50\n");
    sim.node.fault("daemon start").nth(2).fails(100).unwrap();
    let ran = sim.up(&half, &["--yes"]).ended(1);
    assert!(!ran.stderr.contains("still there"), "{}", ran.stderr);
    let after = sim.status();
    assert_eq!(in_state(&after, "ready"), in_state(&before, "ready"));
    for device in after["devices"].as_array().unwrap() {
        assert_eq!(device["active_thread_percentage"], 100.0);
    }
    sim.up_does_nothing(SMALL);
}

#[test]
fn a_server_that_does_not_start_is_reported_with_the_logs() {
    let sim = Sim::with("h200", 1);
    let server = sim.program_script("nvidia-cuda-mps-server", "exit 1");
    let profile = sim.profile(WHOLE);
    let path = format!(
        "{}:{}:/usr/bin:/bin",
        server.parent().unwrap().display(),
        sim.node.dir().join("bin").display()
    );
    let up = ["up", profile.to_str().unwrap()];
    let ran = Ran::of(sim.command(&up).env("PATH", path)).ended(1);
    assert_contains(&ran.stderr, "cannot start the daemon of 0\n");
    assert_contains(&ran.stderr, "exited with status 1");
    assert_contains(
        &ran.stderr,
        "hint: run `mig-mps doctor` to find known causes; the complete logs are in /",
    );
    assert_eq!(sim.run_dir(), ["lock"]);
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0"]);
}

/// The first one is in the middle of its change when the second one begins.
#[test]
fn of_two_changes_at_once_the_second_waits() {
    let sim = Sim::with("a100-80gb", 2);
    let path = sim.profile(SMALL);
    let up = ["up", path.to_str().unwrap()];
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    let held = sim.node.fault(create).waits().unwrap();
    let first = sim.talk(&up);
    sim.await_event("fault", 1);
    let mut second = sim.talk(&up);
    second.await_text("is changing this node");
    drop(held);
    for up in [first, second] {
        let _ = up.end().ended(0);
    }
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    assert_eq!(sim.happened("daemon start"), 4);
    assert_eq!(sim.happened(create), 4);
}

#[test]
fn a_record_that_cannot_be_read_is_reported_and_not_overlooked() {
    let sim = Sim::small();
    let uuid = sim.uuid("0.2");
    fs::write(sim.node.run_dir().join(&uuid).join("device.json"), "{").unwrap();
    let ran = sim.run(&["status"]).ended(0);
    let reported = ran
        .stdout
        .lines()
        .any(|line| line.starts_with("not seen: ") && line.contains(&uuid));
    assert!(reported, "{}", ran.stdout);
}
