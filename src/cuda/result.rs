use std::fmt;

use serde::{Deserialize, Serialize};

/// A call of libcuda failed, with this `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CudaError(pub u32);

impl CudaError {
    pub const DEVICE_UNAVAILABLE: Self = Self(46);
    pub const NO_DEVICE: Self = Self(100);
    /// The library lacks a function (`CUDA_ERROR_NOT_FOUND`).
    pub const MISSING_FUNCTION: Self = Self(500);
    pub const CONNECTION_FAILED: Self = Self(805);
    pub const SERVER_NOT_READY: Self = Self(807);

    pub(super) fn check(code: u32) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self(code)) }
    }

    /// Returns NVIDIA's name, of the errors that a client may get.
    fn name(self) -> Option<&'static str> {
        let name = match self {
            Self(2) => "CUDA_ERROR_OUT_OF_MEMORY",
            Self::DEVICE_UNAVAILABLE => "CUDA_ERROR_DEVICE_UNAVAILABLE",
            Self::NO_DEVICE => "CUDA_ERROR_NO_DEVICE",
            Self::MISSING_FUNCTION => "CUDA_ERROR_NOT_FOUND",
            Self(700) => "CUDA_ERROR_ILLEGAL_ADDRESS",
            Self(719) => "CUDA_ERROR_LAUNCH_FAILED",
            Self(801) => "CUDA_ERROR_NOT_SUPPORTED",
            Self(802) => "CUDA_ERROR_SYSTEM_NOT_READY",
            Self(803) => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            Self(804) => "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            Self::CONNECTION_FAILED => "CUDA_ERROR_MPS_CONNECTION_FAILED",
            Self(806) => "CUDA_ERROR_MPS_RPC_FAILURE",
            Self::SERVER_NOT_READY => "CUDA_ERROR_MPS_SERVER_NOT_READY",
            Self(808) => "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
            Self(809) => "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
            Self(810) => "CUDA_ERROR_MPS_CLIENT_TERMINATED",
            Self(811) => "CUDA_ERROR_CDP_NOT_SUPPORTED",
            Self(915) => "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
            Self(999) => "CUDA_ERROR_UNKNOWN",
            _ => return None,
        };
        Some(name)
    }
}

/// `error 805 (CUDA_ERROR_MPS_CONNECTION_FAILED)`
impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}", self.0)?;
        self.name().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}
