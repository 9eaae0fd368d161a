use schemars::JsonSchema;
use serde::Serialize;

use super::verify::VerifiedDevice;
use super::{Message, PlanDocument, VERSION, Version};
use crate::client::Verified;
use crate::node::Node;
use crate::plan::{Held, Plan};
use crate::render::status::Status;

/// The output of a command that changes the node, with `--json`: `up`, `set`, `restart`, `kill`, `down`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "change")]
pub struct ChangeDocument {
    version: Version,
    /// The actions that were taken, or with `--dry-run` those that would be.
    plan: PlanDocument,
    /// The status of all devices afterwards; null with `--dry-run`.
    status: Option<Status>,
    /// The error of a change of which a part failed; null if none did.
    error: Option<Message>,
    /// True if something was changed.
    changed: bool,
    /// The devices that were checked afterwards; null without `up --verify`.
    verified: Option<Vec<VerifiedDevice>>,
}

impl ChangeDocument {
    /// Describes a plan that is not applied.
    pub fn planned(plan: &Plan, held: &[Held]) -> Self {
        Self {
            version: VERSION,
            plan: PlanDocument::of(plan, held),
            status: None,
            error: None,
            changed: false,
            verified: None,
        }
    }

    /// Adds the devices that were checked afterwards.
    #[must_use]
    pub fn with_verified(self, all: &[Verified]) -> Self {
        Self {
            verified: Some(VerifiedDevice::all(all)),
            ..self
        }
    }

    /// Describes the actions of a plan, and the node afterwards.
    pub fn made(plan: &Plan, node: &Node, error: Option<Message>) -> Self {
        Self {
            status: Some(Status::of(node, &[])),
            // The file is written after everything else: an error of a plan with nothing else is its own.
            changed: !plan.is_empty() || plan.cdi.is_some() && error.is_none(),
            error,
            ..Self::planned(plan, &[])
        }
    }
}
