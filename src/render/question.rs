//! A question on the terminal.

use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use dialoguer::theme::{SimpleTheme, Theme};

/// Whether the cursor stands behind a question.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Asks for a line, in dialoguer's form; `None` where the input ends.
///
/// The terminal makes the line, and not dialoguer's `Input`: that takes no notice of Ctrl-D, and what is typed next as
/// the answer.
///
/// # Errors
/// The system's.
pub(super) fn ask(question: &str) -> io::Result<Option<String>> {
    let mut prompt = String::new();
    SimpleTheme
        .format_input_prompt(&mut prompt, question, None)
        .map_err(io::Error::other)?;
    ASKED.store(true, Ordering::SeqCst);
    let mut stderr = io::stderr();
    write!(stderr, "{prompt}")?;
    stderr.flush()?;
    let mut answer = Vec::new();
    let read = io::stdin().lock().read_until(b'\n', &mut answer);
    let is_line = answer.ends_with(b"\n");
    if is_line {
        // The terminal has ended it.
        ASKED.store(false, Ordering::SeqCst);
    }
    end_question();
    read?;
    Ok(is_line.then(|| String::from_utf8_lossy(&answer).trim().to_owned()))
}

/// Ends the line of a question that has no answer: what is written next begins in one of its own, whoever writes it.
pub(super) fn end_question() {
    if ASKED.swap(false, Ordering::SeqCst) {
        // Nobody can be told that standard error is closed.
        let _ = writeln!(io::stderr());
    }
}
