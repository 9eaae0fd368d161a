//! `mig-mps schema`

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::Context;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::profile::profile_schema;
use crate::render::json::{
    ChangeDocument, CheckDocument, CompareDocument, DoctorDocument, EnvDocument, ErrorDocument,
    ListDocument, LogLineDocument, ModelsDocument, PlanDocument, VerifyDocument, schema_of,
};
use crate::render::status::Status;
use crate::render::{ProgressDocument, print_json};

/// Print a JSON schema
///
/// The schema of profile files is for editors: they complete the keys and mark mistakes. The others describe
/// what commands print with --json. A command that fails prints an error in place of its document.
#[derive(Args, Debug)]
pub struct SchemaArgs {
    /// Document that the schema describes
    document: Document,
}

/// A document with a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Document {
    /// A profile file, in TOML
    Profile,
    /// The output of list --json
    List,
    /// The output of status --json
    Status,
    /// A line of the output of logs --json
    Logs,
    /// The output of doctor --json
    Doctor,
    /// The output of plan --json
    Plan,
    /// The output of up --json
    Up,
    /// The output of set --json
    Set,
    /// The output of restart --json
    Restart,
    /// The output of heal --json
    Heal,
    /// The output of kill --json
    Kill,
    /// The output of down --json
    Down,
    /// The output of verify --json
    Verify,
    /// The output of compare --json
    Compare,
    /// The output of env --format json
    Env,
    /// The output of check --json
    Check,
    /// The output of check --models --json
    Models,
    /// A line of the output of --progress json
    Progress,
    /// The output of a command with --json that fails
    Error,
}

impl Document {
    fn schema(self) -> Value {
        match self {
            Self::Profile => profile_schema(),
            Self::List => schema_of::<ListDocument>(),
            Self::Status => schema_of::<Status>(),
            Self::Logs => schema_of::<LogLineDocument<'_>>(),
            Self::Doctor => schema_of::<DoctorDocument>(),
            Self::Plan => schema_of::<PlanDocument>(),
            Self::Up | Self::Set | Self::Restart | Self::Heal | Self::Kill | Self::Down => {
                schema_of::<ChangeDocument>()
            }
            Self::Verify => schema_of::<VerifyDocument>(),
            Self::Compare => schema_of::<CompareDocument<'_>>(),
            Self::Env => schema_of::<EnvDocument>(),
            Self::Check => schema_of::<CheckDocument>(),
            Self::Models => schema_of::<ModelsDocument>(),
            Self::Progress => schema_of::<ProgressDocument<'_>>(),
            Self::Error => schema_of::<ErrorDocument>(),
        }
    }
}

/// Prints a JSON schema.
pub fn run(args: &SchemaArgs, _context: &Context<'_>) -> Result<ExitStatus> {
    print_json(&args.document.schema())?;
    Ok(ExitStatus::Done)
}
