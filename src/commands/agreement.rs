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
    /// it is under that lock, and the plan for it.
    pub(super) fn reach(&self, shown: Plan) -> Result<(Lock, Node, Plan)> {
        let mut shown = shown;
        loop {
            shown = self.agreed(shown)?;
            let lock = locked(self.environment, self.home)?;
            match self.still_agreed(&shown) {
                Ok((node, plan)) => return Ok((lock, node, plan)),
                // A client came in between: there may be time left for it.
                Err(error) if self.drain.allows(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Has a plan that was shown permitted and agreed to, or the one that becomes of it while
    /// clients are waited for.
    fn agreed(&self, shown: Plan) -> Result<Plan> {
        let plan = match shown.permit(HINT).map_err(anyhow::Error::from) {
            Ok(()) => shown,
            Err(refusal) if self.drain.allows(&refusal) => {
                let permitted = || {
                    let (_, plan) = (self.plan)()?;
                    plan.permit(HINT)?;
                    Ok(plan)
                };
                let plan = self.drain.wait(permitted, self.ui)?;
                (self.show)(&plan)?;
                plan
            }
            Err(refusal) => return Err(refusal),
        };
        self.confirm(&plan, self.consent())?;
        Ok(plan)
    }

    /// Plans again under the lock, and asks again if the node has changed under the plan shown.
    fn still_agreed(&self, shown: &Plan) -> Result<(Node, Plan)> {
        let mut shown = shown.clone();
        loop {
            let (node, plan) = (self.plan)()?;
            plan.permit(HINT)?;
            if plan == shown {
                return Ok((node, plan));
            }
            if plan.is_empty() {
                self.ui
                    .note("The node has become as it shall be meanwhile.");
                return Ok((node, plan));
            }
            self.ui
                .note("The node has changed meanwhile. The plan is now:");
            (self.show)(&plan)?;
            let consent = if plan.disturbs_more_than(&shown) {
                Consent::AskAgain
            } else {
                self.consent()
            };
            self.confirm(&plan, consent)?;
            shown = plan;
        }
    }

    fn consent(&self) -> Consent {
        if self.yes {
            Consent::Given
        } else {
            Consent::Ask
        }
    }

    fn confirm(&self, plan: &Plan, consent: Consent) -> Result<()> {
        Ok(self.ui.confirm(plan, self.allowed, consent)?)
    }
}
