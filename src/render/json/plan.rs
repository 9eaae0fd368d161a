//! The documents of plans and of changes.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::verified::VerifiedDevice;
use super::{Message, VERSION, Version};
use crate::client::Verified;
use crate::geometry::{ComputeChoice, Placement, SliceMap};
use crate::host::{Holder, user_name};
use crate::node::Node;
use crate::nvml::compute_mode_in_words;
use crate::plan::{self, Action, CdiChange, ClientOf, GpuPlan, Held, Kill, Plan, Signal, Step};
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
    before: Vec<PlannedSlot>,
    /// Its instances afterwards.
    after: Vec<PlannedSlot>,
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
struct PlannedSlot {
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

fn slots(map: &SliceMap) -> Vec<PlannedSlot> {
    map.segments()
        .iter()
        .map(|segment| PlannedSlot {
            placement: segment.placement,
            profile: segment.label.clone(),
        })
        .collect()
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

/// An action and its reason.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "step")]
pub(super) struct PlannedStep {
    #[serde(flatten)]
    action: PlannedAction,
    /// The reason.
    because: String,
}

/// An action.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "action", rename_all = "kebab-case")]
#[schemars(rename = "action")]
enum PlannedAction {
    /// Stop a daemon and remove what mig-mps made for it.
    StopDaemon {
        /// The device's name.
        device: String,
        /// The device's UUID.
        uuid: String,
        /// True if the daemon runs.
        alive: bool,
    },
    /// Destroy a compute instance.
    DestroyComputeInstance {
        /// The placement of its GPU instance.
        gpu_instance_placement: Placement,
        /// Its placement in the GPU instance.
        placement: Placement,
    },
    /// Destroy a GPU instance.
    DestroyGpuInstance {
        /// The profile name.
        profile: String,
        /// The placement.
        placement: Placement,
    },
    /// Switch MIG mode.
    SwitchMigMode {
        /// True for on.
        on: bool,
    },
    /// Create a GPU instance.
    CreateGpuInstance {
        /// The profile name.
        profile: String,
        /// The placement.
        placement: Placement,
    },
    /// Create a compute instance.
    CreateComputeInstance {
        /// The placement of its GPU instance.
        gpu_instance_placement: Placement,
        /// Compute slices; null for all that the GPU instance has.
        slices: Option<u32>,
    },
    /// Start a daemon.
    StartDaemon {
        /// The device's name.
        device: String,
        /// The setting `serve`: the users that it serves.
        serve: String,
        /// The daemons of others that also serve the device.
        beside: Vec<PlannedBeside>,
    },
    /// Change settings of a running daemon.
    Set {
        /// The device's name.
        device: String,
        /// The settings that change.
        settings: Vec<PlannedSetting>,
        /// The clients that keep their old settings.
        keep_old_values: Vec<PlannedClient>,
    },
    /// Start the server of a daemon that has lost its own.
    StartServer {
        /// The device's name.
        device: String,
    },
    /// End a server that has outlived its daemon.
    EndStrayServer {
        /// The device's name.
        device: String,
        /// The process id.
        pid: u32,
    },
}

/// A daemon that mig-mps did not start.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "beside")]
struct PlannedBeside {
    /// The process id.
    pid: u32,
    /// The user's name; null if hidden.
    user: Option<String>,
    /// The value of its `CUDA_MPS_PIPE_DIRECTORY`; null if unset or hidden.
    pipe_directory: Option<String>,
}

/// A setting that changes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "setting_change")]
struct PlannedSetting {
    /// The key in a profile.
    key: &'static str,
    /// The present value.
    from: String,
    /// The new value.
    to: String,
}

impl PlannedStep {
    pub(super) fn of(step: &Step) -> Self {
        Self {
            action: PlannedAction::of(&step.action),
            because: step.because.clone(),
        }
    }
}

impl PlannedAction {
    fn of(action: &Action) -> Self {
        match action {
            Action::Stop(daemon) => Self::StopDaemon {
                device: daemon.name.clone(),
                uuid: daemon.uuid.clone(),
                alive: daemon.alive,
            },
            Action::DestroyComputeInstance { instance, compute } => Self::DestroyComputeInstance {
                gpu_instance_placement: *instance,
                placement: *compute,
            },
            Action::DestroyGpuInstance(instance) => Self::DestroyGpuInstance {
                profile: instance.name.to_string(),
                placement: instance.placement,
            },
            Action::SwitchMig { on } => Self::SwitchMigMode { on: *on },
            Action::CreateGpuInstance(instance) => Self::CreateGpuInstance {
                profile: instance.name.to_string(),
                placement: instance.placement,
            },
            Action::CreateComputeInstance { instance, compute } => Self::CreateComputeInstance {
                gpu_instance_placement: *instance,
                slices: match compute {
                    ComputeChoice::Slices { count, .. } => Some(*count),
                    _ => None,
                },
            },
            Action::Start(start) => Self::start(start),
            Action::Set(set) => Self::set(set),
            Action::StartServer(server) => Self::StartServer {
                device: server.name.clone(),
            },
            Action::EndStray(stray) => Self::EndStrayServer {
                device: stray.name.clone(),
                pid: stray.server.0.0,
            },
        }
    }

    fn start(start: &plan::Start) -> Self {
        let beside = start.beside.iter().map(|daemon| PlannedBeside {
            pid: daemon.pid.0,
            user: daemon.user.clone(),
            pipe_directory: daemon.pipe_directory.value().map(str::to_owned),
        });
        Self::StartDaemon {
            device: start.name.clone(),
            serve: start.serve().to_string(),
            beside: beside.collect(),
        }
    }

    fn set(set: &plan::Set) -> Self {
        let changes = set.changes.iter().map(|change| PlannedSetting {
            key: change.key,
            from: change.is.clone(),
            to: change.wanted.clone(),
        });
        Self::Set {
            device: set.name.clone(),
            settings: changes.collect(),
            keep_old_values: set.keep.iter().map(PlannedClient::of).collect(),
        }
    }
}

/// A client that a plan concerns.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "planned_client")]
pub(super) struct PlannedClient {
    /// The device's name.
    device: String,
    /// The process id; null if it cannot be seen, as in another pid namespace.
    pid: Option<u32>,
    /// The user's name.
    user: Option<String>,
    /// The command line; null if hidden.
    command: Option<String>,
}

impl PlannedClient {
    pub(super) fn of(client: &ClientOf) -> Self {
        Self {
            device: client.device.clone(),
            pid: client.pid.map(|pid| pid.0),
            user: Some(client.user.clone()),
            command: client.command.clone(),
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
