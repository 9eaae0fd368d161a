//! `nvidia-smi`, and the commands of programs of the system.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use thiserror::Error;

use super::{Output, RunError, as_root, run};
use crate::failure::Failure;

/// The time that a reset may take: seconds for a single GPU, longer with a fabric manager.
const RESET_LIMIT: Duration = Duration::from_secs(180);

/// `nvidia-smi`, used only for resets, which NVML lacks.
#[derive(Clone, Debug)]
pub struct NvidiaSmi {
    program: PathBuf,
}

/// A failed reset of a GPU.
#[derive(Debug, Error)]
pub enum ResetError {
    /// The program refused. Its wording varies: `In use by another client`, `is currently in use by another process`,
    /// `Not Supported`, `Insufficient Permissions`.
    #[error("nvidia-smi --gpu-reset -i {pci} ({status}) said: {said}")]
    Refused {
        pci: String,
        status: ExitStatus,
        said: String,
    },
    /// The program exited with status 0 but did not report the reset.
    #[error(
        "nvidia-smi --gpu-reset -i {pci} ended without an error and without saying that the GPU was reset: {said}"
    )]
    Strange { pci: String, said: String },
    /// The program could not be run to its end. At its limit it was killed, and the state of the GPU is unknown.
    #[error("resetting GPU {pci}: {error}")]
    Program { pci: String, error: RunError },
}

impl ResetError {
    /// True if a process still used the GPU.
    pub fn is_in_use(&self) -> bool {
        const IN_USE: [&str; 4] = [
            "In use by another client",
            "in use by another process",
            "being used by",
            "is in use",
        ];
        match self {
            Self::Refused { said, .. } => IN_USE.iter().any(|text| said.contains(text)),
            Self::Strange { .. } | Self::Program { .. } => false,
        }
    }
}

impl Failure for ResetError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Refused { .. } if self.is_in_use() => {
                "whatever has /dev/nvidiaN open must end first, containers included; persistence \
                 mode (nvidia-smi -pm 0) and the module nvidia_drm hold a GPU too"
            }
            Self::Refused { said, .. } if said.contains("Not Supported") => {
                "this GPU cannot be reset from here, as in a virtual machine: reboot"
            }
            Self::Refused { said, .. } if said.contains("Insufficient Permissions") => {
                return Some(as_root());
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

impl NvidiaSmi {
    pub fn at(program: PathBuf) -> Self {
        Self { program }
    }

    /// Resets a GPU, given by its bus id in the form of `/sys/bus/pci/devices`. This destroys all its GPU instances and
    /// activates a pending MIG mode. No process may have the GPU open, including this one: see [`Nvml::while_shut_down`](crate::nvml::Nvml::while_shut_down).
    pub fn reset(&self, pci: &str) -> Result<(), ResetError> {
        let mut command = system_command(&self.program);
        command.args(["--gpu-reset", "-i", pci]);
        let output = run(&command, "", RESET_LIMIT).map_err(|error| ResetError::Program {
            pci: pci.to_owned(),
            error,
        })?;
        let (pci, said) = (pci.to_owned(), printed(&output));
        match output.status {
            status if !status.success() => Err(ResetError::Refused { pci, status, said }),
            _ if !said.contains("was successfully reset") => Err(ResetError::Strange { pci, said }),
            _ => Ok(()),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::programs::Fake;

    #[test]
    fn only_its_own_report_counts() {
        let smi = |name: &str, script: &str| {
            let fake = Fake::new(name, script);
            NvidiaSmi::at(fake.path.clone()).reset("0000:17:00.0")
        };
        let done = r#"[ "$*" = "--gpu-reset -i 0000:17:00.0" ] && echo "GPU 00000000:17:00.0 was successfully reset.""#;
        smi("reset-done", done).unwrap();
        let silent = smi("reset-silent", "echo All done.").unwrap_err();
        assert!(
            silent.to_string().ends_with("the GPU was reset: All done."),
            "{silent}"
        );
        let busy = smi(
            "reset-busy",
            "echo 'The following GPUs could not be reset:'; echo '  GPU 00000000:17:00.0: In use by another client'; exit 255",
        )
        .unwrap_err();
        assert!(busy.is_in_use());
        assert_eq!(
            busy.to_string(),
            "nvidia-smi --gpu-reset -i 0000:17:00.0 (exit status: 255) said: The following GPUs could \
             not be reset: GPU 00000000:17:00.0: In use by another client"
        );
        let older = smi(
            "reset-older",
            "echo 'GPU 00000000:C1:00.0 is currently in use by another process.' >&2; exit 1",
        );
        assert!(older.unwrap_err().is_in_use());
        let never = NvidiaSmi::at("/no/nvidia-smi".into())
            .reset("0000:17:00.0")
            .unwrap_err();
        assert!(
            never
                .to_string()
                .starts_with("resetting GPU 0000:17:00.0: cannot start /no/nvidia-smi: ")
        );
    }
}
