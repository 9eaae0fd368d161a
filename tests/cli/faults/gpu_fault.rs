//! A GPU fault, and those who share it.

use serde_json::Value;

use testkit::{Ran, Sim, assert_contains, in_state};

#[test]
fn a_fault_names_everybody_it_takes_with_it_and_is_over_when_they_have_gone() {
    let sim = Sim::small();
    let before = sim.device("0.2")["servers"].clone();
    let neighbour = sim.client("0.0");
    let [healthy, faulty] = sim.faulty("0.2");
    let healthy_pid = healthy.pid();
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), ["0.0"], "its own fault domain");
    let clients = pids(&status);
    assert!(clients.contains(&faulty.pid()), "{status:#}");
    let problem = &status["problems"][0];
    assert_eq!(problem["device"], "0.2");
    let what = problem["what"].as_str().unwrap();
    assert!(
        what.starts_with(
            "a GPU fault: it accepts programs again when all its clients have exited; run `mig-mps kill 0.2 "
        ),
        "{what}"
    );
    for pid in clients.iter().filter(|pid| **pid != neighbour.pid()) {
        assert_contains(what, &pid.to_string());
    }
    let text = sim.run(&["status", "--exit-code", "0.2"]).ended(3).stdout;
    assert_contains(&text, "  fault  ");
    sim.run(&["status", "--exit-code", "0.0"]).ended(0);
    // The client that was healthy gets the error, too.
    let healthy = healthy.finish();
    assert_eq!(healthy.status.code(), Some(6), "{}", healthy.output);
    assert_contains(&healthy.output, "err 700");
    assert!(!pids(&sim.status()).contains(&healthy_pid));
    assert_eq!(sim.device("0.2")["state"], "fault", "one is left");
    drop(faulty);
    sim.await_state("0.2", "ready");
    sim.run(&["status", "--exit-code"]).ended(0);
    assert_eq!(sim.device("0.2")["servers"], before);
    assert!(sim.client("0.2").finish().status.success());
    assert!(neighbour.finish().status.success());
}

/// A fault that happens while the daemon is asked: its state from before and its clients from after are not shown together.
#[test]
fn a_fault_between_two_answers_is_asked_about_again() {
    let sim = Sim::small();
    let [healthy, faulty] = sim.faulty("0.2");
    let healthy_pid = healthy.pid();
    assert_eq!(healthy.await_end().status.code(), Some(6));
    let asked = sim.node.dir().join("asked");
    let control = sim.control_script(&format!(
        "input=$(cat)\nchange=\n\
         case $input in *get_server_status*) [ -e {asked} ] || change='0,/^FAULT$/s//ACTIVE/'; touch {asked};; esac\n\
         printf '%s\\n' \"$input\" | $real \"$@\" | sed \"$change\"",
        asked = asked.display(),
    ));
    let mut status = sim.command(&["status", "--json"]);
    let status = Ran::of(status.env("MIG_MPS_CONTROL", &control)).json();
    assert!(asked.exists());
    assert_eq!(in_state(&status, "fault"), ["0.2"], "{status:#}");
    let clients = pids(&status);
    assert!(clients.contains(&faulty.pid()) && !clients.contains(&healthy_pid));
}

fn pids(status: &Value) -> Vec<u32> {
    let clients = status["clients"].as_array().unwrap().iter();
    let pids = clients.map(|client| client["pid"].as_u64().unwrap().try_into().unwrap());
    pids.collect()
}
