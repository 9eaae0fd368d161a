//! What a command with `--no-new` leaves behind when it ends before the programs: the device stays closed until heal, or the next
//! command, goes on.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use testkit::{Sim, assert_contains, copy_program, in_state, kill, needs_root, stop, wait_until};

use super::after_change::{node, write};
use super::no_new::{LAB, closing, finishes, is_refused, lab, record};

/// One device takes the place of all of the lab.
pub(super) const SEVEN: &str =
    "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\" } ]\n";

/// The idle client that keeps the daemon of a closed device.
fn held_client(sim: &Sim, device: &str) -> String {
    let held = record(sim, device)["closing"]["held"]["pid"].clone();
    let held = held.as_u64().unwrap().to_string();
    assert!(is_alive(&held));
    held
}

fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits until the daemon of a device has seen that no program but the idle client is there.
fn await_idle(sim: &Sim, device: &str) {
    let log = sim.node.log_dir().join(sim.uuid(device));
    wait_until("its programs have left", || {
        let log = fs::read_to_string(log.join("control.log")).unwrap();
        log.contains("has 1 active worker threads")
    });
}

#[test]
fn newcomers_are_refused_until_heal_goes_on() {
    for ending in ["time", "interrupt", "kill"] {
        let sim = lab();
        let client = sim.client("class");
        if ending == "time" {
            let args = ["restart", "class", "--drain", "1", "--no-new", "--yes"];
            let said = sim.run(&args).ended(4).stderr;
            assert!(!said.contains("outside MPS"), "{said}");
        } else {
            let change = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
            let is_interrupt = ending == "interrupt";
            change.signal(if is_interrupt {
                Signal::INT
            } else {
                Signal::KILL
            });
            if is_interrupt {
                let _ = change.end().ended(130);
            }
        }
        let held = held_client(&sim, "class");
        finishes(client);
        await_idle(&sim, "class");
        is_refused(&sim, "class");
        assert_eq!(sim.status()["clients"], json!([]), "{ending}");
        assert_eq!(sim.device("class")["state"], "closing");
        sim.run(&["heal"]).ended(0);
        assert_eq!(sim.device("class")["state"], "ready", "{ending}");
        assert!(!is_alive(&held), "{ending}");
        finishes(sim.client("class"));
    }
}

#[test]
fn newcomers_are_refused_while_another_command_takes_over() {
    let sim = lab();
    let (class, job) = (sim.client("class"), sim.client("job-0"));
    let path = sim.profile(SEVEN);
    let path = path.to_str().unwrap();
    let up = ["up", path, "--drain", "1", "--no-new", "--yes"];
    sim.run(&up).ended(4);
    let held = held_client(&sim, "job-0");
    let up = closing(&sim, "job-0", &["up", path, "--drain", "1h"]);
    finishes(job);
    await_idle(&sim, "job-0");
    is_refused(&sim, "job-0");
    assert_eq!(held_client(&sim, "job-0"), held);
    finishes(class);
    let _ = up.end().ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    wait_until("the idle client has exited", || !is_alive(&held));
}

#[test]
fn the_idle_client_ends_with_its_daemon() {
    let sim = lab();
    for by_force in [true, false] {
        let client = sim.client("class");
        let args = ["down", "class", "--drain", "1", "--no-new"];
        sim.run(&args).ended(4);
        let held = held_client(&sim, "class");
        if by_force {
            sim.run(&["down", "class", "--force"]).ended(0);
            assert!(!is_alive(&held));
            assert_eq!(sim.device("class")["state"], "stopped");
        } else {
            kill(&sim.device("class")["daemon_pid"]);
            wait_until("it has exited too", || !is_alive(&held));
        }
        assert!(!client.await_end().status.success());
        sim.run(&["up", "--yes"]).ended(0);
        assert_eq!(record(&sim, "class")["closing"], Value::Null);
    }
}

#[test]
fn a_suspended_idle_client_ends_with_the_change() {
    let sim = lab();
    for command in ["restart", "down"] {
        let client = sim.client("class");
        let args = [command, "class", "--drain", "1", "--no-new", "--yes"];
        sim.run(&args).ended(4);
        let held = held_client(&sim, "class");
        stop(&held);
        kill(&sim.device("class")["daemon_pid"]);
        assert!(!client.await_end().status.success());
        sim.run(&["heal"]).ended(0);
        assert!(!is_alive(&held), "{command}");
        sim.run(&["up", "--yes"]).ended(0);
    }
}

/// It has no terminal, directory or file of the command.
#[test]
fn the_idle_client_keeps_nothing_of_its_command() {
    let sim = lab();
    let client = sim.client("class");
    let change = closing(&sim, "class", &["restart", "class", "--drain", "1h"]);
    let held = held_client(&sim, "class");
    drop(change);
    let process = Path::new("/proc").join(&held);
    assert_eq!(fs::read_link(process.join("cwd")).unwrap(), Path::new("/"));
    let stat = fs::read_to_string(process.join("stat")).unwrap();
    let words: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    assert_eq!(words[3], held, "its session");
    assert_eq!(words[4], "0", "its terminal");
    for file in fs::read_dir(process.join("fd")).unwrap() {
        let target = fs::read_link(file.unwrap().path()).unwrap();
        let target = target.to_string_lossy().into_owned();
        assert!(
            !target.contains("/pts/") && !target.ends_with("lock"),
            "{target}"
        );
    }
    finishes(client);
    sim.run(&["heal"]).ended(0);
    assert_contains(&sim.run(&["status"]).ended(0).stdout, "class");
}

/// Runs a change that closes the device and ends before its program.
#[track_caller]
fn times_out(sim: &Sim, args: &[&str]) -> String {
    let args = [args, &["--drain", "1", "--no-new", "--yes"]].concat();
    sim.run(&args).ended(4).stderr
}

/// The profile of the lab with a device for one user at a time.
fn one_at_a_time(sim: &Sim) -> String {
    let path = sim.node.dir().join("night.toml");
    fs::write(
        &path,
        LAB.replacen("serve = \"all\"", "serve = \"one-at-a-time\"", 1),
    )
    .unwrap();
    path.to_str().unwrap().to_owned()
}

const SAME_AGAIN: &str = "run the same command again to complete the change and record its profile";

#[test]
fn heal_never_starts_what_up_was_to_stop() {
    let sim = lab();
    let client = sim.client("class");
    let path = sim.profile(SEVEN);
    let path = path.to_str().unwrap();
    let said = times_out(&sim, &["up", path]);
    assert_contains(&said, "`mig-mps heal` then leaves the devices stopped; ");
    assert_contains(&said, SAME_AGAIN);
    assert_eq!(record(&sim, "class")["closing"]["next"], Value::Null);
    finishes(client);
    let healed = sim.run(&["heal"]).ended(0).stdout;
    assert_contains(&healed, "class: stopped after its programs exited\n");
    for _ in 0..2 {
        assert_eq!(sim.device("class")["state"], "stopped");
        let status = sim.run(&["status"]).ended(0).stdout;
        assert_contains(
            &status,
            "run the same command again to continue its change, or run `mig-mps start class`",
        );
        sim.run(&["heal"]).ended(0);
    }
    sim.run(&["up", path, "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    assert!(in_state(&sim.status(), "stopped").is_empty());
}

#[test]
fn only_up_is_to_be_run_again() {
    for command in ["up", "restart", "down"] {
        let sim = lab();
        let night = one_at_a_time(&sim);
        let args = [command, if command == "up" { &night } else { "class" }];
        let client = sim.client("class");
        let change = closing(&sim, "class", &[&args, &["--drain", "1h"][..]].concat());
        change.signal(Signal::INT);
        let said = change.end().ended(130).stdout;
        assert!(!said.contains("the change is finished"), "{said}");
        assert_contains(&said, "Interrupted. Device class stays closed");
        assert_eq!(said.contains("same command"), command == "up", "{said}");
        finishes(client);
        sim.run(&["heal"]).ended(0);
        sim.run(&["start", "class"]).ended(0);
        sim.up(LAB, &["--yes"]).ended(0);
        let client = sim.client("class");
        let said = times_out(&sim, &args);
        assert_eq!(said.contains(SAME_AGAIN), command == "up", "{said}");
        finishes(client);
    }
}

#[test]
fn what_is_left_when_the_programs_have_exited_is_for_heal_or_start() {
    let sim = lab();
    let night = one_at_a_time(&sim);
    for (args, serve) in [
        (&["restart", "class"][..], "all"),
        (&["up", &night], "one-at-a-time"),
    ] {
        let client = sim.client("class");
        times_out(&sim, args);
        kill(&sim.device("class")["daemon_pid"]);
        assert!(!client.await_end().status.success());
        for args in [
            &["run", "class", "--", "true"][..],
            &["run", "--any", "class", "--", "true"],
        ] {
            let ran = sim.run(args).ended(125).stderr;
            assert_contains(&ran, "device class is closed to new programs by root");
            assert_contains(
                &ran,
                "hint: run `mig-mps heal` as root to complete the change, or wait for its timer\n",
            );
            assert!(!ran.contains("mig-mps restart class`"), "{ran}");
            assert!(!ran.contains("which waits until"), "{ran}");
        }
        let status = sim.run(&["status"]).ended(0).stdout;
        assert_contains(
            &status,
            "its programs have exited: run `mig-mps heal` to start a new daemon",
        );
        assert!(!status.contains("which waits until"), "{status}");
        sim.run(&["start", "class"]).ended(0);
        assert_eq!(sim.device("class")["state"], "ready");
        assert_eq!(sim.device("class")["serve"], serve);
    }
}

/// The lines of the drift of the device and of the node.
fn drift(sim: &Sim) -> String {
    let lab = sim.profile(LAB);
    let text = sim
        .run(&["metrics", "--drift", lab.to_str().unwrap()])
        .ended(0)
        .stdout;
    let is_one =
        |line: &&str| line.starts_with("mig_mps_drift ") || line.contains("device=\"class\"");
    text.lines().filter(is_one).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_closing_device_is_no_drift() {
    let sim = lab();
    let night = one_at_a_time(&sim);
    let assert_no_drift = || {
        sim.run(&["plan", "--exit-code"]).ended(0);
        let drift = drift(&sim);
        assert!(!drift.contains(" 1"), "{drift}");
        assert_contains(&drift, "mig_mps_drift 0");
        let status = sim.run(&["status", "--exit-code"]).ended(0).stdout;
        assert!(!status.contains("differs"), "{status}");
    };
    for args in [
        &["down", "class"][..],
        &["restart", "class"],
        &["up", &night],
    ] {
        let client = sim.client("class");
        let change = closing(&sim, "class", &[args, &["--drain", "1h"]].concat());
        assert_no_drift();
        change.signal(Signal::KILL);
        drop(change);
        assert_no_drift();
        finishes(client);
        sim.run(&["up", "--yes"]).ended(0);
        assert_eq!(sim.device("class")["serve"], "all", "{args:?}");
    }
}

#[test]
fn a_stop_is_by_the_command_that_wanted_it() {
    let sim = lab();
    let client = sim.client("class");
    times_out(&sim, &["restart", "class"]);
    sim.run(&["down", "class", "--force"]).ended(0);
    assert!(!client.await_end().status.success());
    let status = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&status, "mig-mps down class --force)");
    sim.run(&["start", "class"]).ended(0);
    let client = sim.client("class");
    times_out(&sim, &["down", "class"]);
    finishes(client);
    sim.run(&["heal"]).ended(0);
    let status = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&status, "mig-mps down class --drain 1 --no-new --yes)");
}

#[test]
fn a_change_names_the_one_that_has_closed_the_device() {
    let sim = lab();
    let client = sim.client("class");
    let night = one_at_a_time(&sim);
    let first = closing(&sim, "class", &["up", &night, "--drain", "1h"]);
    let second = sim.run(&["up", &night, "--yes"]).ended(4).stderr;
    assert_contains(
        &second,
        "device class is closed for another change, by root since 20",
    );
    assert_contains(&second, "--drain 1h --no-new --yes)");
    first.signal(Signal::KILL);
    drop(first);
    for args in [["down", "class", "--yes"], ["restart", "class", "--yes"]] {
        let said = sim.run(&args).ended(4).stderr;
        assert_contains(
            &said,
            "note: device class is closed to new programs by root since 20",
        );
        assert_contains(&said, "--drain 1h --no-new --yes)");
    }
    finishes(client);
}

#[test]
fn heal_tells_the_programs_after_a_change_what_has_changed() {
    needs_root!();
    let sim = node(1);
    sim.up(LAB, &[]).ended(0);
    write(&sim, "note", "cat >document.json");
    let client = sim.client("class");
    times_out(&sim, &["down", "class"]);
    finishes(client);
    sim.run(&["heal"]).ended(0);
    let document: Value =
        serde_json::from_slice(&fs::read(sim.node.dir().join("document.json")).unwrap()).unwrap();
    assert_eq!(document["changed"], true);
}

#[test]
fn start_after_down_of_everything_names_up() {
    let sim = lab();
    sim.run(&["down"]).ended(0);
    let said = sim.run(&["start", "*"]).ended(4).stderr;
    assert!(!said.contains("restart"), "{said}");
    let said = sim.run(&["start", "class"]).stderr;
    assert_contains(&said, "mig-mps up");
}

/// A program that came to a device without clients would be waited for, too.
#[test]
fn idle_devices_of_the_gpu_are_closed_with_the_others() {
    let sim = lab();
    let class = sim.client("class");
    let path = sim.profile(SEVEN);
    let path = path.to_str().unwrap();
    let up = closing(&sim, "class", &["up", path, "--drain", "1h"]);
    wait_until("job-0 is closed, too", || {
        sim.device("job-0")["state"] == "closing"
    });
    is_refused(&sim, "job-0");
    finishes(class);
    let _ = up.end().ended(0);
    assert_eq!(sim.node.processes("--hold"), Vec::<u32>::new());
    assert_eq!(sim.status()["devices"].as_array().unwrap().len(), 1);
}

/// Starts a program in the place of a control session, as a child of a program with this name.
fn session_of(sim: &Sim, parent: &str) -> Child {
    let parent = sim.node.dir().join(parent);
    let session = sim.node.dir().join("nvidia-cuda-mps-control");
    copy_program("/bin/sh", &parent);
    if !session.exists() {
        copy_program("/bin/cat", &session);
    }
    let pipe = sim.node.run_dir().join(sim.uuid("class")).join("pipe");
    let mut command = Command::new(parent);
    command
        .arg("-c")
        .arg(format!("{}; true", session.display()));
    command.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    command.env("CUDA_MPS_PROTOCOL_VERSION", "2");
    command.stdin(Stdio::piped()).spawn().unwrap()
}

/// The session of a command that runs is not ended: half of an answer would be an error there.
#[test]
fn only_sessions_that_are_left_are_ended() {
    let sim = lab();
    let client = sim.client("class");
    let args = ["restart", "class", "--drain", "1", "--no-new", "--yes"];
    sim.run(&args).ended(4);
    let mut left = session_of(&sim, "sh");
    let mut running = session_of(&sim, "mig-mps");
    wait_until("both are there", || {
        [&left, &running].iter().all(|parent| {
            let children = format!("/proc/{0}/task/{0}/children", parent.id());
            fs::read_to_string(children).unwrap() != ""
        })
    });
    finishes(client);
    sim.run(&["heal"]).ended(0);
    left.wait().unwrap();
    assert_eq!(sim.device("class")["state"], "ready");
    assert!(running.try_wait().unwrap().is_none());
    drop(running.stdin.take());
    running.wait().unwrap();
}

/// The names in the run directory that lead to devices.
fn links(sim: &Sim) -> Vec<String> {
    let links = fs::read_dir(sim.node.run_dir().join("by-name")).unwrap();
    let names = links.map(|link| link.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Of a MIG device, a whole GPU and a joint device.
#[test]
fn a_renamed_device_has_no_link_by_its_earlier_name() {
    let whole = "[[gpu]]\nselect = { all = true }\nmig = false\nname = \"class\"\nmps = { serve = \"all\" }\n";
    let joint = whole.replace("mps", "joint = true\nmps");
    for (gpus, profile) in [(1, LAB), (1, whole), (2, &joint)] {
        let sim = Sim::served("h200", gpus, profile);
        let before = links(&sim);
        assert_eq!(before[0], "class");
        let client = sim.client("class");
        let renamed = profile.replace("\"class\"", "\"course\"");
        let args = ["--drain", "1", "--no-new", "--yes"];
        sim.up(&renamed, &args).ended(4);
        assert_eq!(links(&sim), before);
        finishes(client);
        sim.run(&["heal"]).ended(0);
        let after = links(&sim);
        assert_eq!((after[0].as_str(), after.len()), ("course", before.len()));
        sim.up(profile, &["--yes"]).ended(0);
        assert_eq!(links(&sim), before);
    }
}
