//! Door 1: NVML. Unsafe code is here and in `host::spawn` alone.
//!
//! [`Nvml::open`] loads the library once for the life of the process. Work is done in
//! [`Nvml::supervise`]d tasks: NVML has no time limits of its own and a broken GPU can make any call
//! hang for ever, so each task runs in another thread, which is left behind when one of its calls outlasts
//! its limit. Calls are made through the library's symbol table and never through methods that
//! panic on a symbol an older driver lacks.

mod compute_instances;
mod compute_mode;
mod error;
mod gpu;
mod gpu_instances;
mod mig_devices;
mod mig_mode;
mod processes;
mod profiles;
mod supervise;

use crate::config::NVML_CALL_LIMIT;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use nvml_wrapper::Nvml as Library;

pub use compute_instances::ComputeInstanceReading;
pub use compute_mode::{EXCLUSIVE_PROCESS, compute_mode_in_words};
pub use error::{Code, NvmlError};
pub use gpu::{GpuReading, Memory};
pub use gpu_instances::GpuInstanceReading;
pub use mig_mode::MigMode;
pub use processes::{Processes, Usage};
pub use supervise::Session;

/// Held for reading while a task runs, for writing while the library is [put aside](Nvml::aside).
static OPEN: RwLock<()> = RwLock::new(());

/// The loaded library. It is never unloaded: `nvmlShutdown` costs 17 ms and buys a dying process
/// nothing.
#[derive(Clone, Copy)]
pub struct Nvml {
    library: &'static Library,
    limit: Duration,
}

/// The library while it is being loaded.
pub struct Opening(supervise::Watched<Nvml>);

impl Opening {
    /// Waits until it is loaded.
    ///
    /// # Errors
    /// As [`Nvml::open`].
    pub fn wait(self) -> Result<Nvml, NvmlError> {
        self.0.wait()
    }
}

impl Nvml {
    /// Loads and initialises the library: `path`, or the driver's `libnvidia-ml.so.1`.
    ///
    /// # Errors
    /// [`NvmlError::NotFound`] when there is no such library, [`NvmlError::Refused`] with the
    /// driver's code when it is there and does not start, [`NvmlError::Hung`].
    pub fn open(path: Option<&Path>) -> Result<Self, NvmlError> {
        Self::begin_to_open(path)?.wait()
    }

    /// The same, going on with something else meanwhile.
    ///
    /// # Errors
    /// [`NvmlError::NoThread`]
    pub fn begin_to_open(path: Option<&Path>) -> Result<Opening, NvmlError> {
        let path = path.map(Path::to_owned);
        let opening = supervise::begin(NVML_CALL_LIMIT, move |watch| {
            watch.begin("nvmlInit_v2", "the driver");
            let name = path
                .as_deref()
                .map_or(OsStr::new("libnvidia-ml.so.1"), Path::as_os_str);
            let library = Library::builder()
                .lib_path(name)
                .init()
                .map_err(|error| NvmlError::at_init(name, &error))?;
            Ok(Self {
                library: Box::leak(Box::new(library)),
                limit: NVML_CALL_LIMIT,
            })
        })?;
        Ok(Opening(opening))
    }

    /// Makes the threads that so many calls at once need, or none.
    ///
    /// # Errors
    /// [`NvmlError::NoThread`]
    pub fn reserve(calls: usize) -> Result<(), NvmlError> {
        supervise::reserve(calls)
    }

    /// The same library, with another limit for each call than [`NVML_CALL_LIMIT`].
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Runs a task in another thread, which is left behind when a call in it hangs.
    ///
    /// # Errors
    /// The task's own, or [`NvmlError::Hung`].
    pub fn supervise<T: Send + 'static>(
        self,
        task: impl FnOnce(&Session) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<T, NvmlError> {
        let library = self.library;
        // Held by the one who waits, not by the task, whose thread may hang.
        let _open = OPEN.read().unwrap_or_else(PoisonError::into_inner);
        supervise::watched(self.limit, move |watch| task(&Session::new(library, watch)))
    }

    /// Finds the first so many GPUs side by side. The driver opens a GPU when it is first asked for, which takes 7 ms
    /// on an H200, and 4 ms each where two are. What a GPU answers is for whoever asks it next.
    ///
    /// # Errors
    /// [`NvmlError::Hung`]
    pub fn find(self, count: u32) -> Result<(), NvmlError> {
        let _open = OPEN.read().unwrap_or_else(PoisonError::into_inner);
        let library = self.library;
        let find = |index| {
            let task = move |watch| Session::new(library, watch).find(index);
            supervise::begin(self.limit, task)
        };
        // Where no thread can be had, a GPU is opened when it is first asked for something else.
        let finders: Vec<_> = (0..count).map_while(|index| find(index).ok()).collect();
        for finder in finders {
            if let Err(error @ NvmlError::Hung { .. }) = finder.wait() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Does something while this process has no GPU open, and opens the library again afterwards.
    /// Whoever has NVML initialised holds `/dev/nvidiaN` until `nvmlShutdown` (read on an H200 with
    /// driver 580), and no GPU is reset that somebody holds, be it the very program that asks for it
    /// (the manual of nvidia-smi: "monitoring application like other instance of nvidia-smi"). Other tasks wait meanwhile; `work`
    /// must not use NVML.
    ///
    /// # Errors
    /// [`NvmlError`] when the library cannot be shut down (nothing was done then) or does not start
    /// again (`work` has been done then, and its answer is lost).
    pub fn aside<T>(self, work: impl FnOnce() -> T) -> Result<T, NvmlError> {
        let library = self.library;
        let _alone = OPEN.write().unwrap_or_else(PoisonError::into_inner);
        let call = move |name: &'static str, begin: bool| {
            supervise::watched(self.limit, move |watch| {
                let session = Session::new(library, watch);
                let (init, shutdown) = (
                    &session.symbols().nvmlInit_v2,
                    &session.symbols().nvmlShutdown,
                );
                let symbol = if begin { init } else { shutdown };
                session.call(name, "the driver", symbol, |function| {
                    // SAFETY: neither takes an argument; no handle outlives a task, and no task runs.
                    unsafe { function() }
                })
            })
        };
        // Each of those who opened the library counts, and each is gone only with a shutdown of its own.
        loop {
            match call("nvmlShutdown", false) {
                Ok(()) => {}
                Err(error) if error.code() == Some(Code::UNINITIALIZED) => break,
                Err(error) => return Err(error),
            }
        }
        let answer = work();
        call("nvmlInit_v2", true)?;
        Ok(answer)
    }
}
