//! Log directories that a user can write to.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::Command;

use testkit::{
    NOBODY, Ran, Sim, assert_contains, has_python, in_state, is_root, needs_root, shell, whole,
};

use super::{HERS, control_that};

/// FIFOs and directories in place of logs hold up neither a start nor `status`.
#[test]
fn a_fifo_as_a_log_holds_nobody_up() {
    needs_root!();
    let sim = Sim::whole(HERS);
    let uuid = sim.uuid("0");
    sim.run(&["down"]).ended(0);
    let log = sim.node.log_dir().join(uuid);
    for name in ["control.log", "server.log"] {
        fs::remove_file(log.join(name)).unwrap();
        shell(format!(
            "mkfifo {0}; chown nobody {0}",
            log.join(name).display()
        ))
        .ended(0);
    }
    sim.up(&whole(HERS), &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.run(&["down"]).ended(0);
}

/// She has the time between the check of her logs and her daemon's start: what she puts there then holds `up` for a
/// short while, and is named.
#[test]
fn a_fifo_that_comes_between_check_and_start_is_named() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let swap = "cd $CUDA_MPS_LOG_DIRECTORY && rm -f control.log && mkfifo control.log; cd /";
    let control = control_that(&sim, swap);
    let profile = sim.profile(&whole(HERS));
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &control)).ended(1);
    assert_contains(
        &ran.stderr,
        "control.log is a FIFO that nobody has put there",
    );
    sim.up(&whole(HERS), &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// She may also take every name under which a FIFO would be put aside: that is said, and nothing waits for it.
#[test]
fn a_fifo_that_cannot_be_put_aside_is_refused_at_once() {
    needs_root!();
    let sim = Sim::whole(HERS);
    let uuid = sim.uuid("0");
    sim.run(&["down"]).ended(0);
    let log = sim.node.log_dir().join(uuid).join("control.log");
    fs::remove_file(&log).unwrap();
    shell(format!("mkfifo {0}; chown nobody {0}", log.display())).ended(0);
    for number in 1..=u16::MAX {
        File::create(format!("{}.no-file.{number}", log.display())).unwrap();
    }
    let ran = sim.up(&whole(HERS), &[]).ended(1);
    let said = format!(
        "{0} is not a regular file, and no name is left to put it aside under: remove it, or {0}.no-file.*",
        log.display()
    );
    assert_contains(&ran.stderr, &said);
    fs::remove_file(&log).unwrap();
    sim.up(&whole(HERS), &[]).ended(0);
}

/// A user's daemon may say that its logs are anywhere: root reads those of its device.
#[test]
fn logs_are_not_where_a_users_daemon_says() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let other = sim.node.dir().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("server.log"), "a line of somebody else's\n").unwrap();
    fs::write(other.join("control.log"), "").unwrap();
    let control = sim.control_script(&format!(
        "[ -z \"$CUDA_MPS_LOG_DIRECTORY\" ] || export CUDA_MPS_LOG_DIRECTORY={}\nexec $real \"$@\"",
        other.display(),
    ));
    for (serve, is_shown) in [(HERS, false), ("", true)] {
        let profile = sim.profile(&whole(serve));
        let mut up = sim.command(&["up", profile.to_str().unwrap(), "--yes"]);
        Ran::of(up.env("MIG_MPS_CONTROL", &control)).ended(0);
        let logs = sim.run(&["logs", "0"]);
        assert_eq!(
            logs.stdout.contains("somebody else's"),
            is_shown,
            "{serve}: {}{}",
            logs.stdout,
            logs.stderr
        );
    }
}

/// Directories that a user nests deeply are removed with her logs, and save nobody else's.
#[test]
fn purge_removes_logs_however_deeply_directories_are_nested() {
    let test = "purge_removes_logs_however_deeply_directories_are_nested";
    if !is_root(test) || !has_python(test) {
        return;
    }
    let sim = Sim::with("h200", 2);
    sim.up(
        "[mps]\nserve = \"user:nobody\"\n[[gpu]]\nselect = { all = true }\nmig = false\n",
        &[],
    )
    .ended(0);
    for name in ["0", "1"] {
        let uuid = sim.uuid(name);
        let nest = "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range(1000):\n    os.mkdir('d'); os.mkdir('e'); os.chdir('d')\n";
        let mut python = Command::new("python3");
        python.args(["-c", nest]).arg(sim.node.log_dir().join(uuid));
        Ran::of(python.uid(NOBODY).gid(NOBODY)).ended(0);
    }
    sim.run(&["down", "--purge"]).ended(0);
    assert_eq!(fs::read_dir(sim.node.log_dir()).unwrap().count(), 0);
}
