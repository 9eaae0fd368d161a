//! What stands on a GPU, and what taking it away would do.

use super::Obstacle;
use crate::geometry::{Harm, Placement};
use crate::host::Pid;
use crate::node::{Gpu, Life, Node, Served};
use crate::nvml::{ComputeInstanceReading, GpuInstanceReading};
use crate::state::{DeviceKey, InstanceKey, RunDir};

/// A GPU instance that is there.
pub(super) struct Standing<'a> {
    pub(super) instance: &'a GpuInstanceReading,
    /// Its compute instances, by placement.
    pub(super) parts: Vec<Part<'a>>,
}

/// A compute instance that is there, with whoever uses it.
pub(super) struct Part<'a> {
    pub(super) compute: &'a ComputeInstanceReading,
    /// Its daemon, if there is one that concerns us.
    pub(super) served: Option<&'a Served>,
    /// What ending that daemon would do.
    pub(super) restart: Harm,
    /// What destroying it would do.
    pub(super) harm: Harm,
    /// Processes that compute on it outside MPS.
    pub(super) strangers: Vec<Pid>,
}

impl<'a> Standing<'a> {
    /// Everything that stands on a GPU, by placement.
    pub(super) fn all(node: &'a Node, home: &RunDir, gpu: &'a Gpu) -> Vec<Self> {
        let part = |instance: &GpuInstanceReading, compute: &'a ComputeInstanceReading| {
            let key = DeviceKey {
                gpu: gpu.uuid.clone(),
                instance: Some(InstanceKey {
                    profile: instance.profile,
                    placement: instance.placement,
                    compute: compute.placement,
                }),
            };
            let served = present(node, home, &key);
            let restart = served.map_or(Harm::NONE, |served| harm_of_end(served, home));
            let strangers = node.unaccounted_for(&compute.uuid);
            let itself = Harm {
                clients: u32::try_from(strangers.len()).unwrap_or(u32::MAX),
                compute_instances: 1,
                ..Harm::NONE
            };
            Part {
                compute,
                served,
                restart,
                harm: itself + restart,
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

    /// What destroying it would do.
    pub(super) fn harm(&self) -> Harm {
        let itself = Harm {
            gpu_instances: 1,
            ..Harm::NONE
        };
        itself + self.parts.iter().map(|part| part.harm).sum()
    }
}

/// The record of who serves a device that is there: ours, or another user's living daemon. What
/// another user's dead daemon left is neither in the way nor ours to clear away.
pub(super) fn present<'a>(node: &'a Node, home: &RunDir, key: &DeviceKey) -> Option<&'a Served> {
    node.served_on(key)
        .filter(|served| served.device_is_there && concerns_us(served, home))
}

pub(super) fn concerns_us(served: &Served, home: &RunDir) -> bool {
    served.run_dir == *home || served.is_alive()
}

/// What ending a daemon would do. Whoever cannot be asked may have a client.
fn harm_of_end(served: &Served, home: &RunDir) -> Harm {
    let unasked = is_unknowable(served) || served.run_dir != *home;
    let clients = served.clients.len() + usize::from(unasked);
    Harm {
        clients: u32::try_from(clients).unwrap_or(u32::MAX),
        daemons: served.is_alive().into(),
        ..Harm::NONE
    }
}

/// True if nobody knows whether it has clients.
pub(super) fn is_unknowable(served: &Served) -> bool {
    match served.life {
        Life::Busy | Life::Hidden | Life::NoAnswer | Life::Orphan => true,
        Life::Hung => !served.is_known,
        _ => false,
    }
}

/// `4711, 4712`
pub(super) fn list(pids: &[Pid]) -> String {
    let pids: Vec<String> = pids.iter().map(Pid::to_string).collect();
    pids.join(", ")
}

impl Part<'_> {
    /// A program that computes on it outside MPS: the driver would refuse to destroy it.
    pub(super) fn in_the_way(&self, gpu: &Gpu) -> Option<Obstacle> {
        (!self.strangers.is_empty()).then(|| Obstacle {
            what: format!(
                "GPU {}: {} computes outside MPS for pid {}",
                gpu.index,
                self.compute.uuid,
                list(&self.strangers)
            ),
            hint: "let them end first".to_owned(),
        })
    }
}
