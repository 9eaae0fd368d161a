use std::collections::BTreeSet;
use std::fmt;

use super::{Beside, Change, ClientOf, ModeChange, Obstacle, Refusal, Set};
use crate::geometry::{ComputeChoice, Placement, ProfileId, ProfileName, SliceMap};
use crate::host::{Pid, StartTime};
use crate::mps::{Means, Patience};
use crate::settings::{MemoryLimit, Serve, Settings};

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
    /// What keeps the plan from being carried out.
    pub obstacles: Vec<Obstacle>,
    /// Which reset or reboot is due, or may be.
    pub due: Option<String>,
    /// What becomes of its compute mode with the daemons that start and end.
    pub compute_mode: Option<ModeChange>,
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

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Every step.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.gpus.iter().flat_map(|gpu| &gpu.steps)
    }

    /// The daemons that are started.
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

    /// The daemons that are ended.
    pub fn stops(&self) -> impl Iterator<Item = &Stop> {
        self.steps().filter_map(|step| match &step.action {
            Action::Stop(stop) => Some(stop),
            _ => None,
        })
    }

    /// Everybody who is on a device that goes.
    pub fn clients(&self) -> impl Iterator<Item = &ClientOf> {
        self.stops().flat_map(|stop| &stop.clients)
    }

    /// Those of them who are ended, and not waited for.
    pub fn ended_clients(&self) -> impl Iterator<Item = &ClientOf> {
        let by_force = |stop: &&Stop| stop.patience != Patience::Idle;
        self.stops().filter(by_force).flat_map(|stop| &stop.clients)
    }

    /// Everybody who keeps the settings that are changed for others.
    pub fn keep(&self) -> impl Iterator<Item = &ClientOf> {
        let sets = self.steps().filter_map(|step| match &step.action {
            Action::Set(set) => Some(set),
            _ => None,
        });
        sets.flat_map(|set| &set.keep)
    }

    /// Whether the plan may be carried out: nothing is in its way, and nobody is disturbed who was
    /// not to be.
    ///
    /// # Errors
    /// [`Refusal::InTheWay`] or [`Refusal::InUse`], the latter with `hint` as what to do.
    pub fn permit(&self, hint: &str) -> Result<(), Refusal> {
        if let Some(obstacle) = self.gpus.iter().flat_map(|gpu| &gpu.obstacles).next() {
            return Err(obstacle.clone().into());
        }
        let gently = |stop: &&Stop| stop.patience == Patience::Idle;
        if let Some(obstacle) = self.stops().filter(gently).find_map(|s| s.unasked.as_ref()) {
            return Err(obstacle.clone().into());
        }
        let clients = self.stops().filter(gently).flat_map(|stop| &stop.clients);
        let clients: Vec<ClientOf> = clients.cloned().collect();
        if clients.is_empty() {
            return Ok(());
        }
        Err(Refusal::InUse {
            clients,
            hint: hint.to_owned(),
        })
    }

    /// The same plan, with clients ended after so many seconds in which no new one is admitted.
    #[must_use]
    pub fn by_force(mut self, seconds: u32) -> Self {
        for step in self.gpus.iter_mut().flat_map(|gpu| &mut gpu.steps) {
            if let Action::Stop(stop) = &mut step.action
                && (!stop.clients.is_empty() || stop.unasked.is_some())
            {
                stop.patience = Patience::Force(seconds);
            }
        }
        self
    }

    /// Adds a plan that goes on from where this one ends.
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

    /// The names of the devices whose living daemons are ended.
    pub fn interrupts(&self) -> Vec<&str> {
        // Nobody notices the end of a hung server without clients.
        let goes_on = |stop: &Stop| stop.means == Means::Heal && stop.clients.is_empty();
        let alive = self.stops().filter(|stop| stop.alive && !goes_on(stop));
        alive.map(|stop| stop.name.as_str()).collect()
    }

    /// How many of them are started again as they were.
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
                    .map(move |what| (gpu.index, what))
            })
            .map(|(index, what)| format!("GPU {index} {what}"))
            .collect()
    }

    /// Whether this plan ends, destroys or switches off something that `shown` did not.
    pub fn disturbs_more_than(&self, shown: &Self) -> bool {
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
        gpus.map(|gpu| gpu.index).collect()
    }
}

impl GpuPlan {
    /// What is destroyed on it; compute instances only where their GPU instance stays.
    fn destroys(&self) -> Vec<String> {
        let goes = |instance: Placement| {
            self.steps.iter().any(|step| {
                matches!(step.action, Action::DestroyGpuInstance { placement, .. } if placement == instance)
            })
        };
        let what = |step: &Step| match &step.action {
            Action::DestroyGpuInstance {
                name, placement, ..
            } => Some(format!("{name} at {placement}")),
            Action::DestroyComputeInstance { instance, compute } if !goes(*instance) => {
                Some(format!("compute instance {compute} in {instance}"))
            }
            _ => None,
        };
        self.steps.iter().filter_map(what).collect()
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
