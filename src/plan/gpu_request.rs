use super::planner::Planner;
use crate::node::Gpu;
use crate::profile::{Block, DeviceEntry};

/// The devices that a block of the profile wants of one GPU, and what their layout depends on.
pub(super) struct GpuRequest<'a> {
    pub(super) planner: Planner<'a>,
    pub(super) block: &'a Block,
    pub(super) parts: &'a [DeviceEntry],
    pub(super) gpu: &'a Gpu,
}
