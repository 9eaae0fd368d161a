//! The report on a screen.

use std::fs;

use insta::assert_snapshot;

use super::{doctor, healthy};
use testkit::{Ran, assert_contains, needs_root, stop};

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
              why: its programs wait for it
              $ kill -CONT PID

    surroundings
      warn    this is a container (docker) [container]
              why: holders outside cannot be seen, MIG cannot be changed without privileges, and daemons end with the container

    not seen
      unknown 0.0: its settings were not read back [settings-changed]

    89 checks: 1 fail, 1 warn, 1 unknown, 86 ok
    Run `mig-mps verify` to check whether programs become clients.
    ");
    assert_eq!(ran.stderr, "");
    let verbose = sim.run(&["doctor", "--all"]).ended(3).stdout;
    assert_contains(&verbose, "kernel-module: 580.159.04\n");
    assert!(
        verbose.lines().count() > ran.stdout.lines().count() + 20,
        "{verbose}"
    );
}

/// What is unknown for one reason is one line, and JSON and `--all` have each check.
#[test]
fn a_missing_driver_is_said_once() {
    let sim = healthy();
    let silent = |args: &[&str]| {
        let mut command = sim.command(args);
        let ran = Ran::of(command.env("MIG_MPS_NVML_LIBRARY", "/no/libnvidia-ml.so.1"));
        ran.ended(3).stdout
    };
    let shown = silent(&["doctor"]);
    assert_eq!(shown.matches("unknown the").count(), 1, "{shown}");
    assert_contains(
        &shown,
        "\nnot seen\n  unknown the driver does not answer: 28 checks\n\n89 checks: 1 fail, 28 unknown, 60 ok\n",
    );
    for (args, line) in [
        (
            &["doctor", "--all"][..],
            "  unknown the driver does not answer [",
        ),
        (
            &["doctor", "--json"],
            "\"seen\": \"the driver does not answer\"",
        ),
    ] {
        let each = silent(args);
        assert_eq!(each.matches(line).count(), 28, "{each}");
    }
}

#[test]
fn a_plain_user_reads_in_one_line_what_root_would_see() {
    needs_root!();
    let sim = healthy();
    let mut command = sim.by_nobody(&["doctor"]);
    command.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
    let shown = Ran::of(&mut command).stdout;
    assert_contains(
        &shown,
        "\nnot seen without root: 1 check on 4 devices; sudo ",
    );
    assert!(!shown.contains("  unknown "), "{shown}");
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
