//! `mig-mps run`: the choice of a device, the wait until it takes a program, and the program.

mod copies;
mod guard;
mod near;
mod notes;
mod obstacle;
mod target;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use clap::{ArgGroup, Args};

use crate::client::{
    ClientOptions, ClientSlot, NoAccess, NotReady, Variables, check_ready, check_user_mapping,
    usable_gpus, visible_devices,
};
use crate::commands::args::duration;
use crate::commands::env::{find_served, observe_usable_gpus, warn_of_unbound_directories};
use crate::commands::{Context, warn_of_changeable_programs};
use crate::error::{CommandError, Result, usage_error};
use crate::failure::ExitStatus;
use crate::host::{
    self, Environment, Host, check_kernel, raise_client_files, reset_sigchld,
    restore_ignored_signals,
};
use crate::node::{Detail, Node, Served, observe, observe_records};
use crate::render::examples_and_statuses;
use crate::settings::Visible;
use crate::shared::private::{PrivateDevice, joint_device, parent_directories};
use crate::shared::program::{client_command, start_error};
use crate::shared::{
    LocalRank, NoRank, RankMapping, WantedDevices, check_not_only_joint, devices_for, free_devices,
};
use crate::state::DeviceKey;
use copies::{CopyShare, ProgramCopy};
use guard::{EndWithCaller, exit_with_code, run_beside, run_guarded};
use near::{Bind, bind_near, near_position};
use notes::{
    note_choice, note_listed, note_lost, note_not_bound, note_others, note_visible, warn_of_launch,
    warn_of_nccl,
};
use obstacle::{RunObstacle, check_not_stopped, find_free, wait_until};
use target::{ChooseArgs, RANKS, Target, program_variables};

/// Run a program as an MPS client of a device
///
/// First checks the device, because without its daemon CUDA would silently run the program outside MPS. Then mig-mps
/// replaces itself with the program, so signals and the exit status belong to the program.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[command(
    override_usage = "mig-mps run [OPTIONS] <DEVICE> -- <PROGRAM>...\n       mig-mps run [OPTIONS] <--any|--by-rank|-n N> [DEVICE] -- <PROGRAM>...\n       mig-mps run [OPTIONS] --private [--joint] [-n N] -- <PROGRAM>...",
    group(ArgGroup::new("ranked").multiple(true)),
    after_help = examples_and_statuses(&[
        ("mig-mps run 0.0 -- python train.py", "Run on device 0.0"),
        ("mig-mps run --any --min-memory 8G -- ./train", "Let mig-mps choose"),
        ("srun -n 8 mig-mps run --by-rank -- ./train", "Give each rank a device"),
    ], &[
        ("124", "the time of --wait is over"),
        ("125", "the program was not started, or --require-mps ended it"),
        ("126", "the program cannot be executed"),
        ("127", "the program was not found"),
    ])
)]
pub struct RunArgs {
    /// Device name, UUID, or unique prefix; with --any, --by-rank or -n, also a glob
    #[arg(required_unless_present_any = ["choosing", "private"])]
    device: Option<String>,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
    #[command(flatten)]
    choose: ChooseArgs,
    #[command(flatten)]
    wanted: WantedDevices,
    /// Distribute ranks: cycle (default), block or near
    #[arg(long, requires = "ranked", help_heading = RANKS, value_name = "ORDER", hide_possible_values = true)]
    map: Option<RankMapping>,
    /// Divide SMs among copies: none (default), even or half
    #[arg(
        long,
        requires = "copies",
        conflicts_with_all = ["threads", "any", "by_rank"],
        help_heading = RANKS,
        hide_possible_values = true
    )]
    share: Option<CopyShare>,
    #[command(flatten)]
    options: ClientOptions,
    /// Start private MPS daemons, and stop them when the program exits
    #[arg(
        long,
        help_heading = PRIVATE,
        group = "ranked",
        conflicts_with_all = ["device", "any", "profile", "min_memory", "product", "wait", "no_check"]
    )]
    private: bool,
    /// Start one private daemon for all GPUs of the program
    #[arg(
        long,
        requires = "private",
        // An option whose requirement conflicts with a word is not refused for lack of it.
        conflicts_with_all = ["device", "any", "by_rank", "map"],
        help_heading = PRIVATE
    )]
    joint: bool,
    /// Bind the program to CPUs: near (NUMA node of the GPU)
    #[arg(
        long,
        conflicts_with = "copies",
        value_name = "WHERE",
        hide_possible_values = true
    )]
    bind: Option<Bind>,
    /// Wait up to DURATION (such as 5m) if the device is full, serves another user, or recovers
    /// from a GPU fault
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// End the program if it computes outside MPS
    #[arg(long, conflicts_with = "copies")]
    require_mps: bool,
    /// Do not check the device first
    #[arg(long, conflicts_with = "wait")]
    no_check: bool,
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
    warn_of_unbound_directories();
    if args.private {
        return args.run_privately(environment);
    }
    if let Some(count) = args.requested_copies()? {
        let devices = wait_until(args.wait, || args.free_targets(environment, count))?;
        let copies = args.spread_copies(&devices, count)?;
        if let Some(first) = devices.first() {
            warn_of_launch(args, &first.served, None);
        }
        for target in &devices {
            note_listed(&target.served.record, target.gpus.len());
        }
        let code = copies::run_copies(environment, &args.command, &copies, EndWithCaller::No)?;
        return exit_with_code(code);
    }
    let (served, variables) = args.choose_device(environment)?;
    warn_of_launch(args, &served, None);
    note_visible(&served.record);
    note_listed(&served.record, variables.visible_gpus(&served.record).len());
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
            let target = free.remove(0);
            note_choice(&target.served.record.name, target.portion);
            let variables = target.variables(&self.options)?;
            return Ok((target.served, variables));
        }
        let node = observe_records(environment)?;
        let served = if self.choose.by_rank {
            self.device_by_rank(&node, environment)?
        } else {
            find_served(&node, self.device.as_deref().unwrap_or_default())?
        };
        let gpus = observe_usable_gpus(environment, &served.record)?;
        let variables = wait_until(self.wait, || {
            self.try_device(environment, &node, served, &gpus)
        })?;
        Ok((served.clone(), variables))
    }

    fn device_by_rank<'n>(&self, node: &'n Node, environment: &Environment) -> Result<&'n Served> {
        let wanted = self
            .wanted
            .with_names(node.resolve_words(self.device.as_slice())?);
        let devices = devices_for(node, &wanted, environment.caller);
        let all = node.served().count();
        let rank = LocalRank::from_environment(host::environment_variable)?;
        if devices.is_empty() {
            check_not_only_joint(node, &wanted, environment.caller)?;
        }
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
        let can_join = joint_device(&node, &devices).is_ok();
        let free = find_free(&node, &devices);
        let mut ranks = None;
        let joint;
        if self.joint {
            joint = joint_device(&node, &devices)?;
            note_lost(&node);
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
        // One of several devices is not replaced by another one.
        let has_one = ranks == Some(1) && devices.len() == 1;
        let free = if has_one { free } else { None };
        let joined = PrivateDevice::join_all(environment, &devices, free)?;
        if let Some(ranks) = ranks {
            note_others(&devices[0].name, ranks, count, can_join);
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
            // A private joint device has only the caller's GPUs.
            let gpus = device.served.record.gpu_positions();
            let (environment, served) = (&device.environment, &device.served);
            let variables = self.try_device(environment, &device.node, served, &gpus);
            first = first.or(Some(variables.map_err(|obstacle| obstacle.error)?));
            targets.push(Target::new(node, environment, served, gpus));
        }
        if let Some(device) = devices.first() {
            let run_dir = device.served.run_dir.path();
            let place = parent_directories()
                .into_iter()
                .find(|place| run_dir.starts_with(place));
            let place = place.as_deref().unwrap_or(run_dir);
            warn_of_launch(self, &device.served, Some(place));
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
        check_not_stopped(&node, &names)?;
        let wanted = self.wanted.with_names(names);
        let mut found = Vec::new();
        let mut failed = None;
        let free = free_devices(&node, &wanted, environment)
            .map_err(|none| RunObstacle::new(none.is_temporary(), none))?;
        for served in free {
            // A device that fails is passed over while another one does not.
            let tried = usable_gpus(&node, &served.record, host::environment_variable)
                .map_err(|error| RunObstacle::new(false, error))
                .and_then(|gpus| {
                    self.try_device(environment, &node, served, &gpus)?;
                    Ok(Target::new(&node, environment, served, gpus))
                });
            match tried {
                Ok(target) => found.push(target),
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
        gpus: &[usize],
    ) -> Result<Variables, RunObstacle> {
        let variables = program_variables(environment, served, gpus, &self.options)?;
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
            .map_err(|error| {
                // A change of the node may also stop other devices.
                let is_of_device = !matches!(
                    error,
                    NotReady::NotAttached { .. } | NotReady::NoAccess(NoAccess::Changing { .. })
                );
                let obstacle = self.run_obstacle(error);
                if is_of_device && self.takes_one_device() {
                    return obstacle.name_another_device(environment, node, &served.record);
                }
                obstacle
            })?;
        }
        Ok(variables)
    }

    /// True if the program is for the named device, and does not wait for it.
    fn takes_one_device(&self) -> bool {
        let chosen = &self.choose;
        let is_chosen = chosen.any || chosen.by_rank || chosen.copies.is_some() || self.private;
        !is_chosen && self.wait.is_none()
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
            // A client cannot have more than its device allows.
            let allowed = target.served.record.settings.active_thread_percentage;
            let share = share.map(|share| if share > allowed { allowed } else { share });
            options.threads = share.or(options.threads);
            let variables = target.variables(&options)?;
            copies::check_client_limit(&target.served, on_device, target.gpus.len())?;
            copies.push(ProgramCopy {
                device: target.served.record.name.clone(),
                variables,
            });
        }
        Ok(copies)
    }
}

/// The hint for a private daemon that takes no program.
const AFTER_THE_OTHERS: &str =
    "wait until the programs that share its private daemon have exited, then run the program again";

/// Without the check, a program could start on the node's first GPU outside MPS, if the daemon is gone.
fn unchecked_index(name: &str) -> CommandError {
    usage_error(format_args!(
        "--no-check cannot be combined with --visible index: without the daemon of device {name}, the program would \
         run on GPU 0"
    ))
    .with_hint("omit --no-check, or use --visible uuid")
}

/// The hint about `--private` for ranks where there are none.
const NO_RANK_HINT: &str = "start the program with mpirun, srun or torchrun; for a program without ranks, omit \
 --by-rank and --map";

/// The group of the options for private daemons.
const PRIVATE: &str = "Private daemons";
