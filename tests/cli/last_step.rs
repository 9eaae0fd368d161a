//! A signal after the last step of a change: nothing is left to interrupt.

use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use testkit::{Ran, SMALL, Sim, hearing};

const A_WHILE: Duration = Duration::from_millis(500);

fn wait(child: &mut Child, is_so: &dyn Fn() -> bool) {
    while !is_so() {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended");
        std::thread::yield_now();
    }
}

/// Runs a command that gets a signal while it reads the node back.
fn signalled(sim: &Sim, args: &[&str], signal: Signal) -> Ran {
    sim.node.node().clear_faults().unwrap();
    // The first call of each snapshot.
    let version = sim.node.fault("nvmlSystemGetDriverVersion");
    version.every().slow(A_WHILE).unwrap();
    let mut command = hearing(&sim.command(args));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let is_changing = || sim.run_dir().contains(&"journal.json".to_owned());
    wait(&mut child, &is_changing);
    let calls = sim.happened("fault");
    wait(&mut child, &|| !is_changing());
    wait(&mut child, &|| sim.happened("fault") > calls);
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    let output = child.wait_with_output().unwrap();
    sim.node.node().clear_faults().unwrap();
    Ran::from(output)
}

#[test]
fn the_command_finishes_as_if_there_had_been_no_signal() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let sim = Sim::with("h200", 1);
        let profile = sim.profile(SMALL);
        let up = ["up", profile.to_str().unwrap(), "--yes", "--verify"];
        let ran = signalled(&sim, &up, signal).ended(0);
        assert!(ran.stdout.contains("0.2"), "{ran:?}");
        assert!(ran.stdout.contains("0.0: attached in "), "{ran:?}");
        assert!(ran.stderr.contains("2 devices on 1 GPU ready"), "{ran:?}");
        let said = "interrupted: the change is finished; its outcome follows\n";
        assert!(ran.stderr.contains(said), "{ran:?}");
        assert_eq!(sim.happened("daemon start"), 2);
        sim.up_does_nothing(SMALL);
    }
}

#[test]
fn a_document_is_printed() {
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(SMALL);
    let up = ["up", profile.to_str().unwrap(), "--yes", "--json"];
    let document = signalled(&sim, &up, Signal::TERM).json();
    assert_eq!(document["error"], serde_json::Value::Null);
    assert_eq!(document["changed"], true);
    let restart = ["restart", "0.2", "--yes", "--json"];
    let document = signalled(&sim, &restart, Signal::TERM).json();
    assert_eq!(document["changed"], true, "{document:#}");
}
