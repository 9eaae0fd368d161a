//! A device that one starved client, or a daemon without files to open, hangs for every newcomer: seen, cured, taken down.

use std::fs;
use std::os::unix::process::CommandExt;

use insta::assert_snapshot;
use serde_json::Value;
use testkit::{
    App, NOBODY, Ran, Sim, assert_contains, in_state, is_alive, needs_root, plain, terminate,
    under, wait_until, whole,
};

use crate::cli::status::watch::REFRESH;

/// A node whose only device serves, and then hangs.
fn hung(mps: &str) -> Sim {
    let sim = Sim::whole(mps);
    sim.hang("0");
    sim
}

fn clients_go_on(sim: &Sim) {
    sim.client("0").finish();
}

#[test]
fn a_hung_device_is_never_called_ready() {
    let sim = hung("");
    let status = sim.run(&["status", "--json", "--exit-code"]).ended(3);
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(in_state(&status, "hung"), ["0"], "{status:#}");
    let problem = status["problems"][0]["what"].as_str().unwrap();
    assert!(problem.starts_with("it is hung: "), "{problem}");
    assert_contains(
        problem,
        "it has no clients; run `mig-mps restart 0` to start a new daemon",
    );
}

#[test]
fn a_restart_of_a_hung_device_needs_no_force_and_keeps_the_daemon() {
    let sim = hung("active-thread-percentage = 50");
    let before = sim.device("0");
    let ran = sim.run(&["restart", "0"]).ended(0);
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
    let sim = Sim::whole("");
    let worker = sim.client("0");
    sim.hang("0");
    let status = sim.status();
    let problem = status["problems"][0]["what"].as_str().unwrap();
    assert_contains(problem, "still work");
    assert_contains(problem, &worker.pid().to_string());
    let refused = sim.run(&["restart", "0"]).ended(4);
    assert_contains(&refused.stderr, &worker.pid().to_string());
    sim.run(&["restart", "0", "--force", "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    assert!(
        worker.await_end().output.contains("err 8"),
        "its calls fail"
    );
    clients_go_on(&sim);
}

/// A daemon that is known to hang is asked nothing: it would not answer.
#[test]
fn down_takes_a_hung_device_away_without_force() {
    let sim = hung("");
    let device = sim.device("0");
    let trace = sim.node.dir().join("trace");
    Ran::of(sim.command(&["down"]).env("MIG_MPS_LOG", &trace)).ended(0);
    let trace = fs::read_to_string(trace).unwrap();
    assert!(!trace.contains(": quit"), "{trace}");
    assert!(!is_alive(&device["daemon_pid"]) && !is_alive(&device["servers"][0]["pid"]));
    assert_eq!(sim.run_dir(), ["lock"]);
}

#[test]
fn up_cures_a_hung_device() {
    let sim = hung("");
    let ran = sim.up(&whole(""), &["--yes"]).ended(0);
    assert_contains(&ran.stdout, "it is hung");
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.up_does_nothing(&whole(""));
}

/// Runs a command that waits for the client of a device that hangs. Meanwhile nobody is refused: a new client hangs. Returns
/// how that one came up when the other client had left.
fn drained(sim: &Sim, args: &[&str]) -> String {
    let worker = sim.client("0");
    sim.hang("0");
    let mut drained = sim.talk(args);
    drained.await_text(&format!("pid {}", worker.pid()));
    let mut newcomer = sim.app("0", &["hold"]);
    let finished = worker.finish();
    assert!(finished.status.success(), "{}", finished.output);
    let _ = drained.end().ended(0);
    assert_eq!(sim.happened("quit"), 0, "it refuses clients");
    newcomer.wait_up()
}

#[test]
fn restart_with_drain_cures_when_the_clients_have_left() {
    let sim = Sim::whole("");
    let before = sim.device("0");
    let up = drained(&sim, &["restart", "0", "--drain", "600", "--yes"]);
    assert!(up.ends_with("mps yes"), "{up}");
    let after = sim.device("0");
    assert_eq!(after["state"], "ready");
    assert_eq!(after["daemon_pid"], before["daemon_pid"]);
    assert_ne!(after["servers"][0]["pid"], before["servers"][0]["pid"]);
}

#[test]
fn force_with_drain_refuses_nobody_on_a_hung_device() {
    let sim = Sim::whole("");
    let up = drained(&sim, &["down", "--drain", "600", "--force"]);
    assert_contains(&up, "err 805");
    assert_eq!(sim.run_dir(), ["lock"]);
}

/// A server that outlived its daemon keeps its GPU memory: it is shown, and ended when it has no clients.
#[test]
fn a_server_without_its_daemon_is_shown_and_ended() {
    for command in ["down", "up"] {
        let sim = hung("");
        // Asked by this, its main thread hangs too; before that it ends with its daemon.
        let device = sim.device("0");
        assert_eq!(device["state"], "hung");
        terminate(&device["daemon_pid"]);
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

/// A command that may not inspect the daemon asks it, and says what came of that.
#[test]
fn a_plain_user_sees_it_too() {
    needs_root!();
    let sim = hung("serve = \"all\"");
    let status = Ran::of(&mut sim.by_other(&["status", "--json"])).json();
    assert_eq!(in_state(&status, "hung"), ["0"], "{status:#}");
}

/// Root asks a user's daemon nothing, and sees it all the same.
#[test]
fn a_users_hung_device_is_seen_and_cured() {
    needs_root!();
    let sim = Sim::whole("serve = \"user:nobody\"");
    let mut app = sim.node.program("cuda-app");
    app.args(["run", "0"])
        .env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe_link("0"));
    let mut starved = under(&["prlimit", "--nofile=24:24"], &app);
    let ran = Ran::of(starved.uid(NOBODY).gid(NOBODY));
    assert_contains(&ran.stdout, "err 46");
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
      - end the hung server of 1 daemon (it is hung, so new clients would wait forever): 0
      + start the server of 1 daemon (it is hung, so new clients would wait forever): 0

    Plan: restart 1 server.
    ");
}

/// It is shown in the second refresh after it happened, at the latest.
#[test]
fn watch_shows_it_within_two_refreshes() {
    let sim = Sim::whole("");
    let mut watch = sim.dialogue("status --watch=0.2");
    watch.await_text(REFRESH);
    sim.hang("0");
    // One refresh may have begun before.
    let shown = [REFRESH; 3].map(|begin| watch.await_text(begin));
    assert_contains(&shown.concat(), "hung");
}

/// A daemon that could serve nobody is not started.
#[test]
fn too_few_files_are_refused() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(""));
    let up = sim.by_nobody(&["up", profile.to_str().unwrap(), "--yes"]);
    let mut limited = under(&["prlimit", "--nofile=40:40"], &up);
    let ran = Ran::of(limited.uid(NOBODY).gid(NOBODY)).ended(1);
    assert_contains(&ran.stderr, "may have only 40 files open, but needs 64");
}

/// A node whose daemon may open no more files: it logs its attempts to let a program join without pause.
pub(crate) fn accepts_nobody() -> (Sim, App) {
    let sim = Sim::whole("");
    let uuid = sim.uuid("0");
    let log = sim.node.log_dir().join(uuid).join("control.log");
    sim.node.fault("daemon accept").fails(24).unwrap();
    let waits = sim.app("0", &["hold"]);
    wait_until("its log has grown", || {
        fs::metadata(&log).unwrap().len() >= 20_000
    });
    (sim, waits)
}

#[test]
fn a_daemon_that_accepts_nobody_is_named_by_one_status() {
    let (sim, _waits) = accepts_nobody();
    let status = sim.run(&["status", "--json", "--exit-code"]).ended(3);
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(in_state(&status, "hung"), ["0"], "{status:#}");
    let problem = status["problems"][0]["what"].as_str().unwrap();
    assert_eq!(
        problem,
        "it is hung: its daemon has used up its limit of open files and accepts no connection, so every new client waits forever; it has no clients; run `mig-mps restart 0` to start a new daemon"
    );
    assert_eq!(status["problems"][0]["id"], "device-hung");
    sim.run(&["restart", "0", "--force", "--yes"]).ended(0);
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), ["0"]);
    assert_eq!(status["problems"], serde_json::json!([]));
}

#[test]
fn the_watch_names_a_daemon_that_accepts_nobody() {
    let (sim, _waits) = accepts_nobody();
    let mut watch = sim.dialogue("status --watch=0.2");
    watch.await_text("its daemon has used up its limit");
    watch.press("q");
    let _ = watch.end();
}

/// Its log grows by a few lines for each session, and is not looked at twice.
#[test]
fn a_busy_log_is_not_taken_for_that_of_a_daemon_that_accepts_nobody() {
    let sim = Sim::whole("");
    let _client = sim.client("0");
    for _ in 0..5 {
        let status = sim.status();
        assert_eq!(status["problems"], serde_json::json!([]), "{status:#}");
    }
}
