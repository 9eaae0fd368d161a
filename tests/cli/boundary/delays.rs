//! A user's processes that stop, are traced, or take their time.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use simnode::harness::can_run;

use super::HERS;
use crate::common::{NOBODY, Ran, Sim, in_state, is_root, shell};
use crate::settings::whole;

/// Clients of a user's device have the time that `--drain` gives them, also where no session can be opened.
#[test]
fn force_with_drain_waits_for_a_users_clients() {
    if !is_root("force_with_drain_waits_for_a_users_clients") {
        return;
    }
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
    assert!(said.contains("done"), "{said}");
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
    if !is_root("a_user_who_traces_her_session_holds_nobody_up") {
        return;
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let test = "a_user_who_traces_her_session_holds_nobody_up";
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

/// A user may stop every process that runs as her: together they delay a change, and its lock, for some seconds.
#[test]
fn a_user_who_stops_her_sessions_delays_a_change_by_seconds() {
    if !is_root("a_user_who_stops_her_sessions_delays_a_change_by_seconds") {
        return;
    }
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
