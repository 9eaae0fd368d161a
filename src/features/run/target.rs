//! The options that choose a device for `run`, and a device that is chosen.

use clap::Args;

use crate::client::{ClientOptions, Variables};
use crate::commands::args::number;
use crate::commands::env::client_variables;
use crate::error::Result;
use crate::host::Environment;
use crate::node::{Node, Served};
use crate::settings::DeviceSize;
use crate::shared::{CHOICE, Portion};

/// The group of the options for ranks and copies.
pub(super) const RANKS: &str = "Ranks and copies";

/// The most copies that one command runs of a program.
const MOST_COPIES: u32 = 1024;

/// The ways to choose a device, of which a command line has one at most.
#[derive(Args, Debug)]
#[group(id = "choosing", multiple = false)]
pub(super) struct ChooseArgs {
    /// Use the least busy device that accepts the program
    #[arg(long, help_heading = CHOICE)]
    pub any: bool,
    /// Use the device of this rank (MPI, torchrun or Slurm)
    #[arg(long, group = "ranked", help_heading = RANKS)]
    pub by_rank: bool,
    /// Run N copies of the program, spread over the devices
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_parser = number::<1, MOST_COPIES>,
        help_heading = RANKS
    )]
    pub copies: Option<u32>,
}

/// A device that programs run on.
pub(super) struct Target {
    /// The environment in which its daemon is found.
    pub(super) environment: Environment,
    pub(super) served: Served,
    /// The positions of its GPUs that a program of the caller may use.
    pub(super) gpus: Vec<usize>,
    pub(super) size: DeviceSize,
    /// The part of it that a program gets.
    pub(super) portion: Portion,
}

impl Target {
    /// Describes a device of a node that was observed.
    pub(super) fn new(
        node: &Node,
        environment: &Environment,
        served: &Served,
        gpus: Vec<usize>,
    ) -> Self {
        let device = node.device_with_key(&served.record.key);
        let size = device.and_then(|device| node.size_of(device));
        let portion = device.map(|device| Portion::for_device(node, device, served, &gpus));
        Self {
            portion: portion.unwrap_or_default(),
            environment: environment.clone(),
            served: served.clone(),
            gpus,
            size: size.unwrap_or_default(),
        }
    }

    /// Returns the environment of a program on it.
    pub(super) fn variables(&self, options: &ClientOptions) -> Result<Variables> {
        program_variables(&self.environment, &self.served, &self.gpus, options)
    }
}

/// Returns the environment of a program on a device. The limits in the caller's environment hold, unless there are others.
pub(super) fn program_variables(
    environment: &Environment,
    served: &Served,
    gpus: &[usize],
    options: &ClientOptions,
) -> Result<Variables> {
    let options = options.with_caller_limits(&served.record)?;
    client_variables(served, environment, &options, gpus)
}
