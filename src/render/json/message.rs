use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use super::{VERSION, Version, line};
use crate::plan::{Obstacle, Refusal};
use crate::render::print;

/// The output of a command with `--json` that fails, in place of its own document; one line.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "error")]
pub struct ErrorDocument {
    version: Version,
    /// The error.
    error: Message,
    /// The exit status of the command.
    exit_status: u8,
}

/// A message with advice.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "message")]
pub struct Message {
    /// The text, which may have several lines.
    pub what: String,
    /// Advice.
    pub hints: Vec<String>,
}

impl From<&Refusal> for Message {
    fn from(refusal: &Refusal) -> Self {
        Self {
            what: refusal.to_string(),
            hints: refusal.hint().into_iter().collect(),
        }
    }
}

impl From<&Obstacle> for Message {
    fn from(obstacle: &Obstacle) -> Self {
        Self {
            what: obstacle.what.clone(),
            hints: vec![obstacle.hint.clone()],
        }
    }
}

impl ErrorDocument {
    /// Prints the error with which a command ends.
    pub fn print(error: Message, exit_status: u8) -> Result<()> {
        print(&line(&Self {
            version: VERSION,
            error,
            exit_status,
        })?)
    }
}
