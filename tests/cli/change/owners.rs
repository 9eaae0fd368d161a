//! Daemons for one user or one group. Only root can start them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

use insta::assert_snapshot;

use testkit::{NOBODY, Ran, Sim, assert_contains, in_state, needs_root, plain, whole};

/// The second user, with a group of the same name: both are on every machine.
const DAEMON: u32 = 1;

/// Whose a process is, its groups, as `/proc` has them.
fn of_process(pid: &serde_json::Value, field: &str) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let numbers = line.unwrap().split_whitespace();
    numbers.map(|number| number.parse().unwrap()).collect()
}

fn environment(pid: &serde_json::Value) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    text.split('\0').map(str::to_owned).collect()
}

/// True if a program of that user becomes a client.
fn reaches(sim: &Sim, uid: u32) -> bool {
    let mut app = sim.node.program("cuda-app");
    app.args(["run", "0"])
        .env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe_link("0"));
    let ran = Ran::of(app.uid(uid).gid(uid));
    ran.stdout.contains("mps yes")
}

/// The entries of a directory's access control list: kind, permissions, user or group.
fn list_of(directory: &Path) -> Vec<(u16, u16, u32)> {
    let mut bytes = [0_u8; 256];
    let length =
        rustix::fs::getxattr(directory, "system.posix_acl_access", &mut bytes[..]).unwrap();
    let entries = bytes[4..length].chunks_exact(8);
    let read = |entry: &[u8]| {
        let id = u32::from_le_bytes(entry[4..].try_into().unwrap());
        (u16::from(entry[0]), u16::from(entry[2]), id)
    };
    entries.map(read).collect()
}

#[test]
fn a_users_daemon_is_roots() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = whole(
        r#"serve = "user:nobody", active-thread-percentage = 50, pinned-memory-limit = "2G", cpus = "0""#,
    );
    let mut up = sim.command(&["up", sim.profile(&profile).to_str().unwrap()]);
    up.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "7");
    Ran::of(up.env("HOME", "/root")).ended(0);
    let device = sim.device("0");
    assert_eq!(
        (&device["state"], &device["serve"]),
        (&"ready".into(), &"user:nobody".into())
    );
    assert_eq!(of_process(&device["daemon_pid"], "Uid:"), [0; 4]);
    assert_eq!(
        of_process(&device["servers"][0]["pid"], "Uid:"),
        [NOBODY; 4]
    );
    let environment = environment(&device["daemon_pid"]);
    for expected in ["CUDA_MPS_PROTOCOL_VERSION=2", "HOME=/root"] {
        assert!(
            environment.contains(&expected.to_owned()),
            "{environment:?}"
        );
    }
    assert!(
        !environment
            .iter()
            .any(|entry| entry.starts_with("CUDA_MPS_ACTIVE")),
        "{environment:?}"
    );
    let log = sim.node.log_dir().join(device["uuid"].as_str().unwrap());
    for (directory, permissions) in [(sim.pipe_link("0"), 1), (log, 5)] {
        assert_eq!(fs::metadata(&directory).unwrap().uid(), 0);
        let expected = [
            (1, 7, u32::MAX),
            (2, permissions, NOBODY),
            (4, 0, u32::MAX),
            (16, permissions, u32::MAX),
            (32, 0, u32::MAX),
        ];
        assert_eq!(list_of(&directory), expected, "{}", directory.display());
    }
    assert!(reaches(&sim, NOBODY));
    assert!(!reaches(&sim, DAEMON), "another user came in");
    assert_eq!(
        sim.ask("0", "get_default_active_thread_percentage\n"),
        "50.0\n"
    );

    // Root changes it as any other.
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.run(&["set", "0", "active-thread-percentage=25"])
        .ended(0);
    let again = sim.up(&profile, &[]).ended(0);
    assert_contains(&again.stdout, "(set by hand)");
    sim.up_does_nothing(&profile);
    sim.run(&["down"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock"]);
}

/// A user who may not enter a pipe directory cannot know whether its daemon would take a client, and has nothing to mend.
#[test]
fn a_device_of_others_is_hidden_from_a_plain_user() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = whole(r#"serve = "user:daemon""#);
    sim.up(&profile, &[]).ended(0);
    let mut status = sim.command(&["status", "--json"]);
    let status = Ran::of(status.uid(NOBODY).gid(NOBODY)).ended(0).json();
    assert_eq!(in_state(&status, "hidden"), ["0"], "{status:#}");
    assert_eq!(status["problems"], serde_json::json!([]), "{status:#}");
    let server = &sim.device("0")["servers"][0]["pid"];
    assert_eq!(status["devices"][0]["servers"][0]["pid"], *server);
    // Nor is a plan shown that only root could apply.
    let mut up = sim.command(&["up", "whole-gpu"]);
    let refused = Ran::of(up.uid(NOBODY).gid(NOBODY)).ended(1);
    assert_eq!(refused.stdout, "");
    assert_contains(&refused.stderr, "only root can change this node");
}

#[test]
fn a_groups_daemon_serves_its_members_at_once() {
    needs_root!();
    let sim = Sim::whole(r#"serve = "group:daemon""#);
    let meta = fs::metadata(sim.pipe_link("0")).unwrap();
    let seen = (meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777);
    assert_eq!(seen, (0, DAEMON, 0o750));
    assert_eq!(sim.device("0")["servers"][0]["uid"], 0);
    assert!(reaches(&sim, DAEMON));
    assert!(!reaches(&sim, NOBODY), "who is no member came in");
    let device = sim.device("0");
    assert_eq!(
        (&device["state"], &device["serve"]),
        (&"ready".into(), &"group:daemon".into())
    );
    // Who serves is another daemon's affair.
    let ran = sim
        .up(&whole(r#"serve = "user:nobody""#), &["--yes"])
        .ended(0);
    let stop = "serve is \"group:daemon\", not \"user:nobody\"";
    assert_contains(&ran.stdout, stop);
    assert!(reaches(&sim, NOBODY) && !reaches(&sim, DAEMON));
}

/// The files that a dead daemon of one user has left are no obstacle to another's.
#[test]
fn a_dead_daemon_leaves_its_place_to_another_users() {
    needs_root!();
    let sim = Sim::whole(r#"serve = "user:nobody""#);
    for serve in ["user:daemon", "group:daemon", "all", "user:nobody"] {
        sim.kill_daemon("0");
        let profile = whole(&format!("serve = \"{serve}\""));
        sim.up(&profile, &["--yes"]).ended(0);
        let device = sim.device("0");
        assert_eq!(
            (&device["state"], &device["serve"]),
            (&"ready".into(), &serve.into())
        );
    }
}

#[test]
fn users_that_a_plain_user_cannot_serve() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(r#"serve = "user:daemon""#));
    let ran = Ran::of(&mut sim.by_nobody(&["up", profile.to_str().unwrap()])).ended(2);
    assert_snapshot!(plain(&ran.stderr), @r#"
    error: profile.toml:4:17: a plain user cannot serve "user:daemon"
      |
    4 | mps = { serve = "user:daemon" }
      |                 ^^^^^^^^^^^^^ run it as root: `sudo mig-mps up profile.toml`; use "self", or omit serve
    "#);
}

/// It is hidden, and runs nothing but the control program.
#[test]
fn the_helper_is_hidden_and_runs_no_other_program() {
    let sim = Sim::with("h200", 1);
    let help = sim.run(&["--help"]).ended(0).stdout;
    assert!(!help.contains("launch"), "{help}");
    sim.run(&["launch"]).ended(2);
    for program in [&["--", "/bin/sh"][..], &["--", "id"], &["id"]] {
        let words = [&["launch", "--files", "64"], program].concat();
        sim.run(&words).ended(2);
    }
    let mut daemon = sim.command(&["launch", "--files", "64"]);
    // The control program's status for a device that CUDA does not see.
    Ran::of(daemon.env("CUDA_VISIBLE_DEVICES", "GPU-none")).ended(100);
}

/// Files beside a daemon's hold nobody up, and are not lost.
#[test]
fn other_files_are_put_aside() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let hers = whole(r#"serve = "user:nobody""#);
    sim.up(&hers, &[]).ended(0);
    let uuid = sim.uuid("0");
    fs::write(sim.pipe_link("0").join("notes"), "hers").unwrap();
    // No record that is made up is believed, wherever it comes to lie.
    fs::write(sim.pipe_link("0").join("device.json"), "{").unwrap();
    let ran = sim.run(&["down"]).ended(0);
    let kept = sim.node.run_dir().join("left").join(format!("{uuid}.1"));
    let said = format!("were moved away:\n  {}", kept.display());
    assert_contains(&ran.stderr, &said);
    assert_eq!(fs::read_to_string(kept.join("notes")).unwrap(), "hers");
    assert_eq!(sim.run_dir(), ["left", "lock"]);
    let status = sim.status();
    assert_eq!(
        (&status["hidden"], &status["degraded"]),
        (&serde_json::json!([]), &false.into())
    );

    // A directory where the daemon's socket was: the next daemon gets a directory of its own.
    sim.up(&hers, &[]).ended(0);
    sim.kill_daemon("0");
    fs::remove_file(sim.pipe_link("0").join("control")).unwrap();
    fs::create_dir_all(sim.pipe_link("0").join("control/mine")).unwrap();
    sim.up(&hers, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    assert!(reaches(&sim, NOBODY));
    sim.up(&whole(""), &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.run(&["down"]).ended(0);
}
