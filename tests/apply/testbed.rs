//! A simulated node that this very process changes through the library, so that every call of a run can be met by a fault.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use mig_mps::internals::apply::{
    self, Allowed, ApplyContext, ApplyError, OnFailure, Progress, StepOf,
};
use mig_mps::internals::host::{Directories, Environment, MpsPrograms};
use mig_mps::internals::node::{DaemonState, Detail, Node, observe};
use mig_mps::internals::plan::{self, GpuPlan, Plan};
use mig_mps::internals::profile::Profile;
use mig_mps::internals::state::RunDir;

use testkit::{Sim, built};

/// A node, and what a run on it needs.
pub(crate) struct Testbed {
    pub(crate) sim: Sim,
    pub(crate) hand: Hand,
}

/// Everything a run needs: in this process, or in one that is started to be killed.
pub(crate) struct Hand {
    pub(crate) environment: Environment,
    pub(crate) directories: Directories,
    programs: MpsPrograms,
    /// When servers start: `eager` or `lazy`.
    pub(crate) server: String,
    pub(crate) on_failure: OnFailure,
}

/// Each GPU's instances, GPUs parted by a slash: `3g.40gb@0 3g.40gb@4 / 7g.80gb@0`. Each gets its full compute instance and a daemon
/// with the default name. `off` is the whole GPU with a daemon, and what follows are settings. All GPUs with `joint` are one device.
/// A GPU without any is left alone.
pub(crate) type Layout = str;

/// Shows nothing.
struct Silent;

impl Progress for Silent {
    fn begin(&self, _step: StepOf<'_>) {}
    fn waits(&self, _step: StepOf<'_>, _others: &str) {}
    fn end(&self, _step: StepOf<'_>, _is_done: bool) {}
    fn undoes(&self, _gpu: &GpuPlan) {}
    fn note(&self, _what: &str) {}
}

impl Hand {
    pub(crate) fn new(mut environment: Environment) -> Self {
        // This process is no mig-mps: it cannot launch daemons.
        environment.helper.clone_from(&built().mig_mps);
        let directories = environment.directories().unwrap();
        RunDir::at(&directories.run).make().unwrap();
        fs::create_dir_all(&directories.log).unwrap();
        Self {
            programs: environment.mps_programs().unwrap(),
            environment,
            directories,
            server: "eager".to_owned(),
            on_failure: OnFailure::RollBack,
        }
    }

    pub(crate) fn observe(&self) -> Node {
        // What `status` reads is too little to plan with.
        observe(&self.environment, Detail::PLAN).unwrap()
    }

    pub(crate) fn run(&self, node: &Node, plan: &Plan, allowed: Allowed) -> Result<(), ApplyError> {
        let context = ApplyContext {
            environment: &self.environment,
            directories: &self.directories,
            programs: &self.programs,
            node,
            allowed,
            is_resumable: true,
        };
        apply::run(plan, &context, &Silent, self.on_failure).map(drop)
    }

    /// Plans and carries out what brings the GPUs to a layout.
    pub(crate) fn bring_to(&self, layout: &Layout) -> Result<(), ApplyError> {
        self.bring_with(layout, Allowed::default())
    }

    pub(crate) fn bring_with(&self, layout: &Layout, allowed: Allowed) -> Result<(), ApplyError> {
        let node = self.observe();
        let plan = self.reconfigure(&node, layout);
        self.run(&node, &plan, allowed)
    }

    /// The plan that brings the GPUs to a layout.
    pub(crate) fn reconfigure(&self, node: &Node, layout: &Layout) -> Plan {
        let directories = RunDir::at(&self.directories.run);
        let profile = self.profile(layout);
        plan::up(node, &profile, &directories, self.environment.caller)
            .unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn profile(&self, layout: &Layout) -> Profile {
        let mut text = format!("[mps]\nserver = \"{}\"\n", self.server);
        let joint: Vec<usize> = (0..)
            .zip(layout.split('/'))
            .filter(|(_, layout)| layout.trim() == "joint")
            .map(|(gpu, _)| gpu)
            .collect();
        if !joint.is_empty() {
            let _ = write!(
                text,
                "[[gpu]]\nselect = {{ index = {joint:?} }}\nmig = false\nname = \"joint\"\njoint = true\n"
            );
        }
        for (gpu, layout) in layout.split('/').enumerate() {
            let device = |part: &str| {
                let (name, start) = part.split_once('@').unwrap();
                format!("{{ profile = \"{name}\", at = {start} }}")
            };
            let wanted = match layout.trim().split_once("off") {
                None if ["", "joint"].contains(&layout.trim()) => continue,
                Some((_, settings)) => format!("mig = false\nmps = {{ {settings} }}"),
                None => {
                    let devices: Vec<String> = layout.split_whitespace().map(device).collect();
                    format!("devices = [ {} ]", devices.join(", "))
                }
            };
            let _ = write!(text, "[[gpu]]\nselect = {{ index = [{gpu}] }}\n{wanted}\n");
        }
        Profile::parse(Path::new("layout.toml"), text).unwrap()
    }
}

impl Testbed {
    pub(crate) fn with(model: &str, count: usize) -> Self {
        let sim = Sim::with(model, count);
        // The dynamic linker takes two links to one file for one library: each node in this process needs its own.
        let library = sim.node.dir().join("lib/own.so");
        fs::copy(
            fs::canonicalize(sim.node.dir().join("lib/libnvidia-ml.so.1")).unwrap(),
            &library,
        )
        .unwrap();
        let mut variables: HashMap<_, _> = sim.node.env().into_iter().collect();
        variables.insert("MIG_MPS_NVML_LIBRARY".into(), library.into());
        let environment =
            Environment::of(|name| variables.get(std::ffi::OsStr::new(name)).cloned());
        Self {
            hand: Hand::new(environment),
            sim,
        }
    }

    /// Everything that can stand on the node, in the words in which a report names it, and in brackets what no report tells.
    pub(crate) fn things(&self) -> BTreeSet<String> {
        let node = self.hand.observe();
        let mut things = BTreeSet::new();
        for gpu in &node.gpus {
            let title = format!("GPU {} ({})", gpu.index, gpu.uuid);
            if gpu.in_mig_mode() {
                things.insert(format!("{title}: MIG mode on"));
            }
            if let Some(mode) = gpu.compute_mode.filter(|mode| *mode > 0) {
                things.insert(format!("{title}: compute mode {mode}"));
            }
            for instance in &gpu.instances {
                let name = &gpu.profile(instance.profile).unwrap().name;
                let at = instance.placement;
                things.insert(format!("{title}: {name} at {at}"));
                for compute in &instance.compute {
                    let compute = compute.placement;
                    things.insert(format!(
                        "{title}: compute instance {compute} of the GPU instance at {at}"
                    ));
                }
            }
            for device in &node.devices {
                if let Some(served) = &device.served
                    && served.record.key.gpu == gpu.uuid
                {
                    let name = &served.record.name;
                    let as_recorded = device.is_there()
                        && served.record.finished
                        && matches!(served.state, DaemonState::Ready | DaemonState::NoServerYet);
                    let how = if as_recorded {
                        String::new()
                    } else {
                        format!(" (not as recorded: {:?})", served.state)
                    };
                    let answered = served.answered.as_ref();
                    let settings = answered.map(|is| is.over(&served.record.settings));
                    things.insert(format!("{title}: daemon of {name} [{settings:?}]{how}"));
                }
            }
        }
        things
    }

    /// Everything that mig-mps takes for its own, for comparing.
    pub(crate) fn ledger(&self) -> BTreeSet<String> {
        let node = self.hand.observe();
        node.created
            .iter()
            .map(|created| format!("{created:?}"))
            .collect()
    }

    /// The run directory's entries but for the lock, device directories by the name of their device.
    pub(crate) fn is_tidy(&self) {
        let node = self.hand.observe();
        let devices: BTreeSet<&str> = node
            .served()
            .map(|served| served.record.uuid.as_str())
            .collect();
        for entry in self.sim.run_dir() {
            let is_known = ["lock", "by-name", "node.json", "reserve"].contains(&entry.as_str())
                || devices.contains(entry.as_str());
            assert!(is_known, "{entry} is left in the run directory");
        }
    }
}
