//! A signal after the last step of a change: nothing is left to interrupt.

use rustix::process::Signal;
use serde_json::Value;

use testkit::{SMALL, Sim, assert_contains};

const HEARD: &str = "interrupted: the change is finished; its result follows\n";

/// Runs a command that gets a signal while it reads the node back, and returns what it says.
fn signalled(sim: &Sim, args: &[&str], signal: Signal) -> String {
    let faults = sim.happened("fault");
    let step = sim.node.fault("daemon start").waits().unwrap();
    let mut command = sim.talk(args);
    sim.await_event("fault", faults + 1);
    // The first call of each snapshot.
    let version = sim.node.fault("nvmlSystemGetDriverVersion");
    let reading = version.waits().unwrap();
    drop(step);
    sim.await_event("fault", faults + 2);
    assert!(!sim.run_dir().contains(&"journal.json".to_owned()));
    command.signal(signal);
    command.await_text(HEARD);
    drop(reading);
    command.end().ended(0).stdout
}

#[test]
fn the_command_finishes_as_if_there_had_been_no_signal() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let sim = Sim::with("h200", 1);
        let profile = sim.profile(SMALL);
        let up = ["up", profile.to_str().unwrap(), "--yes", "--verify"];
        let said = signalled(&sim, &up, signal);
        assert_contains(&said, "0.0: attached in ");
        assert_contains(&said, "2 devices on 1 GPU ready");
        assert_eq!(sim.happened("daemon start"), 2);
        sim.up_does_nothing(SMALL);
    }
}

#[test]
fn a_document_is_printed() {
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(SMALL);
    let up = ["up", profile.to_str().unwrap(), "--yes", "--json"];
    let document = |args: &[&str]| -> Value {
        let said = signalled(&sim, args, Signal::TERM);
        let (_, document) = said.split_once(HEARD).unwrap();
        // Notes follow it.
        let mut documents = serde_json::Deserializer::from_str(document).into_iter();
        documents.next().unwrap().unwrap()
    };
    let made = document(&up);
    assert_eq!(made["error"], Value::Null);
    assert_eq!(made["changed"], true);
    let restarted = document(&["restart", "0.2", "--yes", "--json"]);
    assert_eq!(restarted["changed"], true, "{restarted:#}");
}
