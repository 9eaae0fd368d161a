use jiff::Timestamp;

use super::{Cause, Shared, lock};
use crate::host;
use crate::mps::{Daemon, Liveness, Patience, WhoMay};
use crate::node::{DaemonId, DeviceKey, DeviceRecord};
use crate::plan::Start;
use crate::profile::{Serve, Server, Settings};

/// What tells which directory a daemon serves in.
const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

impl Shared<'_> {
    /// Starts a daemon for a device, and its server if it shall be eager; returns once everything
    /// was read back.
    pub(super) fn start_daemon(
        &self,
        key: DeviceKey,
        uuid: &str,
        start: &Start,
    ) -> Result<DeviceRecord, Cause> {
        let record = DeviceRecord {
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
            boot_id: self.site.boot_id.to_owned(),
            since: Timestamp::now(),
        };
        self.bring_up(record)
    }

    /// Starts a daemon again as it was recorded.
    pub(super) fn restart_daemon(&self, record: &DeviceRecord) -> Result<(), Cause> {
        let record = DeviceRecord {
            daemon: None,
            finished: false,
            since: Timestamp::now(),
            ..record.clone()
        };
        self.bring_up(record).map(drop)
    }

    fn bring_up(&self, mut record: DeviceRecord) -> Result<DeviceRecord, Cause> {
        let daemon = self.daemon(&record);
        daemon.check_path()?;
        self.run_dir.write_record(&record)?;
        match self.configure(&daemon, &mut record) {
            Ok(()) => Ok(record),
            // Half a daemon helps nobody. Its logs stay for whoever reads the error.
            Err(cause) => match self.end_daemon(&record, Patience::Idle) {
                Ok(()) => Err(cause),
                Err(left) => Err(Cause::Left {
                    cause: Box::new(cause),
                    left: Box::new(left),
                }),
            },
        }
    }

    fn configure(&self, daemon: &Daemon, record: &mut DeviceRecord) -> Result<(), Cause> {
        let host = &self.site.environment.host;
        let serve = record.settings.serve.unwrap_or(Serve::OneAtATime);
        let who = match serve {
            Serve::OneAtATime | Serve::All => WhoMay::Everybody,
            Serve::Own => WhoMay::Owner,
        };
        host::make_dir(&self.site.home.log, 0o755)?;
        let pid = daemon.launch(host, &record.uuid, serve == Serve::All, who)?;
        let process = host.process(pid).ok_or(Cause::NoDevice)?;
        record.daemon = Some(DaemonId {
            pid,
            start_time: process.started,
        });
        self.run_dir.write_record(record)?;
        let user = match (record.settings.server, serve) {
            (Server::Lazy, _) => None,
            // The shared server is root's, whoever it is started for.
            (Server::Eager, Serve::All) => Some(host::Uid::ROOT),
            (Server::Eager, _) => Some(self.site.environment.server_user()),
        };
        daemon.configure(record.settings.active_thread_percentage.value(), user)?;
        record.finished = true;
        self.run_dir.write_record(record)?;
        Ok(())
    }

    /// Ends a daemon if it lives, and removes what was made for it. Its logs stay.
    pub(super) fn end_daemon(
        &self,
        record: &DeviceRecord,
        patience: Patience,
    ) -> Result<(), Cause> {
        let daemon = self.daemon(record);
        let host = &self.site.environment.host;
        let liveness = daemon.liveness();
        if let (Liveness::Dead, Some(id)) = (liveness, record.daemon)
            && record.boot_id == self.site.boot_id
        {
            // It may live on without its lock file.
            daemon.terminate(host, (id.pid, id.start_time))?;
        }
        if let Liveness::Held(pid) = liveness
            && record.boot_id == self.site.boot_id
            && let Some(process) = host.process(pid)
        {
            let recorded = record
                .daemon
                .is_none_or(|id| id.pid == pid && id.start_time == process.started);
            if !recorded
                && process
                    .environment(PIPE_VARIABLE)
                    .is_some_and(|pipe| std::path::Path::new(&pipe) == daemon.pipe_dir())
            {
                return Err(Cause::Foreign {
                    pid,
                    pipe: daemon.pipe_dir().to_owned(),
                });
            }
            // A lock that somebody else holds on a dead daemon's file means nothing.
            if recorded {
                // Those that wait for their clients must not wait for each other.
                let _alone = (patience == Patience::Idle).then(|| lock(&self.one_stop_at_a_time));
                daemon.stop(host, (pid, process.started), patience)?;
            }
        }
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
