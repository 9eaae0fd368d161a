//! Starts that were interrupted.

use std::time::{Duration, Instant};

use serde_json::json;

use testkit::{Sim, in_state, whole};

/// Kills an `up` while the server of its only device starts.
fn kill_up(sim: &Sim) {
    let profile = sim.profile(&whole(""));
    let mut up = sim.spawn(&["up", profile.to_str().unwrap(), "--yes"]);
    while sim.happened("server start") == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    up.kill().unwrap();
    up.wait().unwrap();
}

#[test]
fn a_server_that_an_interrupted_up_has_started_is_waited_for() {
    let sim = Sim::with("h200", 1);
    let fault = sim.node.fault("server start");
    fault.slow(Duration::from_secs(2)).unwrap();
    kill_up(&sim);
    let said = sim.up(&whole(""), &["--yes"]).ended(0).stderr;
    assert!(said.contains("1 device on 1 GPU ready"), "{said}");
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    assert_eq!(sim.happened("server start"), 1);
}

#[test]
fn one_that_an_interrupted_up_has_left_hanging_is_ended_at_once() {
    for words in [&["restart", "0", "--yes"][..], &["down", "--yes"]] {
        let sim = Sim::with("h200", 1);
        sim.node.fault("server start").hangs().unwrap();
        kill_up(&sim);
        let begun = Instant::now();
        sim.run(words).ended(0);
        let elapsed = begun.elapsed();
        assert!(elapsed < Duration::from_secs(10), "{words:?}: {elapsed:?}");
        sim.up(&whole(""), &["--yes"]).ended(0);
        assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
        assert_eq!(sim.status()["problems"], json!([]));
    }
}
