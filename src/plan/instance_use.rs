//! The instances of a GPU, their users, and the disruption of destroying them.

use super::Obstacle;
use crate::geometry::{Disruption, Placement};
use crate::host::Pid;
use crate::node::{DaemonState, Gpu, Node, Served};
use crate::nvml::{ComputeInstanceReading, GpuInstanceReading};
use crate::state::{Created, DeviceKey, InstanceKey, RunDir};

/// An existing GPU instance and its users.
pub(super) struct InstanceUse<'a> {
    pub(super) instance: &'a GpuInstanceReading,
    /// Its compute instances, by placement.
    pub(super) parts: Vec<ComputeUse<'a>>,
}

/// An existing compute instance and its users.
pub(super) struct ComputeUse<'a> {
    pub(super) compute: &'a ComputeInstanceReading,
    /// Its daemon, if that is ours or alive.
    pub(super) served: Option<&'a Served>,
    /// The disruption of stopping that daemon.
    pub(super) restart: Disruption,
    /// The disruption of destroying it.
    pub(super) disruption: Disruption,
    /// Processes that compute on it outside MPS.
    pub(super) strangers: Vec<Pid>,
}

impl<'a> InstanceUse<'a> {
    /// Returns the instances of a GPU, by placement.
    pub(super) fn all(node: &'a Node, run_dir: &RunDir, gpu: &'a Gpu) -> Vec<Self> {
        let part = |instance: &GpuInstanceReading, compute: &'a ComputeInstanceReading| {
            let key = DeviceKey {
                instance: Some(InstanceKey {
                    profile: instance.profile,
                    placement: instance.placement,
                    compute: compute.placement,
                }),
                ..DeviceKey::whole(&gpu.uuid)
            };
            let served = served_here(node, run_dir, &key);
            let restart = served.map_or(Disruption::NONE, |served| {
                disruption_of_end(served, run_dir)
            });
            let strangers = node.unaccounted_for(&compute.uuid);
            let itself = Disruption {
                clients: u32::try_from(strangers.len()).unwrap_or(u32::MAX),
                compute_instances: 1,
                ..Disruption::NONE
            };
            ComputeUse {
                compute,
                served,
                restart,
                disruption: itself + restart,
                strangers,
            }
        };
        gpu.instances
            .iter()
            .map(|instance| Self {
                instance,
                parts: instance
                    .compute
                    .iter()
                    .map(|compute| part(instance, compute))
                    .collect(),
            })
            .collect()
    }

    pub(super) fn placement(&self) -> Placement {
        self.instance.placement
    }

    /// The disruption of destroying it.
    pub(super) fn disruption(&self) -> Disruption {
        let itself = Disruption {
            gpu_instances: 1,
            ..Disruption::NONE
        };
        itself + self.parts.iter().map(|part| part.disruption).sum()
    }
}

/// Returns the record of an existing device: ours, or that of another user's running daemon. The remains of another
/// user's dead daemon are no obstacle, and not ours to remove.
pub(super) fn served_here<'a>(
    node: &'a Node,
    run_dir: &RunDir,
    key: &DeviceKey,
) -> Option<&'a Served> {
    node.served_on(key)
        .filter(|served| served.is_there() && concerns_us(served, run_dir))
}

pub(super) fn concerns_us(served: &Served, run_dir: &RunDir) -> bool {
    served.run_dir == *run_dir || served.is_alive()
}

/// The disruption of stopping a daemon. One that cannot be asked may have a client.
fn disruption_of_end(served: &Served, run_dir: &RunDir) -> Disruption {
    let unasked = is_unknowable(served) || served.run_dir != *run_dir;
    let clients = served.clients.listed().len() + usize::from(unasked);
    Disruption {
        clients: u32::try_from(clients).unwrap_or(u32::MAX),
        daemons: served.is_alive().into(),
        ..Disruption::NONE
    }
}

/// True if it may have clients that nobody can see.
pub(super) fn is_unknowable(served: &Served) -> bool {
    match served.state {
        DaemonState::Busy | DaemonState::Hidden | DaemonState::NoAnswer | DaemonState::Orphan => {
            true
        }
        DaemonState::Hung => !served.clients.are_known(),
        _ => false,
    }
}

/// Programs that compute on a device outside MPS: the driver would refuse to destroy it.
pub(super) fn outside_mps(gpu: &Gpu, uuid: &str, pids: &[Pid], hint: &str) -> Option<Obstacle> {
    let (index, pids) = (gpu.index, list(pids)?);
    let what = format!("GPU {index}: pid {pids} uses {uuid} outside MPS");
    Some(Obstacle::new(what, hint))
}

/// `4711, 4712`; `None` if there are none.
pub(super) fn list(pids: &[Pid]) -> Option<String> {
    let words: Vec<String> = pids.iter().map(Pid::to_string).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// True if mig-mps made this GPU instance, or that compute instance in it.
pub(super) fn is_made_by_us(
    node: &Node,
    gpu: &Gpu,
    instance: &GpuInstanceReading,
    compute: Option<Placement>,
) -> bool {
    node.created.contains(&Created {
        gpu: gpu.uuid.clone(),
        profile: instance.profile,
        placement: instance.placement,
        compute,
    })
}

impl ComputeUse<'_> {
    pub(super) fn in_the_way(&self, gpu: &Gpu) -> Option<Obstacle> {
        let uuid = &self.compute.uuid;
        outside_mps(gpu, uuid, &self.strangers, "let them end first")
    }
}
