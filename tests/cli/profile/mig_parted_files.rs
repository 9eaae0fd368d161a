//! Configurations of mig-parted's own files imported, applied and exported as profiles, by the program. The planner's test
//! has every configuration.

use simnode::catalog::Model;
use testkit::{Sim, repository};

use crate::planner::mig_parted_config::{Entry, FILES, Gpus, geometry, read, suits, wanted};

/// A file, and what is of its own in one of its configurations.
const CASES: [(&str, &str); 8] = [
    ("config-default.yaml", "all-disabled"),
    ("config-default.yaml", "all-enabled"),
    // Filters of models.
    ("config-default.yaml", "all-balanced"),
    ("config-default.yaml", "all-1g.24gb.gfx"),
    ("nvidia-mig-manager-example.yaml", "all-1g.5gb.me"),
    (
        "nvidia-mig-manager-example-hopper-blackwell.yaml",
        "all-1g.18gb",
    ),
    // Lists of GPUs.
    ("config.yaml", "custom-config"),
    (
        "dgx-station-80gb-config.yaml",
        "balanced-k8s-dgx-station-80",
    ),
];

/// The files list indices up to 7.
const MOST: u32 = 8;

/// Imports a configuration, applies it without daemons to a node of the first model that it suits, and exports the node.
fn there_and_back(file: &str, name: &str, entries: &[Entry]) {
    let mut keys: Vec<&str> = Model::names().collect();
    keys.sort_unstable();
    let mut models = keys.into_iter().filter_map(Model::named);
    let model = models.find(|model| suits(&wanted(entries, model, MOST), model));
    let model = model.unwrap();
    // Few GPUs are quick.
    let least = |entry: &Entry| match &entry.devices {
        Gpus::All(_) => 2,
        Gpus::Some(indices) => indices.iter().max().map_or(1, |most| most + 1),
    };
    let gpus = entries.iter().map(least).max().unwrap();
    let wanted = wanted(entries, model, gpus);
    let case = format!("{name} of {file} on {}", model.key);

    let sim = Sim::with(&model.key, gpus as usize);
    let path = repository().join("fixtures/mig-parted").join(file);
    let imported = sim
        .run(&["import", path.to_str().unwrap(), "--config", name])
        .ended(0);
    let profile = format!("mps = false\n{}", imported.stdout);
    sim.up(&profile, &["--yes"]).ended(0);
    sim.up_does_nothing(&profile);
    assert_eq!(sim.happened("daemon start"), 0, "{case}");

    let state = sim.node.node().state().unwrap();
    let is_on = (0..).zip(state.gpus.iter().map(|gpu| gpu.mig.current));
    let mut devices = Vec::new();
    for (index, gpu) in (0..).zip(&state.gpus) {
        for instance in &gpu.instances {
            let compute = instance.compute.iter();
            devices.extend(compute.map(|compute| (index, gpu.describe(instance, compute).name)));
        }
    }
    let mut made = geometry(is_on, devices);
    made.retain(|gpu, _| wanted.contains_key(gpu));
    assert_eq!(made, wanted, "{case}");

    let exported = sim.run(&["export"]).ended(0);
    let path = sim.profile(&exported.stdout);
    let plan = ["plan", path.to_str().unwrap(), "--exit-code"];
    sim.run(&plan).ended(0);
}

#[test]
fn configurations_of_mig_parted_go_through_the_program() {
    for (file, name) in CASES {
        let (_, yaml) = FILES.iter().find(|(known, _)| *known == file).unwrap();
        there_and_back(file, name, &read(yaml).mig_configs[name]);
    }
}
