//! The program's command line: completions and `--help` come from here.

use std::path::Path;
use std::process::ExitCode;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    check, completions, down, export, help, import, kill, launch, list, logs, man, plan, restart,
    set, status, up,
};
use crate::config::VARIABLES;
use crate::error::{CommandError, ExitStatus};
use crate::host::Environment;
use crate::host::{Host, LAUNCH, Phase, raise_open_files, raise_stack};
use crate::manual::TOPICS;
use crate::render::{self, Ui};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Yellow.on_default().bold())
    .usage(AnsiColor::Yellow.on_default().bold())
    .literal(AnsiColor::Green.on_default());

/// Partition NVIDIA GPUs with MIG and share every part with MPS, from one declarative file
#[derive(Debug, Parser)]
#[command(version, styles = STYLES, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands, a file each.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show GPUs and their MIG devices
    List(list::ListArgs),
    /// Show what `up` would do, and whom it would disturb
    ///
    /// Changes nothing: per GPU what lies on it now and then, every action with its reason, the
    /// clients that would lose their device, and what is in the way.
    Plan(plan::PlanArgs),
    /// Bring this node to what a profile asks for
    ///
    /// Shows the plan first, asks before anything that runs is disturbed, and reads the hardware
    /// back when done. Running it again does nothing.
    Up(up::UpArgs),
    /// Show MPS servers and their clients
    ///
    /// Also what computes outside MPS and why, MPS daemons that mig-mps has not started, and what is not as
    /// it should be, with what to do about it. Changes nothing and takes no lock.
    Status(status::StatusArgs),
    /// Show the logs of a device's daemon and server
    ///
    /// control.log and server.log by time. Lines that were faults (!!), refusals (!) or harmless although they do
    /// not read so (~) are marked and explained. Changes nothing and takes no lock.
    Logs(logs::LogsArgs),
    /// Change settings of a running daemon by hand
    ///
    /// They are for programs that start afterwards: clients keep what they started with. It is
    /// recorded, and `plan` shows what differs from the profile; `up` takes it back.
    Set(set::SetArgs),
    /// End a client's work on a device
    ///
    /// Its server drops the client's GPU work, and its CUDA calls fail with error 810. The process itself
    /// goes on and is sent a signal only if that is asked for; the other clients go on in any case.
    Kill(kill::KillArgs),
    /// End daemons and start them again as they are recorded
    ///
    /// For a daemon that has died, hangs, was orphaned, or whose fault does not clear. Its settings stay, those
    /// set by hand too. Refuses while there are clients, unless it may wait for them or end them. If a
    /// start fails, what was ended is brought back.
    Restart(restart::RestartArgs),
    /// End the daemons that `up` started
    ///
    /// Refuses while they have clients, unless it may wait for them or end them.
    Down(down::DownArgs),
    /// Say whether a profile fits, without a GPU
    ///
    /// Judges it as `up` would, on GPUs of the catalog: for the tests of a configuration repository.
    /// It needs no driver, no root and no run directory.
    Check(check::CheckArgs),
    /// Turn a configuration of mig-parted into a profile
    ///
    /// The same GPU and compute instances on the same GPUs. What a profile cannot say is refused, with
    /// its line.
    Import(import::ImportArgs),
    /// Print what this node has as a profile
    ///
    /// The geometry, the names and the MPS settings: up with that profile does nothing here.
    Export(export::ExportArgs),
    /// Print a shell's completion script
    Completions(completions::CompletionsArgs),
    /// Show the manual, or the help of a command
    Help(help::HelpArgs),
    /// Write manual pages, for packages
    #[command(hide = true)]
    Man(man::ManArgs),
}

/// The command line with everything that is made from other tables.
pub fn command() -> clap::Command {
    let list = |heading: &str, rows: Vec<(String, &str)>| {
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let lines: Vec<String> = rows
            .iter()
            .map(|(name, meaning)| format!("  {name:width$}  {meaning}"))
            .collect();
        format!("{heading}:\n{}", lines.join("\n"))
    };
    let environment = VARIABLES
        .iter()
        .map(|(name, meaning)| ((*name).to_owned(), *meaning))
        .collect();
    let statuses = ExitStatus::MEANINGS
        .iter()
        .map(|(status, meaning)| ((*status as u8).to_string(), *meaning))
        .collect();
    let mut program = Cli::command().after_long_help(format!(
        "{}\n\n{}",
        list("Environment", environment),
        list("Exit status", statuses)
    ));
    for command in program.get_subcommands_mut() {
        if let Some(topics) = topics_of(command.get_name()) {
            *command = std::mem::take(command).after_help(topics);
        }
    }
    program
}

/// The topics of the manual that a command's help refers to.
fn topics_of(command: &str) -> Option<String> {
    let topics = TOPICS
        .iter()
        .filter(|topic| topic.commands.contains(&command));
    let topics: Vec<String> = topics
        .map(|topic| format!("mig-mps help {}", topic.name))
        .collect();
    (!topics.is_empty()).then(|| format!("Manual: {}", topics.join(", ")))
}

/// Runs the program.
pub fn main() -> ExitCode {
    // Before the command line is read, which takes a good part of a small stack.
    if let Err(error) = raise_stack() {
        return failed(&error.into());
    }
    run()
}

fn failed(error: &CommandError) -> ExitCode {
    render::error(&error.to_string(), &error.hints);
    ExitCode::from(error.kind as u8)
}

fn run() -> ExitCode {
    if let Err(error) = Host::at(Path::new("/")).reset_signals() {
        render::note(&format!("cannot handle SIGCHLD and SIGXFSZ: {error}"));
    }
    // Before this process becomes anything that a daemon should not inherit. It is no subcommand of the
    // others': nobody is to find it in help or completions.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == LAUNCH)
    {
        let Err(error) = launch::run(launch::LaunchArgs::parse_from(std::env::args_os().skip(1)));
        return failed(&error);
    }
    let parsed = command()
        .try_get_matches()
        .and_then(|matches| <Cli as clap::FromArgMatches>::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        // Help and version are no errors; clap's usage errors exit with 2.
        Err(error) => error.exit(),
    };
    if let Err(error) = raise_open_files() {
        return failed(&error.into());
    }
    // Directories get the permissions they are made with, and daemons the umask they expect.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let environment = Environment::read();
    let ui = Ui::new();
    if let Err(error) = environment.interrupt.listen(&environment.host, interrupted) {
        ui.note(&format!(
            "Ctrl-C will end this at once, whatever it is doing: {error}"
        ));
    }
    let result = match &cli.command {
        Command::List(args) => list::run(args, &environment, &ui),
        Command::Plan(args) => plan::run(args, &environment, &ui),
        Command::Up(args) => up::run(args, &environment, &ui),
        Command::Status(args) => status::run(args, &environment, &ui),
        Command::Logs(args) => logs::run(args, &environment, &ui),
        Command::Set(args) => set::run(args, &environment, &ui),
        Command::Kill(args) => kill::run(args, &environment, &ui),
        Command::Restart(args) => restart::run(args, &environment, &ui),
        Command::Down(args) => down::run(args, &environment, &ui),
        Command::Check(args) => check::run(args, &ui),
        Command::Import(args) => import::run(args, &ui),
        Command::Export(args) => export::run(args, &environment, &ui),
        Command::Completions(args) => completions::run(args, &command(), &ui),
        Command::Help(args) => help::run(args, command(), &ui),
        Command::Man(args) => man::run(args, command()),
    };
    match result {
        Ok(status) => ExitCode::from(status as u8),
        Err(error) => failed(&error),
    }
}

/// What Ctrl-C means, depending on what it interrupts.
fn interrupted(phase: Phase) {
    match phase {
        Phase::Free => {
            render::restore_terminal();
            std::process::exit(ExitStatus::Interrupted as i32)
        }
        Phase::Changing => render::note("interrupted: stopping at the next safe point"),
        Phase::RollingBack => {
            render::note(
                "interrupted: what was done is being undone; that goes on until it is finished",
            );
        }
    }
}
