//! Starts that were interrupted.

use std::fs;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use testkit::{App, NOBODY, Sim, assert_contains, in_state, is_alive, needs_root, whole};

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

/// True if `status` has a problem with this id.
fn has_problem(sim: &Sim, id: &str) -> bool {
    let status = sim.status();
    let mut problems = status["problems"].as_array().unwrap().iter();
    problems.any(|problem| problem["id"] == id)
}

/// Its daemon may lack the settings that limit its clients.
#[test]
fn heal_restarts_the_daemon_that_an_interrupted_start_has_left_once_it_has_no_clients() {
    for step in ["set_default_active_thread_percentage", "start_server"] {
        let settings = whole("active-thread-percentage = 30");
        let sim = Sim::with("h200", 1);
        sim.node.fault(step).kills().unwrap();
        assert_eq!(sim.up(&settings, &["--yes"]).status, -1, "{step}");
        assert!(has_problem(&sim, "start-unfinished"), "{step}");
        let client = sim.client("0");
        let left = sim.device("0")["daemon_pid"].clone();
        sim.run(&["heal"]).ended(0);
        assert_eq!(sim.device("0")["daemon_pid"], left, "{step}");
        assert!(client.finish().status.success(), "{step}");
        let healed = sim.run(&["heal"]).ended(0).stdout;
        assert_contains(
            &healed,
            "0: an interrupted change was not finished: restarted",
        );
        assert_eq!(sim.device("0")["state"], "ready", "{step}");
        assert_eq!(sim.device("0")["active_thread_percentage"], 30.0, "{step}");
        assert!(!has_problem(&sim, "start-unfinished"), "{step}");
        // The profile was not applied whole.
        assert!(has_problem(&sim, "change-interrupted"), "{step}");
        assert_eq!(sim.run(&["heal"]).ended(0).stdout, "");
        let completed = sim.up(&settings, &[]).ended(0).stderr;
        assert_contains(&completed, "Nothing to do: the node matches the profile.");
        assert!(!has_problem(&sim, "change-interrupted"), "{step}");
    }
}

/// Only another `up` or `down` completes one that was killed; what else was killed, any change completes.
#[test]
fn it_is_known_that_a_change_was_killed_until_one_completes_it() {
    let completed = [&["up", "--yes"][..], &["down", "--yes"]];
    for last in completed {
        let sim = Sim::with("h200", 2);
        sim.up(&whole(""), &["--yes"]).ended(0);
        sim.node.fault("daemon start").kills().unwrap();
        let other = sim.up(&whole("serve = \"all\""), &["--yes"]);
        assert_eq!(other.status, -1);
        for words in [
            &["restart", "0", "--yes"][..],
            &["start", "*"],
            &["set", "0", "max-clients=7", "--yes"],
            &["heal"],
            // Nothing to do.
            &["start", "*"],
            &["heal"],
            &["plan"],
        ] {
            sim.run(words).ended(0);
            assert!(has_problem(&sim, "change-interrupted"), "{words:?}");
        }
        sim.run(last).ended(0);
        assert!(!has_problem(&sim, "change-interrupted"), "{last:?}");
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &["--yes"]).ended(0);
    sim.node.fault("daemon start").kills().unwrap();
    assert_eq!(sim.run(&["restart", "0", "--yes"]).status, -1);
    assert!(has_problem(&sim, "change-interrupted"));
    sim.run(&["heal"]).ended(0);
    assert!(!has_problem(&sim, "change-interrupted"));
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// A directory opens when its daemon is recorded: nobody becomes a client of one that the next command does not know.
#[test]
fn a_client_that_connects_while_a_start_is_killed_is_of_a_recorded_daemon() {
    needs_root!();
    let mut joined = 0;
    for step in [
        "daemon start",
        "set_default_active_thread_percentage",
        "start_server",
    ] {
        let sim = Sim::with("h200", 1);
        let uuid = sim.list()["gpus"][0]["uuid"].as_str().unwrap().to_owned();
        let directory = sim.node.run_dir().join(&uuid);
        let is_over = AtomicBool::new(false);
        let client = std::thread::scope(|scope| {
            // It tries all the time, and once more when the start is over.
            let tries = scope.spawn(|| {
                loop {
                    let is_last = is_over.load(Ordering::SeqCst);
                    let mut program = sim.node.program("cuda-app");
                    program
                        .arg("hold")
                        .env("CUDA_MPS_PIPE_DIRECTORY", directory.join("pipe"))
                        .uid(NOBODY)
                        .gid(NOBODY);
                    let mut app = App::start(program);
                    if app.wait_up().ends_with("mps yes") {
                        return Some(app);
                    }
                    if is_last {
                        return None;
                    }
                }
            });
            sim.node.fault(step).kills().unwrap();
            assert_eq!(sim.up(&whole(""), &["--yes"]).status, -1, "{step}");
            is_over.store(true, Ordering::SeqCst);
            tries.join().unwrap()
        });
        if let Some(client) = client {
            joined += 1;
            let record = fs::read(directory.join("device.json")).unwrap();
            let record: Value = serde_json::from_slice(&record).unwrap();
            assert!(is_alive(&record["daemon"]["pid"]), "{step}: {record:#}");
            let refused = sim.run(&["down"]).ended(4).stderr;
            assert!(refused.contains(&client.pid().to_string()), "{refused}");
            assert!(client.finish().status.success());
        }
        sim.up(&whole(""), &["--yes"]).ended(0);
        assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    }
    assert!(joined > 0, "nobody came in");
}
