//! Devices that mig-mps 0.2 serves for one user: their daemons run as her, in directories that are hers.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use testkit::{
    NOBODY, Ran, Sim, assert_contains, in_state, is_alive, kill, needs_root, wait_until, whole,
};

use super::HERS;

/// A device with a daemon, directories and a record as mig-mps 0.2 makes them.
struct Earlier {
    sim: Sim,
    pipe: PathBuf,
    log: PathBuf,
    daemon: u32,
}

impl Earlier {
    fn new() -> Self {
        let sim = Sim::whole(HERS);
        let uuid = sim.uuid("0");
        kill(&sim.device("0")["daemon_pid"]);
        let pipe = sim.node.run_dir().join(&uuid).join("pipe");
        let log = sim.node.log_dir().join(&uuid);
        for directory in [&pipe, &log] {
            fs::remove_dir_all(directory).unwrap();
            fs::create_dir(directory).unwrap();
            chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
        }
        let control = |arguments: &[&str]| {
            let mut control = sim.node.program("nvidia-cuda-mps-control");
            control
                .args(arguments)
                .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
                .env("CUDA_MPS_LOG_DIRECTORY", &log)
                .env("CUDA_VISIBLE_DEVICES", &uuid)
                .uid(NOBODY)
                .gid(NOBODY);
            control
        };
        Ran::of(&mut control(&["-d"])).ended(0);
        let pid = fs::read_to_string(pipe.join("nvidia-cuda-mps-control.pid")).unwrap();
        let daemon: u32 = pid.trim().parse().unwrap();
        let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
        let started: u64 = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .nth(19)
            .unwrap()
            .parse()
            .unwrap();
        sim.edit(&format!("{uuid}/device.json"), |record| {
            record["daemon"]["pid"] = json!(daemon);
            record["daemon"]["start-time"] = json!(started);
            record["daemon"]["user"] = json!(NOBODY);
        });
        // As an eager server does.
        let mut first = sim.app_of_nobody("0", &["run", "0"]);
        first.wait_up();
        first.finish();
        Self {
            sim,
            pipe,
            log,
            daemon,
        }
    }

    /// Asserts that a daemon of root's serves her, and that the old one has ended.
    #[track_caller]
    fn is_replaced(&self) {
        let device = self.sim.device("0");
        assert_eq!(
            (&device["state"], &device["serve"]),
            (&json!("ready"), &json!("user:nobody"))
        );
        assert!(!is_alive(self.daemon));
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        assert_eq!(
            owner(Path::new(&format!("/proc/{}", device["daemon_pid"]))),
            0
        );
        assert_eq!([owner(&self.pipe), owner(&self.log)], [0, 0]);
        let mut app = self.sim.app_of_nobody("0", &["hold"]);
        assert!(app.wait_up().ends_with("mps yes"));
        assert_eq!(self.sim.status()["remarks"], json!([]));
    }
}

#[test]
fn it_is_shown_and_the_next_up_replaces_it() {
    needs_root!();
    let earlier = Earlier::new();
    let sim = &earlier.sim;
    let mut client = sim.app_of_nobody("0", &["hold"]);
    client.wait_up();
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), ["0"], "{status:#}");
    assert_eq!(status["devices"][0]["daemon_pid"], earlier.daemon);
    assert_eq!(status["clients"][0]["pid"], client.pid());
    assert_eq!(status["remarks"][0]["id"], "daemon-of-user", "{status:#}");
    assert_eq!(
        status["remarks"][0]["what"],
        "its daemon runs as nobody, as mig-mps 0.2 started it: run `mig-mps restart 0` to start a daemon that runs as root"
    );
    // It has a client, which is not disturbed.
    let busy = sim.up(&whole(HERS), &["--yes"]).ended(4);
    assert_contains(&busy.stderr, &client.pid().to_string());
    assert!(client.finish().status.success());
    let done = sim.up(&whole(HERS), &["--yes"]).ended(0);
    assert_contains(&done.stdout, "its daemon runs as nobody, not as root");
    earlier.is_replaced();
    sim.up_does_nothing(&whole(HERS));
    // What was hers is kept, and named.
    let uuid = sim.uuid("0");
    let left = sim.node.run_dir().join("left").join(format!("{uuid}.1"));
    let logs = sim.node.log_dir().join(format!("{uuid}.of-{NOBODY}.1"));
    assert!(left.join("control").exists() && logs.join("control.log").exists());
    let down = sim.run(&["down"]).ended(0);
    assert_contains(&down.stderr, left.to_str().unwrap());
    sim.run(&["down", "--purge", &uuid]).ended(0);
    assert_eq!(sim.run_dir(), ["lock"]);
    assert_eq!(fs::read_dir(sim.node.log_dir()).unwrap().count(), 0);
}

#[test]
fn restart_and_down_end_it_without_a_session() {
    needs_root!();
    let earlier = Earlier::new();
    let sim = &earlier.sim;
    let sessions = sim.happened("session open");
    for args in [
        &["set", "0", "active-thread-percentage=50"][..],
        &["kill", "0", "1"],
    ] {
        let refused = sim.run(args).ended(4).stderr;
        assert_contains(
            &refused,
            "runs as nobody, as mig-mps 0.2 started it, so root cannot open a session with it",
        );
        assert_contains(
            &refused,
            "hint: run `mig-mps restart 0` to start a daemon that runs as root",
        );
    }
    sim.run(&["status"]).ended(0);
    assert_eq!(sim.happened("session open"), sessions);
    sim.run(&["restart", "0", "--yes"]).ended(0);
    earlier.is_replaced();

    let earlier = Earlier::new();
    let sessions = earlier.sim.happened("session open");
    earlier.sim.run(&["down"]).ended(0);
    assert!(!is_alive(earlier.daemon));
    assert_eq!(earlier.sim.happened("session open"), sessions);
}

/// Where root cannot let her into directories of its own, her daemon goes on.
#[test]
fn it_is_not_ended_where_it_cannot_be_replaced() {
    needs_root!();
    let earlier = Earlier::new();
    let sim = &earlier.sim;
    let (log, program) = (sim.node.log_dir().display(), sim.program());
    // In a mount namespace of its own.
    let script = format!("mount -t ramfs ramfs {log}; {program} restart 0 --yes");
    let mut shell = Command::new("unshare");
    shell.args(["-m", "--propagation", "private", "sh", "-ec", &script]);
    let ran = Ran::of(shell.env_clear().envs(sim.node.env())).ended(1);
    let said = format!(
        "cannot start the daemon of device 0\n  cause: {log}: its file system does not support access"
    );
    assert_contains(&ran.stderr, &said);
    assert!(is_alive(earlier.daemon));
}

/// Nothing that she has put into her directories is followed, read or opened.
#[test]
fn what_she_has_put_there_is_looked_at_by_nobody() {
    needs_root!();
    let earlier = Earlier::new();
    let sim = &earlier.sim;
    let victim = sim.node.dir().join("victim");
    fs::write(&victim, "root's").unwrap();
    for name in ["server.log", "control.log.1", "control.log.new"] {
        let place = earlier.log.join(name);
        let _ = fs::remove_file(&place);
        symlink(&victim, place).unwrap();
    }
    fs::write(earlier.pipe.join("device.json"), "{").unwrap();
    fs::remove_file(earlier.pipe.join("control_lock")).unwrap();
    fs::create_dir_all(earlier.pipe.join("control_lock/mine")).unwrap();
    let logs = sim.run(&["logs", "0"]);
    assert!(!logs.stdout.contains("root's"), "{logs:?}");
    assert_contains(&logs.stderr, "it belongs to user nobody");
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.up(&whole(HERS), &["--yes"]).ended(0);
    earlier.is_replaced();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root's");
}

/// One that has died leaves its place as well.
#[test]
fn a_dead_one_is_replaced_too() {
    needs_root!();
    let earlier = Earlier::new();
    kill(earlier.daemon);
    wait_until("it is seen", || {
        in_state(&earlier.sim.status(), "dead") == ["0"]
    });
    earlier.sim.run(&["heal"]).ended(0);
    earlier.is_replaced();
}
