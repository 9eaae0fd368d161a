//! Coming to an agreement on a plan: shown, permitted, consented to, and planned again under the lock.

use anyhow::Result;

use super::drain::Drain;
use super::locked;
use crate::apply::Allowed;
use crate::environment::{Environment, Home};
use crate::host::Lock;
use crate::node::Node;
use crate::plan::Plan;
use crate::render::{Consent, Ui};

/// What to do about clients in the way, for commands with these flags.
pub(super) const HINT: &str = "wait for them with --drain SECONDS, or end them with --force";

/// What it takes to be allowed to carry a plan out.
pub(super) struct Agreement<'a> {
    pub(super) environment: &'a Environment,
    pub(super) home: &'a Home,
    pub(super) ui: &'a Ui,
    /// For how long clients in the way are waited for.
    pub(super) drain: Drain,
    /// Whether the user has consented beforehand.
    pub(super) yes: bool,
    /// What the user has allowed beyond the plan.
    pub(super) allowed: Allowed,
    /// Looks at the node, and plans.
    pub(super) plan: &'a dyn Fn() -> Result<(Node, Plan)>,
    /// Shows a plan.
    pub(super) show: &'a dyn Fn(&Plan) -> Result<()>,
}

impl Agreement<'_> {
    /// Has the plan that was shown agreed to, or the one that becomes of it. Returns with the node's lock, the node as
    /// it is under that lock, and the plan for it. Nobody is asked under the lock, which would keep everybody else
    /// from changing anything, nor after a wait for clients for what was to be seen before it.
    pub(super) fn reach(&self, shown: Plan) -> Result<(Lock, Node, Plan)> {
        let mut plan = shown;
        let mut agreed: Option<Plan> = None;
        loop {
            let refusal = plan.permit(HINT).map_err(anyhow::Error::from).err();
            let refusal = refusal.filter(|refusal| !self.drain.allows(refusal));
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            if let Some(consent) = self.missing(&plan, agreed.as_ref()) {
                self.ui.confirm(&plan, self.allowed, consent)?;
                agreed = Some(plan.clone());
            }
            plan = self.drained(plan)?;
            let lock = locked(self.environment, self.home)?;
            let (node, now) = (self.plan)()?;
            match now.permit(HINT).map_err(anyhow::Error::from) {
                Ok(()) => {}
                // A client came in between: there may be time left for it.
                Err(refusal) if self.drain.allows(&refusal) => {
                    plan = now;
                    continue;
                }
                Err(refusal) => return Err(refusal),
            }
            if now == plan {
                return Ok((lock, node, now));
            }
            if now.is_empty() {
                self.ui
                    .note("The node has become as it shall be meanwhile.");
                return Ok((lock, node, now));
            }
            self.ui
                .note("The node has changed meanwhile. The plan is now:");
            (self.show)(&now)?;
            if self.missing(&now, agreed.as_ref()).is_none() {
                return Ok((lock, node, now));
            }
            plan = now;
        }
    }

    /// The consent that a plan still wants, after another one was agreed to.
    fn missing(&self, plan: &Plan, agreed: Option<&Plan>) -> Option<Consent> {
        match agreed {
            Some(agreed) => plan.disturbs_more_than(agreed).then_some(Consent::AskAgain),
            None if self.yes => Some(Consent::Given),
            None => Some(Consent::Ask),
        }
    }

    /// What becomes of a plan when the clients in its way have gone.
    fn drained(&self, plan: Plan) -> Result<Plan> {
        if plan.permit(HINT).is_ok() {
            return Ok(plan);
        }
        let permitted = || {
            let (_, plan) = (self.plan)()?;
            plan.permit(HINT)?;
            Ok(plan)
        };
        let plan = self.drain.wait(permitted, self.ui)?;
        (self.show)(&plan)?;
        Ok(plan)
    }
}
