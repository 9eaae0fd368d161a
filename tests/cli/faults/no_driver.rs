//! Commands that work while the driver does not answer, and after a reboot.

use std::process::Stdio;

use serde_json::Value;

use testkit::{Ran, SMALL, Sim, assert_contains, in_state};

const MISSING: &str = "/no/libnvidia-ml.so.1";

fn without_driver(sim: &Sim, args: &[&str]) -> Ran {
    Ran::of(sim.command(args).env("MIG_MPS_NVML_LIBRARY", MISSING))
}

/// A driver that cannot be loaded hides GPUs, but not the daemons that run.
#[test]
fn without_a_driver_records_and_proc_tell_what_runs() {
    let sim = Sim::with("a100-80gb", 1);
    // Nothing is known without records.
    let ran = without_driver(&sim, &["status"]).ended(1);
    assert_contains(&ran.stderr, MISSING);
    sim.up(SMALL, &["--yes"]).ended(0);
    let client = sim.client("0.0");
    let status: Value = without_driver(&sim, &["status", "--json"]).json();
    assert_eq!(in_state(&status, "ready"), ["0.0", "0.2"], "{status:#}");
    assert_eq!(status["clients"][0]["pid"], client.pid(), "{status:#}");
    assert_eq!(status["degraded"], true);
    assert_eq!(status["outside_mps"], Value::Null);
    assert!(
        status["hidden"][0].as_str().unwrap().contains(MISSING),
        "{status:#}"
    );
    let text = without_driver(&sim, &["status"]).ended(0);
    assert_contains(
        &text.stdout,
        "not seen: the GPUs, since the driver does not answer: ",
    );
    without_driver(&sim, &["status", "--exit-code"]).ended(3);
    without_driver(&sim, &["logs", "0.0"]).ended(0);
    let refused = without_driver(&sim, &["down"]).ended(4);
    assert_contains(&refused.stderr, "0.0");
    // Instances are the driver's.
    let refused = without_driver(&sim, &["down", "--destroy-mig", "--yes"]).ended(1);
    assert_contains(&refused.stderr, MISSING);
    drop(client);
    let ran = without_driver(&sim, &["down"]).ended(0);
    assert_contains(&ran.stderr, "2 daemons stopped in ");
    assert_contains(&ran.stderr, "note: not seen: the GPUs");
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0.0", "0.2"]);
}

/// A driver that hangs is given up after a limit, and then the same holds.
#[test]
fn a_driver_that_hangs_hides_no_daemon() {
    let sim = Sim::small();
    let init = sim.node.node();
    init.fault("nvmlInit_v2").every().hangs().unwrap();
    // Logs do not wait for it.
    sim.run(&["logs", "0.0"]).ended(0);
    let impatient = ("MIG_MPS_TEST_CALL_LIMIT", "3000");
    let mut down = sim.command(&["down", "0.2"]);
    let down = down
        .env(impatient.0, impatient.1)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut status = sim.command(&["status", "--json"]);
    let ran = Ran::of(status.env(impatient.0, impatient.1));
    let status = ran.json();
    let hidden = status["hidden"][0].as_str().unwrap();
    assert_contains(
        hidden,
        "the driver does not answer: nvmlInit_v2 did not return within",
    );
    assert!(
        in_state(&status, "ready").contains(&"0.0".to_owned()),
        "{status:#}"
    );
    let down = down.wait_with_output().unwrap();
    let said = String::from_utf8(down.stderr).unwrap();
    assert_contains(&said, "1 daemon stopped in ");
    assert_contains(&said, "note: not seen: the GPUs");
    // `status` reads a node that has changed meanwhile once more, but waits for its driver no second time.
    assert_eq!(sim.happened("fault"), 2);
}

#[test]
fn after_a_reboot_with_mig_on_status_says_what_to_do() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    sim.node.reboot();
    sim.run(&["down"]).ended(0);
    let ran = sim.run(&["status"]).ended(0);
    assert_contains(
        &ran.stdout,
        "GPUs 0-1: MIG is on and there is no MIG device; run `mig-mps up` to create MIG devices",
    );
    assert!(!ran.stdout.contains("There is no device"), "{}", ran.stdout);
}

/// Values that a change did not read are null, and settings are shown.
#[test]
fn what_was_not_read_is_null_and_settings_are_shown() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.up(SMALL, &["--yes", "--json"]).json();
    assert_eq!(ran["status"]["degraded"], Value::Null);
    assert_eq!(ran["status"]["outside_mps"], Value::Null);
    sim.run(&[
        "set",
        "0.0",
        "pinned-memory-limit=2G",
        "client-priority=below-normal",
    ])
    .ended(0);
    let device = sim.device("0.0");
    assert_eq!(device["pinned_memory_limit_bytes"], 2_u64 << 30);
    assert_eq!(device["client_priority"], "below-normal");
    assert_eq!(
        device["set_by_hand"],
        serde_json::json!(["client-priority", "pinned-memory-limit"])
    );
    let ran = sim
        .run(&["status", "--columns", "name,limit,priority,cpus,by-hand"])
        .ended(0);
    insta::assert_snapshot!(ran.stdout, @"
    NAME  LIMIT  PRIORITY      CPUS  SET BY HAND
    0.0      2G  below-normal  all   client-priority,pinned-memory-limit
    0.2    none  normal        all   -
    ");
}
