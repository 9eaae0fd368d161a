//! `mig-mps explain`

use clap::Args;

use crate::commands::Context;
use crate::error::{Result, usage_error};
use crate::failure::ExitStatus;
use crate::host::{closest_match, quote_for_shell, shorten_command, strip_needless_sudo};
use crate::node::Fault;
use crate::render::{self, command_for, examples, words_for, wrap_behind};

/// Explain a CUDA or NVML error, or a reported problem
///
/// Shows the meaning, the cause and the remedy of each error or problem.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps explain 805", "Explain an error by its number"),
    ("mig-mps explain \"In use by another client\"", "Explain an error by its text"),
    ("mig-mps explain device-hung", "Explain a reported problem"),
]))]
pub struct ExplainArgs {
    /// Number, name or text of an error, or ID of a problem
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

/// Explains errors and problems.
pub fn run(args: &ExplainArgs, _context: &Context<'_>) -> Result<ExitStatus> {
    print_explanations(&args.ids)
}

/// Prints the explanation of what is called by each of these words.
pub(super) fn print_explanations(words: &[String]) -> Result<ExitStatus> {
    let of_each: Result<Vec<Vec<&Fault>>> = words.iter().map(|word| find_faults(word)).collect();
    // A message without quotation marks.
    let of_sentence = || find_faults(&words.join(" ")).map(|faults| vec![faults]);
    let faults = of_each.or_else(|error| of_sentence().map_err(|_| error))?;
    let texts: Vec<String> = faults.into_iter().flatten().map(describe_fault).collect();
    render::print(&texts.join("\n"))?;
    Ok(ExitStatus::Done)
}

/// Returns the fault of this id or name, or the one that other words mean; of a number that CUDA and NVML have, both errors.
fn find_faults(word: &str) -> Result<Vec<&'static Fault>> {
    let found: Vec<&Fault> = Fault::all()
        .iter()
        .filter(|fault| {
            fault.is_called(word) || words_for(&format!("explain {}", fault.id)).contains(&word)
        })
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    // A similar number is another error.
    let is_number = word.contains(|c: char| c.is_ascii_digit());
    let ids = Fault::all().iter().map(|fault| fault.id.as_str());
    let near = match closest_match(word, ids) {
        Some(near) if !is_number => format!(" (did you mean \"{near}\"?)"),
        _ => String::new(),
    };
    let error = usage_error(format!(
        "no check or error has the name \"{}\"{near}",
        shorten_command(word)
    ));
    let error = match command_for(word) {
        Some(command) => error.with_hint(format!("did you mean `mig-mps {command}`?")),
        None => error,
    };
    let error = error.with_hint("run `mig-mps help checks` to list all checks and errors");
    Err(error.with_hint(format!(
        "run `mig-mps help {}` to search the manual",
        quote_for_shell(&shorten_command(word))
    )))
}

fn describe_fault(fault: &Fault) -> String {
    let mut text = format!("{}\n", fault.id);
    for (head, part) in [
        ("meaning", &fault.meaning),
        ("why", &fault.why),
        ("remedy", &strip_needless_sudo(&fault.remedy)),
    ] {
        text += &wrap_behind(&format!("  {head:<8}"), part, render::output_width());
    }
    text
}
