//! `mig-mps schema`

use clap::Args;
use serde_json::Value;

use super::Context;
use crate::error::{Result, usage_error};
use crate::failure::ExitStatus;
use crate::render::print_json;

/// Print a JSON schema
///
/// The schema of profile files is for editors: they complete the keys and mark mistakes. The others describe
/// what commands print with --json. A command that fails prints an error in place of its document.
#[derive(Args, Debug)]
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
