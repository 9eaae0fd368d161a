//! Finds logs that a daemon writes without pause. Measured: a daemon that may open no more files logs two lines for
//! every attempt to accept a waiting connection, and tries again at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::host::{bounded, printable};
use crate::mps::{LogDir, LogFile, LogLine};
use crate::node::served::{CANNOT_ACCEPT, DaemonState, LogGrowth, Served};

/// A log that grows without pause was written no longer ago than this.
const FRESH: Duration = Duration::from_millis(500);

/// Time between two readings of a log's length, and the most readings that follow each other.
const INTERVAL: Duration = Duration::from_millis(50);
const SAMPLES: u32 = 4;

/// The least growth that counts, in bytes a second.
const MIN_GROWTH: u64 = 64 << 10;

/// The bytes that are read from the end of a log.
const END: u64 = 4 << 10;
/// The most different lines in it: whatever else fills a log writes more.
const MAX_TEXTS: usize = 3;

/// Opens the logs to measure them, if one was written a moment ago.
pub(super) fn fresh(logs: &LogDir) -> Option<LogDir> {
    let written = |log| logs.mark(log)?.1.elapsed().ok();
    let is_fresh = |log| written(log).is_some_and(|age| age < FRESH);
    LogFile::ALL
        .into_iter()
        .any(is_fresh)
        .then(|| LogDir::open(logs.path()).ok())?
}

/// Measures the logs of these devices that repeat themselves, all in the same interval. A daemon that gets no CPU for a
/// while writes nothing meanwhile, so an interval without growth is followed by another one.
pub(super) fn measure(fresh: &[(String, LogDir)], served: &mut [Served]) {
    let mut suspects: Vec<Suspect<'_>> = fresh
        .iter()
        .flat_map(|(uuid, logs)| LogFile::ALL.map(|log| Suspect { uuid, logs, log }))
        .filter(|suspect| suspect.repeated_text().is_some())
        .collect();
    for _ in 0..SAMPLES {
        if suspects.is_empty() {
            return;
        }
        let started = Instant::now();
        let lengths: Vec<u64> = suspects.iter().map(Suspect::length).collect();
        std::thread::sleep(INTERVAL);
        let mut before = lengths.into_iter();
        suspects.retain(|suspect| {
            let before = before.next().unwrap_or_default();
            let growth = suspect.growth_since(before, started);
            let is_paused = growth.is_none();
            if let Some(growth) = growth {
                note(suspect.uuid, growth, served);
            }
            is_paused
        });
    }
}

/// Notes that a log grows without pause.
fn note(uuid: &str, growth: LogGrowth, served: &mut [Served]) {
    let served = served.iter_mut().find(|served| served.record.uuid == uuid);
    let Some(served) = served else { return };
    // Between two attempts it may seem idle.
    if growth.accepts_nobody() && served.is_alive() {
        served.state = DaemonState::Hung;
    }
    let known = served.log_growth.as_ref();
    if known.is_none_or(|known| known.per_second < growth.per_second) {
        served.log_growth = Some(growth);
    }
}

/// A log that was written a moment ago.
struct Suspect<'a> {
    uuid: &'a str,
    logs: &'a LogDir,
    log: LogFile,
}

impl Suspect<'_> {
    fn length(&self) -> u64 {
        self.logs.length(self.log)
    }

    /// The line that fills the end of the log over and over, if one does.
    fn repeated_text(&self) -> Option<String> {
        let end = self.logs.end(self.log.name(), 0, END);
        let lines: Vec<&str> = end.lines().collect();
        // The first and the last line may be incomplete.
        let texts: BTreeSet<String> = lines
            .get(1..lines.len().saturating_sub(1))?
            .iter()
            .map(|line| printable(LogLine::parse(self.log, line).text.trim()))
            .collect();
        if texts.len() > MAX_TEXTS {
            return None;
        }
        let text = texts.get(CANNOT_ACCEPT).or_else(|| texts.last())?;
        Some(bounded(text).into_owned())
    }

    /// The growth of the log from this length on, if it has no pause.
    fn growth_since(&self, before: u64, started: Instant) -> Option<LogGrowth> {
        let length = self.length();
        let grown = u128::from(length.saturating_sub(before));
        let elapsed = started.elapsed().as_millis().max(1);
        let per_second = u64::try_from(grown * 1000 / elapsed).ok()?;
        if per_second < MIN_GROWTH {
            return None;
        }
        Some(LogGrowth {
            path: self.logs.path().join(self.log.name()),
            length,
            per_second,
            text: self.repeated_text()?,
        })
    }
}
