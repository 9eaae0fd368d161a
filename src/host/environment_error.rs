use std::path::PathBuf;

use thiserror::Error;

use crate::config::{
    CONTROL, CONTROL_PROGRAM, NVIDIA_SMI, NVIDIA_SMI_PROGRAM, SERVER_PROGRAM, SYSTEMCTL,
    SYSTEMCTL_PROGRAM,
};

/// A directory or program that the environment lacks.
#[derive(Debug, Error)]
pub enum EnvironmentError {
    /// A plain user has no runtime directory.
    #[error("XDG_RUNTIME_DIR is not set: there is no private directory for this user's daemons")]
    NoRuntimeDir,
    /// A plain user has no directory for logs.
    #[error("neither XDG_STATE_HOME nor HOME is set: there is no directory for this user's logs")]
    NoStateDir,
    #[error("{CONTROL_PROGRAM} is not in PATH")]
    NoControlProgram,
    /// `MIG_MPS_CONTROL` names no file.
    #[error("{CONTROL} is {}, where there is no program", .0.display())]
    WrongControlProgram(PathBuf),
    /// The control daemon would not find the server program.
    #[error("{SERVER_PROGRAM} is not in PATH, where {CONTROL_PROGRAM} looks for it")]
    NoServerProgram,
    #[error("{NVIDIA_SMI_PROGRAM}, which resets GPUs, is not in PATH")]
    NoNvidiaSmi,
    /// `MIG_MPS_NVIDIA_SMI` names no file.
    #[error("{NVIDIA_SMI} is {}, where there is no program", .0.display())]
    WrongNvidiaSmi(PathBuf),
    /// The system has no systemd, like most containers.
    #[error("{SYSTEMCTL_PROGRAM} is not in PATH: no service can be stopped from here")]
    NoSystemctl,
    /// `MIG_MPS_SYSTEMCTL` names no file.
    #[error("{SYSTEMCTL} is {}, where there is no program", .0.display())]
    WrongSystemctl(PathBuf),
}

impl EnvironmentError {
    /// Returns the remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoRuntimeDir => {
                "log in through a session that sets XDG_RUNTIME_DIR, set MIG_MPS_RUN_DIR, or run it as root"
            }
            Self::NoStateDir => "set HOME or MIG_MPS_LOG_DIR",
            Self::NoControlProgram | Self::WrongControlProgram(_) | Self::NoServerProgram => {
                "both programs come with the NVIDIA driver (Debian: nvidia-cuda-mps); \
                 MIG_MPS_CONTROL may give the path of the control program"
            }
            Self::NoNvidiaSmi | Self::WrongNvidiaSmi(_) => {
                "it comes with the NVIDIA driver; MIG_MPS_NVIDIA_SMI may give its path"
            }
            Self::NoSystemctl | Self::WrongSystemctl(_) => {
                "stop what holds the GPU by the means that started it; from within a container, on the host"
            }
        }
    }
}
