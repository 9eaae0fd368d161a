//! The NUMA nodes of the machine, and the CPUs that this process may use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::Builder;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{FileResult, Host, list_directory};
use crate::settings::Cpus;

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    pub number: u32,
    /// The CPUs that are online, each with the first CPU of its core.
    pub cores: BTreeMap<usize, usize>,
    /// The distances to the nodes, by their numbers.
    pub distances: BTreeMap<u32, u64>,
}

impl NumaNode {
    /// Returns the cores of these CPUs, as far as they are in the node.
    pub fn cores_among(&self, cpus: &BTreeSet<usize>) -> BTreeSet<usize> {
        self.cores
            .iter()
            .filter(|(cpu, _)| cpus.contains(cpu))
            .map(|(_, core)| *core)
            .collect()
    }
}

/// The CPUs of this process.
#[derive(Clone, Debug, Default)]
pub struct CpuBinding {
    /// The CPUs that it may run on.
    pub cpus: BTreeSet<usize>,
    /// The CPUs that it could be bound to, which are those of its cpuset: the job's, in general. The same if it may not be bound.
    pub cpuset: BTreeSet<usize>,
}

impl CpuBinding {
    /// Asks the kernel.
    pub fn read() -> FileResult<Self> {
        let cpus = own_cpus()?;
        // Only the kernel knows all cpusets around a process. A thread asks for every CPU, gets those of the cpuset, and ends.
        let widen = || {
            let mut all = CpuSet::new();
            (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
            sched_setaffinity(None, &all).ok()?;
            own_cpus().ok()
        };
        let thread = Builder::new().spawn(widen);
        let widest = thread.ok().and_then(|thread| thread.join().ok().flatten());
        let cpuset = widest.unwrap_or_else(|| cpus.clone());
        Ok(Self { cpus, cpuset })
    }
}

/// Returns the CPUs that this thread may run on.
fn own_cpus() -> FileResult<BTreeSet<usize>> {
    let set = sched_getaffinity(None)?;
    let all = 0..CpuSet::MAX_CPU;
    Ok(all.filter(|cpu| set.is_set(*cpu)).collect())
}

impl Host {
    /// Returns the NUMA nodes in the order of their numbers, as far as the kernel shows them.
    pub fn numa_nodes(&self) -> Vec<NumaNode> {
        let system = self.root.join("sys/devices/system");
        let nodes: BTreeMap<u32, PathBuf> = list_directory(&system.join("node"))
            .into_iter()
            .filter_map(|(path, name)| Some((name.strip_prefix("node")?.parse().ok()?, path)))
            .collect();
        let first_of_core = |cpu: usize| {
            let siblings = format!("cpu/cpu{cpu}/topology/thread_siblings_list");
            read_cpus(&system.join(siblings))
                .first()
                .copied()
                .unwrap_or(cpu)
        };
        let describe = |(number, path): (&u32, &PathBuf)| {
            let distances = fs::read_to_string(path.join("distance")).unwrap_or_default();
            let distances = distances
                .split_whitespace()
                .map_while(|word| word.parse().ok());
            let cpus = read_cpus(&path.join("cpulist"));
            NumaNode {
                number: *number,
                cores: cpus
                    .into_iter()
                    .map(|cpu| (cpu, first_of_core(cpu)))
                    .collect(),
                distances: nodes.keys().copied().zip(distances).collect(),
            }
        };
        nodes.iter().map(describe).collect()
    }
}

/// Reads a list of CPUs; there are none in a file that is empty or missing.
fn read_cpus(path: &Path) -> Vec<usize> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let cpus: Result<Cpus, _> = text.trim().parse();
    cpus.map(|cpus| cpus.numbers().collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As on a GH200, where the memory of a GPU is a node without CPUs.
    #[test]
    fn nodes_have_cores_and_distances() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("node/node0/cpulist", "0-1,4-5\n"),
            ("node/node0/distance", "10 40 80\n"),
            ("node/node10/cpulist", "2-3\n"),
            ("node/node10/distance", "80 80 10\n"),
            ("node/node2/cpulist", "\n"),
            ("node/has_cpu", "0,10\n"),
            ("cpu/cpu4/topology/thread_siblings_list", "0,4\n"),
            ("cpu/cpu5/topology/thread_siblings_list", "1,5\n"),
        ] {
            let path = root.path().join("sys/devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let nodes = Host::at(root.path()).numa_nodes();
        assert_eq!(nodes.len(), 3);
        let cores = BTreeMap::from([(0, 0), (1, 1), (4, 0), (5, 1)]);
        assert_eq!(nodes[0].cores, cores);
        let distances = BTreeMap::from([(0, 10), (2, 40), (10, 80)]);
        assert_eq!(nodes[0].distances, distances);
        assert_eq!(
            nodes[1],
            NumaNode {
                number: 2,
                ..NumaNode::default()
            }
        );
        assert_eq!(nodes[2].cores, BTreeMap::from([(2, 2), (3, 3)]));
        let threads = BTreeSet::from([0, 2, 4]);
        assert_eq!(nodes[0].cores_among(&threads), BTreeSet::from([0]));
    }

    #[test]
    fn the_cpus_of_this_thread_stay_as_they_are() {
        let before = own_cpus().unwrap();
        let binding = CpuBinding::read().unwrap();
        assert_eq!(binding.cpus, before);
        assert!(binding.cpuset.is_superset(&before));
        assert_eq!(own_cpus().unwrap(), before);
    }
}
