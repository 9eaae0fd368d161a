use schemars::JsonSchema;
use serde::Serialize;

use super::client::PlannedClient;
use super::step::PlannedStep;
use super::{Message, VERSION, Version};
use crate::geometry::{Placement, SliceMap};
use crate::host::{Holder, user_name};
use crate::nvml::compute_mode_in_words;
use crate::plan::{CdiChange, GpuPlan, Held, Kill, Plan, Signal};

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
}

/// A GPU that changes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "planned_gpu")]
struct PlannedGpu {
    /// NVML's index; null if the GPU cannot be seen.
    index: Option<u32>,
    /// The UUID, `GPU-…`.
    uuid: String,
    /// The product name; empty if the GPU cannot be seen.
    product: String,
    /// Its instances now.
    before: Vec<Slot>,
    /// Its instances afterwards.
    after: Vec<Slot>,
    /// The actions, in their order.
    steps: Vec<PlannedStep>,
    /// True if the rest is planned once MIG is on.
    to_be_continued: bool,
    /// The reset or reboot that is due, or may be; null if none is.
    due: Option<String>,
    /// The change of its compute mode; null if it stays.
    compute_mode: Option<ComputeModeChange>,
    /// The clients that lose their device.
    disrupts: Vec<PlannedClient>,
    /// The reasons why the plan cannot be applied as it is.
    obstacles: Vec<Message>,
    /// The processes that have the GPU open although its MIG mode is switched; null if it is not, or nobody has.
    holders: Option<Vec<PlannedHolder>>,
    /// The number of processes that could not be inspected: each may have it open, too.
    hidden_processes: usize,
}

/// A process that has a GPU open.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "planned_holder")]
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

/// A GPU instance on the map of a GPU.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "slot")]
struct Slot {
    /// The placement.
    placement: Placement,
    /// The profile name.
    profile: String,
}

/// A change of the compute mode.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "compute_mode_change")]
struct ComputeModeChange {
    /// The present mode; null if unknown, as in MIG mode.
    from: Option<&'static str>,
    /// The new mode.
    to: &'static str,
}

/// Clients whose work is ended.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "kill")]
struct PlannedKill {
    /// The device's name.
    device: String,
    /// These clients.
    victims: Vec<PlannedClient>,
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
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            product: gpu.product.clone(),
            before: slots(&gpu.before),
            after: slots(&gpu.after),
            steps: gpu.steps.iter().map(PlannedStep::of).collect(),
            to_be_continued: gpu.to_be_continued,
            due: gpu.due.clone(),
            compute_mode: gpu.compute_mode.map(|change| ComputeModeChange {
                from: change.from.map(compute_mode_in_words),
                to: compute_mode_in_words(change.to),
            }),
            disrupts: stops
                .flat_map(|stop| &stop.clients)
                .map(PlannedClient::of)
                .collect(),
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

fn slots(map: &SliceMap) -> Vec<Slot> {
    let segments = map.segments().iter().map(|segment| Slot {
        placement: segment.placement,
        profile: segment.label.clone(),
    });
    segments.collect()
}

impl PlannedKill {
    fn of(kill: &Kill) -> Self {
        Self {
            device: kill.name.clone(),
            victims: kill.clients().map(PlannedClient::of).collect(),
            signal: kill.signal.map(Signal::name),
            others: kill.others,
        }
    }
}
