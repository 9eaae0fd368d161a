use crate::host::Uid;
use crate::node::{Gpu, Node};
use crate::profile::{Block, DeviceEntry, Profile};
use crate::state::RunDir;

/// The devices that a block of the profile wants of one GPU, and what their layout depends on.
pub(super) struct GpuRequest<'a> {
    pub(super) profile: &'a Profile,
    pub(super) block: &'a Block,
    pub(super) parts: &'a [DeviceEntry],
    pub(super) node: &'a Node,
    pub(super) run_dir: &'a RunDir,
    pub(super) caller: Uid,
    pub(super) gpu: &'a Gpu,
}
