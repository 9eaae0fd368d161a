//! Programs that a job has left on devices.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use rustix::process::Signal as RawSignal;

use super::super::Context;
use super::super::change::Change;
use super::cure::CONSENT;
use crate::error::Result;
use crate::host::{Pid, StartTime, bounded};
use crate::integrate::SlurmJob;
use crate::mps::Patience;
use crate::node::Node;
use crate::plan::{self, KillRequest, Plan, Signal};
use crate::render::note;

/// The time that the kernel may take to end the processes.
const LIMIT: Duration = Duration::from_secs(5);

/// A process that a job has left on a device.
pub(super) struct Leftover {
    pub(super) device: String,
    pub(super) pid: Pid,
    started: StartTime,
    pub(super) command: String,
    /// False if it computes outside MPS.
    is_client: bool,
}

/// Finds the processes of the job, and no other's, on all devices: a program may have left those of its job.
pub(super) fn of_job(context: &Context<'_>, node: &Node, job: &SlurmJob) -> Vec<Leftover> {
    let clients = node.served.iter().flat_map(|served| {
        let clients = served.clients.listed().iter().chain(&served.waiting);
        clients.filter_map(|client| {
            let is_client = client.server.is_some();
            Some((&served.record.name, client.pid?, client.started, is_client))
        })
    });
    let mut found: Vec<Leftover> = Vec::new();
    let programs = node.outside_mps.iter();
    let programs = programs.map(|program| (&program.uuid, program.pid));
    // A daemon of the job's own, and what pretends to be one.
    let daemons = node.unmanaged.iter().flat_map(|unmanaged| {
        let servers = unmanaged.servers.iter().map(|server| server.pid);
        let pids = std::iter::once(unmanaged.pid).chain(servers);
        let device = unmanaged.devices.first();
        pids.filter_map(move |pid| Some((device?, pid)))
    });
    let outside: Vec<(String, Pid)> = programs
        .chain(daemons)
        .map(|(uuid, pid)| (node.name_of_uuid(uuid), pid))
        .collect();
    let outside = outside.iter().map(|(name, pid)| (name, *pid, None, false));
    for (device, pid, started, is_client) in clients.chain(outside) {
        let Some(process) = context.environment.host.process(pid) else {
            continue;
        };
        let is_same = started.is_none_or(|started| started == process.started);
        let is_new = found.iter().all(|known| known.pid != pid);
        if is_same && is_new && process.is_of_slurm_job(job.id, job.user) {
            found.push(Leftover {
                device: device.clone(),
                pid,
                started: process.started,
                command: bounded(&process.command()).to_string(),
                is_client,
            });
        }
    }
    found
}

/// Ends the processes: clients by their server first, so that it is left in order. Returns those that stay.
pub(super) fn end(context: &Context<'_>, leftovers: Vec<Leftover>) -> Vec<Leftover> {
    let mut devices: Vec<&String> = leftovers.iter().map(|one| &one.device).collect();
    devices.sort();
    devices.dedup();
    for device in devices {
        let clients = leftovers.iter().filter(|one| one.is_client);
        let pids: Vec<Pid> = clients
            .filter(|one| one.device == *device)
            .map(|one| one.pid)
            .collect();
        if !pids.is_empty()
            && let Err(error) = terminate(context, device, &pids)
        {
            note(&format!("{device}: {}", error.message().what));
        }
    }
    let until = Instant::now() + LIMIT;
    let host = &context.environment.host;
    let mut signalled = Vec::new();
    let mut stay = Vec::new();
    for one in leftovers {
        match host.open_process(one.pid, one.started) {
            Ok(Some(process)) => {
                let _ = process.signal(RawSignal::KILL);
                signalled.push((one, process));
            }
            Ok(None) => {}
            Err(_) => stay.push(one),
        }
    }
    let left = signalled
        .into_iter()
        .filter(|(_, process)| !process.ends_by(until));
    stay.extend(left.map(|(one, _)| one));
    stay
}

/// Ends the work of clients, and the processes.
fn terminate(context: &Context<'_>, device: &str, pids: &[Pid]) -> Result<()> {
    let environment = context.environment;
    let directories = environment.directories()?;
    let shown = OnceCell::new();
    let outcome = Change {
        is_unattended: true,
        ..Change::new(context, &directories, &CONSENT, &|node, run_dir| {
            let served = node.served_as(device);
            let request = KillRequest {
                device,
                pids,
                signal: Some(Signal::Kill),
                patience: Patience::Force(0),
                caller: environment.caller,
                owner: served.and_then(|served| served.run_dir.owner()),
                shown: shown.get(),
            };
            let plan: Plan = plan::kill(node, run_dir, &request)?;
            shown.get_or_init(|| plan.clone());
            Ok(plan)
        })
    }
    .run()?;
    match outcome.and_then(|outcome| outcome.failed) {
        Some(failed) => Err(failed.into()),
        None => Ok(()),
    }
}
