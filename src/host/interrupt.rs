use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use super::Host;

/// How long it may take from a signal to its being heard: nobody waits for a thread that could not be started.
const HEARING_LIMIT: Duration = Duration::from_secs(1);

/// Ctrl-C, and whatever else asks the program to end.
///
/// Where nothing is being changed, the program may end on the spot. A change stops at its next safe
/// point, and what undoes it is not stopped at all.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    asked: Arc<AtomicBool>,
    /// Whether `hear` has been called.
    is_heard: AtomicBool,
    phase: Mutex<Phase>,
    heard: Condvar,
}

/// What the program is at when it is asked to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing that must not be left half-done.
    #[default]
    Free,
    /// A change.
    Changing,
    /// Undoing a change.
    RollingBack,
}

/// A change under way: for as long as this lives the program does not end on the spot.
#[derive(Debug)]
pub struct Change<'a> {
    interrupt: &'a Interrupt,
}

impl Interrupt {
    /// Listens for SIGINT, SIGTERM and SIGHUP. `hear` is called in a thread of its own each time one
    /// comes; in [`Phase::Free`] it should end the program.
    ///
    /// Signals that are ignored stay so, as SIGHUP under `nohup`.
    ///
    /// # Errors
    /// The system's.
    pub fn listen(&self, host: &Host, hear: impl Fn(Phase) + Send + 'static) -> io::Result<()> {
        let heeded: Vec<i32> = [SIGINT, SIGTERM, SIGHUP]
            .into_iter()
            .filter(|signal| !host.ignores(*signal))
            .collect();
        // Made before the signals are taken: without it they do what they always do.
        let (give, take) = mpsc::channel::<Signals>();
        let state = Arc::clone(&self.state);
        std::thread::Builder::new().spawn(move || {
            let Ok(mut signals) = take.recv() else { return };
            for _ in &mut signals {
                // Held meanwhile: no change begins while the program ends.
                let phase = state.lock();
                hear(*phase);
                state.is_heard.store(true, Ordering::Relaxed);
                state.heard.notify_all();
            }
        })?;
        // Set by the signal itself: whoever is woken by it sees it set.
        for &signal in &heeded {
            flag::register(signal, Arc::clone(&self.state.asked))?;
        }
        let _ = give.send(Signals::new(&heeded)?);
        Ok(())
    }

    /// Whether the program was asked to end.
    pub fn is_asked(&self) -> bool {
        self.state.asked.load(Ordering::Relaxed)
    }

    /// Begins a change.
    pub fn begin(&self) -> Change<'_> {
        *self.state.lock() = Phase::Changing;
        Change { interrupt: self }
    }

    /// Lets time pass; returns sooner, with `false`, when the program is asked to end.
    pub fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut phase = self.state.lock();
        loop {
            if self.is_asked() {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.state.heard.wait_timeout(phase, left);
            phase = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Change<'_> {
    /// From here on it is undone.
    pub fn roll_back(&self) {
        *self.interrupt.state.lock() = Phase::RollingBack;
    }
}

impl Drop for Change<'_> {
    /// A signal that came during the change is heard as such a one: as if it had come afterwards it would end the
    /// program before that has said what was done.
    fn drop(&mut self) {
        let state = &self.interrupt.state;
        let is_unheard =
            |_: &mut Phase| self.interrupt.is_asked() && !state.is_heard.load(Ordering::Relaxed);
        let waited = state
            .heard
            .wait_timeout_while(state.lock(), HEARING_LIMIT, is_unheard);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = Phase::Free;
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn what_comes_during_a_change_is_heard_as_such() {
        let interrupt = Interrupt::default();
        let (told, hears) = mpsc::channel();
        let hear = move |phase| told.send(phase).unwrap();
        interrupt.listen(&Host::at(Path::new("/")), hear).unwrap();
        let change = interrupt.begin();
        kill_process(getpid(), Signal::TERM).unwrap();
        while !interrupt.is_asked() {
            std::hint::spin_loop();
        }
        drop(change);
        assert_eq!(hears.recv().unwrap(), Phase::Changing);
    }
}
