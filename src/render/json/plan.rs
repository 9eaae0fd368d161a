//! The documents of plans and of changes.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::verified::VerifiedDevice;
use super::{Message, VERSION, Version};
use crate::client::Verified;
use crate::host::{Holder, user_name};
use crate::node::Node;
use crate::nvml::compute_mode_in_words;
use crate::plan::{CdiChange, ClientOf, GpuPlan, Held, Kill, Plan, Signal, Undisturbed};
use crate::render::status::Status;

/// The output of `mig-mps plan --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "plan")]
pub struct PlanDocument {
    version: Version,
    /// True if there is something to do.
    changes: bool,
    /// The GPUs that change.
    gpus: Vec<PlannedGpu>,
    /// True if logs and what users left in pipe directories are removed.
    purges: bool,
    /// The change of the CDI file of container engines: `write`, or `remove`; null if it stays.
    cdi: Option<&'static str>,
    /// The clients whose work is ended; null if there is nothing of the kind to do.
    kill: Option<PlannedKill>,
    /// Remarks on the profile: probable mistakes, such as a block that selects no GPU.
    remarks: Vec<String>,
    /// The devices with clients that go on and keep everything that they have.
    undisturbed: Vec<Undisturbed>,
}

/// A GPU that changes.
#[derive(Debug, Serialize, JsonSchema)]
struct PlannedGpu {
    #[serde(flatten)]
    plan: GpuPlan,
    /// The change of its compute mode; null if it stays.
    compute_mode: Option<ComputeModeChange>,
    /// The clients that lose their device.
    disrupts: Vec<ClientOf>,
    /// The reasons why the plan cannot be applied as it is.
    obstacles: Vec<Message>,
    /// The processes that have the GPU open although its MIG mode is switched; null if it is not, or nobody has.
    holders: Option<Vec<PlannedHolder>>,
    /// The number of processes that could not be inspected: each may have it open, too.
    hidden_processes: usize,
}

/// A process that has a GPU open.
#[derive(Debug, Serialize, JsonSchema)]
struct PlannedHolder {
    /// The process id.
    pid: u32,
    /// The user's name; null if hidden.
    user: Option<String>,
    /// The command line.
    command: String,
    /// The systemd unit, such as `nvidia-dcgm.service`; null if there is none, or hidden.
    unit: Option<String>,
    /// The option that stops it for the switch and starts it again; null if it has to be ended by hand.
    option: Option<&'static str>,
}

impl PlannedHolder {
    fn of(holder: &Holder) -> Self {
        Self {
            pid: holder.pid.0,
            user: holder.user.map(user_name),
            command: holder.command.clone(),
            unit: holder.unit.clone(),
            option: holder.is_monitoring().then_some("--stop-holders"),
        }
    }
}

/// A change of the compute mode.
#[derive(Debug, Serialize, JsonSchema)]
struct ComputeModeChange {
    /// The present mode; null if unknown, as in MIG mode.
    from: Option<&'static str>,
    /// The new mode.
    to: &'static str,
}

/// Clients whose work is ended.
#[derive(Debug, Serialize, JsonSchema)]
struct PlannedKill {
    /// The device's name.
    device: String,
    /// These clients.
    victims: Vec<ClientOf>,
    /// The signal for their processes; null for none.
    signal: Option<&'static str>,
    /// The number of the device's other clients.
    others: usize,
}

impl PlanDocument {
    /// Describes a plan.
    pub fn of(plan: &Plan, held: &[Held]) -> Self {
        Self {
            version: VERSION,
            changes: plan.has_changes(),
            gpus: plan
                .gpus
                .iter()
                .map(|gpu| PlannedGpu::of(gpu, held))
                .collect(),
            purges: plan.purge.is_some(),
            cdi: plan.cdi.map(|change| match change {
                CdiChange::Write => "write",
                CdiChange::Remove => "remove",
            }),
            kill: plan.kill.as_ref().map(PlannedKill::of),
            remarks: plan.remarks.clone(),
            undisturbed: plan.undisturbed.clone(),
        }
    }
}

impl PlannedGpu {
    fn of(gpu: &GpuPlan, held: &[Held]) -> Self {
        let held = held.iter().find(|held| held.uuids.contains(&gpu.uuid));
        let obstacle = held.and_then(Held::obstacle);
        let stops = gpu.steps.iter().filter_map(|step| step.action.as_stop());
        let unasked = stops.clone().filter_map(|stop| stop.unasked.as_ref());
        Self {
            plan: gpu.clone(),
            compute_mode: gpu.compute_mode.map(|change| ComputeModeChange {
                from: change.from.map(compute_mode_in_words),
                to: compute_mode_in_words(change.to),
            }),
            disrupts: stops.flat_map(|stop| stop.clients.clone()).collect(),
            obstacles: gpu
                .obstacles
                .iter()
                .chain(unasked)
                .chain(&obstacle)
                .map(Message::from)
                .collect(),
            holders: held.map(|held| held.holders.iter().map(PlannedHolder::of).collect()),
            hidden_processes: held.map_or(0, |held| held.hidden),
        }
    }
}

impl PlannedKill {
    fn of(kill: &Kill) -> Self {
        Self {
            device: kill.name.clone(),
            victims: kill.clients().cloned().collect(),
            signal: kill.signal.map(Signal::name),
            others: kill.others,
        }
    }
}

/// The output of a command that changes the node, with `--json`: `up`, `set`, `restart`, `kill`, `down`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "change")]
pub struct ChangeDocument {
    version: Version,
    /// The actions that were taken, or with `--dry-run` those that would be.
    plan: PlanDocument,
    /// The status of all devices afterwards; null with `--dry-run`.
    status: Option<Status>,
    /// The error of a change of which a part failed; null if none did.
    error: Option<Message>,
    /// True if something was changed.
    changed: bool,
    /// The devices that were checked afterwards; null without `up --verify`.
    verified: Option<Vec<VerifiedDevice>>,
}

impl ChangeDocument {
    /// Describes a plan that is not applied.
    pub fn planned(plan: &Plan, held: &[Held]) -> Self {
        Self {
            version: VERSION,
            plan: PlanDocument::of(plan, held),
            status: None,
            error: None,
            changed: false,
            verified: None,
        }
    }

    /// Adds the devices that were checked afterwards.
    #[must_use]
    pub fn with_verified(self, all: &[Verified]) -> Self {
        Self {
            verified: Some(VerifiedDevice::all(all)),
            ..self
        }
    }

    /// Describes the actions of a plan, and the node afterwards.
    pub fn made(plan: &Plan, node: &Node, error: Option<Message>) -> Self {
        Self {
            status: Some(Status::of(node, &[])),
            // The file is written after everything else: an error of a plan with nothing else is its own.
            changed: !plan.is_empty() || plan.cdi.is_some() && error.is_none(),
            error,
            ..Self::planned(plan, &[])
        }
    }
}
