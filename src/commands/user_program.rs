//! The user's program, as `run` starts it.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::client::Variables;
use crate::error::{CommandError, ExitStatus, Result};
use crate::host::{MORE_PROCESSES, ignore_again};

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
    ignore_again(&mut command);
    let error = command.exec();
    Err(not_started(&command, &error))
}

/// Returns the error for a program that does not start, as shells have it.
pub(super) fn not_started(command: &Command, error: &io::Error) -> CommandError {
    if error.kind() == ErrorKind::WouldBlock {
        let what = format!("cannot run {}: {error}", command.get_program().display());
        return CommandError::new(ExitStatus::NotRun, what).with_hint(MORE_PROCESSES);
    }
    let kind = match error.kind() {
        ErrorKind::NotFound => ExitStatus::NotFound,
        _ => ExitStatus::NotExecutable,
    };
    let program = command.get_program();
    let shown = program.display();
    let path = Path::new(program);
    let hint = match kind {
        ExitStatus::NotFound if path.components().count() > 1 => {
            "check the path, and the interpreter in the first line of a script".to_owned()
        }
        ExitStatus::NotFound => "it is not in PATH: install it, or give its path".to_owned(),
        _ if path.is_dir() => "it is a directory: name a program in it".to_owned(),
        _ => format!("chmod +x {shown}, if it is a program"),
    };
    CommandError::new(kind, format!("cannot run {shown}: {error}")).with_hint(hint)
}
