//! The outcome of a change, and its report.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::args::ConsentArgs;
use super::status::applied_profile;
use crate::apply::ApplyError;
use crate::client::Verified;
use crate::error::{CommandError, Result, command_error};
use crate::failure::{Failure, Problem};
use crate::host::{Environment, Lock, Unit, format_gpus, join_words};
use crate::node::{Gpu, Node, Served};
use crate::plan::{Plan, block_selects};
use crate::profile::Profile;
use crate::render::json::{ChangeDocument, Message};
use crate::render::{is_quiet, print_json, report, status, warn};

/// The outcome of a change.
pub struct Outcome {
    /// Nobody else changes anything until this is dropped.
    #[expect(dead_code, reason = "it is held, not read")]
    pub lock: Option<Lock>,
    /// True if the node was as wanted from the start.
    pub is_unchanged: bool,
    /// The actions that were carried out; none if somebody else had done them meanwhile.
    pub plan: Plan,
    /// The node afterwards.
    pub node: Node,
    /// The failures, if everything else was done.
    pub failed: Option<ApplyError>,
    /// The monitoring services that were stopped meanwhile, and run again.
    pub restarted: Vec<Unit>,
    /// The error with which the command ends after its report, although the change was made.
    pub deferred_error: Option<CommandError>,
    /// The time that the change took, without questions and waits for clients.
    pub took: Duration,
}

impl Outcome {
    /// The outcome of a change that carried this plan out, and of which nothing else is to be told.
    pub fn new(plan: Plan, node: Node) -> Self {
        Self {
            lock: None,
            is_unchanged: false,
            plan,
            node,
            failed: None,
            restarted: Vec::new(),
            deferred_error: None,
            took: Duration::ZERO,
        }
    }

    /// Returns the parts of the profile that were left out, each once.
    pub fn missing_parts(&self) -> Vec<Problem> {
        let mut missing = self.plan.missing.clone();
        for failed in self.failed.iter().flat_map(ApplyError::missing_parts) {
            if !missing.contains(&failed) {
                missing.push(failed);
            }
        }
        for incomplete in self.incomplete_joint_devices() {
            if !missing.contains(&incomplete) {
                missing.push(incomplete);
            }
        }
        missing
    }

    /// Returns the joint devices that did not start because a step failed on some of their GPUs: for each of the other GPUs, or
    /// once if there is none.
    fn incomplete_joint_devices(&self) -> Vec<Problem> {
        let failed: Vec<Problem> = self
            .failed
            .iter()
            .flat_map(ApplyError::missing_parts)
            .collect();
        let mut incomplete = Vec::new();
        for start in self.plan.starts().filter(|start| !start.joint.is_empty()) {
            let has_failed = |gpu: &u32| failed.iter().any(|one| one.gpu == Some(*gpu));
            let (lost, rest): (Vec<u32>, Vec<u32>) =
                start.joint.iter().partition(|gpu| has_failed(gpu));
            let is_named = failed
                .iter()
                .any(|one| one.device.as_ref() == Some(&start.name));
            if lost.is_empty() || is_named {
                continue;
            }
            let are = if lost.len() == 1 { "is" } else { "are" };
            let (name, gpus) = (&start.name, format_gpus(&lost));
            let what = format!("device {name} needs all its GPUs: {gpus} {are} left out");
            let on = if rest.is_empty() { &lost[..1] } else { &rest };
            incomplete.extend(on.iter().map(|gpu| Problem {
                gpu: Some(*gpu),
                ..Problem::without_hint(what.clone())
            }));
        }
        incomplete
    }

    /// True if nothing of a profile is on the node: of every GPU that it selects, all was left out or failed.
    pub fn has_applied_nothing(&self, profile: &Profile, run_dir: &Path) -> bool {
        let missing = self.missing_parts();
        let is_selected = |gpu: &&Gpu| profile.blocks.iter().any(|block| block_selects(block, gpu));
        let mut selected = self.node.gpus.iter().filter(is_selected);
        !missing.is_empty() && !selected.any(|gpu| self.has_part_on(gpu, &missing, run_dir))
    }

    /// True if a part of the profile is on a GPU, of which these parts were left out.
    fn has_part_on(&self, gpu: &Gpu, missing: &[Problem], run_dir: &Path) -> bool {
        let is_here = |missing: &&Problem| missing.gpu == Some(gpu.index);
        let left_out: Vec<Option<&String>> = missing
            .iter()
            .filter(is_here)
            .map(|one| one.device.as_ref())
            .collect();
        if left_out.is_empty() || left_out.contains(&None) {
            return left_out.is_empty();
        }
        let has_failed = self
            .failed
            .iter()
            .flat_map(ApplyError::missing_parts)
            .any(|failed| is_here(&&failed));
        let has_changed = self.plan.gpus.iter().any(|plan| plan.uuid == gpu.uuid);
        let has_device = self.node.served().any(|served| {
            served.record.key.has_gpu(&gpu.uuid)
                && served.run_dir.path() == run_dir
                && served.is_alive()
                && !left_out.contains(&Some(&served.record.name))
        });
        has_changed && !has_failed || has_device
    }

    /// Returns its plan without the daemons that did not start.
    pub fn successful_plan(&self) -> Plan {
        let failed: Vec<&str> = self
            .plan
            .starts()
            .map(|start| start.name.as_str())
            .filter(|name| {
                let served = self.node.served_named(name);
                !served.is_some_and(Served::is_alive)
            })
            .collect();
        self.plan.clone().without_devices(&failed)
    }

    /// Notes the parts of the profile that were left out, or all of it (`is_of_nothing`): in the plan, in the error of the
    /// command, and for a document in the node, which was read before these parts are recorded.
    pub fn note_missing_parts(&mut self, is_of_nothing: bool, is_for_document: bool) {
        self.plan.missing = self.missing_parts();
        if let Some(error) = self.partial_error(is_of_nothing) {
            // It has the failures, too.
            self.failed = None;
            self.defer_error(error);
        }
        self.node.missing = if is_for_document {
            self.plan.missing.clone()
        } else {
            Vec::new()
        };
    }

    /// Makes the command end with this error after its report. An earlier error becomes a note.
    pub fn defer_error(&mut self, error: CommandError) {
        if let Some(earlier) = self.deferred_error.replace(error) {
            warn(&earlier.to_string());
        }
    }

    /// Returns the error of a profile of which parts, or all, were left out.
    fn partial_error(&self, is_of_nothing: bool) -> Option<CommandError> {
        let missing = &self.plan.missing;
        let mut lines: Vec<String> = Problem::distinct(missing)
            .into_iter()
            .map(Problem::to_string)
            .collect();
        let mut hints: Vec<String> = missing.iter().filter_map(|one| one.hint.clone()).collect();
        if let Some(run) = &self.failed {
            // The error of the run says what was undone, too.
            let failures = run.missing_parts();
            lines.retain(|line| failures.iter().all(|failure| failure.to_string() != *line));
            lines.extend(run.to_string().lines().map(str::to_owned));
            hints.extend(run.hints());
        }
        if lines.is_empty() {
            return None;
        }
        lines.dedup();
        let what = if is_of_nothing {
            "no part of the profile could be applied"
        } else {
            let again =
                "run `mig-mps status` to see what is missing, then run the same command again";
            hints.push(again.to_owned());
            "the profile was applied in part"
        };
        let mut error = command_error(format_args!("{what}; left out:\n  {}", lines.join("\n  ")));
        for hint in hints {
            if !error.hints.contains(&hint) {
                error.hints.push(hint);
            }
        }
        Some(error)
    }

    /// Shows the devices with these names, or all, as they are after the change. The document also has the devices that
    /// were checked.
    pub fn report(
        &self,
        environment: &Environment,
        devices: &[String],
        consent: &ConsentArgs,
        verified: Option<&[Verified]>,
    ) -> Result<()> {
        if consent.json {
            let document = if consent.dry_run {
                ChangeDocument::from_plan(&self.plan, &[])
            } else {
                self.document(environment)
            };
            return Ok(print_json(&match verified {
                Some(all) => document.with_verified(all),
                None => document,
            })?);
        }
        if is_quiet() {
            return Ok(());
        }
        Ok(status::print_few(&self.node, devices)?)
    }

    /// Returns the document of the change.
    pub fn document(&self, environment: &Environment) -> ChangeDocument {
        let error = match &self.failed {
            Some(failed) => Some(Message::from(failed)),
            None => self.deferred_error.as_ref().map(CommandError::message),
        };
        ChangeDocument::after_change(&self.plan, &self.with_applied(environment), error)
    }

    /// Returns the node with the profile that is applied to it now: that is recorded after the node was read.
    fn with_applied(&self, environment: &Environment) -> Node {
        Node {
            applied: applied_profile(environment, &self.node),
            ..self.node.clone()
        }
    }

    /// Ends the run with one line: how many of these devices, or of all, are ready.
    pub fn print_summary(&self, devices: &[String], consent: &ConsentArgs) {
        if !consent.json && !self.is_unchanged {
            let summary = status::summary(&self.node, devices, self.took);
            report(&format!("{summary}{}", self.restarted_suffix()));
        }
    }

    /// `; nvidia-dcgm.service runs again`, or nothing if no service was stopped.
    pub fn restarted_suffix(&self) -> String {
        let names: Vec<&str> = self.restarted.iter().map(|unit| unit.name()).collect();
        match names.as_slice() {
            [] => String::new(),
            [one] => format!("; {one} was started again"),
            _ => format!("; {} were started again", join_words(&names, "and")),
        }
    }
}

/// The node differs from the profile after a run that reported no error.
pub fn read_back_mismatch(rest: &Plan) -> CommandError {
    let mut steps = String::new();
    for gpu in &rest.gpus {
        for step in &gpu.steps {
            let _ = write!(
                steps,
                "\n  {}: {}: {}",
                gpu.name(),
                step.action,
                step.because
            );
        }
    }
    command_error(format_args!(
        "the node was changed, but does not match the profile; remaining:{steps}"
    ))
    .with_hint(
        "run the same command again to continue; nothing was undone, because every step reported success",
    )
}
