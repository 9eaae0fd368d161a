use std::fmt;

use super::beside::Beside;
use super::change::{Change, Set};
use super::refusal::{ClientOf, Obstacle};
use crate::geometry::{ComputeChoice, Placement, ProfileId, ProfileName};
use crate::host::{Pid, StartTime};
use crate::mps::{Means, Patience};
use crate::settings::{Serve, Settings};

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
    /// Change settings of a daemon that goes on running.
    Set(Set),
    /// Start the server of a daemon that lives and has lost the one it had.
    StartServer(StartServer),
    /// End a server that outlived its daemon.
    EndStray(EndStray),
}

/// A server that outlived its daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct EndStray {
    /// Its device's name.
    pub name: String,
    /// Its device's UUID.
    pub uuid: String,
    /// Its process.
    pub server: (Pid, StartTime),
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
    /// How it is made to end.
    pub means: Means,
    /// Whether it lives: ending it then interrupts whoever would have used it.
    pub alive: bool,
    /// Whom it serves.
    pub clients: Vec<ClientOf>,
    /// Why it cannot be told whom it serves, if it cannot.
    pub unasked: Option<Obstacle>,
}

/// A daemon to be started.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Its device's name.
    pub name: String,
    /// Which device of the GPU.
    pub place: Place,
    /// How it shall serve; `serve` is always said.
    pub settings: Settings,
    /// The keys of them that come from `mig-mps set` and not from a profile.
    pub by_hand: Vec<String>,
    /// Whether it is to serve as its record says: that stays, whatever happens, until it does. A run that is killed or
    /// fails is then gone on with.
    pub again: bool,
    /// The daemons of others that serve its device too.
    pub beside: Vec<Beside>,
}

/// An eager server to be started again in its daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct StartServer {
    /// Its device's name.
    pub name: String,
    /// The UUID its directory is called by.
    pub uuid: String,
    /// What the daemon's settings are by then.
    pub settings: Settings,
}

impl Start {
    /// Whose clients it serves.
    pub fn serve(&self) -> &Serve {
        self.settings.serve.as_ref().unwrap_or(&Serve::OneAtATime)
    }
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

impl Place {
    /// Whether it lies in the GPU instance there.
    pub(super) fn is_in(self, instance: Placement) -> bool {
        matches!(self, Self::Part { placement, .. } if placement == instance)
    }
}

impl Action {
    /// Whether it starts something on what is there.
    pub fn is_start(&self) -> bool {
        matches!(self, Self::Start(_) | Self::StartServer(_))
    }

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
            Self::Stop(stop) if stop.means == Means::Heal => {
                write!(f, "end the hung server of {}", stop.name)
            }
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
            Self::Set(set) => {
                let to = |change: &Change| format!("{} to {}", change.key, change.shall);
                let changes: Vec<String> = set.changes.iter().map(to).collect();
                write!(f, "set {} of {}", changes.join(", "), set.name)
            }
            Self::StartServer(server) => write!(f, "start the server of {}", server.name),
            Self::EndStray(stray) => {
                write!(
                    f,
                    "end server {} of {}, which outlived its daemon",
                    stray.server.0, stray.name
                )
            }
        }
    }
}
