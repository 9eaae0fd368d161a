//! Loads NVML, opens a session with it, and limits the time of its calls: one that hangs is left behind in its thread.

use std::ffi::{CStr, OsStr, OsString, c_char, c_uint};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper::{Device, Nvml as Library};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlMemory_t, nvmlProcessInfo_t,
};

use super::{Code, NvmlError};
use crate::config::NVML_CALL_LIMIT;

/// Held for reading while a task runs, and for writing while the library is [shut down](Nvml::while_shut_down).
static OPEN: RwLock<()> = RwLock::new(());

/// The tasks that have not ended, also those that nobody waits for any more, with the library that each uses.
static RUNNING: Mutex<Vec<(OsString, Watch)>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<(OsString, Watch)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a task with a library in another thread.
fn begin<T: Send + 'static>(
    name: OsString,
    limit: Duration,
    task: impl FnOnce(Watch) -> Result<T, NvmlError> + Send + 'static,
) -> Result<Watched<T>, NvmlError> {
    in_thread(limit, move |watch| {
        running().push((name, watch.clone()));
        let result = task(watch.clone());
        running().retain(|(_, other)| !other.is(&watch));
        result
    })
}

/// Returns the error of a task that has made a call in this library and has not ended.
fn unfinished(library: &OsStr) -> Option<NvmlError> {
    running()
        .iter()
        .filter(|(name, _)| *name == library)
        .find_map(|(_, watch)| watch.hangs())
}

/// The loaded library. It is never unloaded: `nvmlShutdown` takes 17 ms and an exiting process does not need it.
#[derive(Clone, Copy)]
pub struct Nvml {
    library: &'static Library,
    name: &'static OsStr,
    limit: Duration,
}

impl Nvml {
    /// Loads and initialises the library: `path`, or the driver's `libnvidia-ml.so.1`.
    pub fn open(path: Option<&Path>) -> Result<Self, NvmlError> {
        Self::start_opening(path)?.wait()
    }

    /// Starts to load and initialise the library. Fails without another wait if a call of this process has hung in it.
    pub fn start_opening(path: Option<&Path>) -> Result<Watched<Self>, NvmlError> {
        let name = path.map_or(OsStr::new("libnvidia-ml.so.1"), Path::as_os_str);
        let name = name.to_owned();
        begin(name.clone(), NVML_CALL_LIMIT, move |watch| {
            if let Some(error @ NvmlError::Hung { waited, .. }) = unfinished(&name)
                && waited >= NVML_CALL_LIMIT
            {
                return Err(error);
            }
            watch.begin("nvmlInit_v2", "the driver");
            let library = Library::builder()
                .lib_path(&name)
                .init()
                .map_err(|error| NvmlError::at_init(&name, &error))?;
            Ok(Self {
                library: Box::leak(Box::new(library)),
                name: Box::leak(name.into_boxed_os_str()),
                limit: NVML_CALL_LIMIT,
            })
        })
    }

    /// Starts the threads for this number of concurrent calls, or none.
    pub fn reserve(calls: usize) -> Result<(), NvmlError> {
        reserve(calls)
    }

    /// Returns the same library with another limit per call than [`NVML_CALL_LIMIT`].
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Runs a task in another thread, which is abandoned with [`NvmlError::Hung`] when one of its calls hangs.
    pub fn supervise<T: Send + 'static>(
        self,
        task: impl FnOnce(&Session) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<T, NvmlError> {
        // Held by the waiting thread and not by the task, whose thread may hang.
        let _open = OPEN.read().unwrap_or_else(PoisonError::into_inner);
        self.begin(task)?.wait()
    }

    /// Starts a task in another thread.
    fn begin<T: Send + 'static>(
        self,
        task: impl FnOnce(&Session) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<Watched<T>, NvmlError> {
        begin(self.name.to_owned(), self.limit, move |watch| {
            task(&Session::new(self.library, watch))
        })
    }

    /// Runs the task for each of the first `count` GPUs, side by side. The driver opens a GPU at its first call, which takes
    /// 7 ms on an H200, and 4 ms each for two at a time.
    pub fn of_each_gpu<T: Send + 'static>(
        self,
        count: u32,
        task: impl Fn(&Session, u32) -> Result<T, NvmlError> + Copy + Send + 'static,
    ) -> Vec<Result<T, NvmlError>> {
        let _open = OPEN.read().unwrap_or_else(PoisonError::into_inner);
        let start = |index| self.begin(move |session| task(session, index));
        let tasks: Vec<_> = (0..count).map(start).collect();
        tasks
            .into_iter()
            .zip(0..)
            .map(|(task, index)| match task {
                // Without a thread it takes that of another GPU.
                Err(NvmlError::NoThread { .. }) => start(index)?.wait(),
                task => task?.wait(),
            })
            .collect()
    }

    /// Shuts the library down, calls `work`, and initialises the library again.
    ///
    /// A process with NVML initialised holds `/dev/nvidiaN` open until `nvmlShutdown` (seen on an H200 with driver 580),
    /// and a GPU that any process holds cannot be reset (manual of nvidia-smi: "monitoring application like other
    /// instance of nvidia-smi"). Other tasks wait meanwhile, and `work` must not use NVML.
    ///
    /// # Errors
    /// If the library cannot be shut down, or an abandoned call still hangs in it, `work` is not called. If it does not start again, the result of `work` is
    /// lost.
    pub fn while_shut_down<T>(self, work: impl FnOnce() -> T) -> Result<T, NvmlError> {
        let _alone = OPEN.write().unwrap_or_else(PoisonError::into_inner);
        // Nobody waits any more for a task that has not ended.
        if let Some(error) = unfinished(self.name) {
            return Err(error);
        }
        // NVML counts its initialisations: each one needs a shutdown of its own.
        loop {
            match self.begin(Session::shut_down)?.wait() {
                Ok(()) => {}
                Err(error) if error.code() == Some(Code::UNINITIALIZED) => break,
                Err(error) => return Err(error),
            }
        }
        let answer = work();
        self.begin(Session::initialise)?.wait()?;
        Ok(answer)
    }
}

/// The current call of a task's thread, for the thread that waits for it.
#[derive(Clone, Default)]
pub(super) struct Watch {
    current: Arc<Mutex<Option<Call>>>,
}

#[derive(Clone)]
struct Call {
    name: &'static str,
    subject: String,
    since: Instant,
}

impl Watch {
    /// Records the start of a call.
    pub(super) fn begin(&self, name: &'static str, subject: &str) {
        *self.lock() = Some(Call {
            name,
            subject: subject.to_owned(),
            since: Instant::now(),
        });
    }

    /// True for a copy of the same watch.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.current, &other.current)
    }

    /// Returns the error of a task that has not ended, if it has made a call.
    pub(super) fn hangs(&self) -> Option<NvmlError> {
        let call = self.lock().clone()?;
        Some(NvmlError::Hung {
            waited: call.since.elapsed(),
            call: call.name,
            subject: call.subject,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Call>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work of a thread. It frees its worker before it delivers the answer.
type Task = Box<dyn FnOnce(Worker) + Send>;

/// The channel to a thread that runs one task after another. `None` ends the thread.
#[derive(Clone)]
struct Worker(Sender<Option<Task>>);

/// The free workers. Threads are reused: a new one could exceed a limit of processes half-way through a change.
static FREE: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

fn free() -> std::sync::MutexGuard<'static, Vec<Worker>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the threads for this number of concurrent calls, or none.
pub(super) fn reserve(calls: usize) -> Result<(), NvmlError> {
    let mut free = free();
    let mut made = Vec::new();
    while free.len() + made.len() < calls {
        match make_worker() {
            Ok(worker) => made.push(worker),
            Err(error) => {
                for (worker, thread) in made {
                    let _ = worker.0.send(None);
                    let _ = thread.join();
                }
                return Err(error);
            }
        }
    }
    free.extend(made.into_iter().map(|(worker, _)| worker));
    Ok(())
}

fn make_worker() -> Result<(Worker, JoinHandle<()>), NvmlError> {
    let (sender, tasks) = mpsc::channel::<Option<Task>>();
    let worker = Worker(sender);
    let me = worker.clone();
    let thread = std::thread::Builder::new()
        .spawn(move || {
            while let Ok(Some(task)) = tasks.recv() {
                task(me.clone());
            }
        })
        .map_err(|error| NvmlError::NoThread {
            reason: error.to_string(),
        })?;
    Ok((worker, thread))
}

/// A task that runs in another thread.
pub struct Watched<T> {
    limit: Duration,
    watch: Watch,
    answers: Receiver<Result<T, NvmlError>>,
}

/// Starts a task in another thread.
pub(super) fn in_thread<T: Send + 'static>(
    limit: Duration,
    task: impl FnOnce(Watch) -> Result<T, NvmlError> + Send + 'static,
) -> Result<Watched<T>, NvmlError> {
    let watch = Watch::default();
    let (answer, answers) = mpsc::channel();
    let task_watch = watch.clone();
    let task: Task = Box::new(move |worker| {
        let result = task(task_watch);
        free().push(worker);
        // After its limit no thread waits for the task.
        let _ = answer.send(result);
    });
    let known = free().pop();
    let worker = match known {
        Some(worker) => worker,
        None => make_worker()?.0,
    };
    // A free worker always receives.
    let _ = worker.0.send(Some(task));
    Ok(Watched {
        limit,
        watch,
        answers,
    })
}

impl<T> Watched<T> {
    /// Waits for the result of the task while each of its calls stays within the limit. A thread with a hanging call is
    /// abandoned.
    pub fn wait(self) -> Result<T, NvmlError> {
        let limit = self.limit;
        let mut patience = limit;
        loop {
            match self.answers.recv_timeout(patience) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => {
                    // The task panicked, and its message is already on stderr.
                    return Err(NvmlError::Strange {
                        call: "NVML",
                        subject: "this program".to_owned(),
                        answer: "nothing: its thread panicked".to_owned(),
                    });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Before its first call a task cannot hang.
            let Some(call) = self.watch.lock().clone() else {
                continue;
            };
            patience = match limit.checked_sub(call.since.elapsed()) {
                Some(remaining) => remaining.max(Duration::from_millis(1)),
                None => {
                    return Err(NvmlError::Hung {
                        call: call.name,
                        subject: call.subject,
                        waited: limit,
                    });
                }
            };
        }
    }
}

/// The library inside a supervised task.
pub struct Session {
    pub(super) library: &'static Library,
    watch: Watch,
}

impl Session {
    pub(super) fn new(library: &'static Library, watch: Watch) -> Self {
        Self { library, watch }
    }

    fn shut_down(&self) -> Result<(), NvmlError> {
        self.call(symbol!(self, nvmlShutdown), "the driver", |function| {
            // SAFETY: it takes no argument; no handle outlives a task, and no other task runs.
            unsafe { function() }
        })
    }

    fn initialise(&self) -> Result<(), NvmlError> {
        self.call(symbol!(self, nvmlInit_v2), "the driver", |function| {
            // SAFETY: it takes no argument.
            unsafe { function() }
        })
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
        crate::nvml::library::Symbol {
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
