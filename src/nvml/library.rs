//! Loads NVML, opens a session with it, and limits the time of its calls: one that hangs is left behind in its thread.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml as Library;

use super::{Code, GpuHandle, NvmlError, Processes, Session};
use crate::config::nvml_call_limit;
use crate::host::{FileError, lock};

/// Held for reading while a task runs, and for writing while the library is [shut down](Nvml::while_shut_down).
static OPEN: RwLock<()> = RwLock::new(());

/// The tasks that have not ended, also those that nobody waits for any more, with the library that each uses.
static RUNNING_TASKS: Mutex<Vec<(OsString, CallWatch)>> = Mutex::new(Vec::new());

/// Returns the error of a task that has made a call in this library and has not ended.
fn unfinished_task_error(library: &OsStr) -> Option<NvmlError> {
    lock(&RUNNING_TASKS)
        .iter()
        .filter(|(name, _)| *name == library)
        .find_map(|(_, watch)| {
            let call = lock(&watch.current).clone()?;
            Some(call.hung_error(call.since.elapsed()))
        })
}

/// The loaded library. It is never unloaded: `nvmlShutdown` takes 17 ms and an exiting process does not need it.
#[derive(Clone, Copy)]
pub struct Nvml {
    library: &'static Library,
    name: &'static OsStr,
    limit: Duration,
}

impl Nvml {
    /// Loads and initializes the library: `path`, or the driver's `libnvidia-ml.so.1`.
    pub fn open(path: Option<&Path>) -> Result<Self, NvmlError> {
        Self::start_opening(path)?.wait()
    }

    /// Starts to load and initialize the library. Fails without another wait if a call of this process has hung in it.
    pub fn start_opening(path: Option<&Path>) -> Result<Watched<Self>, NvmlError> {
        let name = path.map_or(OsStr::new("libnvidia-ml.so.1"), Path::as_os_str);
        let name = name.to_owned();
        let limit = nvml_call_limit();
        spawn_task(name.clone(), limit, move |watch| {
            if let Some(error @ NvmlError::Hung { waited, .. }) = unfinished_task_error(&name)
                && waited >= limit
            {
                return Err(error);
            }
            watch.record_call("nvmlInit_v2", "the driver");
            let library = Library::builder()
                .lib_path(&name)
                .init()
                .map_err(|error| NvmlError::from_init_error(&name, error))?;
            Ok(Self {
                library: Box::leak(Box::new(library)),
                name: Box::leak(name.into_boxed_os_str()),
                limit,
            })
        })
    }

    /// Starts the threads for this number of concurrent calls, or none.
    pub fn reserve_threads(calls: usize) -> Result<(), NvmlError> {
        let mut free = lock(&FREE_WORKERS);
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

    /// Returns the same library with another limit per call than [`nvml_call_limit`].
    #[must_use]
    pub fn with_call_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Runs a task in another thread, which is abandoned with [`NvmlError::Hung`] when one of its calls hangs.
    pub fn supervise<T: Send + 'static>(
        self,
        task: impl FnOnce(&Session) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<T, NvmlError> {
        // Held by the waiting thread and not by the task, whose thread may hang.
        let _open = OPEN.read().unwrap_or_else(PoisonError::into_inner);
        self.start_task(task)?.wait()
    }

    /// Runs a task in another thread, like [`supervise`](Self::supervise), on the GPU or MIG device with this UUID.
    pub fn supervise_on<T: Send + 'static>(
        self,
        uuid: &str,
        task: impl FnOnce(&GpuHandle) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<T, NvmlError> {
        let uuid = uuid.to_owned();
        self.supervise(move |session| task(&session.gpu_with_uuid(&uuid)?))
    }

    /// Returns the processes on the devices with these UUIDs together; `None` if the driver does not list those of one.
    pub fn query_processes_on(self, uuids: &[String]) -> Option<Processes> {
        if let [one] = uuids {
            return self.supervise_on(one, GpuHandle::query_processes).ok();
        }
        let mut each = Vec::new();
        for (nth, uuid) in (0..).zip(uuids) {
            let read = self.supervise_on(uuid, GpuHandle::query_processes);
            each.push((nth, read.ok()?));
        }
        Some(Processes::of_several_gpus(each.into_iter()))
    }

    /// Starts a task in another thread, on the GPU or MIG device with this UUID. The library must not be shut down before
    /// it was waited for.
    pub fn start_on<T: Send + 'static>(
        self,
        uuid: &str,
        task: impl FnOnce(&GpuHandle) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<Watched<T>, NvmlError> {
        let uuid = uuid.to_owned();
        self.start_task(move |session| task(&session.gpu_with_uuid(&uuid)?))
    }

    /// Starts a task in another thread.
    fn start_task<T: Send + 'static>(
        self,
        task: impl FnOnce(&Session) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<Watched<T>, NvmlError> {
        spawn_task(self.name.to_owned(), self.limit, move |watch| {
            let library = self.library;
            task(&Session { library, watch })
        })
    }

    /// Runs the task for each of the first `count` GPUs, side by side. The driver opens a GPU at its first call, which takes
    /// 7 ms on an H200, and 4 ms each for two at a time.
    pub fn run_on_each_gpu<T: Send + 'static>(
        self,
        count: u32,
        task: impl Fn(&Session, u32) -> Result<T, NvmlError> + Copy + Send + 'static,
    ) -> Vec<Result<T, NvmlError>> {
        let _open = OPEN.read().unwrap_or_else(PoisonError::into_inner);
        let start = |index| self.start_task(move |session| task(session, index));
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

    /// Shuts the library down, calls `work`, and initializes the library again.
    ///
    /// A process with NVML initialized holds `/dev/nvidiaN` open until `nvmlShutdown` (seen on an H200 with driver 580),
    /// and a GPU that any process holds cannot be reset (manual of nvidia-smi: "monitoring application like other
    /// instance of nvidia-smi"). Other tasks wait meanwhile, and `work` must not use NVML.
    ///
    /// # Errors
    /// If the library cannot be shut down, or an abandoned call still hangs in it, `work` is not called. If it does not start again, the result of `work` is
    /// lost.
    pub fn while_shut_down<T>(self, work: impl FnOnce() -> T) -> Result<T, NvmlError> {
        let _alone = OPEN.write().unwrap_or_else(PoisonError::into_inner);
        // Nobody waits any more for a task that has not ended.
        if let Some(error) = unfinished_task_error(self.name) {
            return Err(error);
        }
        // NVML counts its initializations: each one needs a shutdown of its own.
        loop {
            match self.start_task(Session::shut_down)?.wait() {
                Ok(()) => {}
                Err(error) if error.code() == Some(Code::UNINITIALIZED) => break,
                Err(error) => return Err(error),
            }
        }
        let answer = work();
        self.start_task(Session::initialize)?.wait()?;
        Ok(answer)
    }
}

/// The current call of a task's thread, for the thread that waits for it.
#[derive(Clone, Default)]
pub(super) struct CallWatch {
    current: Arc<Mutex<Option<CurrentCall>>>,
}

#[derive(Clone)]
struct CurrentCall {
    name: &'static str,
    subject: String,
    since: Instant,
}

impl CurrentCall {
    fn hung_error(&self, waited: Duration) -> NvmlError {
        NvmlError::Hung {
            waited,
            call: self.name,
            subject: self.subject.clone(),
        }
    }
}

impl CallWatch {
    /// Records the start of a call.
    pub(super) fn record_call(&self, name: &'static str, subject: &str) {
        *lock(&self.current) = Some(CurrentCall {
            name,
            subject: subject.to_owned(),
            since: Instant::now(),
        });
    }
}

/// The work of a thread. It frees its worker before it delivers the answer.
type WorkerTask = Box<dyn FnOnce(Worker) + Send>;

/// The channel to a thread that runs one task after another. `None` ends the thread.
#[derive(Clone)]
struct Worker(Sender<Option<WorkerTask>>);

/// The free workers. Threads are reused: a new one could exceed a limit of processes half-way through a change.
static FREE_WORKERS: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

/// A task in [`RUNNING_TASKS`], from which it is removed also when it panics.
struct RunningTask(CallWatch);

impl RunningTask {
    fn register(name: OsString, watch: CallWatch) -> Self {
        lock(&RUNNING_TASKS).push((name, watch.clone()));
        Self(watch)
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        lock(&RUNNING_TASKS).retain(|(_, other)| !Arc::ptr_eq(&other.current, &self.0.current));
    }
}

fn make_worker() -> Result<(Worker, JoinHandle<()>), NvmlError> {
    let (sender, tasks) = mpsc::channel::<Option<WorkerTask>>();
    let worker = Worker(sender);
    let me = worker.clone();
    let thread = std::thread::Builder::new()
        .spawn(move || {
            while let Ok(Some(task)) = tasks.recv() {
                task(me.clone());
            }
        })
        .map_err(|error| NvmlError::NoThread {
            reason: FileError::from(error).to_string(),
        })?;
    Ok((worker, thread))
}

/// A task that runs in another thread.
pub struct Watched<T> {
    limit: Duration,
    watch: CallWatch,
    answers: Receiver<Result<T, NvmlError>>,
}

/// Starts a task with a library in another thread.
fn spawn_task<T: Send + 'static>(
    name: OsString,
    limit: Duration,
    task: impl FnOnce(CallWatch) -> Result<T, NvmlError> + Send + 'static,
) -> Result<Watched<T>, NvmlError> {
    let watch = CallWatch::default();
    let (answer, answers) = mpsc::channel();
    let own = watch.clone();
    let task: WorkerTask = Box::new(move |worker| {
        let running = RunningTask::register(name, own.clone());
        let result = task(own);
        drop(running);
        lock(&FREE_WORKERS).push(worker);
        // After its limit no thread waits for the task.
        let _ = answer.send(result);
    });
    let known = lock(&FREE_WORKERS).pop();
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
            let Some(call) = lock(&self.watch.current).clone() else {
                continue;
            };
            patience = match limit.checked_sub(call.since.elapsed()) {
                Some(remaining) => remaining.max(Duration::from_millis(1)),
                None => return Err(call.hung_error(limit)),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else the library would count as hung for the rest of the process.
    #[test]
    fn a_task_that_panics_is_over() {
        let library = || OsString::from("libpanics.so.1");
        let task = |watch: CallWatch| -> Result<(), NvmlError> {
            watch.record_call("nvmlNone", "nothing");
            panic!("a panic of a test")
        };
        let watched = spawn_task(library(), Duration::from_secs(60), task).unwrap();
        assert!(matches!(watched.wait(), Err(NvmlError::Strange { .. })));
        assert!(unfinished_task_error(&library()).is_none());
    }
}
