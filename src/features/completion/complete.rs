//! Completes a command line for a shell. The scripts of `completions/` run it as `mig-mps __complete WORD…`.
//!
//! It runs at every press of Tab: it loads no driver, takes no lock, starts no program, and prints nothing but candidates.

use std::ffi::OsString;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use clap::{Arg, Command};
use clap_complete::engine::{CompletionCandidate, complete};

use super::candidates::{self, Sources};
use crate::host::{is_terminal_control, to_printable};
use crate::render::print;

/// The first word of a completion. It is not a subcommand, so that help and completion do not show it.
pub const COMPLETE: &str = "__complete";

/// The time after which there are no candidates: a file system may hang, and a directory may be huge. A name service that
/// does not answer takes half of it.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(2);

/// The stack of the thread that completes, as large as that of the first thread usually is.
const STACK_BYTES: usize = 8 << 20;

/// Prints the candidates for the last word, one per line: the value, and after a tab its meaning, if it has one.
pub fn run(program: fn() -> Command, sources: Sources, words: Vec<OsString>) {
    // A shell that completes has no place for messages.
    std::panic::set_hook(Box::new(|_| {}));
    let (send, receive) = mpsc::channel();
    let worker = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || send.send(candidate_lines(program(), sources, words)));
    if worker.is_ok()
        && let Ok(lines) = receive.recv_timeout(COMPLETION_TIMEOUT)
    {
        let _ = print(&lines);
    }
}

fn candidate_lines(program: Command, sources: Sources, mut words: Vec<OsString>) -> String {
    adapt_words(&program, &mut words);
    let given: Arc<[OsString]> = words.clone().into();
    let mut program = program.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        command.mut_args(
            |arg| match candidates::completer_for(sources, &name, &arg, &given) {
                Some(candidates) => arg.add(candidates),
                None => arg,
            },
        )
    });
    let last = words.len().saturating_sub(1);
    let is_empty = words.last().is_none_or(|word| word.is_empty());
    let directory = std::env::current_dir().ok();
    let mut found = complete(&mut program, words, last, directory.as_deref()).unwrap_or_default();
    found.retain(is_shown);
    // Options are offered where nothing else is, or once one is begun.
    if is_empty && !found.iter().all(is_option) {
        found.retain(|candidate| !is_option(candidate));
    }
    found.iter().filter_map(candidate_line).collect()
}

/// Changes the words that the engine takes for something else.
fn adapt_words(program: &Command, words: &mut Vec<OsString>) {
    let Some(mut last) = words.pop() else { return };
    // After `--watch` the engine would complete seconds, which are only taken as `--watch=2`.
    let flags: Vec<String> = program
        .get_subcommands()
        .flat_map(Command::get_arguments)
        .filter(|arg| arg.is_require_equals_set())
        .filter_map(Arg::get_long)
        .map(|long| format!("--{long}"))
        .collect();
    words.retain(|word| !flags.iter().any(|flag| word == flag.as_str()));
    // After a single dash it would offer short options in place of their long forms.
    if last == "-" {
        last = "--".into();
    }
    words.push(last);
}

/// False for hidden subcommands and options, which the engine offers once they are begun. Hidden files are shown then.
fn is_shown(candidate: &CompletionCandidate) -> bool {
    !candidate.is_hide_set() || candidate.get_id().is_none()
}

fn is_option(candidate: &CompletionCandidate) -> bool {
    let id = candidate.get_id();
    id.is_some_and(|id| id.starts_with("arg::"))
}

/// Returns the line of a candidate, or `None` for a name of a file that could control a terminal.
fn candidate_line(candidate: &CompletionCandidate) -> Option<String> {
    let value = candidate.get_value().to_str()?;
    let mut line = Some(value.to_owned()).filter(|value| !value.contains(is_terminal_control))?;
    let help = candidate.get_help().map(ToString::to_string);
    if let Some(help) = help.as_deref().unwrap_or("").lines().next() {
        line = format!("{line}\t{}", to_printable(help));
    }
    Some(line + "\n")
}
