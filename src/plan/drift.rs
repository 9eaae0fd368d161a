//! Judges whether a node is as the profile that was applied to it says, from what `status` reads.

use super::Refusal;
use super::up::{block_selects, up};
use crate::host::Uid;
use crate::node::{Device, Gpu, Node};
use crate::profile::{Block, Profile, Want};
use crate::state::RunDir;

/// True if the node differs from a profile, as far as its snapshot tells; `None` if that cannot be judged.
///
/// A snapshot of `status` has no placements but those in use, and these are enough: a plan that changes nothing needs no
/// others, and a profile that needs others is refused.
pub fn differs_from_profile(
    node: &Node,
    profile: &Profile,
    run_dir: &RunDir,
    caller: Uid,
) -> Option<bool> {
    let is_unseen = node.has_no_driver() || node.unseen_daemons().is_some();
    let is_hidden = node.gpus.iter().any(|gpu| gpu.hidden.is_some());
    if is_unseen || is_hidden || node.is_changing() {
        return None;
    }
    // Instances without devices are not read, and without any the planner knows no profile of that GPU.
    let empty = node.gpus.iter().filter(|gpu| gpu.has_nothing_in_mig_mode());
    if let Some(is_any_wanted) = empty.filter_map(|gpu| wants_devices(gpu, profile)).max() {
        return is_any_wanted.then_some(true);
    }
    let mut node = node.clone();
    for gpu in &mut node.gpus {
        offer_what_is_in_use(gpu);
        // It is read of devices alone.
        let device = node
            .devices
            .iter()
            .find(|device| device.is_whole() && device.key.has_gpu(&gpu.uuid));
        gpu.memory = gpu
            .memory
            .or_else(|| device.and_then(Device::memory_of_each_gpu));
    }
    match up(&node, profile, run_dir, caller) {
        Ok(plan) => Some(plan.differs_from_node()),
        Err(Refusal::Infeasible(_) | Refusal::Profile(_)) => Some(true),
        Err(_) => lacks_joint_device(&node, profile).then_some(true),
    }
}

/// True if no daemon serves one of the joint devices of a profile: it may have lost a GPU.
fn lacks_joint_device(node: &Node, profile: &Profile) -> bool {
    let is_served = |name: &str| {
        let mut served = node.served();
        served.any(|served| served.record.key.is_joint() && served.record.name == name)
    };
    profile
        .blocks
        .iter()
        .filter_map(Block::joint_name)
        .any(|name| !is_served(name))
}

/// True for a GPU that the profile partitions into devices, and false for one in MIG mode that is to have none; `None` for
/// others.
fn wants_devices(gpu: &Gpu, profile: &Profile) -> Option<bool> {
    let block = profile
        .blocks
        .iter()
        .find(|block| block_selects(block, gpu))?;
    match &block.want {
        Want::Parts(parts) => Some(!parts.is_empty()),
        Want::Whole(_) => None,
    }
}

/// Makes each profile of a GPU fit where an instance of it is, and nowhere else.
fn offer_what_is_in_use(gpu: &mut Gpu) {
    for profile in &mut gpu.profiles {
        profile.placements = gpu
            .instances
            .iter()
            .filter(|instance| instance.profile == profile.id)
            .map(|instance| instance.placement)
            .collect();
        profile.most = u32::try_from(profile.placements.len()).unwrap_or(u32::MAX);
    }
}
