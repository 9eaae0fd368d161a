//! Calls that are tried again while the driver reports a GPU in use.

use std::time::{Duration, Instant};

use crate::host::Interrupt;
use crate::nvml::{Code, NvmlError};

/// The time for which a call is retried that returns `IN_USE`: the driver releases an instance a moment after the
/// exit of the server that held it.
pub(super) const LIMIT: Duration = Duration::from_secs(4);

/// The first pause before another try; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(640);

/// Pauses between tries, each longer than the last, up to the time limit.
pub(super) struct Backoff<'a> {
    /// Ends the wait; `None` during a rollback.
    interrupt: Option<&'a Interrupt>,
    begun: Instant,
    pause: Duration,
}

impl<'a> Backoff<'a> {
    pub(super) fn new(interrupt: Option<&'a Interrupt>) -> Self {
        Self {
            interrupt,
            begun: Instant::now(),
            pause: FIRST_PAUSE,
        }
    }

    /// Waits before another try; returns false on timeout or interrupt.
    pub(super) fn wait(&mut self) -> bool {
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        if self.begun.elapsed() + pause > LIMIT {
            return false;
        }
        if let Some(interrupt) = self.interrupt {
            return interrupt.pause(pause);
        }
        // The driver does not announce the release.
        std::thread::sleep(pause);
        true
    }
}

/// Makes a call, and retries it while the driver returns `IN_USE`.
pub(super) fn while_in_use<T>(
    interrupt: Option<&Interrupt>,
    mut call: impl FnMut() -> Result<T, NvmlError>,
) -> Result<T, NvmlError> {
    let mut backoff = Backoff::new(interrupt);
    loop {
        match call() {
            Err(error) if error.code() == Some(Code::IN_USE) && backoff.wait() => {}
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: Code) -> NvmlError {
        NvmlError::Refused {
            call: "nvmlGpuInstanceDestroy",
            subject: "GPU-1".to_owned(),
            code,
        }
    }

    #[test]
    fn only_in_use_is_tried_again() {
        let tries = |answers: &[Option<Code>]| {
            let mut answers = answers.iter();
            let mut count = 0;
            let result = while_in_use(None, || {
                count += 1;
                match answers.next().expect("no more tries") {
                    Some(code) => Err(refused(*code)),
                    None => Ok(()),
                }
            });
            (count, result.is_ok())
        };
        assert_eq!(tries(&[None]), (1, true));
        assert_eq!(
            tries(&[Some(Code::IN_USE), Some(Code::IN_USE), None]),
            (3, true)
        );
        assert_eq!(tries(&[Some(Code::NO_PERMISSION)]), (1, false));
        assert_eq!(
            tries(&[Some(Code::IN_USE), Some(Code::INSUFFICIENT_RESOURCES)]),
            (2, false)
        );
    }

    #[test]
    fn it_ends() {
        let mut backoff = Backoff::new(None);
        backoff.begun = Instant::now().checked_sub(LIMIT).unwrap();
        assert!(!backoff.wait());
    }
}
