//! Instances that fit on one GPU together: every way to partition it, and what a layout leaves unused.

use std::cmp::Reverse;
use std::fmt;

use super::nearest::{Fitting, InstanceKind, enumerate_fittings, excess_instances};
use super::solver::{count_each, count_units};
use super::{GpuInstanceProfile, Request, SliceMap, slice_map};

/// Instances that fit on one GPU together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition<'a> {
    /// Each profile with the number of its instances.
    pub counts: Vec<(&'a GpuInstanceProfile, u32)>,
}

/// Returns every way to partition a GPU into instances with so much memory each. Profiles with attributes, such as
/// `+me`, are left out: there is a plain one of each size.
pub fn enumerate_partitions(
    offered: &[GpuInstanceProfile],
    least_memory_mib: u64,
) -> Vec<Partition<'_>> {
    let usable = offered
        .iter()
        .filter(|profile| profile.name.is_plain() && profile.memory_mib >= least_memory_mib)
        .map(|profile| (profile, profile.most));
    enumerate_partitions_within(usable.collect())
}

/// Returns every way to partition a GPU into at most so many instances of each profile; the largest profile of each comes
/// first.
fn enumerate_partitions_within(mut most: Vec<(&GpuInstanceProfile, u32)>) -> Vec<Partition<'_>> {
    most.sort_by_key(|(profile, _)| size_order(profile));
    let kinds: Vec<InstanceKind<'_>> = most
        .into_iter()
        .map(|(profile, most)| InstanceKind {
            profile,
            at: None,
            most,
        })
        .collect();
    enumerate_fittings(&kinds)
        .into_iter()
        .filter(|fitting| !fitting.requests.is_empty())
        .map(|Fitting { counts, .. }| Partition { counts })
        .collect()
}

/// The order of profiles by size, the largest first.
fn size_order(profile: &GpuInstanceProfile) -> Reverse<(u32, u64)> {
    Reverse((profile.slices, profile.memory_mib))
}

impl<'a> Partition<'a> {
    /// Returns the partition of these instances, in the order of their first occurrence.
    pub fn from_instances(instances: impl Iterator<Item = &'a GpuInstanceProfile>) -> Self {
        Self {
            counts: count_each(instances),
        }
    }

    /// Returns the number of instances.
    pub fn instance_count(&self) -> u32 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// Returns the memory of the instance that has the least, in MiB.
    pub fn least_memory_mib(&self) -> u64 {
        self.counts
            .iter()
            .map(|(profile, _)| profile.memory_mib)
            .min()
            .unwrap_or(0)
    }

    /// Returns the compute slices of the instance that has the most.
    pub fn most_slices(&self) -> u32 {
        self.counts
            .iter()
            .map(|(profile, _)| profile.slices)
            .max()
            .unwrap_or(0)
    }

    /// Returns the compute slices of all instances.
    pub fn total_slices(&self) -> u32 {
        self.counts
            .iter()
            .map(|(profile, count)| profile.slices * count)
            .sum()
    }

    /// Returns the placement units of all instances.
    fn total_units(&self) -> u32 {
        self.counts
            .iter()
            .map(|(profile, count)| profile.placement_size() * count)
            .sum()
    }

    /// Returns the SMs of all instances; `None` if those of one are not known.
    fn total_multiprocessors(&self) -> Option<u32> {
        self.counts
            .iter()
            .map(|(profile, count)| Some(profile.multiprocessors? * count))
            .sum()
    }

    /// Returns the map of a GPU with these instances, in the places that the planner chooses on an empty one.
    pub fn to_slice_map(&self, offered: &[GpuInstanceProfile]) -> Option<SliceMap> {
        let requests = self.counts.iter().flat_map(|(profile, count)| {
            let request = Request {
                profile: profile.id,
                at: None,
                entry: 0,
            };
            std::iter::repeat_n(request, *count as usize)
        });
        slice_map(offered, &requests.collect::<Vec<_>>())
    }

    /// Returns what these instances leave unused of a GPU with these profiles, if another layout leaves less and has an
    /// instance at least as large for each of these.
    pub fn find_unused(mut self, offered: &'a [GpuInstanceProfile]) -> Option<Unused<'a>> {
        self.counts.sort_by_key(|(profile, _)| size_order(profile));
        let whole = offered.iter().max_by_key(|profile| profile.slices)?;
        // The last memory slice is not worth a difference between equal devices: only one could have it.
        if self.counts.len() == 1 && self.total_slices() == whole.slices {
            return None;
        }
        let better = self.find_fuller_layout(offered)?;
        let measures = [
            (
                "SMs",
                self.total_multiprocessors(),
                better.total_multiprocessors(),
                whole.multiprocessors,
            ),
            (
                "compute slices",
                Some(self.total_slices()),
                Some(better.total_slices()),
                Some(whole.slices),
            ),
            (
                "memory slices",
                Some(self.total_units()),
                Some(better.total_units()),
                Some(count_units(offered)),
            ),
        ];
        measures.into_iter().find_map(|(measure, uses, more, all)| {
            let (uses, more, all) = (uses?, more?, all?);
            (more > uses).then(|| Unused {
                layout: self.clone(),
                better: better.clone(),
                measure,
                uses,
                more,
                all,
            })
        })
    }

    /// Returns the layout that uses the most slices and has room for each of these instances: of several the one that
    /// keeps most of these, then the one that adds fewest. `None` if that uses no more.
    fn find_fuller_layout(&self, offered: &'a [GpuInstanceProfile]) -> Option<Self> {
        let most = offered.iter().filter_map(|profile| {
            let most = if profile.name.is_plain() {
                profile.most
            } else {
                self.number_of(profile)
            };
            (most > 0).then_some((profile, most))
        });
        enumerate_partitions_within(most.collect())
            .into_iter()
            .filter(|other| {
                (other.total_slices(), other.total_units())
                    > (self.total_slices(), self.total_units())
            })
            .filter(|other| other.has_room_for(self))
            .max_by_key(|other| {
                (
                    (other.total_slices(), other.total_units()),
                    Reverse(excess_instances(&self.counts, &other.counts)),
                    Reverse(excess_instances(&other.counts, &self.counts)),
                    Reverse(other.most_slices()),
                )
            })
    }

    /// True if each instance of another layout could be one of these: the same if it has attributes, else one at least as
    /// large.
    fn has_room_for(&self, other: &Self) -> bool {
        let (own, others) = (self.plain_instances(), other.plain_instances());
        other
            .counts
            .iter()
            .all(|(profile, count)| profile.name.is_plain() || self.number_of(profile) >= *count)
            && own.len() >= others.len()
            && own.iter().zip(others).all(|(own, other)| {
                own.slices >= other.slices && own.memory_mib >= other.memory_mib
            })
    }

    /// Returns the number of instances of a profile.
    fn number_of(&self, profile: &GpuInstanceProfile) -> u32 {
        let found = self.counts.iter().find(|(own, _)| own.id == profile.id);
        found.map_or(0, |(_, count)| *count)
    }

    /// Returns each instance without attributes, the largest first.
    fn plain_instances(&self) -> Vec<&'a GpuInstanceProfile> {
        let mut plain: Vec<&GpuInstanceProfile> = self
            .counts
            .iter()
            .filter(|(profile, _)| profile.name.is_plain())
            .flat_map(|(profile, count)| std::iter::repeat_n(*profile, *count as usize))
            .collect();
        plain.sort_by_key(|profile| size_order(profile));
        plain
    }
}

/// `3 × 2g.20gb + 1 × 1g.20gb`, or `4g.40gb + 3g.40gb` if there is one of each
impl fmt::Display for Partition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_one_of_each = self.counts.iter().all(|(_, count)| *count == 1);
        for (nth, (profile, count)) in self.counts.iter().enumerate() {
            let plus = if nth == 0 { "" } else { " + " };
            if is_one_of_each {
                write!(f, "{plus}{}", profile.name)?;
            } else {
                write!(f, "{plus}{count} × {}", profile.name)?;
            }
        }
        Ok(())
    }
}

/// A layout that leaves a part of its GPU unused, and the nearest one that uses more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused<'a> {
    layout: Partition<'a>,
    better: Partition<'a>,
    /// The first of SMs, compute slices and memory slices that is known and that the better layout has more of.
    measure: &'static str,
    uses: u32,
    /// The part that the better layout uses.
    more: u32,
    /// All that the GPU has in MIG mode.
    all: u32,
}

impl Unused<'_> {
    /// `uses 56 of 98 SMs`
    pub fn usage(&self) -> String {
        format!("uses {} of {} {}", self.uses, self.all, self.measure)
    }
}

/// `4 × 1g.20gb uses 56 of 98 SMs; 3 × 2g.20gb + 1 × 1g.20gb uses all`
impl fmt::Display for Unused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layout, better) = (&self.layout, &self.better);
        write!(f, "{layout} {}; {better} uses ", self.usage())?;
        if self.more == self.all {
            f.write_str("all")
        } else {
            write!(f, "{}", self.more)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Placement, ProfileEnum, ProfileId};
    use super::*;

    /// Name, slices, SMs, memory in units, how many, starts.
    type Row = (&'static str, u32, u32, u32, u32, &'static [u32]);

    /// The A100's table (MIG user guide).
    const A100: [Row; 7] = [
        ("1g.10gb", 1, 14, 1, 7, &[0, 1, 2, 3, 4, 5, 6]),
        ("1g.10gb+me", 1, 14, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
        ("1g.20gb", 1, 14, 2, 4, &[0, 2, 4, 6]),
        ("2g.20gb", 2, 28, 2, 3, &[0, 2, 4]),
        ("3g.40gb", 3, 42, 4, 2, &[0, 4]),
        ("4g.40gb", 4, 56, 4, 1, &[0]),
        ("7g.80gb", 7, 98, 8, 1, &[0]),
    ];

    fn a100() -> Vec<GpuInstanceProfile> {
        let profiles = (0..).zip(A100);
        profiles
            .map(
                |(id, (name, slices, sms, size, most, starts))| GpuInstanceProfile {
                    id: ProfileId(id),
                    query: ProfileEnum(id),
                    name: name.parse().unwrap(),
                    slices,
                    multiprocessors: Some(sms),
                    memory_mib: u64::from(size) * 9728,
                    engines: None,
                    most,
                    free: None,
                    placements: starts
                        .iter()
                        .map(|&start| Placement::new(start, size))
                        .collect(),
                },
            )
            .collect()
    }

    fn remark(offered: &[GpuInstanceProfile], names: &str) -> String {
        let instances = names.split(' ').map(|name| {
            let mut offers = offered.iter();
            offers.find(|offer| offer.name.to_string() == name).unwrap()
        });
        let unused = Partition::from_instances(instances).find_unused(offered);
        unused.map_or_else(String::new, |unused| unused.to_string())
    }

    #[test]
    fn the_nearest_fuller_layout_keeps_what_it_can_and_gives_nobody_less() {
        let offered = a100();
        for (names, said) in [
            (
                "1g.20gb 1g.20gb 1g.20gb 1g.20gb",
                "4 × 1g.20gb uses 56 of 98 SMs; 3 × 2g.20gb + 1 × 1g.20gb uses all",
            ),
            (
                "3g.40gb 3g.40gb",
                "2 × 3g.40gb uses 84 of 98 SMs; 4g.40gb + 3g.40gb uses all",
            ),
            (
                "3g.40gb",
                "3g.40gb uses 42 of 98 SMs; 4g.40gb + 3g.40gb uses all",
            ),
            (
                "1g.10gb 4g.40gb 1g.10gb",
                "1 × 4g.40gb + 2 × 1g.10gb uses 84 of 98 SMs; 1 × 4g.40gb + 1 × 1g.20gb + 2 × 1g.10gb uses all",
            ),
            (
                "1g.10gb+me",
                "1g.10gb+me uses 14 of 98 SMs; 3g.40gb + 2g.20gb + 1g.10gb + 1g.10gb+me uses all",
            ),
            (
                "1g.10gb 2g.20gb 2g.20gb 2g.20gb",
                "3 × 2g.20gb + 1 × 1g.10gb uses 7 of 8 memory slices; 3 × 2g.20gb + 1 × 1g.20gb uses all",
            ),
            ("7g.80gb", ""),
            ("4g.40gb 3g.40gb", ""),
            ("3g.40gb 2g.20gb 1g.10gb 1g.10gb", ""),
            // Equal devices that have every SM.
            (
                "1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb",
                "",
            ),
        ] {
            assert_eq!(remark(&offered, names), said, "{names}");
        }
        let unpublished: Vec<GpuInstanceProfile> = offered
            .into_iter()
            .map(|profile| GpuInstanceProfile {
                multiprocessors: None,
                ..profile
            })
            .collect();
        assert_eq!(
            remark(&unpublished, "3g.40gb 3g.40gb"),
            "2 × 3g.40gb uses 6 of 7 compute slices; 4g.40gb + 3g.40gb uses all"
        );
    }

    /// After the advice was followed, there is none any more.
    #[test]
    fn the_better_layout_of_every_layout_fits_and_leaves_nothing_that_could_be_used() {
        let offered = a100();
        let all = enumerate_partitions(&offered, 0);
        assert!(all.len() > 50, "{}", all.len());
        let mut advised = 0;
        for layout in all {
            let Some(unused) = layout.clone().find_unused(&offered) else {
                continue;
            };
            advised += 1;
            assert!(unused.better.has_room_for(&layout), "{unused}");
            assert!(unused.better.to_slice_map(&offered).is_some(), "{unused}");
            assert_eq!(unused.better.find_unused(&offered), None, "{layout}");
        }
        assert!(advised > 20, "{advised}");
    }
}
