//! `doctor --fix`

use testkit::{Sim, assert_contains, in_state, is_alive, terminate, whole};

#[test]
fn the_dead_are_started_and_who_works_is_left_alone() {
    let sim = Sim::served("h200", 2, &whole(""));
    let nothing = sim.run(&["doctor", "--fix"]).ended(0);
    assert_contains(&nothing.stderr, "Nothing can be fixed");
    let client = sim.client("1");
    let working = sim.device("1");
    sim.kill_daemon("0");
    sim.run(&["doctor"]).ended(3);
    let shown = sim.run(&["doctor", "--fix", "--dry-run"]).ended(0);
    assert_contains(&shown.stdout, "+ start 1 daemon");
    assert_eq!(in_state(&sim.status(), "dead"), ["0"]);
    let ran = sim.run(&["doctor", "--fix", "--yes"]).ended(0);
    assert_contains(&ran.stdout, "+ start 1 daemon");
    assert!(
        ran.stdout.contains(" ok\n") && !ran.stdout.contains("daemon-dead]"),
        "{ran:?}"
    );
    assert_eq!(in_state(&sim.status(), "ready"), ["0", "1"]);
    assert_eq!(sim.device("1")["daemon_pid"], working["daemon_pid"]);
    assert_eq!(sim.device("1")["servers"], working["servers"]);
    assert!(client.finish().status.success());
}

#[test]
fn a_device_that_hangs_is_cured_only_without_clients() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    let server = sim.device("0")["servers"][0]["pid"].clone();
    sim.hang("0");
    let ran = sim.run(&["doctor", "--fix", "--yes"]).ended(3);
    assert_contains(&ran.stderr, "Nothing can be fixed");
    assert!(is_alive(&server));
    assert!(client.finish().status.success());
    sim.run(&["doctor", "--fix", "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// Measured: SIGTERM ends the daemon of a device that hangs, and leaves its server with its GPU memory.
#[test]
fn an_idle_server_that_outlived_its_daemon_is_ended() {
    let sim = Sim::whole("");
    sim.hang("0");
    let device = sim.await_state("0", "hung");
    terminate(&device["daemon_pid"]);
    assert!(is_alive(&device["servers"][0]["pid"]));
    let ran = sim.run(&["doctor", "--fix", "--yes"]).ended(0);
    assert_contains(&ran.stdout, "end");
    assert!(!is_alive(&device["servers"][0]["pid"]));
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

#[test]
fn gpus_are_shown_in_order() {
    let sim = Sim::served("h200", 2, &whole(""));
    sim.hang("0");
    terminate(&sim.await_state("0", "hung")["daemon_pid"]);
    // `heal` does not start a device that `down` was ending; its server is still to be ended.
    sim.edit("by-name/0/device.json", |record| {
        record["leaving"] = true.into();
    });
    sim.kill_daemon("1");
    let shown = sim.run(&["doctor", "--fix", "--dry-run"]).ended(0);
    let at = |gpu: &str| {
        shown
            .stdout
            .find(gpu)
            .unwrap_or_else(|| panic!("{shown:?}"))
    };
    assert!(at("GPU 0") < at("GPU 1"), "{shown:?}");
}
