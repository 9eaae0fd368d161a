//! `mig-mps run`

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::choice_args::{ChooseArgs, WantedArgs};
use super::copies::{self, Copy, Share};
use super::duration::duration;
use super::limit_args::LimitArgs;
use super::patience::{Obstacle, Patience};
use super::recorded::Recorded;
use super::{Context, guard, user_program};
use crate::client::{
    ClientLimits, LocalRank, Slot, Variables, devices_for, free_devices, ready, refuse_unmapped,
};
use crate::error::{CommandError, ExitStatus, Result};
use crate::host::{Environment, Limits, give_open_files, heed_child_signal};
use crate::node::{Detail, Node, Served, observe, observe_records};

/// Run a program as an MPS client of a device
///
/// First checks that the device takes the caller's programs now, and that CUDA makes them MPS clients: with
/// a wrong environment it runs them outside MPS and says nothing. Then mig-mps becomes the program, so that
/// signals and the exit status are the program's own.
#[derive(Args, Debug)]
#[command(
    override_usage = "mig-mps run [OPTIONS] <DEVICE> -- <COMMAND>...\n       mig-mps run [OPTIONS] <--any|--by-rank|-n N> [DEVICE] -- <COMMAND>..."
)]
pub struct RunArgs {
    /// Device: a name, a UUID, or a unique prefix of either; where a device is chosen, also a glob
    #[arg(required_unless_present = "choosing")]
    device: Option<String>,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    choose: ChooseArgs,
    #[command(flatten)]
    wanted: WantedArgs,
    /// Share of a device's SMs for each copy: 100 % / n, 200 % / n, or all, where n copies run on it
    #[arg(long, requires = "copies", conflicts_with = "threads")]
    share: Option<Share>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Bind the program to the CPUs that are local to the device's GPU
    #[arg(long, conflicts_with = "copies")]
    bind: Option<Bind>,
    /// Wait up to DURATION, such as 5m, for other programs to make room
    ///
    /// For a device that serves another user now, is full, or recovers from a fault.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// Stay beside the program, and end it if it computes outside MPS
    #[arg(long, conflicts_with = "copies")]
    require_mps: bool,
    /// Do not check the device
    #[arg(long, conflicts_with = "wait")]
    no_check: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Bind {
    /// The CPUs of the GPU's NUMA node
    Near,
}

/// Becomes the program. Returns only if that fails, or if mig-mps stays beside it.
pub fn run(args: &RunArgs, context: &Context<'_>) -> Result<ExitStatus> {
    start(args, context.environment).map_err(|error| match error.kind {
        ExitStatus::WaitOver | ExitStatus::NotExecutable | ExitStatus::NotFound => error,
        _ => CommandError {
            kind: ExitStatus::NotRun,
            ..error
        },
    })
}

fn start(args: &RunArgs, environment: &Environment) -> Result<ExitStatus> {
    give_open_files()?;
    refuse_unmapped(&environment.host)?;
    // A caller that ignores SIGCHLD would take the exit status of the checks.
    heed_child_signal()?;
    let patience = Patience::new(args.wait);
    if let Some(count) = args.choose.copies {
        let count = count as usize;
        copies::refuse_too_many(count)?;
        let devices = patience.until(|| args.free(environment, count))?;
        let copies = args.spread(environment, &devices, count)?;
        return copies::run(environment, &args.command, &copies);
    }
    let (served, variables) = args.one(environment, &patience)?;
    if let Some(Bind::Near) = args.bind {
        bind_near(environment, &served)?;
    }
    if args.require_mps {
        return guard::run(environment, &served, &args.command, &variables);
    }
    let never = user_program::become_it(&args.command, &variables)?;
    match never {}
}

impl RunArgs {
    /// Returns the device that the program runs on, with its environment.
    fn one(&self, environment: &Environment, patience: &Patience) -> Result<(Served, Variables)> {
        let limits = self.limits.limits();
        if self.choose.any {
            let mut free = patience.until(|| self.free(environment, 1))?;
            let served = free.remove(0);
            let variables = Recorded::of(&served).variables_over_own(environment, &limits)?;
            return Ok((served, variables));
        }
        let node = observe_records(environment)?;
        let device = if self.choose.by_rank {
            self.by_rank(&node, environment)?
        } else {
            Recorded::find(&node, self.device.as_deref().unwrap_or_default())?
        };
        let variables = device.variables_over_own(environment, &limits)?;
        if !self.no_check {
            patience.until(|| check(environment, &node, device.name(), &variables))?;
        }
        Ok((device.served.clone(), variables))
    }

    fn by_rank<'n>(&self, node: &'n Node, environment: &Environment) -> Result<Recorded<'n>> {
        let wanted = self.wanted.among(self.names(node)?);
        let devices = devices_for(node, &wanted, environment.caller);
        let rank = LocalRank::of(|name| std::env::var(name).ok())?;
        let position = rank.device(devices.len(), node.served.len(), self.wanted.map())?;
        Ok(Recorded::of(devices[position]))
    }

    /// Returns the names of the devices that are chosen from; none for all.
    fn names(&self, node: &Node) -> Result<Vec<String>> {
        let words: Vec<String> = self.device.iter().cloned().collect();
        Ok(node.resolve(&words)?)
    }

    /// Returns at least one and at most `most` devices that take a client now, the best ones first.
    fn free(&self, environment: &Environment, most: usize) -> Result<Vec<Served>, Obstacle> {
        let node = observe(environment, Detail::Status).map_err(CommandError::from)?;
        let wanted = self.wanted.among(self.names(&node)?);
        let mut found = Vec::new();
        let mut failed = None;
        for served in free_devices(&node, &wanted, environment.caller)? {
            let checked = Recorded::of(served)
                .variables_over_own(environment, &self.limits.limits())
                .map_err(Obstacle::from)
                .and_then(|variables| {
                    if self.no_check {
                        return Ok(());
                    }
                    check(environment, &node, &served.record.name, &variables)
                });
            // A device that fails is passed over while another one does not.
            match checked {
                Ok(()) => found.push(served.clone()),
                Err(obstacle) => failed = failed.or(Some(obstacle)),
            }
            if found.len() == most {
                break;
            }
        }
        match failed {
            Some(obstacle) if found.is_empty() => Err(obstacle),
            _ => Ok(found),
        }
    }

    /// Spreads copies over devices, each to the one with the fewest clients.
    fn spread(
        &self,
        environment: &Environment,
        devices: &[Served],
        count: usize,
    ) -> Result<Vec<Copy>> {
        let clients = devices.iter().map(|served| served.clients.listed().len());
        let placed = copies::spread(&clients.collect::<Vec<_>>(), count);
        let on = |device: usize| placed.iter().filter(|other| **other == device).count();
        let copies = placed.iter().map(|&device| {
            let limits = self.limits.limits();
            let share = self.share.and_then(|share| share.of(on(device)));
            let limits = ClientLimits {
                threads: share.or(limits.threads),
                ..limits
            };
            let device = Recorded::of(&devices[device]);
            Ok(Copy {
                device: device.name().to_owned(),
                variables: device.variables_over_own(environment, &limits)?,
            })
        });
        copies.collect()
    }
}

/// Checks that a device takes a client of the caller.
fn check(
    environment: &Environment,
    node: &Node,
    name: &str,
    variables: &Variables,
) -> Result<(), Obstacle> {
    let caller = |environment: &Environment, _: &Served| environment.caller;
    ready(environment, node, name, variables, Slot::Needed, caller)?;
    Ok(())
}

/// Binds this process, and the program that it becomes, to the CPUs near the device's GPU.
fn bind_near(environment: &Environment, served: &Served) -> Result<()> {
    let record = &served.record;
    let cpus = environment.host.cpus_near(&record.key.gpu);
    let cpus = cpus.map_err(|error| {
        let name = &record.name;
        CommandError::failed(format_args!(
            "cannot tell the CPUs near the GPU of {name}: {error}"
        ))
        .with_hint("leave out --bind, or bind the program with taskset")
    })?;
    let limits = Limits {
        cpus: Some(cpus.numbers().collect()),
        ..Limits::default()
    };
    Ok(limits.take()?)
}
