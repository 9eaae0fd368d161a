//! A change that a run has made, as the rollback needs it.

use std::fmt;

use crate::geometry::{ComputeProfileId, Placement};
use crate::plan::GpuInstance;
use crate::state::DeviceRecord;

/// A change that a run has made to a GPU, with what undoing it takes.
#[derive(Debug)]
pub(super) enum Effect {
    /// MIG mode was switched, or the change is pending in the driver.
    MigMode {
        on: bool,
        /// True if mig-mps had switched it on before.
        was_ours: bool,
    },
    /// A GPU instance was made, or may have been.
    GpuInstance(GpuInstance),
    /// A GPU instance was destroyed.
    GpuInstanceGone {
        instance: GpuInstance,
        /// True if mig-mps had made it.
        ours: bool,
    },
    /// A compute instance was made, or may have been; then its placement is unknown.
    ComputeInstance {
        instance: Placement,
        compute: Option<Placement>,
    },
    /// A compute instance was destroyed.
    ComputeInstanceGone {
        instance: Placement,
        profile: ComputeProfileId,
        compute: Placement,
        /// True if mig-mps had made it in a GPU instance that it had not made.
        ours: bool,
    },
    /// A daemon was started.
    Started(Box<DeviceRecord>),
    /// A daemon was ended.
    Stopped {
        record: Box<DeviceRecord>,
        /// The number of clients that were terminated with it.
        clients: usize,
    },
    /// Settings of a running daemon were changed, or may have been.
    Set {
        /// The record with the old settings.
        before: Box<DeviceRecord>,
        /// The record with the new settings.
        after: Box<DeviceRecord>,
    },
}

impl Effect {
    /// True if it removed something, which is missing unless it is undone.
    pub(super) fn took_away(&self) -> bool {
        match self {
            Self::MigMode { on, .. } => !on,
            Self::GpuInstanceGone { .. }
            | Self::ComputeInstanceGone { .. }
            | Self::Stopped { .. } => true,
            _ => false,
        }
    }
}

/// Names what was made or removed.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MigMode { .. } => f.write_str("MIG mode on"),
            Self::GpuInstance(instance) | Self::GpuInstanceGone { instance, .. } => instance.fmt(f),
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
