//! `down --disable-mig`: which GPUs, and where the mode stays.

use crate::common::{ONE_EACH, SMALL, Sim};

/// Where an Ampere GPU's MIG mode changes with a reboot.
fn in_a_virtual_machine() -> Sim {
    let sim = Sim::with("a100-80gb", 1);
    let platform = simnode::node::Platform::PassThrough;
    let update = sim
        .node
        .node()
        .update(|state| state.policy.platform = platform);
    update.unwrap();
    sim
}

#[test]
fn disable_mig_leaves_the_gpus_of_other_devices_alone() {
    let sim = Sim::with("h200", 2);
    sim.up(ONE_EACH, &[]).ended(0);
    sim.run(&["down", "1.0", "--destroy-mig", "--yes"]).ended(0);
    sim.run(&["down", "0.0", "--disable-mig", "--yes"]).ended(0);
    let list = sim.list();
    assert_eq!(list["gpus"][0]["mig"]["current"], false, "{list:#}");
    assert_eq!(list["gpus"][1]["mig"]["current"], true, "{list:#}");
}

#[test]
fn a_mode_that_was_only_noted_is_no_longer_ours_once_it_is_taken_back() {
    let sim = in_a_virtual_machine();
    sim.up(SMALL, &[]).ended(3);
    let ran = sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert!(
        ran.stderr.contains("MIG mode off on 1 GPU."),
        "{}",
        ran.stderr
    );
    assert_eq!(sim.run_dir(), ["lock"]);
}

#[test]
fn disable_mig_says_where_the_mode_stays() {
    let sim = in_a_virtual_machine();
    sim.up(SMALL, &[]).ended(3);
    sim.node.reboot();
    sim.up(SMALL, &[]).ended(0);
    let ran = sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert!(
        ran.stderr.contains("MIG mode stays on: GPU 0"),
        "{}",
        ran.stderr
    );
}

#[test]
fn disable_mig_warns_of_the_reset_that_ampere_needs() {
    for (model, warns) in [("a100-80gb", true), ("h200", false)] {
        let sim = Sim::with(model, 1);
        sim.up(SMALL, &[]).ended(0);
        let ran = sim.run(&["down", "--disable-mig"]).ended(4);
        let warned = ran.stderr.contains("needs a GPU reset");
        assert_eq!(warned, warns, "{model}: {}", ran.stderr);
    }
}
