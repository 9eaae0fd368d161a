//! A file per subcommand: its arguments with their help, then its story.

pub mod accounts;
pub mod after_change;
pub mod args;
pub mod built_in;
pub mod cdi;
mod cdi_file;
pub mod change;
pub mod change_report;
pub mod down;
mod down_remarks;
pub mod drain;
pub mod env;
pub mod give_back;
pub mod heal;
pub mod kill;
pub mod list;
mod missing_devices;
pub mod plan;
pub mod profile_source;
pub mod restart;
pub mod schema;
pub mod set;
pub mod start;
pub mod status;
pub mod up;
pub mod up_request;
pub mod verify;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use crate::apply;
use crate::error::{CommandError, ErrorContext as _, Result, command_error};
use crate::failure::Failure as _;
use crate::host::{
    Directories, Directory, Environment, FileError, Lock, Uid, caller, format_gpus, root_hint,
    to_printable, user_name, write_new_text_to, write_text_to,
};
use crate::mps::ContextMemory;
use crate::node::{Detail, LOST_GPU_REMEDY, NoSuchDevice, Node, observe, observe_records};
use crate::plan::Plan;
use crate::plan::virtual_node::EmptyNode;
use crate::profile::Profile;
use crate::render::{KnownDevices, note, print, report, warn};
use crate::settings::MemoryLimit;
use crate::state::RunDir;

use args::ConsentArgs;

pub use missing_devices::add_way_back_hint;

/// The surroundings of a command.
pub struct Context<'a> {
    pub environment: &'a Environment,
    /// The command line, for help.
    pub program: &'a dyn Fn() -> clap::Command,
    /// The documents that have a schema.
    pub documents: &'a [schema::Document],
    /// The subcommands that help lists, by task.
    pub tasks: &'a [(&'a str, &'a [&'a str])],
}

/// The time to wait for another change.
pub const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// Returns this node as if nothing was on its GPUs, for those who plan on it or, with `--gpu`, on another.
pub fn empty_node(environment: &Environment) -> Result<EmptyNode> {
    let hint = "use --gpu a100-80gb:8 for the GPUs of another machine";
    let node = observe(environment, Detail::OFFERS)
        .map_err(|error| CommandError::from(error).with_hint(hint))?;
    for hidden in node.describe_unseen() {
        note(&format!("not seen: {hidden}"));
    }
    if let (true, Some((_, why))) = (node.gpus.is_empty(), node.lost_gpus().next()) {
        return Err(command_error(why).with_hint(LOST_GPU_REMEDY));
    }
    if node.gpus.is_empty() {
        let message = format!("the driver ({}) shows no GPU", node.driver);
        return Err(command_error(message).with_hint(hint));
    }
    Ok(EmptyNode::from_node(&node))
}

/// Says that a plan for a profile has no steps.
pub fn describe_match(plan: &Plan) -> String {
    let except = match plan.lost_gpus.as_slice() {
        [] => String::new(),
        [one] => format!(", except for GPU {one}, which is lost"),
        several => format!(", except for {}, which are lost", format_gpus(several)),
    };
    format!("Nothing to do: the node matches the profile{except}.")
}

/// The detail that a plan for the profile needs: the profiles of GPUs matter only if some are partitioned.
pub fn detail_for(profile: &Profile) -> Detail {
    let detail = if profile.partitions_gpus() {
        Detail::PLAN
    } else {
        Detail::CLIENTS
    };
    Detail {
        health: true,
        ..detail
    }
}

/// Returns the devices that a command without a device may mean.
pub fn known_devices(environment: &Environment) -> KnownDevices {
    let Ok(node) = observe_records(environment) else {
        return KnownDevices::default();
    };
    let known: Vec<String> = node
        .served()
        .map(|served| served.record.name.clone())
        .collect();
    let stopped: Vec<String> = node
        .stopped
        .iter()
        .map(|(_, stopped)| stopped.record.name.clone())
        .filter(|name| !known.contains(name))
        .collect();
    let names = [known.clone(), stopped.clone()].concat();
    let wanted = String::new();
    let hint = if known.is_empty() {
        Some("run `mig-mps up PROFILE` to start daemons; no device has one".to_owned())
    } else {
        NoSuchDevice::Unknown { wanted, known }.hint()
    };
    KnownDevices {
        names,
        stopped,
        hint,
        hint_for_program: private_hint(&node),
    }
}

/// Returns the directories of a change. Refuses a plain user those of another, before a plan of it is shown.
pub fn own_directories(environment: &Environment, consent: &ConsentArgs) -> Result<Directories> {
    let directories = environment.directories()?;
    let is_allowed = environment.is_root() || consent.dry_run;
    let owner = match RunDir::at(&directories.run).owner() {
        Some(owner) if owner != environment.caller && !is_allowed => owner,
        _ => return Ok(directories),
    };
    let as_owner = if owner == Uid::ROOT {
        root_hint()
    } else {
        format!("run it as {}", user_name(owner))
    };
    let (owner, path) = (user_name(owner), directories.run.display());
    Err(command_error(format_args!(
        "only {owner} can change this node: the run directory {path} belongs to {owner}"
    ))
    .with_hint(format!(
        "{as_owner}; or unset MIG_MPS_RUN_DIR for your own daemons"
    )))
}

/// Makes the run directory and takes the node's change lock, for which it waits up to `limit`.
pub fn lock_node(
    environment: &Environment,
    directories: &Directories,
    limit: Duration,
) -> Result<Lock> {
    let run_dir = RunDir::at(&directories.run);
    // Before anything is touched.
    let directory = run_dir
        .make()
        .context("cannot use the run directory")
        .map_err(|error| error.with_hint("set MIG_MPS_RUN_DIR to another directory"))?;
    let logs = Directory::open_or_create(&directories.log, 0o755)
        .context("cannot use the log directory")
        .map_err(|error| error.with_hint("set MIG_MPS_LOG_DIR to another directory"))?;
    let (run, log) = (directory.stat_self()?, logs.stat_self()?);
    if (run.st_dev, run.st_ino) == (log.st_dev, log.st_ino) {
        // Both have a directory for each device.
        return Err(command_error(format_args!(
            "cannot use {} both as run directory and as log directory",
            directories.log.display()
        ))
        .with_hint("set MIG_MPS_RUN_DIR and MIG_MPS_LOG_DIR to different directories"));
    }
    let lock = Lock::acquire(
        &environment.host,
        &directory,
        RunDir::LOCK,
        limit,
        |holder| {
            let seconds = limit.as_secs();
            note(&format!(
                "waiting up to {seconds} s: {holder} is changing this node"
            ));
        },
    )?;
    check_not_newer(&run_dir)?;
    Ok(lock)
}

/// Writes text to a new file, which is named, or prints it. A file that exists may have been edited, and is not replaced.
pub fn print_or_write_new(text: &str, file: Option<&Path>) -> Result<()> {
    let is_output = |path: &&Path| [Path::new("-"), Path::new("/dev/stdout")].contains(path);
    let Some(path) = file.filter(|path| !is_output(path)) else {
        return Ok(print(text)?);
    };
    write_new_text_to(path, text).context(format_args!("cannot write {}", path.display()))?;
    report(&format!("wrote {}", path.display()));
    Ok(())
}

/// Prints a text, or writes it to the file that the user named.
pub fn print_or_write(text: &str, file: Option<&Path>) -> Result<()> {
    let Some(path) = file else {
        return Ok(print(text)?);
    };
    write_text_to(path, text).context(format_args!("cannot write {}", path.display()))
}

/// Returns the error of a command that needs a daemon, on a node where none can be seen.
pub fn no_daemon_error(node: &Node) -> CommandError {
    if let Some((_, why)) = node.unreadable_records().next() {
        return command_error(format_args!("no device has a visible daemon: {why}"))
            .with_hint("run `mig-mps doctor` to check directories and records");
    }
    command_error("no device has a daemon").with_hint("run `mig-mps up PROFILE` to start daemons")
}

/// Refuses to change what a newer mig-mps recorded.
fn check_not_newer(run_dir: &RunDir) -> Result<()> {
    match run_dir.check_format_versions() {
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => Err(command_error(error)
            .with_hint("change this node with the version of mig-mps that wrote it")),
        checked => checked.context("cannot use the run directory"),
    }
}

/// Prints the remarks on a plan and its profile, and warns of limits that do not do what they seem to.
pub fn remark_on_plan(node: &Node, plan: &Plan) {
    for remark in &plan.remarks {
        note(remark);
    }
    let open = plan.with_open_limits(node.control_program());
    if !open.is_empty() {
        warn(&format!(
            "every user of {} can change its limits, because the MPS of driver {} accepts settings from all users; \
             from driver 550 on, only root and the owner of the daemon can change them",
            open.join(", "),
            node.driver
        ));
    }
    warn_of_small_limits(plan.memory_limits());
}

/// Warns if a plan takes devices away, and it is not known which pods hold shares of them.
pub fn warn_of_unknown_pods(node: &Node, plan: &Plan) {
    if let Some(why) = &node.pods_unknown
        && plan.takes_devices_from_pods()
    {
        warn(&format!("pods that hold shares are unknown: {why}"));
    }
}

/// Warns of memory limits that may leave no program any memory.
pub fn warn_of_small_limits(limits: BTreeSet<MemoryLimit>) {
    for warning in limits.into_iter().filter_map(ContextMemory::limit_warning) {
        warn(&warning);
    }
}

/// Warns root of programs in `PATH` that another user can change.
pub fn warn_of_changeable_programs(environment: &Environment) {
    for (program, error) in environment.changeable_programs() {
        let shown = to_printable(&program.display().to_string());
        let why = to_printable(&error.to_string());
        warn(&format!(
            "root runs {shown} from PATH, but another user can change it: {why}"
        ));
    }
}

/// Returns the error of a program that something would run as root, and that does not exist or that another user can change.
pub fn untrusted_program_error(runner: &str, program: &Path, error: &FileError) -> CommandError {
    let shown = program.display();
    if error.kind() == ErrorKind::NotFound {
        return command_error(format_args!("cannot run {shown}: it does not exist"));
    }
    command_error(format_args!(
        "{runner} would run {shown} as root, but another user can change it: {error}"
    ))
}

/// What follows a change that was killed.
const CONTINUED_LATER: &str = "the next `mig-mps up` or `mig-mps down` will continue it";

/// Reports a change that was killed: what it had stopped stays stopped until another change goes on.
pub fn report_interrupted_change(environment: &Environment) {
    give_back::report_selftest(environment);
    // Without a run directory, or access to its journal, the caller can do nothing about it.
    let Ok(directories) = environment.directories() else {
        return;
    };
    if let Ok(Some(journal)) = RunDir::at(&directories.run).load_journal()
        && journal.writer.has_exited(&environment.host)
    {
        warn(&format!(
            "a change was interrupted: {journal}; {CONTINUED_LATER}"
        ));
    }
}

/// Picks up what a killed change has left, and reports it. Only a resumable change, an `up` or a `down`, completes one that was
/// killed; until then, it remains known that it was killed. Returns false if no change was killed.
fn pick_up_interrupted(
    environment: &Environment,
    directories: &Directories,
    is_resumable: bool,
) -> Result<bool> {
    let run_dir = RunDir::at(&directories.run);
    let journal = apply::load_journal(&run_dir).context("cannot use the run directory")?;
    let Some(journal) = journal.filter(|journal| journal.writer.has_exited(&environment.host))
    else {
        return Ok(false);
    };
    let completes = is_resumable || !journal.is_resumable;
    let _lock = lock_node(environment, directories, LOCK_LIMIT)?;
    let node = observe(environment, Detail::GEOMETRY)?;
    if let Some(said) = apply::pick_up(environment, &run_dir, &node, completes)? {
        let follows = if completes {
            "continuing from the present state"
        } else {
            CONTINUED_LATER
        };
        note(&format!("{said}; {follows}"));
    }
    Ok(true)
}

/// The hint for a program where no daemon serves: only root starts daemons for users.
pub fn no_daemon_hint() -> String {
    if caller() == Uid::ROOT {
        "run `mig-mps up PROFILE` to start daemons".to_owned()
    } else {
        "run `mig-mps run --private -- PROGRAM` to start a daemon for this program, or ask root to start daemons for \
         all users with `mig-mps up PROFILE`"
            .to_owned()
    }
}

/// The same for a plain user on a node without any daemon.
pub fn private_hint(node: &Node) -> Option<String> {
    (node.has_no_daemons() && caller() != Uid::ROOT).then(no_daemon_hint)
}
