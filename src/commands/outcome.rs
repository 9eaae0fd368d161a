//! The outcome of a change.

use std::time::Duration;

use super::consent::ConsentArgs;
use crate::apply::ApplyError;
use crate::client::Verified;
use crate::error::{CommandError, Result};
use crate::host::Lock;
use crate::node::Node;
use crate::plan::Plan;
use crate::render::json::{ChangeDocument, Message};
use crate::render::{is_quiet, note, print_json, status};

/// The outcome of a change.
pub(super) struct Outcome {
    /// Nobody else changes anything until this is dropped.
    #[expect(dead_code, reason = "it is held, not read")]
    pub(super) lock: Option<Lock>,
    /// True if the node was as wanted from the start.
    pub(super) is_unchanged: bool,
    /// The actions that were carried out; none if somebody else had done them meanwhile.
    pub(super) plan: Plan,
    /// The node afterwards.
    pub(super) node: Node,
    /// The failures, if everything else was done.
    pub(super) failed: Option<ApplyError>,
    /// The failure of what follows the change.
    pub(super) after: Option<CommandError>,
    /// The time that the change took, without questions and waits for clients.
    pub(super) took: Duration,
}

impl Outcome {
    /// Shows the devices with these names, or all, as they are after the change. The document also has the devices that
    /// were checked.
    pub(super) fn report(
        &self,
        devices: &[String],
        consent: &ConsentArgs,
        verified: Option<&[Verified]>,
    ) -> Result<()> {
        if consent.json {
            let failed = self.failed.as_ref().map(|failed| Message {
                what: failed.to_string(),
                hints: failed.hints(),
            });
            let error = failed.or_else(|| self.after.as_ref().map(CommandError::message));
            let document = if consent.dry_run {
                ChangeDocument::planned(&self.plan, &[])
            } else {
                ChangeDocument::made(&self.plan, &self.node, error)
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

    /// Ends the run with one line: how many of these devices, or of all, are ready.
    pub(super) fn conclude(&self, devices: &[String], consent: &ConsentArgs) {
        if !consent.json && !self.is_unchanged {
            note(&status::summary(&self.node, devices, self.took));
        }
    }
}
