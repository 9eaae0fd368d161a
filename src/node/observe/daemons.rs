//! Finds out the state of every recorded daemon: without asking it if possible.

use std::num::NonZero;
use std::thread::available_parallelism;

use super::ask::answer_limit;
use super::observer::{Ask, Detail};
use super::probe::{Probe, ProbeContext, Remembered, configured_logs};
use crate::host::{Environment, Process, ProcessTable, Threads};
use crate::mps::LogDir;
use crate::node::{DaemonState, Node, Served};

/// Fills in the state of every recorded daemon.
pub(super) fn observe(
    environment: &Environment,
    table: &ProcessTable,
    detail: Detail,
    node: &mut Node,
) {
    let program = node.control_program();
    let programs = environment.mps_programs().ok();
    let unfinished = match node.under_way.as_slice() {
        [] if node.may_be_changing() => DaemonState::Hidden,
        [] => DaemonState::Dead,
        _ => DaemonState::Starting,
    };
    let context = ProbeContext {
        program,
        programs: programs.as_ref(),
        host: &environment.host,
        table,
        boot_id: &node.boot_id,
        unfinished: &unfinished,
    };
    let mut probes = Vec::new();
    for device in &mut node.devices {
        let Some(served) = &mut device.served else {
            continue;
        };
        let (state, daemon) = context.process_state(served);
        served.state = state;
        context.list_servers(served, daemon);
        let Some(daemon) = daemon.filter(|_| detail.reads_processes()) else {
            continue;
        };
        let logs = open_logs(environment, table.get(daemon), served);
        let mut probe = Probe {
            context,
            served,
            daemon,
            // Only a session reads settings back.
            may_guess: detail.ask == Ask::IfNeeded,
            limit: answer_limit(1),
            processes: device.processes.as_ref(),
            logs,
            last: None,
        };
        if let Some(state) = probe.passive_state() {
            probe.served.state = state;
            continue;
        }
        // A plan needs current answers. A daemon that hung is not waited for again, whatever the detail.
        probe.last = Remembered::of(probe.daemon).filter(|last| probe.may_guess || last.is_hang());
        probes.push(probe);
    }
    ask_all(probes);
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

/// Sessions that are open at once for each CPU. On a busy machine, more would make each other late.
const AT_ONCE: usize = 4;

/// Asks daemons in parallel; each session is a child process with a time limit of its own.
fn ask_all(mut probes: Vec<Probe<'_>>) {
    let limit = answer_limit(u32::try_from(probes.len()).unwrap_or(u32::MAX));
    for probe in &mut probes {
        probe.limit = limit;
    }
    let at_once = AT_ONCE * available_parallelism().map_or(1, NonZero::get);
    let threads = probes.len().min(at_once).saturating_sub(1);
    Threads::beside(threads, threads + 1).side_by_side(probes, |mut probe| {
        probe.served.state = probe.ask();
        probe.find_waiting();
    });
}
