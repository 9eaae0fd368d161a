//! Plans `up`: checks that a profile suits this node, plans each GPU, and names the devices.

use std::collections::BTreeSet;

use super::device::DevicePlan;
use super::device_names::{name_conflicts, name_devices};
use super::gpu_layout::GpuRequest;
use super::gpu_steps::{InstanceUse, Layout};
use super::missing_gpus::{
    check_lost_gpus, lost_gpus, missing_parts, selection_remarks, selector_mistakes,
};
use super::preconditions::check_run_dirs_readable;
use super::refusal::{
    check_driver_version, check_no_virtual_machines, check_visible, no_program_starts,
};
use super::remarks::{remark_on_virtual_machines, remarks_on_moved_names};
use super::{LeftOut, Misfit, Place, Plan, Refusal, serve_setting};
use crate::catalog::{NoMig, explain_no_mig};
use crate::failure::Problem;
use crate::geometry::SliceMap;
use crate::host::{Uid, root_hint};
use crate::mps::ControlProgram;
use crate::node::{Gpu, Node};
use crate::profile::{Block, DeviceEntry, Profile, ProfileError, Want, WholeGpu};
use crate::settings::{Serve, Settings};
use crate::state::{DeviceKey, RunDir};

/// The node, profile and run directory that `up` is planned for.
#[derive(Clone, Copy)]
pub(super) struct Planner<'a> {
    pub(super) node: &'a Node,
    pub(super) profile: &'a Profile,
    pub(super) run_dir: &'a RunDir,
    /// The parts that are left out; `None` where the profile is applied as a whole or not at all.
    pub(super) left_out: Option<&'a LeftOut>,
    /// True if the user has asked for the rest of the profile where a part cannot be applied.
    pub(super) is_in_part: bool,
    pub(super) unselected: Unselected,
}

/// What becomes of daemons on GPUs that no block of the profile selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unselected {
    Stay,
    /// [`Plan::prune_or_remark`] stops them, so that they are no obstacle.
    Stop,
}

/// Plans to apply a profile, with daemons in `run_dir` run by `caller`.
pub fn up(node: &Node, profile: &Profile, run_dir: &RunDir, caller: Uid) -> Result<Plan, Refusal> {
    up_with(node, profile, run_dir, caller, Unselected::Stay)
}

/// Plans to apply a profile as [`up`] does. `unselected` decides about daemons on GPUs that no block selects.
pub fn up_with(
    node: &Node,
    profile: &Profile,
    run_dir: &RunDir,
    caller: Uid,
    unselected: Unselected,
) -> Result<Plan, Refusal> {
    let planner = Planner {
        node,
        profile: &with_default_serve(profile, caller),
        run_dir,
        left_out: None,
        is_in_part: false,
        unselected,
    };
    plan_in_stages(planner, caller)
}

/// Plans to apply the part of a profile that can be applied. Adds the GPUs to `left_out` for which it cannot.
///
/// # Errors
/// The refusal is about the profile as a whole or about the node, or no GPU would be left to begin with.
pub fn up_in_part(
    node: &Node,
    profile: &Profile,
    run_dir: &RunDir,
    caller: Uid,
    left_out: &mut LeftOut,
    unselected: Unselected,
) -> Result<Plan, Refusal> {
    let wanted = &with_default_serve(profile, caller);
    let is_first = left_out.has_no_gpu();
    loop {
        let planner = Planner {
            node,
            profile: wanted,
            run_dir,
            left_out: Some(&*left_out),
            is_in_part: true,
            unselected,
        };
        let (layouts, mut refusals) = planner.plan_layouts();
        refusals.extend(name_conflicts(planner, &layouts));
        // One that is left out may keep the name of another.
        let mut is_one_new = false;
        for (gpu, refusal) in &refusals {
            is_one_new |= left_out.add_gpu(*gpu, refusal);
        }
        if !is_one_new {
            break;
        }
    }
    let planner = Planner {
        node,
        profile: wanted,
        run_dir,
        left_out: Some(&*left_out),
        is_in_part: true,
        unselected,
    };
    if planner.leaves_all_alone() && is_first {
        let whole = Planner {
            left_out: None,
            ..planner
        };
        return plan_in_stages(whole, caller);
    }
    if planner.leaves_all_alone() && !left_out.has_begun() {
        return Err(left_out.nothing_left_refusal());
    }
    plan_in_stages(planner, caller)
}

/// The profile with the users that each device serves, by default those that the caller may serve.
fn with_default_serve(profile: &Profile, caller: Uid) -> Profile {
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
/// fit are among them; if they are the only mistakes, they are shown with their slice maps.
fn check_no_mistakes(
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
    if let Some(error) = ProfileError::from_errors(mistakes) {
        return Err(error.into());
    }
    let mut misfits = misfits.into_iter();
    if let Some(first) = misfits.next() {
        let others = misfits.collect();
        let misfit = Misfit { others, ..first };
        return Err(Refusal::Infeasible(Box::new(misfit)));
    }
    match others.into_iter().next() {
        Some(refusal) => Err(refusal),
        None => Ok(()),
    }
}

/// Plans in seven stages. Each relies on the checks and results of those before it.
fn plan_in_stages(planner: Planner<'_>, caller: Uid) -> Result<Plan, Refusal> {
    // 1. Whether anything can be planned for the node.
    check_driver_version(planner.node)?;
    check_run_dirs_readable(planner.node)?;
    check_lost_gpus(planner)?;
    // 2. The profile as a whole: the users that it serves, and the GPUs that it selects.
    let mut mistakes = planner.serve_mistakes(caller);
    mistakes.extend(selector_mistakes(planner));
    // 3. The instances of each GPU, with the steps to them.
    let (mut layouts, refusals) = planner.plan_layouts();
    // 4. The names of the devices.
    let named = name_devices(planner, &mut layouts);
    // 5. The mistakes that stages 2 to 4 have found, all at once.
    let refusals = refusals.into_iter().map(|(_, refusal)| refusal);
    check_no_mistakes(
        planner.profile,
        mistakes,
        refusals.chain(named.err()).collect(),
    )?;
    // 6. What is left out, and what is worth a remark.
    let missing = missing_parts(planner, &layouts);
    let mut remarks = selection_remarks(planner);
    remarks.extend(remarks_on_moved_names(planner, &layouts));
    // 7. The daemons of the devices, the order of all steps, and what follows from them.
    let gpus = layouts
        .into_iter()
        .map(|layout| layout.into_gpu_plan(planner))
        .filter(|gpu| !gpu.steps.is_empty() || !gpu.obstacles.is_empty());
    let plan = Plan {
        gpus: gpus.collect(),
        remarks,
        lost_gpus: lost_gpus(planner).map(|(gpu, _)| gpu).collect(),
        missing,
        ..Plan::default()
    };
    Ok(complete_plan(planner, plan))
}

/// Adds what follows from the steps of a plan: the end of servers without clients that outlived their daemons, remarks on
/// the GPUs that change and on users who lose their device, compute modes, and the clients that go on.
fn complete_plan(planner: Planner<'_>, mut plan: Plan) -> Plan {
    let node = planner.node;
    plan.end_idle_strays(node, |device| {
        let gpu = node.gpu_with_uuid(&device.key.gpu);
        gpu.is_some_and(|gpu| !planner.leaves_alone(gpu))
    });
    for changed in &plan.gpus {
        if let Some(gpu) = node.gpu_with_uuid(&changed.uuid) {
            plan.remarks.extend(node.health_problems(gpu));
            plan.remarks.extend(remark_on_virtual_machines(node, gpu));
        }
    }
    let shut_out = plan.remarks_on_excluded_users(node, planner.run_dir);
    plan.remarks.extend(shut_out);
    plan.complete(node, planner.run_dir)
}

impl<'a> Planner<'a> {
    /// Plans each GPU, without the names of its devices. Also returns the refusals, each with the index of its GPU: one for
    /// each block, unless GPUs may be left out.
    fn plan_layouts(self) -> (Vec<Layout<'a>>, Vec<(u32, Refusal)>) {
        let (mut layouts, mut refusals) = (Vec::new(), Vec::new());
        let mut refused_blocks: BTreeSet<usize> = BTreeSet::new();
        for gpu in &self.node.gpus {
            let block = self.block_of(gpu);
            let Some(block) = block.filter(|block| !refused_blocks.contains(block)) else {
                continue;
            };
            match self.plan_layout(gpu, &self.profile.blocks[block]) {
                Ok(layout) => layouts.push(layout),
                Err(refusal) => {
                    refusals.push((gpu.index, refusal));
                    if self.left_out.is_none() {
                        refused_blocks.insert(block);
                    }
                }
            }
        }
        (layouts, refusals)
    }

    /// Plans one GPU, without the names of its devices.
    fn plan_layout(self, gpu: &'a Gpu, block: &'a Block) -> Result<Layout<'a>, Refusal> {
        if let Want::Whole(whole) = &block.want
            && whole.is_joint
        {
            // The device as the profile has it, before the one that is there.
            self.joint_gpus(block, whole)?;
        }
        self.check_recorded_joint(gpu)?;
        let mut layout = Layout::new(gpu);
        match &block.want {
            Want::Whole(whole) => self.plan_whole_gpu(&mut layout, block, whole)?,
            Want::Parts(parts) => self.plan_mig_devices(&mut layout, block, parts)?,
        }
        Ok(layout)
    }

    fn plan_whole_gpu(
        self,
        layout: &mut Layout<'a>,
        block: &Block,
        whole: &'a WholeGpu,
    ) -> Result<(), Refusal> {
        let gpu = layout.gpu;
        if gpu.in_mig_mode() {
            check_visible(gpu)?;
            check_no_virtual_machines(self.node, gpu)?;
            for standing in InstanceUse::all_on_gpu(self.node, self.run_dir, gpu) {
                layout.add_destroy_steps(&standing, "the profile wants this GPU whole");
            }
            layout.plan.after = SliceMap::new(gpu.placement_units(), Vec::new());
        }
        let joint = if whole.is_joint {
            self.joint_gpus(block, whole)?
        } else {
            Vec::new()
        };
        layout.add_mig_switch(self.node, false);
        let key = DeviceKey::for_joint_device(joint.iter().map(|gpu| gpu.uuid.clone()).collect());
        if whole.is_joint && self.first_gpu_of(&key) != gpu.uuid {
            return Ok(());
        }
        let clients = self.node.control_program().client_limit * key.gpu_count();
        let size = || gpu.device_size().with_client_limit(Some(clients));
        let settings = whole
            .settings
            .as_ref()
            .map(|settings| settings.for_device_size(size).into_owned());
        if let Some(limit) = settings.as_ref().and_then(Settings::given_memory_limit)
            && let Some(why) = no_program_starts(self.node, gpu, limit)
        {
            let error = self.profile.error_at(block.span, why);
            return Err(error
                .with_hint("raise the limit, or set it to \"none\"")
                .into());
        }
        let uuid = if whole.is_joint {
            Some(key.joint_uuid())
        } else {
            let device = self.node.device_with_uuid(&gpu.uuid);
            device.map(|device| device.uuid.clone())
        };
        let name = whole.name.clone();
        let (name, span) = name.unwrap_or_else(|| (gpu.index.to_string(), block.span));
        layout.devices.push(DevicePlan {
            place: Place::Whole,
            joint: joint.iter().map(|gpu| gpu.index).collect(),
            profile: None,
            multiprocessors: None,
            memory_mib: gpu.memory.map(|memory| memory.total >> 20),
            client_limit: Some(clients),
            name,
            settings,
            gpu: gpu.index,
            entry: 0,
            span,
            uuid,
        });
        Ok(())
    }

    fn plan_mig_devices(
        self,
        layout: &mut Layout<'a>,
        block: &'a Block,
        parts: &'a [DeviceEntry],
    ) -> Result<(), Refusal> {
        let gpu = layout.gpu;
        if gpu.mig.is_none() {
            let about = format!("GPU {} ({})", gpu.index, gpu.product);
            let (message, hint) = match explain_no_mig(&gpu.product, &self.node.driver) {
                Some(NoMig { cause, remedy }) => (
                    format!("the driver offers no MIG on {about}: {cause}"),
                    format!("{remedy}; or use mig = false for it"),
                ),
                None => (
                    format!("{about} has no MIG"),
                    "use mig = false for it".to_owned(),
                ),
            };
            let error = self.profile.error_at(block.span, message);
            return Err(error.with_hint(hint).into());
        }
        check_visible(gpu)?;
        layout.add_mig_switch(self.node, true);
        if gpu.profiles.is_empty() {
            if gpu.in_mig_mode() {
                let what = format!("GPU {}: the driver lists no profiles for it", gpu.index);
                return Err(
                    Problem::new(what, "check the output of `nvidia-smi mig -lgip`").into(),
                );
            }
            layout.plan.to_be_continued = true;
            return Ok(());
        }
        let request = GpuRequest {
            planner: self,
            block,
            parts,
            gpu,
            settings: Vec::new(),
        };
        request.plan_into(layout)
    }
}

impl Planner<'_> {
    /// The position of the block that selects a GPU: the first one wins. None selects a GPU that is left out.
    pub(super) fn block_of(self, gpu: &Gpu) -> Option<usize> {
        if self
            .left_out
            .is_some_and(|left_out| left_out.has_gpu(gpu.index))
        {
            return None;
        }
        self.profile
            .blocks
            .iter()
            .position(|block| block_selects(block, gpu))
    }

    /// Returns the reason why a device is left without a daemon.
    pub(super) fn problem_with_users(self, settings: &Settings) -> Option<Problem> {
        let (left_out, serve) = (self.left_out?, serve_setting(settings));
        left_out
            .problem_with_users(serve)
            .or_else(|| self.check_multiuser_server(serve).err())
    }

    pub(super) fn leaves_alone(self, gpu: &Gpu) -> bool {
        self.block_of(gpu).is_none()
    }

    pub(super) fn leaves_all_alone(self) -> bool {
        self.node.gpus.iter().all(|gpu| self.leaves_alone(gpu))
    }

    /// Root may serve only others, and a plain user only itself: NVIDIA's daemon would refuse anything else, but only after it
    /// has started. One server for several users needs a driver that supports it.
    pub(super) fn serve_mistakes(self, caller: Uid) -> Vec<ProfileError> {
        let (who, may) = if caller == Uid::ROOT {
            (
                "root",
                "\"one-at-a-time\", \"all\", \"group:NAME\" or \"user:NAME\"",
            )
        } else {
            ("a plain user", "\"self\"")
        };
        let mut mistakes = Vec::new();
        for (serve, span) in &self.profile.serves {
            if (*serve == Serve::Own) == (caller == Uid::ROOT) {
                let message = format!("{who} cannot serve \"{serve}\"");
                let mut hint = format!("use {may}, or omit serve");
                if caller != Uid::ROOT {
                    hint = format!("{}; {hint}", root_hint());
                }
                mistakes.push(self.profile.error_at(*span, message).with_hint(hint));
                continue;
            }
            if let Err(problem) = self.check_multiuser_server(serve)
                && self.left_out.is_none()
            {
                mistakes.push(self.profile.problem_at(*span, problem));
            }
        }
        mistakes
    }

    /// Refuses users that the driver cannot serve together.
    fn check_multiuser_server(self, serve: &Serve) -> Result<(), Problem> {
        if !serve.is_shared() || self.node.control_program().has_multiuser_server {
            return Ok(());
        }
        let since = ControlProgram::FIRST_MULTIUSER_BRANCH;
        let message = format!(
            "\"{serve}\" is not possible here: driver {} has no multi-user server",
            self.node.driver
        );
        let hint =
            format!("use \"one-at-a-time\" or \"user:NAME\", or install driver {since} or newer");
        Err(Problem::new(message, hint))
    }
}

pub fn block_selects(block: &Block, gpu: &Gpu) -> bool {
    let selector = &block.select;
    selector.selects_gpu(gpu.index, &gpu.uuid, &gpu.product, &gpu.pci)
}
