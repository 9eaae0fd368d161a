//! The functions of libcuda that the check calls.

use std::ffi::{c_int, c_uint};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::result::CudaError;

/// The driver's file name of the library.
const NAME: &str = "libcuda.so.1";

type Init = unsafe extern "C" fn(c_uint) -> c_uint;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_uint;
type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_uint;

/// An open libcuda.
pub(super) struct Cuda {
    library: Library,
}

/// An attribute of a device, by its number in `cuda.h`.
#[derive(Clone, Copy)]
pub(super) enum Attribute {
    MultiprocessorCount = 16,
    MpsEnabled = 133,
}

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
    pub(super) fn open(path: Option<&Path>) -> Result<Self, libloading::Error> {
        let path = path.unwrap_or(Path::new(NAME));
        // SAFETY: the driver's library may be loaded at any time; what runs then is its own initialisation.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?;
        Ok(Self { library })
    }

    /// Initialises CUDA, which makes the process an MPS client if it reaches a daemon. May never return.
    pub(super) fn init(&self) -> Result<(), CudaError> {
        // SAFETY: the signature is that of cuda.h.
        let init = unsafe { self.library.get::<Init>(b"cuInit\0") };
        let init = init.map_err(|_| CudaError::MISSING_FUNCTION)?;
        // SAFETY: the flags must be 0.
        CudaError::check(unsafe { init(0) })
    }

    /// Reads an attribute of the first device.
    pub(super) fn attribute(&self, attribute: Attribute) -> Result<c_int, CudaError> {
        // SAFETY: the signature is that of cuda.h.
        let get = unsafe { self.library.get::<GetAttribute>(b"cuDeviceGetAttribute\0") };
        let get = get.map_err(|_| CudaError::MISSING_FUNCTION)?;
        let mut value = 0;
        // SAFETY: the pointer is to a number that lives, and a device handle is an ordinal.
        CudaError::check(unsafe { get(&raw mut value, attribute as c_int, FIRST) })?;
        Ok(value)
    }

    /// Returns the UUID of the first device: under MIG that of the MIG device, from drivers that have it.
    pub(super) fn uuid(&self) -> Result<[u8; 16], CudaError> {
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
