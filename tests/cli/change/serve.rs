//! Whose clients a device serves: every value of `serve`, each with two users.

use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use regex::Regex;
use serde_json::{Value, json};
use simnode::node::Latency;
use testkit::{App, NOBODY, Ran, Sim, assert_contains, needs_root, shell, wait_until, whole};

/// The second user, with a group of the same name: both are on every machine.
const DAEMON: u32 = 1;

/// A program of a user, with the pipe directory of device 0.
fn program(sim: &Sim, uid: u32, pipe: &Value) -> App {
    let mut app = sim.node.program("cuda-app");
    app.arg("hold")
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str().unwrap());
    app.uid(uid).gid(uid);
    App::start(app)
}

/// Who is in a list of `status --json`, by user.
fn users(status: &Value, list: &str) -> Vec<String> {
    let programs = status[list].as_array().unwrap().iter();
    let mut users: Vec<String> = programs
        .map(|program| program["user"].as_str().unwrap().to_owned())
        .collect();
    users.sort();
    users
}

fn served(serve: &str) -> (Sim, Value) {
    let sim = Sim::whole(&format!("serve = \"{serve}\""));
    let device = sim.device("0");
    assert_eq!(device["serve"], serve);
    (sim, device["pipe_directory"].clone())
}

fn joins(app: &mut App) {
    let up = app.wait_up();
    assert!(up.ends_with("mps yes"), "{up}");
}

fn is_left_alone(app: &mut App) {
    let up = app.wait_up();
    assert!(up.ends_with("mps no"), "{up}");
}

#[test]
fn one_at_a_time_lets_the_second_user_wait() {
    needs_root!();
    let (sim, pipe) = served("one-at-a-time");
    let mut first = program(&sim, NOBODY, &pipe);
    joins(&mut first);
    assert_eq!(sim.device("0")["servers"][0]["uid"], NOBODY);
    let mut second = program(&sim, DAEMON, &pipe);
    wait_until("the second user waits", || {
        users(&sim.status(), "waiting") == ["daemon"]
    });
    let status = sim.status();
    assert_eq!(users(&status, "clients"), ["nobody"]);
    assert_eq!(status["waiting"][0]["pid"], second.pid());
    let waits = format!(
        "pid {} (daemon) waits until the programs of nobody have exited: pid {}; use serve = \"all\" in the profile to let users share the device",
        second.pid(),
        first.pid()
    );
    assert_eq!(status["remarks"][0]["what"], waits);
    sim.run(&["status", "--exit-code"]).ended(0);
    assert!(first.finish().status.success());
    joins(&mut second);
    let status = sim.status();
    assert_eq!(users(&status, "clients"), ["daemon"]);
    assert_eq!(users(&status, "waiting"), [""; 0]);
    assert_eq!(status["devices"][0]["servers"][0]["uid"], DAEMON);
}

/// The built-in profiles and the manual say so. A program of the user who ran `up` finds the server ready.
#[test]
fn an_idle_eager_server_is_replaced_for_another_users_first_program() {
    needs_root!();
    for profile in ["balanced", "all-large"] {
        let sim = Sim::with("h200", 1);
        let text = sim.run(&["profiles", profile]).ended(0).stdout;
        let eager = text
            .lines()
            .find(|line| line.starts_with("server = \"eager\""));
        let comment = "# for the user who applies this; another user's first program replaces it";
        assert!(eager.unwrap().ends_with(comment), "{text}");
        sim.node
            .node()
            .update(|state| state.policy.latency = Latency::H200R580)
            .unwrap();
        sim.run(&["up", profile, "--yes"]).ended(0);
        let device = || sim.status()["devices"][0].clone();
        let before = device();
        assert_eq!(before["serve"], "one-at-a-time");
        assert_eq!(before["servers"][0]["uid"], 0);
        let pipe = &before["pipe_directory"];

        let mut roots = program(&sim, 0, pipe);
        joins(&mut roots);
        assert_eq!(sim.happened("client waits"), 0);
        assert_eq!(device()["servers"], before["servers"]);
        assert!(roots.finish().status.success());

        let begun = Instant::now();
        let mut nobodys = program(&sim, NOBODY, pipe);
        joins(&mut nobodys);
        // At least the start of the new server, as measured on an H200.
        assert!(begun.elapsed() >= Duration::from_millis(163));
        assert_eq!(sim.happened("client waits"), 1);
        let after = device();
        assert_eq!(after["servers"][0]["uid"], NOBODY);
        assert_ne!(after["servers"][0]["pid"], before["servers"][0]["pid"]);
        assert_eq!(after["daemon_pid"], before["daemon_pid"]);
    }
}

/// Who waits ends with the daemon as a client does.
#[test]
fn a_program_that_waits_is_named_where_its_daemon_ends() {
    needs_root!();
    let (sim, pipe) = served("one-at-a-time");
    let mut first = program(&sim, NOBODY, &pipe);
    joins(&mut first);
    let second = program(&sim, DAEMON, &pipe);
    wait_until("the second user waits", || {
        users(&sim.status(), "waiting") == ["daemon"]
    });
    let path = sim.profile(testkit::SMALL).display().to_string();
    let plan = sim.run(&["plan", &path]).ended(0).stdout;
    assert_contains(&plan, "\n2 clients would be disrupted ");
    let waits = Regex::new(&format!(
        r"\n  0: pid {} \(daemon, .*\), which waits in cuInit\n",
        second.pid()
    ))
    .unwrap();
    assert!(waits.is_match(&plan), "{plan}");
    let ran = sim.run(&["restart", "0", "--force", "--yes"]).ended(0);
    assert_contains(&ran.stdout, "This ends 2 clients:\n");
    assert!(waits.is_match(&ran.stdout), "{}", ran.stdout);
}

#[test]
fn all_are_served_at_once_by_one_server() {
    needs_root!();
    let (sim, pipe) = served("all");
    let before = sim.device("0")["servers"].clone();
    let mut both = [NOBODY, DAEMON].map(|uid| program(&sim, uid, &pipe));
    both.iter_mut().for_each(joins);
    let status = sim.status();
    assert_eq!(users(&status, "clients"), ["daemon", "nobody"]);
    assert_eq!(users(&status, "waiting"), [""; 0]);
    assert_eq!(status["devices"][0]["servers"], before);
    assert_eq!(before[0]["uid"], 0);
}

#[test]
fn a_group_keeps_others_out_and_they_are_seen() {
    needs_root!();
    let (sim, pipe) = served("group:daemon");
    let mut member = program(&sim, DAEMON, &pipe);
    joins(&mut member);
    let mut stranger = program(&sim, NOBODY, &pipe);
    is_left_alone(&mut stranger);
    let status = sim.status();
    assert_eq!(users(&status, "clients"), ["daemon"]);
    assert_eq!(users(&status, "outside_mps"), ["nobody"]);
    let pipe = pipe.as_str().unwrap();
    let cause = format!("nobody may not enter {pipe}");
    assert_eq!(status["outside_mps"][0]["cause"], cause);
}

#[test]
fn a_users_device_keeps_others_out_and_they_are_seen() {
    needs_root!();
    let (sim, pipe) = served("user:nobody");
    let mut hers = program(&sim, NOBODY, &pipe);
    joins(&mut hers);
    let mut stranger = program(&sim, DAEMON, &pipe);
    is_left_alone(&mut stranger);
    let status = sim.status();
    assert_eq!(users(&status, "clients"), ["nobody"]);
    assert_eq!(users(&status, "outside_mps"), ["daemon"]);
    let pipe = pipe.as_str().unwrap();
    let cause = format!("daemon may not enter {pipe}");
    assert_eq!(status["outside_mps"][0]["cause"], cause);
    // Root gets in.
    assert_eq!(shell(format!("ls {pipe}")).ended(0).stderr, "");
}

#[test]
fn a_plain_users_own_device_keeps_others_out() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(r#"serve = "self""#));
    Ran::of(&mut sim.by_nobody(&["up", profile.to_str().unwrap()])).ended(0);
    let status = || Ran::of(&mut sim.by_nobody(&["status", "--json"])).json();
    let device = status()["devices"][0].clone();
    assert_eq!(
        (&device["state"], &device["serve"]),
        (&json!("ready"), &json!("self"))
    );
    let mut own = program(&sim, NOBODY, &device["pipe_directory"]);
    joins(&mut own);
    let mut stranger = program(&sim, DAEMON, &device["pipe_directory"]);
    is_left_alone(&mut stranger);
    let status = status();
    assert_eq!(users(&status, "clients"), ["nobody"]);
    assert_eq!(users(&status, "outside_mps"), ["daemon"]);
    drop((own, stranger));
    Ran::of(&mut sim.by_nobody(&["down"])).ended(0);
}
