//! The GPUs that a profile means and that are lost, or not there.

use std::collections::BTreeSet;

use super::gpu_steps::Layout;
use super::up::{Planner, block_selects};
use crate::catalog;
use crate::failure::Problem;
use crate::node::LOST_GPU_REMEDY;
use crate::profile::{Block, ProfileError, Span};

/// Refuses where a GPU is lost that a selector names, or that is the only one that it may select.
pub(super) fn check_lost_gpus(planner: Planner<'_>) -> Result<(), Problem> {
    if planner.left_out.is_some() {
        return Ok(());
    }
    for (lost, why) in lost_gpus(planner) {
        if planner.leaves_all_alone() || names_lost_gpu(planner, lost) {
            return Err(Problem::new(why, lost_gpu_hint(planner)));
        }
    }
    Ok(())
}

/// Returns the remedy for a lost GPU, and the option that applies the rest of the profile without it.
pub(super) fn lost_gpu_hint(planner: Planner<'_>) -> String {
    let blocks = &planner.profile.blocks;
    let is_only_joint = blocks.iter().all(|block| block.joint_name().is_some());
    if planner.is_in_part || (is_only_joint && blocks.len() == 1) {
        return LOST_GPU_REMEDY.to_owned();
    }
    format!("{LOST_GPU_REMEDY}; use `mig-mps up --keep-going` to apply the rest of the profile")
}

/// True if a block names single GPUs, and may mean this lost one.
fn names_lost_gpu(planner: Planner<'_>, lost: u32) -> bool {
    planner.profile.blocks.iter().any(|block| {
        let names_gpus = block.select.index.is_some() || block.select.names_a_real_gpu();
        names_gpus && may_select(planner, block, lost)
    })
}

/// The lost GPUs that the profile may select, with the driver's errors.
pub(super) fn lost_gpus(planner: Planner<'_>) -> impl Iterator<Item = (u32, &str)> {
    planner.node.lost_gpus().filter(move |(lost, _)| {
        planner
            .profile
            .blocks
            .iter()
            .any(|block| may_select(planner, block, *lost))
    })
}

/// The lost GPUs that a block may select, with the driver's errors.
pub(super) fn lost_gpus_of<'a>(
    planner: Planner<'a>,
    block: &Block,
) -> impl Iterator<Item = (u32, &'a str)> {
    let lost = planner.node.lost_gpus();
    lost.filter(move |(lost, _)| may_select(planner, block, *lost))
}

/// True if a block may select a lost GPU, which tells neither its product nor its UUID.
fn may_select(planner: Planner<'_>, block: &Block, lost: u32) -> bool {
    let selector = &block.select;
    let is_found = planner
        .node
        .gpus
        .iter()
        .any(|gpu| block_selects(block, gpu));
    let may_have_index = selector.index.is_none() || selector.indices().any(|own| own == lost);
    may_have_index && !(selector.names_a_real_gpu() && is_found)
}

/// A selector that names certain GPUs must find one, and the profile as a whole too. The first mistake shows the
/// GPUs.
pub(super) fn selector_mistakes(planner: Planner<'_>) -> Vec<ProfileError> {
    let gpus = &planner.node.gpus;
    let mut mistakes = Vec::new();
    for block in &planner.profile.blocks {
        let selected = gpus.iter().filter(|gpu| block_selects(block, gpu)).count();
        let mistake = match describe_absent_gpus(planner, block) {
            Some(_) if planner.left_out.is_some() => continue,
            Some(absent) => absent,
            None if selected > 1 && block.select.names_one_gpu() => {
                "write more of the UUID; several GPUs have this prefix".to_owned()
            }
            None => continue,
        };
        mistakes.push(planner.profile.error_at(block.span, mistake));
    }
    if mistakes.is_empty() && planner.leaves_all_alone() && planner.left_out.is_none() {
        let first = planner.profile.blocks.first();
        let span = first.map_or(Span::default(), |block| block.span);
        let message = "the profile selects no GPU of this node";
        mistakes.push(planner.profile.error_at(span, message));
    }
    if !mistakes.is_empty() {
        let lines: Vec<String> = gpus
            .iter()
            .map(|gpu| format!("{} {} {} {}", gpu.index, gpu.product, gpu.uuid, gpu.pci))
            .collect();
        let first = mistakes.remove(0);
        let first = first.with_hint(format!("this node has:\n  {}", lines.join("\n  ")));
        mistakes.insert(0, first);
    }
    mistakes
}

/// Describes the GPUs that a selector names and that are not there. The lost ones are.
pub(super) fn describe_absent_gpus(planner: Planner<'_>, block: &Block) -> Option<String> {
    let node = planner.node;
    let mut indices: BTreeSet<u32> = block.select.indices().collect();
    indices.retain(|index| {
        let is_lost = node.lost_gpus().any(|(lost, _)| lost == *index);
        !is_lost && !node.gpus.iter().any(|gpu| gpu.index == *index)
    });
    let absent: Vec<String> = indices.iter().map(u32::to_string).collect();
    let is_found = node.gpus.iter().any(|gpu| block_selects(block, gpu))
        || node
            .lost_gpus()
            .any(|(lost, _)| may_select(planner, block, lost));
    match absent.as_slice() {
        [] if is_found || !block.select.names_a_gpu() => None,
        [] => Some("this selects a GPU that does not exist".to_owned()),
        [one] => Some(format!("there is no GPU {one}")),
        several => Some(format!("there are no GPUs {}", several.join(", "))),
    }
}

/// Describes the lost GPUs that are left as they are, and blocks that select no GPU here and no model that the catalog
/// knows: probably by a typing error, which a block for all other GPUs hides.
pub(super) fn selection_remarks(planner: Planner<'_>) -> Vec<String> {
    let blocks = planner.profile.blocks.iter().enumerate();
    let lost: Vec<(u32, &str)> = match planner.left_out {
        Some(_) => Vec::new(),
        None => lost_gpus(planner).collect(),
    };
    let unknown = blocks
        .filter(|(_, block)| {
            !planner
                .node
                .gpus
                .iter()
                .any(|gpu| block_selects(block, gpu))
        })
        .filter(|(_, block)| !catalog::has_product(|name| block.select.may_select(name)))
        .map(|(position, _)| planner.profile.block_heading(position))
        .map(|block| {
            format!("{block}: selects no GPU of this node, and no model that mig-mps knows")
        });
    lost.iter()
        .map(|(_, why)| format!("{why}: this GPU stays as it is"))
        .chain(unknown)
        .collect()
}

/// Returns the parts of the profile that are left out, by GPU.
pub(super) fn missing_parts(planner: Planner<'_>, layouts: &[Layout<'_>]) -> Vec<Problem> {
    let Some(left_out) = planner.left_out else {
        return Vec::new();
    };
    let lost = lost_gpus(planner).map(|(gpu, why)| Problem {
        gpu: Some(gpu),
        ..Problem::new(why, LOST_GPU_REMEDY)
    });
    let absent = (0..)
        .zip(&planner.profile.blocks)
        .filter_map(|(block, of)| {
            let heading = planner.profile.block_heading(block);
            let why = format!("{heading}: {}", describe_absent_gpus(planner, of)?);
            Some(Problem::new(why, "run `mig-mps list` to see the GPUs"))
        });
    let unserved = layouts
        .iter()
        .flat_map(|layout| &layout.devices)
        .filter_map(|device| {
            let problem = planner.problem_with_users(device.settings.as_ref()?)?;
            Some(Problem {
                gpu: Some(device.gpu),
                device: Some(device.name.clone()),
                ..problem
            })
        });
    let mut missing: Vec<Problem> = lost
        .chain(left_out.gpus().cloned())
        .chain(absent)
        .chain(unserved)
        .collect();
    missing.sort_by_key(|one| (one.gpu.is_none(), one.gpu));
    missing
}
