//! A user's processes that stop, are traced, or take their time.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use testkit::{
    NOBODY, Ran, Sim, assert_contains, can_run, has_python, in_state, is_root, needs_root, shell,
    whole,
};

use super::HERS;

/// Clients of a user's device have the time that `--drain` gives them, also where no session can be opened.
#[test]
fn force_with_drain_waits_for_a_users_clients() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let mut app = sim.node.program("cuda-app");
    app.args(["run", "2"])
        .env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe_link("0"));
    let app = app
        .uid(NOBODY)
        .gid(NOBODY)
        .stdout(std::process::Stdio::piped());
    let app = app.spawn().unwrap();
    while sim.device("0")["client_count"] != 1 {
        std::thread::yield_now();
    }
    sim.run(&["down", "--drain", "30", "--force"]).ended(0);
    let output = app.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_contains(&said, "done");
}

/// Traces a process and never takes its exit status.
const TRACE: &str = r"
import ctypes, os, sys, time
os.setsid()
SEIZE = 0x4206
ctypes.CDLL(None).ptrace(SEIZE, int(sys.argv[1]), None, None)
time.sleep(120)
";

/// A user may trace what runs as her, and keep its exit status from whoever started it: root does not wait for that.
#[test]
fn a_user_who_traces_her_session_holds_nobody_up() {
    let test = "a_user_who_traces_her_session_holds_nobody_up";
    if !is_root(test) || !has_python(test) {
        return;
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let is_free = matches!(scope.trim(), "" | "0");
    if !can_run(test, is_free, "this kernel does not let a user trace") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let tracers = sim.node.dir().join("tracers");
    File::create(&tracers).unwrap();
    fs::set_permissions(&tracers, fs::Permissions::from_mode(0o666)).unwrap();
    let control = sim.control_script(&format!(
        "python3 -c '{TRACE}' $$ </dev/null >/dev/null 2>&1 &\necho $! >>{}\n\
         while grep -q 'TracerPid:.0$' /proc/$$/status; do sleep 0.01; done\nexec $real \"$@\"",
        tracers.display(),
    ));
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let mut set = Command::new("timeout");
    set.args(["-s", "KILL", "60", &program, "set", "0", "max-clients=3"]);
    set.arg("active-thread-percentage=50");
    set.env_clear().envs(sim.node.env());
    let ran = Ran::of(set.env("MIG_MPS_CONTROL", &control));
    for tracer in fs::read_to_string(&tracers).unwrap().lines() {
        shell(format!("kill -9 {tracer}")).ended(0);
    }
    // Not killed by `timeout`.
    assert_eq!(ran.status, 4, "{ran:?}");
    sim.run(&["down"]).ended(0);
}

/// Refusals and the wait for an answer come out of the same ten seconds.
#[test]
fn a_users_ten_seconds_are_ten_together() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let since = sim.node.dir().join("since");
    File::create(&since).unwrap();
    fs::set_permissions(&since, fs::Permissions::from_mode(0o666)).unwrap();
    // Whoever changes a setting is refused for four seconds, and then not answered.
    let control = sim.control_script(&format!(
        "input=$(cat)\ncase $input in *set_default*)\n\
         [ -s {since} ] || date +%s >{since}\n\
         [ $(($(date +%s) - $(cat {since}))) -lt 4 ] && exit 0\n\
         exec sleep 600\nesac\nprintf '%s\\n' \"$input\" | $real",
        since = since.display(),
    ));
    let mut set = sim.command(&["set", "0", "active-thread-percentage=50"]);
    let ran = Ran::of(set.env("MIG_MPS_CONTROL", &control)).ended(1);
    let (_, said) = ran.stderr.split_once("did not answer within ").unwrap();
    let seconds: f64 = said.split_once("s ").unwrap().0.parse().unwrap();
    assert!(seconds <= 7.0, "{}", ran.stderr);
}

/// What is in the place of her directory does not decide who runs a session.
#[test]
fn a_session_with_a_users_daemon_never_runs_as_root() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let shared = sim.node.dir().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let control = sim.control_script(&format!(
        "cd {}\nid -u >>users-$(id -u)\ninput=$(cat)\nprintf '%s\\n' \"$input\" | $real\n\
         case $input in *set_default*) touch asked; while [ ! -e moved ]; do sleep 0.01; done; esac",
        shared.display(),
    ));
    let mut set = sim.command(&["set", "0", "active-thread-percentage=50"]);
    set.env("MIG_MPS_CONTROL", &control);
    let set = std::thread::spawn(move || Ran::of(&mut set));
    while !shared.join("asked").exists() && !set.is_finished() {
        std::thread::yield_now();
    }
    let device = sim
        .node
        .run_dir()
        .join(sim.device("0")["uuid"].as_str().unwrap());
    fs::rename(device.join("pipe"), device.join("away")).unwrap();
    let sessions = || fs::read_to_string(shared.join(format!("users-{NOBODY}"))).unwrap();
    let before = sessions().len();
    File::create(shared.join("moved")).unwrap();
    let ran = set.join().unwrap();
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(sessions().len() > before, "more sessions followed");
    assert!(!shared.join("users-0").exists(), "{ran:?}");
}

/// A user may stop every process that runs as her: together they delay a change, and its lock, for some seconds.
#[test]
fn a_user_who_stops_her_sessions_delays_a_change_by_seconds() {
    needs_root!();
    let sim = Sim::with("h200", 3);
    let control = sim
        .control_script("[ \"$1\" = -d ] || [ $(id -u) = 0 ] || kill -STOP $$\nexec $real \"$@\"");
    let profile = sim.profile(
        "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\nmps = { serve = \"user:nobody\" }\n\
         [[gpu]]\nselect = { index = [2] }\nmig = false\n",
    );
    let begun = std::time::Instant::now();
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &control));
    let elapsed = begun.elapsed();
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(elapsed.as_secs() < 25, "{elapsed:?}");
    assert_eq!(in_state(&sim.status(), "ready"), ["2"]);
    // Once she lets them go on, everything is as the profile says.
    sim.up(&fs::read_to_string(&profile).unwrap(), &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 3);
    let begun = std::time::Instant::now();
    let mut restart = sim.command(&["restart", "0", "--yes"]);
    let ran = Ran::of(restart.env("MIG_MPS_CONTROL", &control));
    let elapsed = begun.elapsed();
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(elapsed.as_secs() < 25, "{elapsed:?}");
}
