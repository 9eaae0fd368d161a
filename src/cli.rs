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
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands, a file each.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show GPUs and their MIG devices
    List(list::ListArgs),
    /// Show what `up` would do, and what it would disrupt
    ///
    /// Changes nothing. Shows the layout of each GPU now and then, every action with its reason, the
    /// clients that would lose their device, and what is in the way.
    Plan(plan::PlanArgs),
    /// Apply a profile to this node
    ///
    /// Shows the plan, asks before anything running is disrupted, and reads the hardware back afterwards.
    /// Applying the same profile again does nothing.
    Up(up::UpArgs),
    /// Show MPS servers and their clients
    ///
    /// Also shows programs outside MPS with the likely cause, MPS daemons that mig-mps did not start, and
    /// problems with their remedy. Changes nothing and takes no lock.
    Status(status::StatusArgs),
    /// Show the logs of a device's daemon and server
    ///
    /// Shows control.log and server.log by time. Faults (!!), refusals (!) and lines that are harmless
    /// although they do not read so (~) are marked and explained. Changes nothing and takes no lock.
    Logs(logs::LogsArgs),
    /// Change settings of a running daemon
    ///
    /// Programs that start afterwards get the new settings; clients keep what they started with. The
    /// change is recorded: `plan` shows how it differs from the profile, and `up` reverts it.
    Set(set::SetArgs),
    /// End a client's work on a device
    ///
    /// The server drops the client's GPU work, and its CUDA calls fail with error 810. The process goes on
    /// and gets a signal only with --signal. Other clients are not affected.
    Kill(kill::KillArgs),
    /// Restart daemons with their current settings
    ///
    /// For a daemon that died, hangs or lost its pipe directory, and for a fault that does not clear.
    /// Settings made with `set` stay. Refuses while there are clients, unless --drain or --force is given.
    /// If a start fails, the old daemon is started again.
    Restart(restart::RestartArgs),
    /// Stop the daemons that `up` started
    ///
    /// Refuses while they have clients, unless --drain or --force is given.
    Down(down::DownArgs),
    /// Check whether a profile fits, without a GPU
    ///
    /// Plans it as `up` would, for GPUs of the catalog: for the tests of a repository of profiles. Needs
    /// no driver, no root and no run directory.
    Check(check::CheckArgs),
    /// Convert a configuration of mig-parted to a profile
    ///
    /// Makes the same GPU and compute instances on the same GPUs. What a profile cannot express is refused,
    /// with its line.
    Import(import::ImportArgs),
    /// Print this node as a profile
    ///
    /// Prints the geometry, the names and the MPS settings; `up` with that profile does nothing here.
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
        let Err(error) = launch::run(&launch::LaunchArgs::parse_from(std::env::args_os().skip(1)));
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

/// Handles Ctrl-C, depending on what it interrupts.
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
