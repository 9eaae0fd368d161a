//! Consent to a plan that disrupts something.

use super::consequences;
use super::output::insist;
use super::question::{agrees, can_ask};
use crate::apply::Allowed;
use crate::plan::Plan;

/// The way to get consent for a plan that disrupts something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Given beforehand with `--yes`.
    Given,
    /// Asked for on the terminal.
    Ask,
    /// Asked for again: the plan disrupts more than the one that the user agreed to.
    AskAgain,
}

/// Gets consent for a plan. A plan that disrupts nothing needs none.
pub fn confirm(plan: &Plan, allowed: Allowed, consent: Consent) -> Result<(), NoConsent> {
    let disrupts = consequences::disruptions(plan, allowed);
    if disrupts.is_empty() || consent == Consent::Given {
        return Ok(());
    }
    if !can_ask() {
        return Err(match consent {
            Consent::AskAgain => NoConsent::Outgrown(disrupts),
            _ => NoConsent::NobodyToAsk(disrupts),
        });
    }
    insist(&format!("This will {disrupts}."));
    match agrees("Go on?") {
        Ok(Some(true)) => Ok(()),
        Ok(_) => Err(NoConsent::Declined),
        Err(error) => Err(NoConsent::Failed(error.to_string())),
    }
}

/// The user did not consent.
#[derive(Debug, thiserror::Error)]
pub enum NoConsent {
    /// The user said no.
    #[error("Nothing was changed.")]
    Declined,
    /// There is no terminal, and no `--yes`.
    #[error("this would {0}, and there is no terminal to ask on")]
    NobodyToAsk(String),
    /// There is no terminal, and the user agreed to a plan that disrupts less.
    #[error("the node has changed, and this would now {0}: nothing was changed")]
    Outgrown(String),
    /// The terminal did not work.
    #[error("cannot ask on the terminal: {0}")]
    Failed(String),
}
