use clap::{Args, ValueEnum};
use regex::Regex;

use crate::client::{Map, Wanted};
use crate::geometry::ProfileName;
use crate::settings::MemoryLimit;

/// The most copies that one command runs of a program.
const MOST_COPIES: i64 = 1024;

/// The ways to choose a device, of which a command line has one at most.
#[derive(Args, Debug)]
#[group(id = "choosing", multiple = false)]
pub(super) struct ChooseArgs {
    /// Take any device that takes the program now: fewest clients, then most free memory
    #[arg(long)]
    pub(super) any: bool,
    /// Take the device of this process's rank on the node, under MPI or in a Slurm step
    #[arg(long)]
    pub(super) by_rank: bool,
    /// Run N copies of the program, spread over the devices that take it now
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_COPIES))]
    pub(super) copies: Option<u32>,
}

/// The devices that are chosen from.
#[derive(Args, Debug)]
pub(super) struct WantedArgs {
    /// Only devices of this profile, such as 1g or 3g.40gb
    #[arg(long, value_name = "PROFILE", requires = "choosing")]
    profile: Option<ProfileName>,
    /// Only devices with at least this much free memory, such as 10G
    #[arg(
        long,
        value_name = "SIZE",
        requires = "choosing",
        conflicts_with = "by_rank"
    )]
    min_memory: Option<MemoryLimit>,
    /// Only devices of GPUs whose product name has a match of this regular expression
    #[arg(
        long,
        value_name = "REGEX",
        requires = "choosing",
        conflicts_with = "by_rank"
    )]
    product: Option<Regex>,
    /// Spread ranks over devices one after the other, or in blocks of neighbours [default: cycle]
    #[arg(long, requires = "by_rank")]
    map: Option<MapWord>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MapWord {
    /// Ranks 0 and 1 share the first device, 2 and 3 the second, and so on
    Block,
    /// Rank 0 on the first device, 1 on the second, and so on, and again from the first
    Cycle,
}

impl WantedArgs {
    /// Returns the devices to choose from, which have these names or any.
    pub(super) fn among(&self, names: Vec<String>) -> Wanted {
        Wanted {
            names,
            profile: self.profile.clone(),
            free_memory: self.min_memory.map(MemoryLimit::bytes),
            product: self.product.clone(),
        }
    }

    pub(super) fn map(&self) -> Map {
        match self.map {
            Some(MapWord::Block) => Map::Block,
            Some(MapWord::Cycle) | None => Map::Cycle,
        }
    }
}
