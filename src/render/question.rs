//! A question on the terminal, and the one for consent to a plan that disrupts something.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use console::style;
use dialoguer::theme::{SimpleTheme, Theme};

use super::consequences;
use super::format::{indent_lines, wrap_text};
use super::output::{is_watched, print_styled_note_always, report_always};
use crate::apply::Allowed;
use crate::failure::{ExitStatus, Failure};
use crate::host::FileError;
use crate::plan::{HeldGpus, Plan};

/// True while the cursor is behind a question.
static IS_ASKING: AtomicBool = AtomicBool::new(false);

/// A question with a default answer.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub text: &'a str,
    /// The meaning of the answer, in a sentence.
    pub meaning: &'a str,
    /// The form of the answer.
    pub form: &'a str,
    pub default: &'a str,
}

/// True if there is a terminal to ask on.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && is_watched()
}

/// Asks until the answer can be read; `None` if the input ends.
pub fn ask_question<T>(
    question: Question<'_>,
    read: impl Fn(&str) -> Result<T, String>,
) -> io::Result<Option<T>> {
    let Question { text, meaning, .. } = question;
    print_styled_note_always(&format!("\n{}", style(text).bold().for_stderr()));
    print_styled_note_always(indent_lines(&wrap_text(meaning, PROMPT_WIDTH).join("\n")).trim_end());
    loop {
        let Some(answer) = ask_line(question.form, Some(question.default))? else {
            return Ok(None);
        };
        let answer = match answer.as_str() {
            "" => question.default,
            answer => answer,
        };
        match read(answer) {
            Ok(read) => return Ok(Some(read)),
            Err(why) => {
                let lines: Vec<String> = why
                    .lines()
                    .flat_map(|line| wrap_text(line, PROMPT_WIDTH))
                    .collect();
                report_always(&lines.join("\n"));
            }
        }
    }
}

/// Asks whether to go on; anything but yes means no. `None` if the input ends.
pub fn ask_yes_no(question: &str) -> io::Result<Option<bool>> {
    // A whole line: "maybe" is no yes, and the cursor is never hidden.
    let answer = ask_line(&format!("{question} [y/N]"), None)?;
    Ok(answer.map(|answer| matches!(answer.as_str(), "y" | "Y" | "yes")))
}

/// The width of text that fits every terminal.
const PROMPT_WIDTH: usize = 76;

/// Asks for a line, in dialoguer's form; `None` if the input ends.
///
/// The terminal edits the line, not dialoguer's `Confirm` or `Input`: they ignore Ctrl-D and take what is typed next as
/// the answer, and `Confirm` takes any word with a y in it for yes.
fn ask_line(question: &str, default: Option<&str>) -> io::Result<Option<String>> {
    let mut prompt = String::new();
    SimpleTheme
        .format_input_prompt(&mut prompt, question, default)
        .map_err(io::Error::other)?;
    IS_ASKING.store(true, Ordering::SeqCst);
    let mut stderr = io::stderr();
    write!(stderr, "{prompt}")?;
    stderr.flush()?;
    let mut answer = Vec::new();
    let read = io::stdin().lock().read_until(b'\n', &mut answer);
    let is_line = answer.ends_with(b"\n");
    if is_line {
        // The terminal has moved to the next line.
        IS_ASKING.store(false, Ordering::SeqCst);
    }
    end_question();
    read?;
    Ok(is_line.then(|| String::from_utf8_lossy(&answer).trim().to_owned()))
}

/// Ends the line of a question without an answer, so that the next message starts a line of its own.
pub(super) fn end_question() {
    if IS_ASKING.swap(false, Ordering::SeqCst) {
        // If standard error is closed, there is nowhere to report it.
        let _ = writeln!(io::stderr());
    }
}

/// The way to get consent for a plan that disrupts something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Given beforehand with `--yes`.
    Given,
    /// Asked for on the terminal.
    Ask,
    /// Asked for again: the plan disrupts more than the one that the user agreed to.
    AskAgain,
}

/// Gets consent for a plan, and says first what it waits for. A plan that disrupts nothing needs none. Returns false if the
/// user declines.
pub fn obtain_consent(
    plan: &Plan,
    allowed: Allowed,
    held: &[HeldGpus],
    consent: Consent,
    waits: &str,
) -> Result<bool, NoConsent> {
    let disrupts = consequences::describe_disruptions(plan, allowed, held);
    if disrupts.is_empty() || consent == Consent::Given {
        return Ok(true);
    }
    if !can_ask() {
        return Err(match consent {
            Consent::AskAgain => NoConsent::Outgrown(disrupts),
            _ => NoConsent::NobodyToAsk(disrupts),
        });
    }
    if !waits.is_empty() {
        report_always(waits);
    }
    let unmanaged = plan.unmanaged_instances();
    if !unmanaged.is_empty() {
        let named = unmanaged.join("\n  ");
        report_always(&format!("Not known to be created by mig-mps:\n  {named}"));
    }
    report_always(&format!("This will {disrupts}."));
    let answer = ask_yes_no("Go on?").map_err(|error| NoConsent::Failed(error.into()))?;
    Ok(answer == Some(true))
}

/// The user could not be asked for consent.
#[derive(Debug, thiserror::Error)]
pub enum NoConsent {
    /// There is no terminal, and no `--yes`.
    #[error("confirmation required: this would {0}")]
    NobodyToAsk(String),
    /// There is no terminal, and the user agreed to a plan that disrupts less.
    #[error("the node has changed, and this would now {0}; nothing was changed")]
    Outgrown(String),
    /// The terminal did not work.
    #[error("cannot ask on the terminal: {0}")]
    Failed(FileError),
}

impl Failure for NoConsent {
    fn status(&self) -> ExitStatus {
        ExitStatus::Refused
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NobodyToAsk(_) | Self::Failed(_) => "pass --yes to confirm",
            Self::Outgrown(_) => "run the command again, first with --dry-run to see the plan",
        };
        Some(hint.to_owned())
    }
}
