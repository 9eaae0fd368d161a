//! `--no-new`: a device that changes admits no new programs while those that run are waited for.

use std::fs::{self, File};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use testkit::{
    App, Dialogue, ONE_EACH, SMALL, Sim, assert_contains, in_state, kill, wait_until, whole,
};

/// Three devices of one GPU.
pub(super) const LAB: &str = "[[gpu]]\nselect = { all = true }\ndevices = [ { name = \"class\", profile = \"3g\", mps = { serve = \"all\" } }, \
                   { name = \"job-{n}\", profile = \"1g\", count = 2, mps = { serve = \"all\" } } ]\n";

pub(super) fn lab() -> Sim {
    Sim::served("h200", 1, LAB)
}

/// Starts a command, and waits until it has closed this device.
#[track_caller]
pub(super) fn closing(sim: &Sim, device: &str, args: &[&str]) -> Dialogue {
    let mut change = sim.talk(&[args, &["--no-new", "--yes"]].concat());
    change.await_text("note: closed ");
    assert_eq!(sim.device(device)["state"], "closing");
    change
}

/// Asserts that a new program gets error 805, and not the device outside MPS.
#[track_caller]
pub(super) fn is_refused(sim: &Sim, device: &str) {
    let refused = sim.app(device, &["run", "0"]).finish();
    assert_contains(&refused.output, "err 805");
}

#[track_caller]
pub(super) fn finishes(client: App) {
    let finished = client.finish();
    assert!(finished.status.success(), "{}", finished.output);
}

pub(super) fn record(sim: &Sim, device: &str) -> Value {
    let path = sim
        .node
        .run_dir()
        .join(sim.uuid(device))
        .join("device.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn restart_waits_behind_a_closed_door_and_the_others_stay_open() {
    let sim = lab();
    let before = sim.device("class");
    let client = sim.client("class");
    let restart = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
    is_refused(&sim, "class");
    let ran = sim.run(&["run", "class", "--", "true"]).ended(125);
    assert_contains(
        &ran.stderr,
        "device class is closed to new programs by root since 20",
    );
    assert_contains(&ran.stderr, "hint: wait for the device with --wait 5m\n");
    finishes(sim.client("job-0"));
    let any = sim.run(&["run", "--any", "--", "true"]).ended(0).stderr;
    assert!(!any.contains("class"), "{any}");
    let env = sim.run(&["env", "class"]).ended(0).stderr;
    assert_contains(&env, "device class is closed to new programs by root");
    assert_eq!(sim.device("class")["closing"]["is_reopened"], true);
    // It is no problem, and no drift.
    let status = sim.run(&["status", "--exit-code"]).ended(0).stdout;
    assert_contains(
        &status,
        "1 client still running: when its programs have exited, a new daemon starts [device-closing]",
    );
    sim.run(&["plan", "--exit-code"]).ended(0);
    let verified = sim.run(&["verify"]).ended(4).stderr;
    assert_contains(
        &verified,
        "not checked: device class is closed to new programs",
    );
    finishes(client);
    let _ = restart.end().ended(0);
    let after = sim.device("class");
    assert_eq!(after["state"], "ready");
    assert_ne!(after["daemon_pid"], before["daemon_pid"]);
    assert_eq!(record(&sim, "class")["closing"], Value::Null);
    finishes(sim.client("class"));
}

#[test]
fn down_leaves_the_device_stopped() {
    let sim = lab();
    let client = sim.client("class");
    let down = closing(&sim, "class", &["down", "class", "--drain", "1h"]);
    is_refused(&sim, "class");
    finishes(client);
    let _ = down.end().ended(0);
    assert_eq!(in_state(&sim.status(), "stopped"), ["class"]);
    sim.run(&["start", "class"]).ended(0);
}

#[test]
fn each_device_closes_when_its_turn_has_come() {
    let sim = lab();
    let (first, second) = (sim.client("job-0"), sim.client("class"));
    let idle = sim.device("job-1");
    let mut restart = closing(&sim, "job-0", &["restart", "*", "--drain", "1h"]);
    // What nobody uses was restarted at once, and the other one is still open.
    assert_ne!(sim.device("job-1")["daemon_pid"], idle["daemon_pid"]);
    finishes(sim.client("class"));
    finishes(first);
    restart.await_text("note: closed device class");
    is_refused(&sim, "class");
    finishes(sim.client("job-0"));
    finishes(second);
    let said = restart.end().ended(0).stdout;
    assert_contains(&said, "3 devices on 1 GPU ready");
    assert_eq!(sim.happened("daemon end"), 3);
}

#[test]
fn up_changes_settings_and_geometry_behind_it() {
    let sim = lab();
    let client = sim.client("class");
    let path = sim.profile(&LAB.replace("serve = \"all\"", "serve = \"one-at-a-time\""));
    let path = path.to_str().unwrap();
    let up = closing(&sim, "class", &["up", path, "--drain", "1h"]);
    is_refused(&sim, "class");
    finishes(client);
    let _ = up.end().ended(0);
    assert_eq!(sim.device("class")["serve"], "one-at-a-time");
    sim.run(&["plan", path, "--exit-code"]).ended(0);
    // Every device of the GPU goes, and admits no more programs.
    let client = sim.client("class");
    let path =
        sim.profile("[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\" } ]\n");
    let path = path.to_str().unwrap();
    let second = sim.client("job-1");
    let up = closing(&sim, "class", &["up", path, "--drain", "1h"]);
    wait_until("job-0 is closed", || {
        sim.device("job-0")["state"] == "closing"
    });
    is_refused(&sim, "job-0");
    finishes(client);
    // Its programs have left, and still nobody gets onto it, or runs there outside MPS.
    let log = sim
        .node
        .log_dir()
        .join(sim.uuid("class"))
        .join("control.log");
    let is_idle = || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("has 1 active worker threads")
    };
    wait_until("its programs have left", is_idle);
    is_refused(&sim, "class");
    assert_eq!(sim.device("class")["state"], "closing");
    finishes(second);
    let _ = up.end().ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    sim.run(&["plan", path, "--exit-code"]).ended(0);
}

#[test]
fn when_the_time_is_over_the_intent_stays_and_heal_carries_it_out() {
    let sim = lab();
    let client = sim.client("class");
    let args = ["restart", "class", "--drain", "1", "--no-new", "--yes"];
    let said = sim.run(&args).ended(4).stderr;
    assert_contains(
        &said,
        "error: timed out (--drain): 1 client is still running:",
    );
    assert_contains(&said, "`mig-mps heal` then replaces the daemon");
    let closed = sim.device("class");
    assert_eq!(closed["state"], "closing");
    is_refused(&sim, "class");
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("class")["daemon_pid"], closed["daemon_pid"]);
    assert_contains(
        &sim.run(&["status"]).stdout,
        "run `mig-mps heal`, or wait for its timer",
    );
    finishes(client);
    let healed = sim.run(&["heal"]).ended(0);
    assert_contains(&healed.stdout, "class: its programs have exited: daemon ");
    assert_eq!(sim.device("class")["state"], "ready");
    assert_ne!(sim.device("class")["daemon_pid"], closed["daemon_pid"]);
    sim.run(&["plan", "--exit-code"]).ended(0);
}

/// Idle devices of a GPU whose instances change are closed with the others.
#[test]
fn the_hint_names_all_closed_devices() {
    let sim = Sim::served("a100-80gb", 1, SMALL);
    let client = sim.client("0.2");
    let args = ["--drain", "1", "--no-new", "--yes"];
    let said = sim.up(ONE_EACH, &args).ended(4).stderr;
    assert_contains(
        &said,
        "hint: wait until the remaining programs have exited; devices 0.0, 0.2 stay closed, and",
    );
    let state = |name: &str| sim.device(name)["state"].clone();
    assert_eq!([state("0.0"), state("0.2")], ["closing", "closing"]);
    finishes(client);
}

#[test]
fn with_force_those_who_are_left_are_ended() {
    let sim = lab();
    let client = sim.client("class");
    let args = [
        "restart", "class", "--drain", "1", "--no-new", "--force", "--yes",
    ];
    sim.run(&args).ended(0);
    assert!(!client.await_end().status.success());
    assert_eq!(sim.device("class")["state"], "ready");
}

#[test]
fn a_killed_change_is_carried_out_by_heal() {
    for (command, state) in [("restart", "ready"), ("down", "stopped")] {
        let sim = lab();
        let client = sim.client("class");
        let change = closing(&sim, "class", &[command, "class", "--drain", "1h"]);
        change.signal(Signal::KILL);
        drop(change);
        is_refused(&sim, "class");
        sim.run(&["heal"]).ended(0);
        assert_eq!(sim.device("class")["state"], "closing");
        finishes(client);
        // Its daemon may have ended of itself, or wait for its next try.
        sim.run(&["heal"]).ended(0);
        assert_eq!(sim.device("class")["state"], state, "{command}");
        sim.run(&["heal"]).ended(0);
        assert_eq!(sim.device("class")["state"], state, "{command}");
    }
}

#[test]
fn after_ctrl_c_too() {
    let sim = lab();
    let client = sim.client("class");
    let change = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
    change.signal(Signal::INT);
    let said = change.end().ended(130).stdout;
    assert_contains(&said, "Interrupted. Device class stays closed until");
    assert_contains(&said, "`mig-mps heal` then replaces the daemon");
    finishes(client);
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("class")["state"], "ready");
}

#[test]
fn ctrl_c_names_only_the_device_that_is_closed() {
    let sim = lab();
    let client = sim.client("class");
    let all = ["restart", "class", "job-0", "--drain", "1h"];
    let change = closing(&sim, "class", &all);
    change.signal(Signal::INT);
    let said = change.end().ended(130).stdout;
    assert_contains(
        &said,
        "Interrupted. Device class stays closed until its programs have exited. ",
    );
    assert!(!said.contains("Closed devices"), "{said}");
    finishes(client);
}

/// Interrupts a change that waits with NVML closed, and returns what it says.
fn interrupted_in_its_wait(sim: &Sim, change: Dialogue, go_on: impl FnOnce()) -> String {
    let faults = sim.happened("fault");
    let held = sim.node.fault("nvmlShutdown").waits().unwrap();
    go_on();
    sim.await_event("fault", faults + 1);
    change.signal(Signal::INT);
    drop(held);
    change.end().ended(130).stdout
}

#[test]
fn ctrl_c_says_if_nothing_was_closed() {
    let sim = lab();
    let before = sim.device("class")["daemon_pid"].clone();
    let client = sim.client("class");
    let lock = File::open(sim.node.run_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    let drain = ["--drain", "1h", "--no-new", "--yes"];
    let mut change = sim.talk(&[&["restart", "class"][..], &drain].concat());
    change.await_text("note: waiting up to ");
    finishes(client);
    let said = interrupted_in_its_wait(&sim, change, || lock.unlock().unwrap());
    assert_contains(&said, "Interrupted. Nothing was changed.");
    assert_eq!(sim.device("class")["daemon_pid"], before);

    // Another device is restarted before.
    let client = sim.client("class");
    let start = sim.node.fault("daemon start").waits().unwrap();
    let change = sim.talk(&[&["restart", "class", "job-0"][..], &drain].concat());
    sim.await_event("fault", 2);
    finishes(client);
    let said = interrupted_in_its_wait(&sim, change, || drop(start));
    assert_contains(&said, "Interrupted. No device is closed. ");
    assert_contains(&said, "run the same command again");
    assert_eq!(sim.device("class")["daemon_pid"], before);
    assert_eq!(sim.device("class")["state"], "ready");
}

#[test]
fn a_profile_that_does_not_need_it_reopens_the_device() {
    let sim = lab();
    let client = sim.client("class");
    let down = ["down", "class", "--drain", "1", "--no-new"];
    sim.run(&down).ended(4);
    assert_eq!(record(&sim, "class")["closing"]["next"], Value::Null);
    // Not while a client is there, but nobody has to wait for that.
    let up = sim.run(&["up", "--yes"]).ended(0);
    assert_contains(
        &up.stdout,
        "~ replace 1 daemon (when its programs have exited): class",
    );
    assert_eq!(
        record(&sim, "class")["closing"]["next"]["name"],
        json!("class")
    );
    // No command waits any more.
    let status = sim.run(&["status"]).ended(0).stdout;
    let (_, closed) = status
        .split_once("closed to new programs by root since ")
        .unwrap();
    assert_contains(
        closed.split_once("1 client").unwrap().0,
        "/mig-mps up --yes); ",
    );
    sim.run(&["plan", "--exit-code"]).ended(0);
    sim.run(&["up", "--yes"]).ended(0);
    is_refused(&sim, "class");
    finishes(client);
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("class")["state"], "ready");
}

#[test]
fn a_second_change_is_refused_and_names_the_first() {
    let sim = lab();
    let client = sim.client("class");
    let first = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
    for args in [
        &["restart", "class", "--yes"][..],
        &["restart", "class", "--drain", "1h", "--no-new", "--yes"],
        &["down", "class"],
        &["down"],
    ] {
        let said = sim.run(args).ended(4).stderr;
        assert_contains(
            &said,
            "device class is closed for another change, by root since 20",
        );
        assert_contains(&said, "restart class --drain 1h --no-new --yes)");
    }
    let set = sim.run(&["set", "class", "max-clients=3"]).ended(4).stderr;
    assert_contains(
        &set,
        "its daemon accepts no commands until the running programs have exited",
    );
    let pid = client.pid().to_string();
    let ended = sim.run(&["kill", "class", &pid, "--yes"]).ended(4).stderr;
    assert_contains(&ended, "hint: end the process with kill(1)");
    // A profile that keeps the device, and changes other instances of its GPU.
    let before = sim.list();
    let other = LAB.replace("profile = \"1g\", count = 2", "profile = \"2g\", count = 1");
    let up = sim.up(&other, &["--yes"]).ended(4).stderr;
    assert_contains(
        &up,
        "device class is closed for another change, by root since 20",
    );
    assert_contains(&up, "restart class --drain 1h --no-new --yes)");
    assert_eq!(sim.list()["gpus"], before["gpus"]);
    // What has nothing to do with it goes on.
    sim.run(&["restart", "job-0", "--yes"]).ended(0);
    sim.run(&["set", "job-1", "max-clients=3"]).ended(0);
    finishes(client);
    let _ = first.end().ended(0);
}

#[test]
fn down_by_force_ends_it_whoever_waits() {
    let sim = lab();
    let client = sim.client("class");
    let first = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
    sim.run(&["down", "--force"]).ended(0);
    assert!(!client.await_end().status.success());
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
    let said = first.end().ended(4).stdout;
    assert_contains(
        &said,
        "another command changed a device while this one was waiting for it",
    );
    assert_eq!(in_state(&sim.status(), "no daemon").len(), 3);
}

#[test]
fn what_another_change_has_stopped_stays_so() {
    let sim = lab();
    let client = sim.client("class");
    let first = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
    sim.run(&["down", "class", "--force"]).ended(0);
    assert!(!client.await_end().status.success());
    let _ = first.end().ended(4);
    assert_eq!(sim.device("class")["state"], "stopped");
}

/// A program that has initialized CUDA, and has no context.
fn initialized(sim: &Sim, device: &str) -> App {
    let mut command = sim.node.mig_mps();
    command
        .args(["attach", "--as-caller", "--hold"])
        .env("CUDA_VISIBLE_DEVICES", sim.uuid(device))
        .env(
            "CUDA_MPS_PIPE_DIRECTORY",
            sim.node.run_dir().join("by-name").join(device).join("pipe"),
        );
    let mut app = App::start(command);
    assert_contains(&app.wait_up(), "true");
    app
}

/// NVIDIA's list of clients does not have such a program.
#[test]
fn a_program_without_a_context_is_waited_for_too() {
    let sim = lab();
    let (client, program) = (sim.client("class"), initialized(&sim, "class"));
    let args = ["down", "class", "--drain", "1", "--no-new"];
    sim.run(&args).ended(4);
    finishes(client);
    // The same command goes on waiting, and what it wants stays recorded.
    let said = sim.run(&args).ended(4).stderr;
    assert_contains(
        &said,
        "a program that has initialized CUDA but has no context still uses device class",
    );
    assert_eq!(record(&sim, "class")["closing"]["next"], Value::Null);
    let down = sim.talk(&["down", "class", "--drain", "1h", "--no-new"]);
    sim.await_state("class", "closing");
    drop(program);
    let _ = down.end().ended(0);
    assert_eq!(sim.device("class")["state"], "stopped");
}

#[test]
fn up_starts_a_daemon_at_once_where_the_programs_have_left() {
    let sim = lab();
    let client = sim.client("class");
    sim.run(&["down", "class", "--drain", "1", "--no-new"])
        .ended(4);
    finishes(client);
    sim.run(&["up", "--yes"]).ended(0);
    assert_eq!(sim.device("class")["state"], "ready");
    sim.run(&["plan", "--exit-code"]).ended(0);
}

#[test]
fn a_daemon_that_dies_meanwhile_is_followed_by_the_next() {
    let sim = lab();
    let client = sim.client("class");
    let restart = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
    kill(&sim.device("class")["daemon_pid"]);
    let _ = restart.end().ended(0);
    assert!(!client.await_end().status.success());
    assert_eq!(sim.device("class")["state"], "ready");
}

#[test]
fn a_failed_start_reopens_the_device() {
    let sim = lab();
    let client = sim.client("class");
    let path = sim.profile(&LAB.replacen("serve = \"all\"", "serve = \"one-at-a-time\"", 1));
    let mut up = closing(
        &sim,
        "class",
        &["up", path.to_str().unwrap(), "--drain", "1h"],
    );
    sim.node.fault("daemon start").fails(1).unwrap();
    finishes(client);
    let _ = up.await_text("error");
    let _ = up.end().ended(1);
    assert_eq!(sim.device("class")["state"], "ready");
    assert_eq!(sim.device("class")["serve"], "all");
}

#[test]
fn without_clients_nothing_is_closed() {
    let sim = lab();
    let ran = sim.run(&["restart", "class", "--drain", "1h", "--no-new", "--yes"]);
    assert!(!ran.ended(0).stderr.contains("note: closed "));
}

#[test]
fn what_was_not_seen_to_refuse_programs_is_not_tried() {
    let sim = Sim::served("h200", 1, SMALL);
    for driver in ["570.86.15", "595.45.04"] {
        sim.node
            .node()
            .update(|state| driver.clone_into(&mut state.driver.version))
            .unwrap();
        let said = sim
            .run(&["down", "--drain", "1h", "--no-new"])
            .ended(1)
            .stderr;
        assert_contains(
            &said,
            &format!("--no-new is not possible with driver {driver}"),
        );
    }
    let said = sim.run(&["down", "--no-new"]).ended(2).stderr;
    assert_contains(&said, "--drain");
}

/// The question says what it means for the programs of others.
#[test]
fn the_question_says_that_it_is_not_free() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    let path = sim.profile(&whole("nofile = 3000"));
    let command = format!("up {} --drain 1h --no-new", path.display());
    let said = sim.answered(&command, "n\n").ended(4).stdout;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains(
        &said,
        "During this time, these devices are closed to new programs",
    );
    assert_contains(&said, "gets CUDA error 805");
    assert!(!said.contains("scontrol"), "{said}");
    assert_eq!(sim.device("0")["state"], "ready");
    finishes(client);
    wait_until("nobody computes", || sim.status()["clients"] == json!([]));
}

#[test]
fn a_daemon_that_refuses_to_quit_stays_open() {
    let sim = lab();
    let client = sim.client("class");
    // Refused once, it is asked again.
    sim.node.fault("quit").fails(0).unwrap();
    let restart = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
    finishes(client);
    let _ = restart.end().ended(0);
    let client = sim.client("class");
    sim.node.fault("quit").every().fails(1).unwrap();
    let args = ["restart", "class", "--drain", "1h", "--no-new", "--yes"];
    let said = sim.run(&args).ended(1).stderr;
    assert_contains(&said, "was asked to quit, but refused");
    sim.node.node().clear_faults().unwrap();
    assert_eq!(sim.device("class")["state"], "ready");
    assert_eq!(record(&sim, "class")["closing"], Value::Null);
    finishes(sim.client("class"));
    finishes(client);
}

#[test]
fn a_reboot_forgets_it() {
    let sim = lab();
    let client = sim.client("class");
    sim.run(&["down", "class", "--drain", "1", "--no-new"])
        .ended(4);
    drop(client);
    sim.node.reboot();
    sim.run(&["heal"]).ended(0);
    sim.run(&["up", "--yes"]).ended(0);
    assert_eq!(sim.device("class")["state"], "ready");
}

#[test]
fn the_hint_names_a_free_device_of_the_same_size() {
    let sim = lab();
    let client = sim.client("job-0");
    let restart = closing(&sim, "job-0", &["restart", "job-0", "--drain", "1h"]);
    let hint = "hint: use device job-1, which is free\nhint: wait for the device with --wait 5m\n";
    let ran = sim.run(&["run", "job-0", "--", "true"]).ended(125).stderr;
    assert_contains(&ran, hint);
    // One in use is none.
    let other = sim.client("job-1");
    let ran = sim.run(&["run", "job-0", "--", "true"]).ended(125).stderr;
    assert_contains(&ran, "hint: wait for the device with --wait 5m\n");
    let any = ["run", "--any", "job-0", "--", "true"];
    let ran = sim.run(&any).ended(125).stderr;
    assert_contains(&ran, "hint: wait for the device with --wait 5m\n");
    finishes(other);
    finishes(client);
    let _ = restart.end().ended(0);
}

#[test]
fn start_names_the_closing_device_and_what_follows() {
    let sim = lab();
    let client = sim.client("class");
    let restart = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
    let said = sim.run(&["start", "class"]).ended(4).stderr;
    assert_contains(
        &said,
        "error: device class is closed to new programs by root",
    );
    let waits = "hint: wait for that command, which starts the daemon again when its programs have exited\n";
    assert_contains(&said, waits);
    restart.signal(Signal::KILL);
    drop(restart);
    let said = sim.run(&["start", "class"]).ended(4).stderr;
    let heals =
        "hint: run `mig-mps heal` to start its daemon again when its programs have exited\n";
    assert_contains(&said, heals);
    sim.run(&["down", "class", "--drain", "1", "--no-new"])
        .ended(4);
    let said = sim.run(&["start", "class"]).ended(4).stderr;
    let stays = "hint: run `mig-mps up` to start a daemon again when its programs have exited\n";
    assert_contains(&said, stays);
    finishes(client);
}

#[test]
fn after_the_time_the_hint_says_what_heal_does() {
    let sim = lab();
    let client = sim.client("class");
    let args = ["--drain", "1", "--no-new", "--yes"];
    let said = sim
        .run(&[&["down", "class"], &args[..]].concat())
        .ended(4)
        .stderr;
    assert_contains(
        &said,
        "; device class stays closed, and `mig-mps heal` then leaves the device stopped\n",
    );
    assert!(!said.contains("instances"), "{said}");
    let down = closing(&sim, "class", &["down", "class", "--drain", "1h"]);
    down.signal(Signal::INT);
    let said = down.end().ended(130).stdout;
    assert_contains(&said, "`mig-mps heal` then leaves the device stopped");
    // Where instances change, heal starts nothing.
    let seven = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\" } ]\n";
    let said = sim.up(seven, &args).ended(4).stderr;
    assert_contains(
        &said,
        "`mig-mps heal` then leaves the devices stopped; run the same command again to complete the change and record its \
         profile\n",
    );
    finishes(client);
}

/// The command that the question names is one that Slurm's `scontrol` is given this node by.
#[test]
fn on_a_node_of_slurm_the_question_names_the_command_that_drains_it() {
    let sim = Sim::whole("");
    let _slurmd = sim.process("slurmd");
    let client = sim.client("0");
    let said = sim
        .answered("restart 0 --drain 1h --no-new", "n\n")
        .ended(4)
        .stdout;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, named) = said.split_once("drain it first: ").unwrap();
    let (named, _) = named.split_once(" This will").unwrap();
    let scontrol = sim.program_script("scontrol", "hostname -s; echo \"$@\"");
    let path = format!("PATH={}:$PATH", scontrol.parent().unwrap().display());
    let drained = Command::new("sh")
        .args(["-c", &format!("{path}; {named}")])
        .output()
        .unwrap();
    let drained = String::from_utf8(drained.stdout).unwrap();
    let (host, words) = drained.trim().split_once('\n').unwrap();
    assert_eq!(
        words,
        format!("update NodeName={host} State=DRAIN Reason=mig-mps")
    );
    finishes(client);
}

/// The command line of the recipe "Tonight at two", and its way back.
#[test]
fn the_recipe_for_the_night_is_a_command_line_of_mig_mps() {
    let sim = lab();
    let night = sim.profile(&LAB.replace("serve = \"all\"", "serve = \"one-at-a-time\""));
    let recipes = include_str!("../../../src/manual/recipes.md").replace("\\\n", "");
    let (_, recipe) = recipes.split_once("## Tonight at two").unwrap();
    let (_, words) = recipe.split_once("sudo systemd-run ").unwrap();
    let (_, words) = words.split_once(" mig-mps ").unwrap();
    let words = words.lines().next().unwrap();
    assert_contains(words, "/etc/mig-mps/night.toml");
    let words = words.replace("/etc/mig-mps/night.toml", night.to_str().unwrap());
    let (_, back) = recipe.split_once("**Back:** Run `sudo mig-mps ").unwrap();
    let back = format!("{} --yes", back.split('`').next().unwrap());
    for (words, serve) in [(words, "one-at-a-time"), (back, "all")] {
        let words: Vec<&str> = words.split_whitespace().collect();
        sim.run(&words).ended(0);
        assert_eq!(sim.device("class")["serve"], serve, "{words:?}");
    }
}

/// The applied profile is then the one from before the change, and to apply it again would cancel the change.
#[test]
fn a_device_that_is_gone_meanwhile_names_the_change() {
    let sim = Sim::served("h200", 2, "[[gpu]]\nselect = { all = true }\nmig = false\n");
    let client = sim.client("0");
    let night = sim.profile("[[gpu]]\nselect = { all = true }\ndevices = [ { name = \"night-{gpu}\", profile = \"3g\" } ]\n");
    let night = night.to_str().unwrap();
    let change = closing(&sim, "0", &["up", night, "--drain", "1h"]);
    let named = "hint: run `mig-mps status` to see the change by root since 20";
    wait_until("the change is named", || {
        let ran = sim.run(&["run", "1", "--", "true"]);
        ran.stderr.contains(named)
    });
    finishes(client);
    let _ = change.end().ended(0);
}
