//! The way from a plan that was shown to the lock under which it is carried out.

use std::time::Duration;

use super::super::args::HINT;
use super::super::give_back::give_back_left;
use super::super::locked;
use super::{ChangeRun, Planned};
use crate::apply::{self, OnFailure};
use crate::error::{Result, chosen};
use crate::failure::ExitStatus;
use crate::host::{Lock, take_limits_of_services};
use crate::node::Node;
use crate::plan::{Plan, Refusal};
use crate::render::{Consent, confirm, consequences, note};

/// The next step of a change.
enum Step {
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
        let mut step = Step::Agree(shown);
        loop {
            step = match step {
                Step::Agree(shown) => self.agree(shown)?,
                Step::Drain(agreed) => self.wait_for_clients(agreed)?,
                Step::Lock(agreed) => self.lock_and_plan_again(agreed)?,
                Step::CarryOut(lock, planned) => return Ok((lock, planned)),
            }
        }
    }

    fn agree(&mut self, shown: Planned) -> Result<Step> {
        if let Err(refusal) = shown.plan.permit(HINT)
            && !self.drain.allows(&refusal)
        {
            return Err(refusal.into());
        }
        self.prepare_for_daemons(&shown.plan)?;
        if let Some(changed) = self.wait_while_held(&shown)? {
            return Ok(Step::Agree(changed));
        }
        if let Some(consent) = self.consent_needed(&shown.plan) {
            let plan = &shown.plan;
            let waits = consequences::waits_text(plan, self.drain.remaining());
            let (allowed, held) = (self.change.allowed, self.held(&shown));
            if self.wanted.needs_consent(plan) && !confirm(plan, allowed, &held, consent, &waits)? {
                return Err(chosen(ExitStatus::Refused, "Nothing was changed."));
            }
            self.agreed = Some(plan.clone());
        }
        Ok(Step::Drain(shown))
    }

    fn wait_for_clients(&mut self, agreed: Planned) -> Result<Step> {
        if agreed.plan.permit(HINT).is_ok() {
            return Ok(Step::Lock(agreed));
        }
        let planned = self.wait_for_plan(Self::permitted_plan)?;
        self.show(&planned)?;
        // What came while clients were waited for was not agreed to.
        Ok(match self.consent_needed(&planned.plan) {
            Some(_) => Step::Agree(planned),
            None => Step::Lock(planned),
        })
    }

    /// Plans, and refuses a plan that clients are in the way of.
    fn permitted_plan(&mut self, node: &Node) -> Result<Plan, Refusal> {
        let plan = self.plan(node)?;
        plan.permit(HINT)?;
        Ok(plan)
    }

    fn lock_and_plan_again(&mut self, agreed: Planned) -> Result<Step> {
        let lock = self.lock(&agreed.plan)?;
        let node = self.observe()?;
        let plan = match self.plan(&node) {
            Err(refusal) if self.drain.allows(&refusal) => return Ok(Step::Agree(agreed)),
            planned => planned?,
        };
        let now = Planned { node, plan };
        match now.plan.permit(HINT) {
            // A client came in between: there may be time left for it.
            Err(refusal) if self.drain.allows(&refusal) => return Ok(Step::Agree(now)),
            permitted => permitted?,
        }
        if let Some(changed) = self.wait_while_held(&now)? {
            return Ok(Step::Agree(changed));
        }
        if now.plan.does_the_same_as(&agreed.plan) {
            return Ok(Step::CarryOut(lock, now));
        }
        self.tell_of_change(&now)?;
        if now.plan.is_empty() || self.consent_needed(&now.plan).is_none() {
            return Ok(Step::CarryOut(lock, now));
        }
        Ok(Step::Agree(now))
    }

    /// Shows the plan that another change of the node has led to, or holders of a GPU that is left out.
    fn tell_of_change(&mut self, now: &Planned) -> Result<()> {
        let is_empty = now.plan.is_empty();
        match self.wanted.left_out() {
            // The outcome says what is left out.
            Some(_) if is_empty => return Ok(()),
            Some(_) => note("The plan is now:"),
            None if is_empty => {
                note("Nothing is left to do: the node has changed meanwhile.");
                return Ok(());
            }
            None => note("The node has changed meanwhile. The plan is now:"),
        }
        self.show(now)
    }

    /// Prepares this process for starting the daemons of a plan, and those that a rollback starts again. Where a change
    /// goes on after a failure, the start of one daemon may fail alone.
    pub(super) fn prepare_for_daemons(&self, plan: &Plan) -> Result<()> {
        if plan.may_start_daemons(self.change.on_failure != OnFailure::GoOn) {
            take_limits_of_services()?;
        }
        Ok(())
    }

    /// Takes the node's lock. A user whose own server another user's daemon has started may end its clients, and cannot
    /// take that daemon's lock: nothing that the lock guards is changed.
    fn lock(&self, plan: &Plan) -> Result<Option<Lock>> {
        if plan.kill.as_ref().is_some_and(|kill| !kill.is_callers) {
            return Ok(None);
        }
        let (environment, directories) = (self.change.context.environment, self.change.directories);
        let limit = self.change.lock_limit;
        let lock_within = |limit| locked(environment, directories, limit);
        let lock = match lock_within(Duration::ZERO) {
            // The change that has the lock may have to reset a GPU, which this process must not hold.
            Err(error) if error.status == ExitStatus::Refused && !limit.is_zero() => {
                let waited = self.observer.aside(|| lock_within(limit));
                waited.unwrap_or_else(|_| lock_within(limit))
            }
            taken => taken,
        }?;
        // A self-test may have been killed since the plan was made.
        give_back_left(environment, directories, &self.observer)?;
        Ok(Some(lock))
    }

    /// Returns the consent that a plan still needs, after another one was agreed to.
    fn consent_needed(&self, plan: &Plan) -> Option<Consent> {
        match &self.agreed {
            Some(agreed) => plan.disrupts_more_than(agreed).then_some(Consent::AskAgain),
            None if self.change.consent.yes => Some(Consent::Given),
            None => Some(Consent::Ask),
        }
    }

    /// Waits for those who hold GPUs. Returns the node and the plan for it if that has changed meanwhile, or if GPUs that
    /// are held are left out.
    fn wait_while_held(&mut self, planned: &Planned) -> Result<Option<Planned>> {
        let Err(refusal) = self.wait_for_holders(planned) else {
            return Ok(None);
        };
        let held = self.held(planned);
        self.leave_out(|left_out| left_out.add_held(&held));
        // They may be what another change has started meanwhile.
        let node = self.observe()?;
        let plan = self.plan(&node)?;
        let now = Planned { node, plan };
        if !now.plan.does_the_same_as(&planned.plan) {
            self.tell_of_change(&now)?;
        } else if self.wanted.left_out().is_none() {
            return Err(refusal);
        }
        Ok(Some(now))
    }

    /// Waits a moment for those who keep a GPU from changing its MIG mode, before anything is touched.
    fn wait_for_holders(&self, planned: &Planned) -> Result<()> {
        if !self.held(planned).iter().any(|held| held.is_in_the_way) {
            return Ok(());
        }
        let environment = self.change.context.environment;
        // Another change may wait for the same GPUs, and for this process.
        let waited = self.observer.aside(|| {
            let find = || self.held(planned);
            apply::wait_for_holders(environment, find, |held| note(&held.waits()))
        })?;
        waited.map_err(|obstacle| Refusal::from(obstacle).into())
    }
}
