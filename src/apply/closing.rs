//! Devices that admit no new programs: their daemons end with the clients that they have.

use super::cause::Cause;
use super::context::Run;
use crate::host::{Directories, Environment, FileResult, Host, end_processes};
use crate::mps::{ControlProgram, Daemon};
use crate::plan::Close;
use crate::state::{Closing, DeviceRecord, NextDaemon, RunDir, Writer};

/// Records what follows for a device, and makes its daemon admit no new clients. What was recorded stays where the daemon has
/// been asked to.
pub(super) fn close_daemon(run: &Run<'_>, close: &Close) -> Result<(), Cause> {
    let served = run.find_served(&close.uuid).ok_or(Cause::NoDevice)?;
    let (environment, before) = (run.context.environment, &served.record);
    let host = &environment.host;
    let closing = Closing {
        origin: run.journal.origin(environment),
        writer: Writer::for_this_process(host, &run.context.node.boot_id),
        until: close.until,
        next: close.next.clone(),
        is_asked: false,
        held: close.held,
    };
    // Nobody but `heal` sees to what this command does not wait for.
    let mut closing = match before.closing.clone() {
        Some(earlier) if !close.is_waited_for && earlier.next == close.next => earlier,
        Some(earlier) if !close.is_waited_for => Closing {
            writer: earlier.writer,
            until: closing.origin.since,
            ..closing
        },
        _ => closing,
    };
    let earlier = before.closing.as_ref().and_then(|earlier| earlier.held);
    closing.held = closing.held.or(earlier);
    let write = |closing: &Closing| {
        run.run_dir.replace_record(&DeviceRecord {
            closing: Some(closing.clone()),
            ..before.clone()
        })
    };
    // If this process is killed before the daemon is asked, `heal` asks it.
    write(&closing)?;
    let Some(daemon) = before.daemon else {
        return Ok(());
    };
    let ask = || {
        let served = run.daemon_at(&close.uuid);
        served.close(host, (daemon.pid, daemon.start_time))
    };
    let workers = match ask() {
        Ok(workers) => workers,
        Err(error) => {
            let restored = run.run_dir.replace_record(before);
            return Err(Cause::from(error).with_cleanup(restored.map_err(Cause::from)));
        }
    };
    closing.is_asked = true;
    write(&closing)?;
    // What is not waited for goes on at once when the programs have exited. A program without a context keeps the daemon itself.
    if !close.is_waited_for && has_no_programs(&closing, host, workers.unwrap_or_default()) {
        end_held_client(host, &closing);
        ask()?;
    }
    Ok(())
}

/// True if this number of threads of a closing daemon's server works for no program: one works for the held client.
fn has_no_programs(closing: &Closing, host: &Host, workers: u32) -> bool {
    workers <= u32::from(closing.find_held_client(host).is_some())
}

/// Ends the idle client that keeps the daemon of a closing device, if it is there.
pub(super) fn end_held_client(host: &Host, closing: &Closing) {
    let Some(process) = closing.find_held_client(host) else {
        return;
    };
    if let Ok(Some(held)) = host.open_process(process.pid, process.started) {
        end_processes(&[held]);
    }
}

/// Makes the daemon of a closing device try at once to end, which it does of itself after pauses that double. Returns whether
/// its programs have exited, if that is known. The caller holds the node's lock, so that the daemon is that of the record.
pub fn retry_end(environment: &Environment, directories: &Directories, uuid: &str) -> Option<bool> {
    let run_dir = RunDir::at(&directories.run);
    let record = run_dir.load_record(uuid).ok()??;
    let closing = record.closing?;
    let daemon = record.daemon?;
    // A quit is the same for every driver.
    let served = Daemon::new(
        environment.mps_programs().ok()?,
        ControlProgram::for_driver(""),
        run_dir.pipe_dir(uuid),
        directories.log.join(uuid),
    );
    let tried = served.close(&environment.host, (daemon.pid, daemon.start_time));
    let workers = tried.ok().flatten()?;
    Some(has_no_programs(&closing, &environment.host, workers))
}

/// The daemon of a device that this process has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Runs,
    Ended,
    /// Another change has ended it, or has other intentions with the device.
    TakenOver,
}

/// Looks at the daemon of a device that this process has closed.
pub fn daemon_of_closing(environment: &Environment, run_dir: &RunDir, uuid: &str) -> Closed {
    let host = &environment.host;
    let Ok(Some(record)) = run_dir.load_record(uuid) else {
        return Closed::TakenOver;
    };
    match (&record.closing, record.daemon) {
        (Some(closing), daemon) if closing.writer.is_this_process(host) => {
            match daemon.and_then(|daemon| daemon.find_process(host)) {
                Some(_) => Closed::Runs,
                None => Closed::Ended,
            }
        }
        _ => Closed::TakenOver,
    }
}

/// Records that the daemon of a device admits no new clients, and that the same one follows it.
pub(super) fn record_as_closing(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    let environment = run.context.environment;
    let origin = run.journal.origin(environment);
    let closing = Closing {
        until: origin.since,
        origin,
        writer: Writer::for_this_process(&environment.host, &run.context.node.boot_id),
        next: Some(NextDaemon::same_as(record)),
        is_asked: true,
        held: None,
    };
    Ok(run.run_dir.replace_record(&DeviceRecord {
        closing: record.closing.clone().or(Some(closing)),
        ..record.clone()
    })?)
}

/// Records that a device which this process has closed gets the same daemon again: what it was closed for is not done.
pub fn reopen(host: &Host, run_dir: &RunDir, uuid: &str) -> FileResult<()> {
    let Some(mut record) = run_dir.load_record(uuid)? else {
        return Ok(());
    };
    let again = NextDaemon::same_as(&record);
    match &mut record.closing {
        Some(closing) if closing.writer.is_this_process(host) => closing.next = Some(again),
        _ => return Ok(()),
    }
    run_dir.replace_record(&record)
}
