//! Stops daemons, and removes what was made for them.

use std::time::{Duration, Instant};

use super::cause::Cause;
use super::closing::{end_held_client, record_as_closing};
use super::compute_mode::restore_compute_mode;
use super::context::{Run, StepOf};
use super::gpu_state::History;
use crate::host::Uid;
use crate::mps::{ClientPolicy, Daemon, MpsError, MpsProcesses, StopMethod};
use crate::nvml::GpuHandle;
use crate::plan::{EndStray, GpuPlan, Start, Stop};
use crate::state::{DeviceRecord, StoppedDevice, is_disk_full};

/// The way in which a daemon is stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopRequest {
    pub(super) patience: ClientPolicy,
    pub(super) means: StopMethod,
    /// The record stays, without the process, and the pipe directory too: the next daemon clears what this one leaves
    /// there.
    pub(super) keeps_record: bool,
}

impl StopRequest {
    /// For a daemon without clients.
    pub(super) const IDLE: Self = Self {
        patience: ClientPolicy::Idle,
        means: StopMethod::Session,
        keeps_record: false,
    };
}

/// Returns the start of a daemon that follows the one of a record on the same device. Its record stays until the new daemon
/// runs, so that the next run completes a failed or killed one. So does its pipe directory, which containers have mounted.
pub(super) fn find_successor<'a>(plan: &'a GpuPlan, record: &DeviceRecord) -> Option<&'a Start> {
    plan.steps
        .iter()
        .filter_map(|step| step.action.as_start())
        .find(|start| start.uuid.as_ref() == Some(&record.uuid))
}

/// Stops the daemon of a step.
pub(super) fn stop_served_daemon(
    run: &Run<'_>,
    step: StepOf<'_>,
    planned: &Stop,
    history: &History,
) -> Result<(), Cause> {
    let recorded = run.find_served(&planned.uuid);
    let Some(served) = recorded.or_else(|| run.find_lost(&planned.uuid)) else {
        return Ok(());
    };
    let successor = recorded.and_then(|served| find_successor(step.gpu, &served.record));
    if let ClientPolicy::Force(seconds) = planned.patience
        && planned.patience != ClientPolicy::AT_ONCE
        && !served.clients.are_none()
    {
        let clients: Vec<String> = planned.clients.iter().map(ToString::to_string).collect();
        let clients = match clients.as_slice() {
            [] => "clients".to_owned(),
            [one] => one.clone(),
            [first, ..] => format!("{} clients, among them {first}", clients.len()),
        };
        let others = format!("{clients}, for at most {seconds} s");
        run.progress.waits(step, &others);
    }
    let request = StopRequest {
        patience: planned.patience,
        means: planned.means,
        keeps_record: successor.is_some(),
    };
    if planned.keeps_device {
        // What ends a running daemon is this command, whatever another one has recorded.
        let closing = served.record.closing.as_ref();
        let is_intended = !served.is_alive() && closing.is_some_and(|it| it.next.is_none());
        let origin = match closing {
            Some(closing) if is_intended => closing.origin.clone(),
            _ => run.journal.origin(run.context.environment),
        };
        run.node_record.add_stopped(StoppedDevice {
            record: served.record.clone(),
            origin,
        })?;
    }
    let mut ended = stop_daemon(run, &served.record, request);
    // A daemon whose directory could not be removed has stopped all the same.
    let has_stopped = ended.is_ok() || !is_alive(run, &served.record);
    if let Err(Cause::Mps(MpsError::Failed {
        is_quitting: true, ..
    })) = &ended
    {
        // It ends with a client that nobody has seen, and another one is to follow.
        let recorded = record_as_closing(run, &served.record);
        ended = ended.map_err(|cause| cause.with_cleanup(recorded));
    }
    if planned.alive && has_stopped {
        let is_by_force = served.record.finished && planned.patience != ClientPolicy::Idle;
        let clients = if is_by_force {
            planned.clients.len()
        } else {
            0
        };
        history.record_stop(&planned.uuid, clients);
    }
    ended
}

/// Stops a daemon if it runs, and removes what was made for it except its logs.
pub(super) fn stop_daemon(
    run: &Run<'_>,
    record: &DeviceRecord,
    request: StopRequest,
) -> Result<(), Cause> {
    if request.keeps_record {
        end_process(run, record, request)?;
        return forget_daemon(run, record);
    }
    let has_record = matches!(run.run_dir.load_record(&record.uuid), Ok(Some(_)));
    let is_marked = has_record && mark_leaving(run, record)?;
    if let Err(cause) = end_process(run, record, request) {
        let written = if is_marked {
            run.run_dir.replace_record(record)
        } else {
            Ok(())
        };
        return Err(cause.with_cleanup(written.map_err(Cause::from)));
    }
    clean_up_after(run, &run.daemon_of(record), record)
}

/// Records that a daemon leaves; returns false where the disk is full, which does not keep it.
fn mark_leaving(run: &Run<'_>, record: &DeviceRecord) -> Result<bool, Cause> {
    let marked = run.run_dir.replace_record(&DeviceRecord {
        leaving: true,
        ..record.clone()
    });
    match marked {
        Err(error) if is_disk_full(&error) => Ok(false),
        marked => Ok(marked.map(|()| true)?),
    }
}

/// Stops a daemon's process if it runs, and every other process that serves in its directory.
fn end_process(run: &Run<'_>, record: &DeviceRecord, request: StopRequest) -> Result<(), Cause> {
    if record.boot_id != run.context.node.boot_id {
        return Ok(());
    }
    let host = &run.context.environment.host;
    let daemon = run.daemon_of(record);
    if record.daemon.is_some_and(|id| id.is_hidden(host)) {
        return Err(Cause::Other(format!(
            "the daemon of {} cannot be seen from here; it may run in another pid namespace",
            record.name
        )));
    }
    if let Some(closing) = &record.closing {
        end_held_client(host, closing);
        daemon.end_left_sessions(host, daemon_user(record))?;
    }
    let StopRequest {
        patience, means, ..
    } = request;
    let running = record.daemon.and_then(|id| id.find_process(host));
    if let Some(process) = running {
        if let (ClientPolicy::Force(seconds), StopMethod::Signals | StopMethod::Heal) =
            (patience, means)
            && patience != ClientPolicy::AT_ONCE
        {
            wait_for_clients(run, record, Duration::from_secs(seconds.into()));
        }
        // This ends the servers in the directory too; a healed daemon stays.
        return Ok(daemon.stop(
            host,
            &run.mps_processes,
            (process.pid, process.started),
            patience,
            means,
        )?);
    }
    let spares_clients = patience == ClientPolicy::Idle;
    let end =
        |processes| daemon.end_unrecorded(host, processes, daemon_user(record), spares_clients);
    if record.daemon.is_some() {
        return Ok(end(&run.mps_processes)?);
    }
    // An interrupted start may have left a daemon that it did not record, or may be about to.
    Ok(end(&MpsProcesses::read(host)?)?)
}

/// Waits until the driver lists no clients on a device, or the time is over. The daemon still admits new ones.
fn wait_for_clients(run: &Run<'_>, record: &DeviceRecord, limit: Duration) {
    const INTERVAL: Duration = Duration::from_millis(200);
    let interrupt = &run.context.environment.interrupt;
    let begun = Instant::now();
    loop {
        let is_idle = record.driver_uuids().iter().all(|uuid| {
            let read = run.nvml_on(uuid, GpuHandle::query_processes);
            read.is_ok_and(|processes| processes.clients.is_empty())
        });
        if is_idle || begun.elapsed() >= limit || !interrupt.sleep_uninterrupted(INTERVAL) {
            return;
        }
    }
}

pub(super) fn clean_up_after(
    run: &Run<'_>,
    daemon: &Daemon,
    record: &DeviceRecord,
) -> Result<(), Cause> {
    restore_compute_mode(run, record)?;
    daemon.remove_pipe_dir()?;
    Ok(run.run_dir.remove_record(record)?)
}

/// Gives the compute mode back, and keeps a record without its daemon.
pub(super) fn forget_daemon(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    restore_compute_mode(run, record)?;
    Ok(run.run_dir.write_record(&DeviceRecord {
        daemon: None,
        finished: false,
        compute_mode_before: None,
        ..record.clone()
    })?)
}

/// True if a recorded daemon or one of its servers runs, or if that cannot be determined.
pub(super) fn is_alive(run: &Run<'_>, record: &DeviceRecord) -> bool {
    let host = &run.context.environment.host;
    MpsProcesses::read(host).map_or(true, |processes| {
        let daemon = run.daemon_of(record);
        daemon.count_processes(host, &processes, daemon_user(record)) > 0
    })
}

/// The user that a recorded daemon runs as.
fn daemon_user(record: &DeviceRecord) -> Uid {
    record
        .runs_as_its_user()
        .unwrap_or_else(crate::host::caller)
}

/// Ends a server that has outlived its daemon.
pub(super) fn end_stray(run: &Run<'_>, stray: &EndStray) -> Result<(), Cause> {
    let host = &run.context.environment.host;
    let daemon = run.daemon_at(&stray.uuid);
    Ok(daemon.kill_server(host, (stray.pid, stray.started))?)
}
