//! A simulated node that this very process changes through the library, so that plans can be made by hand and every call of a run
//! be met by a fault.

use std::collections::{BTreeSet, HashMap};
use std::fs;

use mig_mps::apply::{self, Allowed, ApplyError, OnFailure, Progress, Site};
use mig_mps::environment::{Environment, Home, MpsPrograms};
use mig_mps::geometry::{ComputeChoice, Placement};
use mig_mps::mps::Patience;
use mig_mps::node::{Gpu, Life, Look, Node, RunDir, observe};
use mig_mps::plan::{Action, GpuPlan, Place, Plan, Start, Step, Stop};
use mig_mps::profile::{Serve, Server, Settings};

use crate::common::Sim;

/// A node, and what a run on it needs.
pub(crate) struct Scene {
    pub(crate) sim: Sim,
    pub(crate) hand: Hand,
}

/// What a run needs: in this process, or in one that is started to be killed.
pub(crate) struct Hand {
    pub(crate) environment: Environment,
    pub(crate) home: Home,
    programs: MpsPrograms,
    /// When servers start.
    pub(crate) server: Server,
}

/// Each GPU's instances, GPUs parted by a slash: `3g.40gb@0 3g.40gb@4 / 7g.80gb@0`. Each gets its full compute instance and a daemon
/// with the default name. `off` switches MIG mode off. A GPU
/// without any is left alone.
pub(crate) type Layout = str;

/// Shows nothing.
struct Silent;

impl Progress for Silent {
    fn begin(&self, _gpu: u32, _action: &Action) {}
    fn end(&self, _gpu: u32, _action: &Action) {}
}

impl Hand {
    pub(crate) fn new(environment: Environment) -> Self {
        let home = environment.home().unwrap();
        RunDir::at(&home.run).make().unwrap();
        fs::create_dir_all(&home.log).unwrap();
        Self {
            programs: environment.mps_programs().unwrap(),
            environment,
            home,
            server: Server::Eager,
        }
    }

    pub(crate) fn observe(&self) -> Node {
        // Nobody but the test uses these daemons: there is no need to ask each of them.
        observe(&self.environment, Look::Status).unwrap()
    }

    pub(crate) fn run(&self, node: &Node, plan: &Plan, allowed: Allowed) -> Result<(), ApplyError> {
        let site = Site {
            environment: &self.environment,
            home: &self.home,
            programs: &self.programs,
            node,
            allowed,
        };
        apply::run(plan, &site, &Silent, OnFailure::RollBack)
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

    /// A planner for tests: what is not in a GPU's layout goes, what is missing comes, and what stands stays.
    pub(crate) fn reconfigure(&self, node: &Node, layout: &Layout) -> Plan {
        let mut plan = Plan::default();
        for (gpu, layout) in node.gpus.iter().zip(layout.split('/')) {
            let wanted: Vec<&str> = layout.split_whitespace().collect();
            if wanted.is_empty() {
                continue;
            }
            let steps = steps(node, gpu, &wanted, self.server);
            if !steps.is_empty() {
                plan.gpus.push(of_gpu(gpu, steps));
            }
        }
        plan
    }
}

impl Scene {
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

    /// Everything that can stand on the node, in the words in which a report names it.
    pub(crate) fn things(&self) -> BTreeSet<String> {
        let node = self.hand.observe();
        let mut things = BTreeSet::new();
        for gpu in &node.gpus {
            let title = format!("GPU {} ({})", gpu.index, gpu.uuid);
            if gpu.in_mig_mode() {
                things.insert(format!("{title}: MIG mode on"));
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
            for served in &node.served {
                if served.record.key.gpu == gpu.uuid {
                    let name = &served.record.name;
                    let as_recorded = served.device_is_there
                        && served.record.finished
                        && matches!(served.life, Life::Ready | Life::NoServerYet);
                    let how = if as_recorded {
                        ""
                    } else {
                        " (not as recorded)"
                    };
                    things.insert(format!("{title}: daemon of {name}{how}"));
                }
            }
        }
        things
    }

    /// What mig-mps takes for its own, for comparing.
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
            .served
            .iter()
            .map(|served| served.record.uuid.as_str())
            .collect();
        for entry in self.sim.run_dir() {
            let is_known = ["lock", "by-name", "node.json"].contains(&entry.as_str())
                || devices.contains(entry.as_str());
            assert!(is_known, "{entry} is left in the run directory");
        }
    }
}

/// The plan of one GPU.
fn of_gpu(gpu: &Gpu, actions: Vec<Action>) -> GpuPlan {
    GpuPlan {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        product: gpu.product.clone(),
        before: gpu.slice_map(),
        after: gpu.slice_map(),
        steps: actions
            .into_iter()
            .map(|action| Step {
                action,
                because: "the test wants it".to_owned(),
            })
            .collect(),
        to_be_continued: false,
        obstacles: Vec::new(),
    }
}

fn steps(node: &Node, gpu: &Gpu, layout: &[&str], server: Server) -> Vec<Action> {
    let off = *layout == ["off"];
    let wanted: Vec<_> = layout
        .iter()
        .filter(|_| !off)
        .map(|part| {
            let (name, start) = part.split_once('@').unwrap();
            let profile = gpu
                .profiles
                .iter()
                .find(|profile| profile.name.to_string() == name)
                .unwrap();
            let mut places = profile.placements.iter();
            (
                profile,
                *places
                    .find(|place| place.start.to_string() == start)
                    .unwrap(),
            )
        })
        .collect();
    let stays = |placement: Placement| {
        let standing = gpu.instances.iter().find(|i| i.placement == placement);
        standing.is_some_and(|standing| {
            wanted
                .iter()
                .any(|(profile, at)| *at == placement && profile.id == standing.profile)
        })
    };
    let mut steps = Vec::new();
    let mut served_starts = BTreeSet::new();
    for served in node.served.iter().filter(|s| s.record.key.gpu == gpu.uuid) {
        let placement = served.record.key.instance.map(|key| key.placement);
        let alive = served.is_alive();
        let kept = placement.is_some_and(stays) && served.device_is_there && alive;
        if kept {
            // One that an interrupted run did not finish is started over it.
            served_starts.extend(placement.filter(|_| served.record.finished));
        } else {
            steps.push(Action::Stop(Stop {
                name: served.record.name.clone(),
                uuid: served.record.uuid.clone(),
                patience: Patience::Idle,
                alive,
                clients: Vec::new(),
                unasked: None,
            }));
        }
    }
    for instance in gpu.instances.iter().filter(|i| !stays(i.placement)) {
        for compute in &instance.compute {
            steps.push(Action::DestroyComputeInstance {
                instance: instance.placement,
                compute: compute.placement,
            });
        }
        steps.push(Action::DestroyGpuInstance {
            profile: instance.profile,
            name: gpu.profile(instance.profile).unwrap().name.clone(),
            placement: instance.placement,
        });
    }
    if gpu.in_mig_mode() == off {
        steps.push(Action::SwitchMig { on: !off });
    }
    for &(profile, placement) in &wanted {
        let standing = gpu.instances.iter().find(|i| i.placement == placement);
        let standing = standing.filter(|_| stays(placement));
        if standing.is_none() {
            steps.push(Action::CreateGpuInstance {
                profile: profile.id,
                name: profile.name.clone(),
                placement,
            });
        }
        if standing.is_none_or(|standing| standing.compute.is_empty()) {
            steps.push(Action::CreateComputeInstance {
                instance: placement,
                compute: ComputeChoice::Full,
            });
        }
        if !served_starts.contains(&placement) {
            steps.push(start(gpu.index, placement, server));
        }
    }
    steps
}

/// The start of a daemon under its default name.
fn start(gpu: u32, placement: Placement, server: Server) -> Action {
    let settings = Settings::default();
    Action::Start(Start {
        name: format!("{gpu}.{}", placement.start),
        place: Place::Part { placement, nth: 0 },
        serve: if rustix::process::geteuid().is_root() {
            Serve::OneAtATime
        } else {
            Serve::Own
        },
        server,
        active_thread_percentage: settings.active_thread_percentage,
    })
}
