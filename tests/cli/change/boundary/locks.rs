//! Locks and lock files that a user holds or replaces.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use testkit::{App, NOBODY, Sim, has_python, in_state, is_alive, is_root, needs_root};

use super::HERS;

/// Neither a process that holds the lock of the daemon's lock file, nor another file in its place, is in the way.
#[test]
fn a_lock_that_somebody_holds_means_nothing() {
    let test = "a_lock_that_somebody_holds_means_nothing";
    if !is_root(test) || !has_python(test) {
        return;
    }
    for serve in [HERS, "serve = \"all\""] {
        let sim = Sim::whole(serve);
        let lock = sim.pipe_link("0").join("control_lock");
        let mut holder = Command::new("python3");
        holder.args(["-c", HOLD]).arg(&lock).uid(NOBODY).gid(NOBODY);
        let mode = fs::metadata(&lock).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut first = App::start(holder);
        assert_eq!(first.wait_up(), "no");
        // Nor does it if it can.
        fs::remove_file(&lock).unwrap();
        File::create(&lock).unwrap();
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o666)).unwrap();
        let mut holder = Command::new("python3");
        holder.args(["-c", HOLD]).arg(&lock).uid(NOBODY).gid(NOBODY);
        let mut second = App::start(holder);
        assert_eq!(second.wait_up(), "held");
        // The daemon lives, and is known by its process.
        assert_eq!(in_state(&sim.status(), "dead"), [""; 0]);
        sim.kill_daemon("0");
        assert_eq!(in_state(&sim.status(), "dead"), ["0"]);
        sim.run(&["restart", "0"]).ended(0);
        assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
        let daemon = sim.device("0")["daemon_pid"].clone();
        sim.run(&["down"]).ended(0);
        assert!(!is_alive(&daemon));
        assert_eq!(sim.run_dir(), ["lock"]);
    }
}

/// Takes the lock of a file, says whether that worked, and waits.
const HOLD: &str = "
import fcntl, os, sys, time
try:
    f = open(sys.argv[1], 'r+')
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print('held', flush=True)
except OSError:
    print('no', flush=True)
time.sleep(60)
";

/// `down` does not rely on a file to know that the daemon has ended.
#[test]
fn a_replaced_lock_file_hides_no_living_daemon() {
    needs_root!();
    let sim = Sim::whole(HERS);
    let device = sim.device("0");
    fs::remove_file(sim.pipe_link("0").join("control_lock")).unwrap();
    File::create(sim.pipe_link("0").join("control_lock")).unwrap();
    sim.run(&["down", "--force"]).ended(0);
    assert!(!is_alive(&device["daemon_pid"]) && !is_alive(&device["servers"][0]["pid"]));
}
