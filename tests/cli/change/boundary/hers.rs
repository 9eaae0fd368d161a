//! The user of a device that serves nobody else: what she can reach, and what she cannot change.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use testkit::{
    App, NOBODY, Ran, Sim, assert_contains, has_python, in_state, is_alive, is_root, kill,
    needs_root, wait_until, whole,
};

use super::{HERS, let_nobody};

/// A shell script of hers, with the pipe directory of her device.
fn by_her(sim: &Sim, script: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", script])
        .env_clear()
        .envs(sim.node.env())
        .env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe("0"))
        .uid(NOBODY)
        .gid(NOBODY);
    shell
}

fn log_dir(sim: &Sim) -> PathBuf {
    sim.node.log_dir().join(sim.uuid("0"))
}

/// She reaches what her programs need, and can put nothing in its place.
#[test]
fn she_changes_nothing_in_her_directories() {
    needs_root!();
    let sim = Sim::whole(HERS);
    let entries = |path: &str| {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        names.sort();
        names
    };
    let (pipe, log) = (sim.pipe("0"), log_dir(&sim).display().to_string());
    let before = [entries(&pipe), entries(&log)];
    for attempt in [
        "touch $D/mine",
        "mkdir $D/mine",
        "ln -s /etc/passwd $D/mine",
        "mkfifo $D/mine",
        "rm -f $D/$F",
        "mv $D/$F $D/mine",
        "chmod 777 $D",
        "chmod 777 $D/$F",
        "mv $D $D.mine",
        ": >>$D/$F",
    ] {
        for (directory, file) in [
            (&pipe, "control_lock"),
            (&pipe, "control"),
            (&log, "control.log"),
        ] {
            let mut shell = by_her(&sim, attempt);
            let ran = Ran::of(shell.env("D", directory).env("F", file));
            assert_ne!(ran.status, 0, "{attempt}: {directory}, {file}: {ran:?}");
        }
    }
    assert_eq!([entries(&pipe), entries(&log)], before);
    // She reads her logs, and lists no pipe directory.
    let read = Ran::of(&mut by_her(&sim, &format!("cat {log}/control.log"))).ended(0);
    assert_contains(&read.stdout, "Starting control daemon");
    assert_ne!(Ran::of(&mut by_her(&sim, &format!("ls {pipe}"))).status, 0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// Nor in the daemon, but in a server of her own.
#[test]
fn she_changes_no_setting_of_the_daemon_and_does_not_end_it() {
    needs_root!();
    let settings =
        r#"serve = "user:nobody", active-thread-percentage = 50, pinned-memory-limit = "2G""#;
    let sim = Sim::whole(settings);
    let daemon = sim.device("0")["daemon_pid"].clone();
    for (asked, refused) in [
        (
            "set_default_active_thread_percentage 90",
            "Insufficient privileges",
        ),
        (
            "set_default_device_pinned_mem_limit 0 64G",
            "Insufficient privileges",
        ),
        ("set_default_client_priority 1", "Insufficient privileges"),
        ("start_server -uid 1", "Insufficient privileges"),
        ("quit", "Not enough privilege"),
        ("quit -t 1", "Not enough privilege"),
    ] {
        let asks = format!("echo {asked} | nvidia-cuda-mps-control");
        let said = Ran::of(&mut by_her(&sim, &asks));
        let said = said.stdout + &said.stderr;
        assert!(said.contains(refused), "{asked}: {said}");
    }
    Ran::of(&mut by_her(&sim, &format!("kill -9 {daemon}"))).ended(1);
    sim.up_does_nothing(&whole(settings));
    assert_eq!(sim.device("0")["daemon_pid"], daemon);
    assert_eq!(
        sim.ask("0", "get_default_active_thread_percentage\n"),
        "50.0\n"
    );
}

/// Her server is hers to kill: the daemon starts another.
#[test]
fn she_may_kill_her_server() {
    needs_root!();
    let sim = Sim::whole(HERS);
    let before = sim.device("0");
    let server = &before["servers"][0]["pid"];
    Ran::of(&mut by_her(&sim, &format!("kill -9 {server}"))).ended(0);
    wait_until("the server has ended", || !is_alive(server));
    let mut app = sim.app_of_nobody("0", &["hold"]);
    assert!(app.wait_up().ends_with("mps yes"));
    let after = sim.device("0");
    assert_eq!(after["daemon_pid"], before["daemon_pid"]);
    assert_eq!(after["servers"][0]["uid"], NOBODY);
}

/// Root ends the work of her clients, as on every other device, and so does she.
#[test]
fn root_and_she_end_her_clients() {
    needs_root!();
    let sim = Sim::whole(HERS);
    for by_root in [true, false] {
        let mut app = sim.app_of_nobody("0", &["hold"]);
        app.wait_up();
        let pid = app.pid().to_string();
        let words = ["kill", "0", &pid, "--signal", "--yes"];
        let mut kill = if by_root {
            sim.command(&words)
        } else {
            let mut kill = sim.by_nobody(&words);
            kill.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
            kill
        };
        Ran::of(&mut kill).ended(0);
        assert!(!app.await_end().status.success());
    }
}

/// Root drains her device as any other.
#[test]
fn force_with_drain_waits_for_her_clients() {
    needs_root!();
    let sim = Sim::whole(HERS);
    let mut app = sim.app_of_nobody("0", &["hold"]);
    app.wait_up();
    let mut down = sim.talk(&["down", "--drain", "600", "--force"]);
    down.await_text("waiting for");
    let finished = app.finish();
    assert!(finished.status.success(), "{}", finished.output);
    let _ = down.end().ended(0);
}

/// Connects to a socket, says nothing, and says so.
const SILENT: &str = "
import os, socket, time
silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
silent.connect(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + '/control')
print('connected', flush=True)
time.sleep(60)
";

/// A connection that says nothing keeps the daemon busy, on any device. A change of it fails and is undone; force ends it.
#[test]
fn a_silent_connection_is_ended_by_force() {
    let test = "a_silent_connection_is_ended_by_force";
    if !is_root(test) || !has_python(test) {
        return;
    }
    let sim = Sim::whole(HERS);
    let mut python = Command::new("python3");
    python
        .args(["-c", SILENT])
        .env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe("0"));
    let mut silent = App::start({
        python.uid(NOBODY).gid(NOBODY);
        python
    });
    assert_eq!(silent.wait_up(), "connected");
    let set = sim.run(&["set", "0", "active-thread-percentage=50", "--yes"]);
    assert_ne!(set.status, 0, "{set:?}");
    assert_eq!(sim.device("0")["active_thread_percentage"], 100.0);
    sim.run(&["restart", "0", "--force", "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// A file system without access control lists cannot let her in: it is named before anything is touched.
#[test]
fn a_file_system_without_lists_is_refused_by_name() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(HERS));
    let (run, program) = (sim.node.run_dir().display(), sim.program());
    // In a mount namespace of its own.
    let script = format!(
        "mkdir -p {run}; mount -t ramfs ramfs {run}; {program} up {}",
        profile.display()
    );
    let mut shell = Command::new("unshare");
    shell.args(["-m", "--propagation", "private", "sh", "-ec", &script]);
    let ran = Ran::of(shell.env_clear().envs(sim.node.env())).ended(1);
    let said = format!(
        "cannot start the daemon of device 0\n  cause: {run}: its file system does not support access control lists, which give access to one user"
    );
    assert_contains(&ran.stderr, &said);
    assert_contains(&ran.stderr, "hint: set MIG_MPS_RUN_DIR");
    assert_eq!(sim.happened("daemon start"), 0);
}

/// A list that lets her into a directory above is as good as a mode.
#[test]
fn a_list_above_lets_her_in() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let run = sim.node.run_dir();
    fs::create_dir(run).unwrap();
    fs::set_permissions(run, fs::Permissions::from_mode(0o700)).unwrap();
    let refused = sim.up(&whole(HERS), &[]).ended(1);
    assert_contains(&refused.stderr, "nobody may not enter");
    let_nobody(run, 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let mut app = sim.app_of_nobody("0", &["hold"]);
    assert!(app.wait_up().ends_with("mps yes"));
}

/// A daemon that dies while it serves her leaves its place to root's, and to others'.
#[test]
fn her_daemon_that_was_killed_starts_again() {
    needs_root!();
    let sim = Sim::whole(HERS);
    kill(&sim.device("0")["daemon_pid"]);
    sim.run(&["heal"]).ended(0);
    let device = sim.device("0");
    assert_eq!(
        (&device["state"], &device["servers"][0]["uid"]),
        (&Value::from("ready"), &Value::from(NOBODY))
    );
}
