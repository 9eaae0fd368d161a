//! `doctor --fix`

use testkit::{Sim, in_state, is_alive, shell, whole};

#[test]
fn the_dead_are_started_and_who_works_is_left_alone() {
    let sim = Sim::with("h200", 2);
    sim.up(&whole(""), &[]).ended(0);
    let nothing = sim.run(&["doctor", "--fix"]).ended(0);
    assert!(
        nothing.stderr.contains("Nothing can be fixed"),
        "{nothing:?}"
    );
    let client = sim.client("1");
    let working = sim.device("1");
    let daemon = sim.device("0")["daemon_pid"].clone();
    shell(format!("kill -9 {daemon}")).ended(0);
    while is_alive(&daemon) {
        std::thread::yield_now();
    }
    sim.run(&["doctor"]).ended(3);
    let shown = sim.run(&["doctor", "--fix", "--dry-run"]).ended(0);
    assert!(shown.stdout.contains("+ start 1 daemon"), "{shown:?}");
    assert_eq!(in_state(&sim.status(), "dead"), ["0"]);
    let ran = sim.run(&["doctor", "--fix", "--yes"]).ended(0);
    assert!(ran.stdout.contains("+ start 1 daemon"), "{ran:?}");
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
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &[]).ended(0);
    let client = sim.client("0");
    sim.hang("0");
    let before = sim.device("0")["servers"].clone();
    let ran = sim.run(&["doctor", "--fix", "--yes"]).ended(3);
    assert!(ran.stderr.contains("Nothing can be fixed"), "{ran:?}");
    assert_eq!(sim.device("0")["servers"], before);
    assert!(client.finish().status.success());
    sim.run(&["doctor", "--fix", "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// Measured: SIGTERM ends the daemon of a device that hangs, and leaves its server with its GPU memory.
#[test]
fn an_idle_server_that_outlived_its_daemon_is_ended() {
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &[]).ended(0);
    sim.hang("0");
    let waits = sim.app("0", &["hold"]);
    while in_state(&sim.status(), "hung").is_empty() {
        std::thread::yield_now();
    }
    let device = sim.device("0");
    shell(format!("kill -TERM {}", device["daemon_pid"])).ended(0);
    while is_alive(&device["daemon_pid"]) {
        std::thread::yield_now();
    }
    drop(waits);
    assert!(is_alive(&device["servers"][0]["pid"]));
    let ran = sim.run(&["doctor", "--fix", "--yes"]).ended(0);
    assert!(ran.stdout.contains("end"), "{ran:?}");
    assert!(!is_alive(&device["servers"][0]["pid"]));
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

#[test]
fn gpus_are_shown_in_order() {
    let sim = Sim::with("h200", 2);
    sim.up(&whole(""), &[]).ended(0);
    sim.hang("0");
    let waits = sim.app("0", &["hold"]);
    while in_state(&sim.status(), "hung").is_empty() {
        std::thread::yield_now();
    }
    shell(format!("kill -TERM {}", sim.device("0")["daemon_pid"])).ended(0);
    while in_state(&sim.status(), "dead").is_empty() {
        std::thread::yield_now();
    }
    drop(waits);
    // `heal` does not start a device that `down` was ending; its server is still to be ended.
    let record = sim.node.run_dir().join("by-name/0/device.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["leaving"] = true.into();
    std::fs::write(&record, json.to_string()).unwrap();
    let daemon = sim.device("1")["daemon_pid"].clone();
    shell(format!("kill -9 {daemon}")).ended(0);
    while in_state(&sim.status(), "dead").len() < 2 {
        std::thread::yield_now();
    }
    let shown = sim.run(&["doctor", "--fix", "--dry-run"]).ended(0);
    let at = |gpu: &str| {
        shown
            .stdout
            .find(gpu)
            .unwrap_or_else(|| panic!("{shown:?}"))
    };
    assert!(at("GPU 0") < at("GPU 1"), "{shown:?}");
}
