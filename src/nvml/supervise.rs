use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml as Library;
use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper_sys::bindings::NvmlLib;

use super::{Code, NvmlError};

/// How long one call may take. Destroying a GPU instance takes about 1 s and switching the MIG mode
/// of an A100 resets it, which takes several.
pub const CALL_LIMIT: Duration = Duration::from_secs(60);

/// What a task's thread is doing, for whoever waits for it.
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
    /// Says that a call begins.
    pub(super) fn begin(&self, name: &'static str, subject: &str) {
        *self.lock() = Some(Call {
            name,
            subject: subject.to_owned(),
            since: Instant::now(),
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Call>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `task` in a thread of its own and waits for it as long as each of its calls keeps within
/// `limit`. A thread whose call hangs is left behind.
pub(super) fn watched<T: Send + 'static>(
    limit: Duration,
    task: impl FnOnce(Watch) -> Result<T, NvmlError> + Send + 'static,
) -> Result<T, NvmlError> {
    let watch = Watch::default();
    let (answer, answers) = mpsc::channel();
    let theirs = watch.clone();
    std::thread::spawn(move || {
        // Nobody listens any more when the task came back after its limit.
        let _ = answer.send(task(theirs));
    });
    let mut patience = limit;
    loop {
        match answers.recv_timeout(patience) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Disconnected) => {
                // The task panicked: its message is on stderr already.
                return Err(NvmlError::Strange {
                    call: "NVML",
                    subject: "this program".to_owned(),
                    answer: "nothing: its thread panicked".to_owned(),
                });
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let call = watch.lock().clone();
        let since = call.as_ref().map_or_else(Instant::now, |call| call.since);
        match (limit.checked_sub(since.elapsed()), call) {
            (Some(left), _) => patience = left.max(Duration::from_millis(1)),
            (None, call) => {
                let (name, subject) = call.map_or(("NVML", String::new()), |c| (c.name, c.subject));
                return Err(NvmlError::Hung {
                    call: name,
                    subject,
                    waited: limit,
                });
            }
        }
    }
}

/// The library as seen from within a supervised task.
pub struct Session {
    pub(super) library: &'static Library,
    watch: Watch,
}

impl Session {
    pub(super) fn new(library: &'static Library, watch: Watch) -> Self {
        Self { library, watch }
    }

    /// The library's symbols, each of which an older driver may lack.
    pub(super) fn symbols(&self) -> &'static NvmlLib {
        self.library.lib()
    }

    /// Makes one call through nvml-wrapper.
    pub(super) fn ask<T>(
        &self,
        call: &'static str,
        subject: &str,
        work: impl FnOnce() -> Result<T, WrapperError>,
    ) -> Result<T, NvmlError> {
        self.watch.begin(call, subject);
        work().map_err(|error| NvmlError::of(&error, call, subject))
    }

    /// Makes one call through a symbol of the library; `work` returns NVML's code.
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
