//! The plan, and its part for one GPU.

use std::collections::BTreeSet;

use super::action::{Action, Start, Step, Stop};
use super::purge::Purge;
use super::refusal::{ClientOf, Obstacle};
use super::victim::Kill;
use crate::geometry::{Placement, SliceMap};
use crate::mps::Means;
use crate::node::{Gpu, Node};
use crate::nvml::EXCLUSIVE_PROCESS;
use crate::settings::MemoryLimit;

/// The steps that meet a request, by GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The GPUs that change, by index.
    pub gpus: Vec<GpuPlan>,
    /// Files to remove after everything else.
    pub purge: Option<Purge>,
    /// Clients to terminate; nothing else is done then.
    pub kill: Option<Kill>,
}

/// The steps for one GPU, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuPlan {
    /// Its index; `None` if the GPU is gone, and only its record is left.
    pub index: Option<u32>,
    pub uuid: String,
    /// Its product name; empty if the GPU is gone.
    pub product: String,
    /// Its instances now.
    pub before: SliceMap,
    /// Its instances afterwards.
    pub after: SliceMap,
    /// The actions.
    pub steps: Vec<Step>,
    /// True if the driver lists its profiles only once MIG is on (old drivers): the rest is planned then.
    pub to_be_continued: bool,
    /// The obstacles that keep the plan from being applied.
    pub obstacles: Vec<Obstacle>,
    /// The reset or reboot that is due, or may be.
    pub due: Option<String>,
    /// The change of its compute mode by the daemons that start and stop.
    pub compute_mode: Option<ModeChange>,
}

/// A change of the compute mode, in NVML's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeChange {
    /// The present mode; `None` if unknown, as in MIG mode.
    pub from: Option<u32>,
    /// The new mode.
    pub to: u32,
}

impl ModeChange {
    /// True if the start of a daemon sets it; false if the stop of one restores it.
    pub fn is_for_a_daemon(self) -> bool {
        self.to == EXCLUSIVE_PROCESS
    }
}

impl Plan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty() && self.purge.is_none() && self.kill.is_none()
    }

    /// Every step.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.gpus.iter().flat_map(|gpu| &gpu.steps)
    }

    /// The daemons that start.
    pub fn starts(&self) -> impl Iterator<Item = &Start> {
        self.steps().filter_map(|step| match &step.action {
            Action::Start(start) => Some(start),
            _ => None,
        })
    }

    /// The memory limits that it gives to clients, each once.
    pub fn memory_limits(&self) -> BTreeSet<MemoryLimit> {
        let limits = self.steps().filter_map(|step| match &step.action {
            Action::Start(start) => start.settings.pinned_memory_limit,
            Action::Set(set) => set.settings.pinned_memory_limit,
            _ => None,
        });
        limits.collect()
    }

    /// The daemons that stop.
    pub fn stops(&self) -> impl Iterator<Item = &Stop> {
        self.steps().filter_map(|step| match &step.action {
            Action::Stop(stop) => Some(stop),
            _ => None,
        })
    }

    /// The clients that keep their old settings.
    pub fn keep(&self) -> impl Iterator<Item = &ClientOf> {
        let sets = self.steps().filter_map(|step| match &step.action {
            Action::Set(set) => Some(set),
            _ => None,
        });
        sets.flat_map(|set| &set.keep)
    }

    /// Sorts the GPUs by index; those that are gone come last.
    pub(super) fn sort(&mut self) {
        self.gpus
            .sort_by_key(|gpu| (gpu.index.is_none(), gpu.index));
    }

    /// Appends a plan that continues this one.
    pub fn go_on_with(&mut self, rest: &Self) {
        for gpu in &rest.gpus {
            if let Some(own) = self.gpus.iter_mut().find(|own| own.uuid == gpu.uuid) {
                own.after = gpu.after.clone();
                own.steps.extend(gpu.steps.iter().cloned());
                own.to_be_continued = gpu.to_be_continued;
                own.compute_mode = gpu.compute_mode.or(own.compute_mode);
            } else {
                self.gpus.push(gpu.clone());
            }
        }
    }

    /// The names of the devices whose running daemons stop.
    pub fn interrupts(&self) -> Vec<&str> {
        // Nobody notices the end of a hung server without clients.
        let goes_on = |stop: &Stop| stop.means == Means::Heal && stop.clients.is_empty();
        let alive = self.stops().filter(|stop| stop.alive && !goes_on(stop));
        alive.map(|stop| stop.name.as_str()).collect()
    }

    /// The number of running daemons that restart unchanged.
    pub fn restarts(&self) -> usize {
        let again = |stop: &&Stop| {
            let start = |step: &Step| matches!(&step.action, Action::Start(start) if start.again && start.name == stop.name);
            stop.alive && self.steps().any(start)
        };
        let interrupts = self.interrupts();
        let is_interrupted = |stop: &&Stop| interrupts.contains(&stop.name.as_str());
        self.stops().filter(again).filter(is_interrupted).count()
    }

    /// The instances that are destroyed, as `GPU 0 3g.40gb at 4:4`; compute instances only where
    /// their GPU instance stays.
    pub fn destroys(&self) -> Vec<String> {
        self.gpus
            .iter()
            .flat_map(|gpu| {
                gpu.destroys()
                    .into_iter()
                    .map(move |(_, what)| format!("{} {what}", gpu.name()))
            })
            .collect()
    }

    /// True if this plan stops, destroys or switches off something that `shown` does not.
    pub fn disrupts_more_than(&self, shown: &Self) -> bool {
        let is_new = |name: &&str| !shown.interrupts().contains(name);
        let ended: Vec<&ClientOf> = shown.ended_clients().collect();
        let destroyed = shown.destroys();
        let switched_off = shown.switches(&[false]);
        self.interrupts().iter().any(is_new)
            || self.ended_clients().any(|client| !ended.contains(&client))
            || self.destroys().iter().any(|what| !destroyed.contains(what))
            || self
                .switches(&[false])
                .iter()
                .any(|gpu| !switched_off.contains(gpu))
    }

    /// The indices of the GPUs whose MIG mode is switched, to one of these.
    pub fn switches(&self, to: &[bool]) -> Vec<u32> {
        let is_switched =
            |step: &Step| matches!(step.action, Action::SwitchMig { on } if to.contains(&on));
        let gpus = self.gpus.iter();
        let gpus = gpus.filter(|gpu| gpu.steps.iter().any(is_switched));
        gpus.filter_map(|gpu| gpu.index).collect()
    }

    /// Returns the plan of one GPU, and adds it if there is none. A record may name a GPU that is gone.
    pub(super) fn of_gpu(&mut self, node: &Node, uuid: &str) -> &mut GpuPlan {
        let position = self.gpus.iter().position(|gpu| gpu.uuid == uuid);
        let position = position.unwrap_or_else(|| {
            let gpu = node.gpu(uuid);
            let map = gpu.map_or_else(|| SliceMap::new(0, Vec::new()), Gpu::slice_map);
            self.gpus.push(GpuPlan {
                index: gpu.map(|gpu| gpu.index),
                uuid: uuid.to_owned(),
                product: gpu.map_or_else(String::new, |gpu| gpu.product.clone()),
                before: map.clone(),
                after: map,
                steps: Vec::new(),
                to_be_continued: false,
                obstacles: Vec::new(),
                due: None,
                compute_mode: None,
            });
            self.gpus.len() - 1
        });
        &mut self.gpus[position]
    }
}

impl GpuPlan {
    /// Names the GPU, by its index if it has one.
    pub fn name(&self) -> String {
        match self.index {
            Some(index) => format!("GPU {index}"),
            None => format!("the removed GPU {}", self.uuid),
        }
    }

    /// Names the instances that are destroyed, each with its reason; compute instances only if their GPU instance stays.
    pub fn destroys(&self) -> Vec<(&str, String)> {
        let goes = |instance: Placement| {
            self.steps.iter().any(|step| {
                matches!(step.action, Action::DestroyGpuInstance { placement, .. } if placement == instance)
            })
        };
        let what = |action: &Action| match action {
            Action::DestroyGpuInstance {
                name, placement, ..
            } => Some(format!("{name} at {placement}")),
            Action::DestroyComputeInstance { instance, compute } if !goes(*instance) => {
                Some(format!("compute instance {compute} in {instance}"))
            }
            _ => None,
        };
        let steps = self.steps.iter();
        steps
            .filter_map(|step| Some((step.because.as_str(), what(&step.action)?)))
            .collect()
    }
}
