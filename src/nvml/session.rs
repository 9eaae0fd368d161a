//! The calls of a task: through the library's symbol table, on handles of GPUs and instances.

use std::ffi::{c_char, c_uint};
use std::time::Instant;

use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper::{Device, Nvml as Library};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlProcessInfo_t,
};

use super::library::CallWatch;
use super::{Code, NvmlError};

/// The library inside a supervised task.
#[derive(Clone)]
pub struct Session {
    pub(super) library: &'static Library,
    pub(super) watch: CallWatch,
}

impl Session {
    pub(super) fn shut_down(&self) -> Result<(), NvmlError> {
        self.call(symbol!(self, nvmlShutdown), "the driver", |function| {
            // SAFETY: it takes no argument; no handle outlives a task, and no other task runs.
            unsafe { function() }
        })
    }

    pub(super) fn initialize(&self) -> Result<(), NvmlError> {
        self.call(symbol!(self, nvmlInit_v2), "the driver", |function| {
            // SAFETY: it takes no argument.
            unsafe { function() }
        })
    }

    /// Returns the GPU or MIG device with this UUID.
    pub fn gpu_with_uuid(&self, uuid: &str) -> Result<GpuHandle, NvmlError> {
        let device = self.call_wrapper("nvmlDeviceGetHandleByUUID", uuid, |library| {
            library.device_by_uuid(uuid)
        })?;
        Ok(self.new_handle(&device, uuid.to_owned()))
    }

    /// Returns the GPU with this index, and opens it: that makes later calls fast.
    pub fn gpu_at(&self, index: u32) -> Result<GpuHandle, NvmlError> {
        let subject = format!("GPU {index}");
        let device = self.call_wrapper("nvmlDeviceGetHandleByIndex_v2", &subject, |library| {
            library.device_by_index(index)
        })?;
        Ok(self.new_handle(&device, subject))
    }

    fn new_handle(&self, device: &Device<'static>, subject: String) -> GpuHandle {
        Handle {
            session: self.clone(),
            // SAFETY: the handle is only passed back to the library it came from, which is never unloaded.
            raw: unsafe { device.handle() },
            subject,
        }
    }

    /// Makes a call through nvml-wrapper.
    pub(super) fn call_wrapper<T>(
        &self,
        call: &'static str,
        subject: &str,
        work: impl FnOnce(&'static Library) -> Result<T, WrapperError>,
    ) -> Result<T, NvmlError> {
        self.watch.record_call(call, subject);
        let begun = Instant::now();
        let answer =
            work(self.library).map_err(|error| NvmlError::from_wrapper(error, call, subject));
        trace_call(call, subject, begun, answer.as_ref().err());
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
        self.watch.record_call(call, subject);
        let begun = Instant::now();
        let answer = match Code(work(function)) {
            Code::SUCCESS => Ok(()),
            code => Err(NvmlError::Refused {
                call,
                subject: subject.to_owned(),
                code,
            }),
        };
        trace_call(call, subject, begun, answer.as_ref().err());
        answer
    }
}

/// A GPU, a MIG device or an instance in a session.
pub struct Handle<T> {
    pub(super) session: Session,
    /// The driver's handle.
    pub(super) raw: T,
    /// Its name in errors.
    pub(super) subject: String,
}

/// A GPU or MIG device.
pub type GpuHandle = Handle<nvmlDevice_t>;

impl<T: Copy> Handle<T> {
    /// Returns the handle of something else with the same name.
    pub(super) fn with_raw<U>(&self, raw: U) -> Handle<U> {
        Handle {
            session: self.session.clone(),
            raw,
            subject: self.subject.clone(),
        }
    }

    /// Returns the same handle for calls about a part of it.
    pub(super) fn for_part(&self, part: &str) -> Self {
        Self {
            subject: format!("{} {part}", self.subject),
            ..self.with_raw(self.raw)
        }
    }

    /// Makes a call that writes a value. Its pointer is valid during `work`.
    pub(super) fn get<F, V: Plain>(
        &self,
        symbol: Symbol<F>,
        work: impl FnOnce(F, *mut V) -> u32,
    ) -> Result<V, NvmlError> {
        let mut value = V::zeroed();
        self.session.call(symbol, &self.subject, |function| {
            work(function, &raw mut value)
        })?;
        Ok(value)
    }

    /// Makes a call that writes the number of entries, which is `room` before, and the entries into a buffer with this
    /// much room. Both pointers are valid during `work`.
    pub(super) fn list<F, V: Plain>(
        &self,
        symbol: Symbol<F>,
        room: usize,
        work: impl FnOnce(F, *mut c_uint, *mut V) -> u32,
    ) -> Result<Vec<V>, NvmlError> {
        // The driver's own numbers are no reason to take any amount of memory.
        let room = room.min(MAX_ENTRIES);
        let mut found = vec![V::zeroed(); room];
        let mut count = c_uint::try_from(room).unwrap_or(c_uint::MAX);
        self.session.call(symbol, &self.subject, |function| {
            work(function, &raw mut count, found.as_mut_ptr())
        })?;
        found.truncate(count as usize);
        Ok(found)
    }
}

/// More than a GPU has instances, placements or processes.
const MAX_ENTRIES: usize = 1 << 16;

impl GpuHandle {
    /// Makes a call through nvml-wrapper.
    pub(super) fn call_wrapper<T>(
        &self,
        call: &'static str,
        work: impl FnOnce(&Device<'static>) -> Result<T, WrapperError>,
    ) -> Result<T, NvmlError> {
        self.session.call_wrapper(call, &self.subject, |library| {
            // SAFETY: the handle came from this library.
            work(&unsafe { Device::new(self.raw, library) })
        })
    }
}

// The calls below are sound: a handle came from this library, which is never unloaded, and is used with the functions that
// take its type. Other arguments are numbers, null where `nvml.h` allows it, and pointers to values that outlive the call.

/// Calls a function on a [`Handle`] with further arguments.
macro_rules! call {
    ($handle:ident.$function:ident($($argument:expr),*)) => {{
        let symbol = symbol!($handle.session, $function);
        $handle.session.call(symbol, &$handle.subject, |function| {
            // SAFETY: see above.
            unsafe { function($handle.raw, $($argument),*) }
        })
    }};
}
pub(super) use call;

/// Calls a function on a [`Handle`] with further arguments. Returns the value that it writes.
macro_rules! get {
    ($handle:ident.$function:ident($($argument:expr),*)) => {
        $handle.get(symbol!($handle.session, $function), |function, value| {
            // SAFETY: see above.
            unsafe { function($handle.raw, $($argument,)* value) }
        })
    };
}
pub(super) use get;

/// Calls a function on a [`Handle`] with further arguments. Returns the list that it writes, for which there must be room.
macro_rules! list {
    ($handle:ident.$function:ident($($argument:expr),*), $room:expr) => {
        $handle.list(symbol!($handle.session, $function), $room, |function, count, found| {
            // SAFETY: see above.
            unsafe { function($handle.raw, $($argument,)* found, count) }
        })
    };
}
pub(super) use list;

/// Traces a call that has returned.
fn trace_call(call: &str, subject: &str, begun: Instant, error: Option<&NvmlError>) {
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    match error.and_then(NvmlError::code) {
        None => tracing::debug!(target: "nvml", "{call} {subject} ({took:.1} ms)"),
        Some(code) => tracing::debug!(target: "nvml", "{call} {subject}: {code} ({took:.1} ms)"),
    }
}

/// Reads the driver's answers for the numbers 0, 1, 2 and so on, up to the first number that it does not know, and for at
/// most this many numbers. Omits those that are not supported.
pub(super) fn query_by_number<T>(
    most: u32,
    read: impl FnMut(u32) -> Result<T, NvmlError>,
) -> impl Iterator<Item = Result<T, NvmlError>> {
    (0..most)
        .map(read)
        .take_while(|answer| code_of(answer) != Some(Code::INVALID_ARGUMENT))
        .filter(|answer| code_of(answer) != Some(Code::NOT_SUPPORTED))
}

fn code_of<T>(answer: &Result<T, NvmlError>) -> Option<Code> {
    answer.as_ref().err().and_then(NvmlError::code)
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
            function: $session.library.lib().$name.as_ref().ok().copied(),
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
    nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_v2_t,
    nvmlProcessInfo_t,
);

/// Returns the version word of a struct: its size and the number of its version (`NVML_STRUCT_VERSION`).
pub(super) fn version_of<T>(form: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX) | form << 24
}

/// Reads a C string from a fixed buffer, which may lack a terminator.
pub(super) fn parse_c_string(buffer: &[c_char]) -> String {
    // `c_char` has a sign on x86_64, and none on arm64.
    let text: Vec<u8> = buffer
        .iter()
        .flat_map(|c| c.to_ne_bytes())
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&text).into_owned()
}
