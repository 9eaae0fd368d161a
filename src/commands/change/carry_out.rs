//! Carries a plan out under the lock, and reads the node back.

use std::time::Instant;

use super::super::args::IN_USE_HINT;
use super::super::cdi_file;
use super::super::change_report::{Outcome, read_back_mismatch};
use super::{ChangeEnding, ChangeRun, Planned};
use crate::apply::{self, ApplyContext, ApplyError};
use crate::error::{ErrorContext as _, Result};
use crate::host::{Lock, MpsPrograms};
use crate::plan::Plan;
use crate::render::{start_progress, warn};

impl ChangeRun<'_> {
    /// Applies the plan, reads the node back, and updates the CDI file.
    pub(super) fn carry_out(&mut self, lock: Option<Lock>, planned: Planned) -> Result<Outcome> {
        match self.apply_and_read_back(planned) {
            Ok(outcome) => Ok(Outcome {
                plan: self.closing.with_done(outcome.plan),
                lock,
                deferred_error: self.update_cdi_file(ChangeEnding::Done).err(),
                ..outcome
            }),
            Err(error) => {
                if let Err(second) = self.update_cdi_file(ChangeEnding::Failed) {
                    warn(&format!("{second}"));
                }
                Err(error)
            }
        }
    }

    /// Updates the CDI file under the lock of the change, however the change ended.
    pub(super) fn update_cdi_file(&self, ending: ChangeEnding) -> Result<()> {
        let (environment, directories) = (self.options.environment, self.options.directories);
        cdi_file::update(environment, directories, self.change.cdi_request(), ending)
    }

    /// Applies the plan, reads the node back, and applies what is left to do, if the plan said so. A difference that the plan
    /// did not announce is an error.
    fn apply_and_read_back(&mut self, planned: Planned) -> Result<Outcome> {
        let begun = Instant::now();
        let mut planned = planned;
        let mut carried_out = planned.plan.clone();
        let mut failed = self.cannot_start.take();
        if let Some(left_out) = self.options.left_out() {
            left_out.mark_begun();
        }
        // Twice only where a driver lists profiles after MIG has been switched on.
        loop {
            let failed_now = self.apply_plan(&planned)?;
            if let Some(error) = &failed_now {
                self.leave_out(|left_out| left_out.add_failed(&error.missing_parts()));
            }
            failed = match (failed, failed_now) {
                (Some(before), Some(later)) => Some(before.merge_later(later)),
                (before, later) => before.or(later),
            };
            let now = self.read_back().map_err(|error| {
                if carried_out.is_empty() {
                    error
                } else {
                    error.into_read_back_error()
                }
            })?;
            // Where it goes on, the rest tries again what failed.
            // A daemon that is to admit no more clients ends at once if it has none.
            let goes_on = planned.plan.gpus.iter().any(|gpu| gpu.to_be_continued)
                || planned.plan.closes().next().is_some();
            let is_done = now.plan.is_empty() || now.plan.only_repeats_closes_of(&planned.plan);
            if is_done || (failed.is_some() && !goes_on) {
                return Ok(Outcome {
                    failed,
                    restarted: std::mem::take(&mut self.restarted),
                    took: begun.elapsed(),
                    ..Outcome::new(carried_out, now.node)
                });
            }
            if !goes_on {
                return Err(read_back_mismatch(&now.plan));
            }
            self.show_plan(&now)?;
            let rest = &now.plan;
            rest.permit(IN_USE_HINT)
                .and_then(|()| rest.check_agreed_disruption(&carried_out))
                .context("MIG mode is on now, but the rest of the profile was refused")?;
            carried_out.append_continuation(rest);
            planned = now;
        }
    }

    /// Returns the node after the change, with the plan for what is left to do if the change is verified.
    fn read_back(&mut self) -> Result<Planned> {
        let node = self.observe_node()?;
        let plan = if self.change.is_verified() {
            self.make_plan(&node)?
        } else {
            Plan::default()
        };
        Ok(Planned::new(node, plan))
    }

    /// Applies the plan. Returns the failures of a change that nobody watches, or that goes on with other GPUs.
    pub(super) fn apply_plan(&mut self, planned: &Planned) -> Result<Option<ApplyError>> {
        let Planned { node, plan, .. } = planned;
        if plan.is_empty() {
            return Ok(None);
        }
        self.prepare_for_daemons(plan)?;
        let environment = self.options.environment;
        let programs = match environment.mps_programs() {
            // Instances are made and destroyed without MPS.
            Err(_) if !plan.concerns_daemons() => MpsPrograms::default(),
            programs => programs?,
        };
        let context = ApplyContext {
            environment,
            directories: self.options.directories,
            programs: &programs,
            node,
            allowed: self.options.allowed,
            is_resumable: self.options.is_resumable,
        };
        let progress = start_progress(plan, self.options.consent.progress_form());
        match apply::run(plan, &context, progress.as_ref(), self.options.on_failure) {
            Ok(restarted) => {
                self.restarted.extend(restarted);
                Ok(None)
            }
            Err(error) if self.options.consent.is_unattended => Ok(Some(error)),
            Err(error) if self.may_leave_out() && error.is_confined_to_gpus() => Ok(Some(error)),
            Err(error) => Err(error.into()),
        }
    }
}
