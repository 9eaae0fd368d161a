//! A user's processes that stop, are traced, or take their time.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;

use testkit::{
    NOBODY, Ran, Sim, assert_contains, can_run, has_python, in_state, is_root, needs_root, shell,
    under, wait_until,
};

use super::HERS;

/// Clients of a user's device have the time that `--drain` gives them, also where no session can be opened.
#[test]
fn force_with_drain_waits_for_a_users_clients() {
    needs_root!();
    let sim = Sim::whole(HERS);
    let mut app = sim.app_of_nobody("0", &["hold"]);
    app.wait_up();
    let mut down = sim.talk(&["down", "--drain", "600", "--force"]);
    down.await_text("waits for");
    let finished = app.finish();
    assert!(finished.status.success(), "{}", finished.output);
    let _ = down.end().ended(0);
}

/// Traces a process and never takes its exit status.
const TRACE: &str = r"
import ctypes, os, sys, time
os.setsid()
SEIZE = 0x4206
ctypes.CDLL(None).ptrace(SEIZE, int(sys.argv[1]), None, None)
time.sleep(120)
";

/// A user may trace what runs as her, and keep its exit status from the process that started it: root does not wait for
/// that.
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
    let sim = Sim::whole(HERS);
    let tracers = sim.node.dir().join("tracers");
    File::create(&tracers).unwrap();
    fs::set_permissions(&tracers, fs::Permissions::from_mode(0o666)).unwrap();
    let control = sim.control_script(&format!(
        "python3 -c '{TRACE}' $$ </dev/null >/dev/null 2>&1 &\necho $! >>{}\n\
         while grep -q 'TracerPid:.0$' /proc/$$/status; do sleep 0.01; done\nexec $real \"$@\"",
        tracers.display(),
    ));
    let mut set = sim.command(&["set", "0", "max-clients=3", "active-thread-percentage=50"]);
    set.env("MIG_MPS_CONTROL", &control);
    let ran = Ran::of(&mut under(&["timeout", "-s", "KILL", "60"], &set));
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
    let sim = Sim::whole(HERS);
    let since = sim.node.dir().join("since");
    File::create(&since).unwrap();
    fs::set_permissions(&since, fs::Permissions::from_mode(0o666)).unwrap();
    // A session that changes a setting is refused for four seconds, and then not answered.
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

/// Nothing in the place of her directory decides who runs a session.
#[test]
fn a_session_with_a_users_daemon_never_runs_as_root() {
    needs_root!();
    let sim = Sim::whole(HERS);
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
    wait_until("a setting is asked for", || {
        shared.join("asked").exists() || set.is_finished()
    });
    let device = sim.node.run_dir().join(sim.uuid("0"));
    fs::rename(device.join("pipe"), device.join("away")).unwrap();
    let sessions = || fs::read_to_string(shared.join(format!("users-{NOBODY}"))).unwrap();
    let before = sessions().len();
    File::create(shared.join("moved")).unwrap();
    let ran = set.join().unwrap();
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(sessions().len() > before, "more sessions followed");
    assert!(!shared.join("users-0").exists(), "{ran:?}");
}

/// Runs a command whose sessions as a user stop. Returns how long it waited for each, as the trace has it.
fn with_stopped_sessions(sim: &Sim, args: &[&str]) -> Vec<String> {
    let control = sim
        .control_script("[ \"$1\" = -d ] || [ $(id -u) = 0 ] || kill -STOP $$\nexec $real \"$@\"");
    let trace = sim.node.dir().join("trace");
    let mut command = sim.command(args);
    command
        .env("MIG_MPS_CONTROL", &control)
        .env("MIG_MPS_LOG", &trace);
    let ran = Ran::of(&mut command).ended(1);
    assert_contains(&ran.stderr, "did not answer within 10s and was ended");
    let trace = fs::read_to_string(trace).unwrap();
    let sessions = trace.lines().filter(|line| line.contains(" mps: "));
    let waited = sessions.filter_map(|line| line.split_once("did not answer within "));
    waited
        .map(|(_, waited)| waited.split(' ').next().unwrap().to_owned())
        .collect()
}

/// Asserts that there were later sessions, and about a second for each.
#[track_caller]
fn are_short(waited: &[String]) {
    let is_short =
        |time: &String| time.ends_with("ms") || time.starts_with("1s") || time.starts_with("1.");
    assert!(
        !waited.is_empty() && waited.iter().all(is_short),
        "{waited:?}"
    );
}

/// A user may stop every process that runs as her: after the first ones, which begin together, a change has about a second
/// for each.
#[test]
fn a_user_who_stops_her_sessions_delays_up_by_seconds() {
    needs_root!();
    let sim = Sim::with("h200", 3);
    let text = "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\nmps = { serve = \"user:nobody\" }\n\
                [[gpu]]\nselect = { index = [2] }\nmig = false\n";
    let profile = sim.profile(text);
    let waited = with_stopped_sessions(&sim, &["up", profile.to_str().unwrap()]);
    assert_eq!(waited[..2], ["10s", "10s"]);
    are_short(&waited[2..]);
    assert_eq!(in_state(&sim.status(), "ready"), ["2"]);
    // Once she lets them go on, everything is as the profile says.
    sim.up(text, &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 3);
}

#[test]
fn a_user_who_stops_her_sessions_delays_a_restart_by_seconds() {
    needs_root!();
    let sim = Sim::whole(HERS);
    let waited = with_stopped_sessions(&sim, &["restart", "0", "--yes"]);
    are_short(&waited[1..]);
}
