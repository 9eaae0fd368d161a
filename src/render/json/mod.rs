//! The documents that `--json` prints, and their schemas. That of `status` is in [`super::status`].

mod plan;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use super::{print, width};
use crate::client::Variables;
use crate::failure::Failure;
use crate::host::steers;
use crate::plan::Obstacle;

pub use super::list::ListDocument;
pub use super::verified::VerifyDocument;
pub use plan::{ChangeDocument, PlanDocument};

/// The version of the format. The format only grows; a change that breaks readers raises it.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Version(u32);

/// The version that this program prints.
pub const VERSION: Version = Version(1);

/// Returns the schema of a document, as JSON Schema 2020-12.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    SchemaGenerator::new(settings)
        .into_root_schema_for::<T>()
        .to_value()
}

/// The output of a command: text for people, JSON for programs.
pub trait Report: Serialize + JsonSchema {
    /// Formats it for people, at this width.
    fn text(&self, width: usize) -> String;
}

/// Prints a report to standard output, as JSON or as text.
pub fn show(report: &impl Report, as_json: bool) -> Result<()> {
    if as_json {
        print_json(report)
    } else {
        print(&report.text(width()))
    }
}

/// Prints a document to standard output, as indented JSON.
pub fn print_json(document: &impl Serialize) -> Result<()> {
    print(&(spelled(&serde_json::to_string_pretty(document)?) + "\n"))
}

/// Formats a document as one line.
pub fn line(document: &impl Serialize) -> Result<String> {
    Ok(spelled(&serde_json::to_string(document)?) + "\n")
}

/// Escapes everything in JSON that could control a terminal: it occurs in strings alone, where escapes are allowed.
fn spelled(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !steers(c) {
            text.push(c);
            continue;
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

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
        Self {
            version: VERSION,
            device: device.to_owned(),
            set: variables
                .set
                .iter()
                .map(|(name, value)| (*name, value.to_string_lossy().into_owned()))
                .collect(),
            unset: variables.unset.clone(),
        }
    }
}
