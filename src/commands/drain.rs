//! Waiting for clients to exit.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::plan::Refusal;
use crate::render::note;

/// The interval between two snapshots.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The hint about clients that have not exited in time.
const DRAIN_OVER_HINT: &str = "use a longer --drain, or end the clients with --force";

/// The time that clients get before `--force` ends them: `quit -t` takes whole seconds.
pub const DEFAULT_FORCE_SECONDS: u32 = 1;

/// The time to wait for clients, from the first wait on: the time at a question does not count.
#[derive(Debug)]
pub(super) struct Drain {
    limit: Duration,
    begun: Option<Instant>,
}

impl Drain {
    pub(super) fn from_seconds(seconds: Option<u32>) -> Self {
        Self {
            limit: Duration::from_secs(seconds.unwrap_or(0).into()),
            begun: None,
        }
    }

    /// True if clients are in the way, and there is time left for them to exit.
    pub(super) fn can_wait_for(&self, refusal: &Refusal) -> bool {
        count_in_the_way(refusal).is_some() && !self.remaining_time().is_zero()
    }

    /// Begins the time, if it has not begun before. Returns its end.
    pub(super) fn begin(&mut self) -> Instant {
        *self.begun.get_or_insert_with(Instant::now) + self.limit
    }

    /// The rest of the time.
    pub(super) fn remaining_time(&self) -> Duration {
        let waited = self.begun.map(|begun| begun.elapsed()).unwrap_or_default();
        self.limit.saturating_sub(waited)
    }
}

/// Observes and plans until the plan is not refused for clients in the way, or the time is over.
pub(super) fn wait_for_clients<T>(
    until: Instant,
    mut observe_and_plan: impl FnMut() -> Result<Result<T, Refusal>>,
) -> Result<T> {
    let mut reported = 0;
    loop {
        let refusal = match observe_and_plan()? {
            Ok(planned) => return Ok(planned),
            Err(refusal) => refusal,
        };
        let left = until.saturating_duration_since(Instant::now());
        let waiting_for = match count_in_the_way(&refusal) {
            Some(count) if !left.is_zero() => count,
            _ => return Err(with_timeout_hint(refusal).into()),
        };
        if waiting_for != reported {
            let seconds = left.as_secs().max(1);
            note(&format!("{refusal}\nwaiting up to {seconds} s more"));
            reported = waiting_for;
        }
        // Only its server notices when a client exits.
        std::thread::sleep(POLL_INTERVAL.min(left));
    }
}

/// Says what helps where clients are still in the way when the time is over.
fn with_timeout_hint(mut refusal: Refusal) -> Refusal {
    if let Refusal::InUse { hint, .. } = &mut refusal {
        DRAIN_OVER_HINT.clone_into(hint);
    }
    refusal
}

/// The number of clients and pods that are in the way.
fn count_in_the_way(refusal: &Refusal) -> Option<usize> {
    match refusal {
        Refusal::InUse { clients, pods, .. } => Some(clients.len() + pods.len()),
        _ => None,
    }
}
