use std::path::Path;
use std::time::Duration;

use super::program::ServerProcess;
use crate::host::{Environ, Pid, Uid, caller, is_plain, user_name};
use crate::mps::MpsProgram;

/// An MPS daemon that mig-mps has no record of, or a server without a daemon. It is shown and never touched.
#[derive(Clone, Debug)]
pub struct Unmanaged {
    /// Daemon or server.
    pub program: MpsProgram,
    pub pid: Pid,
    /// Its user; `None` if hidden.
    pub user: Option<Uid>,
    /// Its command line.
    pub command: String,
    /// Time since it was started.
    pub age: Option<Duration>,
    /// Its `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipe_directory: Variable,
    /// True if that directory is gone: no program can reach the daemon.
    pub is_orphan: bool,
    /// Its `CUDA_VISIBLE_DEVICES`.
    pub visible: Variable,
    /// The UUIDs of the devices that it serves, as far as they are known.
    pub devices: Vec<String>,
    pub servers: Vec<ServerProcess>,
}

/// A variable in another process's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// The caller may not read it.
    Hidden,
    /// It is not set.
    Unset,
    /// Its value.
    Is(String),
}

impl Variable {
    pub(super) fn of(environ: Option<&Environ>, name: &str) -> Self {
        let Some(environ) = environ else {
            return Self::Hidden;
        };
        let value = environ.get(name).cloned();
        value.map_or(Self::Unset, Self::Is)
    }

    /// Returns its value, if it is set and can be read.
    pub fn value(&self) -> Option<&str> {
        match self {
            Self::Is(value) => Some(value),
            Self::Hidden | Self::Unset => None,
        }
    }
}

/// The pipe directories that CUDA programs use by default: the documented one, and root's with protocol 3.
pub(super) const DEFAULT_PIPE_DIRECTORIES: [&str; 2] = ["/tmp/nvidia-mps", "/run/nvidia-mps"];

impl Unmanaged {
    /// True if CUDA programs without settings of their own become its clients.
    pub fn is_at_default(&self) -> bool {
        match &self.pipe_directory {
            Variable::Hidden => false,
            Variable::Unset => true,
            Variable::Is(path) => DEFAULT_PIPE_DIRECTORIES.contains(&path.trim_end_matches('/')),
        }
    }

    /// True if it is a daemon, and not a server without one.
    pub fn is_daemon(&self) -> bool {
        self.program == MpsProgram::Control
    }

    /// True if it is a daemon that such programs find.
    pub fn captures_others(&self) -> bool {
        self.is_daemon() && self.is_at_default()
    }

    /// True if it uses the default pipe directory, or its pipe directory is hidden.
    pub fn may_be_at_default(&self) -> bool {
        self.is_at_default() || self.pipe_directory == Variable::Hidden
    }

    /// True if it is a daemon whose environment the caller may not read.
    pub fn is_hidden(&self) -> bool {
        self.is_daemon() && self.pipe_directory == Variable::Hidden
    }

    /// Returns the command by which its owner ends it; `None` if its pipe directory is hidden. The owner chose the
    /// directory: none is returned that a shell would interpret.
    pub fn quit_command(&self) -> Option<String> {
        let pipe = match &self.pipe_directory {
            Variable::Hidden => return None,
            Variable::Unset => DEFAULT_PIPE_DIRECTORIES[0],
            Variable::Is(pipe) => pipe,
        };
        is_plain(pipe)
            .then(|| format!("echo quit | CUDA_MPS_PIPE_DIRECTORY={pipe} nvidia-cuda-mps-control"))
    }

    /// Returns the command by which root runs `mig-mps COMMAND` as the daemon's owner, if the pipe directory is named
    /// like one of mig-mps. The owner chose both names: none is returned that a shell would interpret.
    pub fn managed_by(&self, command: &str) -> Option<String> {
        let user = self.user.filter(|user| *user != caller()).map(user_name)?;
        let run_dir = Path::new(self.pipe_directory.value()?).parent()?.parent()?;
        let runtime = run_dir.parent()?.to_str()?;
        let is_of_mig_mps = run_dir.file_name()? == "mig-mps";
        (is_of_mig_mps && is_plain(runtime) && is_plain(&user)).then(|| {
            format!("runuser -u {user} -- env XDG_RUNTIME_DIR={runtime} mig-mps {command}")
        })
    }

    /// True if it was started with every GPU of the node visible.
    pub fn sees_everything(&self) -> bool {
        self.program == MpsProgram::Control && self.visible == Variable::Unset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(pipe_directory: Variable, visible: Variable) -> Unmanaged {
        Unmanaged {
            program: MpsProgram::Control,
            pid: Pid(1),
            user: None,
            command: String::new(),
            age: None,
            pipe_directory,
            is_orphan: false,
            visible,
            devices: Vec::new(),
            servers: Vec::new(),
        }
    }

    #[test]
    fn the_default_directories_are_known_and_hidden_ones_are_not_guessed() {
        let is_at_default = |pipe: Variable| daemon(pipe, Variable::Unset).is_at_default();
        let at = |path: &str| is_at_default(Variable::Is(path.to_owned()));
        assert!(is_at_default(Variable::Unset));
        assert!(at("/tmp/nvidia-mps") && at("/tmp/nvidia-mps/") && at("/run/nvidia-mps"));
        assert!(!at("/tmp/nvidia-mps-0"));
        assert!(!is_at_default(Variable::Hidden));
        assert!(daemon(Variable::Unset, Variable::Unset).sees_everything());
        assert!(!daemon(Variable::Unset, Variable::Hidden).sees_everything());
    }
}
