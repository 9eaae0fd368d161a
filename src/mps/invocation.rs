use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

use crate::config::CONTROL;
use crate::host::Limits;
use crate::host::MpsPrograms;

/// Lets one server of root serve all users at once.
pub(super) const MULTIUSER: &str = "-multiuser-server";

/// A call of NVIDIA's control program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// The `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipe: PathBuf,
    pub task: Task,
}

/// The task of a call of the control program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Becomes the daemon of a device.
    Daemon {
        /// The UUID of the device.
        device: String,
        /// The `CUDA_MPS_LOG_DIRECTORY`.
        log: PathBuf,
        /// Lets one server of root serve all users at once.
        multiuser: bool,
        /// `HOME` of the daemon's user, if that is not the caller.
        user_dir: Option<PathBuf>,
    },
    /// Passes on the commands on its standard input.
    Session,
}

/// The variable of the caller that every call keeps.
const KEPT: &str = "LD_LIBRARY_PATH";

impl Invocation {
    /// Returns the command, run as the caller. Its environment is clean: servers inherit it, and the caller's `CUDA_*`
    /// must not reach them.
    pub fn command(&self, programs: &MpsPrograms) -> Command {
        let mut command = clean(&programs.control, programs);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_PROTOCOL_VERSION", "2");
        let mut user_dir = std::env::var_os("HOME");
        if let Task::Daemon {
            device,
            log,
            multiuser,
            user_dir: other,
        } = &self.task
        {
            command
                .arg("-d")
                .env("CUDA_VISIBLE_DEVICES", device)
                .env("CUDA_MPS_LOG_DIRECTORY", log);
            command.args(multiuser.then_some(MULTIUSER));
            user_dir = other.as_ref().map(Into::into).or(user_dir);
        }
        if let Some(user_dir) = user_dir {
            command.env("HOME", user_dir);
        }
        command
    }

    /// Returns the command, run as another user or with other limits. The helper applies both and becomes the control
    /// program.
    pub(super) fn command_within(&self, limits: &Limits, programs: &MpsPrograms) -> Command {
        if *limits == Limits::default() {
            return self.command(programs);
        }
        let mut command = clean(&programs.helper, programs);
        command
            .env(CONTROL, &programs.control)
            .args(limits.words())
            .args(self.arguments());
        command
    }

    /// Returns the arguments of the helper for this call.
    fn arguments(&self) -> Vec<OsString> {
        let mut words: Vec<&OsStr> = vec!["--pipe".as_ref(), self.pipe.as_ref()];
        match &self.task {
            Task::Session => words.push("session".as_ref()),
            Task::Daemon {
                device,
                log,
                multiuser,
                user_dir,
            } => {
                words.extend(["daemon", "--device", device, "--log"].map(OsStr::new));
                words.push(log.as_os_str());
                words.extend(multiuser.then_some(OsStr::new("--multiuser")));
                if let Some(user_dir) = user_dir {
                    words.extend(["--user-dir".as_ref(), user_dir.as_os_str()]);
                }
            }
        }
        words.into_iter().map(OsStr::to_owned).collect()
    }
}

fn clean(program: &std::path::Path, programs: &MpsPrograms) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", &programs.path);
    if let Some(value) = std::env::var_os(KEPT) {
        command.env(KEPT, value);
    }
    command
}
