//! The devices that GPUs have room for, and their division among jobs.

use std::collections::BTreeSet;

use super::{EmptyNode, GpuGroup};
use crate::geometry::{Aim, Partition, best, choices, partitions};

/// The GPUs of a node that may be partitioned.
#[derive(Clone, Debug)]
pub struct Supply<'a> {
    pub groups: Vec<GroupSupply<'a>>,
}

/// GPUs of one product that may be partitioned, all in one way.
#[derive(Clone, Debug)]
pub struct GroupSupply<'a> {
    pub group: &'a GpuGroup,
    /// Those that do not stay whole.
    pub indices: Vec<u32>,
    /// Every way to partition one GPU.
    partitions: Vec<Partition<'a>>,
}

/// Jobs that do not fit, with the nearest ones that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyJobs {
    /// The most jobs with so much memory.
    pub jobs: u32,
    /// The most memory for so many jobs, in MiB; `None` if they are too many for any.
    pub memory_mib: Option<u64>,
    /// The memory of the largest device, in MiB.
    pub largest_mib: u64,
}

impl<'a> Supply<'a> {
    /// The GPUs of a node without those that stay whole.
    pub fn of(node: &'a EmptyNode, whole: &BTreeSet<u32>) -> Self {
        let groups = node.groups.iter().filter_map(|group| {
            let indices = group.indices.iter().copied();
            let indices: Vec<u32> = indices.filter(|index| !whole.contains(index)).collect();
            let partitions = partitions(&group.profiles, 0);
            (!indices.is_empty() && !partitions.is_empty()).then_some(GroupSupply {
                group,
                indices,
                partitions,
            })
        });
        Self {
            groups: groups.collect(),
        }
    }

    /// The same with devices of so much memory alone; without the GPUs that have none.
    #[must_use]
    pub fn with_memory(&self, least_mib: u64) -> Self {
        let groups = self.groups.iter().map(|group| GroupSupply {
            partitions: partitions(&group.group.profiles, least_mib),
            ..group.clone()
        });
        Self {
            groups: groups.filter(|one| !one.partitions.is_empty()).collect(),
        }
    }

    pub fn gpus(&self) -> usize {
        self.groups.iter().map(|group| group.indices.len()).sum()
    }

    /// Returns the most jobs that fit.
    pub fn most_jobs(&self) -> u32 {
        let groups = self.groups.iter();
        groups.map(|group| group.devices(group.most())).sum()
    }

    /// Returns the most memory that so many jobs can have each, in MiB; `None` if they do not fit at all.
    pub fn most_memory(&self, jobs: u32) -> Option<u64> {
        self.sizes()
            .into_iter()
            .rev()
            .find(|size| self.with_memory(*size).most_jobs() >= jobs)
    }

    /// The memory sizes of its devices.
    fn sizes(&self) -> BTreeSet<u64> {
        let all = self.groups.iter().flat_map(|group| &group.partitions);
        all.map(Partition::least_memory_mib).collect()
    }

    /// Divides jobs among the GPUs so that the smallest device has as much memory as possible. Returns the number of
    /// devices that each group needs on each of its GPUs.
    pub fn divide(
        &self,
        jobs: u32,
        least_mib: u64,
    ) -> Result<Vec<(GroupSupply<'a>, u32)>, TooManyJobs> {
        let enough = self.with_memory(least_mib);
        if enough.most_jobs() < jobs {
            return Err(TooManyJobs {
                jobs: enough.most_jobs(),
                memory_mib: self.most_memory(jobs),
                largest_mib: self.sizes().into_iter().next_back().unwrap_or(0),
            });
        }
        let groups = enough.groups.into_iter();
        let mut divided: Vec<(GroupSupply<'a>, u32)> = groups.map(|group| (group, 1)).collect();
        let devices = |divided: &[(GroupSupply<'a>, u32)]| -> u32 {
            let each = divided.iter();
            each.map(|(group, count)| group.devices(group.best_count(*count)))
                .sum()
        };
        while devices(&divided) < jobs {
            let growing = divided
                .iter_mut()
                .filter(|(group, count)| *count < group.most());
            // The first one of equal ones.
            let next = growing.rev().max_by_key(|(group, count)| {
                best(&group.partitions, *count + 1).map(Partition::least_memory_mib)
            });
            let Some((_, count)) = next else { break };
            *count += 1;
        }
        Ok(divided)
    }
}

impl<'a> GroupSupply<'a> {
    /// Returns the partitions to choose from with at least so many devices on a GPU; the recommended one first.
    pub fn choices(&self, devices: u32) -> Vec<(Aim, Partition<'a>)> {
        choices(&self.partitions, devices)
    }

    /// Returns the most devices on one GPU.
    pub fn most(&self) -> u32 {
        let counts = self.partitions.iter().map(Partition::instances);
        counts.max().unwrap_or(0)
    }

    /// Returns the devices on all its GPUs, with so many on each.
    pub fn devices(&self, each: u32) -> u32 {
        u32::try_from(self.indices.len()).unwrap_or(u32::MAX) * each
    }

    fn best_count(&self, devices: u32) -> u32 {
        best(&self.partitions, devices).map_or(0, Partition::instances)
    }
}
