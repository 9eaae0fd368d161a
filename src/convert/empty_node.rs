//! A node with nothing on its GPUs, for which a first profile is made.

use crate::catalog::{Model, of_product};
use crate::geometry::GpuInstanceProfile;
use crate::mps::ControlProgram;
use crate::node::{Gpu, Node};
use crate::nvml::MigMode;
use crate::plan::Refusal;
use crate::plan::check::{GpuArgument, judge};
use crate::profile::Profile;

/// A node with MIG off and nothing on its GPUs, and these by product.
#[derive(Clone, Debug)]
pub struct EmptyNode {
    node: Node,
    is_real: bool,
    pub groups: Vec<GpuGroup>,
}

/// The GPUs of one product.
#[derive(Clone, Debug)]
pub struct GpuGroup {
    /// NVML's name.
    pub product: String,
    /// Its model, if the catalog has it.
    pub model: Option<&'static Model>,
    pub indices: Vec<u32>,
    /// The memory of one GPU in MiB, if it is known.
    pub memory_mib: Option<u64>,
    pub has_mig: bool,
    /// The profiles that one GPU offers; none if it has no MIG, or if nobody lists them.
    pub profiles: Vec<GpuInstanceProfile>,
    /// True if the profiles are the catalog's and not a driver's.
    pub is_from_catalog: bool,
}

impl EmptyNode {
    /// Empties a copy of a node. Old drivers list profiles only while MIG is on: there the catalog knows them.
    pub fn of(node: &Node) -> Self {
        let mut groups: Vec<GpuGroup> = Vec::new();
        for gpu in &node.gpus {
            let known = groups.iter().position(|group| group.product == gpu.product);
            let known = known.unwrap_or_else(|| {
                groups.push(GpuGroup::of(gpu));
                groups.len() - 1
            });
            let group = &mut groups[known];
            group.indices.push(gpu.index);
            if group.is_from_catalog && !gpu.profiles.is_empty() {
                group.profiles.clone_from(&gpu.profiles);
                group.is_from_catalog = false;
            }
        }
        let gpus = node.gpus.iter().map(|gpu| {
            let mut groups = groups.iter();
            let group = groups.find(|group| group.product == gpu.product);
            emptied(gpu, group.map_or(&[], |group| &group.profiles))
        });
        let node = Node {
            driver: node.driver.clone(),
            gpus: gpus.collect(),
            ..Node::default()
        };
        Self {
            node,
            is_real: true,
            groups,
        }
    }

    /// A node with GPUs of the catalog.
    pub fn of_models(gpus: &[GpuArgument]) -> Self {
        let models = gpus
            .iter()
            .flat_map(|gpu| (0..gpu.count).map(|_| gpu.model));
        let node = Node::of_models((0..).zip(models.clone()));
        let mut groups: Vec<GpuGroup> = Vec::new();
        for (gpu, model) in node.gpus.iter().zip(models) {
            let is_its = |group: &&mut GpuGroup| group.model.is_some_and(|m| m.key == model.key);
            if let Some(group) = groups.iter_mut().find(is_its) {
                group.indices.push(gpu.index);
                continue;
            }
            groups.push(GpuGroup {
                model: Some(model),
                indices: vec![gpu.index],
                is_from_catalog: true,
                ..GpuGroup::of(gpu)
            });
        }
        Self {
            node,
            is_real: false,
            groups,
        }
    }

    /// True if it was made of a node, and not of catalog models.
    pub fn is_real(&self) -> bool {
        self.is_real
    }

    pub fn control_program(&self) -> ControlProgram {
        self.node.control_program()
    }

    /// The indices of all GPUs.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.node.gpus.iter().map(|gpu| gpu.index)
    }

    /// Plans a profile, as `up` would.
    pub fn accepts(&self, profile: &Profile) -> Result<(), Refusal> {
        judge(&self.node, profile).map(|_| ())
    }
}

fn emptied(gpu: &Gpu, profiles: &[GpuInstanceProfile]) -> Gpu {
    Gpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        product: gpu.product.clone(),
        pci: gpu.pci.clone(),
        memory: gpu.memory,
        mig: gpu.mig.map(|_| MigMode {
            current: false,
            pending: false,
        }),
        profiles: profiles.to_vec(),
        ..Gpu::default()
    }
}

impl GpuGroup {
    /// The group of a GPU's product, without a GPU.
    fn of(gpu: &Gpu) -> Self {
        let has_mig = gpu.mig.is_some();
        let model = of_product(&gpu.product).filter(|_| has_mig);
        let is_from_catalog = has_mig && gpu.profiles.is_empty();
        let of_catalog = || model.map(Model::offers).unwrap_or_default();
        Self {
            product: gpu.product.clone(),
            model,
            indices: Vec::new(),
            memory_mib: gpu.memory.map(|memory| memory.total >> 20),
            has_mig,
            profiles: if is_from_catalog {
                of_catalog()
            } else {
                gpu.profiles.clone()
            },
            is_from_catalog,
        }
    }

    /// Describes what a device of that profile has: `19.6 GiB, 28 SMs`.
    pub fn describe(&self, profile: &GpuInstanceProfile) -> String {
        let name = &profile.name;
        let published = self.model.filter(|_| self.is_from_catalog);
        let is_known = published.is_none_or(|model| model.memory_mib(name).is_some());
        let sms = match published {
            Some(model) => model.multiprocessors(name),
            None => Some(profile.multiprocessors),
        };
        let about = if is_known { "" } else { "about " };
        let gib = gib_at_most(profile.memory_mib);
        match sms {
            Some(sms) => format!("{about}{gib} GiB, {sms} SMs"),
            None => format!("{about}{gib} GiB, SMs unknown"),
        }
    }
}

/// Formats MiB as GiB with one decimal, rounded down: so much can be asked for.
pub fn gib_at_most(mib: u64) -> String {
    let tenths = mib * 10 / 1024;
    format!("{}.{}", tenths / 10, tenths % 10)
}
