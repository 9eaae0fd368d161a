//! A run directory that cannot be read: what is in it is unknown, and nothing is said to be in order.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use insta::assert_snapshot;
use testkit::{NOBODY, Ran, SMALL, Sim, assert_contains, can_run, is_root, needs_root, tidy};

/// A node with daemons, in a run directory that root alone may enter.
fn closed() -> Sim {
    let sim = Sim::small();
    fs::set_permissions(sim.node.run_dir(), Permissions::from_mode(0o700)).unwrap();
    sim
}

fn by_nobody(sim: &Sim, args: &[&str]) -> Ran {
    Ran::of(sim.command(args).uid(NOBODY).gid(NOBODY))
}

#[test]
fn a_device_is_hidden_and_its_daemon_is_not_unmanaged() {
    needs_root!();
    let sim = closed();
    let status = by_nobody(&sim, &["status", "--json"]).json();
    for device in status["devices"].as_array().unwrap() {
        assert_eq!(device["state"], "hidden", "{device:#}");
        assert!(device["client_count"].is_null(), "{device:#}");
    }
    assert!(status["unmanaged"].as_array().unwrap().is_empty());
    let text = by_nobody(&sim, &["status", "--exit-code"]).ended(3);
    assert_contains(&text.stdout, "/run: Permission denied");
    assert!(!text.stdout.contains("under way"), "{text:?}");
}

#[test]
fn metrics_have_no_series_of_what_cannot_be_seen() {
    needs_root!();
    let sim = closed();
    let text = by_nobody(&sim, &["metrics"]).ended(0).stdout;
    assert_contains(&text, "\nmig_mps_driver_answers 1\n");
    for hidden in [
        "change_in_progress",
        "change_interrupted",
        "unmanaged_daemons",
        "problems{id=\"daemon-dead\"}",
    ] {
        assert!(!text.contains(&format!("\nmig_mps_{hidden} ")), "{text}");
    }
}

#[test]
fn the_doctor_does_not_know_of_daemons_that_cannot_be_seen() {
    needs_root!();
    let sim = closed();
    let report = by_nobody(&sim, &["doctor", "--json"]).stdout;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let verdict = |id: &str| {
        let mut checks = report["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["id"] == id).unwrap();
        check["severity"].as_str().unwrap().to_owned()
    };
    for id in [
        "daemon-dead",
        "daemon-orphan",
        "device-hung",
        "device-failing",
        "gpu-fault",
        "start-unfinished",
        "change-under-way",
        "memory-limit",
        "daemon-files",
        "pipe-access",
        "leftover-directories",
        "log-size",
    ] {
        assert_eq!(verdict(id), "unknown", "{id}");
    }
    assert_eq!(verdict("record-unreadable"), "fail");
    let metrics = by_nobody(&sim, &["metrics"]).ended(0).stdout;
    for series in [
        "mig_mps_problems{id=\"daemon-dead\"}",
        "mig_mps_problems{id=\"change-under-way\"}",
        "mig_mps_change_in_progress ",
        "mig_mps_change_interrupted ",
        "mig_mps_unmanaged_daemons ",
    ] {
        let mut lines = metrics.lines();
        assert!(!lines.any(|line| line.starts_with(series)), "{metrics}");
    }
    assert_contains(&metrics, "mig_mps_problems{id=\"record-unreadable\"} 1");
}

#[test]
fn no_command_says_that_there_is_no_daemon() {
    needs_root!();
    let sim = closed();
    for args in [&["verify"][..], &["cdi"], &["slurm", "gres"]] {
        let error = "error: no device has a visible daemon: /tmp/…/run: Permission denied\nhint: run `mig-mps doctor` to check directories and records\n";
        assert_eq!(tidy(&by_nobody(&sim, args).ended(1).stderr), error);
    }
    let of_gpu = by_nobody(&sim, &["verify", "--gpu", "0"]).ended(2);
    assert_snapshot!(tidy(&of_gpu.stderr), @"
    error: no daemon serves a device of GPU 0 that can be seen: /tmp/…/run: Permission denied
    hint: run `mig-mps doctor` to check directories and records
    ");
}

#[test]
fn nothing_is_planned_beside_daemons_that_cannot_be_seen() {
    needs_root!();
    let sim = closed();
    let profile = sim.profile(SMALL);
    fs::set_permissions(&profile, Permissions::from_mode(0o644)).unwrap();
    for args in [&["heal"][..], &["plan", profile.to_str().unwrap()]] {
        let stderr = tidy(&by_nobody(&sim, args).ended(1).stderr);
        let error = "error: cannot use the run directory: /tmp/…/run: Permission denied\nhint: run it as root: `";
        assert!(stderr.starts_with(error), "{stderr}");
    }
}

#[test]
fn in_a_user_namespace_the_remedy_is_to_leave_it() {
    let works = Command::new("unshare").args(["-U", "-r", "true"]).status();
    let can = works.is_ok_and(|status| status.success());
    if !is_root("in_a_user_namespace_the_remedy_is_to_leave_it")
        || !can_run(
            "in_a_user_namespace_the_remedy_is_to_leave_it",
            can,
            "allow user namespaces",
        )
    {
        return;
    }
    let sim = Sim::small();
    // Nobody here is root outside.
    let mut inside = Command::new("unshare");
    inside
        .args(["-U", "-r"])
        .arg(sim.command(&[]).get_program());
    inside.arg("heal").env_clear().envs(sim.node.env());
    let heal = Ran::of(inside.uid(NOBODY).gid(NOBODY)).ended(1).stderr;
    // The first part of the path that belongs to somebody else: where the nodes lie decides which.
    assert_contains(&heal, ": it belongs to user nobody\n");
    let remedy =
        "hint: run this command outside the user namespace, which does not map the owner of /";
    assert_contains(&heal, remedy);
}
