//! `mig-mps run`: the choice of a device, the wait until it takes a program, and the program.

mod copies;
mod guard;
mod near;
mod notes;
mod obstacle;
mod target;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};

use crate::client::{
    ClientOptions, ClientSlot, NoAccess, NotReady, Variables, check_ready, check_user_mapping,
    missing_engine_options, name_another_device, visible_devices,
};
use crate::commands::args::{duration, number};
use crate::commands::env::{find_served, gpus_of_caller, variables_with_caller_limits};
use crate::commands::{Context, warn_of_changeable_programs};
use crate::error::{CommandError, Result, command_error, usage_error};
use crate::failure::ExitStatus;
use crate::host::{
    self, Environment, Host, Limits, check_kernel, raise_client_files, reset_sigchld,
    restore_ignored_signals,
};
use crate::node::{Detail, Node, Served, observe, observe_records};
use crate::render::note;
use crate::settings::Visible;
use crate::shared::private::{PrivateDevice, joint_device, parent_directories};
use crate::shared::program::{client_command, start_error};
use crate::shared::{LocalRank, NoRank, RankMapping, WantedDevices, devices_for, free_devices};
use crate::state::DeviceKey;
use copies::{CopyShare, ProgramCopy};
use guard::{EndWithCaller, exit_with_code, run_beside, run_guarded};
use near::near_position;
use notes::{note_choice, note_listed, note_not_bound, note_others, note_visible, warn_of_nccl};
use obstacle::{RunObstacle, wait_until};
use target::Target;

/// Run a program as an MPS client of a device
///
/// First checks that the device takes the caller's programs now, and that CUDA makes them MPS clients: with
/// a wrong environment it runs them outside MPS and says nothing. Then mig-mps becomes the program, so that
/// signals and the exit status are the program's own.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[command(
    override_usage = "mig-mps run [OPTIONS] <DEVICE> -- <PROGRAM>...\n       mig-mps run [OPTIONS] <--any|--by-rank|-n N> [DEVICE] -- <PROGRAM>...\n       mig-mps run [OPTIONS] --private [--joint] [-n N] -- <PROGRAM>...",
    group(ArgGroup::new("ranked").multiple(true))
)]
pub struct RunArgs {
    /// Device: a name, a UUID, or a unique prefix of either; where a device is chosen, also a glob
    #[arg(required_unless_present_any = ["choosing", "private"])]
    device: Option<String>,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
    #[command(flatten)]
    choose: ChooseArgs,
    #[command(flatten)]
    wanted: WantedDevices,
    /// Spread ranks one after the other, in blocks, or by their CPUs [default: cycle]
    #[arg(long, requires = "ranked")]
    map: Option<RankMapping>,
    /// SMs for each copy: an equal part, twice that, or all, where n copies run on a device
    #[arg(long, requires = "copies", conflicts_with_all = ["threads", "any", "by_rank"])]
    share: Option<CopyShare>,
    #[command(flatten)]
    options: ClientOptions,
    /// Start MPS daemons of the caller's own for this program alone, and end them with it
    ///
    /// For the devices that the caller's environment names, or those that Slurm has given to the job; without root. The
    /// ranks of a program on a node share the daemons, each on the device of its rank.
    #[arg(
        long,
        group = "ranked",
        conflicts_with_all = ["device", "any", "profile", "min_memory", "product", "wait", "no_check"]
    )]
    private: bool,
    /// Start one daemon over all GPUs that the caller's environment names, for a program that uses several
    ///
    /// Every program, and each rank, sees all of them. For whole GPUs of one product.
    #[arg(long, requires = "private", conflicts_with_all = ["by_rank", "map"])]
    joint: bool,
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
    run_program(args, context.environment).map_err(|error| match error.status {
        ExitStatus::WaitOver | ExitStatus::NotExecutable | ExitStatus::NotFound => error,
        _ => CommandError {
            status: ExitStatus::NotRun,
            ..error
        },
    })
}

fn run_program(args: &RunArgs, environment: &Environment) -> Result<ExitStatus> {
    check_kernel()?;
    raise_client_files()?;
    check_user_mapping(&environment.host)?;
    // A caller that ignores SIGCHLD would take the exit status of the checks.
    reset_sigchld()?;
    if args.private {
        return args.run_privately(environment);
    }
    if let Some(count) = args.requested_copies()? {
        let devices = wait_until(args.wait, || args.free_targets(environment, count))?;
        let copies = args.spread_copies(&devices, count)?;
        if let Some(first) = devices.first() {
            args.note_container(&first.served, None);
        }
        let code = copies::run_copies(environment, &args.command, &copies, EndWithCaller::No)?;
        return exit_with_code(code);
    }
    let (served, variables) = args.choose_device(environment)?;
    args.note_container(&served, None);
    if served.record.key.is_joint() {
        note_listed(&served.record, variables.visible_gpus(&served.record).len());
    } else {
        note_visible(&served.record.name);
    }
    if let Some(Bind::Near) = args.bind {
        bind_near(environment, &served)?;
    }
    if args.require_mps {
        let (words, bound) = (&args.command, EndWithCaller::No);
        let code = run_guarded(environment, &served, words, &variables, bound)?;
        return exit_with_code(code);
    }
    let mut command = client_command(&args.command, &variables);
    restore_ignored_signals(&mut command);
    let error = command.exec();
    Err(start_error(&command, error))
}

impl RunArgs {
    /// Returns the device that the program runs on, with its environment.
    fn choose_device(&self, environment: &Environment) -> Result<(Served, Variables)> {
        if self.choose.any {
            let mut free = wait_until(self.wait, || self.free_targets(environment, 1))?;
            let Target {
                served, portion, ..
            } = free.remove(0);
            note_choice(&served.record.name, portion);
            let variables = self.variables_on(&served, environment, &self.options)?;
            return Ok((served, variables));
        }
        let node = observe_records(environment)?;
        let served = if self.choose.by_rank {
            self.device_by_rank(&node, environment)?
        } else {
            find_served(&node, self.device.as_deref().unwrap_or_default())?
        };
        self.check_joint_name(&node, served)?;
        let variables = wait_until(self.wait, || self.try_device(environment, &node, served))?;
        Ok((served.clone(), variables))
    }

    /// Refuses the name of one GPU for a joint device: the program would get all its GPUs.
    fn check_joint_name(&self, node: &Node, served: &Served) -> Result<()> {
        let (name, word) = (&served.record.name, self.device.as_deref());
        let is_of_gpu = |word: &str| word != name && node.gpu_index(word).is_ok();
        match word {
            Some(word) if served.record.key.is_joint() && is_of_gpu(word) => {
                let error = usage_error(format_args!("{word} is a GPU of the joint device {name}"));
                Err(error.with_hint(format!(
                    "mig-mps run {name} -- PROGRAM uses all its GPUs, or those in CUDA_VISIBLE_DEVICES"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Says what a container needs, in which programs would run outside MPS. A private daemon is below this directory.
    fn note_container(&self, served: &Served, private: Option<&Path>) {
        let name = private.is_none().then_some(served.record.name.as_str());
        let directory = private.unwrap_or(served.run_dir.path());
        if let Some((engine, missing)) = missing_engine_options(&self.command, name, directory) {
            note(&format!(
                "A container of {engine} does not have {}, and its programs run outside MPS without it. Add {missing}",
                directory.display()
            ));
        }
    }

    fn device_by_rank<'n>(&self, node: &'n Node, environment: &Environment) -> Result<&'n Served> {
        let wanted = self
            .wanted
            .with_names(node.resolve_words(self.device.as_slice())?);
        let devices = devices_for(node, &wanted, environment.caller);
        let all = node.served().count();
        let rank = LocalRank::from_environment(host::environment_variable)?;
        let keys: Vec<&DeviceKey> = devices.iter().map(|served| &served.record.key).collect();
        Ok(devices[self.rank_position(&environment.host, rank, &keys, all)?])
    }

    /// Returns the position of a rank's device among these of `all`.
    fn rank_position(
        &self,
        host: &Host,
        rank: LocalRank,
        devices: &[&DeviceKey],
        all: usize,
    ) -> Result<usize> {
        let map = self.map.unwrap_or(RankMapping::Cycle);
        let mut position = rank.device_index(devices.len(), all, map)?;
        if map == RankMapping::Near {
            match near_position(host, rank, devices)? {
                Some(near) => position = near,
                None => note_not_bound(rank),
            }
        }
        if std::env::vars_os().any(|(name, _)| name.to_string_lossy().contains("NCCL")) {
            warn_of_nccl(rank, devices, map);
        }
        Ok(position)
    }

    /// Runs the program, or its copies, on devices whose daemons run for these alone, and ends the daemons afterwards.
    fn run_privately(&self, environment: &Environment) -> Result<ExitStatus> {
        warn_of_changeable_programs(environment);
        let copies = self.requested_copies()?;
        let node = observe(environment, Detail::GEOMETRY)?;
        let mut devices = visible_devices(&node, host::environment_variable)?;
        let count = devices.len();
        let mut ranks = None;
        let joint;
        if self.joint {
            joint = joint_device(&node, &devices)?;
            devices = vec![&joint];
        } else if let Some(count) = copies {
            devices.truncate(count);
        } else {
            let position = match LocalRank::from_environment(host::environment_variable) {
                Err(NoRank::NotSet) if self.map.is_none() && !self.choose.by_rank => {
                    ranks = Some(1);
                    0
                }
                Err(NoRank::NotSet) => {
                    let error = CommandError::from(NoRank::NotSet);
                    let hints = vec![NO_RANK_HINT.to_owned()];
                    return Err(CommandError { hints, ..error });
                }
                rank => {
                    let rank = rank?;
                    let keys: Vec<&DeviceKey> = devices.iter().map(|device| &device.key).collect();
                    ranks = rank.ranks_if_first();
                    self.rank_position(&environment.host, rank, &keys, keys.len())?
                }
            };
            devices = vec![devices[position]];
        }
        let joined = PrivateDevice::join_all(environment, &devices)?;
        if let Some(ranks) = ranks {
            note_others(&devices[0].name, ranks, count);
        }
        let code = self.run_on(environment, &node, &joined, copies);
        // Before this process ends, which drops nothing.
        drop(joined);
        exit_with_code(code?)
    }

    /// Runs the program on the first private device, or copies on all. Returns the exit status.
    fn run_on(
        &self,
        environment: &Environment,
        node: &Node,
        devices: &[PrivateDevice],
        copies: Option<usize>,
    ) -> Result<i32> {
        let (words, bound) = (&self.command, EndWithCaller::Yes);
        let mut targets = Vec::new();
        let mut first = None;
        for device in devices {
            let variables = self.try_device(&device.environment, &device.node, &device.served);
            first = first.or(Some(variables.map_err(|obstacle| obstacle.error)?));
            targets.push(Target::new(node, &device.environment, &device.served));
        }
        if let Some(device) = devices.first() {
            let run_dir = device.served.run_dir.path();
            let place = parent_directories()
                .into_iter()
                .find(|place| run_dir.starts_with(place));
            self.note_container(&device.served, place.as_deref());
        }
        if let Some(count) = copies {
            let copies = self.spread_copies(&targets, count)?;
            return copies::run_copies(environment, words, &copies, bound);
        }
        let (Some(variables), Some(device)) = (first, devices.first()) else {
            return Ok(0);
        };
        if let Some(Bind::Near) = self.bind {
            bind_near(environment, &device.served)?;
        }
        if self.require_mps {
            return run_guarded(
                &device.environment,
                &device.served,
                words,
                &variables,
                bound,
            );
        }
        run_beside(environment, words, &variables)
    }

    /// Returns the number of copies that were asked for, if this process may open enough files.
    fn requested_copies(&self) -> Result<Option<usize>> {
        let Some(copies) = self.choose.copies else {
            return Ok(None);
        };
        let copies = copies as usize;
        copies::check_open_files(copies)?;
        Ok(Some(copies))
    }

    /// Returns at least one and at most `most` devices that take a client now, the best ones first.
    fn free_targets(
        &self,
        environment: &Environment,
        most: usize,
    ) -> Result<Vec<Target>, RunObstacle> {
        let node = observe(environment, Detail::STATUS).map_err(CommandError::from)?;
        let names = node
            .resolve_words(self.device.as_slice())
            .map_err(CommandError::from)?;
        for served in names.iter().filter_map(|name| node.served_named(name)) {
            self.check_joint_name(&node, served)?;
        }
        let wanted = self.wanted.with_names(names);
        let mut found = Vec::new();
        let mut failed = None;
        let free = free_devices(&node, &wanted, environment)
            .map_err(|none| RunObstacle::new(none.is_temporary(), none))?;
        for served in free {
            // A device that fails is passed over while another one does not.
            match self.try_device(environment, &node, served) {
                Ok(_) => found.push(Target::new(&node, environment, served)),
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
        let variables = self.variables_on(served, environment, &self.options)?;
        if self.no_check
            && self.options.visible_or_default(&served.record.settings) == Visible::Index
        {
            return Err(unchecked_index(&served.record.name).into());
        }
        if !self.no_check {
            check_ready(
                environment,
                node,
                &served.record.name,
                &variables,
                ClientSlot::Needed,
                |environment, _| environment.caller,
            )
            .map_err(|error| match self.wait {
                None => name_another_device(environment, node, error),
                Some(_) => error,
            })
            .map_err(|error| self.run_obstacle(error))?;
        }
        Ok(variables)
    }

    /// Returns the environment of a program on a device. A private joint device has the caller's GPUs already.
    fn variables_on(
        &self,
        served: &Served,
        environment: &Environment,
        options: &ClientOptions,
    ) -> Result<Variables> {
        let gpus = if self.private {
            served.record.gpu_positions()
        } else {
            gpus_of_caller(environment, &served.record)?
        };
        variables_with_caller_limits(served, environment, options, &gpus)
    }

    /// Returns the obstacle of a device that takes no program. No command starts a private daemon again.
    fn run_obstacle(&self, error: NotReady) -> RunObstacle {
        let is_of_daemon = matches!(
            error,
            NotReady::NoAccess(
                NoAccess::Down { .. }
                    | NoAccess::NotServed { .. }
                    | NoAccess::Faulty { .. }
                    | NoAccess::Full { .. }
            )
        );
        let obstacle = RunObstacle::new(error.is_temporary(), error);
        if self.private && is_of_daemon {
            let hints = vec![AFTER_THE_OTHERS.to_owned()];
            let error = CommandError {
                hints,
                ..obstacle.error
            };
            return RunObstacle { error, ..obstacle };
        }
        obstacle
    }

    /// Spreads copies over devices, each to the one with the fewest clients.
    fn spread_copies(&self, devices: &[Target], count: usize) -> Result<Vec<ProgramCopy>> {
        let clients: Vec<usize> = devices
            .iter()
            .map(|target| target.served.clients.as_slice().len())
            .collect();
        let placed = copies::place_copies(&clients, count);
        let mut copies = Vec::new();
        for &position in &placed {
            let on_device = placed.iter().filter(|other| **other == position).count();
            let target = &devices[position];
            let mut options = self.options;
            let share = self
                .share
                .and_then(|share| share.thread_percentage(on_device, target.size));
            options.threads = share.or(options.threads);
            let (served, environment) = (&target.served, &target.environment);
            let variables = self.variables_on(served, environment, &options)?;
            let gpus = variables.visible_gpus(&served.record).len();
            copies::check_client_limit(served, on_device, gpus)?;
            copies.push(ProgramCopy {
                device: served.record.name.clone(),
                variables,
            });
        }
        Ok(copies)
    }
}

/// The hint for a private daemon that takes no program.
const AFTER_THE_OTHERS: &str =
    "wait until the programs that share its private daemon have ended, and run it again";

/// Without the check, a program could start on the node's first GPU outside MPS, if the daemon is gone.
fn unchecked_index(name: &str) -> CommandError {
    usage_error(format_args!(
        "a program on {name} gets CUDA_VISIBLE_DEVICES=0, and does not start unchecked: where the daemon is gone, that is the node's first GPU"
    ))
    .with_hint("leave out --no-check, or use --visible uuid")
}

/// Binds this process, and the program that it becomes, to the CPUs near the device's GPU.
fn bind_near(environment: &Environment, served: &Served) -> Result<()> {
    let record = &served.record;
    let cpus = environment
        .host
        .cpus_near(record.key.gpus())
        .map_err(|error| {
            let name = &record.name;
            command_error(format_args!(
                "cannot tell the CPUs near the GPU of {name}: {error}"
            ))
            .with_hint("leave out --bind, or bind the program with taskset")
        })?;
    let limits = Limits {
        cpus: Some(cpus.numbers().collect()),
        ..Limits::default()
    };
    Ok(limits.apply()?)
}

/// The hint about `--private` for ranks where there are none.
const NO_RANK_HINT: &str = "start it with mpirun, srun or torchrun; for a program without ranks, leave --by-rank and --map out";

/// The most copies that one command runs of a program.
const MOST_COPIES: u32 = 1024;

/// The ways to choose a device, of which a command line has one at most.
#[derive(Args, Debug)]
#[group(id = "choosing", multiple = false)]
pub struct ChooseArgs {
    /// Take any device that takes the program now: one for this user alone, then the fewest clients, then
    /// the most memory for the program
    #[arg(long)]
    pub any: bool,
    /// Take the device of this process's rank on the node, under MPI or in a Slurm step
    #[arg(long, group = "ranked")]
    pub by_rank: bool,
    /// Run N copies of the program, spread over the devices that take it now
    #[arg(short = 'n', long, value_name = "N", value_parser = number::<1, MOST_COPIES>)]
    pub copies: Option<u32>,
}
