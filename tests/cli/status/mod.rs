mod clients;
mod containers_outside;
mod document;
mod folded;
pub(crate) mod foreign_programs;
mod map;
mod memory_limits;
mod outside;
mod unreadable_run_dir;
mod users;
pub(crate) mod watch;
mod widths;
mod workloads;

use std::fs;
use std::os::unix::process::CommandExt;

use insta::assert_snapshot;
use mig_mps::internals::manual::TOPICS;
use serde_json::{Value, json};
use testkit::{App, SMALL, Sim, assert_contains, in_state, is_alive, kill, shell, stop, user};

#[test]
fn servers_and_clients_are_shown() {
    let sim = Sim::small();
    let mut first = sim.app("0.2", &["hold", "--alloc", "2048"]);
    assert!(first.wait_up().ends_with("mps yes"));
    let second = sim.client("0.2");
    let ran = sim.run(&["status"]).ended(0);
    assert_snapshot!(ran.tidy(), @"
    profile profile.toml, applied N ago by USER

    NAME  GPU  PROFILE  STATE  USER  CLIENTS  MEMORY GIB  DAEMON  SERVER  SINCE  SERVE  DEVICE
    0.0  0  2g.20gb  ready  -  0  0.0/19.5  N  N  Ns  SERVE  MIG-…
    0.2  0  1g.10gb  ready  USER  2  2.2/9.5  N  N  Ns  SERVE  MIG-…

    CLIENT OF  PID  USER  MEMORY GIB  RUNNING  COMMAND
    0.2  N  USER  2.1  Ns  /tmp/…/node/bin/cuda-app hold --alloc 2048
    0.2  N  USER  0.1  Ns  /tmp/…/node/bin/cuda-app hold

    2 devices on 1 GPU: all ready, 2 clients of USER, no problems.
    ");

    let status = sim.status();
    let pids: Vec<_> = status["clients"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["pid"].clone())
        .collect();
    assert!(pids.contains(&first.pid().into()) && pids.contains(&second.pid().into()));
    assert_eq!(sim.device("0.2")["client_count"], 2);
    assert_eq!(sim.device("0.0")["client_count"], 0);
    for client in status["clients"].as_array().unwrap() {
        assert_eq!(
            (&client["device"], &client["user"]),
            (&"0.2".into(), &user().into())
        );
        assert!(client["memory_used_bytes"].as_u64().unwrap() > 0);
    }
    let used = sim.device("0.2")["memory_used_bytes"].as_u64().unwrap();
    assert!(used > 2 << 30, "{used}");
    assert!(first.finish().status.success() && second.finish().status.success());
    assert_eq!(sim.device("0.2")["client_count"], 0);
}

#[test]
fn a_device_is_named_by_name_uuid_or_prefix() {
    let sim = Sim::small();
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    for word in ["0.2", uuid.as_str(), &uuid[..14]] {
        let status = sim.run(&["status", "--json", word]).json();
        assert_eq!(in_state(&status, "ready"), ["0.2"], "{word}");
    }
    sim.run(&["status", "0.7"]).ended(2);
    sim.run(&["status", "MIG-"]).ended(2);
}

#[test]
fn what_is_dead_missing_or_unserved_is_shown_as_such() {
    let sim = Sim::with("a100-80gb", 2);
    let profile = r#"
[[gpu]]
select = { index = [0] }
devices = [ { profile = "1g", count = 3 } ]
"#;
    sim.up(profile, &[]).ended(0);
    sim.kill_daemon("0.0");
    kill(&sim.device("0.1")["servers"][0]["pid"]);
    let status = sim.status();
    assert_eq!(in_state(&status, "dead"), ["0.0"]);
    assert_eq!(in_state(&status, "no server yet"), ["0.1"]);
    assert_eq!(in_state(&status, "ready"), ["0.2"]);
    assert_eq!(in_state(&status, "no daemon"), ["1"]);
    let dead = sim.device("0.0");
    assert_eq!(
        (&dead["daemon_pid"], &dead["client_count"]),
        (&().into(), &().into())
    );
}

/// Programs find the daemon by its socket, and run outside MPS without it. Its process, its lock and its log are as before.
#[test]
fn a_daemon_without_its_socket_is_not_ready() {
    let sim = Sim::small();
    std::fs::remove_file(sim.pipe("0.2") + "/control").unwrap();
    assert_eq!(sim.device("0.0")["state"], "ready");
    let device = sim.device("0.2");
    assert_eq!(device["state"], "no answer", "{device:#}");
}

#[test]
fn a_daemon_that_somebody_else_talks_to_is_busy_and_not_dead() {
    let sim = Sim::small();
    // A forgotten interactive session: its standard input stays open.
    let session = sim.session("0.2");
    // Without clients nothing needs asking; with one, fault must be distinguished from ready.
    let client = sim.client("0.2");
    let device = sim.device("0.2");
    assert_eq!(device["state"], "busy");
    assert_eq!(
        (&device["client_count"], &device["active_thread_percentage"]),
        (&().into(), &100.0.into())
    );
    assert!(
        is_alive(&device["servers"][0]["pid"]),
        "servers are known from /proc all the same"
    );
    assert_eq!(sim.device("0.0")["state"], "ready");
    let ran = sim.run(&["down"]).ended(4);
    assert_contains(
        &ran.stderr,
        "the daemon of device 0.2 cannot be asked for its clients",
    );
    drop(session);
    assert!(client.finish().status.success());
    sim.run(&["down"]).ended(0);
}

#[test]
fn a_narrow_terminal_leaves_columns_out_and_says_so() {
    let sim = Sim::small();
    let ran = sim.in_80_columns("status");
    for line in ran.stdout.lines() {
        assert!(console::measure_text_width(line.trim_end()) <= 80, "{line}");
    }
    let words: Vec<&str> = ran.stdout.split_whitespace().collect();
    let text = words.join(" ");
    assert_contains(&text, "not shown: daemon, server, device (");
    let heads = ran
        .stdout
        .lines()
        .find(|line| line.starts_with("NAME"))
        .unwrap();
    assert!(
        ["GPU", "CLIENTS", "SERVE"]
            .iter()
            .all(|head| heads.contains(head)),
        "{heads}"
    );
    assert_contains(&text, "(widen the terminal, or use --columns)");
}

#[test]
fn a_daemon_whose_pipe_directory_was_removed_is_an_orphan() {
    let sim = Sim::small();
    let device = sim.device("0.2");
    std::fs::remove_dir_all(device["pipe_directory"].as_str().unwrap()).unwrap();
    assert_eq!(in_state(&sim.status(), "orphan"), ["0.2"]);
    // A second daemon beside it would make two.
    let ran = sim.up(SMALL, &["--yes"]).ended(4);
    assert_contains(&ran.stderr, "mig-mps restart 0.2 --force");
    sim.run(&["down", "0.2"]).ended(4);
    assert!(is_alive(&device["daemon_pid"]));
    sim.run(&["down", "0.2", "--force"]).ended(0);
    assert!(!is_alive(&device["daemon_pid"]));
    sim.up(SMALL, &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn status_of_idle_devices_leaves_no_trace_in_the_logs() {
    let sim = Sim::small();
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    let log = sim.node.log_dir().join(uuid).join("control.log");
    let before = std::fs::read_to_string(&log).unwrap();
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), before);
    let app = sim.client("0.2");
    assert_eq!(sim.device("0.2")["client_count"], 1);
    assert_ne!(std::fs::read_to_string(&log).unwrap(), before);
    assert!(app.finish().status.success());
}

#[test]
fn a_fault_is_shown_until_its_clients_have_gone() {
    let sim = Sim::small();
    // Both learn of the fault; the state lasts while one of the two lives.
    let [healthy, faulty] = sim.faulty("0.2");
    assert_contains(&healthy.finish().output, "loop err 700");
    assert_eq!(sim.device("0.2")["state"], "fault");
    drop(faulty);
    sim.await_state("0.2", "ready");
}

#[test]
fn a_stopped_daemon_does_not_hold_status_up() {
    let sim = Sim::small();
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    stop(&daemon);
    let ran = sim.run(&["status"]).ended(0);
    assert_contains(&ran.stdout, "no answer");
    assert_contains(&ran.stdout, "The clients of 0.2 are not known.");
    let refused = sim.run(&["down"]).ended(4);
    assert_contains(&refused.stderr, "it is stopped by a signal");
    shell(format!("kill -CONT {daemon}")).ended(0);
    sim.run(&["down"]).ended(0);
}

/// The user who runs a program chooses its name, and the user who owns a run directory chooses what its files say: root
/// reads every user's.
#[test]
fn nothing_that_users_write_steers_the_terminal() {
    const EVIL: &str = "\u{1b}[2J\u{202e}evil";
    let sim = Sim::small();
    let mut program = sim.node.program("cuda-app");
    let pipe = sim.pipe_link("0.2");
    program.arg0(EVIL).arg("hold");
    program.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    let mut app = App::start(program);
    assert!(app.wait_up().ends_with("mps yes"));

    let file = sim.node.run_dir().join("by-name/0.0/device.json");
    let mut record: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    record["uuid"] = json!(EVIL);
    record["name"] = json!("planted");
    record["key"]["instance"]["placement"]["start"] = json!(6);
    let planted = sim.node.run_dir().join(EVIL);
    fs::create_dir(&planted).unwrap();
    fs::write(planted.join("device.json"), record.to_string()).unwrap();
    let taken = json!({
        "gpu": record["key"]["gpu"],
        "profile": 19,
        "name": EVIL,
        "placement": { "start": 6, "size": 1 },
    });
    let journal = json!({
        "command": EVIL,
        "since": record["since"],
        "pid": 1,
        "start-time": 1,
        "boot-id": "",
        "units": [],
        "taken": [taken],
    });
    fs::write(sim.node.run_dir().join("journal.json"), journal.to_string()).unwrap();

    let steers = |c: char| c == '\u{202e}' || (c.is_control() && c != '\n');
    let pid = app.pid().to_string();
    for (args, status, shows) in [
        (&["status"][..], 0, "evil hold"),
        (&["status"], 0, "its record is of another device"),
        (&["status"], 0, "missing: GPU 0 "),
        (&["status", "--json"], 0, "evil hold"),
        (&["kill", "0.2", &pid], 4, "an earlier run was interrupted"),
        (&["kill", "0.2", &pid], 4, "evil hold"),
        (&["down", "--yes"], 4, "its record is of another device"),
    ] {
        let ran = sim.run(args).ended(status);
        let all = format!("{}{}", ran.stdout, ran.stderr);
        assert!(all.contains(shows), "{args:?}: {all}");
        assert!(!all.contains(steers), "{args:?}: {all:?}");
    }
}

/// One list says what a problem is: that of the faults.
#[test]
fn the_manual_lists_what_counts_as_a_problem() {
    let beginning = "With `--exit-code`, `mig-mps status` exits with status 3 after these problems";
    let paragraphs = TOPICS.iter().flat_map(|topic| topic.text.split("\n\n"));
    let list = paragraphs
        .into_iter()
        .find(|text| text.starts_with(beginning));
    let list = list.expect("a chapter has the list");
    let file: toml::Table = toml::from_str(include_str!("../../../src/node/faults.toml")).unwrap();
    let faults = file["fault"].as_array().unwrap().iter();
    let ids = |list: &'static str| {
        faults
            .clone()
            .filter(move |fault| {
                fault
                    .get("status")
                    .is_some_and(|own| own.as_str() == Some(list))
            })
            .map(|fault| fault["id"].as_str().unwrap())
    };
    assert!(ids("problem").count() > 20 && ids("remark").count() > 5);
    for id in ids("problem") {
        assert!(list.contains(&format!("`{id}`")), "{id}: {list}");
    }
    for id in ids("remark") {
        assert!(!list.contains(&format!("`{id}`")), "{id}: {list}");
    }
}
