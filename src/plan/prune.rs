//! The devices on GPUs that no block of a profile selects any more.

use std::collections::BTreeSet;

use super::up::{Unselected, block_selects};
use super::{Action, LeftOut, Plan, Stop};
use crate::host::{format_count, format_gpus};
use crate::node::{Gpu, Node, Served};
use crate::profile::Profile;
use crate::state::RunDir;

impl Plan {
    /// Adds the end of the daemons on GPUs that no block of the profile selects and that are not left out, or a
    /// remark on them if they stay.
    #[must_use]
    pub fn prune_or_remark(
        mut self,
        node: &Node,
        profile: &Profile,
        run_dir: &RunDir,
        unselected: Unselected,
        left_out: Option<&LeftOut>,
    ) -> Self {
        let in_no_block = daemons_in_no_block(node, profile, run_dir);
        if unselected == Unselected::Stay {
            self.remarks.extend(prune_remark(&in_no_block));
            return self;
        }
        for (gpu, served) in in_no_block {
            if left_out.is_some_and(|left_out| left_out.has_gpu(gpu.index)) {
                continue;
            }
            let stop = Action::Stop(Stop::from_served(served))
                .with_reason("not in any block of the profile");
            self.gpu_plan_mut(node, &gpu.uuid).steps.push(stop);
        }
        self.complete(node, run_dir)
    }
}

/// The daemons on GPUs that are there and in no block. A GPU that is lost may be in one.
fn daemons_in_no_block<'a>(
    node: &'a Node,
    profile: &Profile,
    run_dir: &RunDir,
) -> Vec<(&'a Gpu, &'a Served)> {
    node.served()
        .filter(|served| served.run_dir == *run_dir)
        .filter_map(|served| Some((node.gpu_with_uuid(&served.record.key.gpu)?, served)))
        .filter(|(gpu, _)| !profile.blocks.iter().any(|block| block_selects(block, gpu)))
        .collect()
}

fn prune_remark(in_no_block: &[(&Gpu, &Served)]) -> Option<String> {
    let indices: BTreeSet<u32> = in_no_block.iter().map(|(gpu, _)| gpu.index).collect();
    let indices: Vec<u32> = indices.into_iter().collect();
    let devices = format_count(in_no_block.len(), "mig-mps device");
    let them = match in_no_block.len() {
        0 => return None,
        1 => "it",
        _ => "them",
    };
    let have = if indices.len() == 1 { "has" } else { "have" };
    Some(format!(
        "this profile does not select {}, which still {have} {devices}; use up --prune to stop {them}",
        format_gpus(&indices)
    ))
}
