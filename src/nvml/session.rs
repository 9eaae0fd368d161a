use std::ffi::c_uint;
use std::time::Instant;

use nvml_wrapper::Nvml as Library;
use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper_sys::bindings::NvmlLib;

use super::ffi::{Plain, Symbol};
use super::supervise::Watch;
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
