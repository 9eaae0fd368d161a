//! The documents that `--json` prints, and their schemas. That of `status` is in [`super::status`].

mod message;
mod plan;

use std::fmt::Write as _;

use anyhow::Result;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use super::print;
use crate::host::steers;

pub use message::{EnvDocument, ErrorDocument, Message};
pub use plan::{ChangeDocument, PlanDocument};

pub use super::list::ListDocument;
pub use super::verified::VerifyDocument;

/// The version of the format. The format only grows; a change that breaks readers raises it.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "version")]
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
