//! Remarks on the devices that a plan makes: what their layout leaves unused, and memory limits that limit nothing.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::up::Planner;
use super::{Action, GpuPlan, Plan, served_by};
use crate::geometry::{Partition, Unused};
use crate::host::{grouped, ranges};
use crate::node::{Device, Gpu, Node, Served};
use crate::settings::Serve;
use crate::state::RunDir;

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

impl Plan {
    /// Names the devices that stay and that their new daemons close to some users: CUDA runs programs of those outside MPS.
    pub(super) fn shut_out(&self, node: &Node, run_dir: &RunDir) -> Vec<String> {
        let mut narrower: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for start in self.starts() {
            let mut served = node.served().filter(|served| served.run_dir == *run_dir);
            let now = served.find(|served| Some(&served.record.uuid) == start.uuid.as_ref());
            let keeps = |now: &Served| {
                start
                    .serve()
                    .keeps_users_of(served_by(&now.record.settings))
            };
            let users = match start.serve() {
                _ if now.is_none_or(keeps) => continue,
                Serve::User(name) => format!("the user {name}"),
                Serve::Group(name) => format!("the group {name}"),
                Serve::OneAtATime | Serve::All | Serve::Own => continue,
            };
            narrower.entry(users).or_default().push(&start.name);
        }
        let narrower = narrower.into_iter().map(|(users, names)| {
            format!(
                "{} will serve only {users}. Programs of other users then run outside MPS, also in containers that \
                 have the pipe directory.",
                names.join(", ")
            )
        });
        narrower.collect()
    }
}

impl Planner<'_> {
    /// Describes the names that another device had, of another size or kind: scripts go by them.
    pub(super) fn names_that_move(self, layouts: &[Layout<'_>]) -> Vec<String> {
        let slots = layouts.iter().flat_map(|layout| &layout.slots);
        let moved = slots.filter_map(|slot| {
            let before = self.node.device(&slot.name)?;
            let stays = slot.device.is_some_and(|own| own.uuid == before.uuid);
            if stays || !self.has_made(before) {
                return None;
            }
            let size = |profile: Option<&str>, gpu: &Gpu| match profile {
                Some(profile) => profile.to_owned(),
                None => format!("a whole {}", gpu.product),
            };
            let part = before.part.as_ref().map(|part| part.title.as_str());
            let was = size(part, self.node.gpu(&before.key.gpu)?);
            let gpu = self.node.gpus.iter().find(|gpu| gpu.index == slot.gpu)?;
            let will_be = size(slot.profile.as_deref(), gpu);
            (was != will_be).then_some((slot.name.as_str(), was, will_be))
        });
        let alike = grouped(moved, |one, other| (&one.1, &one.2) == (&other.1, &other.2));
        let alike = alike.iter().map(|alike| {
            let (_, was, will_be) = &alike[0];
            let names: Vec<&str> = alike.iter().map(|(name, ..)| *name).collect();
            match names.as_slice() {
                [name] => format!(
                    "{name} was {was} and will be {will_be}. Check scripts that use this name."
                ),
                names => format!(
                    "{} were {was} and will be {will_be}. Check scripts that use these names.",
                    names.join(", ")
                ),
            }
        });
        alike.collect()
    }

    /// True for a device that mig-mps serves or has made.
    fn has_made(self, device: &Device) -> bool {
        let served = device.served.as_ref();
        let mut created = self.node.created.iter();
        served.is_some_and(|served| served.run_dir == *self.run_dir)
            || created.any(|created| {
                created.gpu == device.key.gpu
                    && device.key.instance.is_some_and(|key| {
                        (key.profile, key.placement) == (created.profile, created.placement)
                    })
            })
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
