//! Waiting for clients to end.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::plan::{Plan, Refusal};
use crate::render::Ui;

/// Between two looks at who is still there.
const POLL: Duration = Duration::from_millis(500);

/// How long clients get who shall end at once: `quit -t` takes whole seconds.
pub(super) const AT_ONCE: u32 = 1;

/// For how long clients are waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    until: Option<Instant>,
}

impl Drain {
    /// For so many seconds from now on, or not at all.
    pub(super) fn of(seconds: Option<u32>) -> Self {
        let limit = seconds.map(|seconds| Duration::from_secs(seconds.into()));
        Self {
            until: limit.and_then(|limit| Instant::now().checked_add(limit)),
        }
    }

    /// Whether there is time left for the clients that keep a plan from being carried out.
    pub(super) fn allows(self, refusal: &anyhow::Error) -> bool {
        in_use(refusal).is_some() && self.left().is_some()
    }

    /// Waits until `plan` disturbs nobody, for as long as is allowed; its plan then.
    pub(super) fn wait(self, plan: impl Fn() -> Result<Plan>, ui: &Ui) -> Result<Plan> {
        let mut said = 0;
        loop {
            let error = match plan() {
                Ok(plan) => return Ok(plan),
                Err(error) => error,
            };
            let (Some(waiting_for), Some(left)) = (in_use(&error), self.left()) else {
                return Err(error);
            };
            if waiting_for != said {
                ui.note(&format!(
                    "{error}\nwaiting for at most {} s more",
                    left.as_secs().max(1)
                ));
                said = waiting_for;
            }
            // A client's end announces itself to nobody but its server.
            std::thread::sleep(POLL.min(left));
        }
    }

    fn left(self) -> Option<Duration> {
        let left = self.until?.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }
}

/// The number of clients that an error is about.
fn in_use(error: &anyhow::Error) -> Option<usize> {
    match error.downcast_ref() {
        Some(Refusal::InUse { clients, .. }) => Some(clients.len()),
        _ => None,
    }
}

/// Reads `30`, `30s`, `5m` or `1h`.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    let number: Option<u32> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "expected a number of seconds, or one like 30s, 5m, 1h".to_owned())
}
