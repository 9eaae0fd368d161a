//! `mig-mps run`

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use super::Context;
use super::duration::duration;
use super::limit_args::LimitArgs;
use super::recorded::Recorded;
use crate::client::{Slot, Variables, ready, refuse_unmapped};
use crate::error::{CommandError, ExitStatus, Result};
use crate::host::{ChildSignal, Environment, give_open_files};
use crate::render::note;

/// Run a program as an MPS client of a device
///
/// First checks that the device takes the caller's programs now, and that CUDA makes them MPS clients: with
/// a wrong environment it runs them outside MPS and says nothing. Then mig-mps becomes the program, so that
/// signals and the exit status are the program's own.
#[derive(Args, Debug)]
#[command(override_usage = "mig-mps run [OPTIONS] <DEVICE> -- <COMMAND>...")]
pub struct RunArgs {
    /// Device: a name, a UUID, or a unique prefix of either
    device: String,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Wait up to DURATION, such as 5m, for other programs to make room
    ///
    /// For a device that serves another user now, is full, or recovers from a fault.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// Do not check the device
    #[arg(long, conflicts_with = "wait")]
    no_check: bool,
}

/// The first and the longest pause between two checks of a device that is waited for: each adds lines to its log.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Becomes the program. Returns only if that fails.
pub fn run(args: &RunArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let not_run = |error: CommandError| match error.kind {
        ExitStatus::WaitOver | ExitStatus::NotExecutable | ExitStatus::NotFound => error,
        _ => CommandError {
            kind: ExitStatus::NotRun,
            ..error
        },
    };
    match start(args, context.environment) {
        Ok(never) => match never {},
        Err(error) => Err(not_run(error)),
    }
}

fn start(args: &RunArgs, environment: &Environment) -> Result<Infallible> {
    give_open_files()?;
    refuse_unmapped(&environment.host)?;
    let device = Recorded::find(environment, &args.device)?;
    let variables = device.variables(environment, &args.limits.limits())?;
    if !args.no_check {
        check(args, environment, &device, &variables)?;
    }
    become_program(&args.command, &variables)
}

/// Checks that the device takes clients, and waits for that if asked.
fn check(
    args: &RunArgs,
    environment: &Environment,
    device: &Recorded,
    variables: &Variables,
) -> Result<()> {
    // A caller that ignores SIGCHLD would take the check's exit status.
    let _heeded = ChildSignal::heed()?;
    let until = args.wait.map(|wait| Instant::now() + wait);
    let mut pause = FIRST_PAUSE;
    let mut said = String::new();
    loop {
        let (node, name) = (&device.node, device.name());
        let user_of = |environment: &Environment, _: &_| environment.caller;
        let Err(error) = ready(environment, node, name, variables, Slot::Needed, user_of) else {
            return Ok(());
        };
        let left = match (&error, until) {
            (error, Some(until)) if error.is_passing() => {
                until.saturating_duration_since(Instant::now())
            }
            _ => return Err(error.into()),
        };
        if left.is_zero() {
            let kind = ExitStatus::WaitOver;
            return Err(CommandError::new(
                kind,
                format!("{error}, and the time of --wait is over"),
            ));
        }
        let cause = error.to_string();
        if cause != said {
            note(&format!("waiting: {cause}"));
            said = cause;
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn become_program(words: &[OsString], variables: &Variables) -> Result<Infallible> {
    let (program, arguments) = words.split_first().unzip();
    let program = program.map_or(OsStr::new(""), OsString::as_os_str);
    let mut command = Command::new(program);
    command.args(arguments.unwrap_or_default());
    command.envs(variables.set.iter().map(|(name, value)| (name, value)));
    for name in &variables.unset {
        command.env_remove(name);
    }
    let error = command.exec();
    let kind = match error.kind() {
        ErrorKind::NotFound => ExitStatus::NotFound,
        _ => ExitStatus::NotExecutable,
    };
    let program = program.display();
    Err(CommandError::new(
        kind,
        format!("cannot run {program}: {error}"),
    ))
}
