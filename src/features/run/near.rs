//! `--map near`: the device nearest to the CPUs of a rank. `--bind near`: the CPUs nearest to a device.

use std::collections::BTreeSet;

use clap::ValueEnum;

use crate::error::{Result, command_error};
use crate::host::{CpuBinding, Environment, FileResult, Host, Limits, NumaNode};
use crate::node::Served;
use crate::shared::LocalRank;
use crate::state::DeviceKey;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Bind {
    /// The CPUs of the GPU's NUMA node
    Near,
}

/// Binds this process, and the program that it becomes, to the CPUs near the device's GPU.
pub(super) fn bind_near(environment: &Environment, served: &Served) -> Result<()> {
    let record = &served.record;
    let cpus = environment
        .host
        .cpus_near(record.key.gpus())
        .map_err(|error| {
            let name = &record.name;
            command_error(format_args!(
                "cannot determine the CPUs near the GPU of device {name}: {error}"
            ))
            .with_hint("omit --bind, or bind the program with taskset")
        })?;
    let limits = Limits {
        cpus: Some(cpus.numbers().collect()),
        ..Limits::default()
    };
    Ok(limits.apply()?)
}

/// Returns the position of the device for a rank by the CPUs that it may run on; `None` if these are near all devices.
pub(super) fn near_position(
    host: &Host,
    rank: LocalRank,
    devices: &[&DeviceKey],
) -> Result<Option<usize>> {
    let places: FileResult<Vec<Option<u32>>> = devices
        .iter()
        // The GPUs of a joint device may be on several nodes.
        .map(|device| host.numa_node_of(&device.gpu))
        .collect();
    let unknown = |error| {
        command_error(format_args!("cannot tell which device is near: {error}"))
            .with_hint("use --map cycle or --map block")
    };
    let places = places.map_err(unknown)?;
    let binding = CpuBinding::read().map_err(unknown)?;
    let nodes = host.numa_nodes();
    Ok(choose_device(&places, &node_cores(&nodes, &binding), rank))
}

/// The cores of a NUMA node that a rank and its job have.
struct NodeCores<'n> {
    node: &'n NumaNode,
    /// The cores that the rank may run on.
    own: BTreeSet<usize>,
    job: BTreeSet<usize>,
}

impl NodeCores<'_> {
    /// True if a second rank with as many cores would share some with this one: their CPUs do not tell them apart.
    fn is_mostly_own(&self) -> bool {
        2 * self.own.len() > self.job.len()
    }
}

/// Returns the nodes whose CPUs the job has.
fn node_cores<'n>(nodes: &'n [NumaNode], binding: &CpuBinding) -> Vec<NodeCores<'n>> {
    nodes
        .iter()
        .map(|node| NodeCores {
            node,
            own: node.cores_among(&binding.cpus),
            job: node.cores_among(&binding.cpuset),
        })
        .filter(|cores| !cores.job.is_empty())
        .collect()
}

/// The distance to a GPU whose node the machine does not tell: the largest one of the kernel.
const UNKNOWN_DISTANCE: u64 = 255;

/// Returns the devices at these places that are nearest to nodes of some weight.
fn nearest_devices(places: &[Option<u32>], nodes: &[(&NumaNode, usize)]) -> Vec<usize> {
    let distance = |place: &Option<u32>| -> u64 {
        let from = |node: &NumaNode| Some(*node.distances.get(&(*place)?)?);
        nodes
            .iter()
            .map(|(node, weight)| from(node).unwrap_or(UNKNOWN_DISTANCE) * *weight as u64)
            .sum()
    };
    let distances: Vec<u64> = places.iter().map(distance).collect();
    let least = distances.iter().min();
    (0..places.len())
        .filter(|device| Some(&distances[*device]) == least)
        .collect()
}

/// Returns the device of a rank among those at these places; `None` if the rank is not bound to CPUs near some of them.
fn choose_device(
    places: &[Option<u32>],
    nodes: &[NodeCores<'_>],
    rank: LocalRank,
) -> Option<usize> {
    let used: Vec<&NodeCores<'_>> = nodes.iter().filter(|node| !node.own.is_empty()).collect();
    // Of a rank that is bound to whole nodes, some cores may be offline or kept for the system.
    let has_whole_nodes = used.iter().all(|node| node.is_mostly_own());
    if has_whole_nodes && used.len() == nodes.len() && used.len() > 1 && places.len() > 1 {
        return None;
    }
    let weight = |node: &NodeCores<'_>| if has_whole_nodes { 1 } else { node.own.len() };
    let weighted: Vec<_> = used.iter().map(|node| (node.node, weight(node))).collect();
    let near = nearest_devices(places, &weighted);
    // The nodes to which these devices are nearest: in general the one of the devices.
    let home: Vec<&NodeCores<'_>> = nodes
        .iter()
        .filter(|node| nearest_devices(places, &[(node.node, 1)]) == near)
        .collect();
    match near[..] {
        [] => None,
        [only] => Some(only),
        _ if near.len() == places.len() && home.iter().all(|node| node.is_mostly_own()) => None,
        _ => {
            let index = index_by_cores(nodes, &home, near.len(), rank);
            // Ranks that a launcher has put on several nodes in turn get different devices, too.
            let by_rank = (rank.rank + rank.rank / near.len()) % near.len();
            Some(near[index.unwrap_or(by_rank)])
        }
    }
}

/// Returns the index of a rank's device among `count`, by the position of its first core among those of the nodes near them.
/// Returns `None` if positions do not spread ranks over the devices: if the ranks share cores, or leave some free.
fn index_by_cores(
    nodes: &[NodeCores<'_>],
    home: &[&NodeCores<'_>],
    count: usize,
    rank: LocalRank,
) -> Option<usize> {
    let width: usize = nodes.iter().map(|node| node.own.len()).sum();
    let all: usize = nodes.iter().map(|node| node.job.len()).sum();
    let near: usize = home.iter().map(|node| node.job.len()).sum();
    // The ranks of this width that have room there side by side.
    let parts = near.checked_div(width)?;
    if rank.size.map_or(parts < 2, |size| all / width != size) {
        return None;
    }
    let first = home
        .iter()
        .flat_map(|&node| node.job.iter().map(move |core| node.own.contains(core)))
        .position(|is_own| is_own)?;
    let part = (first + width / 2) / width;
    let parts = parts.max(1);
    Some(part.min(parts - 1) * count / parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Cpus;

    /// The NUMA nodes of a machine, and the node of each device.
    struct Machine {
        nodes: Vec<NumaNode>,
        places: Vec<Option<u32>>,
    }

    const LOCAL: u64 = 10;
    const REMOTE: u64 = 32;

    fn set(cpus: &str) -> BTreeSet<usize> {
        let cpus: Option<Cpus> = (!cpus.is_empty()).then(|| cpus.parse().unwrap());
        cpus.iter().flat_map(Cpus::numbers).collect()
    }

    impl Machine {
        fn new(cpu_lists: &[&str], places: &[i32]) -> Self {
            let count = u32::try_from(cpu_lists.len()).unwrap();
            let nodes = (0..count).zip(cpu_lists).map(|(number, cpus)| NumaNode {
                number,
                cores: set(cpus).into_iter().map(|cpu| (cpu, cpu)).collect(),
                distances: (0..count)
                    .map(|other| (other, if other == number { LOCAL } else { REMOTE }))
                    .collect(),
            });
            Self {
                nodes: nodes.collect(),
                places: places
                    .iter()
                    .map(|place| u32::try_from(*place).ok())
                    .collect(),
            }
        }

        /// The same with two threads a core, whose numbers are so far apart.
        fn with_siblings(mut self, apart: usize) -> Self {
            for core in self.nodes.iter_mut().flat_map(|node| &mut node.cores) {
                *core.1 = core.0 % apart;
            }
            self
        }

        fn with_distance(mut self, from: usize, to: u32, distance: u64) -> Self {
            self.nodes[from].distances.insert(to, distance);
            self
        }

        /// The device of a rank that is bound to CPUs, in a job that has those of the cpuset.
        fn device_in(&self, cpuset: &str, cpus: &str, rank: LocalRank) -> Option<usize> {
            let binding = CpuBinding {
                cpus: set(cpus),
                cpuset: set(cpuset),
            };
            choose_device(&self.places, &node_cores(&self.nodes, &binding), rank)
        }

        fn device(&self, cpus: &str, rank: LocalRank) -> Option<usize> {
            self.device_in("0-1023", cpus, rank)
        }

        /// The devices of ranks that are bound to these CPUs each.
        fn spread(&self, cpuset: &str, masks: &[String]) -> Vec<Option<usize>> {
            let ranks = masks.iter().enumerate();
            ranks
                .map(|(rank, cpus)| self.device_in(cpuset, cpus, of(rank, masks.len())))
                .collect()
        }
    }

    fn of(rank: usize, size: usize) -> LocalRank {
        LocalRank {
            rank,
            size: Some(size),
        }
    }

    fn alone(rank: usize) -> LocalRank {
        LocalRank { rank, size: None }
    }

    /// So many CPU lists of `width` CPUs, which begin at these steps.
    fn masks(count: usize, step: usize, width: usize) -> Vec<String> {
        let firsts = (0..count).map(|number| number * step);
        firsts
            .map(|first| format!("{first}-{}", first + width - 1))
            .collect()
    }

    fn all(devices: impl IntoIterator<Item = usize>) -> Vec<Option<usize>> {
        devices.into_iter().map(Some).collect()
    }

    /// Two sockets of 64 cores, and four GPUs on each.
    fn dual_socket() -> Machine {
        Machine::new(&["0-63", "64-127"], &[0, 0, 0, 0, 1, 1, 1, 1])
    }

    #[test]
    fn near_devices_are_shared_by_the_position_of_the_first_cpu() {
        let node = dual_socket();
        for (cpus, device) in [
            ("0", 0),
            ("0-15", 0),
            ("15", 0),
            ("16", 1),
            ("16-31", 1),
            ("32-47", 2),
            ("48-63", 3),
            ("64-79", 4),
            ("127", 7),
            // The first half and the second half of a socket.
            ("0-31", 0),
            ("32-63", 2),
            ("96-127", 6),
            // Most of its CPUs are on the other socket.
            ("60-79", 4),
        ] {
            assert_eq!(node.device(cpus, alone(5)), Some(device), "{cpus}");
        }
        assert_eq!(node.spread("0-127", &masks(8, 16, 16)), all(0..8));
        let pairs = all((0..16).map(|rank| rank / 2));
        assert_eq!(node.spread("0-127", &masks(16, 8, 8)), pairs);
        // The fourth has CPUs of both sockets.
        let six = node.spread("0-127", &masks(6, 20, 20));
        assert_eq!(six.iter().collect::<BTreeSet<_>>().len(), 6, "{six:?}");
    }

    #[test]
    fn ranks_fill_devices_whose_number_does_not_divide_the_cores() {
        let gh200 = Machine::new(&["0-71"], &[0; 7]);
        assert_eq!(gh200.spread("0-71", &masks(7, 10, 10)), all(0..7));
        let epyc = Machine::new(&["0-63"], &[0; 7]);
        assert_eq!(epyc.spread("0-63", &masks(7, 9, 9)), all(0..7));
        assert_eq!(epyc.spread("0-63", &masks(7, 8, 8)), all(0..7));
        let odd = Machine::new(&["0-18", "19-37"], &[0, 0, 1, 1]);
        assert_eq!(odd.device("9-18", of(1, 3)), Some(0));
        let single = epyc.spread("0-63", &masks(64, 1, 1));
        assert_eq!(single[0], Some(0));
        assert_eq!(single[63], Some(6));
        assert!(single.is_sorted());
    }

    #[test]
    fn a_gpu_alone_in_its_domain_is_taken_wherever_the_rank_runs_there() {
        // The memory of the GPUs is in nodes without CPUs.
        let lists = ["0-71", "72-143", "144-215", "216-287"];
        let gh200 = Machine::new(&lists, &[0, 1, 2, 3]);
        for (cpus, device) in [("0-71", 0), ("100", 1), ("144-215", 2), ("287", 3)] {
            assert_eq!(gh200.device(cpus, of(0, 4)), Some(device), "{cpus}");
        }
        // One GPU is not on the list of devices.
        let three = Machine::new(&lists, &[0, 1, 3]).with_distance(2, 3, 20);
        assert_eq!(three.device("150", alone(0)), Some(2));
    }

    #[test]
    fn a_rank_without_a_near_device_takes_the_next_nearest() {
        // Four domains a socket, of which two have two GPUs.
        let lists = ["0-15", "16-31", "32-47", "48-63"];
        let node = Machine::new(&lists, &[1, 1, 3, 3])
            .with_distance(0, 1, 12)
            .with_distance(2, 3, 12);
        assert_eq!(node.device("0-3", alone(0)), Some(0));
        assert_eq!(node.device("20-23", alone(0)), Some(1));
        assert_eq!(node.device("40-47", alone(0)), Some(2));
        assert_eq!(node.device("60", alone(0)), Some(3));
        // All GPUs are on the other socket.
        let far = Machine::new(&["0-63", "64-127"], &[1, 1]);
        assert_eq!(far.device("0-31", alone(1)), Some(0));
        assert_eq!(far.device("64-95", alone(0)), Some(1));
    }

    #[test]
    fn a_rank_that_is_bound_to_nothing_has_no_near_device() {
        let node = dual_socket();
        for cpus in ["0-127", "0-63,64-127", "63-64", "0-7,64-71", "200"] {
            assert_eq!(node.device(cpus, of(1, 8)), None, "{cpus}");
            assert_eq!(node.device(cpus, alone(1)), None, "{cpus}");
        }
        // Some CPUs are kept for the system, or are offline.
        let uneven = Machine::new(&["4-63", "64-127"], &[0, 0, 1, 1]);
        assert_eq!(uneven.device("4-127", of(0, 4)), None);
        let single = Machine::new(&["0-31"], &[0, 0]);
        assert_eq!(single.device("0-31", of(0, 1)), None);
        assert_eq!(single.device("0-31", alone(1)), None);
        assert_eq!(
            Machine::new(&["0-31"], &[0]).device("0-31", alone(1)),
            Some(0)
        );
        // The GPU in the middle of three is nearest to all CPUs, and a node has memory alone.
        let line = Machine::new(&["0-7", "8-15", "16-23", ""], &[0, 1, 2])
            .with_distance(0, 1, 20)
            .with_distance(2, 1, 20);
        assert_eq!(line.device("0-23", of(0, 3)), None);
        let only = Machine::new(&["0-7", "8-15"], &[0]);
        assert_eq!(only.device("0-15", of(0, 3)), Some(0));
        // A kernel that shows no nodes.
        assert_eq!(Machine::new(&[], &[-1, -1]).device("3", alone(1)), None);
    }

    #[test]
    fn ranks_with_the_same_cpus_of_a_domain_go_by_local_rank() {
        let node = dual_socket();
        let bound = |numbers: [usize; 4], cpus: &str| {
            numbers.map(|rank| node.device(cpus, of(rank, 8)).unwrap())
        };
        // As mpirun --bind-to numa does, in blocks or in turn.
        assert_eq!(bound([0, 1, 2, 3], "0-63"), [0, 1, 2, 3]);
        assert_eq!(bound([4, 5, 6, 7], "64-127"), [5, 6, 7, 4]);
        assert_eq!(bound([0, 2, 4, 6], "0-63"), [0, 2, 1, 3]);
        assert_eq!(bound([1, 3, 5, 7], "64-127"), [5, 7, 6, 4]);
        // Both nodes of a socket, one with a core offline.
        let lists = ["1-15", "16-31", "32-47", "48-63"];
        let quarters = Machine::new(&lists, &[0, 1, 2, 3])
            .with_distance(0, 1, 12)
            .with_distance(1, 0, 12);
        assert_eq!(quarters.device("1-31", of(0, 4)), Some(0));
        assert_eq!(quarters.device("1-31", of(1, 4)), Some(1));
        // One rank on each socket.
        assert_eq!(node.device("0-63", of(0, 2)), Some(0));
        assert_eq!(node.device("64-127", of(1, 2)), Some(4));
    }

    /// The position of such CPUs would put all ranks on the first device.
    #[test]
    fn ranks_that_leave_most_cpus_free_go_by_local_rank() {
        let node = dual_socket();
        let in_turn = ["0", "64", "1", "65", "2", "66", "3", "67"].map(str::to_owned);
        let devices = node.spread("0-127", &in_turn);
        assert_eq!(devices, all([0, 5, 2, 7, 1, 6, 3, 4]));
        // In a job that has no other CPUs the position tells.
        let devices = node.spread("0-3,64-67", &in_turn);
        assert_eq!(devices, all([0, 4, 1, 5, 2, 6, 3, 7]));
        let single = Machine::new(&["0-31"], &[0, 0]);
        assert_eq!(single.spread("0-31", &masks(2, 1, 1)), all([0, 1]));
    }

    #[test]
    fn the_position_is_that_among_the_cpus_of_the_job() {
        let node = dual_socket();
        assert_eq!(node.device_in("0-15", "8-11", alone(0)), Some(2));
        assert_eq!(node.device_in("0-15", "0-15", alone(2)), Some(2));
        let single = Machine::new(&["0-63"], &[0, 0]);
        assert_eq!(
            single.spread("16-31", &["16-23", "24-31"].map(str::to_owned)),
            all([0, 1])
        );
        assert_eq!(single.device_in("16-31", "16-31", of(0, 2)), None);
    }

    #[test]
    fn threads_of_a_core_count_once() {
        let node = Machine::new(&["0-31,64-95", "32-63,96-127"], &[0, 0, 0, 0, 1, 1, 1, 1])
            .with_siblings(64);
        for (cpus, device) in [
            ("8,72", 1),
            ("72", 1),
            ("64-71", 0),
            ("24-31,88-95", 3),
            ("32-39,96-103", 4),
            ("120-127", 7),
        ] {
            assert_eq!(node.device(cpus, alone(0)), Some(device), "{cpus}");
        }
        assert_eq!(node.device("0-31", alone(2)), Some(2));
        let ranks: Vec<String> = (0..8)
            .map(|rank| {
                format!(
                    "{}-{},{}-{}",
                    rank * 8,
                    rank * 8 + 7,
                    rank * 8 + 64,
                    rank * 8 + 71
                )
            })
            .collect();
        assert_eq!(node.spread("0-127", &ranks), all(0..8));
    }

    #[test]
    fn places_that_the_machine_does_not_tell_are_equally_near() {
        for lists in [&["0-31"][..], &["0-15", "16-31"]] {
            let node = Machine::new(lists, &[-1, -1]);
            assert_eq!(node.device("0-3", alone(1)), Some(0));
            assert_eq!(node.device("20-23", alone(0)), Some(1));
            assert_eq!(node.device("0-31", alone(0)), None);
        }
        let partly = Machine::new(&["0-15", "16-31"], &[-1, 0]);
        assert_eq!(partly.device("16-19", alone(0)), Some(1));
    }
}
