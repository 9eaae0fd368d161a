//! Ctrl-C and other signals: they stop a change at its next safe point, and `run` forwards them to its program.

use std::collections::BTreeSet;
use std::io::{self, PipeReader};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, pipe};

use super::process::{raw_pid, wait_until_ready};
use super::spawn::restore_ignored_signals;
use super::{FileResult, Host, Pid, lock};

/// The time that the handling of a signal may take: the thread for it may not exist.
const SIGNAL_HANDLING_TIMEOUT: Duration = Duration::from_secs(1);

/// Interrupts by Ctrl-C and other signals.
///
/// While nothing is being changed, the program may exit at once. A change stops at its next safe point, a rollback is
/// never stopped, and after a change the program still says what came of it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    state: Arc<InterruptState>,
}

#[derive(Debug, Default)]
struct InterruptState {
    /// Has something to read from the first signal on.
    asked: OnceLock<PipeReader>,
    /// The callback was called.
    is_heard: AtomicBool,
    phase: Mutex<Phase>,
    heard: Condvar,
}

/// The phase of the program when it is interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The program may exit at once.
    #[default]
    Free,
    /// A change is planned, and nothing has been changed: the program may exit at once.
    Planning,
    Changing,
    /// A change waits for programs, and says what stays if it is interrupted.
    Waiting,
    RollingBack,
    /// A change has ended, and its outcome is not shown yet: the program goes on to its end, or to the next change.
    Concluding,
}

/// A change that is being planned or in progress. Once it is in progress, the program does not exit at once.
#[derive(Debug)]
pub struct ChangeInProgress<'a> {
    interrupt: &'a Interrupt,
}

impl Drop for ChangeInProgress<'_> {
    /// Waits until a signal that arrived meanwhile is handled, which ends a planning program, and else names the phase.
    fn drop(&mut self) {
        let mut phase = self.interrupt.wait_until_handled();
        *phase = match *phase {
            Phase::Free | Phase::Planning => Phase::Free,
            Phase::Changing | Phase::Waiting | Phase::RollingBack | Phase::Concluding => {
                Phase::Concluding
            }
        };
    }
}

impl Interrupt {
    /// Listens for SIGINT, SIGTERM and SIGHUP. Calls `hear` in a thread of its own for each signal; in [`Phase::Free`] and
    /// [`Phase::Planning`] it should end the program. Ignored signals stay ignored, such as SIGHUP under `nohup`.
    pub fn listen(&self, host: &Host, hear: impl Fn(Phase) + Send + 'static) -> FileResult<()> {
        let mut heeded = vec![SIGINT, SIGTERM, SIGHUP];
        heeded.retain(|signal| !host.ignores_signal(*signal));
        // The thread comes first: if it cannot be started, the signals keep their default actions.
        let (give, take) = mpsc::channel::<Signals>();
        let state = Arc::clone(&self.state);
        std::thread::Builder::new().spawn(move || {
            let Ok(mut signals) = take.recv() else { return };
            for _ in &mut signals {
                // The lock is held meanwhile: no change begins while the program exits.
                let phase = lock(&state.phase);
                hear(*phase);
                state.is_heard.store(true, Ordering::Relaxed);
                state.heard.notify_all();
            }
        })?;
        let (asked, writer) = io::pipe()?;
        let _ = self.state.asked.set(asked);
        // Written to by the signal handler itself, so that an interrupted call sees it.
        for &signal in &heeded {
            pipe::register(signal, writer.try_clone()?)?;
        }
        let _ = give.send(Signals::new(&heeded)?);
        Ok(())
    }

    /// True if the program was interrupted.
    pub fn is_interrupted(&self) -> bool {
        !self.sleep_uninterrupted(Duration::ZERO)
    }

    /// Returns what to poll for an interrupt; `None` where nobody listens for one.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        let asked = self.state.asked.get()?;
        Some(PollFd::new(asked, PollFlags::IN))
    }

    /// Waits until a signal that has arrived is handled.
    fn wait_until_handled(&self) -> MutexGuard<'_, Phase> {
        let state = &self.state;
        let waited =
            state
                .heard
                .wait_timeout_while(lock(&state.phase), SIGNAL_HANDLING_TIMEOUT, |_| {
                    self.is_interrupted() && !state.is_heard.load(Ordering::Relaxed)
                });
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Notes that a change is being planned, until the value is dropped.
    pub fn begin_planning(&self) -> ChangeInProgress<'_> {
        *lock(&self.state.phase) = Phase::Planning;
        ChangeInProgress { interrupt: self }
    }

    /// Notes that a change waits for programs, until the value is dropped; `None` if nothing has been changed yet.
    pub fn begin_waiting(&self) -> Option<ChangeInProgress<'_>> {
        let mut phase = lock(&self.state.phase);
        (*phase == Phase::Concluding).then(|| {
            *phase = Phase::Waiting;
            ChangeInProgress { interrupt: self }
        })
    }

    /// Notes that the outcome of the last change is shown: the program may exit at once.
    pub fn allow_exit(&self) {
        *lock(&self.state.phase) = Phase::Free;
    }

    /// Starts a change.
    pub fn begin_change(&self) -> ChangeInProgress<'_> {
        *lock(&self.state.phase) = Phase::Changing;
        ChangeInProgress { interrupt: self }
    }

    /// Waits for a time. Returns early, with `false`, on an interrupt.
    pub fn sleep_uninterrupted(&self, time: Duration) -> bool {
        let is_asked = wait_until_ready(self.poll_fd().as_mut_slice(), Instant::now() + time);
        !is_asked.unwrap_or(false)
    }
}

impl ChangeInProgress<'_> {
    /// Starts the rollback of the change.
    pub fn begin_rollback(&self) {
        *lock(&self.interrupt.state.phase) = Phase::RollingBack;
    }
}

/// Makes this process go on at the signals that end a program or a session. Its children have the default actions.
pub fn ignore_termination() -> FileResult<()> {
    for signal in FORWARDED {
        flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// The signals that are passed on.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Passes the signals of this process on to its child programs.
#[derive(Debug)]
pub struct Forwarding {
    children: Arc<Mutex<BTreeSet<Pid>>>,
}

impl Forwarding {
    /// Starts to pass signals on. `with_keys` is false for children that get those of the terminal's keys themselves.
    /// Ignored signals stay ignored, such as SIGHUP under `nohup`. Without children, a signal ends this process.
    pub fn start(host: &Host, with_keys: bool) -> FileResult<Self> {
        let children: Arc<Mutex<BTreeSet<Pid>>> = Arc::default();
        let heeded = FORWARDED
            .iter()
            .filter(|signal| !host.ignores_signal(**signal));
        let mut signals = Signals::new(heeded)?;
        let theirs = Arc::clone(&children);
        std::thread::Builder::new().spawn(move || {
            for number in &mut signals {
                if !with_keys && [SIGINT, SIGQUIT].contains(&number) {
                    continue;
                }
                let children = lock(&theirs);
                if children.is_empty() {
                    // It ends this process, which waits for nobody but other holders of a pipe.
                    let _ = emulate_default_handler(number);
                }
                if let Some(signal) = Signal::from_named_raw(number) {
                    send_signal(&children, signal);
                }
            }
        })?;
        Ok(Self { children })
    }

    /// Starts a child, with the signals ignored that the caller ignores.
    pub fn start_child(&self, command: &mut Command) -> FileResult<Child> {
        restore_ignored_signals(command);
        // Under the lock: a signal that arrives meanwhile reaches the child.
        let mut children = lock(&self.children);
        let child = command.spawn()?;
        children.insert(Pid(child.id()));
        Ok(child)
    }

    /// Removes a child that has exited, before it is waited for: then another process may get its pid.
    pub fn remove_child(&self, pid: u32) {
        lock(&self.children).remove(&Pid(pid));
    }

    /// Sends SIGTERM to all children.
    pub fn terminate_children(&self) {
        send_signal(&lock(&self.children), Signal::TERM);
    }
}

fn send_signal(children: &BTreeSet<Pid>, signal: Signal) {
    for pid in children.iter().filter_map(|pid| raw_pid(*pid)) {
        // It may just have exited; until it is waited for, nobody else has its pid.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// An interrupt that is listened for, and the phases in which it is handled.
    fn listening() -> (Interrupt, mpsc::Receiver<Phase>) {
        let interrupt = Interrupt::default();
        let (sender, phases) = mpsc::channel();
        let hear = move |phase| sender.send(phase).unwrap();
        interrupt.listen(&Host::at(Path::new("/")), hear).unwrap();
        (interrupt, phases)
    }

    #[test]
    fn a_signal_is_handled_in_the_phase_in_which_it_arrived() {
        let (planning, while_planning) = listening();
        let (changing, while_changing) = listening();
        let (plan, change) = (planning.begin_planning(), changing.begin_change());
        kill_process(getpid(), Signal::TERM).unwrap();
        while !(planning.is_interrupted() && changing.is_interrupted()) {
            std::hint::spin_loop();
        }
        drop(plan);
        drop(change);
        assert_eq!(while_planning.recv().unwrap(), Phase::Planning);
        assert_eq!(while_changing.recv().unwrap(), Phase::Changing);
    }
}
