//! The compute mode of whole GPUs: set for the daemon, given back by its end.

use insta::assert_snapshot;
use serde_json::json;
use simnode::node::ComputeMode;

use testkit::{Sim, assert_contains, whole};

const EXCLUSIVE: &str = r#"compute-mode = "exclusive-process""#;

fn mode(sim: &Sim) -> ComputeMode {
    sim.node.node().state().unwrap().gpus[0].compute_mode
}

fn set(sim: &Sim, mode: ComputeMode) {
    let update = sim
        .node
        .node()
        .update(|state| state.gpus[0].compute_mode = mode);
    update.unwrap();
}

#[test]
fn down_restores_what_up_found() {
    for before in [ComputeMode::Default, ComputeMode::ExclusiveProcess] {
        let sim = Sim::with("h200", 1);
        set(&sim, before);
        sim.up(&whole(EXCLUSIVE), &[]).ended(0);
        assert_eq!(mode(&sim), ComputeMode::ExclusiveProcess);
        // Clients reach the GPU through the one process that may compute on it.
        assert!(sim.client("0").finish().status.success());
        sim.run(&["down"]).ended(0);
        assert_eq!(mode(&sim), before);
    }
}

#[test]
fn what_somebody_else_has_set_since_then_stays() {
    let sim = Sim::whole(EXCLUSIVE);
    set(&sim, ComputeMode::Prohibited);
    sim.run(&["down"]).ended(0);
    assert_eq!(mode(&sim), ComputeMode::Prohibited);
}

#[test]
fn that_somebody_else_has_changed_it_is_seen() {
    let sim = Sim::whole(EXCLUSIVE);
    let profile = sim.profile(&whole(EXCLUSIVE)).display().to_string();
    set(&sim, ComputeMode::Default);
    let said = sim.run(&["status", "--exit-code"]).ended(3).stdout;
    let problem = "0: the compute mode of its GPU was changed from outside mig-mps; it was exclusive-process: run `mig-mps restart 0` to set it again";
    assert_contains(&said, problem);
    let said = sim.run(&["plan", &profile, "--exit-code"]).ended(3).stdout;
    let why = "(the GPU's compute mode is no longer exclusive-process): 0";
    assert_contains(&said, why);
    sim.run(&["restart", "0", "--yes"]).ended(0);
    assert_eq!(mode(&sim), ComputeMode::ExclusiveProcess);
    sim.run(&["plan", &profile, "--exit-code"]).ended(0);
    sim.run(&["down"]).ended(0);
    assert_eq!(mode(&sim), ComputeMode::Default);
}

/// The daemon dies, another one takes its place, and the mode that was there before is still known.
#[test]
fn a_daemon_that_died_does_not_lose_it() {
    let sim = Sim::whole(EXCLUSIVE);
    sim.kill_daemon("0");
    sim.up(&whole(EXCLUSIVE), &["--yes"]).ended(0);
    assert_eq!(sim.device("0")["state"], "ready");
    // A profile that does not ask for it gives it back at once.
    sim.up(&whole(""), &["--yes"]).ended(0);
    assert_eq!(mode(&sim), ComputeMode::Default);
}

#[test]
fn a_start_that_fails_gives_it_back() {
    let sim = Sim::with("h200", 1);
    sim.node.fault("daemon start").fails(3).unwrap();
    sim.up(&whole(EXCLUSIVE), &[]).ended(1);
    assert_eq!(mode(&sim), ComputeMode::Default);
}

/// Every program outside MPS fails afterwards: anyone who reads the plan must know.
#[test]
fn plans_say_what_becomes_of_it() {
    let sim = Sim::with("h200", 2);
    let one = |settings: &str| whole(settings).replace("all = true", "index = [0]");
    let path = sim.profile(&one(EXCLUSIVE)).display().to_string();
    let plan = |sim: &Sim| sim.run(&["plan", &path]).ended(0).tidy();
    assert_snapshot!(plan(&sim), @"
    GPU 0  NVIDIA H200  GPU-…
      ~ set compute mode to exclusive-process: MPS alone computes (restored by down)
      + start 1 daemon (no daemon yet): 0

    Plan: start 1 daemon and set the compute mode of 1 GPU.
    Apply with: mig-mps up profile.toml
    ");
    let gpu = sim.run(&["plan", &path, "--json"]).json()["gpus"][0].clone();
    let change = json!({ "from": "default", "to": "exclusive-process" });
    assert_eq!(gpu["compute_mode"], change);
    let said = sim.up(&one(EXCLUSIVE), &[]).ended(0).stdout;
    assert_contains(&said, "~ set compute mode to exclusive-process");

    // It stays when the daemon is started again, and is set again where somebody has changed it.
    let restart = |sim: &Sim| sim.run(&["restart", "0", "--dry-run"]).ended(0).tidy();
    assert!(!restart(&sim).contains("compute mode"));
    set(&sim, ComputeMode::Default);
    assert_snapshot!(restart(&sim), @"
    GPU 0  NVIDIA H200  GPU-…
      - stop 1 daemon: 0
      ~ set compute mode to exclusive-process: MPS alone computes (restored by down)
      + start 1 daemon: 0

    Plan: restart 1 daemon and set the compute mode of 1 GPU.
    ");
    assert!(plan(&sim).contains("~ set compute mode to exclusive-process"));
    sim.run(&["restart", "0", "--yes"]).ended(0);

    // A profile that does not ask for it gives it back, and so does down.
    sim.profile(&one(""));
    assert_snapshot!(plan(&sim), @"
    GPU 0  NVIDIA H200  GPU-…
      - stop 1 daemon (compute-mode is exclusive-process, not as it was): 0
      ~ set compute mode back to default (as before its daemon)
      + start 1 daemon (compute-mode is exclusive-process, not as it was): 0

    Plan: restart 1 daemon and set the compute mode of 1 GPU.
    Apply with: mig-mps up profile.toml
    ");
    let down = sim.run(&["down", "--disable-mig", "--yes"]).ended(0).tidy();
    assert_snapshot!(down, @"
    GPU 0  NVIDIA H200  GPU-…
      - stop 1 daemon: 0
      ~ set compute mode back to default (as before its daemon)
    1 daemon stopped in N s
    ");

    // What was there before nobody sets.
    set(&sim, ComputeMode::ExclusiveProcess);
    sim.profile(&one(EXCLUSIVE));
    assert!(!plan(&sim).contains("compute mode"), "{}", plan(&sim));
}
