//! Waits until a device takes a program.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::client::{NoneFree, NotReady};
use crate::error::{CommandError, ExitStatus, Result};
use crate::render::note;

/// A reason why a program cannot start now.
pub(super) struct Obstacle {
    /// True if it ends when other programs do.
    is_passing: bool,
    error: CommandError,
}

impl From<CommandError> for Obstacle {
    fn from(error: CommandError) -> Self {
        Self {
            is_passing: false,
            error,
        }
    }
}

impl From<NotReady> for Obstacle {
    fn from(error: NotReady) -> Self {
        Self {
            is_passing: error.is_passing(),
            error: error.into(),
        }
    }
}

impl From<NoneFree> for Obstacle {
    fn from(error: NoneFree) -> Self {
        Self {
            is_passing: error.is_passing(),
            error: error.into(),
        }
    }
}

/// The first and the longest pause between two attempts: each adds lines to a daemon's log.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The time that a program waits for a device.
pub(super) struct Patience {
    until: Option<Instant>,
    /// The obstacle that was reported last.
    said: RefCell<String>,
}

impl Patience {
    /// Without a time, nothing is waited for.
    pub(super) fn new(wait: Option<Duration>) -> Self {
        Self {
            until: wait.map(|wait| Instant::now() + wait),
            said: RefCell::default(),
        }
    }

    /// Attempts something until it succeeds, as long as the obstacle may pass.
    pub(super) fn until<T>(&self, attempt: impl Fn() -> Result<T, Obstacle>) -> Result<T> {
        let mut pause = FIRST_PAUSE;
        loop {
            let obstacle = match attempt() {
                Ok(done) => return Ok(done),
                Err(obstacle) => obstacle,
            };
            let until = self.until.filter(|_| obstacle.is_passing);
            let Some(until) = until else {
                return Err(obstacle.error);
            };
            let left = until.saturating_duration_since(Instant::now());
            let cause = obstacle.error.to_string();
            if left.is_zero() {
                let what = format!("the time of --wait is over: {cause}");
                let error = CommandError::new(ExitStatus::WaitOver, what);
                return Err(error.with_hint("wait longer, or use another device: mig-mps status"));
            }
            if *self.said.borrow() != cause {
                note(&format!("waiting: {cause}"));
                self.said.replace(cause);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
