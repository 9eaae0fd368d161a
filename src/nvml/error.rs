use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

use nvml_wrapper::error::NvmlError as WrapperError;
use thiserror::Error;

use crate::host::MORE_PROCESSES;

/// NVML's return code (`nvmlReturn_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// The call worked.
    pub const SUCCESS: Self = Self(0);
    /// The library is not in use.
    pub const UNINITIALIZED: Self = Self(1);
    /// An argument is out of range, or a handle stale.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// This GPU, driver or mode does not have it.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// The caller may not.
    pub const NO_PERMISSION: Self = Self(4);
    /// No such instance.
    pub const NOT_FOUND: Self = Self(6);
    /// The buffer is too small; the call wrote how large it should be.
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    /// A GPU must be reset first.
    pub const RESET_REQUIRED: Self = Self(16);
    /// Some process holds it.
    pub const IN_USE: Self = Self(19);
    /// No room for the instance. nvml-wrapper does not know this code.
    pub const INSUFFICIENT_RESOURCES: Self = Self(23);
}

/// In the driver's words, with the number.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
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
        };
        write!(f, "{text} ({})", self.0)
    }
}

/// Why NVML did not do what was asked.
#[derive(Clone, Debug, Error)]
pub enum NvmlError {
    /// There is no such library.
    #[error("cannot load the NVML library {library}: {reason}")]
    NotFound {
        /// The name or path that was tried.
        library: String,
        /// What the dynamic linker said.
        reason: String,
    },
    /// The driver has no such call.
    #[error("the driver is too old: its NVML library has no {call}")]
    TooOld {
        /// The missing symbol.
        call: &'static str,
    },
    /// The driver answered with an error.
    #[error("{subject}: {call}: {code}")]
    Refused {
        /// The call.
        call: &'static str,
        /// The GPU or instance it was about.
        subject: String,
        /// What came back.
        code: Code,
    },
    /// A call did not return. Its thread was left behind.
    #[error("{subject}: {call} has not returned for {} s: the driver or the GPU hangs", waited.as_secs())]
    Hung {
        /// The call.
        call: &'static str,
        /// The GPU or instance it was about.
        subject: String,
        /// For how long it was waited.
        waited: Duration,
    },
    /// The system starts no thread to make a call in.
    #[error("cannot start a thread for a call of NVML: {reason}")]
    NoThread {
        /// What the system said.
        reason: String,
    },
    /// The library answered something that is not in its documentation.
    #[error("{subject}: {call} answered {answer}, which this version does not understand")]
    Strange {
        /// The call.
        call: &'static str,
        /// The GPU or instance it was about.
        subject: String,
        /// The answer, word for word.
        answer: String,
    },
    /// An instance was made that cannot be used, and it could not be destroyed.
    #[error("{error}; what had been made is still there: {left}")]
    LeftBehind {
        /// Why it cannot be used.
        error: Box<Self>,
        /// Why it could not be destroyed.
        left: Box<Self>,
    },
}

impl NvmlError {
    /// This failure, with what came of cleaning up after it.
    pub(super) fn after(self, cleaned_up: Result<(), Self>) -> Self {
        match cleaned_up {
            Ok(()) => self,
            Err(left) => Self::LeftBehind {
                error: Box::new(self),
                left: Box::new(left),
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

    /// True if the call may have created something in spite of the error.
    pub fn may_have_worked(&self) -> bool {
        matches!(self, Self::LeftBehind { .. } | Self::Hung { .. })
    }

    /// The code, if the driver answered with one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// What to do about it, where there is something general to say.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotFound { .. } => Some(
                "install the NVIDIA driver, or set MIG_MPS_NVML_LIBRARY to the path of libnvidia-ml.so.1",
            ),
            Self::TooOld { .. } => Some("MIG needs driver 450 or newer, this program needs 470"),
            Self::Hung { .. } => {
                Some("look for Xid messages in the kernel log; the GPU may need a reset")
            }
            Self::Refused { code, .. } => match code.0 {
                4 => Some("run it as root"),
                9 => Some("load the NVIDIA kernel module; nvidia-smi shows whether it works"),
                16 => Some("reset the GPU with nvidia-smi --gpu-reset -i INDEX, or reboot"),
                18 => Some("the driver was updated: reload its kernel module, or reboot"),
                _ => None,
            },
            Self::LeftBehind { error, .. } => error.hint(),
            Self::NoThread { .. } => Some(MORE_PROCESSES),
            Self::Strange { .. } => None,
        }
    }

    pub(super) fn at_init(library: &OsStr, error: &WrapperError) -> Self {
        let library = library.to_string_lossy().into_owned();
        match error {
            WrapperError::LibloadingError(error) => Self::NotFound {
                library,
                reason: error.to_string(),
            },
            other => Self::of(other, "nvmlInit_v2", "the driver"),
        }
    }

    pub(super) fn of(error: &WrapperError, call: &'static str, subject: &str) -> Self {
        if matches!(error, WrapperError::FailedToLoadSymbol(_)) {
            return Self::TooOld { call };
        }
        let subject = subject.to_owned();
        match code_of(error) {
            Some(code) => Self::Refused {
                call,
                subject,
                code,
            },
            None => Self::Strange {
                call,
                subject,
                answer: error.to_string(),
            },
        }
    }
}

/// The number behind one of nvml-wrapper's names for it.
fn code_of(error: &WrapperError) -> Option<Code> {
    Some(Code(match error {
        WrapperError::Uninitialized => 1,
        WrapperError::InvalidArg => 2,
        WrapperError::NotSupported => 3,
        WrapperError::NoPermission => 4,
        WrapperError::NotFound => 6,
        WrapperError::InsufficientSize(_) => 7,
        WrapperError::DriverNotLoaded => 9,
        WrapperError::Timeout => 10,
        WrapperError::GpuLost => 15,
        WrapperError::ResetRequired => 16,
        WrapperError::OperatingSystem => 17,
        WrapperError::LibRmVersionMismatch => 18,
        WrapperError::InUse => 19,
        WrapperError::InsufficientMemory => 20,
        WrapperError::Unknown => 999,
        WrapperError::UnexpectedVariant(code) => *code,
        _ => return None,
    }))
}
