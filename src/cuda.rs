//! The interface to libcuda. The attach check asks whether this process is an MPS client, and the self-test runs a kernel.
//!
//! `cuInit` and one attribute answer the attach check, without a context and without taking a client slot (measured on an
//! H200: 10 to 18 ms). On a device that hangs, or that serves another user, `cuInit` never returns, so both run in a child
//! process.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};

/// The driver's file name of the library.
const LIBRARY_NAME: &str = "libcuda.so.1";

type Init = unsafe extern "C" fn(c_uint) -> c_uint;
type GetCount = unsafe extern "C" fn(*mut c_int) -> c_uint;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_uint;
type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_uint;
type CreateContext = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_uint;
type GetCurrent = unsafe extern "C" fn(*mut *mut c_void) -> c_uint;
type DestroyContext = unsafe extern "C" fn(*mut c_void) -> c_uint;
type GetMemory = unsafe extern "C" fn(*mut usize, *mut usize) -> c_uint;
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_uint;
type LoadModule = unsafe extern "C" fn(*mut *mut c_void, *const c_char) -> c_uint;
type GetFunction = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_uint;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_uint;
type Synchronize = unsafe extern "C" fn() -> c_uint;
type CopyToHost = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_uint;

/// An open libcuda.
struct Cuda {
    library: Library,
}

/// The attributes of a device that are read, by their numbers in `cuda.h`.
const MULTIPROCESSOR_COUNT: c_int = 16;
const MPS_ENABLED: c_int = 133;

/// The first device that the process sees.
const FIRST_DEVICE: c_int = 0;

/// Loads the library at this path, or the one that the dynamic linker finds, and lets go of it. Fails with the message of
/// the dynamic linker.
pub fn check_library(path: Option<&Path>) -> Result<(), String> {
    Cuda::open(path)
        .map(drop)
        .map_err(|error| error.to_string())
}

impl Cuda {
    /// Opens the library at this path, or the one that the dynamic linker finds.
    fn open(path: Option<&Path>) -> Result<Self, libloading::Error> {
        let path = path.unwrap_or(Path::new(LIBRARY_NAME));
        // SAFETY: the driver's library may be loaded at any time; what runs then is its own initialization.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?;
        Ok(Self { library })
    }

    /// Initializes CUDA, which makes the process an MPS client if it reaches a daemon. May never return.
    fn init(&self) -> Result<(), CudaError> {
        // SAFETY: the signature is that of cuda.h.
        let init = unsafe { self.library.get::<Init>(b"cuInit\0") };
        let init = init.map_err(|_| CudaError::MISSING_FUNCTION)?;
        // SAFETY: the flags must be 0.
        CudaError::check(unsafe { init(0) })
    }

    /// Returns the number of devices that the process sees.
    fn count_devices(&self) -> Result<c_int, CudaError> {
        // SAFETY: the signature is that of cuda.h.
        let count = unsafe { self.library.get::<GetCount>(b"cuDeviceGetCount\0") };
        let count = count.map_err(|_| CudaError::MISSING_FUNCTION)?;
        let mut devices = 0;
        // SAFETY: the pointer is to a number that lives.
        CudaError::check(unsafe { count(&raw mut devices) })?;
        Ok(devices)
    }

    /// Reads an attribute of a device, by its ordinal.
    fn query_attribute(&self, attribute: c_int, device: c_int) -> Result<c_int, CudaError> {
        // SAFETY: the signature is that of cuda.h.
        let get = unsafe { self.library.get::<GetAttribute>(b"cuDeviceGetAttribute\0") };
        let get = get.map_err(|_| CudaError::MISSING_FUNCTION)?;
        let mut value = 0;
        // SAFETY: the pointer is to a number that lives, and a device handle is an ordinal.
        CudaError::check(unsafe { get(&raw mut value, attribute, device) })?;
        Ok(value)
    }

    /// Returns the UUID of a device: under MIG that of the MIG device, from drivers that have it.
    fn query_uuid(&self, device: c_int) -> Result<[u8; 16], CudaError> {
        // SAFETY: both signatures are those of cuda.h.
        let get = unsafe {
            let newer = self.library.get::<GetUuid>(b"cuDeviceGetUuid_v2\0");
            newer.or_else(|_| self.library.get::<GetUuid>(b"cuDeviceGetUuid\0"))
        };
        let get = get.map_err(|_| CudaError::MISSING_FUNCTION)?;
        let mut uuid = [0; 16];
        // SAFETY: the pointer is to 16 bytes that live.
        CudaError::check(unsafe { get(&raw mut uuid, device) })?;
        Ok(uuid)
    }
}

/// PTX of the kernel that the self-test runs: thread i writes 3 × i + 1 into the i-th number. Any GPU with MIG compiles it.
const KERNEL: &CStr = c".version 6.4
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 numbers)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [numbers];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mad.lo.s32 %r5, %r4, 3, 1;
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r5;
    ret;
}
";

/// The blocks of the kernel, more than any GPU has SMs, and the threads of a block.
const KERNEL_BLOCKS: c_uint = 512;
const THREADS_PER_BLOCK: c_uint = 128;

/// The results of the kernel.
fn expected_results() -> impl Iterator<Item = u32> {
    (0..KERNEL_BLOCKS * THREADS_PER_BLOCK).map(|thread| 3 * thread + 1)
}

impl Cuda {
    /// Finds a function of the library.
    ///
    /// # Safety
    /// `F` must be its signature in `cuda.h`.
    unsafe fn find_function<F: Copy>(&self, name: &CStr) -> Result<F, CudaError> {
        // SAFETY: as the caller vouches.
        let found = unsafe { self.library.get::<F>(name.to_bytes_with_nul()) };
        found
            .map(|found| *found)
            .map_err(|_| CudaError::MISSING_FUNCTION)
    }

    /// Makes a context on the first device, which is current in this thread until the process ends.
    fn create_context(&self) -> Result<(), CudaError> {
        let mut context = ptr::null_mut();
        // SAFETY: the signature is that of cuda.h, and the pointer is to a handle that lives.
        CudaError::check(unsafe {
            self.find_function::<CreateContext>(c"cuCtxCreate_v2")?(
                &raw mut context,
                0,
                FIRST_DEVICE,
            )
        })
    }

    /// Returns the memory that this process may still take, and that of its device, in bytes.
    fn query_memory(&self) -> Result<[u64; 2], CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the signature is that of cuda.h, and the pointers are to numbers that live.
        CudaError::check(unsafe {
            self.find_function::<GetMemory>(c"cuMemGetInfo_v2")?(&raw mut free, &raw mut total)
        })?;
        Ok([free as u64, total as u64])
    }

    /// Allocates memory, which stays allocated, and returns its address on the device.
    fn allocate(&self, bytes: u64) -> Result<u64, CudaError> {
        let mut address = 0;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the signature is that of cuda.h, and the pointer is to an address that lives.
        CudaError::check(unsafe {
            self.find_function::<Allocate>(c"cuMemAlloc_v2")?(&raw mut address, bytes)
        })?;
        Ok(address)
    }

    /// Loads the kernel, and allocates the memory for its results.
    fn load_kernel(&self) -> Result<Kernel, CudaError> {
        let bytes = (KERNEL_BLOCKS * THREADS_PER_BLOCK) as usize * size_of::<u32>();
        let address = self.allocate(bytes as u64)?;
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the signatures are those of cuda.h, and the pointers are to handles that live and to texts that end with
        // NUL.
        unsafe {
            let load = self.find_function::<LoadModule>(c"cuModuleLoadData")?;
            CudaError::check(load(&raw mut module, KERNEL.as_ptr()))?;
            let find = self.find_function::<GetFunction>(c"cuModuleGetFunction")?;
            CudaError::check(find(&raw mut function, module, c"fill".as_ptr()))?;
        }
        Ok(Kernel { function, address })
    }

    /// Runs the kernel. Returns true if its results are right.
    fn run_kernel(&self, kernel: &Kernel) -> Result<bool, CudaError> {
        let mut results = vec![0_u32; (KERNEL_BLOCKS * THREADS_PER_BLOCK) as usize];
        let bytes = size_of_val(results.as_slice());
        let mut address = kernel.address;
        let mut arguments = [(&raw mut address).cast::<c_void>()];
        // SAFETY: the signatures are those of cuda.h. The kernel has one argument, the address of as many numbers as there are
        // threads, and the copy is as long as its target.
        unsafe {
            let launch = self.find_function::<Launch>(c"cuLaunchKernel")?;
            CudaError::check(launch(
                kernel.function,
                KERNEL_BLOCKS,
                1,
                1,
                THREADS_PER_BLOCK,
                1,
                1,
                0,
                ptr::null_mut(),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            ))?;
            CudaError::check(self.find_function::<Synchronize>(c"cuCtxSynchronize")?())?;
            let copy = self.find_function::<CopyToHost>(c"cuMemcpyDtoH_v2")?;
            CudaError::check(copy(results.as_mut_ptr().cast(), address, bytes))?;
        }
        Ok(results.into_iter().eq(expected_results()))
    }
}

/// The kernel on the device.
struct Kernel {
    function: *mut c_void,
    /// Where it writes its results.
    address: u64,
}

/// A program of the self-test that has computed on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Computed {
    /// True if the process is an MPS client.
    pub is_client: bool,
    /// The SMs that it may use.
    pub sm_count: u32,
    /// The memory of the device, in bytes.
    pub memory_total: u64,
    /// The memory that it may still take before its own allocations, in bytes.
    pub memory_free: u64,
    /// True if the kernel has computed what it should.
    pub is_right: bool,
    /// The outcome of each allocation that was asked for; `None` if it was made.
    pub allocated: Vec<Option<CudaError>>,
    /// The time until the process had a context.
    pub start: Duration,
}

/// The outcome of a program of the self-test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeResult {
    Computed(Computed),
    Failed(CudaError),
    /// There is no libcuda, or it cannot be loaded.
    NoLibrary(String),
}

/// A program of the self-test that has a context on a device.
pub struct ComputingProgram {
    cuda: Cuda,
    kernel: Kernel,
}

/// Initializes CUDA, makes a context, runs a kernel and allocates memory, in bytes, which all stays until the process ends. May
/// never return.
pub fn run_compute_test(
    library: Option<&Path>,
    allocations: &[u64],
) -> (ComputeResult, Option<ComputingProgram>) {
    let cuda = match Cuda::open(library) {
        Ok(cuda) => cuda,
        Err(error) => return (ComputeResult::NoLibrary(error.to_string()), None),
    };
    match cuda.try_compute_test(allocations) {
        Ok((computed, kernel)) => (
            ComputeResult::Computed(computed),
            Some(ComputingProgram { cuda, kernel }),
        ),
        Err(error) => (ComputeResult::Failed(error), None),
    }
}

impl ComputingProgram {
    /// Runs the kernel again, and destroys the context. Returns true if the results are right.
    pub fn compute_and_leave(&self) -> Result<bool, CudaError> {
        let is_right = self.cuda.run_kernel(&self.kernel)?;
        let mut context = ptr::null_mut();
        // SAFETY: the signatures are those of cuda.h, and the pointer is to a handle that lives. The context is not used any more.
        unsafe {
            let current = self.cuda.find_function::<GetCurrent>(c"cuCtxGetCurrent")?;
            CudaError::check(current(&raw mut context))?;
            let destroy = self
                .cuda
                .find_function::<DestroyContext>(c"cuCtxDestroy_v2")?;
            CudaError::check(destroy(context))?;
        }
        Ok(is_right)
    }
}

impl Cuda {
    fn try_compute_test(&self, allocations: &[u64]) -> Result<(Computed, Kernel), CudaError> {
        let begun = Instant::now();
        self.init()?;
        self.create_context()?;
        let start = begun.elapsed();
        let [memory_free, memory_total] = self.query_memory()?;
        let kernel = self.load_kernel()?;
        let is_right = self.run_kernel(&kernel)?;
        let computed = Computed {
            is_client: self.query_attribute(MPS_ENABLED, FIRST_DEVICE)? == 1,
            sm_count: self.sm_count()?,
            memory_total,
            memory_free,
            is_right,
            allocated: allocations
                .iter()
                .map(|bytes| self.allocate(*bytes).err())
                .collect(),
            start,
        };
        Ok((computed, kernel))
    }

    fn sm_count(&self) -> Result<u32, CudaError> {
        let count = self.query_attribute(MULTIPROCESSOR_COUNT, FIRST_DEVICE)?;
        Ok(count.try_into().unwrap_or(0))
    }
}

/// A call of libcuda failed, with this `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CudaError(pub u32);

impl CudaError {
    pub const DEVICE_UNAVAILABLE: Self = Self(46);
    pub const OUT_OF_MEMORY: Self = Self(2);
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
            Self::OUT_OF_MEMORY => "CUDA_ERROR_OUT_OF_MEMORY",
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

/// The outcome of initializing CUDA in a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachResult {
    /// CUDA works.
    Initialized {
        /// True if the process is an MPS client on all its devices.
        is_client: bool,
        /// The UUIDs of its devices, without a prefix.
        uuids: Vec<[u8; 16]>,
        /// The SMs of the first device that it may use.
        sm_count: u32,
        /// The time that `cuInit` took.
        time: Duration,
    },
    Failed(CudaError),
    /// There is no libcuda, or it cannot be loaded.
    NoLibrary(String),
}

/// Initializes CUDA in this process. May never return.
pub fn attach(library: Option<&Path>) -> AttachResult {
    match Cuda::open(library) {
        Ok(cuda) => try_attach(&cuda).unwrap_or_else(AttachResult::Failed),
        Err(error) => AttachResult::NoLibrary(error.to_string()),
    }
}

fn try_attach(cuda: &Cuda) -> Result<AttachResult, CudaError> {
    let start = Instant::now();
    cuda.init()?;
    let time = start.elapsed();
    let mut is_client = true;
    let mut uuids = Vec::new();
    for device in FIRST_DEVICE..cuda.count_devices()? {
        is_client &= cuda.query_attribute(MPS_ENABLED, device)? == 1;
        uuids.push(cuda.query_uuid(device)?);
    }
    Ok(AttachResult::Initialized {
        is_client,
        uuids,
        sm_count: cuda.sm_count()?,
        time,
    })
}
