//! The place of a process among those of an MPI program or Slurm step on this node.

use thiserror::Error;

use crate::failure::{ExitStatus, Failure};

/// The variables that launchers set: the process's rank on its node, and the number of processes there. `torchrun` comes
/// first: `srun` and `mpirun` start one on each node, and it starts the ranks.
const LAUNCHERS: [(&str, &str); 7] = [
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
];

/// The way in which ranks are spread over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Neighbouring ranks share a device: 0 0 1 1 2 2.
    Block,
    /// One after the other, and again from the first: 0 1 2 0 1 2.
    Cycle,
}

/// The rank of a process on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRank {
    rank: usize,
    /// The number of ranks on the node, if the launcher tells.
    size: Option<usize>,
}

/// A process has no device by its rank.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NoRank {
    #[error(
        "no launcher has set the rank of this process: none of {} is set",
        names()
    )]
    NotSet,
    #[error("{name} is \"{value}\", which is not a number")]
    NotANumber { name: &'static str, value: String },
    #[error("--map block needs the number of ranks on this node, which the launcher does not tell")]
    NoSize,
    #[error("there is no device for rank {rank}: {}", none_of(*all))]
    NoDevice { rank: usize, all: usize },
}

impl Failure for NoRank {
    fn status(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotSet => {
                "start it with mpirun, srun or torchrun, or use --any in place of --by-rank"
            }
            Self::NotANumber { .. } => {
                "the launcher sets it: start the program with mpirun, srun or torchrun"
            }
            Self::NoSize => "use --map cycle",
            Self::NoDevice { .. } => "mig-mps status shows the devices and the users they serve",
        };
        Some(hint.to_owned())
    }
}

fn none_of(all: usize) -> String {
    match all {
        0 => "no device on this node has a daemon".to_owned(),
        1 => "the one here is not as asked for, or not for this user".to_owned(),
        _ => format!("none of the {all} here is as asked for and for this user"),
    }
}

fn names() -> String {
    let names = LAUNCHERS.map(|(rank, _)| rank);
    names.join(", ")
}

impl LocalRank {
    /// Reads the rank from the environment. The innermost launcher is asked first: `mpirun` may run within a Slurm step.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self, NoRank> {
        let mut set = LAUNCHERS
            .iter()
            .filter_map(|(name, size)| Some((*name, variable(name)?, *size)));
        let (name, value, size) = set.next().ok_or(NoRank::NotSet)?;
        let rank = value
            .parse()
            .map_err(|_| NoRank::NotANumber { name, value })?;
        let size = variable(size).and_then(|size| leading_number(&size));
        Ok(Self {
            rank,
            size: size.filter(|size| *size > rank),
        })
    }

    /// Returns the position of the rank's device among `count`, which are chosen from `all`.
    pub fn device(self, count: usize, all: usize, map: Map) -> Result<usize, NoRank> {
        let rank = self.rank;
        match (map, self.size) {
            _ if count == 0 => Err(NoRank::NoDevice { rank, all }),
            (Map::Cycle, _) => Ok(self.rank % count),
            (Map::Block, Some(size)) => {
                // The product of two numbers may have twice their digits.
                let [rank, count, size] = [rank, count, size.max(count)].map(|n| n as u128);
                Ok(usize::try_from(rank * count / size).unwrap_or(0))
            }
            (Map::Block, None) => Err(NoRank::NoSize),
        }
    }
}

/// `14`, and Slurm's `14(x2)`. Slurm's `4,3` names several nodes with different numbers, and not which is this one.
fn leading_number(text: &str) -> Option<usize> {
    let (number, rest) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    let is_one = rest.is_empty() || (rest.starts_with("(x") && !rest.contains(','));
    number.parse().ok().filter(|_| is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(variables: &[(&str, &str)]) -> Result<LocalRank, NoRank> {
        LocalRank::of(|name| {
            let mut found = variables.iter().filter(|(known, _)| *known == name);
            found.next().map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_launcher_is_understood() {
        for (name, size) in LAUNCHERS {
            let read = rank(&[(name, "3"), (size, "8")]).unwrap();
            assert_eq!((read.rank, read.size), (3, Some(8)), "{name}");
        }
        let within_slurm = [("SLURM_LOCALID", "0"), ("OMPI_COMM_WORLD_LOCAL_RANK", "5")];
        assert_eq!(rank(&within_slurm).unwrap().rank, 5);
        let torchrun_within_slurm = [("SLURM_LOCALID", "0"), ("LOCAL_RANK", "3")];
        assert_eq!(rank(&torchrun_within_slurm).unwrap().rank, 3);
        let slurm = |size| rank(&[("SLURM_LOCALID", "1"), ("SLURM_STEP_TASKS_PER_NODE", size)]);
        assert_eq!(slurm("4(x2)").unwrap().size, Some(4));
        assert_eq!(slurm("4,3").unwrap().size, None);
        assert_eq!(slurm("2(x2),1").unwrap().size, None);
    }

    #[test]
    fn ranks_are_spread_over_devices() {
        let spread = |map, ranks: usize, devices| -> Vec<usize> {
            let at = |rank| LocalRank {
                rank,
                size: Some(ranks),
            };
            (0..ranks)
                .map(|rank| at(rank).device(devices, devices, map).unwrap())
                .collect()
        };
        assert_eq!(spread(Map::Cycle, 5, 2), [0, 1, 0, 1, 0]);
        assert_eq!(spread(Map::Block, 6, 3), [0, 0, 1, 1, 2, 2]);
        assert_eq!(spread(Map::Block, 5, 2), [0, 0, 0, 1, 1]);
        let last = LocalRank {
            rank: usize::MAX - 1,
            size: Some(usize::MAX),
        };
        assert_eq!(last.device(7, 7, Map::Block), Ok(6));
        // Fewer ranks than devices: one each.
        assert_eq!(spread(Map::Block, 2, 7), [0, 1]);
    }

    #[test]
    fn a_rank_without_a_device_is_an_error() {
        assert_eq!(rank(&[]), Err(NoRank::NotSet));
        let wrong = rank(&[("PMI_LOCAL_RANK", "x")]).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "PMI_LOCAL_RANK is \"x\", which is not a number"
        );
        let unknown = rank(&[("PMI_LOCAL_RANK", "2")]).unwrap();
        assert_eq!(unknown.device(7, 7, Map::Block), Err(NoRank::NoSize));
        assert_eq!(
            unknown.device(0, 7, Map::Cycle),
            Err(NoRank::NoDevice { rank: 2, all: 7 })
        );
        assert_eq!(unknown.device(2, 7, Map::Cycle), Ok(0));
    }
}
