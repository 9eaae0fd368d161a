//! Commands for programs of the system, and what they print.

use std::path::Path;
use std::process::Command;

use super::Output;

/// A program of the machine in a clean environment: what it says is read, so it speaks no other
/// language, and nothing of the caller's steers it.
pub(super) fn system_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").current_dir("/");
    for kept in ["PATH", "LD_LIBRARY_PATH", "HOME"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command
}

/// All a program said, on one line, for an error.
pub(super) fn printed(output: &Output) -> String {
    let said = format!("{}\n{}", output.stdout, output.stderr);
    let lines: Vec<_> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}
