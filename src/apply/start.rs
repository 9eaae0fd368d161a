use jiff::Timestamp;

use super::cause::Cause;
use super::owner::{owner, serve, user};
use super::shared::Shared;
use crate::host::{Pid, Reader, Uid, group_named};
use crate::mps::{Daemon, Launch, Launched, Means, MpsProgram, Patience, WhoMay};
use crate::plan::{Start, StartServer};
use crate::settings::{Serve, Server};
use crate::state::{DaemonId, DeviceKey, DeviceRecord};

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
            settings: start.settings.clone(),
            by_hand: start.by_hand.clone(),
            compute_mode_before: self.mode_before(uuid),
            daemon: None,
            finished: false,
            boot_id: self.context.node.boot_id.clone(),
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

    /// True if a recorded daemon runs, or one of its servers without it.
    pub(super) fn is_alive(&self, record: &DeviceRecord) -> bool {
        let host = &self.context.environment.host;
        let owner = owner(record);
        owner.is_ok_and(|owner| self.daemon(record).has_processes(host, owner))
    }

    /// Brings a daemon to what its record says; tells whether it was started for that, or found.
    fn bring_up(&self, record: &mut DeviceRecord) -> Result<bool, Cause> {
        let daemon = self.daemon(record);
        daemon.check_path()?;
        let shall = self.shall(record)?;
        let host = &self.context.environment.host;
        self.run_dir.write_record(record)?;
        let launched = self.hold_mode(record);
        let launched = match launched.and_then(|()| Ok(daemon.launch(host, &shall)?)) {
            Ok(launched) => launched,
            // Something that the kernel does not end keeps its record.
            Err(cause) if self.is_alive(record) => return Err(cause),
            Err(cause) => return Err(cause.and(self.clear_away(&daemon, record))),
        };
        if let Some(in_the_way) = &launched.in_the_way {
            self.progress
                .note(&format!("{}: {in_the_way}", record.name));
        }
        let is_new = launched.is_new;
        match self.configure(&daemon, &shall, record, &launched) {
            Ok(()) => Ok(is_new),
            // Half a daemon helps nobody. Its logs stay for whoever reads the error.
            Err(cause) if is_new => {
                let ended = self.end_daemon(record, (Patience::Idle, Means::Session), true);
                Err(cause.and(ended))
            }
            // One that was found running may have clients.
            Err(cause) => Err(cause),
        }
    }

    /// How a record's daemon is started.
    fn shall(&self, record: &DeviceRecord) -> Result<Launch, Cause> {
        let serve = serve(record);
        let (who, reader) = match &serve {
            Serve::OneAtATime => (WhoMay::Everybody, self.first_reader()),
            Serve::All => (WhoMay::Everybody, None),
            Serve::Own => (WhoMay::Owner, None),
            Serve::Group(name) => {
                let group = group_named(name)?.ok_or_else(|| Cause::nobody("group", name))?;
                let who = format!("the group {name}");
                (WhoMay::Group(group), Some((who, Reader::Group(group))))
            }
            Serve::User(name) => {
                let account = user(name)?;
                let reader = Reader::User(account.uid, account.groups()?);
                (WhoMay::User(account), Some((name.clone(), reader)))
            }
        };
        Ok(Launch {
            device: record.uuid.clone(),
            multiuser: serve.is_shared(),
            who,
            readers: reader.into_iter().collect(),
            cpus: record.settings.cpus.clone(),
            nofile: record.settings.nofile,
        })
    }

    /// The user whom an eager server is for: a server that cannot reach its daemon ends without a word. It
    /// has that user's uid, but root's group and no others (measured).
    fn first_reader(&self) -> Option<(String, Reader)> {
        let user = self.context.environment.server_user();
        let who = crate::host::user_name(user);
        (user != Uid::ROOT).then(|| (who, Reader::User(user, vec![0])))
    }

    /// Records the daemon, sets and starts what its record says, and has everything read back.
    fn configure(
        &self,
        daemon: &Daemon,
        shall: &Launch,
        record: &mut DeviceRecord,
        launched: &Launched,
    ) -> Result<(), Cause> {
        let process = &launched.process;
        let (pid, is_new) = (process.pid, launched.is_new);
        record.daemon = Some(DaemonId::of(process, &self.context.environment.host));
        self.run_dir.write_record(record)?;
        daemon.verify(process, shall)?;
        let first = match record.settings.server {
            // One that was found running may serve somebody already.
            Server::Eager if is_new || !self.has_server(pid)? => {
                Some(self.first_user(serve(record))?)
            }
            Server::Eager | Server::Lazy => None,
        };
        // One that was found may have been told anything, by an interrupted change or by its owner.
        let was = if is_new {
            None
        } else {
            Some(daemon.defaults()?.over(&record.settings))
        };
        daemon.configure(&record.settings, was.as_ref(), first)?;
        record.finished = true;
        Ok(self.run_dir.write_record(record)?)
    }

    /// Whom an eager server is started for.
    pub(super) fn first_user(&self, serve: Serve) -> Result<Uid, Cause> {
        Ok(match serve {
            // The shared server is root's, whoever it is started for.
            Serve::All | Serve::Group(_) => Uid::ROOT,
            Serve::User(name) => user(&name)?.uid,
            Serve::OneAtATime | Serve::Own => self.context.environment.server_user(),
        })
    }

    pub(super) fn has_server(&self, daemon: Pid) -> Result<bool, Cause> {
        let table = self.context.environment.host.processes()?;
        Ok(table.children(daemon).any(MpsProgram::is_one))
    }

    /// Starts the server that a daemon has lost. It stays when the run fails later: so the record says.
    pub(super) fn start_server(&self, server: &StartServer) -> Result<(), Cause> {
        let served = self.served(&server.uuid).ok_or(Cause::NoDevice)?;
        let record = &served.record;
        let daemon = record.daemon.ok_or(Cause::NoDevice)?;
        // A program that came in between has got one.
        if self.has_server(daemon.pid)? {
            return Ok(());
        }
        let user = self.first_user(serve(record))?;
        let was = Some(&record.settings);
        self.daemon(record)
            .configure(&server.settings, was, Some(user))?;
        Ok(())
    }
}
