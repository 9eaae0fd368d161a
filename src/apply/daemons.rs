//! Starts daemons, changes their settings and the compute mode of their GPUs, and stops them.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::cause::Cause;
use super::context::Run;
use super::gpu_state::History;
use super::start_check::{access_of, daemon_process, query_account_id};
use crate::host::{Pid, Uid};
use crate::mps::{ClientPolicy, Daemon, DaemonProcess, Launched, LogDir, MpsProgram, StopMethod};
use crate::nvml::{EXCLUSIVE_PROCESS, GpuHandle};
use crate::plan::{EndStray, GpuPlan, Set, Start, StartServer, serve_setting};
use crate::settings::{Serve, Server, Settings};
use crate::state::{DaemonId, DeviceRecord, is_disk_full};

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

/// Starts a recorded daemon again. Its device may have been made again, and then has another UUID.
pub(super) fn restart_daemon(
    run: &Run<'_>,
    record: &DeviceRecord,
    uuid: &str,
    keeps_record: bool,
) -> Result<(), Cause> {
    let mut record = DeviceRecord {
        uuid: uuid.to_owned(),
        daemon: None,
        finished: false,
        since: Timestamp::now(),
        older_clients: Vec::new(),
        ..record.clone()
    };
    bring_up(run, &mut record, keeps_record).map(drop)
}

/// True if a recorded daemon or one of its servers runs, or if that cannot be determined.
pub(super) fn is_alive(run: &Run<'_>, record: &DeviceRecord) -> bool {
    let host = &run.context.environment.host;
    let count = run
        .daemon_of(&record.uuid)
        .count_processes(host, daemon_user(record));
    count.map_or(true, |count| count > 0)
}

/// Starts or completes the daemon of a record, and an eager server; returns once everything has been read back, with
/// true if the daemon is new, false if it was running. If it fails and `keeps_record`, the record and the pipe directory
/// stay.
pub(super) fn bring_up(
    run: &Run<'_>,
    record: &mut DeviceRecord,
    keeps_record: bool,
) -> Result<bool, Cause> {
    let daemon = run.daemon_of(&record.uuid);
    daemon.check_path()?;
    if record.served_id.is_none() {
        record.served_id = query_account_id(serve_setting(&record.settings))?;
    }
    let launch = daemon_process(
        run.context.environment,
        &record.settings,
        record.served_id,
        (&record.key.gpu, &record.uuid),
    )?;
    run.dir.write_record(record)?;
    let launched = ensure_compute_mode(run, record)
        .and_then(|()| Ok(daemon.launch(&run.context.environment.host, &launch)?));
    let launched = match launched {
        Ok(launched) => launched,
        // A process that the kernel cannot end keeps its record.
        Err(cause) if is_alive(run, record) => return Err(cause),
        Err(cause) if keeps_record => {
            return Err(cause.with_cleanup(forget_daemon(run, record)));
        }
        Err(cause) => return Err(cause.with_cleanup(clean_up_after(run, &daemon, record))),
    };
    if let Some(in_the_way) = &launched.in_the_way {
        run.progress.note(&format!("{}: {in_the_way}", record.name));
    }
    let is_new = launched.is_new;
    match configure_daemon(run, &daemon, &launch, record, &launched) {
        Ok(()) => {
            // Only `logs` needs it, after `down`.
            let logs = LogDir::open(&run.context.directories.log.join(&record.uuid));
            let _ = logs.and_then(|logs| logs.write_device_name(&record.name));
            Ok(is_new)
        }
        // An incomplete daemon is of no use. Its logs stay, for the reader of the error.
        Err(cause) if is_new => {
            // Until its server has started, a daemon does not quit.
            let means = if is_starting_server(run, record).unwrap_or(false) {
                StopMethod::Signals
            } else {
                StopMethod::Session
            };
            let request = StopRequest {
                means,
                keeps_record,
                ..StopRequest::IDLE
            };
            Err(cause.with_cleanup(stop_daemon(run, record, request)))
        }
        // A daemon that was running may have clients.
        Err(cause) => Err(cause),
    }
}

/// Records the daemon before users can reach it, applies its settings, starts an eager server, and reads everything
/// back.
fn configure_daemon(
    run: &Run<'_>,
    daemon: &Daemon,
    launch: &DaemonProcess,
    record: &mut DeviceRecord,
    launched: &Launched,
) -> Result<(), Cause> {
    let process = &launched.process;
    let (pid, is_new) = (process.pid, launched.is_new);
    record.daemon = Some(DaemonId::from_process(
        process,
        &run.context.environment.host,
    ));
    run.dir.write_record(record)?;
    daemon.open_directories(&launch.access)?;
    daemon.check_user_and_limits(process, launch)?;
    let first = match record.settings.server {
        // A daemon that was running may have a server already.
        Server::Eager if is_new || !has_server(run, pid)? => Some(first_user(run, record)),
        Server::Eager | Server::Lazy => None,
    };
    // An interrupted change, or the owner, may have changed the settings of one that was running.
    let was = if is_new {
        None
    } else {
        Some(daemon.query_defaults()?.over(&record.settings))
    };
    if let Some(user) = first {
        daemon.start_server(&record.settings, was.as_ref(), user)?;
    } else {
        daemon.configure(&record.settings, was.as_ref())?;
        if record.settings.server == Server::Eager {
            daemon.wait_for_server()?;
        }
    }
    record.finished = true;
    Ok(run.dir.write_record(record)?)
}

/// The first user of an eager server.
fn first_user(run: &Run<'_>, record: &DeviceRecord) -> Uid {
    match (serve_setting(&record.settings), record.served_id) {
        (Serve::User(_), Some(user)) => Uid(user),
        // The shared server belongs to root.
        (Serve::All | Serve::Group(_) | Serve::User(_), _) => Uid::ROOT,
        (Serve::OneAtATime | Serve::Own, _) => run.context.environment.server_user(),
    }
}

pub(super) fn has_server(run: &Run<'_>, daemon: Pid) -> Result<bool, Cause> {
    let table = run.context.environment.host.read_processes()?;
    Ok(table.children(daemon).any(MpsProgram::is_mps_process))
}

/// True if a daemon has a server that has no GPU yet, and so no clients.
fn is_starting_server(run: &Run<'_>, record: &DeviceRecord) -> Result<bool, Cause> {
    let processes = run.nvml_on(&record.uuid, GpuHandle::query_processes)?;
    let daemon = record.daemon.ok_or(Cause::NoDevice)?;
    let table = run.context.environment.host.read_processes()?;
    let has_one_without_gpu = table
        .children(daemon.pid)
        .filter(|child| MpsProgram::is_mps_process(child))
        .any(|server| !processes.contains_pid(server.pid));
    Ok(processes.clients.is_empty() && has_one_without_gpu)
}

/// Starts the server that a daemon has lost. A rollback leaves it: the record asks for it.
pub(super) fn start_server(run: &Run<'_>, step: &StartServer) -> Result<(), Cause> {
    let served = run.find_served(&step.uuid).ok_or(Cause::NoDevice)?;
    let record = &served.record;
    let daemon = record.daemon.ok_or(Cause::NoDevice)?;
    // A program may have caused one to start meanwhile.
    if has_server(run, daemon.pid)? {
        return Ok(());
    }
    let user = first_user(run, record);
    Ok(run
        .daemon_of(&record.uuid)
        .start_server(&step.settings, Some(&record.settings), user)?)
}

/// Ends a server that has outlived its daemon.
pub(super) fn end_stray(run: &Run<'_>, stray: &EndStray) -> Result<(), Cause> {
    let host = &run.context.environment.host;
    let daemon = run.daemon_of(&stray.uuid);
    Ok(daemon.kill_server(host, (stray.pid, stray.started))?)
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
    let has_record = matches!(run.dir.load_record(&record.uuid), Ok(Some(_)));
    let is_marked = has_record && mark_leaving(run, record)?;
    if let Err(cause) = end_process(run, record, request) {
        let written = if is_marked {
            run.dir.replace_record(record)
        } else {
            Ok(())
        };
        return Err(cause.with_cleanup(written.map_err(Cause::from)));
    }
    clean_up_after(run, &run.daemon_of(&record.uuid), record)
}

/// Makes sure that a device whose daemon did not start has a record, so that the start can be retried.
pub(super) fn ensure_record(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    if run.dir.has_record(&record.uuid) {
        return Ok(());
    }
    forget_daemon(run, record)
}

/// Puts the record from before in the place of that of a daemon which did not start.
pub(super) fn restore_record(
    run: &Run<'_>,
    record: &DeviceRecord,
    before: &DeviceRecord,
) -> Result<(), Cause> {
    // A process that the kernel cannot end keeps its record.
    if matches!(run.dir.load_record(&record.uuid), Ok(Some(left)) if left.daemon.is_some()) {
        return Ok(());
    }
    if record.name != before.name {
        run.dir.remove_link(record)?;
    }
    forget_daemon(run, before)
}

/// Gives the compute mode back, and keeps a record without its daemon.
fn forget_daemon(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    restore_compute_mode(run, record)?;
    Ok(run.dir.write_record(&DeviceRecord {
        daemon: None,
        finished: false,
        compute_mode_before: None,
        ..record.clone()
    })?)
}

/// Records that a daemon leaves; returns false where the disk is full, which does not keep it.
fn mark_leaving(run: &Run<'_>, record: &DeviceRecord) -> Result<bool, Cause> {
    let marked = run.dir.replace_record(&DeviceRecord {
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
    let daemon = run.daemon_of(&record.uuid);
    if record.daemon.is_some_and(|id| id.is_hidden(host)) {
        return Err(Cause::Other(format!(
            "the daemon of {} cannot be seen from here: it may run in another pid namespace",
            record.name
        )));
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
            wait_for_clients(run, &record.uuid, Duration::from_secs(seconds.into()));
        }
        // This ends the servers in the directory too; a healed daemon stays.
        return Ok(daemon.stop(host, (process.pid, process.started), patience, means)?);
    }
    // An interrupted start may have left a daemon that it did not record.
    let spares_clients = patience == ClientPolicy::Idle;
    Ok(daemon.end_unrecorded(host, daemon_user(record), spares_clients)?)
}

/// Waits until the driver lists no clients on a device, or the time is over. The daemon still admits new ones.
fn wait_for_clients(run: &Run<'_>, uuid: &str, limit: Duration) {
    const INTERVAL: Duration = Duration::from_millis(200);
    let interrupt = &run.context.environment.interrupt;
    let begun = Instant::now();
    loop {
        let read = run.nvml_on(uuid, GpuHandle::query_processes);
        let is_idle = read.is_ok_and(|processes| processes.clients.is_empty());
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
    Ok(run.dir.remove_record(record)?)
}

/// Gives a running daemon the settings of a record. The record is unfinished until they read back, so that the
/// next run completes a killed one.
pub(super) fn change_settings(
    run: &Run<'_>,
    wanted: &DeviceRecord,
    was: &Settings,
) -> Result<(), Cause> {
    let unfinished = DeviceRecord {
        finished: false,
        ..wanted.clone()
    };
    run.dir.write_record(&unfinished)?;
    finish_settings_change(run, wanted, was)
}

/// Gives a running daemon its former settings, also where the disk is full: then only the record fails.
pub(super) fn restore_settings(
    run: &Run<'_>,
    before: &DeviceRecord,
    was: &Settings,
) -> Result<(), Cause> {
    match change_settings(run, before, was) {
        Err(Cause::File(error)) if is_disk_full(&error) => finish_settings_change(run, before, was),
        changed => changed,
    }
}

fn finish_settings_change(
    run: &Run<'_>,
    wanted: &DeviceRecord,
    was: &Settings,
) -> Result<(), Cause> {
    let daemon = run.daemon_of(&wanted.uuid);
    daemon.change_settings(&wanted.settings, was)?;
    if let Some(access) = access_of(serve_setting(&wanted.settings), wanted.served_id) {
        daemon.open_directories(&access)?;
    }
    Ok(run.dir.write_record(wanted)?)
}

/// Sets the compute mode that a daemon needs. Records the old one first, so that a killed run leaves it
/// known.
pub(super) fn ensure_compute_mode(run: &Run<'_>, record: &mut DeviceRecord) -> Result<(), Cause> {
    if record.settings.compute_mode.is_none() {
        restore_compute_mode(run, record)?;
        record.compute_mode_before = None;
        return Ok(());
    }
    let is = run.nvml_on(&record.key.gpu, GpuHandle::compute_mode)?;
    if is == EXCLUSIVE_PROCESS {
        return Ok(());
    }
    record.compute_mode_before = Some(is);
    run.dir.write_record(record)?;
    set_compute_mode(run, record, EXCLUSIVE_PROCESS)
}

/// Restores the compute mode from before a daemon, unless somebody has changed it since.
pub(super) fn restore_compute_mode(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    let is_of_this_boot = record.boot_id == run.context.node.boot_id;
    let Some(before) = record.compute_mode_before.filter(|_| is_of_this_boot) else {
        return Ok(());
    };
    if run.context.node.gpu_with_uuid(&record.key.gpu).is_none() {
        return Ok(());
    }
    let is = run.nvml_on(&record.key.gpu, GpuHandle::compute_mode)?;
    if is != EXCLUSIVE_PROCESS {
        return Ok(());
    }
    set_compute_mode(run, record, before)
}

fn set_compute_mode(run: &Run<'_>, record: &DeviceRecord, wanted: u32) -> Result<(), Cause> {
    let found = run.nvml_on(&record.key.gpu, move |handle| {
        handle.set_compute_mode(wanted)
    })?;
    if found == wanted {
        return Ok(());
    }
    Err(Cause::Other(format!(
        "the compute mode was set to {wanted} and reads back as {found} (NVML's numbers)"
    )))
}

/// Changes settings. Recorded before it begins: a change that fails half-way is undone too.
pub(super) fn set_daemon_settings(
    run: &Run<'_>,
    set: &Set,
    history: &History,
) -> Result<(), Cause> {
    let served = run.find_served(&set.uuid).ok_or(Cause::NoDevice)?;
    let before = &served.record;
    let after = DeviceRecord {
        settings: set.settings.clone(),
        by_hand: set.by_hand.clone(),
        older_clients: served.older_clients(&set.settings),
        // Records of earlier versions have none.
        served_id: before.served_id.or(served_id_of(before)),
        ..before.clone()
    };
    history.record_change(&after);
    // Somebody may have changed the daemon behind our back.
    let answered = served.answered.as_ref();
    let was = answered.map(|answered| answered.over(&before.settings));
    change_settings(run, &after, was.as_ref().unwrap_or(&before.settings))
}

/// Returns the id of the single user or group of a record, by their name if it has none.
fn served_id_of(record: &DeviceRecord) -> Option<u32> {
    match serve_setting(&record.settings) {
        Serve::User(_) => record.only_user().map(|user| user.0),
        Serve::Group(_) => record.only_group().ok().flatten(),
        Serve::OneAtATime | Serve::All | Serve::Own => None,
    }
}

/// The user that a recorded daemon runs as.
fn daemon_user(record: &DeviceRecord) -> Uid {
    record
        .runs_as_its_user()
        .unwrap_or_else(crate::host::caller)
}
