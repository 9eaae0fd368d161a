//! `mig-mps schema`

use clap::Args;
use serde_json::Value;

use super::Context;
use crate::error::{Result, usage_error};
use crate::failure::ExitStatus;
use crate::render::{examples, print_json};

/// Print a JSON schema
///
/// With the schema `profile`, editors complete the keys of a profile and mark mistakes. The other schemas describe what
/// commands print with --json. A command that fails prints the document `error` instead.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps schema profile > profile.schema.json", "Write a schema for editors"),
    ("mig-mps schema status", "Describe `status --json`"),
]))]
pub struct SchemaArgs {
    /// Document that the schema describes
    document: String,
}

/// A document with a schema.
pub struct Document {
    pub name: &'static str,
    pub about: &'static str,
    pub schema: fn() -> Value,
}

/// Prints a JSON schema.
pub fn run(args: &SchemaArgs, context: &Context<'_>) -> Result<ExitStatus> {
    for document in context.documents {
        if document.name == args.document {
            print_json(&(document.schema)())?;
            return Ok(ExitStatus::Done);
        }
    }
    Err(usage_error(format_args!(
        "no document \"{}\"",
        args.document
    )))
}
