//! Plans `up`.

use super::draft::Draft;
use super::driver::{no_program_starts, too_old, visible};
use super::gpu_request::GpuRequest;
use super::instance_use::{self, InstanceUse};
use super::layout::{self, Layout};
use super::names::name_all;
use super::planner::Planner;
use super::slot::{self, Slot};
use super::strays;
use super::{Obstacle, Place, Plan, Refusal, mode};
use crate::geometry::SliceMap;
use crate::host::Uid;
use crate::node::{Gpu, Node};
use crate::profile::{Block, DeviceEntry, Names, Profile, Want, WholeGpu};
use crate::state::{DeviceKey, RunDir};

/// Plans to apply a profile, with daemons in `run_dir` run by `caller`.
pub fn up(node: &Node, profile: &Profile, run_dir: &RunDir, caller: Uid) -> Result<Plan, Refusal> {
    let mut planner = Planner {
        node,
        profile,
        run_dir,
        caller,
        names: Names::default(),
    };
    too_old(node)?;
    planner.check_serves()?;
    planner.check_selectors()?;
    planner.reserve_names_of_others()?;
    let mut drafts = Vec::new();
    for gpu in &node.gpus {
        if let Some(block) = planner.block_of(gpu) {
            drafts.push(planner.draft(gpu, block)?);
        }
    }
    let slots = drafts.iter_mut().flat_map(|draft| &mut draft.layout.slots);
    name_all(profile, &mut planner.names, slots.collect())?;
    let gpus = drafts.into_iter().map(|draft| draft.finish(node, run_dir));
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

impl<'a> Planner<'a> {
    /// Plans one GPU, without the names of its devices.
    fn draft(&self, gpu: &'a Gpu, block: &'a Block) -> Result<Draft<'a>, Refusal> {
        let mut draft = Draft {
            gpu,
            mode: None,
            layout: Layout {
                after: gpu.slice_map(),
                destroys: Vec::new(),
                builds: Vec::new(),
                slots: Vec::new(),
                obstacles: Vec::new(),
            },
            to_be_continued: false,
        };
        match &block.want {
            Want::Whole(whole) => self.whole(&mut draft, block, whole)?,
            Want::Parts(parts) => self.parts(&mut draft, block, parts)?,
        }
        if draft.mode.is_some() {
            draft
                .layout
                .obstacles
                .extend(mode::in_the_way(self.node, gpu));
        }
        Ok(draft)
    }

    fn whole(
        &self,
        draft: &mut Draft<'a>,
        block: &Block,
        whole: &'a WholeGpu,
    ) -> Result<(), Refusal> {
        let gpu = draft.gpu;
        if gpu.in_mig_mode() {
            visible(gpu)?;
            for standing in InstanceUse::all(self.node, self.run_dir, gpu) {
                let because = "the profile wants this GPU whole";
                draft
                    .layout
                    .destroys
                    .extend(layout::dismantle(gpu, &standing, because));
                let parts = standing.parts.iter();
                let obstacles = parts.filter_map(|part| part.in_the_way(gpu));
                draft.layout.obstacles.extend(obstacles);
            }
            draft.layout.after = SliceMap::new(gpu.units(), Vec::new());
        }
        if let Some(limit) = whole.settings.pinned_memory_limit
            && let Some(why) = no_program_starts(self.node, gpu, limit)
        {
            let error = self.profile.error(block.span, why);
            return Err(error.with_hint("give it more, or \"none\"").into());
        }
        draft.mode = mode::switch(gpu, false);
        let key = DeviceKey {
            gpu: gpu.uuid.clone(),
            instance: None,
        };
        let name = whole.name.as_ref();
        draft.layout.slots.push(Slot {
            gpu: gpu.index,
            entry: 0,
            place: Place::Whole,
            template: name.map_or_else(|| gpu.index.to_string(), |(name, _)| name.clone()),
            span: name.map_or(block.span, |(_, span)| *span),
            serve: slot::serve(&whole.settings, self.caller),
            settings: &whole.settings,
            device: (!gpu.in_mig_mode()).then_some(gpu.uuid.as_str()),
            served: instance_use::served_here(self.node, self.run_dir, &key),
            name: String::new(),
        });
        Ok(())
    }

    fn parts(
        &self,
        draft: &mut Draft<'a>,
        block: &'a Block,
        parts: &'a [DeviceEntry],
    ) -> Result<(), Refusal> {
        let gpu = draft.gpu;
        if gpu.mig.is_none() {
            let message = format!("GPU {} ({}) has no MIG", gpu.index, gpu.product);
            let error = self.profile.error(block.span, message);
            return Err(error.with_hint("use mig = false for it").into());
        }
        visible(gpu)?;
        draft.mode = mode::switch(gpu, true);
        if gpu.profiles.is_empty() {
            if gpu.in_mig_mode() {
                return Err(Refusal::InTheWay(Obstacle {
                    what: format!("GPU {}: the driver lists no profiles for it", gpu.index),
                    hint: "see what nvidia-smi mig -lgip says".to_owned(),
                }));
            }
            draft.to_be_continued = true;
            return Ok(());
        }
        let request = GpuRequest {
            profile: self.profile,
            block,
            parts,
            node: self.node,
            run_dir: self.run_dir,
            caller: self.caller,
            gpu,
        };
        draft.layout = request.layout()?;
        Ok(())
    }
}
