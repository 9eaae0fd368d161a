//! Finds logs that a daemon writes without pause. Measured: a daemon that may open no more files logs two lines for
//! every attempt to accept a waiting connection, and tries again at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::host::{bounded, printable};
use crate::mps::{LogDir, LogFile, LogLine};
use crate::node::served::{CANNOT_ACCEPT, DaemonState, LogGrowth, Served};

/// A log that grows without pause was written no longer ago than this.
const FRESH: Duration = Duration::from_millis(500);

/// Time between the two readings of a log's length.
const INTERVAL: Duration = Duration::from_millis(50);

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

/// Measures the logs of these devices, all in the same interval.
pub(super) fn measure(fresh: &[(String, LogDir)], served: &mut [Served]) {
    if fresh.is_empty() {
        return;
    }
    let started = Instant::now();
    let lengths = |(_, logs): &(String, LogDir)| LogFile::ALL.map(|log| logs.length(log));
    let before: Vec<[u64; 2]> = fresh.iter().map(lengths).collect();
    std::thread::sleep(INTERVAL);
    let after: Vec<[u64; 2]> = fresh.iter().map(lengths).collect();
    let elapsed = started.elapsed();
    for ((uuid, logs), (before, after)) in fresh.iter().zip(before.iter().zip(after)) {
        let grown = LogFile::ALL.into_iter().zip(before.iter().zip(after));
        let growth = grown
            .filter_map(|(log, (before, after))| growth(logs, log, (*before, after), elapsed))
            .max_by_key(|growth| growth.per_second);
        let mut served = served.iter_mut();
        let served = served.find(|served| served.record.uuid == *uuid);
        let (Some(served), Some(growth)) = (served, growth) else {
            continue;
        };
        // Between two attempts it may seem idle.
        if growth.accepts_nobody() && served.is_alive() {
            served.state = DaemonState::Hung;
        }
        served.log_growth = Some(growth);
    }
}

fn growth(
    logs: &LogDir,
    log: LogFile,
    (before, after): (u64, u64),
    elapsed: Duration,
) -> Option<LogGrowth> {
    let grown = u128::from(after.saturating_sub(before));
    let per_second = u64::try_from(grown * 1000 / elapsed.as_millis().max(1)).ok()?;
    if per_second < MIN_GROWTH {
        return None;
    }
    let end = logs.end(log.name(), 0, END);
    let lines: Vec<&str> = end.lines().collect();
    // The first and the last line may be incomplete.
    let texts: BTreeSet<String> = lines
        .get(1..lines.len().saturating_sub(1))?
        .iter()
        .map(|line| printable(LogLine::parse(log, line).text.trim()))
        .collect();
    if texts.is_empty() || texts.len() > MAX_TEXTS {
        return None;
    }
    let text = texts.get(CANNOT_ACCEPT).or_else(|| texts.last())?;
    Some(LogGrowth {
        path: logs.path().join(log.name()),
        length: after,
        per_second,
        text: bounded(text).into_owned(),
    })
}
