//! `restart`: a daemon ends, and another one takes its place with the same settings.

use std::fs;

use insta::assert_snapshot;
use rustix::process::Signal;

use simnode::node::ComputeMode;

use testkit::{
    NOBODY, Ran, SMALL, Sim, assert_contains, in_state, is_alive, needs_root, wait_until, whole,
};

/// A profile that says something of everything.
const EVERYTHING: &str = r#"active-thread-percentage = 50, pinned-memory-limit = "2G", cpus = "0", nofile = 4096, max-clients = 8, compute-mode = "exclusive-process""#;

const ANSWERS: &str =
    "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0\n";

/// A whole GPU that is served with all of [`EVERYTHING`], and with a percentage set by hand.
fn set_by_hand() -> Sim {
    let sim = Sim::whole(EVERYTHING);
    sim.run(&["set", "0", "active-thread-percentage=25"])
        .ended(0);
    sim
}

/// Asserts that the daemon has what was set, and that it is known what of it was set by hand.
#[track_caller]
fn is_as_set(sim: &Sim) {
    let device = sim.device("0");
    assert_eq!(device["state"], "ready");
    assert_eq!(sim.ask("0", ANSWERS), "25.0\n2G\n");
    let status = fs::read_to_string(format!("/proc/{}/status", device["daemon_pid"])).unwrap();
    assert_contains(&status, "Cpus_allowed_list:\t0\n");
    let path = sim.profile(&whole(EVERYTHING));
    let drift = sim.run(&["plan", path.to_str().unwrap()]).ended(0).stdout;
    let by_hand = "~ set 1 daemon: 0\n      active-thread-percentage  25 (set by hand) → 50\n";
    assert_contains(&drift, by_hand);
    assert_eq!(mode(sim), ComputeMode::ExclusiveProcess);
}

fn mode(sim: &Sim) -> ComputeMode {
    sim.node.node().state().unwrap().gpus[0].compute_mode
}

#[test]
fn everything_is_kept_and_the_record_says_what_was_set_by_hand() {
    let sim = set_by_hand();
    let before = sim.device("0");
    let dry = sim.run(&["restart", "0", "--dry-run"]).ended(0);
    assert_snapshot!(dry.tidy(), @"
    GPU 0  NVIDIA H200  GPU-…
      - stop 1 daemon: 0
      + start 1 daemon (active-thread-percentage as set by hand): 0

    Plan: restart 1 daemon.
    ");
    assert_eq!(sim.device("0")["daemon_pid"], before["daemon_pid"]);
    let ran = sim.run(&["restart", "0", "--yes"]).ended(0);
    assert_snapshot!(ran.tidy(), @"
    GPU 0  NVIDIA H200  GPU-…
      - stop 1 daemon: 0
      + start 1 daemon (active-thread-percentage as set by hand): 0
    NAME  GPU  PROFILE  STATE  USER  CLIENTS  THREADS  LIMIT  MEMORY GIB  DAEMON  SERVER  SINCE  SERVE  DEVICE
    0  0  whole GPU  ready  -  0/8  25%  2G  0.1/140.4  N  N  Ns  SERVE  GPU-…
    1 device on 1 GPU ready in N s
    ");
    let after = sim.device("0");
    assert_ne!(after["daemon_pid"], before["daemon_pid"]);
    assert!(!is_alive(&before["daemon_pid"]));
    is_as_set(&sim);
    // What the GPU was before is not forgotten.
    sim.run(&["down"]).ended(0);
    assert_eq!(mode(&sim), ComputeMode::Default);
    assert_eq!(sim.run_dir(), ["lock"]);
}

#[test]
fn several_devices_of_several_gpus_and_no_other() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    let pids = || ["0.0", "0.2", "1.0", "1.2"].map(|name| sim.device(name)["daemon_pid"].clone());
    let before = pids();
    let uuid = sim.device("1.2")["uuid"].as_str().unwrap().to_owned();
    let ran = sim.run(&["restart", "0.2", &uuid, "1.2", "--yes"]).ended(0);
    assert_contains(&ran.stdout, "  - stop 2 daemons in all: 0.2, 1.2\n");
    let after = pids();
    let same: Vec<bool> = (0..4).map(|at| before[at] == after[at]).collect();
    assert_eq!(same, [true, false, true, false]);
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    assert_eq!(sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement"), 4);
    sim.up_does_nothing(SMALL);
}

#[test]
fn it_asks_before_it_ends_a_daemon() {
    let sim = Sim::small();
    let before = sim.device("0.2");
    let refused = sim.run(&["restart", "0.2"]).ended(4);
    assert_snapshot!(refused.stderr, @"
    error: confirmation required: this would restart 1 daemon
    hint: pass --yes to confirm
    ");
    let no = sim.answered("restart 0.2", "n\r");
    assert_eq!(no.status, 4, "{}", no.stdout);
    assert_contains(&no.stdout, "This will restart 1 daemon.\nGo on? [y/N]");
    assert_eq!(sim.device("0.2"), before);
    let yes = sim.answered("restart 0.2", "y\r").ended(0);
    assert_contains(&yes.stdout, "ready");
    assert_ne!(sim.device("0.2")["daemon_pid"], before["daemon_pid"]);
}

/// The user who asks for a wait may not be there any more when it is over.
#[test]
fn the_question_comes_before_the_wait_and_once() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let mut restart = sim.dialogue("restart 0.2 --drain 600");
    restart.await_text("This will restart 1 daemon.");
    restart.await_text("Go on?");
    restart.press("y\r");
    restart.await_text("waiting up to");
    assert!(client.finish().status.success());
    let done = restart.end().ended(0).stdout;
    assert_eq!(done.matches("This will").count(), 1, "{done}");
    assert_contains(&done, "ready");
}

/// Seen: somebody who took longer to answer than he was ready to wait was refused at once.
#[test]
fn the_time_at_the_question_is_not_waited() {
    let sim = Sim::small();
    let _client = sim.client("0.2");
    let mut restart = sim.dialogue("restart 0.2 --drain 1");
    restart.await_text("Go on?");
    // All of the time that it would wait passes.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    restart.press("y\r");
    restart.await_text("waiting up to 1 s more");
    restart.end().ended(4);
}

/// Who comes while the question stands is waited for as well, for as long as was said.
#[test]
fn a_client_that_comes_at_the_question_is_waited_for() {
    let sim = Sim::small();
    let ask = |limit: &str| {
        let mut restart = sim.dialogue(&format!("restart 0.2 --drain {limit}"));
        restart.await_text("Go on?");
        restart
    };
    let mut restart = ask("1");
    let client = sim.client("0.2");
    restart.press("y\r");
    restart.await_text("waiting up to");
    restart.end().ended(4);

    assert!(client.finish().status.success());
    let mut restart = ask("600");
    let client = sim.client("0.2");
    restart.press("y\r");
    restart.await_text("waiting up to");
    assert!(client.finish().status.success());
    let done = restart.end().ended(0).stdout;
    assert_eq!(done.matches("This will").count(), 1, "{done}");
}

/// Seen: a question about what had changed was asked under the lock, and nobody else could change anything before
/// it was answered.
#[test]
fn a_second_question_keeps_nobody_waiting() {
    let sim = Sim::small();
    sim.kill_daemon("0.0");
    let mut restart = sim.dialogue("restart 0.0 0.2");
    restart.await_text("This will restart 1 daemon.");
    sim.up(SMALL, &["--yes"]).ended(0);
    restart.press("y\r");
    restart.await_text("The node has changed. The plan is now:");
    restart.await_text("This will restart 2 daemons.");
    sim.run(&["set", "0.2", "max-clients=5"]).ended(0);
    restart.press("n\r");
    restart.end().ended(4);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn clients_are_refused_waited_for_or_ended() {
    let sim = Sim::small();
    let (client, neighbour) = (sim.client("0.2"), sim.client("0.0"));
    let before = sim.device("0.2")["daemon_pid"].clone();
    sim.run(&["restart", "0.2", "--yes"]).ended(4);
    let dry = sim.run(&["restart", "0.2", "--dry-run"]).ended(0);
    assert_snapshot!(dry.tidy(), @"
    GPU 0  NVIDIA A100-SXM4-80GB  GPU-…
      - stop 1 daemon: 0.2
      + start 1 daemon: 0.2
    Undisturbed: 1 client on 0.0

    1 client would be disrupted (refused, unless --drain lets them exit in time or --force ends them):
      0.2: pid N (USER, /tmp/…/node/bin/cuda-app hold)

    Plan: restart 1 daemon (1 client of USER disrupted).
    ");
    let late = sim
        .run(&["restart", "0.2", "--drain", "1", "--yes"])
        .ended(4);
    assert_contains(&late.stderr, "waiting up to 1 s more");
    assert_eq!(sim.device("0.2")["daemon_pid"], before);
    let mut restart = sim.talk(&["restart", "0.2", "--drain", "600", "--yes"]);
    restart.await_text("waiting up to");
    assert!(client.finish().status.success());
    restart.end().ended(0);
    assert_ne!(sim.device("0.2")["daemon_pid"], before);

    let client = sim.client("0.2");
    let ran = sim.run(&["restart", "0.2", "--force", "--yes"]).ended(0);
    let ended = format!("This ends 1 client:\n  0.2: pid {} (", client.pid());
    assert_contains(&ran.stdout, &ended);
    let finished = client.finish();
    assert_contains(&finished.output, "err 810");
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    assert!(neighbour.finish().status.success());
}

#[test]
fn a_dead_daemon_is_started_again_without_a_question() {
    let sim = set_by_hand();
    sim.kill_daemon("0");
    let text = sim.run(&["status"]).ended(0).stdout;
    assert_contains(
        &text,
        "0: its daemon has died: run `mig-mps restart 0` to start it again, or `mig-mps down 0` to remove what it left",
    );
    let ran = sim.run(&["restart", "0"]).ended(0);
    assert_contains(
        &ran.stdout,
        "  + start 1 daemon (its daemon has died; active-thread-percentage as set by hand): 0\n",
    );
    is_as_set(&sim);
}

#[test]
fn an_orphan_is_ended_by_force_alone() {
    let sim = Sim::small();
    let device = sim.device("0.2");
    fs::remove_dir_all(device["pipe_directory"].as_str().unwrap()).unwrap();
    let status = sim.run(&["status"]).ended(0).stdout;
    let cure = "run `mig-mps restart 0.2 --force` to start another daemon";
    assert_contains(&status, cure);
    let refused = sim.run(&["restart", "0.2", "--yes"]).ended(4);
    assert_snapshot!(refused.stderr, @"
    error: the daemon of device 0.2 cannot be asked for its clients: its pipe directory was removed
    hint: run `mig-mps restart 0.2 --force` to start another daemon
    ");
    assert!(is_alive(&device["daemon_pid"]));
    sim.run(&["restart", "0.2", "--force", "--yes"]).ended(0);
    assert!(!is_alive(&device["daemon_pid"]));
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

/// Its process and its lock say that it lives, whatever lies in the sockets' places.
#[test]
fn a_daemon_without_its_sockets_is_not_called_dead() {
    let sim = Sim::small();
    let before = sim.device("0.2");
    let pipe = std::path::Path::new(before["pipe_directory"].as_str().unwrap());
    // The other one answers root, and programs do not find it.
    fs::remove_file(pipe.join("control")).unwrap();
    assert_eq!(in_state(&sim.status(), "no answer"), ["0.2"]);
    fs::remove_file(pipe.join("control_privileged")).unwrap();
    let status = sim.run(&["status"]).ended(0).stdout;
    let problem = format!(
        "0.2: its daemon (pid {}) does not answer: no program reaches it by its socket; run `mig-mps restart 0.2 --force` to start another daemon",
        before["daemon_pid"]
    );
    assert_contains(&status, &problem);
    // Whether it has clients is not known.
    for args in [&["restart", "0.2", "--yes"][..], &["down", "0.2", "--yes"]] {
        let ran = sim.run(args).ended(4);
        assert_contains(&ran.stderr, "it does not answer");
    }
    assert!(is_alive(&before["daemon_pid"]));
    sim.run(&["restart", "0.2", "--force", "--yes"]).ended(0);
    assert!(!is_alive(&before["daemon_pid"]));
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

/// The server says FAULT though nobody is left, and does not end when it is asked to: as long as there is a file.
#[test]
fn a_fault_that_does_not_clear_is_cured() {
    let sim = Sim::small();
    let stuck = sim.node.dir().join("stuck");
    fs::write(&stuck, "").unwrap();
    let script = format!(
        r#"case " $* " in *" -d "*) exec "$real" "$@";; esac
[ -e {stuck} ] || exec "$real" "$@"
commands=$(cat)
case "$commands" in "quit"*) rm {stuck}; exec "$real" <<END
$commands
END
esac
echo "$commands" | "$real" "$@" | sed 's/^ACTIVE$/FAULT/'"#,
        stuck = stuck.display()
    );
    let control = sim.control_script(&script);
    let before = sim.device("0.2");
    let mut restart = sim.command(&["restart", "0.2", "--yes"]);
    let path = format!("{}:/usr/bin:/bin", sim.node.dir().join("bin").display());
    let ran = Ran::of(restart.env("MIG_MPS_CONTROL", &control).env("PATH", path)).ended(0);
    assert_contains(
        &ran.stdout,
        "- stop 1 daemon (a GPU fault that has not cleared): 0.2",
    );
    assert!(!is_alive(&before["daemon_pid"]));
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

/// FAULT while the client is there: it is one like any other.
#[test]
fn a_fault_whose_client_lives_is_refused() {
    let sim = Sim::small();
    let [_, client] = sim.faulty("0.2");
    let refused = sim.run(&["restart", "0.2", "--yes"]).ended(4);
    assert_contains(&refused.stdout, "a GPU fault");
    let client = format!("0.2: pid {} (", client.pid());
    assert_contains(&refused.stderr, &client);
    let before = sim.device("0.2")["servers"].clone();
    sim.run(&["restart", "0.2", "--yes", "--force"]).ended(0);
    assert_ne!(sim.device("0.2")["servers"], before);
    assert_eq!(sim.device("0.2")["state"], "ready");
}

#[test]
fn a_start_that_fails_is_rolled_back() {
    let sim = set_by_hand();
    let before = sim.device("0")["daemon_pid"].clone();
    sim.node.fault("daemon start").fails(3).unwrap();
    let ran = sim.run(&["restart", "0", "--yes"]).ended(1);
    assert_snapshot!(ran.tidy(), @"
    GPU 0  NVIDIA H200  GPU-…
      - stop 1 daemon: 0
      + start 1 daemon (active-thread-percentage as set by hand): 0
    GPU 0: undoing the changes
    error: GPU 0 (GPU-…): cannot start the daemon of 0
      cause: the control daemon of GPU-… did not start (exit status 3): it printed nothing
    earlier changes were undone (1 step)
    hint: run `mig-mps doctor` to find known causes; the complete logs are in /tmp/…/log/GPU-…
    ");
    assert!(!is_alive(&before));
    is_as_set(&sim);
    sim.run(&["down"]).ended(0);
    assert_eq!(mode(&sim), ComputeMode::Default);
}

/// Who was ended for it is not brought back, and that is said.
#[test]
fn a_start_that_fails_after_clients_were_ended_says_so() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    sim.node.fault("daemon start").fails(3).unwrap();
    let ran = sim.run(&["restart", "0.2", "--force", "--yes"]).ended(1);
    let said = "earlier changes were undone (1 step), but 1 client was lost\n";
    assert_contains(&ran.stderr, said);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    drop(client);
}

/// The third outcome: nothing starts. What the device is to be is not forgotten, and the next restart finishes.
#[test]
fn where_nothing_starts_the_next_restart_finishes() {
    let sim = set_by_hand();
    sim.node.fault("daemon start").every().fails(3).unwrap();
    let ran = sim.run(&["restart", "0", "--yes"]).ended(1);
    assert_contains(&ran.stderr, "\nnot restored: GPU 0 (GPU-");
    let hint = "hint: run the same command again to continue\n";
    assert!(ran.stderr.ends_with(hint), "{}", ran.stderr);
    assert_eq!(mode(&sim), ComputeMode::Default);
    let text = sim.run(&["status"]).ended(0).stdout;
    assert_contains(
        &text,
        "0: an interrupted change has left it without a daemon: run `mig-mps restart 0` to start it again",
    );
    // One that is dead already has nothing to go back to.
    let ran = sim.run(&["restart", "0"]).ended(1);
    assert!(!ran.stderr.contains("missing"), "{}", ran.stderr);
    sim.node.node().clear_faults().unwrap();
    sim.run(&["restart", "0"]).ended(0);
    is_as_set(&sim);
    sim.run(&["down"]).ended(0);
    assert_eq!(mode(&sim), ComputeMode::Default);
    assert_eq!(sim.run_dir(), ["lock"]);
}

/// With several devices, one that fails brings back the others too.
#[test]
fn one_that_fails_brings_all_back() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    sim.node.fault("daemon start").nth(2).fails(3).unwrap();
    sim.run(&["restart", "0.0", "0.2", "1.0", "--yes"]).ended(1);
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    sim.up_does_nothing(SMALL);
}

#[test]
fn ctrl_c_in_between_brings_it_back_and_it_can_be_run_again() {
    let sim = set_by_hand();
    let before = sim.device("0")["daemon_pid"].clone();
    let start = sim.node.fault("daemon start").waits().unwrap();
    let mut restart = sim.talk(&["restart", "0", "--yes"]);
    sim.await_event("fault", 1);
    restart.signal(Signal::INT);
    restart.await_text("interrupted: stopping at the next safe point");
    drop(start);
    assert_contains(&restart.end().ended(130).stdout, "error: interrupted");
    assert!(!is_alive(&before));
    is_as_set(&sim);
    let before = sim.device("0")["daemon_pid"].clone();
    sim.run(&["restart", "0", "--yes"]).ended(0);
    assert_ne!(sim.device("0")["daemon_pid"], before);
    is_as_set(&sim);
}

#[test]
fn one_that_was_killed_in_between_is_gone_on_with() {
    let sim = set_by_hand();
    sim.node.fault("daemon start").kills().unwrap();
    let killed = sim.run(&["restart", "0", "--yes"]);
    assert_eq!(killed.status, -1, "{}{}", killed.stdout, killed.stderr);
    // As long as what was to become the daemon is there, it is taken for one.
    let events = sim.node.events();
    let fault = events.iter().find(|event| event.what == "fault").unwrap();
    wait_until("the control program ends", || !is_alive(fault.pid));
    let status = sim.run(&["status"]).ended(0).stdout;
    assert_contains(
        &status,
        "an interrupted change has left it without a daemon",
    );
    let ran = sim.run(&["restart", "0"]).ended(0);
    assert!(
        ran.stderr
            .starts_with("note: an earlier run was interrupted: "),
        "{}",
        ran.stderr
    );
    is_as_set(&sim);
    sim.run(&["down"]).ended(0);
    assert_eq!(mode(&sim), ComputeMode::Default);
}

#[test]
fn what_cannot_be_restarted_is_refused() {
    let sim = Sim::small();
    sim.run(&["down", "0.0", "--destroy-mig", "--yes"]).ended(0);
    sim.run(&["restart"]).ended(2);
    sim.run(&["restart", "0.9", "--yes"]).ended(2);
    sim.run(&["restart", "0.2", "0.0", "--yes"]).ended(2);
    // What one of the devices does not allow happens to none.
    assert_eq!(sim.happened("daemon end"), 1);
    sim.node.node().reboot().unwrap();
    sim.run(&["restart", "0.2"]).ended(4);
}

/// Nobody else would tell of it: the journal of the change that was killed is closed by the next one, whatever comes
/// of that.
#[test]
fn a_start_that_nobody_finishes_is_reported_with_its_cure() {
    let sim = Sim::small();
    let set = "set_default_active_thread_percentage";
    sim.node.fault(set).kills().unwrap();
    let _ = sim.run(&["restart", "0.2", "--yes"]);
    sim.run(&["restart", "0.2"]).ended(4);
    let status = sim.run(&["status", "--exit-code"]).ended(3).stdout;
    let said = "0.2: an interrupted change left it unfinished: run `up` to continue, or `mig-mps restart 0.2` to start it again";
    assert_contains(&status, said);
    assert!(!status.contains("interrupted: "), "{status}");
    sim.run(&["restart", "0.2", "--yes"]).ended(0);
    sim.run(&["status", "--exit-code"]).ended(0);
}

/// A device's user owns its pipe directory, and may put anything there.
#[test]
fn what_a_user_has_put_beside_the_sockets_is_in_nobodys_way() {
    needs_root!();
    let sim = Sim::whole(r#"serve = "user:nobody""#);
    let before = sim.device("0");
    let planted = format!("{}/notes", before["pipe_directory"].as_str().unwrap());
    fs::write(&planted, "").unwrap();
    sim.run(&["restart", "0", "--yes"]).ended(0);
    let after = sim.device("0");
    assert_ne!(after["daemon_pid"], before["daemon_pid"]);
    assert_eq!(
        (&after["state"], &after["servers"][0]["uid"]),
        (&"ready".into(), &NOBODY.into())
    );
    assert!(fs::exists(&planted).unwrap());
}

#[test]
fn a_plain_user_restarts_his_own_and_not_roots() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(""));
    Ran::of(&mut sim.by_nobody(&["up", profile.to_str().unwrap()])).ended(0);
    let device = || Ran::of(&mut sim.by_nobody(&["status", "--json"])).json()["devices"][0].clone();
    let before = device();
    Ran::of(&mut sim.by_nobody(&["restart", "0", "--yes"])).ended(0);
    let after = device();
    assert_ne!(after["daemon_pid"], before["daemon_pid"]);
    assert_eq!(
        (&after["state"], &after["servers"][0]["uid"]),
        (&"ready".into(), &NOBODY.into())
    );
    Ran::of(&mut sim.by_nobody(&["down"])).ended(0);

    sim.up(&whole(""), &[]).ended(0);
    let before = sim.device("0");
    let refused = Ran::of(
        sim.by_nobody(&["restart", "0", "--yes"])
            .env("MIG_MPS_RUN_DIR", sim.node.run_dir())
            .env("MIG_MPS_LOG_DIR", sim.node.log_dir()),
    )
    .ended(1);
    assert_contains(&refused.stderr, "only root can change this node");
    assert_eq!(sim.device("0"), before);
}

/// A user who may use a device writes into its server.log, and its end is quoted where a server does not start.
#[test]
fn what_a_log_says_does_not_steer_the_terminal() {
    let sim = Sim::with("a100-80gb", 1);
    // The daemon writes its pipe directory into its log: a way to have such a line there in time.
    let evil = sim.node.run_dir().with_file_name("\u{1b}[2J");
    let command = |args: &[&str]| {
        let mut command = sim.command(args);
        command.env("MIG_MPS_RUN_DIR", &evil);
        command
    };
    let profile = sim.profile(SMALL);
    Ran::of(&mut command(&["up", profile.to_str().unwrap()])).ended(0);
    sim.node.fault("server start").every().fails(1).unwrap();
    let ran = Ran::of(&mut command(&["restart", "0.0", "--yes"])).ended(1);
    assert_contains(&ran.stderr, r"set env CUDA_MPS_PIPE_DIRECTORY=");
    assert_contains(&ran.stderr, r"\x1b[2J");
    assert!(!ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
}
