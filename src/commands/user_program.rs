//! The user's program, as `run` starts it.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::client::Variables;
use crate::error::{CommandError, ExitStatus, Result};

/// Returns the program with the environment of a device's clients.
pub(super) fn command(words: &[OsString], variables: &Variables) -> Command {
    let (program, arguments) = words.split_first().unzip();
    let mut command = Command::new(program.map_or(OsStr::new(""), OsString::as_os_str));
    command.args(arguments.unwrap_or_default());
    command.envs(variables.set.iter().map(|(name, value)| (name, value)));
    for name in &variables.unset {
        command.env_remove(name);
    }
    command
}

/// Becomes the program. Returns only if that fails.
pub(super) fn become_it(words: &[OsString], variables: &Variables) -> Result<Infallible> {
    let mut command = command(words, variables);
    let error = command.exec();
    Err(not_started(&command, &error))
}

/// Returns the error for a program that does not start, as shells have it.
pub(super) fn not_started(command: &Command, error: &io::Error) -> CommandError {
    let kind = match error.kind() {
        ErrorKind::NotFound => ExitStatus::NotFound,
        _ => ExitStatus::NotExecutable,
    };
    let program = command.get_program().display();
    CommandError::new(kind, format!("cannot run {program}: {error}"))
}
