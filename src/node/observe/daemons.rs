//! Finds out the state of every recorded daemon: without asking it if possible.
//!
//! Finds logs that a daemon writes without pause, too. Measured: a daemon that may open no more files logs two lines for
//! every attempt to accept a waiting connection, and tries again at once.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::super::served::{CANNOT_ACCEPT, LogGrowth};
use super::ask::answer_limit;
use super::observer::Detail;
use super::probe::{Answers, Probe, ProbeContext, configured_logs};
use crate::host::{Environment, Pool, Process, ProcessTable, bounded, printable};
use crate::mps::{ControlProgram, LogDir, LogFile, LogLine};
use crate::node::{DaemonState, Gpu, Lost, Node, Presence, Served, Unseen};
use crate::state::DeviceRecord;

/// Fills in the state of every recorded daemon. `answers` are the daemons' last answers, and are replaced by the
/// current ones.
pub(super) fn observe(
    environment: &Environment,
    table: &ProcessTable,
    detail: Detail,
    node: &mut Node,
    answers: &mut Answers,
) {
    let program = node.control_program();
    fill_in_devices(node, program);
    let programs = environment.mps_programs().ok();
    let context = ProbeContext {
        detail,
        program,
        programs: programs.as_ref(),
        host: &environment.host,
        table,
        boot_id: &node.boot_id,
        unfinished: match node.under_way.as_slice() {
            [] if node.may_be_changing => DaemonState::Hidden,
            [] => DaemonState::Dead,
            _ => DaemonState::Starting,
        },
    };
    let (mut probes, mut fresh) = (Vec::new(), Vec::new());
    for served in &mut node.served {
        let daemon = context.check_process(served);
        context.fill_in_servers(served, daemon);
        let Some(daemon) = daemon.filter(|_| detail.reads_processes()) else {
            continue;
        };
        let uuid = served.record.uuid.clone();
        // Root opens a session with a user's daemon only to change it: its answers are the user's.
        let is_a_users = environment.is_root() && served.is_a_users();
        let logs = open_logs(environment, table.get(daemon), served);
        let mut probe = Probe {
            context,
            served,
            daemon,
            may_ask: !is_a_users || matches!(detail, Detail::Settings | Detail::Plan),
            limit: answer_limit(1),
            processes: node.processes.get(&uuid),
            logs,
            answer: None,
        };
        if detail.is_for_show() {
            let written = probe.logs.as_ref().and_then(fresh_logs);
            fresh.extend(written.map(|logs| (uuid.clone(), logs)));
            // Only a session reads settings back.
            if detail != Detail::Doctor && probe.fill_in_passively() {
                continue;
            }
        }
        // A plan needs current answers. A daemon that hung is not waited for again, whatever the detail.
        let last = answers.get(&uuid);
        probe.answer = last.filter(|last| detail.is_for_show() || last.glance.is_none());
        probes.push(probe);
    }
    *answers = ask_all(probes);
    measure(&fresh, &mut node.served);
}

/// Opens the log directory of a daemon: the one that it was started with, or the default one.
fn open_logs(
    environment: &Environment,
    daemon: Option<&Process>,
    served: &Served,
) -> Option<LogDir> {
    let default = || {
        Some(
            environment
                .logs_of(served.run_dir.path())?
                .join(&served.record.uuid),
        )
    };
    LogDir::open(&configured_logs(daemon?).or_else(default)?).ok()
}

/// Fills in whether each recorded device exists, its GPU's compute mode and its limit of clients.
fn fill_in_devices(node: &mut Node, program: ControlProgram) {
    let devices: Vec<_> = node
        .devices()
        .map(|device| (device.key, device.uuid))
        .collect();
    for served in &mut node.served {
        let record = &served.record;
        let is_its = |(key, uuid): &(_, String)| *key == record.key && *uuid == record.uuid;
        served.presence = if node.has_no_driver {
            Presence::Unseen(Unseen::NoDriver)
        } else if devices.iter().any(is_its) {
            Presence::There
        } else {
            absent(record, &node.gpus, &node.lost)
        };
        let gpu = node.gpus.iter().find(|gpu| gpu.uuid == record.uuid);
        served.compute_mode = gpu.and_then(|gpu| gpu.compute_mode);
        let of_gpu = served.most_clients(program);
        let max_clients = record.settings.max_clients;
        served.client_limit = of_gpu.into_iter().chain(max_clients).min();
    }
}

/// Returns the reason why a recorded device is not among those that the driver shows.
fn absent(record: &DeviceRecord, gpus: &[Gpu], lost: &[Lost]) -> Presence {
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == record.key.gpu) {
        return match &gpu.hidden {
            Some(why) => Presence::Unseen(Unseen::Hidden(why.clone())),
            None => Presence::Gone,
        };
    }
    // A lost GPU does not tell its UUID.
    let its = lost.iter().find(|lost| lost.index == record.gpu);
    match its.or(lost.first()) {
        Some(lost) => Presence::Unseen(Unseen::Lost(lost.why.clone())),
        None => Presence::Gone,
    }
}

/// Sessions that are open at once for each CPU. On a busy machine, more would make each other late.
const AT_ONCE: usize = 4;

/// Asks daemons in parallel; each session is a child process with a time limit of its own.
fn ask_all(mut probes: Vec<Probe<'_>>) -> Answers {
    let limit = answer_limit(u32::try_from(probes.len()).unwrap_or(u32::MAX));
    for probe in &mut probes {
        probe.limit = limit;
    }
    let at_once = AT_ONCE * available_parallelism().map_or(1, NonZero::get);
    let threads = probes.len().min(at_once).saturating_sub(1);
    let answered = Pool::with(threads, threads + 1, |pool| {
        pool.side_by_side(probes, |mut probe, _| {
            let answer = probe.ask();
            probe.find_waiting();
            Some((probe.served.record.uuid.clone(), answer?))
        })
    });
    answered.into_iter().flatten().collect()
}

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
pub(super) fn fresh_logs(logs: &LogDir) -> Option<LogDir> {
    let written = |log| logs.mark(log)?.1.elapsed().ok();
    let is_fresh = |log| written(log).is_some_and(|age| age < FRESH);
    if !LogFile::ALL.into_iter().any(is_fresh) {
        return None;
    }
    LogDir::open(logs.path()).ok()
}

/// Measures the logs of these devices that repeat themselves, all in the same interval. A daemon that gets no CPU for a
/// while writes nothing meanwhile, so an interval without growth is followed by another one.
pub(super) fn measure(fresh_logs: &[(String, LogDir)], served: &mut [Served]) {
    let mut suspects: Vec<Suspect<'_>> = fresh_logs
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
