//! The door to libcuda, for the attach check alone: is this process an MPS client?
//!
//! `cuInit` and one attribute tell, without a context and without taking a client slot (measured on an H200: 10 to 18 ms).
//! On a device that hangs, or that serves another user, `cuInit` never returns, so the check runs in a child process.

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};

/// The driver's file name of the library.
const NAME: &str = "libcuda.so.1";

type Init = unsafe extern "C" fn(c_uint) -> c_uint;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_uint;
type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_uint;

/// An open libcuda.
struct Cuda {
    library: Library,
}

/// The attributes of a device that are read, by their numbers in `cuda.h`.
const MULTIPROCESSOR_COUNT: c_int = 16;
const MPS_ENABLED: c_int = 133;

/// The first device that the process sees.
const FIRST: c_int = 0;

/// Loads the library at this path, or the one that the dynamic linker finds, and lets go of it. Fails with the message of
/// the dynamic linker.
pub fn load(path: Option<&Path>) -> Result<(), String> {
    Cuda::open(path)
        .map(drop)
        .map_err(|error| error.to_string())
}

impl Cuda {
    /// Opens the library at this path, or the one that the dynamic linker finds.
    fn open(path: Option<&Path>) -> Result<Self, libloading::Error> {
        let path = path.unwrap_or(Path::new(NAME));
        // SAFETY: the driver's library may be loaded at any time; what runs then is its own initialisation.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?;
        Ok(Self { library })
    }

    /// Initialises CUDA, which makes the process an MPS client if it reaches a daemon. May never return.
    fn init(&self) -> Result<(), CudaError> {
        // SAFETY: the signature is that of cuda.h.
        let init = unsafe { self.library.get::<Init>(b"cuInit\0") };
        let init = init.map_err(|_| CudaError::MISSING_FUNCTION)?;
        // SAFETY: the flags must be 0.
        CudaError::check(unsafe { init(0) })
    }

    /// Reads an attribute of the first device.
    fn attribute(&self, attribute: c_int) -> Result<c_int, CudaError> {
        // SAFETY: the signature is that of cuda.h.
        let get = unsafe { self.library.get::<GetAttribute>(b"cuDeviceGetAttribute\0") };
        let get = get.map_err(|_| CudaError::MISSING_FUNCTION)?;
        let mut value = 0;
        // SAFETY: the pointer is to a number that lives, and a device handle is an ordinal.
        CudaError::check(unsafe { get(&raw mut value, attribute, FIRST) })?;
        Ok(value)
    }

    /// Returns the UUID of the first device: under MIG that of the MIG device, from drivers that have it.
    fn uuid(&self) -> Result<[u8; 16], CudaError> {
        // SAFETY: both signatures are those of cuda.h.
        let get = unsafe {
            let newer = self.library.get::<GetUuid>(b"cuDeviceGetUuid_v2\0");
            newer.or_else(|_| self.library.get::<GetUuid>(b"cuDeviceGetUuid\0"))
        };
        let get = get.map_err(|_| CudaError::MISSING_FUNCTION)?;
        let mut uuid = [0; 16];
        // SAFETY: the pointer is to 16 bytes that live.
        CudaError::check(unsafe { get(&raw mut uuid, FIRST) })?;
        Ok(uuid)
    }
}

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

    fn check(code: u32) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self(code)) }
    }

    /// Returns NVIDIA's name, of the errors that a client may get.
    pub fn name(self) -> Option<&'static str> {
        let name = match self {
            Self(2) => "CUDA_ERROR_OUT_OF_MEMORY",
            Self::DEVICE_UNAVAILABLE => "CUDA_ERROR_DEVICE_UNAVAILABLE",
            Self::NO_DEVICE => "CUDA_ERROR_NO_DEVICE",
            Self(101) => "CUDA_ERROR_INVALID_DEVICE",
            Self(205) => "CUDA_ERROR_MAP_FAILED",
            Self(214) => "CUDA_ERROR_ECC_UNCORRECTABLE",
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

/// The outcome of initialising CUDA in a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachResult {
    /// CUDA works.
    Initialised {
        /// True if the process is an MPS client.
        is_client: bool,
        /// The UUID of its first device, without a prefix.
        uuid: [u8; 16],
        /// The SMs of that device that it may use.
        sm_count: u32,
        /// The time that `cuInit` took.
        time: Duration,
    },
    Failed(CudaError),
    /// There is no libcuda, or it cannot be loaded.
    NoLibrary(String),
}

/// Initialises CUDA in this process. May never return.
pub fn attach(library: Option<&Path>) -> AttachResult {
    match Cuda::open(library) {
        Ok(cuda) => initialise(&cuda).unwrap_or_else(AttachResult::Failed),
        Err(error) => AttachResult::NoLibrary(error.to_string()),
    }
}

fn initialise(cuda: &Cuda) -> Result<AttachResult, CudaError> {
    let start = Instant::now();
    cuda.init()?;
    let time = start.elapsed();
    Ok(AttachResult::Initialised {
        is_client: cuda.attribute(MPS_ENABLED)? == 1,
        uuid: cuda.uuid()?,
        sm_count: cuda
            .attribute(MULTIPROCESSOR_COUNT)?
            .try_into()
            .unwrap_or(0),
        time,
    })
}
