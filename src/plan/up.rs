//! Plans `up`.

use std::ptr;

use super::daemons::unseen;
use super::driver::{no_program_starts, too_old, visible};
use super::gpu_request::GpuRequest;
use super::instance_use::{self, InstanceUse};
use super::layout::Layout;
use super::names::name_all;
use super::planner::Planner;
use super::slot::Slot;
use super::strays;
use super::{Misfit, Obstacle, Place, Plan, Refusal, mode};
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
    if let Some(obstacle) = unseen(node) {
        return Err(obstacle.into());
    }
    if let Some(obstacle) = planner.lost_gpu() {
        return Err(obstacle.into());
    }
    let mut mistakes = planner.serve_mistakes(caller);
    mistakes.extend(planner.selector_mistakes());
    let (mut layouts, mut refusals) = planner.layouts();
    let slots = layouts.iter_mut().flat_map(|layout| &mut layout.slots);
    match planner.names_of_others() {
        Ok(mut names) => {
            let given = name_all(profile, &mut names, slots.collect());
            mistakes.extend(given.err());
        }
        Err(refusal) => refusals.push(refusal),
    }
    refuse(profile, mistakes, refusals)?;
    let gpus = layouts.into_iter().map(|layout| layout.finish(planner));
    let mut plan = Plan {
        gpus: gpus
            .filter(|gpu| !gpu.steps.is_empty() || !gpu.obstacles.is_empty())
            .collect(),
        remarks: planner.remarks(),
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

/// Refuses a profile with mistakes, all at once and in file order, whatever order its blocks have. Requests that do not
/// fit are among them; without a mistake beside them they are shown with their maps.
fn refuse(
    profile: &Profile,
    mut mistakes: Vec<ProfileError>,
    refusals: Vec<Refusal>,
) -> Result<(), Refusal> {
    let (mut misfits, mut others) = (Vec::new(), Vec::new());
    for refusal in refusals {
        match refusal {
            Refusal::Profile(error) => mistakes.push(error),
            Refusal::Infeasible(misfit) => misfits.push(*misfit),
            other => others.push(other),
        }
    }
    if !mistakes.is_empty() {
        mistakes.extend(misfits.iter().map(|misfit| misfit.as_mistake(profile)));
    }
    if let Some(error) = ProfileError::all(mistakes) {
        return Err(error.into());
    }
    match Misfit::all(misfits) {
        Some(misfit) => Err(Refusal::Infeasible(Box::new(misfit))),
        None => others.into_iter().next().map_or(Ok(()), Err),
    }
}

impl<'a> Planner<'a> {
    /// Plans each GPU, without the names of its devices. Returns what refuses it too: a block's refusal is that of the
    /// first of its GPUs.
    fn layouts(self) -> (Vec<Layout<'a>>, Vec<Refusal>) {
        let (mut layouts, mut refusals) = (Vec::new(), Vec::new());
        let mut refused: Vec<&Block> = Vec::new();
        for gpu in &self.node.gpus {
            let is_refused = |block: &&Block| refused.iter().any(|other| ptr::eq(*other, *block));
            let Some(block) = self.block_of(gpu).filter(|block| !is_refused(block)) else {
                continue;
            };
            match self.layout(gpu, block) {
                Ok(layout) => layouts.push(layout),
                Err(refusal) => {
                    refusals.push(refusal);
                    refused.push(block);
                }
            }
        }
        (layouts, refusals)
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
