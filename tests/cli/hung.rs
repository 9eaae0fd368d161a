//! A device that one starved client, or a daemon without files to open, hangs for every newcomer: seen, cured, taken down.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use testkit::{App, Ran, Sim, assert_contains, in_state, is_alive, needs_root, plain, whole};

use crate::cli::watch::Watch;

/// A node whose only device serves, and then hangs.
fn hung(mps: &str) -> Sim {
    let sim = Sim::with("h200", 1);
    sim.up(&whole(mps), &["--yes"]).ended(0);
    sim.hang("0");
    sim
}

fn clients_go_on(sim: &Sim) {
    sim.client("0").finish();
}

#[test]
fn a_hung_device_is_never_called_ready() {
    let sim = hung("");
    let begun = Instant::now();
    let status = sim.status();
    assert_eq!(in_state(&status, "hung"), ["0"], "{status:#}");
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let problem = status["problems"][0]["what"].as_str().unwrap();
    assert!(problem.starts_with("it hangs: "), "{problem}");
    assert_contains(problem, "no client works; `mig-mps restart 0` ends that");
    assert_eq!(sim.run(&["status", "--exit-code"]).status, 3);
}

#[test]
fn a_restart_of_a_hung_device_needs_no_force_and_keeps_the_daemon() {
    let sim = hung("active-thread-percentage = 50");
    let before = sim.device("0");
    let begun = Instant::now();
    let ran = sim.run(&["restart", "0"]).ended(0);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_contains(&ran.stdout, "end the hung server of");
    let after = sim.device("0");
    assert_eq!(after["state"], "ready");
    assert_eq!(after["daemon_pid"], before["daemon_pid"]);
    let percentage = sim.ask("0", "get_default_active_thread_percentage\n");
    assert_eq!(percentage, "50.0\n", "its settings stay");
    assert!(!is_alive(&before["servers"][0]["pid"]));
    clients_go_on(&sim);
}

#[test]
fn who_still_works_is_named_and_ended_only_by_force() {
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &["--yes"]).ended(0);
    let worker = sim.client("0");
    sim.hang("0");
    let status = sim.status();
    let problem = status["problems"][0]["what"].as_str().unwrap();
    assert_contains(problem, "still work");
    assert_contains(problem, &worker.pid().to_string());
    let refused = sim.run(&["restart", "0"]).ended(4);
    assert_contains(&refused.stderr, &worker.pid().to_string());
    let begun = Instant::now();
    sim.run(&["restart", "0", "--force", "--yes"]).ended(0);
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    assert!(worker.finish().output.contains("err 8"), "its calls fail");
    clients_go_on(&sim);
}

#[test]
fn down_takes_a_hung_device_away_without_force() {
    let sim = hung("");
    let device = sim.device("0");
    let begun = Instant::now();
    sim.run(&["down"]).ended(0);
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    assert!(!is_alive(&device["daemon_pid"]) && !is_alive(&device["servers"][0]["pid"]));
    assert_eq!(sim.run_dir(), ["lock"]);
}

/// No session is opened with a daemon that is known to hang.
#[test]
fn up_cures_a_hung_device_and_down_asks_it_nothing() {
    let sim = hung("");
    let ran = sim.up(&whole(""), &["--yes"]).ended(0);
    assert_contains(&ran.stdout, "it hangs");
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.up_does_nothing(&whole(""));
}

/// A server that outlived its daemon keeps its GPU memory: it is shown, and ended when it has no clients.
#[test]
fn a_server_without_its_daemon_is_shown_and_ended() {
    for command in ["down", "up"] {
        let sim = hung("");
        // Asked by this, its main thread hangs too; before that it ends with its daemon.
        let device = sim.device("0");
        assert_eq!(device["state"], "hung");
        let daemon = i32::try_from(device["daemon_pid"].as_i64().unwrap()).unwrap();
        let daemon = rustix::process::Pid::from_raw(daemon).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
        while is_alive(&device["daemon_pid"]) {
            std::thread::yield_now();
        }
        let server = &device["servers"][0]["pid"];
        assert!(is_alive(server), "a wedged server outlives its daemon");
        let status = sim.status();
        let problems = status["problems"].to_string();
        assert_contains(&problems, &format!("server {server}"));
        assert_contains(&problems, "outlived its daemon");
        match command {
            "down" => sim.run(&["down"]),
            _ => sim.up(&whole(""), &["--yes"]),
        }
        .ended(0);
        assert!(!is_alive(server));
        if command == "up" {
            assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
            // Beside a new daemon too.
            sim.run(&["down"]).ended(0);
        }
        assert_eq!(sim.run_dir(), ["lock"]);
    }
}

/// Whoever may not look into the daemon asks it, and says what came of that.
#[test]
fn a_plain_user_sees_it_too() {
    needs_root!();
    let sim = hung("serve = \"all\"");
    let mut status = sim.by_nobody(&["status", "--json"]);
    let status = Ran::of(status.env("MIG_MPS_RUN_DIR", sim.node.run_dir())).json();
    assert_eq!(in_state(&status, "ready"), [""; 0], "{status:#}");
}

/// Root asks a user's daemon nothing, and sees it all the same.
#[test]
fn a_users_hung_device_is_seen_and_cured() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.up(&whole("serve = \"user:nobody\""), &["--yes"])
        .ended(0);
    let app = sim.node.program("cuda-app").get_program().to_owned();
    let mut starved = Command::new("setpriv");
    starved.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "/bin/sh",
        "-c",
    ]);
    starved.args(["ulimit -n 24; exec \"$0\" run 0"]).arg(app);
    starved.env_clear().envs(sim.node.env());
    let ran = Ran::of(starved.env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe_link("0")));
    assert!(ran.stdout.contains("err 46"), "{ran:?}");
    assert_eq!(in_state(&sim.status(), "hung"), ["0"]);
    sim.run(&["restart", "0"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.run(&["down"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock"]);
}

#[test]
fn the_plan_of_a_cure_says_what_it_is() {
    let sim = hung("");
    let ran = sim.run(&["restart", "0", "--dry-run"]).ended(0);
    assert_snapshot!(plain(&ran.stdout), @"
    GPU 0  NVIDIA H200  GPU-…
      - end the hung server of 1 daemon (it hangs: every new client waits for ever): 0
      + start the server of 1 daemon (it hangs: every new client waits for ever): 0
    ");
}

/// It is shown in the second look after it happened, at the latest.
#[test]
fn watch_shows_it_within_two_looks() {
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &["--yes"]).ended(0);
    let mut watch = Watch::start(&sim);
    let before = watch.await_looks(0, 1);
    sim.hang("0");
    // One look may have begun before.
    let after = watch.await_looks(before, 3);
    assert!(
        watch.seen[before..after].contains("hung"),
        "{}",
        &watch.seen[before..after]
    );
}

/// A daemon that could serve nobody is not started.
#[test]
fn too_few_files_are_refused() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(""));
    let up = sim.by_nobody(&["up", profile.to_str().unwrap(), "--yes"]);
    let mut limited = Command::new("prlimit");
    limited.args([
        "--nofile=40:40",
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ]);
    limited
        .arg(up.get_program())
        .args(up.get_args())
        .env_clear();
    for (name, value) in up.get_envs() {
        limited.envs(value.map(|value| (name, value)));
    }
    let ran = Ran::of(&mut limited).ended(1);
    assert_contains(&ran.stderr, "may have 40 files open, and needs 64");
}

/// A node whose daemon may open no more files: a program that wants to join has it log without pause.
pub(crate) fn logs_without_pause() -> (Sim, App) {
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &["--yes"]).ended(0);
    let uuid = sim.device("0")["uuid"].as_str().unwrap().to_owned();
    let log = sim.node.log_dir().join(uuid).join("control.log");
    sim.node.fault("daemon accept").fails(24).unwrap();
    let waits = sim.app("0", &["hold"]);
    while fs::metadata(&log).unwrap().len() < 20_000 {
        std::thread::yield_now();
    }
    (sim, waits)
}

#[test]
fn a_daemon_that_logs_without_pause_is_named_in_one_look() {
    let (sim, _waits) = logs_without_pause();
    let status = sim.status();
    assert_eq!(in_state(&status, "hung"), ["0"], "{status:#}");
    let problem = status["problems"][0]["what"].as_str().unwrap();
    let pid = &status["devices"][0]["daemon_pid"];
    let begin = format!("its daemon (pid {pid}) logs without pause: ");
    assert!(problem.starts_with(&begin), "{problem}");
    for said in [
        "control.log has ",
        "KiB/s with \"Unable to accept connection\": ",
        "its limit of open files is exhausted",
        "`mig-mps restart 0 --force` starts another",
    ] {
        assert!(problem.contains(said), "{said}: {problem}");
    }
    assert_eq!(sim.run(&["status", "--exit-code"]).status, 3);
    sim.run(&["restart", "0", "--force", "--yes"]).ended(0);
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), ["0"]);
    assert_eq!(status["problems"], serde_json::json!([]));
}

#[test]
fn the_watch_names_a_daemon_that_logs_without_pause() {
    let (sim, _waits) = logs_without_pause();
    let mut watch = sim.dialogue("status --watch=0.2");
    watch.await_text("logs without pause");
    watch.press("q");
    let _ = watch.end();
}

/// Its log grows by a few lines for each session, and is not looked at twice.
#[test]
fn a_busy_log_is_not_taken_for_one_without_pause() {
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &["--yes"]).ended(0);
    let _client = sim.client("0");
    for _ in 0..5 {
        let status = sim.status();
        assert_eq!(status["problems"], serde_json::json!([]), "{status:#}");
    }
}
