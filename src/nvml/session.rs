//! A session with NVML, and types for the calls that nvml-wrapper lacks.

use std::ffi::{CStr, c_char, c_uint};
use std::time::Instant;

use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper::{Device, Nvml as Library};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlMemory_t, nvmlProcessInfo_t,
};

use super::library::Watch;
use super::{Code, NvmlError};

/// The library inside a supervised task.
pub struct Session {
    pub(super) library: &'static Library,
    watch: Watch,
}

impl Session {
    pub(super) fn new(library: &'static Library, watch: Watch) -> Self {
        Self { library, watch }
    }

    /// Returns the library's symbols. An older driver may lack any one.
    pub(super) fn symbols(&self) -> &'static NvmlLib {
        self.library.lib()
    }

    /// Makes a call through nvml-wrapper.
    pub(super) fn ask<T>(
        &self,
        call: &'static str,
        subject: &str,
        work: impl FnOnce() -> Result<T, WrapperError>,
    ) -> Result<T, NvmlError> {
        self.watch.begin(call, subject);
        let begun = Instant::now();
        let answer = work().map_err(|error| NvmlError::of(&error, call, subject));
        trace(call, subject, begun, answer.as_ref().err());
        answer
    }

    /// Makes a call through a symbol of the library. `work` returns NVML's code.
    pub(super) fn call<F>(
        &self,
        symbol: Symbol<F>,
        subject: &str,
        work: impl FnOnce(F) -> u32,
    ) -> Result<(), NvmlError> {
        let call = symbol.name;
        let function = symbol.function.ok_or(NvmlError::TooOld { call })?;
        self.watch.begin(call, subject);
        let begun = Instant::now();
        let answer = match Code(work(function)) {
            Code::SUCCESS => Ok(()),
            code => Err(NvmlError::Refused {
                call,
                subject: subject.to_owned(),
                code,
            }),
        };
        trace(call, subject, begun, answer.as_ref().err());
        answer
    }

    /// Makes a call that writes a value. Its pointer is valid during `work`.
    pub(super) fn get<F, T: Plain>(
        &self,
        symbol: Symbol<F>,
        subject: &str,
        work: impl FnOnce(F, *mut T) -> u32,
    ) -> Result<T, NvmlError> {
        let mut value = T::zeroed();
        self.call(symbol, subject, |function| work(function, &raw mut value))?;
        Ok(value)
    }

    /// Makes a call that writes the number of entries, which is `room` before, and the entries into a buffer with this
    /// much room. Both pointers are valid during `work`.
    pub(super) fn list<F, T: Plain>(
        &self,
        symbol: Symbol<F>,
        subject: &str,
        room: usize,
        work: impl FnOnce(F, *mut c_uint, *mut T) -> u32,
    ) -> Result<Vec<T>, NvmlError> {
        let mut found = vec![T::zeroed(); room];
        let mut count = c_uint::try_from(room).unwrap_or(c_uint::MAX);
        self.call(symbol, subject, |function| {
            work(function, &raw mut count, found.as_mut_ptr())
        })?;
        found.truncate(count as usize);
        Ok(found)
    }
}

/// Traces a call that has returned.
fn trace(call: &str, subject: &str, begun: Instant, error: Option<&NvmlError>) {
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    match error.and_then(NvmlError::code) {
        None => tracing::debug!(target: "nvml", "{call} {subject} ({took:.1} ms)"),
        Some(code) => tracing::debug!(target: "nvml", "{call} {subject}: {code} ({took:.1} ms)"),
    }
}

/// Reads the driver's answers for the numbers 0, 1, 2 and so on, up to the first number that it does not know, and for at
/// most this many numbers. Omits those that are not supported.
pub(super) fn numbered<T>(
    most: u32,
    read: impl FnMut(u32) -> Result<T, NvmlError>,
) -> impl Iterator<Item = Result<T, NvmlError>> {
    let is = |answer: &Result<T, NvmlError>, code| {
        answer.as_ref().err().and_then(NvmlError::code) == Some(code)
    };
    (0..most)
        .map(read)
        .take_while(move |answer| !is(answer, Code::INVALID_ARGUMENT))
        .filter(move |answer| !is(answer, Code::NOT_SUPPORTED))
}

/// A function of the library by its name. An older driver may lack it.
#[derive(Clone, Copy)]
pub(super) struct Symbol<F> {
    pub(super) name: &'static str,
    pub(super) function: Option<F>,
}

/// Returns the [`Symbol`] with this name, which is the name of the function too.
macro_rules! symbol {
    ($session:expr, $name:ident) => {
        crate::nvml::session::Symbol {
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
