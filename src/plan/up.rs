//! Plans `up`.

use std::ptr;

use super::driver::{no_program_starts, too_old, visible};
use super::gpu_request::GpuRequest;
use super::instance_use::{self, InstanceUse};
use super::layout::Layout;
use super::names::name_all;
use super::planner::Planner;
use super::slot::Slot;
use super::strays;
use super::{Obstacle, Place, Plan, Refusal, mode};
use crate::geometry::SliceMap;
use crate::host::Uid;
use crate::node::{Gpu, Node};
use crate::profile::{Block, DeviceEntry, Profile, ProfileError, Want, WholeGpu};
use crate::settings::Serve;
use crate::state::{DeviceKey, RunDir};

/// Plans to apply a profile, with daemons in `run_dir` run by `caller`.
pub fn up(node: &Node, profile: &Profile, run_dir: &RunDir, caller: Uid) -> Result<Plan, Refusal> {
    let planner = Planner {
        node,
        profile: &with_serve(profile, caller),
        run_dir,
    };
    too_old(node)?;
    if let Some(obstacle) = planner.lost_gpu() {
        return Err(obstacle.into());
    }
    let mut mistakes = planner.serve_mistakes(caller);
    mistakes.extend(planner.selector_mistakes());
    let mut layouts = planner.layouts(mistakes)?;
    let mut names = planner.names_of_others()?;
    let slots = layouts.iter_mut().flat_map(|layout| &mut layout.slots);
    name_all(profile, &mut names, slots.collect())?;
    let gpus = layouts.into_iter().map(|layout| layout.finish(planner));
    let mut plan = Plan {
        gpus: gpus
            .filter(|gpu| !gpu.steps.is_empty() || !gpu.obstacles.is_empty())
            .collect(),
        ..Plan::default()
    };
    strays::end_idle(node, &mut plan, |stray| {
        let mut devices = node.devices();
        let device = devices.find(|device| device.uuid == stray.uuid);
        let gpu = device.and_then(|device| node.gpu(&device.key.gpu));
        gpu.is_some_and(|gpu| planner.block_of(gpu).is_some())
    });
    plan.sort();
    Ok(plan.with_compute_modes(node, run_dir))
}

/// The profile with the users that each device serves, by default those that the caller may serve.
fn with_serve(profile: &Profile, caller: Uid) -> Profile {
    let mut profile = profile.clone();
    for block in &mut profile.blocks {
        let settings: Vec<_> = match &mut block.want {
            Want::Whole(whole) => vec![&mut whole.settings],
            Want::Parts(parts) => parts.iter_mut().map(|part| &mut part.settings).collect(),
        };
        for settings in settings.into_iter().flatten() {
            settings.serve.get_or_insert(if caller == Uid::ROOT {
                Serve::OneAtATime
            } else {
                Serve::Own
            });
        }
    }
    profile
}

impl<'a> Planner<'a> {
    /// Plans each GPU, without the names of its devices. Shows the mistakes of all blocks beside those found before.
    fn layouts(self, mut mistakes: Vec<ProfileError>) -> Result<Vec<Layout<'a>>, Refusal> {
        let mut layouts = Vec::new();
        let mut wrong: Vec<&Block> = Vec::new();
        for gpu in &self.node.gpus {
            let is_wrong = |block: &&Block| wrong.iter().any(|other| ptr::eq(*other, *block));
            // A block's mistakes are shown for the first of its GPUs.
            let Some(block) = self.block_of(gpu).filter(|block| !is_wrong(block)) else {
                continue;
            };
            match self.layout(gpu, block) {
                Ok(layout) => layouts.push(layout),
                Err(Refusal::Profile(error)) => {
                    mistakes.push(error);
                    wrong.push(block);
                }
                Err(refusal) if mistakes.is_empty() => return Err(refusal),
                Err(_) => {}
            }
        }
        match ProfileError::all(mistakes) {
            Some(error) => Err(error.into()),
            None => Ok(layouts),
        }
    }

    /// Plans one GPU, without the names of its devices.
    fn layout(self, gpu: &'a Gpu, block: &'a Block) -> Result<Layout<'a>, Refusal> {
        let mut layout = Layout::of(gpu);
        match &block.want {
            Want::Whole(whole) => self.whole(&mut layout, block, whole)?,
            Want::Parts(parts) => self.parts(&mut layout, block, parts)?,
        }
        if layout.mode.is_some() {
            layout.obstacles.extend(mode::in_the_way(self.node, gpu));
        }
        Ok(layout)
    }

    fn whole(
        self,
        layout: &mut Layout<'a>,
        block: &Block,
        whole: &'a WholeGpu,
    ) -> Result<(), Refusal> {
        let gpu = layout.gpu;
        if gpu.in_mig_mode() {
            visible(gpu)?;
            for standing in InstanceUse::all(self.node, self.run_dir, gpu) {
                layout.destroy(&standing, "the profile wants this GPU whole");
            }
            layout.after = SliceMap::new(gpu.units(), Vec::new());
        }
        let settings = whole.settings.as_ref();
        if let Some(limit) = settings.and_then(|settings| settings.pinned_memory_limit)
            && let Some(why) = no_program_starts(self.node, gpu, limit)
        {
            let error = self.profile.error(block.span, why);
            return Err(error.with_hint("give it more, or \"none\"").into());
        }
        layout.mode = mode::switch(gpu, false);
        let key = DeviceKey::whole(&gpu.uuid);
        let default = || (gpu.index.to_string(), block.span);
        let (name, span) = whole.name.clone().unwrap_or_else(default);
        layout.slots.push(Slot {
            gpu: gpu.index,
            entry: 0,
            place: Place::Whole,
            name,
            span,
            settings,
            device: (!gpu.in_mig_mode()).then_some(gpu.uuid.as_str()),
            served: instance_use::served_here(self.node, self.run_dir, &key),
        });
        Ok(())
    }

    fn parts(
        self,
        layout: &mut Layout<'a>,
        block: &'a Block,
        parts: &'a [DeviceEntry],
    ) -> Result<(), Refusal> {
        let gpu = layout.gpu;
        if gpu.mig.is_none() {
            let message = format!("GPU {} ({}) has no MIG", gpu.index, gpu.product);
            let error = self.profile.error(block.span, message);
            return Err(error.with_hint("use mig = false for it").into());
        }
        visible(gpu)?;
        layout.mode = mode::switch(gpu, true);
        if gpu.profiles.is_empty() {
            if gpu.in_mig_mode() {
                let what = format!("GPU {}: the driver lists no profiles for it", gpu.index);
                return Err(Obstacle::new(what, "see what nvidia-smi mig -lgip says").into());
            }
            layout.to_be_continued = true;
            return Ok(());
        }
        let request = GpuRequest {
            planner: self,
            block,
            parts,
            gpu,
        };
        request.plan(layout)
    }
}
