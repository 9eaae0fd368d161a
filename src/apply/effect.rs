use std::fmt;

use crate::geometry::{ComputeProfileId, Placement, ProfileId, ProfileName};
use crate::state::DeviceRecord;

/// Something a run has done to a GPU, with what is needed to undo it.
#[derive(Debug)]
pub(super) enum Effect {
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

impl Effect {
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
impl fmt::Display for Effect {
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
