use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};

use anyhow::Result;

use super::output::print;

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
