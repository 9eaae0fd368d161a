//! The way from a plan that was shown to the lock under which it is carried out.

use std::time::Duration;

use super::super::args::IN_USE_HINT;
use super::super::give_back::restore_interrupted_under_lock;
use super::super::lock_node;
use super::{ChangeRun, Planned};
use crate::apply::{self, OnFailure};
use crate::error::{Result, declined_by_user};
use crate::failure::ExitStatus;
use crate::host::{Lock, use_service_limits};
use crate::node::Node;
use crate::plan::{Plan, Refusal};
use crate::render::{self, Consent, consequences, note, obtain_consent, report};

/// The next step of a change.
pub(super) enum ChangeStep {
    /// Get consent for the plan, if it needs one.
    Agree(Planned),
    /// Wait for the clients in the way of the plan.
    Drain(Planned),
    /// Take the lock, observe and plan again.
    Lock(Planned),
    /// Carry the plan out under the lock.
    CarryOut(Option<Lock>, Planned),
}

impl ChangeRun<'_> {
    /// Gets consent for the plan that was shown, or for the one it becomes, and takes the node's lock. Returns the lock, and
    /// the node under the lock with the plan for it. Nobody is asked while the lock is held, which would block every
    /// other change, nor after a wait for clients about something that was known before it.
    pub(super) fn agree_and_lock(&mut self, shown: Planned) -> Result<(Option<Lock>, Planned)> {
        let mut step = ChangeStep::Agree(shown);
        loop {
            step = match step {
                ChangeStep::Agree(shown) => self.ask_for_consent(shown)?,
                ChangeStep::Drain(agreed) if self.options.no_new => self.close_and_wait(agreed)?,
                ChangeStep::Drain(agreed) => self.wait_for_clients(agreed)?,
                ChangeStep::Lock(agreed) => self.lock_and_plan_again(agreed)?,
                ChangeStep::CarryOut(lock, planned) => return Ok((lock, planned)),
            }
        }
    }

    /// Refuses a plan with clients in the way that cannot be waited for, and asks about the rest that it disrupts.
    fn ask_for_consent(&mut self, mut shown: Planned) -> Result<ChangeStep> {
        if let Err(refusal) = shown.plan.permit(IN_USE_HINT)
            && !self.drain.can_wait_for(&refusal)
        {
            return Err(refusal.into());
        }
        self.prepare_for_daemons(&shown.plan)?;
        if let Some(changed) = self.plan_around_holders(&mut shown)? {
            return Ok(ChangeStep::Agree(changed));
        }
        if let Some(consent) = self.consent_needed(&shown.plan) {
            let plan = &shown.plan;
            let mut waits = consequences::render_waits(plan, self.drain.remaining_time());
            if self.options.no_new && !waits.is_empty() {
                waits += &consequences::render_no_new(self.options.environment.host.runs_slurmd());
            }
            let (allowed, held) = (self.options.allowed, self.held_gpus(&shown));
            if self.change.needs_consent(plan)
                && !obtain_consent(plan, allowed, held, consent, &waits)?
            {
                let what = "Nothing was changed.";
                return Err(declined_by_user(ExitStatus::Refused, what));
            }
            self.agreed = Some(plan.clone());
        }
        Ok(ChangeStep::Drain(shown))
    }

    /// Waits until no clients are in the way, and plans again then.
    fn wait_for_clients(&mut self, agreed: Planned) -> Result<ChangeStep> {
        if agreed.plan.permit(IN_USE_HINT).is_ok() {
            return Ok(ChangeStep::Lock(agreed));
        }
        let planned = self.wait_for_plan(Self::permitted_plan)?;
        if render::plan::render(&planned.plan) != render::plan::render(&agreed.plan) {
            self.show_plan(&planned)?;
        } else if self.shows_plans() {
            report("The clients have exited. The plan is unchanged.");
        }
        // What came while clients were waited for was not agreed to.
        Ok(match self.consent_needed(&planned.plan) {
            Some(_) => ChangeStep::Agree(planned),
            None => ChangeStep::Lock(planned),
        })
    }

    /// Plans, and refuses a plan that clients are in the way of.
    fn permitted_plan(&mut self, node: &Node) -> Result<Plan, Refusal> {
        let plan = self.make_plan(node)?;
        plan.permit(IN_USE_HINT)?;
        Ok(plan)
    }

    /// Takes the lock, observes and plans again. Carries the new plan out if it needs no other consent than the one agreed to;
    /// otherwise the lock is released, and the user is asked again.
    fn lock_and_plan_again(&mut self, agreed: Planned) -> Result<ChangeStep> {
        let lock = self.take_lock(&agreed.plan)?;
        let node = self.observe_node()?;
        let plan = match self.make_plan(&node) {
            Err(refusal) if self.drain.can_wait_for(&refusal) => {
                let agreed = Planned::new(agreed.node, agreed.plan);
                return Ok(ChangeStep::Agree(agreed));
            }
            planned => planned?,
        };
        let mut now = Planned::new(node, plan);
        match now.plan.permit(IN_USE_HINT) {
            // A client came in between: there may be time left for it.
            Err(refusal) if self.drain.can_wait_for(&refusal) => return Ok(ChangeStep::Agree(now)),
            permitted => permitted?,
        }
        if let Some(changed) = self.plan_around_holders(&mut now)? {
            return Ok(ChangeStep::Agree(changed));
        }
        if now.plan.does_the_same_as(&agreed.plan) {
            return Ok(ChangeStep::CarryOut(lock, now));
        }
        self.show_new_plan(&now)?;
        if now.plan.is_empty() || self.consent_needed(&now.plan).is_none() {
            return Ok(ChangeStep::CarryOut(lock, now));
        }
        Ok(ChangeStep::Agree(now))
    }

    /// Shows the plan that another change of the node has led to, or holders of a GPU that is left out.
    fn show_new_plan(&self, now: &Planned) -> Result<()> {
        let is_empty = now.plan.is_empty();
        match (self.may_leave_out(), is_empty) {
            // The outcome says what is left out.
            (true, true) => return Ok(()),
            (false, true) => {
                report("Nothing is left to do, because the node has changed.");
                return Ok(());
            }
            _ if !self.shows_plans() => {}
            (true, false) => report("The plan is now:"),
            (false, false) => report("The node has changed. The plan is now:"),
        }
        self.show_plan(now)
    }

    /// Prepares this process for starting the daemons of a plan, and those that a rollback starts again. Where a change
    /// goes on after a failure, the start of one daemon may fail alone.
    pub(super) fn prepare_for_daemons(&self, plan: &Plan) -> Result<()> {
        if plan.may_start_daemons(self.options.on_failure != OnFailure::GoOn) {
            use_service_limits()?;
        }
        Ok(())
    }

    /// Takes the node's lock. A user whose own server another user's daemon has started may end its clients, and cannot
    /// take that daemon's lock: nothing that the lock guards is changed.
    pub(super) fn take_lock(&self, plan: &Plan) -> Result<Option<Lock>> {
        if plan.kill.as_ref().is_some_and(|kill| !kill.is_callers) {
            return Ok(None);
        }
        let (environment, directories) = (self.options.environment, self.options.directories);
        let (observer, limit) = (&self.options.observer, self.options.lock_limit);
        let lock_within = |limit| lock_node(environment, directories, limit);
        let lock = match lock_within(Duration::ZERO) {
            // The change that has the lock may have to reset a GPU, which this process must not hold while it waits.
            Err(error) if error.status == ExitStatus::Refused && !limit.is_zero() => {
                let waited = observer.with_nvml_closed(|| lock_within(limit));
                waited.unwrap_or_else(|_| lock_within(limit))
            }
            taken => taken,
        }?;
        // A self-test may have been killed since the plan was made.
        restore_interrupted_under_lock(environment, directories)?;
        Ok(Some(lock))
    }

    /// Returns the consent that a plan still needs, after another one was agreed to.
    pub(super) fn consent_needed(&self, plan: &Plan) -> Option<Consent> {
        match &self.agreed {
            // Those who are left are ended, whoever they are: --force says so.
            Some(_) if self.closing.force_after_seconds().is_some() => None,
            Some(agreed) => plan.disrupts_more_than(agreed).then_some(Consent::AskAgain),
            None if self.options.consent.yes => Some(Consent::Given),
            None => Some(Consent::Ask),
        }
    }

    /// Waits for those who hold GPUs. Returns the node and the plan for it if that has changed meanwhile, or if GPUs that
    /// are held are left out.
    fn plan_around_holders(&mut self, planned: &mut Planned) -> Result<Option<Planned>> {
        let Err(refusal) = self.wait_for_holders(planned) else {
            return Ok(None);
        };
        if self.may_leave_out() {
            let held = self.find_held_gpus(planned);
            self.leave_out(|left_out| left_out.add_held(&held));
        }
        // They may be what another change has started meanwhile.
        let node = self.observe_node()?;
        let plan = self.make_plan(&node)?;
        let now = Planned::new(node, plan);
        if !now.plan.does_the_same_as(&planned.plan) {
            self.show_new_plan(&now)?;
        } else if !self.may_leave_out() {
            return Err(refusal);
        }
        Ok(Some(now))
    }

    /// Waits a moment for those who keep a GPU from changing its MIG mode, before anything is touched.
    fn wait_for_holders(&self, planned: &mut Planned) -> Result<()> {
        if !self
            .held_gpus(planned)
            .iter()
            .any(|held| held.is_in_the_way)
        {
            return Ok(());
        }
        let environment = self.options.environment;
        // Another change may wait for the same GPUs, and for this process.
        let waited = self.options.observer.with_nvml_closed(|| {
            let find = || self.find_held_gpus(planned);
            apply::wait_for_holders(environment, find, |held| note(&held.wait_message()))
        })?;
        planned.held.take();
        waited.map_err(|problem| Refusal::from(problem).into())
    }
}
