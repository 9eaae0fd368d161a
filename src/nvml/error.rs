//! Errors of NVML: its return codes in words, and the remedies.

use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper_sys::bindings::nvmlReturn_t;
use thiserror::Error;

use crate::failure::Failure;
use crate::host::{MORE_PROCESSES, driver_container_hint, root_hint};

/// NVML's return code (`nvmlReturn_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// The call worked.
    pub const SUCCESS: Self = Self(0);
    /// The library is not initialized.
    pub const UNINITIALIZED: Self = Self(1);
    /// An argument is out of range, or a handle stale.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// This GPU, driver or mode does not have it.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// The caller lacks permission.
    pub const NO_PERMISSION: Self = Self(4);
    /// No such instance.
    pub const NOT_FOUND: Self = Self(6);
    /// The buffer is too small; the call wrote how large it should be.
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    /// The kernel module is not loaded.
    const DRIVER_NOT_LOADED: Self = Self(9);
    /// A GPU has fallen off its bus.
    const GPU_IS_LOST: Self = Self(15);
    /// A GPU must be reset first.
    pub const RESET_REQUIRED: Self = Self(16);
    /// A process uses it.
    pub const IN_USE: Self = Self(19);
    /// No room for the instance. nvml-wrapper does not know this code.
    pub const INSUFFICIENT_RESOURCES: Self = Self(23);
    /// The driver does not know.
    const UNKNOWN: Self = Self(999);
}

impl Code {
    /// Returns the driver's description.
    pub fn description(self) -> &'static str {
        match self.0 {
            0 => "Success",
            1 => "Uninitialized",
            2 => "Invalid Argument",
            3 => "Not Supported",
            4 => "Insufficient Permissions",
            6 => "Not Found",
            7 => "Insufficient Size",
            9 => "Driver Not Loaded",
            10 => "Timeout",
            15 => "GPU is lost",
            16 => "GPU requires reset",
            17 => "The operating system has blocked the request",
            18 => "Driver/library version mismatch",
            19 => "In use by another client",
            20 => "Insufficient Memory",
            23 => "Insufficient Resources",
            999 => "Unknown Error",
            _ => "NVML error",
        }
    }
}

/// Shows the driver's description and the number.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.description(), self.0)
    }
}

/// ` on GPU 0`; nothing for the driver as a whole.
fn place(subject: &str) -> String {
    match subject {
        "the driver" => String::new(),
        _ => format!(" on {subject}"),
    }
}

/// `nvmlDeviceSetMigMode failed on GPU 0: Not Supported (3)`; a lost GPU is said to be lost in plain words first.
fn refusal(subject: &str, call: &str, code: Code) -> String {
    match code {
        Code::GPU_IS_LOST if subject.starts_with("GPU ") => {
            format!(
                "{subject} is lost ({call}: {}, {})",
                code.description(),
                code.0
            )
        }
        _ => format!("{call} failed{}: {code}", place(subject)),
    }
}

/// A failed operation of NVML.
#[derive(Clone, Debug, Error)]
pub enum NvmlError {
    /// The library cannot be loaded.
    #[error("cannot load the NVML library {library}: {reason}")]
    NotFound {
        library: String,
        /// The message of the dynamic linker.
        reason: String,
    },
    /// The driver lacks a call.
    #[error("the driver is too old: its NVML library has no {call}")]
    TooOld { call: &'static str },
    /// The driver answered with an error.
    #[error("{}", refusal(subject, call, *code))]
    Refused {
        call: &'static str,
        /// The GPU or instance.
        subject: String,
        code: Code,
    },
    /// A call did not return. Its thread was abandoned.
    #[error("{call} did not return{} within {} s; the driver or the GPU is hung", place(subject), waited.as_secs())]
    Hung {
        call: &'static str,
        /// The GPU or instance.
        subject: String,
        waited: Duration,
    },
    /// The driver did not answer before, and is not asked again.
    #[error("the driver does not answer")]
    NotAsked,
    /// The system cannot start a thread for a call.
    #[error("cannot start a thread for a call of NVML: {reason}")]
    NoThread {
        /// The message of the system.
        reason: String,
    },
    /// The library gave an undocumented answer.
    #[error(
        "{call} answered {answer}{}, which this version does not support",
        place(subject)
    )]
    Strange {
        call: &'static str,
        /// The GPU or instance.
        subject: String,
        answer: String,
    },
    /// An instance was created that cannot be used, and could not be destroyed.
    #[error("{error}; the cleanup failed as well: {cleanup}")]
    LeftBehind {
        error: Box<Self>,
        /// The error of destroying it.
        cleanup: Box<Self>,
    },
}

impl NvmlError {
    /// Returns this error, with the error of cleaning up after it if there is one.
    pub(super) fn with_cleanup(self, cleaned_up: Result<(), Self>) -> Self {
        match cleaned_up {
            Ok(()) => self,
            Err(cleanup) => Self::LeftBehind {
                error: Box::new(self),
                cleanup: Box::new(cleanup),
            },
        }
    }

    /// Returns `Ok` if the instance is already gone, or its GPU has left MIG mode: there is nothing to destroy.
    pub(super) fn ok_if_gone(self) -> Result<(), Self> {
        match self.code() {
            Some(Code::NOT_FOUND | Code::NOT_SUPPORTED) => Ok(()),
            _ => Err(self),
        }
    }

    /// True if its subject may have been destroyed since it was found: a stale handle is an invalid argument.
    pub fn may_be_gone(&self) -> bool {
        matches!(self.code(), Some(Code::NOT_FOUND | Code::INVALID_ARGUMENT))
    }

    /// True if the GPU or instance is at fault, not the driver.
    pub fn concerns_subject(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Strange { .. })
    }

    /// True if the call may have created something in spite of the error.
    pub fn may_have_worked(&self) -> bool {
        matches!(self, Self::LeftBehind { .. } | Self::Hung { .. })
    }

    /// True if this machine has no driver, or none that is loaded.
    pub fn has_no_driver(&self) -> bool {
        matches!(self, Self::NotFound { .. }) || self.code() == Some(Code::DRIVER_NOT_LOADED)
    }

    /// Returns the driver's code, if it gave one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    pub(super) fn from_init_error(library: &OsStr, error: WrapperError) -> Self {
        let library = library.to_string_lossy().into_owned();
        match error {
            WrapperError::LibloadingError(error) => Self::NotFound {
                library,
                reason: error.to_string(),
            },
            other => Self::from_wrapper(other, "nvmlInit_v2", "the driver"),
        }
    }

    pub(super) fn from_wrapper(error: WrapperError, call: &'static str, subject: &str) -> Self {
        if matches!(error, WrapperError::FailedToLoadSymbol(_)) {
            return Self::TooOld { call };
        }
        let subject = subject.to_owned();
        let is_unknown = matches!(error, WrapperError::Unknown);
        let answer = error.to_string();
        match Code(nvmlReturn_t::from(error)) {
            // The number of errors that are not of NVML.
            Code::UNKNOWN if !is_unknown => Self::Strange {
                call,
                subject,
                answer,
            },
            code => Self::Refused {
                call,
                subject,
                code,
            },
        }
    }
}

impl Failure for NvmlError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotFound { .. } => driver_container_hint().unwrap_or(
                "install the NVIDIA driver, or set MIG_MPS_NVML_LIBRARY to the path of libnvidia-ml.so.1",
            ),
            Self::TooOld { .. } => "install driver 535 or newer",
            Self::Refused { code, .. } => match code.0 {
                4 => return Some(root_hint()),
                3 => "run `mig-mps list` to see what this GPU and driver support",
                9 => "load the NVIDIA kernel module, and check with `nvidia-smi` that it works",
                15 => {
                    "search the kernel log for Xid messages, and reboot; the GPU has fallen off its bus"
                }
                16 => "reset the GPU with `nvidia-smi --gpu-reset -i INDEX`, or reboot",
                18 => "reload the kernel module of the driver, or reboot; the driver was updated",
                20 => "free memory on this machine, then run this command again",
                _ => "run `mig-mps doctor` to find known causes; the kernel log may have more",
            },
            Self::LeftBehind { error, .. } => return error.hint(),
            Self::NoThread { .. } => MORE_PROCESSES,
            Self::Hung { .. } | Self::NotAsked => {
                "search the kernel log for Xid messages; the GPU may need a reset"
            }
            Self::Strange { .. } => "try a newer mig-mps, or another version of the driver",
        };
        Some(hint.to_owned())
    }
}
