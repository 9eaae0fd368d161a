//! The actions of a plan, and the clients that one terminates.

use std::fmt;

use clap::ValueEnum;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::disrupted::{ClientOf, IdlePod};
use super::gpu_plan::UnmanagedDaemon;
use super::reason::Reason;
use crate::failure::Problem;
use crate::geometry::{ComputeChoice, GpuInstanceProfile, Placement, ProfileId, ProfileName};
use crate::host::{Pid, StartTime};
use crate::mps::{ClientPolicy, StopMethod};
use crate::node::Node;
use crate::settings::{Serve, Settings};
use crate::state::{DeviceKey, NextDaemon, ProcessId};

/// An action and its reason.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Step {
    #[serde(flatten)]
    pub action: Action,
    /// The reason.
    #[schemars(with = "String")]
    pub because: Reason,
}

impl Step {
    /// True if it creates or destroys an instance, or switches MIG mode.
    pub fn is_of_mig(&self) -> bool {
        matches!(
            self.action,
            Action::DestroyComputeInstance { .. }
                | Action::DestroyGpuInstance { .. }
                | Action::SwitchMig { .. }
                | Action::CreateGpuInstance(_)
                | Action::CreateComputeInstance { .. }
        )
    }
}

/// An action.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Action {
    /// Stop a daemon and remove what mig-mps made for it.
    #[serde(rename = "stop-daemon")]
    Stop(Stop),
    /// Destroy a compute instance.
    DestroyComputeInstance {
        /// The placement of its GPU instance.
        #[serde(rename = "gpu_instance_placement")]
        instance: Placement,
        /// Its placement in the GPU instance.
        #[serde(rename = "placement")]
        compute: Placement,
        /// True if mig-mps is not known to have made it.
        #[serde(rename = "unmanaged_instance")]
        unmanaged: bool,
    },
    /// Destroy a GPU instance.
    DestroyGpuInstance {
        #[serde(flatten)]
        instance: GpuInstance,
        /// True if mig-mps is not known to have made it.
        #[serde(rename = "unmanaged_instance")]
        unmanaged: bool,
    },
    /// Switch MIG mode.
    #[serde(rename = "switch-mig-mode")]
    SwitchMig {
        /// True for on.
        on: bool,
    },
    /// Create a GPU instance.
    CreateGpuInstance(GpuInstance),
    /// Create a compute instance.
    CreateComputeInstance {
        /// The placement of its GPU instance.
        #[serde(rename = "gpu_instance_placement")]
        instance: Placement,
        /// Compute slices; null for all that the GPU instance has.
        #[serde(rename = "slices", serialize_with = "as_slices")]
        #[schemars(with = "Option<u32>")]
        compute: ComputeChoice,
    },
    /// Start a daemon.
    #[serde(rename = "start-daemon")]
    Start(Start),
    /// Change settings of a running daemon.
    Set(Set),
    /// Start the server of a daemon that has lost its own.
    StartServer(StartServer),
    /// End a server that has outlived its daemon.
    #[serde(rename = "end-stray-server")]
    EndStray(EndStray),
    /// Admit no new clients: the daemon ends with those that it has.
    #[serde(rename = "close-daemon")]
    Close(Close),
}

fn as_slices<S: Serializer>(compute: &ComputeChoice, serializer: S) -> Result<S::Ok, S::Error> {
    let slices = match compute {
        ComputeChoice::Slices { count, .. } => Some(count),
        ComputeChoice::Full | ComputeChoice::Exactly { .. } => None,
    };
    slices.serialize(serializer)
}

/// A GPU instance to create or to destroy.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct GpuInstance {
    /// The id of its profile.
    #[serde(skip)]
    pub profile: ProfileId,
    /// The profile name.
    #[serde(rename = "profile")]
    #[schemars(with = "String")]
    pub name: ProfileName,
    /// The placement.
    pub placement: Placement,
}

impl GpuInstance {
    /// Describes one of a GPU that offers these profiles; `None` if its profile is not among them.
    pub fn from_profiles(
        offered: &[GpuInstanceProfile],
        profile: ProfileId,
        placement: Placement,
    ) -> Option<Self> {
        let offer = offered.iter().find(|offer| offer.id == profile)?;
        Some(Self {
            profile,
            name: offer.name.clone(),
            placement,
        })
    }
}

impl fmt::Display for GpuInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.placement)
    }
}

/// An instance of either kind, in a plan that is shown.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanInstance<'a> {
    Gpu(&'a GpuInstance),
    /// A description of a compute instance.
    Compute(String),
}

impl PlanInstance<'_> {
    pub(super) fn compute_instance(compute: Placement, parent: Placement) -> Self {
        Self::Compute(format!("compute instance {compute} in {parent}"))
    }
}

impl fmt::Display for PlanInstance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(instance) => instance.fmt(f),
            Self::Compute(what) => f.write_str(what),
        }
    }
}

/// A server that has outlived its daemon.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct EndStray {
    /// The device's name.
    #[serde(rename = "device")]
    pub name: String,
    /// The indices of the GPUs of a joint device; empty for another device.
    #[serde(rename = "joint_gpus")]
    pub joint: Vec<u32>,
    #[serde(skip)]
    pub uuid: String,
    /// The process id.
    pub pid: Pid,
    /// Identifies the process together with the pid.
    #[serde(skip)]
    pub started: StartTime,
}

/// A daemon that is to admit no new clients.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Close {
    /// The device's name.
    #[serde(rename = "device")]
    pub name: String,
    /// The indices of the GPUs of a joint device; empty for another device.
    #[serde(rename = "joint_gpus")]
    pub joint: Vec<u32>,
    /// The UUID its directory is called by.
    #[serde(skip)]
    pub uuid: String,
    /// The time until which its clients are waited for.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub until: Timestamp,
    /// The daemon that follows; `None` if none does.
    #[serde(skip)]
    pub next: Option<NextDaemon>,
    /// True if the command waits for the clients, and then goes on itself.
    #[serde(skip)]
    pub is_waited_for: bool,
    /// The idle client that keeps the daemon meanwhile, if this command has started one.
    #[serde(skip)]
    pub held: Option<ProcessId>,
}

/// A daemon to stop.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Stop {
    /// The device's name.
    #[serde(rename = "device")]
    pub name: String,
    /// The device's UUID.
    pub uuid: String,
    /// The indices of the GPUs of a joint device; empty for another device.
    #[serde(rename = "joint_gpus")]
    pub joint: Vec<u32>,
    /// The treatment of its clients.
    #[serde(skip)]
    pub patience: ClientPolicy,
    /// The means by which it is stopped.
    #[serde(skip)]
    pub means: StopMethod,
    /// True if the daemon runs.
    pub alive: bool,
    #[serde(skip)]
    pub clients: Vec<ClientOf>,
    /// The pods that lose their share although they run nothing there.
    #[serde(skip)]
    pub pods: Vec<IdlePod>,
    /// True if the device is remembered, as one that is stopped.
    #[serde(skip)]
    pub keeps_device: bool,
    /// True if another daemon follows that serves the same users, and more, in the same pipe directory.
    #[serde(skip)]
    pub is_followed: bool,
    /// The reason why its clients are unknown, if they are.
    #[serde(skip)]
    pub unasked: Option<Problem>,
}

/// The command that starts a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// `up`, with the settings of a profile.
    Up,
    /// `restart`, unchanged.
    Restart,
    /// `heal`, unchanged.
    Heal,
}

impl StartedBy {
    /// True if the daemon starts again as it was.
    pub fn keeps_settings(self) -> bool {
        self != Self::Up
    }
}

/// A daemon to start.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Start {
    /// The device's name.
    #[serde(rename = "device")]
    pub name: String,
    /// Which device of the GPU.
    #[serde(skip)]
    pub place: Place,
    /// The indices of the GPUs of a joint device; empty for another device.
    #[serde(rename = "joint_gpus")]
    pub joint: Vec<u32>,
    /// The UUID of the device, if that is there and stays.
    #[serde(skip)]
    pub uuid: Option<String>,
    /// The setting `serve`: the users that it serves.
    #[serde(rename = "serve", serialize_with = "as_serve")]
    #[schemars(with = "String")]
    pub settings: Settings,
    /// The uid or gid of the single user or group that it serves, once that is known.
    #[serde(skip)]
    pub served_id: Option<u32>,
    /// The keys that `mig-mps set` has set, not a profile.
    #[serde(skip)]
    pub by_hand: Vec<String>,
    /// The command that starts it.
    #[serde(skip)]
    pub by: StartedBy,
    /// The daemons of others that also serve the device.
    pub beside: Vec<UnmanagedDaemon>,
}

fn as_serve<S: Serializer>(settings: &Settings, serializer: S) -> Result<S::Ok, S::Error> {
    serve_setting(settings).serialize(serializer)
}

/// The users that a daemon with these settings serves.
pub fn serve_setting(settings: &Settings) -> &Serve {
    settings.serve.as_ref().unwrap_or(&Serve::OneAtATime)
}

/// Settings that change while a daemon runs. This disrupts nobody: programs that start afterwards get the new ones.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Set {
    /// The device's name.
    #[serde(rename = "device")]
    pub name: String,
    /// The indices of the GPUs of a joint device; empty for another device.
    #[serde(rename = "joint_gpus")]
    pub joint: Vec<u32>,
    /// The UUID its directory is called by.
    #[serde(skip)]
    pub uuid: String,
    /// All settings of the daemon afterwards.
    #[serde(skip)]
    pub settings: Settings,
    /// The settings that change.
    #[serde(rename = "settings")]
    pub changes: Vec<SettingChange>,
    /// The keys whose values come from `mig-mps set` and not from a profile.
    #[serde(skip)]
    pub by_hand: Vec<String>,
    /// The clients that keep their old settings.
    #[serde(rename = "keep_old_values")]
    pub keep: Vec<ClientOf>,
}

/// A setting that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SettingChange {
    /// The key in a profile.
    pub key: &'static str,
    /// The present value.
    #[serde(rename = "from")]
    pub is: String,
    /// The new value.
    #[serde(rename = "to")]
    pub wanted: String,
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.key, self.is, self.wanted)
    }
}

/// An eager server to start again in its daemon.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct StartServer {
    /// The device's name.
    #[serde(rename = "device")]
    pub name: String,
    /// The indices of the GPUs of a joint device; empty for another device.
    #[serde(rename = "joint_gpus")]
    pub joint: Vec<u32>,
    /// The UUID its directory is called by.
    #[serde(skip)]
    pub uuid: String,
    /// The daemon's settings at that time.
    #[serde(skip)]
    pub settings: Settings,
}

impl Stop {
    /// The same where a daemon for at least the same users follows, in the same pipe directory: no pod loses its share.
    pub(super) fn with_successor(self) -> Self {
        Self {
            pods: Vec::new(),
            is_followed: true,
            ..self
        }
    }

    /// True if it has clients, or may have some: unseen ones, or programs that pods start at any moment.
    pub(super) fn may_have_clients(&self) -> bool {
        !self.clients.is_empty() || !self.pods.is_empty() || self.unasked.is_some()
    }
}

impl Start {
    /// The same daemon, as the record of a device that closes for it has it.
    pub fn as_next_daemon(&self) -> NextDaemon {
        NextDaemon {
            name: self.name.clone(),
            settings: self.settings.clone(),
            by_hand: self.by_hand.clone(),
        }
    }

    /// Identifies its device, on a GPU with this UUID, unless that is a MIG device.
    pub fn whole_device_key(&self, node: &Node, gpu: &str) -> DeviceKey {
        if self.joint.is_empty() {
            return DeviceKey::for_whole_gpu(gpu);
        }
        let gpus = node
            .gpus
            .iter()
            .filter(|gpu| self.joint.contains(&gpu.index))
            .map(|gpu| gpu.uuid.clone());
        DeviceKey::for_joint_device(gpus.collect())
    }

    /// The users that it serves.
    pub fn serve_setting(&self) -> &Serve {
        serve_setting(&self.settings)
    }
}

/// A device of a GPU, which may not have a UUID yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The GPU itself.
    Whole,
    Mig {
        /// Where its GPU instance lies.
        placement: Placement,
        /// Which of its compute instances, by placement.
        nth: usize,
    },
}

impl Place {
    /// Where its GPU instance lies; `None` for the GPU itself.
    pub fn placement(self) -> Option<Placement> {
        match self {
            Self::Mig { placement, .. } => Some(placement),
            Self::Whole => None,
        }
    }
}

impl Action {
    /// The step that takes this action.
    pub(super) fn with_reason(self, because: impl Into<Reason>) -> Step {
        Step {
            action: self,
            because: because.into(),
        }
    }

    /// The daemon that it stops, if it stops one.
    pub fn as_stop(&self) -> Option<&Stop> {
        match self {
            Self::Stop(stop) => Some(stop),
            _ => None,
        }
    }

    /// The UUID of the device whose daemon or server it concerns; `None` for a device that does not exist yet.
    pub(super) fn device_uuid(&self) -> Option<&str> {
        match self {
            Self::Stop(Stop { uuid, .. })
            | Self::Set(Set { uuid, .. })
            | Self::StartServer(StartServer { uuid, .. })
            | Self::EndStray(EndStray { uuid, .. })
            | Self::Close(Close { uuid, .. })
            | Self::Start(Start {
                uuid: Some(uuid), ..
            }) => Some(uuid),
            _ => None,
        }
    }

    /// The indices of the GPUs of the joint device whose daemon it starts or stops.
    pub fn joint_gpus(&self) -> &[u32] {
        match self {
            Self::Start(start) => &start.joint,
            Self::Stop(stop) => &stop.joint,
            _ => &[],
        }
    }

    /// The daemon that it starts, if it starts one.
    pub fn as_start(&self) -> Option<&Start> {
        match self {
            Self::Start(start) => Some(start),
            _ => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop(stop) if stop.means == StopMethod::Heal => {
                write!(f, "end the hung server of {}", stop.name)
            }
            Self::Stop(stop) if stop.alive => write!(f, "stop the daemon of {}", stop.name),
            Self::Stop(stop) => write!(f, "clean up after {}", stop.name),
            Self::DestroyComputeInstance {
                instance, compute, ..
            } => {
                write!(
                    f,
                    "destroy the compute instance at {compute} of the GPU instance at {instance}"
                )
            }
            Self::DestroyGpuInstance { instance, .. } => write!(f, "destroy {instance}"),
            Self::SwitchMig { on: true } => f.write_str("enable MIG mode"),
            Self::SwitchMig { on: false } => f.write_str("disable MIG mode"),
            Self::CreateGpuInstance(instance) => write!(f, "create {instance}"),
            Self::CreateComputeInstance { instance, compute } => match compute {
                ComputeChoice::Full => {
                    write!(f, "create the full compute instance in {instance}")
                }
                ComputeChoice::Slices { count, .. } => {
                    write!(f, "create a {count}c compute instance in {instance}")
                }
                ComputeChoice::Exactly { placement, .. } => {
                    write!(
                        f,
                        "create the compute instance at {placement} in {instance}"
                    )
                }
            },
            Self::Start(start) => write!(f, "start the daemon of {}", start.name),
            Self::Set(set) => {
                let changes: Vec<String> = set
                    .changes
                    .iter()
                    .map(|change| format!("{} to {}", change.key, change.wanted))
                    .collect();
                write!(f, "set {} on {}", changes.join(", "), set.name)
            }
            Self::StartServer(server) => write!(f, "start the server of {}", server.name),
            Self::Close(close) => write!(f, "close {} to new programs", close.name),
            Self::EndStray(stray) => {
                write!(
                    f,
                    "end server {} of {}, which outlived its daemon",
                    stray.pid, stray.name
                )
            }
        }
    }
}

/// A signal that ends processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Signal {
    /// A process may clean up, or take no notice
    #[value(alias = "SIGTERM")]
    Term,
    /// It ends at once
    #[value(alias = "SIGKILL")]
    Kill,
}

impl Signal {
    /// Its name in signal(7).
    pub fn name(self) -> &'static str {
        match self {
            Self::Term => "SIGTERM",
            Self::Kill => "SIGKILL",
        }
    }
}

/// The devices whose logs are removed, with what users left in their pipe directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Every device that has no daemon then.
    All,
    /// The devices with these UUIDs.
    Devices(Vec<String>),
}

/// The change of the file by which container engines find the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CdiChange {
    /// It is written, or written again.
    Write,
    /// It is removed.
    Remove,
}
