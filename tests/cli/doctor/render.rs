//! The report on a screen.

use std::fs;

use insta::assert_snapshot;

use super::{doctor, healthy};
use testkit::{assert_contains, stop};

#[test]
fn problems_come_with_reason_and_command() {
    let sim = healthy();
    let daemon = sim.device("0.0")["daemon_pid"].clone();
    stop(&daemon);
    sim.prepare(".dockerenv", "");
    let ran = sim.run(&["doctor"]).ended(3);
    let text = ran.stdout.replace(&format!("(pid {daemon})"), "(pid PID)");
    let text = text.replace(&format!("kill -CONT {daemon}"), "kill -CONT PID");
    assert_snapshot!(text, @"
    daemons
      fail    0.0: its daemon (pid PID) is stopped (SIGSTOP) [daemon-stopped]
              $ kill -CONT PID
              why: its programs wait for it
      unknown 0.0: its settings were not read back [settings-changed]

    surroundings
      warn    this is a container (docker) [container]
              why: holders outside cannot be seen, MIG cannot be changed without privileges, and daemons end with the container

    89 checks: 1 fail, 1 warn, 1 unknown, 86 ok
    mig-mps verify shows whether programs become clients.
    ");
    assert_eq!(ran.stderr, "");
    let verbose = sim.run(&["doctor", "--all"]).ended(3).stdout;
    assert_contains(&verbose, "kernel-module: 580.159.04\n");
    assert!(
        verbose.lines().count() > ran.stdout.lines().count() + 20,
        "{verbose}"
    );
}

/// A check that fails for several devices has several lines.
#[test]
fn the_summary_counts_what_stands_above_it() {
    let sim = healthy();
    for name in ["0.0", "1.0"] {
        stop(&sim.device(name)["daemon_pid"]);
    }
    let ran = sim.run(&["doctor"]).ended(3);
    let lines = ran.stdout.lines();
    assert_eq!(lines.filter(|line| line.starts_with("  fail ")).count(), 2);
    assert_contains(&ran.stdout, "89 checks: 1 fail (2 findings), ");
}

#[test]
fn it_fits_a_narrow_terminal() {
    let sim = healthy();
    stop(&sim.device("0.0")["daemon_pid"]);
    let ran = sim.shown("", "doctor --all", 80).ended(3);
    assert_contains(&ran.stdout, "fail ");
    assert!(ran.stdout.lines().count() > 75, "{}", ran.stdout);
    for line in ran.stdout.lines() {
        let width = console::measure_text_width(line.trim_end());
        assert!(width <= 80, "{line}");
    }
}

/// Names of files in a directory that users may write to.
#[test]
fn nothing_that_users_write_steers_the_terminal() {
    let sim = healthy();
    let evil = sim.machine("dev/shm/mps.shm.\u{1b}[31m.4194304");
    fs::write(evil, "").unwrap();
    fs::write(sim.machine("dev/shm/mps.shm.$(id).4194304"), "").unwrap();
    let left = doctor(&sim, &[]).check("leftover-shared-memory").0;
    let left = left["findings"].as_array().unwrap();
    assert_eq!(left.len(), 2, "{left:#?}");
    // A user who pastes a command runs nothing else.
    let mut commands = left.iter().map(|finding| &finding["command"]);
    assert!(commands.all(serde_json::Value::is_null), "{left:#?}");
    for args in [&["doctor"][..], &["doctor", "--json"]] {
        let ran = sim.run(args).ended(0);
        assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
        assert_contains(&ran.stdout, "mps.shm.?[31m.4194304");
    }
}
