use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

use jiff::Timestamp;

/// The slice of all daemons.
const SLICE: &str = "mig-mps.slice";

/// The service that stops the daemons, at a shutdown before their scopes end.
const SERVICE: &str = "mig-mps.service";

/// systemd scopes for daemons, through `systemd-run`.
///
/// A process stays in the cgroup of the service or login session that started it, and ends with it. A daemon must not.
#[derive(Clone, Debug)]
pub struct Scopes {
    program: PathBuf,
}

impl Scopes {
    pub(crate) fn by(program: PathBuf) -> Self {
        Self { program }
    }

    /// Returns a command that becomes `command` in a new scope. Its environment is that of `command`.
    pub fn wrap(&self, device: &str, command: &Command) -> Command {
        let mut scoped = Command::new(&self.program);
        let variables = command.get_envs();
        scoped.env_clear();
        scoped.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        scoped.args(["--scope", "--quiet", "--collect", "--no-ask-password"]);
        // The scope of an earlier daemon may still be there.
        let now = Timestamp::now().as_millisecond();
        scoped.arg(format!("--unit=mig-mps-{device}-{now}.scope"));
        scoped.arg(format!("--slice={SLICE}"));
        scoped.arg(format!("--description=MPS control daemon of {device}"));
        scoped.arg(format!("--property=Before={SERVICE}"));
        scoped.arg("--").arg(named_by_pid(command.get_program()));
        scoped.args(command.get_args());
        scoped
    }
}

/// Returns a path of the program that means the same to another process.
fn named_by_pid(program: &OsStr) -> OsString {
    if program == "/proc/self/exe" {
        return format!("/proc/{}/exe", std::process::id()).into();
    }
    program.to_owned()
}
