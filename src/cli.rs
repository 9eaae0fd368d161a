//! The program's command line: completions and `--help` come from here.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::args::own_arguments;
use crate::commands::schema::Document;
use crate::commands::{Context, add_way_back_hint, known_devices, warn_of_changeable_programs};
use crate::config::{LOG, VARIABLES};
use crate::error::{CommandError, ErrorContext as _, Result};
use crate::failure::ExitStatus;
use crate::features::advise::Advice;
use crate::features::check::{CheckDocument, ModelsDocument};
use crate::features::compare::Comparison;
use crate::features::completion::{Sources, complete};
use crate::features::convert::manifest;
use crate::features::doctor::DoctorDocument;
use crate::features::job::JobDocument;
#[cfg(feature = "kubernetes")]
use crate::features::kubernetes::{self, DevicePluginArgs};
use crate::features::logs::LogLineDocument;
use crate::features::manual::{HelpSubjects, TOPICS, first_screen, overview, setting_meaning};
use crate::host::{
    self, Environment, HELPERS, Host, Phase, check_kernel, exit_immediately, raise_open_files,
    raise_stack,
};
use crate::internal_commands::InternalCommand;
use crate::profile::profile_schema;
use crate::render::json::{
    ChangeDocument, EnvDocument, ErrorDocument, ListDocument, Message, PlanDocument,
    VerifyDocument, schema_of,
};
use crate::render::{self, OTHER_OPTIONS, STYLES, status::Status, with_help_form, with_topics};

/// Partition NVIDIA GPUs with MIG and share each partition through MPS
#[derive(Debug, Parser)]
#[command(version, styles = STYLES, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub globals: Globals,
}

/// The options of every subcommand.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Globals {
    /// Log NVML calls, MPS commands and child processes
    #[arg(short, long, global = true, conflicts_with = "quiet", help_heading = OTHER_OPTIONS)]
    pub verbose: bool,
    /// Print only errors and the requested output
    #[arg(short, long, global = true, help_heading = OTHER_OPTIONS)]
    pub quiet: bool,
    /// Print help
    #[arg(short, long, global = true, action = ArgAction::HelpShort, help_heading = OTHER_OPTIONS)]
    pub help: Option<bool>,
}

impl Command {
    /// True if this process is to become a program of the user. Signals, limits and umask are then left as they are.
    fn is_run(&self) -> bool {
        matches!(self, Self::Run(_))
    }

    /// False for what is made from files alone, as where packages are built.
    fn needs_node(&self) -> bool {
        !matches!(
            self,
            Self::Advise(_)
                | Self::Check(_)
                | Self::Import(_)
                | Self::Profiles(_)
                | Self::Schema(_)
                | Self::Explain(_)
                | Self::Help(_)
                | Self::Completions(_)
                | Self::Man(_)
        )
    }
}

/// Makes the subcommands from a row each: its name, its variant, its module, its arguments.
macro_rules! subcommands {
    ($($task:literal: { $($name:ident $variant:ident $($module:ident)::+ $args:ident)* })*) => {
        /// The subcommands. The documentation of their arguments is their help.
        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($($variant(crate::$($module::)+$args),)*)*
        }

        /// The subcommands by task.
        const TASKS: &[(&str, &[&str])] = &[$(($task, &[$(stringify!($name)),*])),*];

        impl Command {
            fn run(&self, context: &Context<'_>) -> Result<ExitStatus> {
                match self {
                    $($(Self::$variant(args) => crate::$($module::)+run(args, context),)*)*
                }
            }

            /// Makes the subcommand of this name alone, with what its own arguments say of it.
            fn build_subcommand(name: &str) -> Option<clap::Command> {
                $($(if name == stringify!($name) {
                    let command = clap::Command::new(stringify!($name));
                    return Some(crate::$($module::)+$args::augment_args(command));
                })*)*
                None
            }
        }
    };
}

subcommands! {
    "Look at a node": {
        list List commands::list ListArgs
        status Status commands::status StatusArgs
        logs Logs features::logs LogsArgs
        doctor Doctor features::doctor DoctorArgs
        selftest Selftest features::selftest SelftestArgs
    }
    "Run programs": {
        run Run features::run RunArgs
        env Env commands::env EnvArgs
        cdi Cdi commands::cdi CdiArgs
        verify Verify commands::verify VerifyArgs
        compare Compare features::compare CompareArgs
    }
    "Change a node": {
        plan Plan commands::plan PlanArgs
        up Up commands::up UpArgs
        set Set commands::set SetArgs
        restart Restart commands::restart RestartArgs
        start Start commands::start StartArgs
        heal Heal commands::heal HealArgs
        kill Kill commands::kill KillArgs
        down Down commands::down DownArgs
    }
    "Write profiles": {
        init Init features::advise::init InitArgs
        advise Advise features::advise AdviseArgs
        check Check features::check CheckArgs
        import Import features::convert::import ImportArgs
        export Export features::convert::export ExportArgs
        profiles Profiles features::profiles ProfilesArgs
    }
    "Integrate with other software": {
        systemd Systemd features::systemd SystemdArgs
        metrics Metrics features::metrics MetricsArgs
        slurm Slurm features::slurm SlurmArgs
        job Job features::job JobArgs
    }
    "Learn more": {
        explain Explain features::doctor::explain ExplainArgs
        help Help features::manual HelpArgs
    }
    "For packages and editors": {
        schema Schema commands::schema SchemaArgs
        completions Completions features::completion CompletionsArgs
        man Man features::manual::pages ManArgs
    }
}

/// Makes the documents that have a schema from a row each: its name, what it is, and its schema.
macro_rules! documents {
    ($($name:literal $about:literal $schema:expr;)*) => {
        const DOCUMENTS: &[Document] = &[$(Document { name: $name, about: $about, schema: $schema }),*];
    };
}

documents! {
    "profile" "A profile file, in TOML" profile_schema;
    "list" "The output of list --json" schema_of::<ListDocument>;
    "status" "The output of status --json" schema_of::<Status>;
    "logs" "A line of the output of logs --json" schema_of::<LogLineDocument<'_>>;
    "doctor" "The output of doctor --json" schema_of::<DoctorDocument>;
    "plan" "The output of plan --json" schema_of::<PlanDocument>;
    "up" "The output of up --json" schema_of::<ChangeDocument>;
    "set" "The output of set --json" schema_of::<ChangeDocument>;
    "restart" "The output of restart --json" schema_of::<ChangeDocument>;
    "start" "The output of start --json" schema_of::<ChangeDocument>;
    "heal" "The output of heal --json" schema_of::<ChangeDocument>;
    "kill" "The output of kill --json" schema_of::<ChangeDocument>;
    "down" "The output of down --json" schema_of::<ChangeDocument>;
    "verify" "The output of verify --json" schema_of::<VerifyDocument>;
    "compare" "The output of compare --json" schema_of::<Comparison>;
    "advise" "The output of advise --json" schema_of::<Advice>;
    "env" "The output of env --format json" schema_of::<EnvDocument>;
    "job" "The output of job begin --json" schema_of::<JobDocument>;
    "check" "The output of check --json" schema_of::<CheckDocument>;
    "models" "The output of check --models --json" schema_of::<ModelsDocument>;
    "error" "The output of a command with --json that fails" schema_of::<ErrorDocument>;
}

/// The values that completion offers and other features know.
const SOURCES: Sources = Sources {
    configurations: manifest::configuration_names,
    setting_meaning,
};

/// The command line with everything that is made from other tables.
pub fn command() -> clap::Command {
    let environment: Vec<_> = VARIABLES
        .iter()
        .map(|(name, meaning)| ((*name).to_owned(), *meaning))
        .collect();
    let statuses: Vec<_> = ExitStatus::MEANINGS
        .iter()
        .map(|(status, meaning)| ((*status as u8).to_string(), *meaning))
        .collect();
    let mut program = Cli::command().after_long_help(format!(
        "{}\n\n{}",
        render::help_section("Environment", &environment),
        render::help_section("Exit status", &statuses)
    ));
    for command in program.get_subcommands_mut() {
        let topics = topics_of(command.get_name());
        *command = with_topics(std::mem::take(command), &topics);
    }
    let names: Vec<&str> = TASKS
        .iter()
        .flat_map(|(_, names)| names.iter().copied())
        .collect();
    let subjects = HelpSubjects::of(&program, &names);
    let documents = PossibleValuesParser::new(
        DOCUMENTS
            .iter()
            .map(|document| PossibleValue::new(document.name).help(document.about)),
    );
    let program = program.mut_subcommand("schema", |schema| {
        schema.mut_arg("document", |document| document.value_parser(documents))
    });
    with_help_form(program.mut_subcommand("help", |help| {
        help.mut_arg("subject", |subject| subject.value_parser(subjects))
    }))
}

/// The topics of the manual that a command's help refers to.
fn topics_of(command: &str) -> Vec<&'static str> {
    TOPICS
        .iter()
        .filter(|topic| topic.commands.contains(&command))
        .map(|topic| topic.name)
        .collect()
}

/// Runs the program.
pub fn main() -> ! {
    exit_with(run_command_line())
}

fn exit_with(status: ExitStatus) -> ! {
    let _ = io::stdout().flush();
    exit_immediately(status as i32)
}

fn run_command_line() -> ExitStatus {
    let mut words = std::env::args_os().skip(1);
    let first = words.next().unwrap_or_default();
    if first == complete::COMPLETE {
        complete::run(command, SOURCES, words.collect());
        return ExitStatus::Done;
    }
    // Before the command line is read, which takes a good part of a small stack.
    if let Err(error) = raise_stack() {
        return report_early_error(error.into());
    }
    // Helpers are no subcommands: they are in no help, and a daemon does not wait until all subcommands are made.
    // With other arguments than theirs, somebody looks for a command.
    if HELPERS.iter().any(|helper| first == *helper)
        && let Ok(helper) = InternalCommand::try_parse()
    {
        reset_signals();
        return match helper.run() {
            Ok(()) => ExitStatus::Done,
            Err(error) => report_error(&error),
        };
    }
    run_subcommand(&first)
}

/// Runs the program mig-mps-device-plugin.
#[cfg(feature = "kubernetes")]
pub fn device_plugin() -> ! {
    exit_with(run_device_plugin())
}

/// The command line of the program mig-mps-device-plugin.
#[cfg(feature = "kubernetes")]
pub fn device_plugin_command() -> clap::Command {
    with_topics(with_help_form(DevicePluginArgs::command()), &["kubernetes"])
}

#[cfg(feature = "kubernetes")]
fn run_device_plugin() -> ExitStatus {
    let matches = device_plugin_command().get_matches();
    let args = DevicePluginArgs::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    reset_signals();
    let prepared = check_kernel().map_err(CommandError::from);
    let prepared = prepared.and_then(|()| Ok(raise_open_files()?));
    match prepared.and_then(|()| kubernetes::run(&args, Environment::read())) {
        Ok(status) => trace_exit_status(status),
        Err(error) => report_error(&error),
    }
}

/// Resets signals before this process becomes anything that a daemon should not inherit.
fn reset_signals() {
    if let Err(error) = Host::at(Path::new("/")).reset_signals() {
        render::warn(&format!("cannot handle SIGCHLD and SIGXFSZ: {error}"));
    }
}

fn report_error(error: &CommandError) -> ExitStatus {
    if wants_json() && !error.is_in_document {
        let _ = ErrorDocument::print(error.message(), error.status as u8);
    }
    if error.is_chosen {
        render::report(&error.to_string());
    } else {
        render::print_error(&error.to_string(), &error.hints);
    }
    trace_exit_status(error.status)
}

fn trace_exit_status(status: ExitStatus) -> ExitStatus {
    tracing::debug!("exit status {}", status as u8);
    status
}

/// Ends the program with an error before its command has begun: `run` has not started its program.
fn report_early_error(error: CommandError) -> ExitStatus {
    let words = own_arguments();
    let command = words.iter().find(|word| !word.starts_with('-'));
    let status = if command.is_some_and(|command| command == "run") {
        ExitStatus::NotRun
    } else {
        error.status
    };
    report_error(&CommandError { status, ..error })
}

/// True if the command line asks for JSON. It may not have been parsed.
fn wants_json() -> bool {
    let words = own_arguments();
    let mut pairs = words.windows(2);
    words
        .iter()
        .any(|word| word == "--json" || word == "--format=json")
        || pairs.any(|pair| pair == ["--format", "json"])
}

/// Ends the program with a mistake on the command line, or with the help that was asked for.
fn report_parse_error(error: &clap::Error) -> ExitStatus {
    let is_of_program = own_arguments().iter().all(|word| word.starts_with('-'));
    let has_options_only = is_of_program && error.kind() == ErrorKind::MissingSubcommand;
    if has_options_only || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        if !is_of_program {
            error.exit();
        }
        render::print_styled_note_always(&first_screen(TASKS));
        return ExitStatus::Usage;
    }
    // Help and version are no errors.
    if !error.use_stderr() {
        let is_overview = is_of_program && error.kind() == ErrorKind::DisplayHelp;
        let printed = if is_overview {
            let mut program = command();
            program.build();
            render::print(&overview(&program, TASKS))
        } else {
            render::finish_printing(error.print())
        };
        return match printed {
            Ok(()) => ExitStatus::Done,
            Err(error) => report_error(&error.into()),
        };
    }
    let devices = || known_devices(&Environment::read());
    let Message { what, hints } = render::usage_error(error, &mut command(), &devices);
    report_early_error(CommandError {
        hints,
        ..CommandError::new(ExitStatus::Usage, what)
    })
}

/// Parses the command line. A right one does not wait until all subcommands are made, but for those whose values come from
/// other tables.
fn parse_command_line(first: &OsStr) -> Result<Cli, clap::Error> {
    if let Some(subcommand) = first
        .to_str()
        .filter(|name| !["help", "schema"].contains(name))
        .and_then(Command::build_subcommand)
    {
        let program = Globals::augment_args(clap::Command::new("mig-mps")).subcommand(subcommand);
        // Errors and help come from the whole command line.
        if let Ok(matches) = program.try_get_matches() {
            return Cli::from_arg_matches(&matches);
        }
    }
    Cli::from_arg_matches(&command().try_get_matches()?)
}

fn run_subcommand(first: &OsStr) -> ExitStatus {
    let cli = match parse_command_line(first) {
        Ok(cli) => cli,
        Err(error) => return report_parse_error(&error),
    };
    if !cli.command.is_run() {
        reset_signals();
    }
    let environment = Environment::read();
    let prepared =
        init_output(&cli, &environment).and_then(|()| prepare_process(&cli.command, &environment));
    if let Err(error) = prepared {
        return report_early_error(error);
    }
    let context = Context {
        environment: &environment,
        program: &command,
        documents: DOCUMENTS,
        tasks: TASKS,
    };
    match cli.command.run(&context) {
        Ok(status) => trace_exit_status(status),
        Err(error) => report_error(&add_way_back_hint(error, &environment, &own_arguments())),
    }
}

/// Starts the trace that was asked for, and leaves out what was not.
fn init_output(cli: &Cli, environment: &Environment) -> Result<()> {
    if cli.globals.quiet {
        render::set_quiet();
    }
    let file = environment.trace.as_ref().map(|path| {
        host::append_privately(path)
            .context(format_args!("cannot write the trace file of {LOG}"))
            .map_err(|error| CommandError {
                status: ExitStatus::Usage,
                ..error
            })
    });
    render::start_tracing(cli.globals.verbose, file.transpose()?);
    let version = env!("CARGO_PKG_VERSION");
    tracing::debug!(
        "version {version}, user {}: {}",
        environment.caller.0,
        own_arguments().join(" ")
    );
    Ok(())
}

/// Prepares this process for the command.
fn prepare_process(command: &Command, environment: &Environment) -> Result<()> {
    if command.is_run() {
        return Ok(());
    }
    if command.needs_node() {
        check_kernel()?;
        warn_of_changeable_programs(environment);
    }
    raise_open_files()?;
    // Directories get the permissions they are made with, and daemons the umask they expect.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if let Err(error) = environment
        .interrupt
        .listen(&environment.host, on_interrupt)
    {
        render::warn(&format!(
            "Ctrl-C would end this command at once, even during a change: {error}"
        ));
    }
    Ok(())
}

/// Handles Ctrl-C, depending on what it interrupts.
fn on_interrupt(phase: Phase) {
    match phase {
        Phase::Free | Phase::Planning => {
            render::restore_terminal();
            if phase == Phase::Planning {
                render::report("Interrupted. Nothing was changed.");
            }
            exit_immediately(ExitStatus::Interrupted as i32)
        }
        Phase::Waiting => {}
        Phase::Changing => render::report("interrupted: stopping at the next safe point"),
        Phase::RollingBack => {
            render::report("interrupted: undoing the changes; this cannot be interrupted");
        }
        Phase::Concluding => {
            render::report("interrupted: the change is finished; its result follows");
        }
    }
}
