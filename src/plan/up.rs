use super::daemons::Daemons;
use super::layout::{self, Layout, Wish};
use super::slot::{self, Slot};
use super::standing::{self, Standing};
use super::strays;
use super::{Action, GpuPlan, Obstacle, Place, Plan, Refusal, Step, mode};
use crate::geometry::SliceMap;
use crate::host::Uid;
use crate::mps::{ContextMemory, ControlProgram, Support};
use crate::node::{Device, Gpu, Node};
use crate::profile::{Block, Names, Part, Profile, Span, Want, WholeGpu};
use crate::settings::{MemoryLimit, Serve};
use crate::state::{DeviceKey, RunDir};

/// What brings the node to what the profile asks for, with daemons in `home` run by `caller`.
///
/// # Errors
/// A [`Refusal`]; nothing has been touched.
pub fn up(node: &Node, profile: &Profile, home: &RunDir, caller: Uid) -> Result<Plan, Refusal> {
    let mut planner = Planner {
        node,
        profile,
        home,
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
    slot::name_all(profile, &mut planner.names, slots.collect())?;
    let gpus = drafts.into_iter().map(|draft| draft.finish(node, home));
    let mut plan = Plan {
        gpus: gpus
            .filter(|gpu| !gpu.steps.is_empty() || !gpu.obstacles.is_empty())
            .collect(),
    };
    strays::end_idle(node, &mut plan, |stray| {
        let mut devices = node.devices();
        let device = devices.find(|device| device.uuid == stray.uuid);
        let mut gpus = node.gpus.iter();
        let gpu = device.and_then(|device| gpus.find(|gpu| gpu.uuid == device.key.gpu));
        gpu.is_some_and(|gpu| planner.block_of(gpu).is_some())
    });
    plan.gpus.sort_by_key(|gpu| gpu.index);
    Ok(plan.with_compute_modes(node, home))
}

struct Planner<'a> {
    node: &'a Node,
    profile: &'a Profile,
    home: &'a RunDir,
    caller: Uid,
    names: Names,
}

impl<'a> Planner<'a> {
    fn block_of(&self, gpu: &Gpu) -> Option<&'a Block> {
        self.profile.blocks.iter().find(|block| {
            block
                .select
                .selects(gpu.index, &gpu.uuid, &gpu.product, &gpu.pci)
        })
    }

    /// Root's daemon is for others, a plain user's for that user alone: NVIDIA's daemon refuses the
    /// other way round, after it has started. One server for several users takes a driver that has it.
    fn check_serves(&self) -> Result<(), Refusal> {
        let root = self.caller == Uid::ROOT;
        for (serve, span) in &self.profile.serves {
            if (*serve == Serve::Own) == root {
                let (who, may) = if root {
                    (
                        "root",
                        "\"one-at-a-time\", \"all\", \"group:NAME\" or \"user:NAME\"",
                    )
                } else {
                    ("a plain user", "\"self\"")
                };
                let error = self
                    .profile
                    .error(*span, format!("{who} cannot serve \"{serve}\""));
                let hint = format!("for {who} it is {may}, or leave serve out");
                return Err(error.with_hint(hint).into());
            }
            if serve.is_shared() && !self.node.control_program().has_multiuser_server {
                let since = ControlProgram::first_that(|program| program.has_multiuser_server);
                let message = format!(
                    "\"{serve}\" cannot be here: driver {} has no multi-user server",
                    self.node.driver
                );
                let hint = format!(
                    "driver {since} is the first with one; \"one-at-a-time\" and \"user:NAME\" do without"
                );
                let error = self.profile.error(*span, message);
                return Err(error.with_hint(hint).into());
            }
        }
        Ok(())
    }

    /// A selector that names certain GPUs must find one, and the profile as a whole too.
    fn check_selectors(&self) -> Result<(), Refusal> {
        let gpus: Vec<String> = self
            .node
            .gpus
            .iter()
            .map(|gpu| format!("{} {} {} {}", gpu.index, gpu.product, gpu.uuid, gpu.pci))
            .collect();
        let here = format!("this node has:\n  {}", gpus.join("\n  "));
        for block in &self.profile.blocks {
            let missing = block
                .select
                .indices()
                .find(|index| !self.node.gpus.iter().any(|gpu| gpu.index == *index));
            if let Some(index) = missing {
                let message = format!("there is no GPU {index}");
                return Err(self
                    .profile
                    .error(block.span, message)
                    .with_hint(here)
                    .into());
            }
            let selects = |gpu: &Gpu| {
                block
                    .select
                    .selects(gpu.index, &gpu.uuid, &gpu.product, &gpu.pci)
            };
            let selected = self.node.gpus.iter().filter(|gpu| selects(gpu)).count();
            let mistake = match selected {
                0 if block.select.names_a_gpu() => "this selects a GPU that is not there",
                2.. if block.select.names_one_gpu() => {
                    "the UUIDs of several GPUs begin like this: write more of it"
                }
                _ => continue,
            };
            let error = self.profile.error(block.span, mistake);
            return Err(error.with_hint(here).into());
        }
        if !self
            .node
            .gpus
            .iter()
            .any(|gpu| self.block_of(gpu).is_some())
        {
            let span = self
                .profile
                .blocks
                .first()
                .map_or(Span::default(), |block| block.span);
            let error = self
                .profile
                .error(span, "the profile selects no GPU of this node");
            return Err(error.with_hint(here).into());
        }
        Ok(())
    }

    /// Devices of GPUs that the profile leaves alone keep their names, given or by default.
    fn reserve_names_of_others(&mut self) -> Result<(), Refusal> {
        let left_alone = self
            .node
            .gpus
            .iter()
            .filter(|gpu| self.block_of(gpu).is_none());
        let unserved: Vec<Device> = left_alone
            .flat_map(Gpu::devices)
            .filter(|device| self.node.served_on(&device.key).is_none())
            .collect();
        for device in unserved {
            // Default names differ from each other.
            let _ = self
                .names
                .give(&device.default_name, "a device of another GPU");
        }
        for served in self
            .node
            .served
            .iter()
            .filter(|served| served.run_dir == *self.home)
        {
            let selected = self
                .node
                .gpus
                .iter()
                .any(|gpu| gpu.uuid == served.record.key.gpu && self.block_of(gpu).is_some());
            if !selected {
                let name = &served.record.name;
                let given = self.names.give(name, "a device of another GPU");
                given.map_err(|_| Obstacle {
                    what: format!("two devices are recorded as \"{name}\""),
                    hint: "take one of them down".to_owned(),
                })?;
            }
        }
        Ok(())
    }

    /// What becomes of one GPU; its devices have no names yet.
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
            for standing in Standing::all(self.node, self.home, gpu) {
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
            served: standing::present(self.node, self.home, &key),
            name: String::new(),
        });
        Ok(())
    }

    fn parts(
        &self,
        draft: &mut Draft<'a>,
        block: &'a Block,
        parts: &'a [Part],
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
        let wish = Wish {
            profile: self.profile,
            block,
            parts,
            node: self.node,
            home: self.home,
            caller: self.caller,
            gpu,
        };
        draft.layout = wish.layout()?;
        Ok(())
    }
}

/// Refuses a driver whose control program lacks what every daemon needs.
pub(super) fn too_old(node: &Node) -> Result<(), Refusal> {
    if node.control_program().support != Support::TooOld {
        return Ok(());
    }
    let first = ControlProgram::first_that(|program| program.support == Support::Measured);
    Err(Refusal::NotMeant(Obstacle {
        what: format!(
            "driver {} is too old for MPS: its control program has no memory limits, client priorities, \
             get_server_status, ps or terminate_client",
            node.driver
        ),
        hint: format!("MPS needs driver {first} or newer; mig-mps list works with this one"),
    }))
}

/// Why no program starts with that limit on a whole GPU, where that was measured.
pub(super) fn no_program_starts(node: &Node, gpu: &Gpu, limit: MemoryLimit) -> Option<String> {
    ContextMemory::forbids(limit, &gpu.product, node.control_program().branch)
}

/// Instances that cannot be seen cannot be planned with.
pub(super) fn visible(gpu: &Gpu) -> Result<(), Refusal> {
    match &gpu.hidden {
        Some(why) => Err(Refusal::InTheWay(Obstacle {
            what: format!("GPU {}: its instances cannot be seen: {why}", gpu.index),
            hint: "run it as root".to_owned(),
        })),
        None => Ok(()),
    }
}

/// What becomes of one GPU, before its devices have names.
struct Draft<'a> {
    gpu: &'a Gpu,
    mode: Option<Step>,
    layout: Layout<'a>,
    to_be_continued: bool,
}

impl Draft<'_> {
    /// The steps in their order: daemons end, instances go, the mode changes; then every device gets
    /// its daemon as soon as it is there.
    fn finish(self, node: &Node, home: &RunDir) -> GpuPlan {
        let gpu = self.gpu;
        let due = match &self.mode {
            Some(Step {
                action: Action::SwitchMig { on },
                ..
            }) => mode::due(gpu, *on),
            _ => None,
        };
        let Layout {
            after,
            destroys,
            builds,
            slots,
            mut obstacles,
        } = self.layout;
        let daemons = Daemons::of(node, home, gpu, &slots);
        obstacles.extend(daemons.obstacles);
        let mut steps = daemons.stops;
        steps.extend(destroys);
        steps.extend(self.mode);
        let is_built = |place: &Place| builds.iter().any(|build| place.is_in(build.placement));
        let (later, now): (Vec<_>, Vec<_>) = daemons
            .starts
            .into_iter()
            .partition(|(place, _)| is_built(place));
        steps.extend(now.into_iter().map(|(_, step)| step));
        for build in builds {
            steps.extend(build.steps);
            let its = later
                .iter()
                .filter(|(place, _)| place.is_in(build.placement));
            steps.extend(its.map(|(_, step)| step.clone()));
        }
        // Last: what fails before them leaves nothing of theirs to undo.
        steps.extend(daemons.sets);
        steps.extend(daemons.servers);
        GpuPlan {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            product: gpu.product.clone(),
            before: gpu.slice_map(),
            after,
            steps,
            to_be_continued: self.to_be_continued,
            obstacles,
            due,
            compute_mode: None,
        }
    }
}
