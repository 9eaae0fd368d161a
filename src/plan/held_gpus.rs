//! The processes that have a GPU open whose MIG mode a plan switches, or whose instances it destroys.

use std::collections::BTreeSet;

use super::{Action, GpuPlan, Plan};
use crate::failure::Problem;
use crate::host::{Holder, Holders, Pid, format_gpus};
use crate::mps::ClientPolicy;
use crate::node::{Gpu, Node};

/// GPUs whose MIG mode a plan switches or whose instances it destroys, and the processes that have each open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldGpus {
    /// The indices of the GPUs.
    pub gpus: Vec<u32>,
    /// Their UUIDs.
    pub uuids: Vec<String>,
    /// The processes that have them open, without those that MPS accounts for.
    pub holders: Holders,
    pub work: Work,
    /// True if the MIG mode cannot be switched before the holders end, or is not to be tried.
    pub is_in_the_way: bool,
    /// The cost of the steps before the switch.
    pub cost: Cost,
    /// True if some of the holders keep the GPUs open during the switch.
    pub stay: bool,
    /// The monitoring services among the holders that may be stopped for the change.
    pub services: BTreeSet<String>,
    /// True if the switch is certain to fail then; otherwise the driver decides.
    pub needs_reset: bool,
}

/// The steps that the driver may refuse while others have the GPU open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Switch,
    Destroy,
    DestroyAndSwitch,
}

/// The cost of the steps that come before a switch on the same GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// There are none.
    Nothing,
    /// All of it can be put back: daemons, instances.
    Undoable,
    /// Clients exit before.
    Clients,
    /// Clients are ended.
    EndedClients,
}

/// The unit of the fabric manager, which holds all GPUs and lets go of one that is reset.
const FABRIC_MANAGER: &str = "nvidia-fabricmanager.service";

impl Plan {
    /// Returns the GPUs on which holders may be in the way.
    pub fn gpus_affected_by_holders<'n>(&self, node: &'n Node) -> Vec<&'n Gpu> {
        let gpus = self.gpus.iter().filter_map(|plan| {
            let gpu = node.gpu_with_uuid(&plan.uuid)?;
            Work::from_plan(plan, gpu).map(|_| gpu)
        });
        gpus.collect()
    }

    /// Returns those of the GPUs that others hold. `stops_holders` tells if monitoring services are stopped for the change.
    /// Programs that have a GPU open seldom keep an instance from being destroyed: only the services are of interest then.
    pub fn held_gpus<'n>(
        &self,
        node: &Node,
        holders: impl IntoIterator<Item = (&'n Gpu, Holders)>,
        stops_holders: bool,
    ) -> Vec<HeldGpus> {
        let accounted_for = pids_accounted_for(node);
        let mut all: Vec<HeldGpus> = Vec::new();
        for (gpu, mut holders) in holders {
            let Some(plan) = self.gpus.iter().find(|plan| plan.uuid == gpu.uuid) else {
                continue;
            };
            let Some(work) = Work::from_plan(plan, gpu) else {
                continue;
            };
            holders
                .seen
                .retain(|holder| !accounted_for.contains(&holder.pid));
            if work == Work::Destroy {
                holders
                    .seen
                    .retain(|holder| stops_holders && holder.is_monitoring());
                holders.hidden = 0;
            }
            if holders == Holders::default() {
                continue;
            }
            let held = HeldGpus::new(gpu, holders, stops_holders, work, Cost::from_plan(plan));
            match all.iter_mut().find(|other| other.is_held_like(&held)) {
                Some(other) => {
                    other.gpus.extend(held.gpus);
                    other.uuids.extend(held.uuids);
                }
                None => all.push(held),
            }
        }
        all
    }
}

/// True if the plan changes the GPU's present MIG mode. To cancel a pending change, it need not be idle.
fn is_switched(plan: &GpuPlan, gpu: &Gpu) -> bool {
    plan.actions()
        .any(|action| matches!(action, Action::SwitchMig { on } if *on != gpu.in_mig_mode()))
}

impl Work {
    fn from_plan(plan: &GpuPlan, gpu: &Gpu) -> Option<Self> {
        let destroys = !plan.destroyed_instances().is_empty();
        match (destroys, is_switched(plan, gpu)) {
            (false, false) => None,
            (false, true) => Some(Self::Switch),
            (true, false) => Some(Self::Destroy),
            (true, true) => Some(Self::DestroyAndSwitch),
        }
    }
}

impl Cost {
    fn from_plan(plan: &GpuPlan) -> Self {
        plan.actions()
            .map(|action| match action {
                Action::Stop(stop) if !stop.may_have_clients() => Self::Undoable,
                Action::Stop(stop) if stop.patience == ClientPolicy::Idle => Self::Clients,
                Action::Stop(_) => Self::EndedClients,
                Action::DestroyComputeInstance { .. } | Action::DestroyGpuInstance { .. } => {
                    Self::Undoable
                }
                _ => Self::Nothing,
            })
            .max()
            .unwrap_or(Self::Nothing)
    }
}

/// Daemons, servers, clients and all that computes: their ends are planned, or they are obstacles of their own.
pub fn pids_accounted_for(node: &Node) -> BTreeSet<Pid> {
    let served = node.served().chain(&node.lost_records);
    let of_mps = served.flat_map(|served| {
        let closing = served.record.closing.as_ref();
        let held = closing.and_then(|closing| closing.held);
        let daemon = served.record.daemon.into_iter().chain(held);
        let daemon = daemon.map(|process| process.pid);
        let servers = served.servers.iter().map(|server| server.pid);
        let clients = served
            .clients
            .as_slice()
            .iter()
            .chain(&served.waiting)
            .filter_map(|client| client.pid);
        servers.chain(clients).chain(daemon)
    });
    let strays = node
        .devices
        .iter()
        .flat_map(|device| &device.strays)
        .map(|stray| stray.server.pid);
    let computing = node
        .devices
        .iter()
        .filter_map(|device| device.processes.as_ref())
        .flat_map(|processes| &processes.compute)
        .map(|usage| usage.pid);
    of_mps.chain(strays).chain(computing).collect()
}

impl HeldGpus {
    /// Only where the switch resets the GPU, all who have it open are known to be in its way; on other GPUs the driver
    /// decides.
    fn new(gpu: &Gpu, holders: Holders, stops_holders: bool, work: Work, cost: Cost) -> Self {
        let is_stopped = |holder: &Holder| stops_holders && holder.is_monitoring();
        let stay = holders
            .seen
            .iter()
            .any(|holder| !is_stopped(holder) && holder.unit.as_deref() != Some(FABRIC_MANAGER));
        let needs_reset = work != Work::Destroy && gpu.resetless == Some(false);
        let services = holders
            .seen
            .iter()
            .filter(|holder| is_stopped(holder))
            .filter_map(|holder| holder.unit.clone())
            .collect();
        Self {
            gpus: vec![gpu.index],
            uuids: vec![gpu.uuid.clone()],
            work,
            is_in_the_way: stay && needs_reset,
            cost,
            stay,
            services,
            needs_reset,
            holders,
        }
    }

    /// Returns the holders that nobody stops.
    fn staying_holders(&self) -> Vec<Holder> {
        let mut staying = self.holders.seen.clone();
        staying.retain(|holder| {
            let unit = holder.unit.as_ref();
            unit.is_none_or(|unit| !self.services.contains(unit))
        });
        staying
    }

    /// Keeps clients from being ended for a switch that the driver may then refuse.
    pub fn spare_clients(&mut self) {
        self.is_in_the_way |= self.stay && self.cost == Cost::EndedClients;
    }

    fn is_held_like(&self, other: &Self) -> bool {
        self.holders == other.holders
            && self.work == other.work
            && self.is_in_the_way == other.is_in_the_way
            && self.cost == other.cost
    }

    /// Names the GPUs: `GPUs 0-7`.
    pub fn title(&self) -> String {
        format_gpus(&self.gpus)
    }

    /// Returns the words for one GPU or for several.
    pub fn singular_or_plural(&self, one: &'static str, several: &'static str) -> &'static str {
        if self.gpus.len() == 1 { one } else { several }
    }

    /// `waiting for pid 4711 (alice, python train.py) to close GPUs 0-7`
    pub fn wait_message(&self) -> String {
        format!(
            "waiting for {} to close {}",
            self.holder_names(),
            self.title()
        )
    }

    /// Names the holders that nobody stops; empty if there are none.
    pub fn holder_names(&self) -> String {
        let names: Vec<String> = self
            .staying_holders()
            .iter()
            .map(Holder::to_string)
            .collect();
        names.join(", ")
    }

    /// True if the holders are certain to be in the way of the switch, and `--stop-holders` stops all of them.
    pub fn needs_stopped_services(&self) -> bool {
        let may_stay = |holder: &Holder| holder.unit.as_deref() == Some(FABRIC_MANAGER);
        let mut seen = self.holders.seen.iter();
        self.is_in_the_way && seen.all(|holder| holder.is_monitoring() || may_stay(holder))
    }

    /// Returns what to do about the holders.
    pub fn hint(&self) -> &'static str {
        Holder::release_hint(&self.staying_holders(), !self.services.is_empty())
    }

    /// Refuses the switch if the holders are certain to be in its way.
    pub fn check_not_held(&self) -> Result<(), Problem> {
        if !self.is_in_the_way {
            return Ok(());
        }
        let title = self.title();
        let reason = if self.needs_reset {
            format!("cannot switch the MIG mode of {title}")
        } else {
            format!(
                "the driver might reject the MIG mode change of {title} after clients were ended"
            )
        };
        Err(Problem::with_processes(
            &self.holder_names(),
            self.hint(),
            |holders| format!("{reason}: kept open by {holders}"),
        ))
    }
}
