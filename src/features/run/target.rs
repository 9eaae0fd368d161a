//! A device that `run` has chosen.

use crate::host::Environment;
use crate::node::{Node, Served};
use crate::settings::DeviceSize;
use crate::shared::Portion;

/// A device that programs run on.
pub(super) struct Target {
    /// The environment in which its daemon is found.
    pub(super) environment: Environment,
    pub(super) served: Served,
    pub(super) size: DeviceSize,
    /// The part of it that a program gets.
    pub(super) portion: Portion,
}

impl Target {
    /// Describes a device of a node that was observed.
    pub(super) fn new(node: &Node, environment: &Environment, served: &Served) -> Self {
        let device = node.device_with_key(&served.record.key);
        let size = device.and_then(|device| node.size_of(device));
        let portion = device.map(|device| Portion::for_device(node, device, served));
        Self {
            portion: portion.unwrap_or_default(),
            environment: environment.clone(),
            served: served.clone(),
            size: size.unwrap_or_default(),
        }
    }
}
