use std::fmt;

use super::{Cause, Shared};
use crate::geometry::{ComputeInstanceId, GpuInstanceId, Placement, ProfileId, ProfileName};
use crate::mps::Patience;
use crate::node::{Created, DeviceRecord};

/// Something a run has done, with what is needed to undo it.
#[derive(Debug)]
pub(super) enum Done {
    /// MIG mode was switched on.
    MigMode { gpu: String },
    /// A GPU instance was made.
    GpuInstance {
        gpu: String,
        id: GpuInstanceId,
        profile: ProfileId,
        name: ProfileName,
        placement: Placement,
    },
    /// A compute instance was made.
    ComputeInstance {
        gpu: String,
        instance: GpuInstanceId,
        id: ComputeInstanceId,
        uuid: String,
    },
    /// A daemon was started.
    Started(Box<DeviceRecord>),
    /// A daemon was ended.
    Stopped(Box<DeviceRecord>),
}

impl Done {
    /// Undoes it.
    pub(super) fn undo(&self, shared: &Shared<'_>) -> Result<(), Cause> {
        match self {
            Self::MigMode { .. } => Err(Cause::Stays),
            Self::GpuInstance {
                gpu,
                id,
                placement,
                profile,
                ..
            } => {
                let (theirs, id) = (gpu.clone(), *id);
                shared
                    .nvml
                    .supervise(move |nvml| nvml.destroy_gpu_instance(&theirs, id))?;
                let made = Created {
                    gpu: gpu.clone(),
                    profile: *profile,
                    placement: *placement,
                    compute: None,
                };
                Ok(shared.ledger.remove(|created| *created == made)?)
            }
            Self::ComputeInstance {
                gpu, instance, id, ..
            } => {
                let (gpu, instance, id) = (gpu.clone(), *instance, *id);
                let destroy = shared
                    .nvml
                    .supervise(move |nvml| nvml.destroy_compute_instance(&gpu, instance, id));
                Ok(destroy?)
            }
            Self::Started(record) => shared.end_daemon(record, Patience::Idle, true),
            Self::Stopped(record) => shared.restart_daemon(record),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MigMode { gpu } => write!(f, "{gpu}: MIG mode switched on"),
            Self::GpuInstance {
                gpu,
                name,
                placement,
                ..
            } => write!(f, "{gpu}: {name} made at {placement}"),
            Self::ComputeInstance { gpu, uuid, .. } => {
                write!(f, "{gpu}: compute instance {uuid} made")
            }
            Self::Started(record) => write!(f, "daemon of {} started", record.name),
            Self::Stopped(record) => write!(f, "daemon of {} ended", record.name),
        }
    }
}
