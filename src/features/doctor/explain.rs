//! `mig-mps explain`

use clap::Args;

use crate::commands::Context;
use crate::error::{Result, usage};
use crate::failure::ExitStatus;
use crate::host::{bounded, nearest, without_needless_sudo};
use crate::node::Fault;
use crate::render::{self, hanging};

/// Explain an error of CUDA, or a problem that status or doctor shows
///
/// Says what it means, why it happens, and what helps.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Number or name of a CUDA error, such as 805 or `CUDA_ERROR_MPS_CONNECTION_FAILED`, or an id that status and doctor
    /// show in brackets
    #[arg(value_name = "ID")]
    id: String,
}

/// Explains an error or a problem.
pub fn run(args: &ExplainArgs, _context: &Context<'_>) -> Result<ExitStatus> {
    explain(&args.id)
}

/// Prints the explanation of what is called `word`.
pub(super) fn explain(word: &str) -> Result<ExitStatus> {
    let Some(fault) = Fault::all().iter().find(|fault| fault.is_called(word)) else {
        let near = nearest(word, Fault::all().iter().map(|fault| fault.id.as_str()))
            .map(|near| format!(" (did you mean \"{near}\"?)"))
            .unwrap_or_default();
        let what = format!("no check or error is called \"{}\"{near}", bounded(word));
        return Err(usage(what).hint("mig-mps help diagnosis lists all"));
    };
    let mut text = format!("{}\n", fault.id);
    for (head, part) in [
        ("meaning", &fault.meaning),
        ("why", &fault.why),
        ("remedy", &without_needless_sudo(&fault.remedy)),
    ] {
        text += &hanging(&format!("  {head:<8}"), part, render::width());
    }
    render::print(&text)?;
    Ok(ExitStatus::Done)
}
