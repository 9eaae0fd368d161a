use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Mutex;

use super::error::Failure;
use super::lock;
use crate::geometry::{ComputeProfileId, Placement, ProfileId, ProfileName};
use crate::state::DeviceRecord;

/// Something a run has done to a GPU, with what is needed to undo it.
#[derive(Debug)]
pub(super) enum Done {
    /// MIG mode was switched, or its change noted by the driver.
    MigMode {
        on: bool,
        /// Whether mig-mps had switched it on before.
        was_ours: bool,
    },
    /// A GPU instance was made, or may have been.
    GpuInstance {
        profile: ProfileId,
        name: ProfileName,
        placement: Placement,
    },
    /// A GPU instance was destroyed.
    GpuInstanceGone {
        profile: ProfileId,
        name: ProfileName,
        placement: Placement,
        /// Whether mig-mps had made it.
        ours: bool,
    },
    /// A compute instance was made; where is not known of one that only may have been.
    ComputeInstance {
        instance: Placement,
        compute: Option<Placement>,
    },
    /// A compute instance was destroyed.
    ComputeInstanceGone {
        instance: Placement,
        profile: ComputeProfileId,
        compute: Placement,
        /// Whether mig-mps had made it, in somebody else's GPU instance.
        ours: bool,
    },
    /// A daemon was started.
    Started(Box<DeviceRecord>),
    /// A daemon was ended.
    Stopped {
        record: Box<DeviceRecord>,
        /// How many clients had to go with it.
        clients: usize,
    },
    /// Settings of a running daemon were changed, or may have been.
    Set {
        /// What they were.
        before: Box<DeviceRecord>,
        /// What they are.
        after: Box<DeviceRecord>,
    },
}

impl Done {
    /// Whether it took something away: not undone, that is missing. Anything else still stands then.
    pub(super) fn took_away(&self) -> bool {
        match self {
            Self::MigMode { on, .. } => !on,
            Self::GpuInstance { .. }
            | Self::ComputeInstance { .. }
            | Self::Started(_)
            | Self::Set { .. } => false,
            Self::GpuInstanceGone { .. }
            | Self::ComputeInstanceGone { .. }
            | Self::Stopped { .. } => true,
        }
    }
}

/// What was made or taken away.
impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MigMode { .. } => f.write_str("MIG mode on"),
            Self::GpuInstance {
                name, placement, ..
            }
            | Self::GpuInstanceGone {
                name, placement, ..
            } => write!(f, "{name} at {placement}"),
            Self::ComputeInstance {
                instance,
                compute: Some(compute),
            }
            | Self::ComputeInstanceGone {
                instance, compute, ..
            } => write!(
                f,
                "compute instance {compute} of the GPU instance at {instance}"
            ),
            Self::ComputeInstance {
                instance,
                compute: None,
            } => write!(f, "a compute instance of the GPU instance at {instance}"),
            Self::Started(record) | Self::Stopped { record, .. } => {
                write!(f, "daemon of {}", record.name)
            }
            Self::Set { before, .. } => write!(f, "changed settings of {}", before.name),
        }
    }
}

/// What a run has done to one GPU so far, written by several threads.
#[derive(Debug, Default)]
pub(super) struct History {
    done: Mutex<Vec<Done>>,
    /// The plan's steps that are over, one way or the other.
    over: Mutex<BTreeSet<usize>>,
    /// The steps that failed.
    failures: Mutex<BTreeMap<usize, Failure>>,
}

impl History {
    /// Remembers something that was done.
    pub(super) fn did(&self, done: Done) {
        lock(&self.done).push(done);
    }

    /// Whether the MIG mode was switched, or its change noted.
    pub(super) fn has_switched(&self) -> bool {
        let done = lock(&self.done);
        done.iter().any(|done| matches!(done, Done::MigMode { .. }))
    }

    /// Takes everything that was done, in order.
    pub(super) fn take(&self) -> Vec<Done> {
        std::mem::take(&mut *lock(&self.done))
    }

    /// Takes the change of a daemon's settings, with what they were and are.
    pub(super) fn take_change(&self, uuid: &str) -> Option<(Box<DeviceRecord>, Box<DeviceRecord>)> {
        let mut done = lock(&self.done);
        let is_it = |done: &Done| matches!(done, Done::Set { before, .. } if before.uuid == uuid);
        let place = done.iter().rposition(is_it)?;
        match done.remove(place) {
            Done::Set { before, after } => Some((before, after)),
            _ => None,
        }
    }

    /// Remembers that the step with that number failed.
    pub(super) fn did_not(&self, step: usize, failure: Failure) {
        lock(&self.failures).insert(step, failure);
    }

    /// How many steps have failed so far.
    pub(super) fn failed(&self) -> usize {
        lock(&self.failures).len()
    }

    /// Takes the failures, in the plan's order.
    pub(super) fn take_failures(&self) -> Vec<Failure> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        failures.into_values().collect()
    }

    /// Notes that the plan's step with that number needs nothing more.
    pub(super) fn over(&self, step: usize) {
        lock(&self.over).insert(step);
    }

    /// Whether it is over.
    pub(super) fn is_over(&self, step: usize) -> bool {
        lock(&self.over).contains(&step)
    }
}
