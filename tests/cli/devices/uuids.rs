//! MIG devices whose UUIDs change when they are made again.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::json;
use simnode::node::Uuids;

use testkit::{Ran, Sim, in_state};

const PROFILE: &str = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "2g" }, { profile = "1g" } ]
"#;

const SMALL: &str = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "1g" } ]
"#;

/// A node where a UUID depends on the order in which devices are made.
fn by_order() -> Sim {
    let sim = Sim::with("h200", 1);
    let update = sim.node.node();
    update
        .update(|state| state.policy.uuids = Uuids::ByOrder)
        .unwrap();
    sim
}

/// NVIDIA's program, as another administrator runs it.
pub(crate) fn nvidia_smi(sim: &Sim, arguments: &str) {
    let mut command: Command = sim.node.program("nvidia-smi");
    Ran::of(command.args(arguments.split(' '))).ended(0);
}

/// The profile, first slice and UUID of each device of the node.
fn devices(sim: &Sim) -> BTreeMap<(u32, u32), String> {
    let state = sim.node.node().state().unwrap();
    let devices = state.gpus[0].mig_devices();
    devices
        .map(|(gi, ci)| ((gi.profile, gi.placement.start), ci.uuid.clone()))
        .collect()
}

/// Everything that has a UUID has that of the device as it is now: the status, the environment of programs, and the daemons.
fn everything_has_its_uuid(sim: &Sim) {
    let real: Vec<String> = devices(sim).into_values().collect();
    let status = sim.status();
    let names = in_state(&status, "ready");
    assert_eq!(names.len(), real.len());
    for name in names {
        let device = sim.device(&name);
        let uuid = device["uuid"].as_str().unwrap().to_owned();
        assert!(real.contains(&uuid), "{name} has {uuid} of {real:?}");
        let env = sim.run(&["env", &name]).ended(0).stdout;
        assert!(env.contains(&uuid), "{env}");
        let daemon = &device["daemon_pid"];
        let environment = std::fs::read_to_string(format!("/proc/{daemon}/environ")).unwrap();
        let visible = format!("CUDA_VISIBLE_DEVICES={uuid}\0");
        assert!(environment.contains(&visible), "{name}: {environment}");
        sim.client(&name);
    }
}

#[test]
fn devices_that_another_tool_made_again_have_their_new_uuids() {
    let sim = by_order();
    sim.up(PROFILE, &["--yes"]).ended(0);
    everything_has_its_uuid(&sim);
    let before = devices(&sim);
    sim.run(&["down", "--yes"]).ended(0);
    nvidia_smi(&sim, "mig -dci");
    nvidia_smi(&sim, "mig -dgi");
    // Ascending, so the smaller one first.
    let places: Vec<String> = before
        .keys()
        .rev()
        .map(|(profile, start)| format!("{profile}:{start}"))
        .collect();
    nvidia_smi(&sim, &format!("mig -cgi {} -C", places.join(",")));
    let after = devices(&sim);
    assert!(before.keys().eq(after.keys()));
    assert!(
        before
            .values()
            .all(|uuid| !after.values().any(|new| new == uuid))
    );
    sim.up(PROFILE, &["--yes"]).ended(0);
    assert_eq!(devices(&sim), after, "they are as the profile has them");
    everything_has_its_uuid(&sim);
}

#[test]
fn devices_have_their_new_uuids_after_each_apply() {
    let sim = by_order();
    sim.up(PROFILE, &["--yes"]).ended(0);
    let before = devices(&sim);
    sim.node.reboot();
    // Now the smaller one is the first.
    let (profile, start) = before.keys().next_back().unwrap();
    assert_eq!(*profile, 19);
    let small = SMALL.replace("\"1g\"", &format!("\"1g\", at = {start}"));
    let path = sim.profile(&small).display().to_string();
    let made = sim.run(&["up", &path, "--yes", "--json"]).json();
    assert_eq!(made["changed"], json!(true));
    everything_has_its_uuid(&sim);
    sim.up(PROFILE, &["--yes"]).ended(0);
    let after = devices(&sim);
    assert!(before.keys().eq(after.keys()), "{before:?} {after:?}");
    assert!(
        before
            .values()
            .all(|uuid| !after.values().any(|new| new == uuid))
    );
    everything_has_its_uuid(&sim);
}

/// `nvml.h` describes the device in a compute instance's information as its parent.
#[test]
fn devices_are_found_where_nvml_names_the_gpu_of_a_compute_instance() {
    let sim = Sim::with("a100-80gb", 1);
    let node = sim.node.node();
    node.update(|state| state.policy.compute_info_names_gpu = true)
        .unwrap();
    sim.up(PROFILE, &["--yes"]).ended(0);
    everything_has_its_uuid(&sim);
    sim.up_does_nothing(PROFILE);
    let sizes = |sim: &Sim| {
        let list = sim.run(&["list", "--json"]).ended(0).json();
        list["gpus"][0]["gpu_instances"].clone()
    };
    let seen = sizes(&sim);
    node.update(|state| state.policy.compute_info_names_gpu = false)
        .unwrap();
    assert_eq!(seen, sizes(&sim));
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
}
