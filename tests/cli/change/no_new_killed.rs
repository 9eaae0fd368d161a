//! A command with `--no-new` that is killed at moments from its start until it waits for a client: that client goes on, and heal
//! does what is recorded.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use testkit::{Sim, wait_until};

use super::no_new::{LAB, finishes, lab, record};
use super::no_new_left::SEVEN;
use crate::cli::joint::{client_on, joint};

/// Kills commands with these arguments in turn, which concern this device. Returns how they left it, and heal then.
#[track_caller]
fn killed_at_moments(sim: &Sim, device: &str, commands: &[&[&str]]) -> BTreeSet<String> {
    let mut ends = BTreeSet::new();
    let is_joint = device == "trainers";
    let start_client = || {
        if is_joint {
            client_on(sim, device, "0")
        } else {
            sim.client(device)
        }
    };
    for (step, args) in (0..16).zip(commands.iter().copied().cycle()) {
        let client = start_client();
        let before = record(sim, device)["settings"].clone();
        let change = sim.talk(&[args, &["--drain", "1h", "--no-new", "--yes"]].concat());
        // The moments differ; what is recorded in each is what counts.
        if step < 14 {
            std::thread::sleep(Duration::from_millis(100 * step));
        } else {
            wait_until("the device closes", || {
                !record(sim, device)["closing"].is_null()
            });
        }
        change.signal(Signal::KILL);
        drop(change);
        let closing = record(sim, device)["closing"].clone();
        let (wanted, settings) = match (&closing, &closing["next"]) {
            (Value::Object(_), Value::Null) => ("stopped", None),
            (Value::Object(_), next) => ("ready", Some(next["settings"].clone())),
            _ => ("ready", Some(before)),
        };
        finishes(client);
        wait_until("heal goes on", || {
            let _ = sim.run(&["heal"]).ended(0);
            sim.device(device)["state"] == wanted
        });
        sim.run(&["heal"]).ended(0);
        assert_eq!(sim.device(device)["state"], wanted, "{args:?}, step {step}");
        if let Some(settings) = settings {
            let now = record(sim, device);
            assert_eq!(now["settings"], settings, "{args:?}, step {step}");
            assert_eq!(now["closing"], Value::Null, "{args:?}, step {step}");
        }
        let closed = if closing.is_null() { "open" } else { "closed" };
        ends.insert(format!("{closed}, {wanted}"));
        sim.run(&["start", device]).ended(0);
        finishes(start_client());
    }
    ends
}

#[test]
fn a_restart_loses_no_client() {
    let ends = killed_at_moments(&lab(), "class", &[&["restart", "class"]]);
    assert!(ends.contains("closed, ready"), "{ends:?}");
}

#[test]
fn a_down_loses_no_client() {
    let ends = killed_at_moments(&lab(), "class", &[&["down", "class"]]);
    assert!(ends.contains("closed, stopped"), "{ends:?}");
}

#[test]
fn an_up_loses_no_client() {
    let sim = lab();
    let other = sim.node.dir().join("other.toml");
    fs::write(
        &other,
        LAB.replace("serve = \"all\"", "serve = \"one-at-a-time\""),
    )
    .unwrap();
    let (other, first) = (other.to_str().unwrap(), sim.profile(LAB));
    let ups = [["up", other], ["up", first.to_str().unwrap()]];
    let ends = killed_at_moments(&sim, "class", &[&ups[0], &ups[1]]);
    assert!(ends.contains("closed, ready"), "{ends:?}");
}

/// Two devices of a GPU close together; what was to stop is not started by heal.
#[test]
fn an_up_of_other_instances_loses_no_client() {
    let sim = lab();
    let path = sim.profile(SEVEN);
    let up = ["up", path.to_str().unwrap()];
    let other = sim.client("job-0");
    let ends = killed_at_moments(&sim, "class", &[&up]);
    assert!(ends.contains("closed, stopped"), "{ends:?}");
    finishes(other);
    sim.run(&[&up[..], &["--yes"]].concat()).ended(0);
    sim.run(&["plan", up[1], "--exit-code"]).ended(0);
}

#[test]
fn a_restart_of_a_joint_device_loses_no_client() {
    let ends = killed_at_moments(
        &joint("max-clients = 9"),
        "trainers",
        &[&["restart", "trainers"]],
    );
    assert!(ends.contains("closed, ready"), "{ends:?}");
}
