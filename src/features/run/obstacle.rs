//! Reasons why a program cannot start now, and the wait until they pass.

use std::time::{Duration, Instant};

use crate::client::another_device;
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::host::Environment;
use crate::node::{Device, Node};
use crate::render::note;
use crate::state::DeviceRecord;

/// A reason why a program cannot start now.
pub(super) struct RunObstacle {
    /// True if it ends when other programs do.
    pub(super) is_passing: bool,
    pub(super) error: CommandError,
}

impl RunObstacle {
    pub(super) fn new(is_passing: bool, error: impl Into<CommandError>) -> Self {
        let error = error.into();
        Self { is_passing, error }
    }

    /// Hints at a device on which the program can run instead, if there is one.
    pub(super) fn name_another_device(
        mut self,
        environment: &Environment,
        node: &Node,
        refused: &DeviceRecord,
    ) -> Self {
        if let Some(other) = another_device(environment, node, refused, environment.caller) {
            let hint = format!("use device {other}, which is free");
            self.error.hints.insert(0, hint);
        }
        self
    }
}

impl From<CommandError> for RunObstacle {
    fn from(error: CommandError) -> Self {
        Self::new(false, error)
    }
}

/// The first and the longest pause between two attempts: each adds lines to a daemon's log.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Attempts something until it succeeds, or the time of `--wait` is over, as long as the obstacle may pass. Without a time,
/// nothing is waited for.
pub(super) fn wait_until<T>(
    wait: Option<Duration>,
    attempt: impl Fn() -> Result<T, RunObstacle>,
) -> Result<T> {
    let until = wait.map(|wait| Instant::now() + wait);
    let mut reported = String::new();
    let mut pause = FIRST_PAUSE;
    loop {
        let obstacle = match attempt() {
            Ok(done) => return Ok(done),
            Err(obstacle) => obstacle,
        };
        let until = match until {
            Some(until) if obstacle.is_passing => until,
            _ => return Err(obstacle.error),
        };
        let left = until.saturating_duration_since(Instant::now());
        let cause = obstacle.error.to_string();
        if left.is_zero() {
            let what = format!("timed out (--wait): {cause}");
            let error = CommandError::new(ExitStatus::WaitOver, what);
            return Err(error.with_hint("use a longer --wait, or another device: `mig-mps status`"));
        }
        if reported != cause {
            note(&format!("waiting: {cause}"));
            reported = cause;
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Refuses devices of which none is served, if `down` has stopped one.
pub(super) fn check_not_stopped(node: &Node, names: &[String]) -> Result<()> {
    if names.iter().any(|name| node.served_named(name).is_some()) {
        return Ok(());
    }
    match names.iter().find_map(|name| node.stopped_error(name)) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// Returns the first of these devices that has no daemon and no programs, and that `down` has not stopped.
pub(super) fn find_free<'n>(node: &Node, devices: &[&'n Device]) -> Option<&'n Device> {
    let is_free = |device: &Device| {
        device.served.is_none() && !device.is_in_use() && node.find_stopped(device).is_none()
    };
    devices.iter().copied().find(|device| is_free(device))
}
