//! The smallest hardware for programs: the output of `advise`.

use schemars::JsonSchema;
use serde::Serialize;

use crate::geometry::{Partition, ProfileName, SliceMap};
use crate::host::group_by;
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::profile::{Amount, MeasuredDevice, Measurement, WantedPrograms};
use crate::render::json::{VERSION, Version, as_seconds};
use crate::settings::Percentage;

use super::request::AdviceRequest;
use super::solver::{FilledDevice, Solution};

/// The output of `mig-mps advise --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "advise")]
pub struct Advice {
    version: Version,
    /// The GPUs that are used; those with the same devices together.
    pub gpus: Vec<AdvisedGpus>,
    /// The indices of the GPUs that are left over.
    pub unused: Vec<u32>,
    /// The compute slices of all devices; a whole GPU has all of its slices.
    pub slices: u32,
    /// The placement units of the largest free block on one of the GPUs that are used.
    pub largest_free_block: u32,
    /// True if nothing better exists: fewer GPUs, then fewer slices, then a larger free block.
    pub is_proven: bool,
    /// What was not measured and may need less, as sentences.
    #[serde(skip)]
    pub unmeasured: Vec<String>,
    /// The effort of the search.
    #[serde(skip)]
    pub effort: u32,
    /// No layout has fewer GPUs.
    pub least_gpus: u32,
    /// No layout with as many GPUs has fewer slices.
    pub least_slices: u32,
    /// The number of GPUs that would do if each was one device; null if a program has no figures for that.
    pub undivided_gpus: Option<u32>,
    pub programs: Vec<ProgramSupply>,
    /// The profile that makes these devices.
    pub profile: String,
}

/// GPUs with the same devices.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AdvisedGpus {
    pub indices: Vec<u32>,
    /// The model in the catalog.
    pub model: Option<String>,
    /// NVML's name.
    pub product: String,
    /// The slice map; null for a whole GPU.
    pub map: Option<SliceMap>,
    pub devices: Vec<AdvisedDevice>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AdvisedDevice {
    /// Its instance profile; null for a whole GPU.
    #[schemars(with = "Option<String>")]
    pub profile: Option<ProfileName>,
    /// Its programs, with the figures that each is expected to have.
    pub programs: Vec<AdvisedProgram>,
}

/// Copies of a program on a device.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AdvisedProgram {
    pub program: String,
    pub copies: u32,
    /// The active thread percentage of each copy.
    #[serde(rename = "active_thread_percentage")]
    #[schemars(with = "f64")]
    pub threads: Percentage,
    /// True if other programs of the device have more: each copy needs `run --threads`.
    pub limits_itself: bool,
    /// The throughput of all copies together.
    pub rate: f64,
    /// The device memory of all copies together; null if it was not measured.
    pub memory_used_bytes: Option<u64>,
    /// Null if it was not measured.
    #[serde(rename = "latency_seconds", serialize_with = "as_seconds")]
    #[schemars(with = "Option<f64>")]
    pub latency_ms: Option<f64>,
    /// True if it was computed from two measurements.
    pub is_interpolated: bool,
}

/// The demand of a program, and its supply.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProgramSupply {
    pub program: String,
    /// Null if copies are wanted.
    pub wanted_rate: Option<f64>,
    /// Null if a rate is wanted.
    pub wanted_copies: Option<u32>,
    rate: f64,
    copies: u32,
}

impl Advice {
    /// Puts a solution into words and figures, on a node with as many GPUs of each product as it needs.
    pub fn new(
        request: &AdviceRequest<'_>,
        solution: &Solution,
        wanted: &WantedPrograms,
        node: &EmptyNode,
    ) -> Self {
        let gpus = AdvisedGpus::from_solution(request, solution, node);
        let programs = wanted.programs.iter().map(|program| {
            let all = gpus.iter().flat_map(|gpus| {
                let programs = gpus.devices.iter().flat_map(|device| &device.programs);
                gpus.indices.iter().flat_map(move |_| programs.clone())
            });
            let own = all.filter(|one| one.program == program.name);
            let (wanted_rate, wanted_copies) = match program.amount {
                Amount::Rate(rate) => (Some(rate), None),
                Amount::Copies(copies) => (None, Some(copies)),
            };
            ProgramSupply {
                program: program.name.clone(),
                wanted_rate,
                wanted_copies,
                rate: own.clone().map(|one| one.rate).sum(),
                copies: own.map(|one| one.copies).sum(),
            }
        });
        let mut unused: Vec<u32> = node.node.gpus.iter().map(|gpu| gpu.index).collect();
        unused.retain(|index| gpus.iter().all(|gpus| !gpus.indices.contains(index)));
        Self {
            version: VERSION,
            unused,
            slices: solution.slices,
            largest_free_block: solution.free,
            is_proven: solution.is_proven,
            unmeasured: request.describe_unmeasured(solution),
            effort: request.effort,
            least_gpus: solution.least_gpus,
            least_slices: solution.least_slices,
            undivided_gpus: request.undivided_gpus(),
            programs: programs.collect(),
            profile: super::profile::draft_profile(&gpus, node).to_string(),
            gpus,
        }
    }

    /// Returns the number of GPUs that are used.
    pub fn used_gpu_count(&self) -> usize {
        self.gpus.iter().map(|gpus| gpus.indices.len()).sum()
    }
}

impl AdvisedGpus {
    /// Gives the GPUs of a solution their places in a node.
    pub fn from_solution(
        request: &AdviceRequest<'_>,
        solution: &Solution,
        node: &EmptyNode,
    ) -> Vec<Self> {
        let mut all = Vec::new();
        let mut used = vec![0; request.node.groups.len()];
        for alike in group_by(&solution.gpus, |one, other| one == other) {
            let (nth, devices) = alike[0];
            let product = &request.node.groups[*nth].product;
            let Some(group) = node.groups.iter().find(|group| group.product == *product) else {
                continue;
            };
            let indices = group.indices.iter().skip(used[*nth]).take(alike.len());
            used[*nth] += alike.len();
            all.push(Self::new(
                request,
                group,
                indices.copied().collect(),
                devices,
            ));
        }
        all
    }

    fn new(
        request: &AdviceRequest<'_>,
        group: &GpuGroup,
        indices: Vec<u32>,
        devices: &[FilledDevice],
    ) -> Self {
        let devices: Vec<AdvisedDevice> = devices
            .iter()
            .map(|device| AdvisedDevice::new(request, device))
            .collect();
        let profiles: Option<Vec<_>> = devices
            .iter()
            .map(|device| {
                let name = device.profile.as_ref()?;
                group.profiles.iter().find(|profile| profile.name == *name)
            })
            .collect();
        Self {
            indices,
            model: group.model.map(|model| model.key.clone()),
            product: group.product.clone(),
            map: profiles.and_then(|all| {
                Partition::from_instances(all.into_iter()).to_slice_map(&group.profiles)
            }),
            devices,
        }
    }
}

impl AdvisedDevice {
    fn new(request: &AdviceRequest<'_>, device: &FilledDevice) -> Self {
        let rows: Vec<_> = device
            .loads
            .iter()
            .map(|load| request.measurement_of(*load))
            .collect();
        let most = rows
            .iter()
            .map(|row| row.threads.as_f64())
            .fold(0.0, f64::max);
        Self {
            profile: match &request.problem.sizes[device.size].device {
                MeasuredDevice::Whole => None,
                MeasuredDevice::Instance(name) => Some(name.clone()),
            },
            programs: rows
                .into_iter()
                .map(|row| AdvisedProgram::from_measurement(row, row.threads.as_f64() < most))
                .collect(),
        }
    }

    /// Returns the number of copies of all its programs.
    pub fn total_copies(&self) -> u32 {
        self.programs.iter().map(|one| one.copies).sum()
    }
}

impl AdvisedProgram {
    fn from_measurement(row: &Measurement, limits_itself: bool) -> Self {
        Self {
            program: row.program.clone(),
            copies: row.copies,
            threads: row.threads,
            limits_itself,
            rate: row.throughput,
            memory_used_bytes: row.memory_mib.map(|mib| mib << 20),
            latency_ms: row.latency_ms,
            is_interpolated: row.is_interpolated,
        }
    }
}
