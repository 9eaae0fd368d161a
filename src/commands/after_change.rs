//! The programs that follow a change of the set of devices.
//!
//! `up`, `down`, `start`, `restart` and `heal` note such a change under the lock. The programs run when the lock is released. If a
//! command was killed or a program has failed, the next `up`, `down` or `heal` runs the programs. `heal` compares only the
//! records of mig-mps, so it misses a killed change that only affected instances of other tools.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::change_report::Outcome;
use super::lock_node;
use crate::error::{ErrorContext as _, Result, command_error};
use crate::failure::{ExitStatus, Failure as _, Problem};
use crate::host::{Environment, FileResult, Lock, LockError, ProgramDirectory};
use crate::node::{Detail, Device, Gpu, Node, Unseen, observe};
use crate::plan::Plan;
use crate::render::json::to_json_text;
use crate::render::{note, print_error, report};
use crate::state::{AfterChange, RunDir};

/// The most times that a command runs a program: one that changes the devices itself follows that change, too.
const MAX_RUNS: usize = 3;

/// Notes a change of the set of devices; returns false if it is none. The caller holds the lock of the node.
pub(super) fn note_change(environment: &Environment, outcome: &Outcome) -> bool {
    // An error is reported by the other function, which tries again.
    note_under_lock(environment, outcome).unwrap_or(true)
}

fn note_under_lock(environment: &Environment, outcome: &Outcome) -> Result<bool> {
    if outcome.is_unchanged || environment.programs_after_change().is_none() {
        return Ok(false);
    }
    let run_dir = RunDir::at(&environment.roots_run_dir());
    let after = AfterChange::open_or_create(&run_dir)?;
    note_in_directory(&after, &run_dir, environment, outcome)
}

/// Notes the outcome in an open directory, if the set of devices has changed. Returns whether it has.
fn note_in_directory(
    after: &AfterChange,
    run_dir: &RunDir,
    environment: &Environment,
    outcome: &Outcome,
) -> Result<bool> {
    let shown = shown_devices(&outcome.node);
    let is_new = after.has_unnoted_change(run_dir)? || after.has_unnoted_devices(shown.as_ref());
    if is_new {
        let document = to_json_text(&outcome.document(environment))?;
        after.note_change(run_dir, shown, &document)?;
    }
    Ok(is_new)
}

/// Describes the devices that the driver shows, with a daemon or without; `None` if it does not answer.
fn shown_devices(node: &Node) -> Option<BTreeSet<String>> {
    let is_silent = |unseen: &Unseen| matches!(unseen, Unseen::Driver(_));
    if node.unseen.iter().any(is_silent) {
        return None;
    }
    let devices = node.gpus.iter().flat_map(Gpu::devices);
    let describe = |device: Device| {
        let title = device.part.map(|part| part.title);
        json!([device.uuid, device.key.gpu, title]).to_string()
    };
    Some(devices.map(describe).collect())
}

/// Runs the programs that have not followed the last change, after a command has released the lock. Returns how the command
/// ends.
pub(super) fn follow_change(
    ended: Result<ExitStatus>,
    environment: &Environment,
) -> Result<ExitStatus> {
    match (run_pending(environment), ended) {
        (Ok(()), ended) => ended,
        (Err(error), Ok(_)) => Err(error.already_in_json()),
        (Err(error), Err(earlier)) => {
            print_error(&error.to_string(), &error.hints);
            Err(earlier)
        }
    }
}

fn run_pending(environment: &Environment) -> Result<()> {
    let Some(programs) = environment.programs_after_change() else {
        return Ok(());
    };
    let run_dir = RunDir::at(&environment.roots_run_dir());
    let after = AfterChange::open_or_create(&run_dir)?;
    note_missed_change(&after, &run_dir, environment)?;
    let mut followers = Followers {
        environment,
        programs: &programs,
        after: &after,
        runs: BTreeSet::new(),
    };
    // Again after the lock is released: a process that found it taken has left its change to this one.
    while followers.has_work()? {
        let (host, directory) = (&environment.host, &after.0);
        match Lock::acquire(host, directory, AfterChange::LOCK, Duration::ZERO, |_| {}) {
            Err(LockError::Busy { holder, .. }) => {
                let directory = programs.path.display();
                note(&format!(
                    "{holder} is already running the programs in {directory} and will also run them for this change"
                ));
                return Ok(());
            }
            taken => {
                let _lock = taken?;
                followers.note_passed_over()?;
                followers.run_programs()?;
            }
        }
    }
    followers.check_all_succeeded()
}

/// Notes a change of which the command has failed, or was killed.
fn note_missed_change(
    after: &AfterChange,
    run_dir: &RunDir,
    environment: &Environment,
) -> Result<()> {
    if !after.has_unnoted_change(run_dir)? {
        return Ok(());
    }
    match lock_node(environment, &environment.directories()?, Duration::ZERO) {
        // The change in progress notes itself.
        Err(error) if error.status == ExitStatus::Refused => Ok(()),
        taken => {
            let _lock = taken?;
            let node = observe(environment, Detail::CLIENTS)?;
            let outcome = Outcome::new(Plan::default(), node);
            note_in_directory(after, run_dir, environment, &outcome).map(drop)
        }
    }
}

/// The programs that follow a change.
struct Followers<'a> {
    environment: &'a Environment,
    programs: &'a ProgramDirectory<'a>,
    after: &'a AfterChange,
    /// The programs that this process has run, each with the change that it followed.
    runs: BTreeSet<(String, Timestamp)>,
}

/// Files that do not run after a change, each with the reason.
struct PassedOver {
    change: Timestamp,
    files: BTreeMap<String, &'static str>,
}

impl Followers<'_> {
    fn has_work(&self) -> Result<bool> {
        Ok(self.next_program()?.is_some() || self.new_passed_over()?.is_some())
    }

    /// Returns the files that do not run, each with the reason, if no command has said so since the last change.
    fn new_passed_over(&self) -> Result<Option<PassedOver>> {
        let Some(change) = self.after.last_change() else {
            return Ok(None);
        };
        let said = self.after.load_passed_over(change);
        let mut files = self.programs.passed_over_files()?;
        files.retain(|name, _| !said.contains(name));
        Ok((!files.is_empty()).then_some(PassedOver { change, files }))
    }

    /// Says once after a change which files do not run.
    fn note_passed_over(&self) -> Result<()> {
        let Some(PassedOver { change, files }) = self.new_passed_over()? else {
            return Ok(());
        };
        let each: Vec<String> = files
            .iter()
            .map(|(name, why)| format!("{name} ({why})"))
            .collect();
        note(&format!(
            "not run in {}: {}",
            self.programs.path.display(),
            each.join(", ")
        ));
        Ok(self.after.write_passed_over(change, files.into_keys())?)
    }

    /// Returns the first program that this process has still to run, and the change that it follows.
    fn next_program(&self) -> Result<Option<(String, Timestamp)>> {
        if self.environment.interrupt.is_interrupted() {
            return Ok(None);
        }
        let Some(change) = self.after.last_change() else {
            return Ok(None);
        };
        let pending = pending_programs(self.programs, self.after)
            .context("cannot run the programs that follow a change")?;
        let runs_of = |name: &str| self.runs.iter().filter(move |(run, _)| run == name).count();
        let mut next = pending.into_iter().map(|(name, _)| (name, change));
        Ok(next.find(|run| !self.runs.contains(run) && runs_of(&run.0) < MAX_RUNS))
    }

    /// Runs one program after the other, each with the document of the last change.
    fn run_programs(&mut self) -> Result<()> {
        let _change = self.environment.interrupt.begin_change();
        while let Some((name, change)) = self.next_program()? {
            let document = self.after.read_document()?;
            let failure = run_program(self.programs, &name, &document).err();
            self.after.write_result(change, name.clone(), failure)?;
            self.runs.insert((name, change));
        }
        Ok(())
    }

    fn check_all_succeeded(&self) -> Result<()> {
        let pending = pending_programs(self.programs, self.after)?;
        if pending.is_empty() {
            return Ok(());
        }
        let problems: Vec<String> = pending
            .iter()
            .map(|(_, problem)| problem.to_string())
            .collect();
        let mut error = command_error(format_args!(
            "some programs in {} failed or did not run after the last change of the devices:\n  {}",
            self.programs.path.display(),
            problems.join("\n  ")
        ));
        error.hints = pending
            .iter()
            .filter_map(|(_, problem)| problem.hint())
            .collect();
        Err(error.with_hint("run `mig-mps heal` to run the failed programs again"))
    }
}

/// Runs a program, and shows what it prints.
fn run_program(programs: &ProgramDirectory<'_>, name: &str, document: &str) -> Result<(), Problem> {
    let output = programs.run_program(name, document)?;
    for line in output.stdout.lines().chain(output.stderr.lines()) {
        report(&format!("{name}: {line}"));
    }
    if output.status.success() {
        return Ok(());
    }
    Err(Problem::without_hint(format!(
        "{name} failed ({})",
        output.status
    )))
}

/// Returns the programs that have not followed the last change, in order, each with the reason.
pub fn pending_programs(
    programs: &ProgramDirectory<'_>,
    after: &AfterChange,
) -> FileResult<Vec<(String, Problem)>> {
    let Some(change) = after.last_change() else {
        return Ok(Vec::new());
    };
    let mut results = after.load_results(change);
    let pending = programs
        .file_names()?
        .into_iter()
        .filter(|name| ProgramDirectory::is_program_name(name))
        .filter_map(|name| {
            let failure = results.remove(&name).unwrap_or_else(|| {
                Some(Problem::without_hint(format!(
                    "{name} has not run since the last change"
                )))
            });
            // One that succeeded may be another one now.
            let problem = programs.check_program(&name).err().or(failure)?;
            Some((name, problem))
        });
    Ok(pending.collect())
}
