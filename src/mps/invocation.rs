use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

use crate::config::CONTROL;
use crate::host::Limits;
use crate::host::MpsPrograms;

/// Lets one server of root's serve every user at once.
pub(super) const MULTIUSER: &str = "-multiuser-server";

/// One call of NVIDIA's control program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Its `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipe: PathBuf,
    /// What it is called for.
    pub task: Task,
}

/// What the control program is called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// To become the daemon of a device.
    Daemon {
        /// The device's UUID.
        device: String,
        /// Its `CUDA_MPS_LOG_DIRECTORY`.
        log: PathBuf,
        /// Lets one server of root's serve every user at once.
        multiuser: bool,
        /// The home directory of the user it runs as, where that is another than the caller.
        home: Option<PathBuf>,
    },
    /// To pass on the commands on its standard input.
    Session,
}

/// What every call passes on of the caller's environment.
const KEPT: &str = "LD_LIBRARY_PATH";

impl Invocation {
    /// The command, run as the caller. Its environment is clean: servers inherit that of their daemon, so nothing
    /// of the caller's `CUDA_*` may reach it.
    pub fn command(&self, programs: &MpsPrograms) -> Command {
        let mut command = clean(&programs.control, programs);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_PROTOCOL_VERSION", "2");
        let mut home = std::env::var_os("HOME");
        if let Task::Daemon {
            device,
            log,
            multiuser,
            home: other,
        } = &self.task
        {
            command
                .arg("-d")
                .env("CUDA_VISIBLE_DEVICES", device)
                .env("CUDA_MPS_LOG_DIRECTORY", log);
            command.args(multiuser.then_some(MULTIUSER));
            home = other.as_ref().map(Into::into).or(home);
        }
        if let Some(home) = home {
            command.env("HOME", home);
        }
        command
    }

    /// The command, run as another user or within other limits. The helper changes both and becomes the control
    /// program then.
    pub(super) fn command_within(&self, limits: &Limits, programs: &MpsPrograms) -> Command {
        if *limits == Limits::default() {
            return self.command(programs);
        }
        let mut command = clean(&programs.helper, programs);
        command
            .env(CONTROL, &programs.control)
            .args(limits.words())
            .args(self.words());
        command
    }

    /// The arguments that tell the helper of this call.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<&OsStr> = vec!["--pipe".as_ref(), self.pipe.as_ref()];
        match &self.task {
            Task::Session => words.push("session".as_ref()),
            Task::Daemon {
                device,
                log,
                multiuser,
                home,
            } => {
                words.extend(["daemon", "--device", device, "--log"].map(OsStr::new));
                words.push(log.as_os_str());
                words.extend(multiuser.then_some(OsStr::new("--multiuser")));
                if let Some(home) = home {
                    words.extend(["--home".as_ref(), home.as_os_str()]);
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
