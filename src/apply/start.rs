//! Starts a daemon, gives it its settings, and reads them back.

use std::io;

use jiff::Timestamp;

use super::cause::Cause;
use super::owner::{owner, serve, user};
use super::shared::Shared;
use crate::host::{Pid, Reader, Uid, group_named};
use crate::mps::{Access, Daemon, LaunchOptions, Launched, Means, MpsProgram, Patience};
use crate::nvml::Session;
use crate::plan::{Start, StartServer, StartedBy};
use crate::settings::{CpuChoice, Serve, Server};
use crate::state::{DaemonId, DeviceKey, DeviceRecord};

/// A device that exists, as its record describes it.
pub(super) struct DeviceNow {
    pub(super) key: DeviceKey,
    pub(super) uuid: String,
    /// Its GPU's index.
    pub(super) gpu: Option<u32>,
    /// `3g.40gb`; `None` for a whole GPU.
    pub(super) profile: Option<String>,
}

impl Shared<'_> {
    /// Starts a daemon for a device, and an eager server; returns once everything has been read back. Returns the
    /// record, and true if the daemon is new, false if it was running.
    pub(super) fn bring_up_new(
        &self,
        device: DeviceNow,
        start: &Start,
    ) -> (DeviceRecord, Result<bool, Cause>) {
        let now = Timestamp::now();
        let before = self.served(&device.uuid).map(|served| &served.record);
        let before = before.filter(|record| record.boot_id == self.context.node.boot_id);
        let mut healed = Vec::new();
        if start.by == StartedBy::Heal {
            healed.extend(before.iter().flat_map(|record| record.recently_healed(now)));
            healed.push(now);
        }
        let mut record = DeviceRecord {
            name: start.name.clone(),
            compute_mode_before: self.context.node.mode_before(&device.uuid, &self.run_dir),
            key: device.key,
            uuid: device.uuid,
            gpu: device.gpu,
            profile: device.profile,
            settings: start.settings.clone(),
            by_hand: start.by_hand.clone(),
            daemon: None,
            finished: false,
            boot_id: self.context.node.boot_id.clone(),
            since: now,
            restarts: before.map_or(0, |record| record.restarts + u64::from(record.finished)),
            healed,
            leaving: false,
        };
        let is_new = self.bring_up(&mut record);
        (record, is_new)
    }

    /// Starts a recorded daemon again. Its device may have been made again, and then has another UUID.
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

    /// True if a recorded daemon or one of its servers runs, or if that cannot be determined.
    pub(super) fn is_alive(&self, record: &DeviceRecord) -> bool {
        let host = &self.context.environment.host;
        let count =
            owner(record).and_then(|owner| Ok(self.daemon(record).count_processes(host, owner)?));
        count.map_or(true, |count| count > 0)
    }

    /// Starts or completes the daemon of a record; returns true if it is new, false if it was running.
    fn bring_up(&self, record: &mut DeviceRecord) -> Result<bool, Cause> {
        let daemon = self.daemon(record);
        daemon.check_path()?;
        let launch = self.launch_options(record)?;
        let host = &self.context.environment.host;
        self.run_dir.write_record(record)?;
        let launched = self.hold_mode(record);
        let launched = match launched.and_then(|()| Ok(daemon.launch(host, &launch)?)) {
            Ok(launched) => launched,
            // A process that the kernel cannot end keeps its record.
            Err(cause) if self.is_alive(record) => return Err(cause),
            Err(cause) => return Err(cause.and(self.clear_away(&daemon, record))),
        };
        if let Some(in_the_way) = &launched.in_the_way {
            self.progress
                .note(&format!("{}: {in_the_way}", record.name));
        }
        let is_new = launched.is_new;
        match self.configure(&daemon, &launch, record, &launched) {
            Ok(()) => Ok(is_new),
            // An incomplete daemon is of no use. Its logs stay, for the reader of the error.
            Err(cause) if is_new => {
                // Until its server has started, a daemon does not quit.
                let means = if self.starts_a_server(record).unwrap_or(false) {
                    Means::Signals
                } else {
                    Means::Session
                };
                let ended = self.end_daemon(record, (Patience::Idle, means), true);
                Err(cause.and(ended))
            }
            // A daemon that was running may have clients.
            Err(cause) => Err(cause),
        }
    }

    /// The options with which a record's daemon is launched.
    fn launch_options(&self, record: &DeviceRecord) -> Result<LaunchOptions, Cause> {
        let serve = serve(record);
        let (access, reader) = match &serve {
            Serve::OneAtATime => (Access::Everybody, self.first_reader()),
            Serve::All => (Access::Everybody, None),
            Serve::Own => (Access::Owner, None),
            Serve::Group(name) => {
                let group = group_named(name)?.ok_or_else(|| Cause::nobody("group", name))?;
                let who = format!("the group {name}");
                (Access::Group(group), Some((who, Reader::Group(group))))
            }
            Serve::User(name) => {
                let account = user(name)?;
                let reader = Reader::User(account.uid, account.groups()?);
                (Access::User(account), Some((name.clone(), reader)))
            }
        };
        let cpus = match &record.settings.cpus {
            None => None,
            Some(CpuChoice::These(cpus)) => Some(cpus.clone()),
            Some(CpuChoice::Near) => {
                let host = &self.context.environment.host;
                let cpus = host.cpus_near(&record.key.gpu).map_err(|error| {
                    let what = format!("cannot tell the CPUs near the GPU: {error}");
                    io::Error::new(error.kind(), what)
                });
                Some(cpus?)
            }
        };
        Ok(LaunchOptions {
            device: record.uuid.clone(),
            multiuser: serve.is_shared(),
            access,
            readers: reader.into_iter().collect(),
            cpus,
            nofile: record.settings.nofile,
        })
    }

    /// The first user of an eager server: a server that cannot reach its daemon exits silently. It has that
    /// user's uid, but root's group and no others (measured).
    fn first_reader(&self) -> Option<(String, Reader)> {
        let user = self.context.environment.server_user();
        let who = crate::host::user_name(user);
        (user != Uid::ROOT).then(|| (who, Reader::User(user, vec![0])))
    }

    /// Records the daemon, applies its settings, starts an eager server, and reads everything back.
    fn configure(
        &self,
        daemon: &Daemon,
        launch: &LaunchOptions,
        record: &mut DeviceRecord,
        launched: &Launched,
    ) -> Result<(), Cause> {
        let process = &launched.process;
        let (pid, is_new) = (process.pid, launched.is_new);
        record.daemon = Some(DaemonId::of(process, &self.context.environment.host));
        self.run_dir.write_record(record)?;
        daemon.verify(process, launch)?;
        let first = match record.settings.server {
            // A daemon that was running may have a server already.
            Server::Eager if is_new || !self.has_server(pid)? => {
                Some(self.first_user(serve(record))?)
            }
            Server::Eager | Server::Lazy => None,
        };
        // An interrupted change, or the owner, may have changed the settings of one that was running.
        let was = if is_new {
            None
        } else {
            Some(daemon.defaults()?.over(&record.settings))
        };
        daemon.configure(&record.settings, was.as_ref(), first)?;
        if record.settings.server == Server::Eager && first.is_none() {
            daemon.await_server()?;
        }
        record.finished = true;
        Ok(self.run_dir.write_record(record)?)
    }

    /// The first user of an eager server.
    pub(super) fn first_user(&self, serve: Serve) -> Result<Uid, Cause> {
        Ok(match serve {
            // The shared server belongs to root.
            Serve::All | Serve::Group(_) => Uid::ROOT,
            Serve::User(name) => user(&name)?.uid,
            Serve::OneAtATime | Serve::Own => self.context.environment.server_user(),
        })
    }

    pub(super) fn has_server(&self, daemon: Pid) -> Result<bool, Cause> {
        let table = self.context.environment.host.processes()?;
        Ok(table.children(daemon).any(MpsProgram::is_one))
    }

    /// True if a daemon has a server that has no GPU yet, and so no clients.
    fn starts_a_server(&self, record: &DeviceRecord) -> Result<bool, Cause> {
        let processes = self.nvml_on(&record.uuid, Session::read_processes)?;
        let computes = |pid: Pid| processes.compute.iter().any(|usage| usage.pid == pid.0);
        let daemon = record.daemon.ok_or(Cause::NoDevice)?;
        let table = self.context.environment.host.processes()?;
        let mut servers = table
            .children(daemon.pid)
            .filter(|child| MpsProgram::is_one(child));
        Ok(processes.clients.is_empty() && servers.any(|server| !computes(server.pid)))
    }

    /// Starts the server that a daemon has lost. A rollback leaves it: the record asks for it.
    pub(super) fn start_server(&self, step: &StartServer) -> Result<(), Cause> {
        let served = self.served(&step.uuid).ok_or(Cause::NoDevice)?;
        let record = &served.record;
        let daemon = record.daemon.ok_or(Cause::NoDevice)?;
        // A program may have caused one to start meanwhile.
        if self.has_server(daemon.pid)? {
            return Ok(());
        }
        let user = self.first_user(serve(record))?;
        let was = Some(&record.settings);
        self.daemon(record)
            .configure(&step.settings, was, Some(user))?;
        Ok(())
    }
}
