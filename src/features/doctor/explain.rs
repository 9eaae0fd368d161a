//! `mig-mps explain`

use clap::Args;

use crate::commands::Context;
use crate::error::{Result, usage};
use crate::failure::ExitStatus;
use crate::host::{bounded, nearest, without_needless_sudo};
use crate::node::Fault;
use crate::render::{self, command_for, hanging, words_for};

/// Explain errors of CUDA, and problems that status or doctor shows
///
/// Says what each means, why it happens, and what helps.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Number or name of a CUDA error, such as 805 or `CUDA_ERROR_MPS_CONNECTION_FAILED`, or an id that status and doctor
    /// show in brackets
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

/// Explains errors and problems.
pub fn run(args: &ExplainArgs, _context: &Context<'_>) -> Result<ExitStatus> {
    explain(&args.ids)
}

/// Prints the explanation of what is called by each of these words.
pub(super) fn explain(words: &[String]) -> Result<ExitStatus> {
    let faults = words.iter().map(|word| called(word));
    let faults = faults.collect::<Result<Vec<&Fault>>>()?;
    let texts: Vec<String> = faults.into_iter().map(described).collect();
    render::print(&texts.join("\n"))?;
    Ok(ExitStatus::Done)
}

/// Returns the fault of this id or name, or the one that other words mean.
fn called(word: &str) -> Result<&'static Fault> {
    let mut all = Fault::all().iter();
    let found = all.find(|fault| {
        fault.is_called(word) || words_for(&format!("explain {}", fault.id)).contains(&word)
    });
    found.ok_or_else(|| {
        let near = nearest(word, Fault::all().iter().map(|fault| fault.id.as_str()))
            .map(|near| format!(" (did you mean \"{near}\"?)"))
            .unwrap_or_default();
        let what = format!("no check or error is called \"{}\"{near}", bounded(word));
        let error = usage(what);
        let error = match command_for(word) {
            Some(command) => error.hint(format!("did you mean mig-mps {command}?")),
            None => error,
        };
        error.hint("mig-mps help diagnosis lists all")
    })
}

fn described(fault: &Fault) -> String {
    let mut text = format!("{}\n", fault.id);
    for (head, part) in [
        ("meaning", &fault.meaning),
        ("why", &fault.why),
        ("remedy", &without_needless_sudo(&fault.remedy)),
    ] {
        text += &hanging(&format!("  {head:<8}"), part, render::width());
    }
    text
}
