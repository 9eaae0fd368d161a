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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;
    use crate::node::{Gpu, Node};

    /// Every model alone and in pairs, with every memory size.
    #[test]
    fn jobs_fit_up_to_the_number_that_is_said_and_no_further() {
        let models = catalog::models();
        for (model, next) in models.iter().zip(models.iter().cycle().skip(1)) {
            let gpus = [format!("{}:2", model.key), next.key.clone()];
            let gpus: Vec<_> = gpus.iter().map(|gpu| gpu.parse().unwrap()).collect();
            let node = EmptyNode::of_models(&gpus);
            let supply = Supply::of(&node, &BTreeSet::from([1]));
            assert_eq!(supply.gpus(), 2);
            for size in supply.sizes() {
                let most = supply.with_memory(size).most_jobs();
                for jobs in 1..=most {
                    let divided = supply.divide(jobs, size).unwrap();
                    let mut devices = 0;
                    for (group, needed) in &divided {
                        let choices = group.choices(*needed);
                        for (aim, partition) in &choices {
                            assert!(partition.instances() >= *needed, "{aim} {partition}");
                            assert!(partition.least_memory_mib() >= size, "{aim} {partition}");
                            assert!(
                                partition.map(&group.group.profiles).is_some(),
                                "{partition}"
                            );
                        }
                        devices += group.devices(choices[0].1.instances());
                    }
                    assert!(devices >= jobs, "{} {size} {jobs}", model.key);
                }
                let too_many = supply.divide(most + 1, size).unwrap_err();
                assert_eq!(too_many.jobs, most);
                if let Some(less) = too_many.memory_mib {
                    assert!(less < size);
                    assert!(supply.divide(most + 1, less).is_ok());
                }
            }
            let too_large = supply.divide(1, 1 << 20).unwrap_err();
            assert_eq!(
                (too_large.jobs, too_large.memory_mib),
                (0, Some(too_large.largest_mib))
            );
        }
    }

    #[test]
    fn recommended_is_what_leaves_little_unused_and_has_no_small_device() {
        let node = EmptyNode::of_models(&["a100-80gb".parse().unwrap()]);
        let supply = Supply::of(&node, &BTreeSet::new());
        let recommended = |jobs| {
            let divided = supply.divide(jobs, 0).unwrap();
            divided[0].0.choices(divided[0].1)[0].1.to_string()
        };
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 7].map(recommended),
            [
                "7g.80gb",
                "4g.40gb + 3g.40gb",
                "3g.40gb + 2 × 2g.20gb",
                "3 × 2g.20gb + 1g.20gb",
                "2 × 2g.20gb + 3 × 1g.10gb",
                "2g.20gb + 5 × 1g.10gb",
                "7 × 1g.10gb",
            ]
        );
    }

    /// An old driver lists profiles only while MIG is on.
    #[test]
    fn the_catalog_stands_in_for_a_driver_that_lists_no_profiles() {
        let model = catalog::named("a100-80gb").unwrap();
        let gpu = |index, profiles| Gpu {
            profiles,
            ..Gpu::of_model(index, model)
        };
        let of = |gpus: Vec<Gpu>| {
            EmptyNode::of(&Node {
                gpus,
                ..Node::default()
            })
        };
        let silent = of(vec![gpu(0, Vec::new()), gpu(1, Vec::new())]);
        assert!(silent.groups[0].is_from_catalog);
        assert_eq!(Supply::of(&silent, &BTreeSet::new()).most_jobs(), 14);
        let few = model.offers()[..1].to_vec();
        let one_tells = of(vec![gpu(0, Vec::new()), gpu(1, few)]);
        assert!(!one_tells.groups[0].is_from_catalog);
        assert_eq!(one_tells.groups[0].profiles.len(), 1);
        let unknown = Gpu {
            product: "NVIDIA X1".to_owned(),
            ..gpu(0, Vec::new())
        };
        let without_mig = Gpu {
            product: "NVIDIA X2".to_owned(),
            mig: None,
            ..gpu(1, Vec::new())
        };
        let neither = of(vec![unknown, without_mig]);
        assert_eq!(Supply::of(&neither, &BTreeSet::new()).gpus(), 0);
        let have_mig = neither.groups.iter().map(|group| group.has_mig);
        assert_eq!(have_mig.collect::<Vec<_>>(), [true, false]);
    }
}
