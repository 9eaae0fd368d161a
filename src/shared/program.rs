//! Programs of the user that run as children of mig-mps.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus as ProgramStatus};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::Variables;
use crate::error::CommandError;
use crate::failure::ExitStatus;
use crate::host::{FileError, Host, MORE_PROCESSES, Pid, ProcessHandle, quote_for_shell, reap_all};

/// The time that processes get to exit after SIGTERM, and then after SIGKILL.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the program with the environment of a device's clients.
pub fn client_command(words: &[OsString], variables: &Variables) -> Command {
    let (program, arguments) = words.split_first().unzip();
    let mut command = Command::new(program.map_or(OsStr::new(""), OsString::as_os_str));
    command.args(arguments.unwrap_or_default());
    command.envs(variables.set.iter().map(|(name, value)| (name, value)));
    for name in &variables.unset {
        command.env_remove(name);
    }
    command
}

/// Returns the error for a program that does not start, as shells have it.
pub fn start_error(command: &Command, error: impl Into<FileError>) -> CommandError {
    let error = error.into();
    if error.kind() == ErrorKind::WouldBlock {
        let program = quote_for_shell(&command.get_program().to_string_lossy());
        let what = format!("cannot run {program}: {error}");
        return CommandError::new(ExitStatus::NotRun, what).with_hint(MORE_PROCESSES);
    }
    let program = command.get_program();
    let shown = quote_for_shell(&program.to_string_lossy());
    let path = Path::new(program);
    let is_path = program.as_encoded_bytes().contains(&b'/');
    let found = (!is_path).then(|| find_in_path(path)).flatten();
    if error.kind() == ErrorKind::PermissionDenied && !is_path && found.is_none() {
        let what =
            format!("cannot run {shown}: no directory of PATH that this user can read has it");
        return CommandError::new(ExitStatus::NotFound, what)
            .with_hint("install the program, or give its path");
    }
    let kind = match error.kind() {
        ErrorKind::NotFound => ExitStatus::NotFound,
        _ => ExitStatus::NotExecutable,
    };
    let hint = match kind {
        ExitStatus::NotFound if is_path => {
            "check the path, and the interpreter in the first line of a script".to_owned()
        }
        ExitStatus::NotFound => {
            "install the program, or give its path; it is not in PATH".to_owned()
        }
        _ if path.is_dir() => "give the path of a program in this directory".to_owned(),
        _ => {
            let file = found.as_deref().unwrap_or(path).to_string_lossy();
            format!(
                "run `chmod +x {}` if it is a program",
                quote_for_shell(&file)
            )
        }
    };
    CommandError::new(kind, format!("cannot run {shown}: {error}")).with_hint(hint)
}

/// Returns the first file of this name in the directories of `PATH`, whether it can be run or not.
fn find_in_path(name: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// Returns the exit status of a program as shells have it.
pub fn exit_code(status: ProgramStatus) -> i32 {
    let by_signal = status.signal().map(|signal| 128 + signal);
    status.code().or(by_signal).unwrap_or(1)
}

/// The time between two reports of the driver.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Ends everything that comes from this process, in the same way, and takes its exit statuses.
pub fn end_descendants(host: &Host) {
    end_processes(|| open_descendants(host));
    let _ = reap_all();
}

pub fn end_processes(running: impl Fn() -> Vec<ProcessHandle>) {
    for signal in [Signal::TERM, Signal::KILL] {
        let until = Instant::now() + EXIT_TIMEOUT;
        let mut signalled = BTreeSet::new();
        loop {
            let mut left = running();
            left.retain(|process| !process.has_ended());
            let Some(first) = left.first() else {
                return;
            };
            // One of these may have started another one.
            for process in &left {
                if signalled.insert(process.pid) {
                    let _ = process.send_signal(signal);
                }
            }
            if Instant::now() >= until {
                break;
            }
            first.wait_for_exit(POLL_INTERVAL);
        }
    }
}

/// Returns the processes that come from this one.
pub fn open_descendants(host: &Host) -> Vec<ProcessHandle> {
    let table = host.read_processes().unwrap_or_default();
    table
        .descendants(Pid(std::process::id()))
        .into_iter()
        .filter_map(|pid| table.get(pid))
        .filter_map(|process| host.open_process(process.pid, process.started).ok()?)
        .collect()
}
