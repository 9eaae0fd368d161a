//! Remarks on the devices that a plan makes: what their layout leaves unused, and memory limits that limit nothing.

use std::collections::BTreeMap;

use super::{Action, GpuPlan, Plan};
use crate::geometry::{Partition, Unused};
use crate::host::{grouped, ranges};
use crate::node::{Gpu, Node};

impl Plan {
    /// Returns the plan with remarks on its devices, for people.
    #[must_use]
    pub fn with_remarks_on_devices(mut self, node: &Node) -> Self {
        let remarks = self.remarks_on_devices(node);
        self.remarks.extend(remarks);
        self
    }

    /// Returns remarks on its devices, for people.
    pub fn remarks_on_devices(&self, node: &Node) -> Vec<String> {
        let unused = self.unused(node).into_iter();
        let mut remarks: Vec<String> = unused
            .map(|(gpus, unused)| format!("GPU {}: {unused}", ranges(&gpus)))
            .collect();
        remarks.extend(self.loose_limits());
        remarks
    }

    /// Returns what the layouts that it makes leave unused, each with the indices of its GPUs, once for each product.
    pub(super) fn unused<'n>(&self, node: &'n Node) -> Vec<(Vec<u32>, Unused<'n>)> {
        let layouts = self.gpus.iter().filter_map(|plan| {
            let gpu = node.gpu(&plan.uuid)?;
            plan.makes_instances()
                .then(|| (gpu, plan.partition_of(gpu)))
        });
        let kinds = grouped(layouts, |(one, its), (other, others)| {
            one.product == other.product && its.to_string() == others.to_string()
        });
        kinds
            .into_iter()
            .filter_map(|alike| {
                let indices = alike.iter().map(|(gpu, _)| gpu.index).collect();
                let (gpu, layout) = alike.into_iter().next()?;
                Some((indices, layout.unused(&gpu.profiles)?))
            })
            .collect()
    }

    /// Describes the memory limits above the memory of their device.
    pub(super) fn loose_limits(&self) -> Vec<String> {
        let mut loose: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for plan in &self.gpus {
            for start in plan.actions().filter_map(Action::as_start) {
                let mut devices = plan.devices.iter();
                let device = devices.find(|device| device.place == start.place);
                let memory = device.and_then(|device| device.memory_mib);
                let limit = start.settings.pinned_memory_limit;
                if let Some((limit, memory)) = limit.zip(memory)
                    && limit.bytes() > memory << 20
                {
                    let names = loose.entry((limit, memory)).or_default();
                    names.push(&start.name);
                }
            }
        }
        let loose = loose.into_iter().map(|((limit, memory), names)| {
            let have = if names.len() == 1 { "has" } else { "have" };
            let names = names.join(", ");
            format!(
                "A pinned-memory-limit of {limit} limits nothing on {names}, which {have} {memory} MiB of memory."
            )
        });
        loose.collect()
    }
}

impl GpuPlan {
    fn makes_instances(&self) -> bool {
        self.actions()
            .any(|action| matches!(action, Action::CreateGpuInstance(_)))
    }

    /// Returns the instances that there will be.
    fn partition_of<'n>(&self, gpu: &'n Gpu) -> Partition<'n> {
        let profiles = self.after.segments().iter().filter_map(|segment| {
            let mut offers = gpu.profiles.iter();
            offers.find(|offer| offer.name.to_string() == segment.label)
        });
        Partition::of(profiles)
    }
}
