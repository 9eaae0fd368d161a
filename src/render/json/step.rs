use schemars::JsonSchema;
use serde::Serialize;

use super::client::PlannedClient;
use crate::geometry::{ComputeChoice, Placement};
use crate::plan::{self, Action, Step};

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
        settings: Vec<SettingChange>,
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
struct SettingChange {
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
        let changes = set.changes.iter().map(|change| SettingChange {
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
