use std::collections::BTreeMap;

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use super::{VERSION, Version, line};
use crate::client::Variables;
use crate::failure::Failure;
use crate::plan::Obstacle;
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

impl<E: Failure> From<&E> for Message {
    fn from(error: &E) -> Self {
        Self {
            what: error.to_string(),
            hints: error.hints(),
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

/// The output of `mig-mps env --format json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "env")]
pub struct EnvDocument {
    version: Version,
    /// The device's name.
    device: String,
    /// The variables to set, with their values.
    set: BTreeMap<&'static str, String>,
    /// The variables that must not be set.
    unset: Vec<&'static str>,
}

impl EnvDocument {
    /// Describes the environment of a device's clients.
    pub fn of(device: &str, variables: &Variables) -> Self {
        let set = variables.set.iter();
        let set = set.map(|(name, value)| (*name, value.to_string_lossy().into_owned()));
        Self {
            version: VERSION,
            device: device.to_owned(),
            set: set.collect(),
            unset: variables.unset.clone(),
        }
    }
}
