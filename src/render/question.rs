//! A question on the terminal.

use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use dialoguer::theme::{SimpleTheme, Theme};

/// True while the cursor is behind a question.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Asks for a line, in dialoguer's form; `None` if the input ends.
///
/// The terminal edits the line, not dialoguer's `Confirm` or `Input`: they ignore Ctrl-D and take what is typed next as
/// the answer, and `Confirm` takes any word with a y in it for yes.
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
        // The terminal has moved to the next line.
        ASKED.store(false, Ordering::SeqCst);
    }
    end_question();
    read?;
    Ok(is_line.then(|| String::from_utf8_lossy(&answer).trim().to_owned()))
}

/// Ends the line of a question without an answer, so that the next message starts a line of its own.
pub(super) fn end_question() {
    if ASKED.swap(false, Ordering::SeqCst) {
        // If standard error is closed, there is nowhere to report it.
        let _ = writeln!(io::stderr());
    }
}
