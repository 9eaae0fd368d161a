//! Finds out the state of every recorded daemon: without asking it if possible.

use super::detail::Detail;
use super::log_growth;
use super::probe::{Changing, Probe};
use super::remembered::Answers;
use crate::host::{Environment, Pid, Pool, ProcessTable};
use crate::mps::{ControlProgram, LogDir};
use crate::node::served::Served;
use crate::node::snapshot::Node;

/// A daemon that must be asked.
struct Question<'a> {
    probe: Probe<'a>,
    served: &'a mut Served,
    daemon: Pid,
    logs: Option<LogDir>,
}

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
    let changing = changing(node);
    let (boot_id, processes) = (&node.boot_id, &node.processes);
    let (mut questions, mut fresh) = (Vec::new(), Vec::new());
    for served in &mut node.served {
        let uuid = served.record.uuid.clone();
        let mut probe = Probe {
            changing,
            may_ask: may_ask(environment, served, detail),
            program,
            host: &environment.host,
            table,
            boot_id,
            processes: processes.get(&uuid),
            programs: programs.as_ref(),
            answer: None,
            with_defaults: detail.reads_settings(),
        };
        let Some(daemon) = probe.check_process(served) else {
            continue;
        };
        if !detail.reads_processes() {
            continue;
        }
        let default = environment.logs_of(served.run_dir.path());
        let logs = probe.log_dir(daemon, default.map(|logs| logs.join(&uuid)));
        let logs = logs.and_then(|logs| LogDir::open(&logs).ok());
        if detail.measures_logs()
            && let Some(written) = logs.as_ref().filter(|logs| log_growth::is_fresh(logs))
            && let Ok(logs) = LogDir::open(written.path())
        {
            fresh.push((uuid.clone(), logs));
        }
        if detail.avoids_sessions() && probe.fill_in_passively(served, daemon, logs.as_ref()) {
            continue;
        }
        // A daemon that hung is not waited for again, whatever the detail.
        let last = answers.get(&uuid);
        probe.answer = last.filter(|last| detail.avoids_sessions() || last.glance.is_none());
        questions.push(Question {
            probe,
            served,
            daemon,
            logs,
        });
    }
    *answers = ask_all(questions);
    log_growth::measure(&fresh, &mut node.served);
}

fn changing(node: &Node) -> Changing {
    match node.under_way.as_slice() {
        [] if node.may_be_changing => Changing::Hidden,
        [] => Changing::No,
        _ => Changing::Yes,
    }
}

/// Fills in whether each recorded device exists, its GPU's compute mode and its limit of clients.
fn fill_in_devices(node: &mut Node, program: ControlProgram) {
    let devices: Vec<_> = node
        .devices()
        .map(|device| (device.key, device.uuid))
        .collect();
    for served in &mut node.served {
        let record = &served.record;
        served.device_is_there = devices
            .iter()
            .any(|(key, uuid)| *key == record.key && *uuid == record.uuid);
        let gpu = node.gpus.iter().find(|gpu| gpu.uuid == record.uuid);
        served.compute_mode = gpu.and_then(|gpu| gpu.compute_mode);
        let of_gpu = program
            .client_limit
            .filter(|_| record.key.instance.is_none());
        let max_clients = record.settings.max_clients;
        served.client_limit = of_gpu.into_iter().chain(max_clients).min();
    }
}

/// Asks daemons in parallel; each session is a child process with a time limit of its own.
fn ask_all(questions: Vec<Question<'_>>) -> Answers {
    let threads = questions.len().saturating_sub(1);
    let answered = Pool::with(threads, threads + 1, |pool| {
        pool.side_by_side(questions, |question, _| {
            let Question {
                probe,
                served,
                daemon,
                logs,
            } = question;
            let answer = probe.ask(served, daemon, logs.as_ref());
            probe.find_waiting(served, logs.as_ref());
            (served.record.uuid.clone(), answer)
        })
    });
    answered
        .into_iter()
        .filter_map(|(uuid, answer)| Some((uuid, answer?)))
        .collect()
}

/// True if the caller may open a control session with a daemon. Root opens one with a user's daemon only to change
/// it: its answers are the user's.
fn may_ask(environment: &Environment, served: &Served, detail: Detail) -> bool {
    let is_a_users = environment.is_root() && served.is_a_users();
    !is_a_users || detail.asks_daemons_of_users()
}
