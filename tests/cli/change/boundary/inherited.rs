//! Things that a daemon or a session of a user's could inherit from root.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;
use testkit::{
    Ran, Sim, assert_contains, can_run, has_python, in_state, is_root, needs_root, shell, terminal,
    under, whole,
};

use super::HERS;

/// A field of `/proc/PID/stat` after the name.
fn stat(pid: &Value, field: usize) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let tail = stat.rsplit(')').next().unwrap();
    tail.split_whitespace().nth(field).unwrap().to_owned()
}

/// A shell script run as root on a terminal of its own.
fn on_a_terminal(sim: &Sim, script: &str) -> Ran {
    Ran::of(terminal(script).env_clear().envs(sim.node.env()))
}

/// A control program that says what it holds before it becomes the real one.
fn spying_control(sim: &Sim) -> PathBuf {
    let report = sim.node.dir().join("report");
    File::create(&report).unwrap();
    fs::set_permissions(&report, fs::Permissions::from_mode(0o666)).unwrap();
    sim.control_script(&format!(
        "{{ echo \"uid $(id -u) session $(cut -d' ' -f6 /proc/$$/stat | sed \"s/^$$\\$/own/\") \
         terminal $(cut -d' ' -f7 /proc/$$/stat) secrets $(ls -l /proc/$$/fd | grep -c -e secret -e pts) umask $(umask) cwd $(pwd) \
         ignored $(grep SigIgn /proc/$$/status | cut -f2) keys $(grep mig-mps-key /proc/keys | grep -vc \" $(id -u) \")\"; }} >>{}\nexec $real \"$@\"",
        report.display(),
    ))
}

/// Becomes a program whose session keyring has a key, where the kernel keeps keys.
const WITH_A_KEY: &str = r#"
import ctypes, os, sys
if os.path.exists("/proc/keys"):
    libc = ctypes.CDLL(None, use_errno=True)
    KEYCTL, ADD_KEY = {"x86_64": (250, 248), "aarch64": (219, 217)}[os.uname().machine]
    if libc.syscall(KEYCTL, 1, None) < 0 or libc.syscall(ADD_KEY, b"user", b"mig-mps-key", b"secret", 6, -3) < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Neither a daemon nor the server of a user, nor a session, has root's terminal, open files, signals or directory.
#[test]
fn children_hold_nothing_of_roots() {
    let test = "children_hold_nothing_of_roots";
    if !is_root(test) || !has_python(test) {
        return;
    }
    for serve in ["", HERS] {
        let sim = Sim::with("h200", 1);
        let spy = spying_control(&sim);
        let secret = sim.node.dir().join("secret");
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let profile = sim.profile(&whole(serve));
        let program = sim.program();
        let script = format!(
            "exec 7<{}; umask 077; trap '' USR1 CHLD; cd /tmp; MIG_MPS_CONTROL={} \
             python3 -c '{WITH_A_KEY}' {program} up {} --yes",
            secret.display(),
            spy.display(),
            profile.display(),
        );
        let ran = on_a_terminal(&sim, &script);
        assert_eq!(ran.status, 0, "{}", ran.stdout);
        let report = fs::read_to_string(sim.node.dir().join("report")).unwrap();
        assert!(
            report.lines().count() >= 2,
            "a daemon and a session: {report}"
        );
        for line in report.lines() {
            let expected = "uid 0 session own terminal 0 secrets 0 umask 0022 cwd / ignored 0000000000000000 keys 0";
            assert_eq!(line, expected, "{serve}");
        }
        // The processes that stay.
        let device = sim.device("0");
        for pid in [&device["daemon_pid"], &device["servers"][0]["pid"]] {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let files: Vec<PathBuf> = open
                .filter_map(|fd| fs::read_link(fd.path()).ok())
                .collect();
            assert!(!files.contains(&secret), "{serve}: {files:?}");
            assert!(
                !files.iter().any(|file| file.starts_with("/dev/pts")),
                "{files:?}"
            );
            assert_eq!(stat(pid, 4), "0", "a terminal");
        }
    }
}

/// The kernel takes the highest number for "no change", and no user has it.
#[test]
fn a_sudo_user_who_is_none_is_not_served() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(""));
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    Ran::of(up.env("SUDO_UID", u32::MAX.to_string())).ended(0);
    assert_eq!(sim.device("0")["servers"][0]["uid"], 0);
}

/// A time namespace changes the start times in `/proc`, by which processes are known.
#[test]
fn a_time_namespace_hides_no_daemon() {
    const NAMESPACE: [&str; 4] = ["unshare", "--time", "--boottime", "100000000"];
    let test = "a_time_namespace_hides_no_daemon";
    if !is_root(test) {
        return;
    }
    let works = shell([&NAMESPACE[..], &["true"]].concat().join(" ")).status == 0;
    if !can_run(test, works, "no time namespaces") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let within = |words: &[&str]| Ran::of(&mut under(&NAMESPACE, &sim.command(words)));
    let path = sim.profile(&whole(""));
    let path = path.to_str().unwrap();
    sim.run(&["up", path]).ended(0);
    let inside = within(&["status", "--json"]).json();
    assert_eq!(in_state(&inside, "ready"), ["0"], "{inside:#}");
    let again = within(&["up", path]).ended(0);
    assert_contains(&again.stderr, "Nothing to do");
    // The other way round.
    sim.run(&["down"]).ended(0);
    within(&["up", path]).ended(0);
    let outside = sim.status();
    assert_eq!(in_state(&outside, "ready"), ["0"], "{outside:#}");
    sim.run(&["down"]).ended(0);
}
