//! Remarks on the devices that a plan makes: what their layout leaves unused, memory limits that limit
//! nothing, and more clients than they take.

use std::collections::BTreeMap;

use super::gpu_steps::Layout;
use super::up::Planner;
use super::{Action, DevicePlan, GpuPlan, Plan, Start, serve_setting};
use crate::geometry::{Partition, Unused};
use crate::host::{format_gpus, group_by, name_devices};
use crate::mps::ControlProgram;
use crate::node::{Device, Gpu, Node, Served};
use crate::settings::Serve;
use crate::state::RunDir;

/// Describes the GPU instances of virtual machines, which no plan touches.
pub fn remark_on_virtual_machines(node: &Node, gpu: &Gpu) -> Option<String> {
    let named = node.describe_virtual_machine_instances(gpu)?;
    let index = gpu.index;
    Some(format!(
        "GPU {index}: {named} without a compute instance, on a host of vGPUs: left to the virtual machines"
    ))
}

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
        let mut remarks: Vec<String> = self
            .unused_capacity(node)
            .into_iter()
            .map(|(gpus, unused)| format!("{}: {unused}", format_gpus(&gpus)))
            .collect();
        remarks.extend(self.remarks_on_limits(node));
        remarks
    }

    /// Returns remarks on memory limits that limit nothing, and on devices that are meant for more clients than they take.
    pub(super) fn remarks_on_limits(&self, node: &Node) -> Vec<String> {
        let mut remarks = self.loose_limits();
        remarks.extend(self.excess_clients(node.control_program()));
        remarks
    }

    /// Returns what the layouts that it makes leave unused, each with the indices of its GPUs, once for each product.
    pub(super) fn unused_capacity<'n>(&self, node: &'n Node) -> Vec<(Vec<u32>, Unused<'n>)> {
        let layouts = self.gpus.iter().filter_map(|plan| {
            let gpu = node.gpu_with_uuid(&plan.uuid)?;
            plan.makes_instances()
                .then(|| (gpu, plan.partition_of(gpu)))
        });
        let kinds = group_by(layouts, |(one, its), (other, others)| {
            one.product == other.product && its.to_string() == others.to_string()
        });
        kinds
            .into_iter()
            .filter_map(|alike| {
                let indices = alike.iter().map(|(gpu, _)| gpu.index).collect();
                let (gpu, layout) = alike.into_iter().next()?;
                Some((indices, layout.find_unused(&gpu.profiles)?))
            })
            .collect()
    }

    /// Describes the memory limits above the memory of their device.
    fn loose_limits(&self) -> Vec<String> {
        let mut loose: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for (start, device) in self.started_devices() {
            let limit = start.settings.pinned_memory_limit;
            if let Some((limit, memory)) = limit.zip(device.memory_mib)
                && limit.bytes() > memory << 20
            {
                let is_joint = !start.joint.is_empty();
                let names = loose.entry((limit, memory, is_joint)).or_default();
                names.push(&start.name);
            }
        }
        let loose = loose.into_iter().map(|((limit, memory, is_joint), names)| {
            let have = if names.len() == 1 { "has" } else { "have" };
            let gpus = if is_joint { "GPUs with " } else { "" };
            let devices = name_devices(&names);
            format!(
                "a pinned-memory-limit of {limit} has no effect on {devices}, which {have} {gpus}{memory} MiB of memory"
            )
        });
        loose.collect()
    }

    /// Describes the devices that are meant for more clients than they take.
    fn excess_clients(&self, program: ControlProgram) -> Vec<String> {
        let mut excess: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for (start, device) in self.started_devices() {
            let meant = start.settings.intended_clients();
            if let Some((meant, limit)) = meant.zip(device.client_limit)
                && meant > limit
            {
                let most = match device.joint.len() {
                    0 => limit.to_string(),
                    gpus => format!("{} on each GPU", limit as usize / gpus),
                };
                let is_whole = device.profile.is_none();
                let names = excess.entry((meant, most, is_whole)).or_default();
                names.push(&start.name);
            }
        }
        let driver = match program.branch {
            Some(branch) => format!("driver {branch}"),
            None => "drivers before 590".to_owned(),
        };
        let excess = excess.into_iter().map(|((meant, most, is_whole), names)| {
            let is = if names.len() == 1 { "is" } else { "are" };
            let devices = name_devices(&names);
            let by = if is_whole { "" } else { ", by NVIDIA's MIG guide" };
            format!(
                "{devices} {is} meant for {meant} clients, but {most} are the maximum with {driver}{by}; other programs \
                 get CUDA error 46"
            )
        });
        excess.collect()
    }

    /// The daemons that start, each with its device.
    fn started_devices(&self) -> impl Iterator<Item = (&Start, &DevicePlan)> {
        self.gpus.iter().flat_map(|plan| {
            plan.actions()
                .filter_map(Action::as_start)
                .filter_map(|start| {
                    let device = plan
                        .devices
                        .iter()
                        .find(|device| device.place == start.place)?;
                    Some((start, device))
                })
        })
    }
}

impl Plan {
    /// Names the devices that stay and that their new daemons close to some users: CUDA runs programs of those outside MPS.
    pub(super) fn remarks_on_excluded_users(&self, node: &Node, run_dir: &RunDir) -> Vec<String> {
        let mut narrower: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for start in self.starts() {
            let now = node.served().find(|served| {
                served.run_dir == *run_dir && Some(&served.record.uuid) == start.uuid.as_ref()
            });
            let keeps = |now: &Served| {
                start
                    .serve_setting()
                    .keeps_users_of(serve_setting(&now.record.settings))
            };
            let users = match start.serve_setting() {
                _ if now.is_none_or(keeps) => continue,
                Serve::User(name) => format!("the user {name}"),
                Serve::Group(name) => format!("the group {name}"),
                Serve::OneAtATime | Serve::All | Serve::Own => continue,
            };
            narrower.entry(users).or_default().push(&start.name);
        }
        narrower.into_iter().map(|(users, names)| {
            let devices = name_devices(&names);
            format!(
                "{devices} will serve only {users}. Programs of other users then run outside MPS, also in containers that \
                 have the pipe directory."
            )
        }).collect()
    }
}

/// Describes the names that another device had, of another size or kind: scripts go by them.
pub(super) fn remarks_on_moved_names(planner: Planner<'_>, layouts: &[Layout<'_>]) -> Vec<String> {
    let moved = layouts
        .iter()
        .flat_map(|layout| &layout.devices)
        .filter_map(|device| {
            let before = planner.node.device_named(&device.name)?;
            let stays = device.uuid.as_ref() == Some(&before.uuid);
            if stays || !has_made(planner, before) {
                return None;
            }
            let size = |profile: Option<&str>, gpu: &Gpu| match profile {
                Some(profile) => profile.to_owned(),
                None => format!("a whole {}", gpu.product),
            };
            let part = before.part.as_ref().map(|part| part.title.as_str());
            let was = size(part, planner.node.gpu_with_uuid(&before.key.gpu)?);
            let gpu = planner
                .node
                .gpus
                .iter()
                .find(|gpu| gpu.index == device.gpu)?;
            let will_be = size(device.profile.as_deref(), gpu);
            (was != will_be).then_some((device.name.as_str(), was, will_be))
        });
    let alike = group_by(moved, |one, other| (&one.1, &one.2) == (&other.1, &other.2));
    let alike = alike.iter().map(|alike| {
        let (_, was, will_be) = &alike[0];
        let names: Vec<&str> = alike.iter().map(|(name, ..)| *name).collect();
        match names.as_slice() {
            [name] => {
                format!("{name} was {was} and will be {will_be}; check scripts that use this name")
            }
            [first, second, _, .., last] => format!(
                "{first}, {second} … {last} were {was} and will be {will_be}; check scripts that use these {} names",
                names.len()
            ),
            names => format!(
                "{} were {was} and will be {will_be}; check scripts that use these names",
                names.join(" and ")
            ),
        }
    });
    alike.collect()
}

/// True for a device that mig-mps serves or has made.
fn has_made(planner: Planner<'_>, device: &Device) -> bool {
    let served = device.served.as_ref();
    served.is_some_and(|served| served.run_dir == *planner.run_dir)
        || device.key.instance.is_some_and(|key| {
            planner
                .node
                .created
                .iter()
                .any(|created| created.is_in(&device.key.gpu, key.profile, key.placement))
        })
}

impl GpuPlan {
    fn makes_instances(&self) -> bool {
        self.actions()
            .any(|action| matches!(action, Action::CreateGpuInstance(_)))
    }

    /// Returns the instances that there will be.
    fn partition_of<'n>(&self, gpu: &'n Gpu) -> Partition<'n> {
        let profiles = self.after.segments().iter().filter_map(|segment| {
            gpu.profiles
                .iter()
                .find(|offer| offer.name.to_string() == segment.label)
        });
        Partition::from_instances(profiles)
    }
}
