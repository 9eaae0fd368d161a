use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

use super::system_command::{printed, system_command};
use super::{RunError, run};

/// How long a reset may take: seconds for a GPU alone, longer where a fabric manager takes part.
const RESET_LIMIT: Duration = Duration::from_secs(180);

/// `nvidia-smi`, of which only the reset is used: NVML has none.
#[derive(Clone, Debug)]
pub struct NvidiaSmi {
    program: PathBuf,
}

/// Why a GPU was not reset.
#[derive(Debug, Error)]
pub enum ResetError {
    /// The program refused. It says the same in different words: `In use by another client`,
    /// `is currently in use by another process`, `Not Supported`, `Insufficient Permissions`.
    #[error("nvidia-smi --gpu-reset -i {pci} ({status}) said: {said}")]
    Refused {
        /// The GPU's bus id.
        pci: String,
        /// How the program ended.
        status: ExitStatus,
        /// All it said.
        said: String,
    },
    /// The program ended with 0 and did not say that it reset the GPU.
    #[error(
        "nvidia-smi --gpu-reset -i {pci} ended without an error and without saying that the GPU was reset: {said}"
    )]
    Strange {
        /// The GPU's bus id.
        pci: String,
        /// All it said.
        said: String,
    },
    /// The program could not be run to its end. At its limit it was killed: what became of the GPU
    /// is not known.
    #[error("resetting GPU {pci}: {error}")]
    Program {
        /// The GPU's bus id.
        pci: String,
        /// Why.
        error: RunError,
    },
}

impl ResetError {
    /// Whether some process still held the GPU.
    pub fn is_in_use(&self) -> bool {
        const SAYINGS: [&str; 4] = [
            "In use by another client",
            "in use by another process",
            "being used by",
            "is in use",
        ];
        match self {
            Self::Refused { said, .. } => SAYINGS.iter().any(|saying| said.contains(saying)),
            Self::Strange { .. } | Self::Program { .. } => false,
        }
    }

    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Refused { .. } if self.is_in_use() => Some(
                "whatever has /dev/nvidiaN open must end first, containers included; persistence \
                 mode (nvidia-smi -pm 0) and the module nvidia_drm hold a GPU too",
            ),
            Self::Refused { said, .. } if said.contains("Not Supported") => {
                Some("this GPU cannot be reset from here, as in a virtual machine: reboot")
            }
            Self::Refused { said, .. } if said.contains("Insufficient Permissions") => {
                Some("run it as root")
            }
            _ => None,
        }
    }
}

impl NvidiaSmi {
    /// The program at that path.
    pub fn at(program: PathBuf) -> Self {
        Self { program }
    }

    /// Resets one GPU, named by its bus id as `/sys/bus/pci/devices` spells it. All its GPU
    /// instances are gone then, and a pending MIG mode is the current one. Nobody may have the GPU
    /// open, this process included: see [`Nvml::while_shut_down`](crate::nvml::Nvml::while_shut_down).
    ///
    /// # Errors
    /// [`ResetError`]
    pub fn reset(&self, pci: &str) -> Result<(), ResetError> {
        let mut command = system_command(&self.program);
        command.args(["--gpu-reset", "-i", pci]);
        let output = run(&mut command, "", RESET_LIMIT).map_err(|error| ResetError::Program {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::programs::Fake;

    #[test]
    fn only_its_own_word_counts() {
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
