//! What a command with `--no-new` leaves behind when it ends before the programs: the device stays closed until heal, or the next
//! command, goes on.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use testkit::{Sim, assert_contains, in_state, kill, wait_until};

use super::no_new::{closing, finishes, is_refused, lab, record};

/// One device takes the place of all of the lab.
const SEVEN: &str = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\" } ]\n";

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
        assert!(!client.finish().status.success());
        sim.run(&["up", "--yes"]).ended(0);
        assert_eq!(record(&sim, "class")["closing"], Value::Null);
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
