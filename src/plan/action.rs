use std::fmt;

use crate::geometry::{ComputeChoice, Placement, ProfileId, ProfileName, SliceMap};
use crate::mps::Patience;
use crate::profile::{Percentage, Serve, Server};

/// What must happen, GPU by GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The GPUs something happens to, by index.
    pub gpus: Vec<GpuPlan>,
}

/// What must happen to one GPU, in this order.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuPlan {
    /// Its index.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its product name.
    pub product: String,
    /// What lies on it now.
    pub before: SliceMap,
    /// What will lie on it.
    pub after: SliceMap,
    /// The actions.
    pub steps: Vec<Step>,
    /// Whether its profiles are told only once MIG is on (old drivers): the rest is planned then.
    pub to_be_continued: bool,
}

/// One action and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// Why, in a few words.
    pub because: String,
}

/// Everything that `apply` can do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// End a daemon and remove what mig-mps made for it; of a dead one only the latter.
    Stop(Stop),
    /// Destroy the compute instance there.
    DestroyComputeInstance {
        /// Where its GPU instance lies.
        instance: Placement,
        /// Where it lies in it.
        compute: Placement,
    },
    /// Destroy the GPU instance there.
    DestroyGpuInstance {
        /// Its profile.
        profile: ProfileId,
        /// Its profile's name.
        name: ProfileName,
        /// Where it lies.
        placement: Placement,
    },
    /// Switch MIG mode on or off.
    SwitchMig {
        /// Whether on.
        on: bool,
    },
    /// Make a GPU instance there.
    CreateGpuInstance {
        /// Its profile.
        profile: ProfileId,
        /// Its profile's name.
        name: ProfileName,
        /// Where it shall lie.
        placement: Placement,
    },
    /// Make a compute instance in the GPU instance there.
    CreateComputeInstance {
        /// Where the GPU instance lies.
        instance: Placement,
        /// Which.
        compute: ComputeChoice,
    },
    /// Start a daemon for a device, and its server if it shall be eager.
    Start(Start),
}

/// A daemon to be ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// Its device's name.
    pub name: String,
    /// The UUID its directory is called by.
    pub uuid: String,
    /// What happens to its clients.
    pub patience: Patience,
    /// Whether it lives: ending it then interrupts whoever would have used it.
    pub alive: bool,
}

/// A daemon to be started.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Its device's name.
    pub name: String,
    /// Which device of the GPU.
    pub place: Place,
    /// Whose clients it serves.
    pub serve: Serve,
    /// When its server starts.
    pub server: Server,
    /// The share of SMs one client may use.
    pub active_thread_percentage: Percentage,
}

/// Which device of a GPU is meant, before it has a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The GPU itself.
    Whole,
    /// A MIG device.
    Part {
        /// Where its GPU instance lies.
        placement: Placement,
        /// Which of its compute instances, by placement.
        nth: usize,
    },
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Every step.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.gpus.iter().flat_map(|gpu| &gpu.steps)
    }

    /// The names of the devices whose living daemons are ended.
    pub fn interrupts(&self) -> Vec<&str> {
        self.steps()
            .filter_map(|step| match &step.action {
                Action::Stop(stop) if stop.alive => Some(stop.name.as_str()),
                _ => None,
            })
            .collect()
    }

    /// The GPU instances that are destroyed, as `GPU 0 3g.40gb at 4:4`.
    pub fn destroys(&self) -> Vec<String> {
        self.gpus
            .iter()
            .flat_map(|gpu| gpu.steps.iter().map(move |step| (gpu.index, step)))
            .filter_map(|(index, step)| match &step.action {
                Action::DestroyGpuInstance {
                    name, placement, ..
                } => Some(format!("GPU {index} {name} at {placement}")),
                _ => None,
            })
            .collect()
    }

    /// Whether this plan ends or destroys something that `shown` did not.
    pub fn disturbs_more_than(&self, shown: &Self) -> bool {
        let (before, after) = (shown.interrupts(), self.interrupts());
        let (destroyed, destroys) = (shown.destroys(), self.destroys());
        after.iter().any(|name| !before.contains(name))
            || destroys
                .iter()
                .any(|instance| !destroyed.contains(instance))
    }
}

impl Action {
    /// Whether both are daemons' ends, or both their starts, which may happen side by side.
    pub fn goes_with(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::Stop(_), Self::Stop(_)) | (Self::Start(_), Self::Start(_))
        )
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop(stop) if stop.alive => write!(f, "stop the daemon of {}", stop.name),
            Self::Stop(stop) => write!(f, "clear away what is left of {}", stop.name),
            Self::DestroyComputeInstance { instance, compute } => {
                write!(
                    f,
                    "destroy compute instance {compute} of the GPU instance at {instance}"
                )
            }
            Self::DestroyGpuInstance {
                name, placement, ..
            } => {
                write!(f, "destroy {name} at {placement}")
            }
            Self::SwitchMig { on: true } => f.write_str("enable MIG mode"),
            Self::SwitchMig { on: false } => f.write_str("disable MIG mode"),
            Self::CreateGpuInstance {
                name, placement, ..
            } => {
                write!(f, "create {name} at {placement}")
            }
            Self::CreateComputeInstance { instance, compute } => match compute {
                ComputeChoice::Full => {
                    write!(f, "create the full compute instance in {instance}")
                }
                ComputeChoice::Slices { count, .. } => {
                    write!(f, "create a {count}c compute instance in {instance}")
                }
                ComputeChoice::Exactly { placement, .. } => {
                    write!(f, "create the compute instance {placement} in {instance}")
                }
            },
            Self::Start(start) => write!(f, "start the daemon of {}", start.name),
        }
    }
}
