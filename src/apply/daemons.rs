//! Starts daemons and their servers, and changes the settings of running ones.

use jiff::Timestamp;

use super::cause::Cause;
use super::closing::end_held_client;
use super::compute_mode::ensure_compute_mode;
use super::context::Run;
use super::daemon_stop::{StopRequest, clean_up_after, forget_daemon, is_alive, stop_daemon};
use super::gpu_state::{ChangingGpu, History};
use super::start_check::{access_of, launch_request, query_account_id};
use crate::host::{Pid, Uid};
use crate::mps::{Daemon, LaunchRequest, Launched, LogDir, MpsProcesses, MpsProgram, StopMethod};
use crate::nvml::GpuHandle;
use crate::plan::{Place, Set, Start, StartServer, StartedBy, serve_setting};
use crate::settings::{Serve, Server, Settings};
use crate::state::{DeviceRecord, InstanceKey, ProcessId, is_disk_full};

/// The record of a daemon that is to start; `None` if its device does not exist.
pub(super) fn new_record(gpu: &ChangingGpu<'_>, start: &Start) -> Option<DeviceRecord> {
    let mut record = DeviceRecord {
        name: start.name.clone(),
        uuid: gpu.plan.uuid.clone(),
        key: start.whole_device_key(gpu.run.context.node, &gpu.plan.uuid),
        gpu: gpu.plan.index,
        joint_gpus: Vec::new(),
        profile: None,
        settings: start.settings.clone(),
        served_id: start.served_id,
        by_hand: start.by_hand.clone(),
        older_clients: Vec::new(),
        compute_mode_before: None,
        daemon: None,
        finished: false,
        boot_id: gpu.run.context.node.boot_id.clone(),
        machine: Some(gpu.run.context.environment.host.this_machine()),
        since: Timestamp::now(),
        restarts: 0,
        healed: Vec::new(),
        closing: None,
        leaving: false,
    };
    if record.key.is_joint() {
        record.uuid = record.key.joint_uuid();
        let gpus = gpu.run.context.node.gpus_with_key(&record.key);
        record.joint_gpus = gpus.map(|gpu| gpu.index).collect();
    }
    if let Place::Mig { placement, nth } = start.place {
        let instance = gpu.instances.get(&placement)?;
        let compute = instance.compute.get(nth)?;
        record.key.instance = Some(InstanceKey {
            profile: instance.profile,
            placement,
            compute: compute.placement,
        });
        record.uuid.clone_from(&compute.uuid);
        record.profile = gpu
            .snapshot
            .map(|snapshot| snapshot.instance_title(instance, Some(compute)));
    }
    Some(record)
}

/// Starts the daemon of a new record, and an eager server.
pub(super) fn start_daemon(
    run: &Run<'_>,
    mut record: DeviceRecord,
    start: &Start,
    history: &History,
) -> Result<(), Cause> {
    let node = run.context.node;
    record.since = Timestamp::now();
    record.compute_mode_before = node.compute_mode_before(&record.uuid, &run.run_dir);
    let served = run.find_served(&record.uuid);
    let of_this_boot = served.filter(|served| served.record.boot_id == node.boot_id);
    if let Some(served) = of_this_boot {
        let before = &served.record;
        if let Some(closing) = &before.closing {
            // A suspended one has not seen that its daemon has died.
            end_held_client(&run.context.environment.host, closing);
        }
        record.restarts = before.restarts + u64::from(before.finished);
        if start.by == StartedBy::Heal {
            record.healed = before.recent_heals(record.since).collect();
        }
    }
    if start.by == StartedBy::Heal {
        record.healed.push(record.since);
    }
    let keeps_record = served.is_some();
    let cause = match bring_up(run, &mut record, keeps_record) {
        Ok(is_new) => {
            run.node_record.forget_stopped(&record.key);
            if is_new {
                history.record_start(record);
            }
            return Ok(());
        }
        Err(cause) => cause,
    };
    let kept = match served {
        Some(served) if start.by == StartedBy::Up => restore_record(run, &served.record),
        Some(_) => ensure_record(run, &record),
        None => Ok(()),
    };
    if matches!(cause, Cause::CleanupFailed { .. }) {
        // The rollback tries again to stop it.
        history.record_start(record);
    }
    Err(cause.with_cleanup(kept))
}

/// Starts a recorded daemon again. The device has another UUID if it was created again in the meantime.
pub(super) fn restart_daemon(
    run: &Run<'_>,
    before: &DeviceRecord,
    uuid: &str,
    keeps_record: bool,
) -> Result<(), Cause> {
    let mut record = DeviceRecord {
        uuid: uuid.to_owned(),
        daemon: None,
        finished: false,
        since: Timestamp::now(),
        older_clients: Vec::new(),
        closing: None,
        ..before.clone()
    };
    match bring_up(run, &mut record, keeps_record) {
        Err(cause) if keeps_record => Err(cause.with_cleanup(restore_record(run, before))),
        other => other.map(drop),
    }
}

/// Starts or completes the daemon of a record and its eager server, and reads all settings back. Returns true if the daemon is
/// new, and false if it was running before. With `keeps_record`, the record and the pipe directory stay if that fails.
fn bring_up(run: &Run<'_>, record: &mut DeviceRecord, keeps_record: bool) -> Result<bool, Cause> {
    let daemon = run.daemon_of(record);
    daemon.check_path()?;
    if record.served_id.is_none() {
        record.served_id = query_account_id(serve_setting(&record.settings))?;
    }
    let launch = launch_request(
        run.context.environment,
        &record.settings,
        record.served_id,
        (&record.key, &record.uuid),
    )?;
    run.run_dir.write_record(record)?;
    let host = &run.context.environment.host;
    // A change that was killed may still be starting the daemon of this record.
    let may_be_starting = run
        .find_served(&record.uuid)
        .is_some_and(|served| served.record.daemon.is_none());
    let now = if may_be_starting {
        Some(MpsProcesses::read(host)?)
    } else {
        None
    };
    let processes = now.as_ref().unwrap_or(&run.mps_processes);
    let launched = ensure_compute_mode(run, record)
        .and_then(|()| Ok(daemon.launch(host, processes, &launch)?));
    let launched = match launched {
        Ok(launched) => launched,
        // The record of a process that the kernel cannot end stays.
        Err(cause) if is_alive(run, record) => return Err(cause),
        Err(cause) if keeps_record => {
            return Err(cause.with_cleanup(forget_daemon(run, record)));
        }
        Err(cause) => return Err(cause.with_cleanup(clean_up_after(run, &daemon, record))),
    };
    if let Some(in_the_way) = &launched.in_the_way {
        run.progress
            .note(&format!("note: device {}: {in_the_way}", record.name));
    }
    let is_new = launched.is_new;
    match configure_daemon(run, &daemon, &launch, record, &launched) {
        Ok(()) => {
            // Only `logs` needs it, after `down`.
            let logs = LogDir::open(&run.context.directories.log.join(&record.uuid));
            let _ = logs.and_then(|logs| logs.write_device_name(&record.name));
            Ok(is_new)
        }
        // An incomplete daemon is stopped. Its logs stay for the reader of the error.
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
    launch: &LaunchRequest,
    record: &mut DeviceRecord,
    launched: &Launched,
) -> Result<(), Cause> {
    let process = &launched.process;
    let (pid, is_new) = (process.pid, launched.is_new);
    let host = &run.context.environment.host;
    record.daemon = Some(ProcessId::from_process(process, host));
    run.run_dir.write_record(record)?;
    daemon.open_directories(&launch.access)?;
    daemon.check_user_and_limits(process, launch)?;
    let first = match record.settings.server {
        // A daemon that was running may have a server already.
        Server::Eager if is_new || !has_server(run, pid)? => Some(first_user(run, record)),
        Server::Eager | Server::Lazy => None,
    };
    // An interrupted change or the owner may have changed the settings of a daemon that was running.
    let was = if is_new {
        None
    } else {
        Some(daemon.query_defaults()?.over(&record.settings))
    };
    if let Some(user) = first {
        daemon.start_server(&record.settings, was.as_ref(), user)?;
        check_server_has_gpus(run, record)?;
    } else {
        daemon.configure(&record.settings, was.as_ref())?;
        check_daemon_has_gpus(daemon, record)?;
        if record.settings.server == Server::Eager {
            daemon.wait_for_server()?;
        }
    }
    record.finished = true;
    Ok(run.run_dir.write_record(record)?)
}

/// Checks that the server of a joint device has all its GPUs. CUDA ends the list of a daemon's GPUs at one that it does not see, and
/// reports no error (measured on driver 580).
fn check_server_has_gpus(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    if !record.key.is_joint() {
        return Ok(());
    }
    let Some(daemon) = record.daemon else {
        return Ok(());
    };
    let family = run.context.environment.host.process_family(daemon.pid)?;
    let servers: Vec<Pid> = family
        .children(daemon.pid)
        .filter(|child| MpsProgram::is_mps_process(child))
        .map(|server| server.pid)
        .collect();
    for uuid in record.driver_uuids() {
        let processes = run.nvml_on(uuid, GpuHandle::query_processes)?;
        if !servers.iter().any(|server| processes.contains_pid(*server)) {
            return Err(Cause::Other(format!(
                "its server does not use {uuid}: CUDA did not see that GPU when the daemon started"
            )));
        }
    }
    Ok(())
}

/// Checks the same of the daemon of a joint device, which has no server yet, or had one before.
fn check_daemon_has_gpus(daemon: &Daemon, record: &DeviceRecord) -> Result<(), Cause> {
    if !record.key.is_joint() {
        return Ok(());
    }
    let Some(gpus) = daemon.query_gpus()? else {
        return Ok(());
    };
    match record
        .driver_uuids()
        .iter()
        .find(|uuid| !gpus.contains(uuid))
    {
        Some(uuid) => Err(Cause::Other(format!(
            "it does not have {uuid}: CUDA did not see that GPU when the daemon started"
        ))),
        None => Ok(()),
    }
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

fn has_server(run: &Run<'_>, daemon: Pid) -> Result<bool, Cause> {
    let family = run.context.environment.host.process_family(daemon)?;
    Ok(family.children(daemon).any(MpsProgram::is_mps_process))
}

/// True if a daemon has a server that has no GPU yet, and so no clients.
fn is_starting_server(run: &Run<'_>, record: &DeviceRecord) -> Result<bool, Cause> {
    let mut readings = Vec::new();
    for uuid in record.driver_uuids() {
        readings.push(run.nvml_on(uuid, GpuHandle::query_processes)?);
    }
    let daemon = record.daemon.ok_or(Cause::NoDevice)?;
    let family = run.context.environment.host.process_family(daemon.pid)?;
    let has_one_without_gpu = family
        .children(daemon.pid)
        .filter(|child| MpsProgram::is_mps_process(child))
        .any(|server| readings.iter().any(|read| !read.contains_pid(server.pid)));
    let has_no_clients = readings.iter().all(|read| read.clients.is_empty());
    Ok(has_no_clients && has_one_without_gpu)
}

/// Starts the server that a daemon has lost. A rollback does not end the server, because the record asks for one.
pub(super) fn start_server(run: &Run<'_>, step: &StartServer) -> Result<(), Cause> {
    let served = run.find_served(&step.uuid).ok_or(Cause::NoDevice)?;
    let record = &served.record;
    let daemon = record.daemon.ok_or(Cause::NoDevice)?;
    // A client may have caused the daemon to start a server since.
    if has_server(run, daemon.pid)? {
        return Ok(());
    }
    let user = first_user(run, record);
    Ok(run
        .daemon_of(record)
        .start_server(&step.settings, Some(&record.settings), user)?)
}

/// Makes sure that a device whose daemon did not start has a record, so that the start can be retried.
fn ensure_record(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    if run.run_dir.has_record(&record.uuid) {
        return Ok(());
    }
    forget_daemon(run, record)
}

/// Replaces the record of a daemon that did not start with the record from before.
fn restore_record(run: &Run<'_>, before: &DeviceRecord) -> Result<(), Cause> {
    // The record of a process that the kernel cannot end stays.
    if matches!(run.run_dir.load_record(&before.uuid), Ok(Some(left)) if left.daemon.is_some()) {
        return Ok(());
    }
    forget_daemon(run, before)
}

/// Gives a running daemon the settings of a record. The record is unfinished until the settings are read back, so that the
/// next run completes a run that was killed.
fn change_settings(run: &Run<'_>, wanted: &DeviceRecord, was: &Settings) -> Result<(), Cause> {
    let unfinished = DeviceRecord {
        finished: false,
        ..wanted.clone()
    };
    run.run_dir.write_record(&unfinished)?;
    finish_settings_change(run, wanted, was)
}

/// Gives a running daemon its former settings. On a full disk only the record is not written.
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
    let daemon = run.daemon_of(wanted);
    daemon.change_settings(&wanted.settings, was)?;
    if let Some(access) = access_of(serve_setting(&wanted.settings), wanted.served_id) {
        daemon.open_directories(&access)?;
    }
    Ok(run.run_dir.write_record(wanted)?)
}

/// Changes settings. The change is recorded before it begins, so that a rollback also undoes a change that failed halfway.
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
    // Another program may have changed the settings of the daemon since it was recorded.
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
