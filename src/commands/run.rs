//! `mig-mps run`: the choice of a device, the wait until it takes a program, and the program.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::Context;
use super::args::{duration, number};
use super::children::{self, Copy, CopyShare};
use super::env::{served_by, variables_over_own};
use crate::client::{
    ClientLimits, ClientSlot, LocalRank, Map, Variables, Wanted, devices_for, free_devices, ready,
    refuse_unmapped,
};
use crate::error::{CommandError, Result, failed};
use crate::failure::ExitStatus;
use crate::host::{
    Environment, Limits, MORE_PROCESSES, give_open_files, heed_child_signal, ignore_again,
    refuse_old_kernel,
};
use crate::node::{Detail, Node, Served, observe, observe_records};
use crate::render::note;
use crate::settings::DeviceSize;

/// Run a program as an MPS client of a device
///
/// First checks that the device takes the caller's programs now, and that CUDA makes them MPS clients: with
/// a wrong environment it runs them outside MPS and says nothing. Then mig-mps becomes the program, so that
/// signals and the exit status are the program's own.
#[derive(Args, Debug)]
#[command(
    override_usage = "mig-mps run [OPTIONS] <DEVICE> -- <PROGRAM>...\n       mig-mps run [OPTIONS] <--any|--by-rank|-n N> [DEVICE] -- <PROGRAM>..."
)]
pub struct RunArgs {
    /// Device: a name, a UUID, or a unique prefix of either; where a device is chosen, also a glob
    #[arg(required_unless_present = "choosing")]
    device: Option<String>,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
    #[command(flatten)]
    choose: ChooseArgs,
    #[command(flatten)]
    wanted: Wanted,
    /// Spread ranks over devices one after the other, or in blocks of neighbours [default: cycle]
    #[arg(long, requires = "by_rank")]
    map: Option<Map>,
    /// SMs for each copy: an equal part, twice that, or all, where n copies run on a device
    #[arg(long, requires = "copies", conflicts_with = "threads")]
    share: Option<CopyShare>,
    #[command(flatten)]
    limits: ClientLimits,
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
    start(args, context.environment).map_err(|error| match error.status {
        ExitStatus::WaitOver | ExitStatus::NotExecutable | ExitStatus::NotFound => error,
        _ => CommandError {
            status: ExitStatus::NotRun,
            ..error
        },
    })
}

fn start(args: &RunArgs, environment: &Environment) -> Result<ExitStatus> {
    refuse_old_kernel()?;
    give_open_files()?;
    refuse_unmapped(&environment.host)?;
    // A caller that ignores SIGCHLD would take the exit status of the checks.
    heed_child_signal()?;
    if let Some(count) = args.choose.copies {
        let count = count as usize;
        children::refuse_too_many(count)?;
        let devices = wait_until(args.wait, || args.free(environment, count))?;
        let copies = args.spread(environment, &devices, count)?;
        return children::run_copies(environment, &args.command, &copies);
    }
    let (served, variables) = args.one(environment)?;
    if let Some(Bind::Near) = args.bind {
        bind_near(environment, &served)?;
    }
    if args.require_mps {
        return children::run_guarded(environment, &served, &args.command, &variables);
    }
    let mut command = command(&args.command, &variables);
    ignore_again(&mut command);
    let error = command.exec();
    Err(not_started(&command, &error))
}

impl RunArgs {
    /// Returns the device that the program runs on, with its environment.
    fn one(&self, environment: &Environment) -> Result<(Served, Variables)> {
        if self.choose.any {
            let mut free = wait_until(self.wait, || self.free(environment, 1))?;
            let (served, _) = free.remove(0);
            let variables = variables_over_own(&served, environment, &self.limits)?;
            return Ok((served, variables));
        }
        let node = observe_records(environment)?;
        let served = if self.choose.by_rank {
            self.by_rank(&node, environment)?
        } else {
            served_by(&node, self.device.as_deref().unwrap_or_default())?
        };
        let variables = wait_until(self.wait, || self.try_device(environment, &node, served))?;
        Ok((served.clone(), variables))
    }

    fn by_rank<'n>(&self, node: &'n Node, environment: &Environment) -> Result<&'n Served> {
        let wanted = self.wanted.among(node.resolve(self.device.as_slice())?);
        let devices = devices_for(node, &wanted, environment.caller);
        let rank = LocalRank::of(|name| std::env::var(name).ok())?;
        let position = rank.device(
            devices.len(),
            node.served().count(),
            self.map.unwrap_or(Map::Cycle),
        )?;
        Ok(devices[position])
    }

    /// Returns at least one and at most `most` devices that take a client now, the best ones first, and their sizes.
    fn free(
        &self,
        environment: &Environment,
        most: usize,
    ) -> Result<Vec<(Served, DeviceSize)>, RunObstacle> {
        let node = observe(environment, Detail::STATUS).map_err(CommandError::from)?;
        let names = node
            .resolve(self.device.as_slice())
            .map_err(CommandError::from)?;
        let wanted = self.wanted.among(names);
        let mut found = Vec::new();
        let mut failed = None;
        let free = free_devices(&node, &wanted, environment.caller)
            .map_err(|none| RunObstacle::new(none.is_passing(), none))?;
        for served in free {
            // A device that fails is passed over while another one does not.
            match self.try_device(environment, &node, served) {
                Ok(_) => {
                    let device = node.device(&served.record.name);
                    let size = device.and_then(|device| node.size_of(device));
                    found.push((served.clone(), size.unwrap_or_default()));
                }
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

    /// Checks that the program can run on a device with its limits, and unless `--no-check` is given, that the device takes
    /// it now. Returns its environment there.
    fn try_device(
        &self,
        environment: &Environment,
        node: &Node,
        served: &Served,
    ) -> Result<Variables, RunObstacle> {
        let variables = variables_over_own(served, environment, &self.limits)?;
        if !self.no_check {
            ready(
                environment,
                node,
                &served.record.name,
                &variables,
                ClientSlot::Needed,
                |environment, _| environment.caller,
            )
            .map_err(|error| RunObstacle::new(error.is_passing(), error))?;
        }
        Ok(variables)
    }

    /// Spreads copies over devices, each to the one with the fewest clients.
    fn spread(
        &self,
        environment: &Environment,
        devices: &[(Served, DeviceSize)],
        count: usize,
    ) -> Result<Vec<Copy>> {
        let clients: Vec<usize> = devices
            .iter()
            .map(|(served, _)| served.clients.listed().len())
            .collect();
        let placed = children::spread(&clients, count);
        let mut copies = Vec::new();
        for &position in &placed {
            let on_device = placed.iter().filter(|other| **other == position).count();
            let (served, size) = &devices[position];
            let mut limits = self.limits;
            if let Some(share) = self.share.and_then(|share| share.of(on_device, *size)) {
                limits.threads = Some(share);
            }
            copies.push(Copy {
                device: served.record.name.clone(),
                variables: variables_over_own(served, environment, &limits)?,
            });
        }
        Ok(copies)
    }
}

/// Binds this process, and the program that it becomes, to the CPUs near the device's GPU.
fn bind_near(environment: &Environment, served: &Served) -> Result<()> {
    let record = &served.record;
    let cpus = environment
        .host
        .cpus_near(&record.key.gpu)
        .map_err(|error| {
            let name = &record.name;
            failed(format_args!(
                "cannot tell the CPUs near the GPU of {name}: {error}"
            ))
            .hint("leave out --bind, or bind the program with taskset")
        })?;
    let limits = Limits {
        cpus: Some(cpus.numbers().collect()),
        ..Limits::default()
    };
    Ok(limits.take()?)
}

/// The most copies that one command runs of a program.
const MOST_COPIES: u32 = 1024;

/// The ways to choose a device, of which a command line has one at most.
#[derive(Args, Debug)]
#[group(id = "choosing", multiple = false)]
pub struct ChooseArgs {
    /// Take any device that takes the program now: fewest clients, then most free memory
    #[arg(long)]
    pub any: bool,
    /// Take the device of this process's rank on the node, under MPI or in a Slurm step
    #[arg(long)]
    pub by_rank: bool,
    /// Run N copies of the program, spread over the devices that take it now
    #[arg(short = 'n', long, value_name = "N", value_parser = number::<1, MOST_COPIES>)]
    pub copies: Option<u32>,
}

/// A reason why a program cannot start now.
pub struct RunObstacle {
    /// True if it ends when other programs do.
    is_passing: bool,
    error: CommandError,
}

impl RunObstacle {
    fn new(is_passing: bool, error: impl Into<CommandError>) -> Self {
        let error = error.into();
        Self { is_passing, error }
    }
}

impl From<CommandError> for RunObstacle {
    fn from(error: CommandError) -> Self {
        Self::new(false, error)
    }
}

/// The first and the longest pause between two attempts: each adds lines to a daemon's log.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Attempts something until it succeeds, or the time of `--wait` is over, as long as the obstacle may pass. Without a time,
/// nothing is waited for.
fn wait_until<T>(
    wait: Option<Duration>,
    attempt: impl Fn() -> Result<T, RunObstacle>,
) -> Result<T> {
    let until = wait.map(|wait| Instant::now() + wait);
    let mut reported = String::new();
    let mut pause = FIRST_PAUSE;
    loop {
        let obstacle = match attempt() {
            Ok(done) => return Ok(done),
            Err(obstacle) => obstacle,
        };
        let until = match until {
            Some(until) if obstacle.is_passing => until,
            _ => return Err(obstacle.error),
        };
        let left = until.saturating_duration_since(Instant::now());
        let cause = obstacle.error.to_string();
        if left.is_zero() {
            let what = format!("the time of --wait is over: {cause}");
            let error = CommandError::new(ExitStatus::WaitOver, what);
            return Err(error.hint("wait longer, or use another device: mig-mps status"));
        }
        if reported != cause {
            note(&format!("waiting: {cause}"));
            reported = cause;
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns the program with the environment of a device's clients.
pub fn command(words: &[OsString], variables: &Variables) -> Command {
    let (program, arguments) = words.split_first().unzip();
    let mut command = Command::new(program.map_or(OsStr::new(""), OsString::as_os_str));
    command.args(arguments.unwrap_or_default());
    command.envs(variables.set.iter().map(|(name, value)| (name, value)));
    for name in &variables.unset {
        command.env_remove(name);
    }
    command
}

/// Returns the error for a program that does not start, as shells have it.
pub fn not_started(command: &Command, error: &io::Error) -> CommandError {
    if error.kind() == ErrorKind::WouldBlock {
        let what = format!("cannot run {}: {error}", command.get_program().display());
        return CommandError::new(ExitStatus::NotRun, what).hint(MORE_PROCESSES);
    }
    let kind = match error.kind() {
        ErrorKind::NotFound => ExitStatus::NotFound,
        _ => ExitStatus::NotExecutable,
    };
    let program = command.get_program();
    let shown = program.display();
    let path = Path::new(program);
    let hint = match kind {
        ExitStatus::NotFound if path.components().count() > 1 => {
            "check the path, and the interpreter in the first line of a script".to_owned()
        }
        ExitStatus::NotFound => "it is not in PATH: install it, or give its path".to_owned(),
        _ if path.is_dir() => "it is a directory: name a program in it".to_owned(),
        _ => format!("chmod +x {shown}, if it is a program"),
    };
    CommandError::new(kind, format!("cannot run {shown}: {error}")).hint(hint)
}
