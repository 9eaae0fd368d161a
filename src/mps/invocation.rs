use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Subcommand};

use crate::config::CONTROL;
use crate::host::{LAUNCH, Limits, MpsPrograms};

/// Lets one server of root serve all users at once.
pub(super) const MULTIUSER: &str = "-multiuser-server";

/// A call of NVIDIA's control program, which is arguments of the helper.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// The `CUDA_MPS_PIPE_DIRECTORY`
    #[arg(long)]
    pub pipe: PathBuf,
    #[command(subcommand)]
    pub task: Task,
}

/// The task of a call of the control program.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Task {
    /// Become the daemon of a device
    Daemon(DaemonTask),
    /// Pass on the commands on standard input
    Session,
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct DaemonTask {
    /// The UUID of the device
    #[arg(long)]
    pub device: String,
    /// The `CUDA_MPS_LOG_DIRECTORY`
    #[arg(long)]
    pub log: PathBuf,
    /// Let one server of root serve all users at once
    #[arg(long)]
    pub multiuser: bool,
    /// `HOME` of the daemon's user, if that is not the caller
    #[arg(long)]
    pub user_dir: Option<PathBuf>,
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
        if let Task::Daemon(daemon) = &self.task {
            command
                .arg("-d")
                .args(daemon.multiuser.then_some(MULTIUSER))
                .env("CUDA_VISIBLE_DEVICES", &daemon.device)
                .env("CUDA_MPS_LOG_DIRECTORY", &daemon.log);
            user_dir = daemon.user_dir.clone().map(Into::into).or(user_dir);
        }
        command.envs(user_dir.map(|user_dir| ("HOME", user_dir)));
        command
    }

    /// Returns the command, run as another user or with other limits, and a daemon in a scope of its own.
    pub(super) fn command_within(&self, limits: &Limits, programs: &MpsPrograms) -> Command {
        let command = self.limited_command(limits, programs);
        match (&self.task, &programs.scopes) {
            (Task::Daemon(daemon), Some(scopes)) => scopes.wrap(&daemon.device, &command),
            _ => command,
        }
    }

    /// Returns the command for these limits. The helper applies them and becomes the control program.
    fn limited_command(&self, limits: &Limits, programs: &MpsPrograms) -> Command {
        if *limits == Limits::default() {
            return self.command(programs);
        }
        let mut command = clean(&programs.helper, programs);
        command
            .env(CONTROL, &programs.control)
            .args(limits.words(LAUNCH))
            .args(self.arguments());
        command
    }

    /// Returns the arguments of the helper for this call.
    fn arguments(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--pipe".into(), self.pipe.clone().into()];
        match &self.task {
            Task::Session => words.push("session".into()),
            Task::Daemon(daemon) => {
                words.extend(["daemon", "--device", &daemon.device, "--log"].map(Into::into));
                words.push((&daemon.log).into());
                words.extend(daemon.multiuser.then(|| "--multiuser".into()));
                if let Some(user_dir) = &daemon.user_dir {
                    words.extend(["--user-dir".into(), user_dir.into()]);
                }
            }
        }
        words
    }
}

fn clean(program: &Path, programs: &MpsPrograms) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", &programs.path);
    command.envs(std::env::var_os(KEPT).map(|value| (KEPT, value)));
    command
}
