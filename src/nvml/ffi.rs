//! Conversions for the calls that nvml-wrapper lacks.

use std::ffi::{CStr, c_char};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::nvmlDevice_t;

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
