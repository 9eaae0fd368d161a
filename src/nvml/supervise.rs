//! NVML calls with a time limit: one that hangs is left behind in its thread.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::NvmlError;

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

/// The work of a thread. The returned function delivers the answer after the worker has become free.
type Task = Box<dyn FnOnce() -> Box<dyn FnOnce()> + Send>;

/// The channel to a thread that runs one task after another. `None` ends the thread.
type Worker = Sender<Option<Task>>;

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
                    let _ = worker.send(None);
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
    let (worker, tasks) = mpsc::channel::<Option<Task>>();
    let me = worker.clone();
    let work = move || {
        while let Ok(Some(task)) = tasks.recv() {
            let hand_over = task();
            free().push(me.clone());
            hand_over();
        }
    };
    let thread = std::thread::Builder::new().spawn(work);
    let thread = thread.map_err(|error| NvmlError::NoThread {
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
    let theirs = watch.clone();
    let task: Task = Box::new(move || {
        let result = task(theirs);
        // After its limit no thread waits for the task.
        Box::new(move || drop(answer.send(result)))
    });
    let known = free().pop();
    let worker = match known {
        Some(worker) => worker,
        None => make_worker()?.0,
    };
    // A free worker always receives.
    let _ = worker.send(Some(task));
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
                Some(left) => left.max(Duration::from_millis(1)),
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
