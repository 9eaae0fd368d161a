use nvml_wrapper::Nvml as Library;
use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper_sys::bindings::NvmlLib;

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
        work().map_err(|error| NvmlError::of(&error, call, subject))
    }

    /// Makes a call through a symbol of the library. `work` returns NVML's code.
    pub(super) fn call<F: Copy, E>(
        &self,
        call: &'static str,
        subject: &str,
        symbol: &Result<F, E>,
        work: impl FnOnce(F) -> u32,
    ) -> Result<(), NvmlError> {
        let Ok(function) = symbol else {
            return Err(NvmlError::TooOld { call });
        };
        self.watch.begin(call, subject);
        match Code(work(*function)) {
            Code::SUCCESS => Ok(()),
            code => Err(NvmlError::Refused {
                call,
                subject: subject.to_owned(),
                code,
            }),
        }
    }
}
