//! The programs that a job has left on devices, and their end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal as RawSignal;

use super::ready::CONSENT;
use crate::commands::Context;
use crate::commands::change::ChangeOptions;
use crate::error::{Result, command_error};
use crate::host::{Environment, Host, Pid, Process, StartTime, shorten_command};
use crate::mps::ClientPolicy;
use crate::node::{Detail, Node, observe};
use crate::plan::{self, KillRequest, Signal};
use crate::render::{print, warn};

/// Ends the processes that the job with this id has left on devices, and prints a line for each.
pub fn end_leftovers(
    context: &Context<'_>,
    id: &str,
    is_of_job: impl Fn(&Process) -> bool,
) -> Result<()> {
    let node = observe(context.environment, Detail::STATUS)?;
    let leftovers = leftovers_of_job(&context.environment.host, &node, &is_of_job);
    for one in &leftovers {
        let (device, pid, command) = (&one.device, one.pid, &one.command);
        print(&format!(
            "mig-mps: job {id} left pid {pid} ({command}) on device {device}; it is ended now\n"
        ))?;
    }
    let unknown = node.devices.iter().find(|device| {
        let served = device.serving_daemon();
        served.is_some_and(|served| !served.clients.are_known()) && device.processes.is_none()
    });
    let stay = end_processes(context, leftovers);
    match stay.first() {
        None => match unknown {
            Some(device) => Err(command_error(format_args!(
                "job {id} may have left programs on device {}, whose clients are unknown",
                device.name
            ))
            .with_hint("run `mig-mps status` to see why, then run this command again")),
            None => Ok(()),
        },
        Some(one) => {
            let (device, pid, command) = (&one.device, one.pid, &one.command);
            let what = format!(
                "job {id}: pid {pid} ({command}) is on device {device} and cannot be ended now"
            );
            print(&format!("mig-mps: {what}\n"))?;
            let error = command_error(what);
            Err(error.with_hint(
                "reboot the node if the process remains; search the kernel log for the cause",
            ))
        }
    }
}

/// Returns a process of the job on a device, with its command line.
pub fn find_leftover(
    environment: &Environment,
    is_of_job: impl Fn(&Process) -> bool,
) -> Result<Option<(Pid, String)>> {
    let node = observe(environment, Detail::STATUS)?;
    let found = leftovers_of_job(&environment.host, &node, &is_of_job);
    let first = found.into_iter().next();
    Ok(first.map(|one| (one.pid, one.command)))
}

/// The time that the kernel may take to end the processes.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that a job has left on a device.
struct Leftover {
    device: String,
    pid: Pid,
    started: StartTime,
    command: String,
    /// False if it computes outside MPS.
    is_client: bool,
}

/// The processes of a job that were found, each once.
struct Leftovers<'a> {
    host: &'a Host,
    is_of_job: &'a dyn Fn(&Process) -> bool,
    found: Vec<Leftover>,
}

impl Leftovers<'_> {
    /// Adds a process on a device if it is the job's, and still the one that was seen.
    fn add_if_of_job(
        &mut self,
        device: &str,
        pid: Pid,
        started: Option<StartTime>,
        is_client: bool,
    ) {
        let Some(process) = self.host.find_process(pid) else {
            return;
        };
        let is_same = started.is_none_or(|started| started == process.started);
        let is_new = self.found.iter().all(|known| known.pid != pid);
        if is_same && is_new && (self.is_of_job)(&process) {
            self.found.push(Leftover {
                device: device.to_owned(),
                pid,
                started: process.started,
                command: shorten_command(&process.command_line()).to_string(),
                is_client,
            });
        }
    }
}

/// Finds the processes of the job, and no other's, on all devices: a program may have left those of its job. They are
/// clients, programs outside MPS, and unmanaged daemons with their servers.
fn leftovers_of_job(
    host: &Host,
    node: &Node,
    is_of_job: &dyn Fn(&Process) -> bool,
) -> Vec<Leftover> {
    let mut all = Leftovers {
        host,
        is_of_job,
        found: Vec::new(),
    };
    for served in node.served() {
        for client in served.clients.as_slice().iter().chain(&served.waiting) {
            if let Some(pid) = client.pid {
                let is_client = client.server.is_some();
                all.add_if_of_job(&served.record.name, pid, client.started, is_client);
            }
        }
    }
    for device in &node.devices {
        for program in &device.outside_mps {
            all.add_if_of_job(&device.name, program.pid, None, false);
        }
        // The driver lists the clients of a daemon that does not answer.
        for usage in device
            .processes
            .iter()
            .flat_map(|processes| &processes.compute)
        {
            all.add_if_of_job(&device.name, usage.pid, None, false);
        }
    }
    // A daemon of the job's own, and what pretends to be one.
    for unmanaged in &node.unmanaged {
        if let Some(device) = unmanaged.devices.first() {
            let servers = unmanaged.servers.iter().map(|server| server.pid);
            for pid in std::iter::once(unmanaged.pid).chain(servers) {
                all.add_if_of_job(device, pid, None, false);
            }
        }
    }
    all.found
}

/// Ends the processes: clients by their server first, so that it is left in order. Returns those that stay.
fn end_processes(context: &Context<'_>, leftovers: Vec<Leftover>) -> Vec<Leftover> {
    let devices: BTreeSet<&String> = leftovers.iter().map(|one| &one.device).collect();
    for device in devices {
        let pids: Vec<Pid> = leftovers
            .iter()
            .filter(|one| one.is_client && one.device == *device)
            .map(|one| one.pid)
            .collect();
        if !pids.is_empty()
            && let Err(error) = end_clients(context, device, &pids)
        {
            warn(&format!("device {device}: {}", error.message().what));
        }
    }
    let until = Instant::now() + END_TIMEOUT;
    let host = &context.environment.host;
    let mut signalled = Vec::new();
    let mut stay = Vec::new();
    for one in leftovers {
        match host.open_process(one.pid, one.started) {
            Ok(Some(process)) => {
                let _ = process.send_signal(RawSignal::KILL);
                signalled.push((one, process));
            }
            Ok(None) => {}
            Err(_) => stay.push(one),
        }
    }
    let left = signalled
        .into_iter()
        .filter(|(_, process)| !process.wait_for_exit_until(until));
    stay.extend(left.map(|(one, _)| one));
    stay
}

/// Ends the work of clients, and the processes.
fn end_clients(context: &Context<'_>, device: &str, pids: &[Pid]) -> Result<()> {
    let environment = context.environment;
    let directories = environment.directories()?;
    let mut shown = None;
    let options = ChangeOptions::new(environment, &directories, &CONSENT);
    let outcome = options.run_plan(|node, run_dir| {
        let served = node.served_named(device);
        let request = KillRequest {
            device,
            pids,
            signal: Some(Signal::Kill),
            patience: ClientPolicy::Force(0),
            caller: environment.caller,
            owner: served.and_then(|served| served.run_dir.owner()),
            shown: shown.as_ref(),
        };
        let plan = plan::kill(node, run_dir, &request)?;
        shown.get_or_insert_with(|| plan.clone());
        Ok(plan)
    })?;
    match outcome.and_then(|outcome| outcome.failed) {
        Some(failed) => Err(failed.into()),
        None => Ok(()),
    }
}
