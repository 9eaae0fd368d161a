//! mig-parted's own configuration files: each configuration imported, applied and exported again, by the program.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use simnode::catalog::Model;

use crate::planner::mig_parted_config::{
    Entry, FILES, Geometry, Gpus, exported, read, suits, wanted,
};
use testkit::Sim;

/// The files list indices up to 7.
const MOST: u32 = 8;

/// A configuration, and a node for it.
struct Case {
    path: String,
    name: String,
    model: &'static Model,
    gpus: u32,
    wanted: BTreeMap<u32, Geometry>,
}

impl Case {
    /// The configuration on the first model that it suits.
    fn of(file: &str, name: &str, entries: &[Entry]) -> Option<Self> {
        let mut keys: Vec<&str> = Model::names().collect();
        keys.sort_unstable();
        let mut models = keys.into_iter().filter_map(Model::named);
        let model = models.find(|model| suits(&wanted(entries, model, MOST), model))?;
        // Few GPUs are quick.
        let least = |entry: &Entry| match &entry.devices {
            Gpus::All(_) => 2,
            Gpus::Some(indices) => indices.iter().max().map_or(1, |most| most + 1),
        };
        let gpus = entries.iter().map(least).max()?;
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/mig-parted");
        Some(Self {
            path: format!("{directory}/{file}"),
            name: name.to_owned(),
            model,
            gpus,
            wanted: wanted(entries, model, gpus),
        })
    }

    /// Imports the configuration, applies it without daemons, and exports the node in both formats. Returns true if a GPU
    /// has MIG on.
    fn run(&self) -> bool {
        let case = format!("{} of {} on {}", self.name, self.path, self.model.key);
        let sim = Sim::with(&self.model.key, self.gpus as usize);
        let import = ["import", &self.path, "--config", &self.name];
        let imported = sim.run(&import).ended(0).stdout;
        let profile = format!("mps = false\n{imported}");
        sim.up(&profile, &["--yes"]).ended(0);
        sim.up_does_nothing(&profile);
        assert_eq!(sim.happened("daemon start"), 0, "{case}");

        let parted = sim.run(&["export", "--format", "mig-parted"]).ended(0);
        let mut made = exported(&parted.stdout);
        made.retain(|gpu, _| self.wanted.contains_key(gpu));
        assert_eq!(made, self.wanted, "{case}");

        let own = sim.run(&["export"]).ended(0);
        let path = sim.profile(&own.stdout);
        let plan = ["plan", path.to_str().unwrap(), "--exit-code"];
        sim.run(&plan).ended(0);
        self.wanted.values().any(|(is_enabled, _)| *is_enabled)
    }
}

#[test]
fn the_files_of_mig_parted_go_through_the_program_and_come_back() {
    let mut counts = Vec::new();
    let mut cases = Vec::new();
    for (file, yaml) in FILES {
        let configs = read(yaml).mig_configs;
        let before = cases.len();
        cases.extend(
            configs
                .iter()
                .filter_map(|(name, entries)| Case::of(file, name, entries)),
        );
        counts.push((configs.len(), cases.len() - before));
    }
    let (next, with_mig) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            with_mig.fetch_add(usize::from(case.run()), Ordering::Relaxed);
        }
    };
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let with_mig = with_mig.into_inner();
    println!("{counts:?}: configurations and those with a model; {with_mig} switch MIG on");
    // As in the planner's test: six are for a GB200 that is not in the catalog.
    assert_eq!(counts, [(64, 61), (24, 24), (34, 31), (7, 7), (9, 9)]);
    assert_eq!(with_mig, 127);
}
