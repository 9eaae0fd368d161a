//! A daemon that logs without pause. Measured: one that may open no more files writes two lines for every try to accept
//! a connection that waits, and tries again at once.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Life, Served};
use crate::host::{bounded, printable};
use crate::mps::{LogDir, LogFile, LogLine};

/// How long ago a log that grows without pause was last written, at most.
const FRESH: Duration = Duration::from_millis(500);

/// Between the two looks at the length of such a log.
const BETWEEN: Duration = Duration::from_millis(50);

/// How fast it grows, in bytes a second, at least.
const FAST: u64 = 64 << 10;

/// How much of its end is read, in bytes, and how many different texts there are in it, at most. Whatever else fills a
/// log has more.
const END: u64 = 4 << 10;
const TEXTS: usize = 3;

/// What a daemon that may open no more files repeats.
const CANNOT_ACCEPT: &str = "Unable to accept connection";

/// How fast a log grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogGrowth {
    /// The log.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// By how many bytes it grows each second.
    pub per_second: u64,
    /// What it says again and again.
    pub text: String,
}

impl LogGrowth {
    /// True if its daemon accepts nobody.
    pub fn accepts_nobody(&self) -> bool {
        self.text == CANNOT_ACCEPT
    }
}

/// True if one of the logs was written a moment ago: only then is it worth two looks.
pub(super) fn is_fresh(logs: &LogDir) -> bool {
    let written = |log| logs.mark(log)?.1.elapsed().ok();
    LogFile::ALL
        .into_iter()
        .any(|log| written(log).is_some_and(|age| age < FRESH))
}

/// Measures the fresh logs of these devices, all in the same time.
pub(super) fn measure(fresh: &[(String, LogDir)], served: &mut [Served]) {
    if fresh.is_empty() {
        return;
    }
    let begun = Instant::now();
    let lengths = || -> Vec<[u64; 2]> {
        let logs = fresh.iter();
        logs.map(|(_, logs)| LogFile::ALL.map(|log| logs.length(log)))
            .collect()
    };
    let before = lengths();
    std::thread::sleep(BETWEEN);
    let (after, elapsed) = (lengths(), begun.elapsed());
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
        // Between two tries it may look idle.
        if growth.accepts_nobody() && served.is_alive() {
            served.life = Life::Hung;
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
    if per_second < FAST {
        return None;
    }
    let end = logs.end(log.name(), 0, END);
    let lines: Vec<&str> = end.lines().collect();
    // The first and the last may be cut.
    let texts: BTreeSet<String> = lines
        .get(1..lines.len().saturating_sub(1))?
        .iter()
        .map(|line| printable(LogLine::parse(log, line).text.trim()))
        .collect();
    if texts.is_empty() || texts.len() > TEXTS {
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
