//! The two streams that the program prints to.

use std::borrow::Cow;
use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Error, Result};
use console::{Term, style};

use super::format::{escaped_lines, fitted};
use crate::host::without_error_numbers;

/// The characters of which pictures are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbols {
    pub(super) border: &'static str,
    /// A free part of a GPU.
    pub(super) free: &'static str,
    /// The used and the free part of a bar.
    pub(super) bar: [&'static str; 2],
}

/// Returns line characters for standard output where the terminal and its locale have them, and ASCII elsewhere.
pub(super) fn symbols() -> Symbols {
    symbols_if(terminal_width().is_some())
}

/// Returns the characters for standard error.
pub(super) fn symbols_for_stderr() -> Symbols {
    symbols_if(is_watched())
}

fn symbols_if(is_terminal: bool) -> Symbols {
    // Only the names of the variables are standard: POSIX has the first that is set count.
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| {
        let value = std::env::var(name).ok();
        value.filter(|value| !value.is_empty())
    });
    let locale = locale.unwrap_or_default().to_ascii_uppercase();
    let has_lines = locale.contains("UTF-8") || locale.contains("UTF8");
    if has_lines && is_terminal && !is_dumb() {
        Symbols {
            border: "│",
            free: "·",
            bar: ["█", "░"],
        }
    } else {
        Symbols {
            border: "|",
            free: ".",
            bar: ["#", "-"],
        }
    }
}

/// True for a terminal that can only add lines.
pub(super) fn is_dumb() -> bool {
    std::env::var("TERM").as_deref() == Ok("dumb")
}

/// True if only errors are wanted.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves out everything but errors, and what a command prints to standard output.
pub fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// True if only errors are wanted.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints a message to standard error, unless only errors are wanted.
pub fn note(text: &str) {
    if !is_quiet() {
        insist(text);
    }
}

/// Prints a message to standard error in any case.
pub(super) fn insist(text: &str) {
    say(&escaped_lines(&without_error_numbers(text)));
}

/// Wraps lines between words if standard error is a terminal.
pub(super) fn on_stderr(text: &str) -> Cow<'_, str> {
    match Term::stderr().size_checked() {
        Some((_, columns)) if is_watched() => Cow::Owned(fitted(text, columns.into())),
        _ => Cow::Borrowed(text),
    }
}

/// Prints an error and its hints to standard error. Both may quote text of users: a log, an answer, a path.
pub fn error(text: &str, hints: &[String]) {
    tracing::error!("{text}");
    let head = style("error").red().bold().for_stderr();
    say(&format!("{head}: {}", escaped_lines(text)));
    for hint in hints {
        let head = style("hint").cyan().bold().for_stderr();
        say(&format!("{head}: {}", escaped_lines(hint)));
    }
}

/// Prints text that is safe for a terminal to standard error, unless only errors are wanted.
pub fn tell(text: &str) {
    if !is_quiet() {
        say(text);
    }
}

/// Prints text that is safe for a terminal to standard error in any case.
pub fn say(text: &str) {
    // If standard error is closed, there is nowhere to report it.
    let _ = writeln!(io::stderr(), "{}", on_stderr(text));
}

/// The width of the terminal, if standard output is one.
pub fn terminal_width() -> Option<usize> {
    let size = Term::stdout().size_checked();
    size.map(|(_, columns)| columns.into())
}

/// The width for output. A program or a log gets every column.
pub fn width() -> usize {
    terminal_width().unwrap_or(usize::MAX)
}

/// True if somebody reads the messages on a terminal.
pub fn is_watched() -> bool {
    console::user_attended_stderr()
}

/// Prints lines to standard output, wrapped between words if it is a terminal.
pub fn print_lines(lines: &str) -> Result<()> {
    print(&format!("{}\n", fitted(lines, width())))
}

/// Prints text to standard output.
pub fn print(text: &str) -> Result<()> {
    printed(io::stdout().write_all(text.as_bytes()))
}

/// Writes out what was printed to standard output. Returns an error if that or the printing failed.
pub fn printed(result: io::Result<()>) -> Result<()> {
    match result.and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(()),
        // The reader has exited. A change goes on all the same.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Error::new(error).context("cannot write to standard output")),
    }
}

/// The pager where `PAGER` names none, and the options it gets where `LESS` has none: quit if the text fits, keep
/// colours, leave the screen as it is.
const PAGER: &str = "less";
const LESS: &str = "FRX";

/// Prints text, in a pager on a terminal.
pub fn page(text: &str) -> Result<()> {
    if is_shown(text)? {
        return Ok(());
    }
    print(text)
}

/// Shows a text in a pager on a terminal. Returns false if it must be printed instead: there is no terminal, no pager,
/// or `PAGER` is empty.
fn is_shown(text: &str) -> io::Result<bool> {
    if !io::stdout().is_terminal() {
        return Ok(false);
    }
    let pager = env::var("PAGER").unwrap_or_else(|_| PAGER.to_owned());
    let mut words = pager.split_whitespace();
    let Some(program) = words.next() else {
        return Ok(false);
    };
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::piped());
    if env::var_os("LESS").is_none() {
        command.env("LESS", LESS);
    }
    let Ok(mut child) = command.spawn() else {
        return Ok(false);
    };
    if let Some(mut stdin) = child.stdin.take() {
        // The reader may quit before the end.
        let _ = stdin.write_all(text.as_bytes());
    }
    child.wait()?;
    Ok(true)
}
