//! A profile out of a few answers, for a node with nothing on its GPUs: the devices they have room for, divided among
//! jobs.

use std::collections::BTreeSet;

use toml::Table;

use super::partition::{Aim, best_for};
use crate::geometry::{GpuInstanceProfile, Partition, enumerate_partitions};
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::render::format::{format_count, format_gib};
use crate::settings::Serve;
use crate::shared::{DraftBlock, DraftProfile, device_entry, mig_devices, regex_of, table};

/// A partition chosen for the GPUs of a group.
#[derive(Clone, Debug)]
pub struct PartitionChoice<'a> {
    pub supply: GroupSupply<'a>,
    pub partition: Partition<'a>,
}

/// Makes a profile with comments for its reader. The GPUs with the indices `whole` are not partitioned.
pub fn first_profile(
    node: &EmptyNode,
    whole: &BTreeSet<u32>,
    serve: &Serve,
    choices: &[PartitionChoice<'_>],
) -> DraftProfile {
    let indices: Vec<u32> = whole.iter().copied().collect();
    let whole_block = (!whole.is_empty()).then(|| DraftBlock {
        remarks: vec![
            "Whole: one device that has all of the GPU, with a daemon (without one: mps = false)."
                .to_owned(),
            "To serve other users than [mps] does, add mps = { serve = \"group:NAME\" }."
                .to_owned(),
        ],
        select: table([("index", indices.into())]),
        want: table([("mig", false.into())]),
    });
    let parts = choices.iter().map(|choice| partitioned_block(node, choice));
    let gpus: Vec<String> = node
        .groups
        .iter()
        .map(|group| format!("{} × {}", group.indices.len(), group.product))
        .collect();
    let models: Vec<String> = selected_models(node, whole, choices).into_iter().collect();
    let mut keys = Table::new();
    if !models.is_empty() {
        keys.insert("models".to_owned(), models.into());
    }
    let draft = DraftProfile {
        remarks: vec![
            format!("Written by mig-mps init for {}.", gpus.join(", ")),
            "Change it as you need: mig-mps help profile explains every key.".to_owned(),
        ],
        keys,
        blocks: whole_block.into_iter().chain(parts).collect(),
        ..DraftProfile::default()
    };
    with_users(draft, serve)
}

/// Adds the users that the devices of a profile serve.
pub fn with_users(draft: DraftProfile, serve: &Serve) -> DraftProfile {
    DraftProfile {
        mps_remarks: vec![
            format!("{}.", describe_users(serve)),
            "Values: one-at-a-time, all, group:NAME, user:NAME, self (mig-mps help security)."
                .to_owned(),
        ],
        mps: table([("serve", serve.to_string().into())]),
        ..draft
    }
}

/// The models of the GPUs that the profile selects; none if the catalog lacks one.
fn selected_models(
    node: &EmptyNode,
    whole: &BTreeSet<u32>,
    choices: &[PartitionChoice<'_>],
) -> BTreeSet<String> {
    let keys: Option<BTreeSet<String>> = node
        .groups
        .iter()
        .filter(|group| group.indices.iter().any(|index| whole.contains(index)))
        .chain(choices.iter().map(|choice| choice.supply.group))
        .map(|group| group.model.map(|model| model.key.clone()))
        .collect();
    keys.unwrap_or_default()
}

/// Describes in words which users a device serves.
fn describe_users(serve: &Serve) -> String {
    match serve {
        Serve::OneAtATime => "Any user, one user at a time".to_owned(),
        Serve::All => "Every user at once, in one server: a fault of one can end all".to_owned(),
        Serve::Group(name) => format!("The members of the group {name} at once, in one server"),
        Serve::User(name) => format!("The user {name} alone"),
        Serve::Own => "The user who applies this profile, alone".to_owned(),
    }
}

fn partitioned_block(node: &EmptyNode, choice: &PartitionChoice<'_>) -> DraftBlock {
    let group = choice.supply.group;
    let (gpus, each) = (
        choice.supply.indices.len(),
        choice.partition.instance_count(),
    );
    let devices = format_count(each as usize, "device");
    let on_each = if gpus == 1 { "" } else { " on each" };
    let product = &group.product;
    let mut remarks = vec![format!("{gpus} × {product}, {devices}{on_each}:")];
    if let Some(map) = choice.partition.to_slice_map(&group.profiles) {
        remarks.push(format!("  {map}"));
    }
    let mut entries = Vec::new();
    for (profile, count) in &choice.partition.counts {
        remarks.push(format!(
            "  {}: {}",
            profile.name,
            device_facts(group, profile)
        ));
        let mut entry = device_entry(&profile.name, &[]);
        if *count > 1 {
            entry.insert("count".to_owned(), (*count).into());
        }
        entries.push(entry);
    }
    DraftBlock {
        remarks,
        select: selector_for(node, choice),
        want: mig_devices(entries),
    }
}

/// By product, so that the profile is right for other nodes with such GPUs; by index where no name tells them apart.
fn selector_for(node: &EmptyNode, choice: &PartitionChoice<'_>) -> Table {
    let group = choice.supply.group;
    let products: BTreeSet<&str> = match group.model {
        Some(model) if !node.is_real => model.product_names.iter().map(String::as_str).collect(),
        _ => BTreeSet::from([group.product.as_str()]),
    };
    if products.is_empty() {
        return table([("index", choice.supply.indices.clone().into())]);
    }
    table([("product", regex_of(&products).into())])
}

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
    pub fn new(node: &'a EmptyNode, whole: &BTreeSet<u32>) -> Self {
        let mut groups = Vec::new();
        for group in &node.groups {
            let mut indices = group.indices.clone();
            indices.retain(|index| !whole.contains(index));
            if !indices.is_empty() {
                groups.push(GroupSupply {
                    group,
                    indices,
                    partitions: Vec::new(),
                });
            }
        }
        Self { groups }.with_memory(0)
    }

    /// The same with devices of so much memory alone; without the GPUs that have none.
    #[must_use]
    pub fn with_memory(&self, least_mib: u64) -> Self {
        let groups = self
            .groups
            .iter()
            .map(|group| GroupSupply {
                partitions: enumerate_partitions(&group.group.profiles, least_mib),
                ..group.clone()
            })
            .filter(|group| !group.partitions.is_empty())
            .collect();
        Self { groups }
    }

    pub fn gpu_count(&self) -> usize {
        self.groups.iter().map(|group| group.indices.len()).sum()
    }

    /// Returns the most jobs that fit.
    pub fn most_jobs(&self) -> u32 {
        self.groups
            .iter()
            .map(|group| group.total_devices(group.most_devices()))
            .sum()
    }

    /// Returns the most memory that so many jobs can have each, in MiB; `None` if they do not fit at all.
    pub fn most_memory(&self, jobs: u32) -> Option<u64> {
        self.memory_sizes()
            .into_iter()
            .rev()
            .find(|size| self.with_memory(*size).most_jobs() >= jobs)
    }

    /// The memory sizes of its devices.
    fn memory_sizes(&self) -> BTreeSet<u64> {
        self.groups
            .iter()
            .flat_map(|group| &group.partitions)
            .map(Partition::least_memory_mib)
            .collect()
    }

    /// Divides jobs among the GPUs so that the smallest device has as much memory as possible. Returns the number of
    /// devices that each group needs on each of its GPUs.
    pub fn distribute_jobs(
        &self,
        jobs: u32,
        least_mib: u64,
    ) -> Result<Vec<(GroupSupply<'a>, u32)>, TooManyJobs> {
        let enough = self.with_memory(least_mib);
        if enough.most_jobs() < jobs {
            return Err(TooManyJobs {
                jobs: enough.most_jobs(),
                memory_mib: self.most_memory(jobs),
                largest_mib: self.memory_sizes().into_iter().next_back().unwrap_or(0),
            });
        }
        let mut divided: Vec<(GroupSupply<'a>, u32)> =
            enough.groups.into_iter().map(|group| (group, 1)).collect();
        while count_devices(&divided) < jobs {
            let growing = divided
                .iter_mut()
                .filter(|(group, count)| *count < group.most_devices());
            // The first one of equal ones.
            let Some((_, count)) = growing.rev().max_by_key(|(group, count)| {
                group
                    .recommended_partition(*count + 1)
                    .map(Partition::least_memory_mib)
            }) else {
                break;
            };
            *count += 1;
        }
        Ok(divided)
    }
}

/// Returns the devices on the GPUs of these groups, each with so many devices on a GPU at least.
fn count_devices(divided: &[(GroupSupply<'_>, u32)]) -> u32 {
    divided
        .iter()
        .filter_map(|(group, count)| {
            Some(group.total_devices(group.recommended_partition(*count)?.instance_count()))
        })
        .sum()
}

impl<'a> GroupSupply<'a> {
    /// Returns the partitions to choose from with at least so many devices on a GPU: the best for each aim that has one of
    /// its own; the recommended one first.
    pub fn partition_choices(&self, devices: u32) -> Vec<(Aim, Partition<'a>)> {
        let mut choices: Vec<(Aim, Partition<'a>)> = Vec::new();
        for aim in Aim::ALL {
            if let Some(partition) = best_for(aim, &self.partitions, devices)
                && choices.iter().all(|(_, other)| other != partition)
            {
                choices.push((aim, partition.clone()));
            }
        }
        choices
    }

    /// Returns the most devices on one GPU.
    pub fn most_devices(&self) -> u32 {
        self.partitions
            .iter()
            .map(Partition::instance_count)
            .max()
            .unwrap_or(0)
    }

    /// Returns the devices on all its GPUs, with so many on each.
    pub fn total_devices(&self, each: u32) -> u32 {
        u32::try_from(self.indices.len()).unwrap_or(u32::MAX) * each
    }

    /// Returns the recommended partition with at least so many devices on a GPU.
    fn recommended_partition(&self, devices: u32) -> Option<&Partition<'a>> {
        best_for(Aim::Even, &self.partitions, devices)
    }
}

/// Describes what a device of a profile has: `19.6 GiB, 28 SMs`.
pub fn device_facts(group: &GpuGroup, profile: &GpuInstanceProfile) -> String {
    let is_known = match group.model {
        Some(model) if group.is_from_catalog => model.memory_mib(&profile.name).is_some(),
        _ => true,
    };
    let about = if is_known { "" } else { "about " };
    let gib = format_gib(profile.memory_mib << 20);
    match profile.multiprocessors {
        Some(sms) => format!("{about}{gib} GiB, {sms} SMs"),
        None => format!("{about}{gib} GiB, SMs unknown"),
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
        for (model, next) in models.clone().zip(models.cycle().skip(1)) {
            let gpus = [format!("{}:2", model.key), next.key.clone()];
            let gpus: Vec<_> = gpus.iter().map(|gpu| gpu.parse().unwrap()).collect();
            let node = EmptyNode::of_models(&gpus);
            let supply = Supply::new(&node, &BTreeSet::from([1]));
            assert_eq!(supply.gpu_count(), 2);
            for size in supply.memory_sizes() {
                let most = supply.with_memory(size).most_jobs();
                for jobs in 1..=most {
                    let divided = supply.distribute_jobs(jobs, size).unwrap();
                    let mut devices = 0;
                    for (group, needed) in &divided {
                        let choices = group.partition_choices(*needed);
                        for (aim, partition) in &choices {
                            assert!(partition.instance_count() >= *needed, "{aim} {partition}");
                            assert!(partition.least_memory_mib() >= size, "{aim} {partition}");
                            assert!(
                                partition.to_slice_map(&group.group.profiles).is_some(),
                                "{partition}"
                            );
                        }
                        devices += group.total_devices(choices[0].1.instance_count());
                    }
                    assert!(devices >= jobs, "{} {size} {jobs}", model.key);
                }
                let too_many = supply.distribute_jobs(most + 1, size).unwrap_err();
                assert_eq!(too_many.jobs, most);
                if let Some(less) = too_many.memory_mib {
                    assert!(less < size);
                    assert!(supply.distribute_jobs(most + 1, less).is_ok());
                }
            }
            let too_large = supply.distribute_jobs(1, 1 << 20).unwrap_err();
            assert_eq!(
                (too_large.jobs, too_large.memory_mib),
                (0, Some(too_large.largest_mib))
            );
        }
    }

    #[test]
    fn recommended_is_what_leaves_little_unused_and_has_no_small_device() {
        let node = EmptyNode::of_models(&["a100-80gb".parse().unwrap()]);
        let supply = Supply::new(&node, &BTreeSet::new());
        let recommended = |jobs| {
            let divided = supply.distribute_jobs(jobs, 0).unwrap();
            divided[0].0.partition_choices(divided[0].1)[0]
                .1
                .to_string()
        };
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 7].map(recommended),
            [
                "7g.80gb",
                "4g.40gb + 3g.40gb",
                "1 × 3g.40gb + 2 × 2g.20gb",
                "3 × 2g.20gb + 1 × 1g.20gb",
                "2 × 2g.20gb + 3 × 1g.10gb",
                "1 × 2g.20gb + 5 × 1g.10gb",
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
            ..Gpu::from_model(index, model)
        };
        let of = |gpus: Vec<Gpu>| {
            EmptyNode::from_node(&Node {
                gpus,
                ..Node::default()
            })
        };
        let silent = of(vec![gpu(0, Vec::new()), gpu(1, Vec::new())]);
        assert!(silent.groups[0].is_from_catalog);
        assert_eq!(Supply::new(&silent, &BTreeSet::new()).most_jobs(), 14);
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
        assert_eq!(Supply::new(&neither, &BTreeSet::new()).gpu_count(), 0);
        let have_mig = neither.groups.iter().map(|group| group.has_mig);
        assert_eq!(have_mig.collect::<Vec<_>>(), [true, false]);
    }
}
