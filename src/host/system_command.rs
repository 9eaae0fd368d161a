//! Commands for programs of the system, and what they print.

use std::path::Path;
use std::process::Command;

use super::Output;

/// Returns a command for a program of the system in a clean environment. Its output is parsed, so the locale is C.
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

/// Returns the whole output of a program on one line, for an error.
pub(super) fn printed(output: &Output) -> String {
    let said = format!("{}\n{}", output.stdout, output.stderr);
    let lines: Vec<_> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}
