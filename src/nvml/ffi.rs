//! Types and conversions for the calls that nvml-wrapper lacks.

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlMemory_t, nvmlProcessInfo_t,
};

/// A function of the library by its name. An older driver may lack it.
#[derive(Clone, Copy)]
pub(super) struct Symbol<F> {
    pub(super) name: &'static str,
    pub(super) function: Option<F>,
}

/// Returns the [`Symbol`] with this name, which is the name of the function too.
macro_rules! symbol {
    ($session:expr, $name:ident) => {
        crate::nvml::ffi::Symbol {
            name: stringify!($name),
            function: $session.symbols().$name.as_ref().ok().copied(),
        }
    };
}
pub(super) use symbol;

/// Data of C that a call fills.
///
/// # Safety
/// All bytes of a value may be zero.
pub(super) unsafe trait Plain: Copy {
    fn zeroed() -> Self {
        // SAFETY: every implementor promises it.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($type:ty),+ $(,)?) => {
        // SAFETY: a number, a pointer that is never followed here, or a struct of numbers and such pointers.
        $(unsafe impl Plain for $type {})+
    };
}

plain!(
    c_uint,
    nvmlComputeInstance_t,
    nvmlComputeInstanceInfo_t,
    nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t,
    nvmlDevice_t,
    nvmlDeviceAttributes_t,
    nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t,
    nvmlMemory_t,
    nvmlProcessInfo_t,
);

/// Returns the handle inside a device of nvml-wrapper.
pub(super) fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is only passed back to the library it came from, which is never unloaded.
    unsafe { device.handle() }
}

/// Returns the version word of a struct: its size and the number of its version (`NVML_STRUCT_VERSION`).
pub(super) fn version_of<T>(form: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX) | form << 24
}

/// Reads a C string from a fixed buffer, which may lack a terminator.
pub(super) fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer
        .iter()
        .map(|c| c.cast_unsigned())
        .chain([0])
        .collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}
