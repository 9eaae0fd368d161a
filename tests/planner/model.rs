//! GPU models for the planner: what their driver would report, made from the catalog.

use mig_mps::internals::geometry::{
    ComputeInstanceProfile, ComputeProfileId, GpuInstanceProfile, Placement, ProfileEnum, ProfileId,
};
use mig_mps::internals::node::{Gpu, Node};
use mig_mps::internals::nvml::MigMode;
use simnode::catalog::{Model, Placements, Profile};

/// The keys of every complete model, each once.
pub(crate) fn keys() -> Vec<&'static str> {
    let mut keys: Vec<&str> = Model::names()
        .filter(|name| Model::named(name).is_some_and(|model| model.key == *name))
        .collect();
    keys.sort_unstable();
    keys
}

pub(crate) fn named(key: &str) -> &'static Model {
    Model::named(key).expect("a key of the catalog")
}

/// A node with GPUs of these models, all in MIG mode and empty.
pub(crate) fn node(models: &[&Model]) -> Node {
    let gpus = (0..).zip(models);
    let mut node = Node {
        boot_id: "boot".to_owned(),
        gpus: gpus.map(|(index, model)| gpu(model, index)).collect(),
        ..Node::default()
    };
    node.join();
    node
}

fn gpu(model: &Model, index: u32) -> Gpu {
    Gpu {
        minor: None,
        index,
        uuid: format!("GPU-{index}"),
        product: model.product().to_owned(),
        pci: format!("0000:{index:02x}:00.0"),
        memory: None,
        utilization: None,
        compute_mode: None,
        mig: Some(MigMode {
            current: true,
            pending: true,
        }),
        resetless: None,
        profiles: model.profiles.iter().map(offer).collect(),
        instances: Vec::new(),
        hidden: None,
        ..Gpu::default()
    }
}

fn offer(profile: &Profile) -> GpuInstanceProfile {
    GpuInstanceProfile {
        id: ProfileId(profile.id),
        query: ProfileEnum(profile.nvml_enum),
        name: profile.name.parse().expect("a profile name"),
        slices: profile.slices,
        multiprocessors: Some(profile.sm),
        memory_mib: profile.memory_mib,
        engines: None,
        most: profile.maximum,
        free: None,
        placements: placements(&profile.placements),
    }
}

/// The compute instances that a GPU instance of that profile offers.
pub(crate) fn compute(profile: &Profile) -> Vec<ComputeInstanceProfile> {
    let offer = |compute: &simnode::catalog::ComputeProfile| ComputeInstanceProfile {
        id: ComputeProfileId(compute.id),
        slices: compute.slices,
        multiprocessors: compute.sm,
        most: compute.maximum,
        placements: placements(&compute.placements),
    };
    profile.compute.iter().map(offer).collect()
}

fn placements(places: &Placements) -> Vec<Placement> {
    let starts = places.starts.iter();
    starts
        .map(|&start| Placement::new(start, places.size))
        .collect()
}
