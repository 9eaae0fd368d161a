use std::path::Path;

use jiff::Timestamp;

use super::{Cause, Shared, lock};
use crate::host::{Pid, Uid};
use crate::mps::{Daemon, Launched, Liveness, Patience, WhoMay};
use crate::node::{DaemonId, DeviceKey, DeviceRecord};
use crate::plan::Start;
use crate::profile::{Serve, Server, Settings};

/// What tells which directory a daemon serves in.
const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

impl Shared<'_> {
    /// Starts a daemon for a device, and its server if it shall be eager; returns once everything
    /// was read back. Tells whether it was started for that, or found, with its record.
    pub(super) fn bring_up_new(
        &self,
        key: DeviceKey,
        uuid: &str,
        start: &Start,
    ) -> (DeviceRecord, Result<bool, Cause>) {
        let mut record = DeviceRecord {
            name: start.name.clone(),
            key,
            uuid: uuid.to_owned(),
            settings: Settings {
                serve: Some(start.serve),
                server: start.server,
                active_thread_percentage: start.active_thread_percentage,
            },
            daemon: None,
            finished: false,
            boot_id: self.site.node.boot_id.clone(),
            since: Timestamp::now(),
        };
        let is_new = self.bring_up(&mut record);
        (record, is_new)
    }

    /// Starts a daemon again as it was recorded, on its device as that is called now: made anew, it
    /// may have another UUID.
    pub(super) fn restart_daemon(&self, record: &DeviceRecord, uuid: &str) -> Result<(), Cause> {
        let mut record = DeviceRecord {
            uuid: uuid.to_owned(),
            daemon: None,
            finished: false,
            since: Timestamp::now(),
            ..record.clone()
        };
        self.bring_up(&mut record).map(drop)
    }

    /// Whether a recorded daemon lives, as far as can be seen.
    pub(super) fn is_alive(&self, record: &DeviceRecord) -> bool {
        self.daemon(record).liveness() != Liveness::Dead
    }

    /// Brings a daemon to what its record says; tells whether it was started for that, or found.
    fn bring_up(&self, record: &mut DeviceRecord) -> Result<bool, Cause> {
        let daemon = self.daemon(record);
        daemon.check_path()?;
        self.run_dir.write_record(record)?;
        let launched = match self.launch(&daemon, record) {
            Ok(launched) => launched,
            Err(cause) if daemon.liveness() == Liveness::Dead => {
                return Err(cause.and(self.clear_away(&daemon, record)));
            }
            Err(cause) => return Err(cause),
        };
        match self.configure(&daemon, record, launched) {
            Ok(()) => Ok(launched.is_new),
            // Half a daemon helps nobody. Its logs stay for whoever reads the error.
            Err(cause) if launched.is_new => {
                Err(cause.and(self.end_daemon(record, Patience::Idle, true)))
            }
            // One that was found running may have clients.
            Err(cause) => Err(cause),
        }
    }

    fn launch(&self, daemon: &Daemon, record: &DeviceRecord) -> Result<Launched, Cause> {
        let who = match serve(record) {
            Serve::OneAtATime | Serve::All => WhoMay::Everybody,
            Serve::Own => WhoMay::Owner,
        };
        let host = &self.site.environment.host;
        Ok(daemon.launch(host, &record.uuid, serve(record) == Serve::All, who)?)
    }

    /// Records the daemon, sets and starts what its record says, and has it read back.
    fn configure(
        &self,
        daemon: &Daemon,
        record: &mut DeviceRecord,
        Launched { pid, is_new }: Launched,
    ) -> Result<(), Cause> {
        let process = self
            .site
            .environment
            .host
            .process(pid)
            .ok_or(Cause::NoDevice)?;
        record.daemon = Some(DaemonId {
            pid,
            start_time: process.started,
        });
        self.run_dir.write_record(record)?;
        let user = match (record.settings.server, serve(record)) {
            (Server::Lazy, _) => None,
            // One that was found running may serve somebody already.
            _ if !is_new && self.has_server(pid)? => None,
            // The shared server is root's, whoever it is started for.
            (Server::Eager, Serve::All) => Some(Uid::ROOT),
            (Server::Eager, _) => Some(self.site.environment.server_user()),
        };
        daemon.configure(record.settings.active_thread_percentage, user)?;
        record.finished = true;
        Ok(self.run_dir.write_record(record)?)
    }

    fn has_server(&self, daemon: Pid) -> Result<bool, Cause> {
        let table = self.site.environment.host.processes()?;
        Ok(table.children(daemon).next().is_some())
    }

    /// Ends a daemon if it lives, and removes what was made for it. Its logs stay.
    ///
    /// Daemons are ended one after another, but those that wait for clients side by side.
    pub(super) fn end_daemon(
        &self,
        record: &DeviceRecord,
        patience: Patience,
        alone: bool,
    ) -> Result<(), Cause> {
        let daemon = self.daemon(record);
        if record.boot_id == self.site.node.boot_id {
            match daemon.liveness() {
                Liveness::Held(pid) => self.end_holder(&daemon, record, pid, (patience, alone))?,
                // It may live on without its lock file.
                Liveness::Dead => {
                    if let Some(id) = record.daemon {
                        daemon.terminate(&self.site.environment.host, (id.pid, id.start_time))?;
                    }
                }
                Liveness::HeldUnseen | Liveness::Hidden => {
                    return Err(Cause::Unseen {
                        pipe: daemon.pipe_dir().to_owned(),
                    });
                }
            }
        }
        self.clear_away(&daemon, record)
    }

    /// Ends the process that holds a daemon's lock, if it is that daemon.
    fn end_holder(
        &self,
        daemon: &Daemon,
        record: &DeviceRecord,
        pid: Pid,
        (patience, alone): (Patience, bool),
    ) -> Result<(), Cause> {
        let host = &self.site.environment.host;
        let Some(process) = host.process(pid) else {
            return Ok(());
        };
        let serves_here = process
            .environment(PIPE_VARIABLE)
            .is_some_and(|pipe| Path::new(&pipe) == daemon.pipe_dir());
        let is_recorded = match record.daemon {
            Some(id) => id.pid == pid && id.start_time == process.started,
            // An interrupted start did not get as far as recording it.
            None => serves_here,
        };
        if is_recorded {
            let _alone = alone.then(|| lock(&self.one_stop_at_a_time));
            return Ok(daemon.stop(host, (pid, process.started), patience)?);
        }
        if serves_here {
            return Err(Cause::Foreign {
                pid,
                pipe: daemon.pipe_dir().to_owned(),
            });
        }
        // A lock that somebody else holds on a dead daemon's file means nothing.
        Ok(())
    }

    fn clear_away(&self, daemon: &Daemon, record: &DeviceRecord) -> Result<(), Cause> {
        daemon.remove_pipe_dir()?;
        Ok(self.run_dir.remove_record(record)?)
    }

    fn daemon(&self, record: &DeviceRecord) -> Daemon {
        Daemon::new(
            self.site.programs.clone(),
            self.run_dir.pipe_dir(&record.uuid),
            self.site.home.log.join(&record.uuid),
        )
    }
}

/// Whose clients a recorded device serves: a record always says.
fn serve(record: &DeviceRecord) -> Serve {
    record.settings.serve.unwrap_or(Serve::OneAtATime)
}
