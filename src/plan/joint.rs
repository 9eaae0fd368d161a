//! The GPUs of a joint device: all that a block selects, or none.

use super::Refusal;
use super::device::DevicePlan;
use super::gpu_steps::concerns_us;
use super::missing_gpus::{describe_absent_gpus, lost_gpu_hint, lost_gpus_of};
use super::up::{Planner, Unselected, block_selects};
use crate::failure::Problem;
use crate::host::{format_gpus, join_words};
use crate::node::{Gpu, Served, describe_former_gpu};
use crate::nvml::{DEFAULT_COMPUTE_MODE, compute_mode_name};
use crate::profile::{Block, WholeGpu};
use crate::state::{DeviceKey, RecordedGpu};

impl<'a> Planner<'a> {
    /// Returns the GPUs of the joint device of a block, by index.
    ///
    /// # Errors
    /// They are fewer than two or of several products, or one is lost, not there, or left out: the device never becomes smaller
    /// by itself, since programs number its GPUs.
    pub(super) fn joint_gpus(
        self,
        block: &Block,
        whole: &WholeGpu,
    ) -> Result<Vec<&'a Gpu>, Refusal> {
        let is_first = |gpu: &&Gpu| {
            let first = self.first_block_for(gpu);
            first.is_some_and(|first| first.span == block.span)
        };
        let (gpus, taken): (Vec<&Gpu>, Vec<&Gpu>) = self
            .node
            .gpus
            .iter()
            .filter(|gpu| block_selects(block, gpu))
            .partition(is_first);
        let names_gpus = block.select.index.is_some() || block.select.names_a_real_gpu();
        if names_gpus && let Some(taken) = taken.first() {
            let mistake = format!(
                "GPU {} has an earlier block, but a joint device needs all GPUs of its block",
                taken.index
            );
            let error = self.profile.error_at(block.span, mistake);
            return Err(error.with_hint("select the GPU in only one block").into());
        }
        if let Some(out) = gpus.iter().find(|gpu| self.leaves_alone(gpu)) {
            let why = format!("GPU {} is left out", out.index);
            // The GPU's own problem has the remedy.
            return Err(incomplete_problem(whole, &why, "").into());
        }
        if let Some((lost, why)) = lost_gpus_of(self, block).next() {
            let problem = Problem {
                reason_of_gpu: Some(lost),
                ..incomplete_problem(whole, why, &lost_gpu_hint(self))
            };
            return Err(problem.into());
        }
        if let Some(absent) = describe_absent_gpus(self, block) {
            let hint = "run `mig-mps list` to see the GPUs";
            return Err(incomplete_problem(whole, &absent, hint).into());
        }
        // With a product, too, the GPU with an index may be another one after a reboot.
        if !block.select.names_a_gpu() {
            self.check_same_gpus(whole, &gpus, block.select.index.is_some())?;
        }
        let indices: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
        let mut products: Vec<&str> = gpus.iter().map(|gpu| gpu.product.as_str()).collect();
        products.sort_unstable();
        products.dedup();
        let mistake = match (gpus.len(), products.as_slice()) {
            (2.., [_]) => return self.check_compute_modes(whole, &gpus).map(|()| gpus),
            (2.., several) => format!(
                "a joint device needs GPUs of one product, but {} are {}",
                format_gpus(&indices),
                join_words(several, "and")
            ),
            _ => format!(
                "a joint device needs two GPUs or more, but this selects {}",
                format_gpus(&indices)
            ),
        };
        let error = self.profile.error_at(block.span, mistake);
        Err(error.with_hint("select other GPUs, or omit joint").into())
    }

    /// Refuses fewer GPUs than the device had when a profile with it was applied, if one of those does not exist, or if the
    /// profile is still the same. As many GPUs are enough, because one may have been replaced; but with indices (`by_index`),
    /// the GPU in the place of one that does not exist may be another device's, whose index has changed.
    fn check_same_gpus(
        self,
        whole: &WholeGpu,
        gpus: &[&Gpu],
        by_index: bool,
    ) -> Result<(), Problem> {
        let name = whole.name.as_ref().map_or("", |(name, _)| name);
        let Some((applied, before)) = self.node.joint_gpus_before(name, gpus) else {
            return Ok(());
        };
        let is_smaller = gpus.len() < before.len();
        if !is_smaller && !by_index {
            return Ok(());
        }
        let describe = |gpus: Vec<&RecordedGpu>| {
            let gpus: Vec<String> = gpus
                .iter()
                .map(|gpu| describe_former_gpu(&gpu.uuid, gpu.index))
                .collect();
            join_words(&gpus, "and")
        };
        let mut others: Vec<&RecordedGpu> = before.iter().collect();
        others.retain(|recorded| gpus.iter().all(|gpu| gpu.uuid != recorded.uuid));
        let mut absent = others.clone();
        absent.retain(|gpu| self.node.gpu_with_uuid(&gpu.uuid).is_none());
        let why = match absent.len() {
            0 if !is_smaller || applied.text != self.profile.source.text() => return Ok(()),
            0 => format!("its block no longer selects {}", describe(others)),
            1 => format!("{} does not exist", describe(absent)),
            _ => format!("{} do not exist", describe(absent)),
        };
        let indices: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
        let hint = match indices.as_slice() {
            [_] => "to use the other GPU, omit joint".to_owned(),
            _ => format!(
                "to use the other GPUs, select them by index: select = {{ index = [{}] }}",
                indices.join(", ")
            ),
        };
        Err(incomplete_problem(whole, &why, &hint))
    }

    /// Refuses different compute modes where the daemon changes them: its end restores one mode.
    fn check_compute_modes(self, whole: &WholeGpu, gpus: &[&Gpu]) -> Result<(), Refusal> {
        let key = DeviceKey::for_joint_device(gpus.iter().map(|gpu| gpu.uuid.clone()).collect());
        let before = self
            .node
            .compute_mode_before(&key.joint_uuid(), self.run_dir);
        let changes_mode = whole
            .settings
            .as_ref()
            .is_some_and(|settings| settings.compute_mode.is_some());
        // The daemon that has a GPU now restores its mode when it stops.
        let mode_then = |gpu: &Gpu| {
            let device = self.node.whole_device_of(gpu);
            let before =
                device.and_then(|one| self.node.compute_mode_before(&one.uuid, self.run_dir));
            before.or(gpu.compute_mode)
        };
        let mut modes = gpus
            .iter()
            .filter_map(|gpu| Some((gpu.index, mode_then(gpu)?)));
        let (Some((first, mode)), true, None) = (modes.next(), changes_mode, before) else {
            return Ok(());
        };
        match modes.find(|(_, other)| *other != mode) {
            None => Ok(()),
            Some((other, its)) => {
                let what = format!(
                    "compute-mode of a joint device needs GPUs in one mode: GPU {first} is in {}, and GPU {other} in {}",
                    compute_mode_name(mode),
                    compute_mode_name(its)
                );
                // A daemon may have made a GPU exclusive that is to be so.
                let changed: Vec<String> = [(first, mode), (other, its)]
                    .into_iter()
                    .filter(|(_, mode)| *mode != DEFAULT_COMPUTE_MODE)
                    .map(|(gpu, _)| gpu.to_string())
                    .collect();
                let hint = format!("run `sudo nvidia-smi -i {} -c DEFAULT`", changed.join(","));
                Err(Problem::new(what, hint).into())
            }
        }
    }

    /// Returns the UUID of the GPU to which the steps of a joint device belong: the recorded first one if there is a record.
    pub(super) fn first_gpu_of(self, key: &'a DeviceKey) -> &'a str {
        let recorded = self.node.device_with_uuid(&key.joint_uuid());
        recorded.map_or(&key.gpu, |device| &device.key.gpu)
    }

    /// Refuses to take a GPU from a joint device whose other GPUs the plan leaves alone.
    pub(super) fn check_recorded_joint(self, gpu: &Gpu) -> Result<(), Problem> {
        // Without its record, a joint device has the names of its GPUs.
        let name_of_gpu = self
            .node
            .device_with_uuid(&gpu.uuid)
            .map(|device| &device.name);
        let recorded = self.node.served().map(|served| (served, None));
        let lost = self.lost_daemons().map(|lost| (lost, name_of_gpu));
        let joint = recorded.chain(lost).filter(|(served, _)| {
            let key = &served.record.key;
            key.is_joint() && key.has_gpu(&gpu.uuid) && concerns_us(served, self.run_dir)
        });
        for (served, name_of_gpu) in joint {
            let name = &served.record.name;
            let (stopped, option) = match name_of_gpu {
                Some(name_of_gpu) => (name_of_gpu, " --force"),
                None => (name, ""),
            };
            let mut gpus = served.record.gpus_with_indices();
            let obstacle = gpus.find_map(|(uuid, index)| match self.node.gpu_with_uuid(uuid) {
                None => Some((self.node.absent_gpu_problem(uuid, index), "")),
                Some(other) if self.leaves_alone(other) && !self.is_pruned(other) => {
                    let why = format!("GPU {} is left as it is", other.index);
                    Some((Problem::without_hint(why), "select all its GPUs, or "))
                }
                Some(_) => None,
            });
            if let Some((why, remedy)) = obstacle {
                let what = format!(
                    "GPU {} is part of the joint device {name}, but {why}",
                    gpu.index
                );
                let hint =
                    format!("{remedy}stop its daemon first with `mig-mps down {stopped}{option}`");
                return Err(Problem {
                    reason_of_gpu: why.gpu,
                    ..Problem::new(what, hint)
                });
            }
        }
        Ok(())
    }

    /// True if the profile wants a joint device with the name of this joint one.
    pub(super) fn wants_joint(self, served: &Served) -> bool {
        let mut names = self.profile.blocks.iter().filter_map(Block::joint_name);
        served.record.key.is_joint() && names.any(|name| name == served.record.name)
    }

    /// True if a daemon serves a joint device with the name of this joint one.
    pub(super) fn has_joint(self, wanted: &DevicePlan) -> bool {
        let mut served = self.node.served();
        let is_its = |served: &Served| {
            served.record.key.is_joint()
                && served.record.name == wanted.name
                && served.run_dir == *self.run_dir
        };
        !wanted.joint.is_empty() && served.any(is_its)
    }

    /// True if the plan stops the daemons on a GPU because no block selects it.
    fn is_pruned(self, gpu: &Gpu) -> bool {
        let is_left_out = self
            .left_out
            .is_some_and(|left_out| left_out.has_gpu(gpu.index));
        self.unselected == Unselected::Stop && self.first_block_for(gpu).is_none() && !is_left_out
    }

    /// Returns the first block that selects a GPU, which may be left out.
    fn first_block_for(self, gpu: &Gpu) -> Option<&'a Block> {
        self.profile
            .blocks
            .iter()
            .find(|block| block_selects(block, gpu))
    }
}

/// The problem of a joint device that cannot have all its GPUs.
fn incomplete_problem(whole: &WholeGpu, why: &str, hint: &str) -> Problem {
    let name = whole
        .name
        .as_ref()
        .map_or("the joint device", |(name, _)| name);
    Problem::new(format!("device {name} needs all its GPUs: {why}"), hint)
}
