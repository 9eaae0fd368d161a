//! The choice of a device for a program that takes any.

use std::cmp::Reverse;

use regex::Regex;
use thiserror::Error;

use super::access::{NoAccess, access, check_user};
use crate::failure::Failure;
use crate::geometry::ProfileName;
use crate::host::Uid;
use crate::node::{Device, Node, Served};

/// The devices that a program takes.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Their names; all if there are none.
    pub names: Vec<String>,
    pub profile: Option<ProfileName>,
    /// The least free memory, in bytes.
    pub free_memory: Option<u64>,
    /// A match in the product name of their GPU.
    pub product: Option<Regex>,
}

/// No device takes a program now.
#[derive(Debug, Error)]
#[error("{}", self.text())]
pub struct NoneFree {
    /// The reason of each device that would do.
    pub reasons: Vec<NoAccess>,
}

impl Failure for NoneFree {
    fn hint(&self) -> Option<String> {
        match self.reasons.as_slice() {
            [only] => only.hint(),
            _ if self.is_passing() => Some("wait for one with --wait 5m".to_owned()),
            [] => Some("mig-mps status shows the devices".to_owned()),
            _ => Some("mig-mps status shows the state of each device".to_owned()),
        }
    }
}

/// The most reasons that a message names.
const MOST: usize = 8;

impl NoneFree {
    /// True if it ends when other programs do.
    pub fn is_passing(&self) -> bool {
        self.reasons.iter().any(NoAccess::is_passing)
    }

    fn text(&self) -> String {
        let mut lines = vec![match self.reasons.len() {
            0 => return "no device with a daemon matches".to_owned(),
            1 => return self.reasons[0].to_string(),
            count => format!("none of {count} devices takes a program now:"),
        }];
        let reasons = self.reasons.iter().take(MOST);
        lines.extend(reasons.map(|reason| format!("  {reason}")));
        if self.reasons.len() > MOST {
            lines.push(format!("  and {} others", self.reasons.len() - MOST));
        }
        lines.join("\n")
    }
}

/// Returns the devices that would do and take a program of the user now: those with the fewest clients first, then those
/// with the most free memory.
pub fn free_devices<'n>(
    node: &'n Node,
    wanted: &Wanted,
    user: Uid,
) -> Result<Vec<&'n Served>, NoneFree> {
    let devices: Vec<Device> = node.devices().collect();
    let of = |served: &Served| {
        devices
            .iter()
            .find(|device| device.uuid == served.record.uuid)
    };
    let mut free = Vec::new();
    let mut reasons = Vec::new();
    for served in &node.served {
        let device = of(served);
        if !wanted.is_met(node, served, device) {
            continue;
        }
        match access(served, user) {
            Ok(()) => {
                let memory = free_memory(node, served, device);
                free.push((served.clients.listed().len(), Reverse(memory), served));
            }
            Err(reason) => reasons.push(reason),
        }
    }
    if free.is_empty() {
        return Err(NoneFree { reasons });
    }
    // The node's order of names decides between equals.
    free.sort_by_key(|(clients, memory, _)| (*clients, *memory));
    Ok(free.into_iter().map(|(.., served)| served).collect())
}

impl Wanted {
    fn is_met(&self, node: &Node, served: &Served, device: Option<&Device>) -> bool {
        let record = &served.record;
        let has_profile = |wanted: &ProfileName| {
            let own = record.profile.as_deref().and_then(|own| own.parse().ok());
            own.is_some_and(|own: ProfileName| own == *wanted || own.short() == *wanted)
        };
        let has_memory = |least: &u64| free_memory(node, served, device) >= Some(*least);
        let is_product = |product: &Regex| {
            let gpu = node.gpu(&record.key.gpu);
            gpu.is_some_and(|gpu| product.is_match(&gpu.product))
        };
        (self.names.is_empty() || self.names.contains(&record.name))
            && self.profile.as_ref().is_none_or(has_profile)
            && self.free_memory.as_ref().is_none_or(has_memory)
            && self.product.as_ref().is_none_or(is_product)
    }
}

/// Returns the free memory of a device in bytes; all of it if the driver hides how much is used.
fn free_memory(node: &Node, served: &Served, device: Option<&Device>) -> Option<u64> {
    let processes = node.processes.get(&served.record.uuid);
    if let Some(memory) = processes.and_then(|processes| processes.memory) {
        return Some(memory.total.saturating_sub(memory.used));
    }
    match device?.part.as_ref() {
        Some(part) => Some(part.memory_mib << 20),
        None => Some(node.gpu(&served.record.key.gpu)?.memory?.total),
    }
}

/// Returns the recorded devices that would do and are for the user, without a view of their state: every rank of a program
/// finds the same ones.
pub fn devices_for<'n>(node: &'n Node, wanted: &Wanted, user: Uid) -> Vec<&'n Served> {
    let served = node.served.iter();
    let would_do = served.filter(|served| wanted.is_met(node, served, None));
    would_do
        .filter(|served| check_user(served, user).is_ok())
        .collect()
}
