use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{Cause, Shared, lock};
use crate::host::{Account, Pid, Reader, Uid, group_named};
use crate::mps::{Access, Daemon, LaunchOptions, Launched, Means, MpsProgram, Patience};
use crate::plan::Start;
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

    /// True if a recorded daemon runs, or one of its servers without it.
    pub(super) fn is_alive(&self, record: &DeviceRecord) -> bool {
        let host = &self.site.environment.host;
        let owner = owner(record);
        owner.is_ok_and(|owner| self.daemon(record).has_processes(host, owner))
    }

    /// Brings a daemon to what its record says; tells whether it was started for that, or found.
    fn bring_up(&self, record: &mut DeviceRecord) -> Result<bool, Cause> {
        let daemon = self.daemon(record);
        daemon.check_path()?;
        let shall = self.shall(record)?;
        let host = &self.site.environment.host;
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
    fn shall(&self, record: &DeviceRecord) -> Result<LaunchOptions, Cause> {
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
        Ok(LaunchOptions {
            device: record.uuid.clone(),
            multiuser: serve.is_shared(),
            access,
            readers: reader.into_iter().collect(),
            cpus: record.settings.cpus.clone(),
            nofile: record.settings.nofile,
        })
    }

    /// The user whom an eager server is for: a server that cannot reach its daemon ends without a word. It
    /// has that user's uid, but root's group and no others (measured).
    fn first_reader(&self) -> Option<(String, Reader)> {
        let user = self.site.environment.server_user();
        let who = crate::host::user_name(user);
        (user != Uid::ROOT).then(|| (who, Reader::User(user, vec![0])))
    }

    /// Records the daemon, sets and starts what its record says, and has everything read back.
    fn configure(
        &self,
        daemon: &Daemon,
        shall: &LaunchOptions,
        record: &mut DeviceRecord,
        launched: &Launched,
    ) -> Result<(), Cause> {
        let process = &launched.process;
        let (pid, is_new) = (process.pid, launched.is_new);
        record.daemon = Some(DaemonId::of(process, &self.site.environment.host));
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
            Serve::OneAtATime | Serve::Own => self.site.environment.server_user(),
        })
    }

    pub(super) fn has_server(&self, daemon: Pid) -> Result<bool, Cause> {
        let table = self.site.environment.host.processes()?;
        Ok(table.children(daemon).any(MpsProgram::is_one))
    }

    /// Ends a daemon if it lives, and removes what was made for it. Its logs stay.
    ///
    /// Daemons are ended one after another, but those that wait for clients side by side.
    pub(super) fn end_daemon(
        &self,
        record: &DeviceRecord,
        how: (Patience, Means),
        alone: bool,
    ) -> Result<(), Cause> {
        self.end_process(record, how, alone)?;
        self.clear_away(&self.daemon(record), record)
    }

    /// Ends a daemon's process if it lives, and every other that serves in its directory.
    pub(super) fn end_process(
        &self,
        record: &DeviceRecord,
        (patience, means): (Patience, Means),
        alone: bool,
    ) -> Result<(), Cause> {
        if record.boot_id != self.site.node.boot_id {
            return Ok(());
        }
        let host = &self.site.environment.host;
        let daemon = self.daemon(record);
        if record.daemon.is_some_and(|id| id.is_hidden(host)) {
            return Err(Cause::Unseen {
                name: record.name.clone(),
            });
        }
        let running = record.daemon.and_then(|id| id.running(host));
        if let Some(process) = running {
            if let (Patience::Force(seconds), Means::Signals | Means::Heal) = (patience, means)
                && patience != Patience::AT_ONCE
            {
                self.wait_for_clients(&record.uuid, Duration::from_secs(seconds.into()));
            }
            let _alone = alone.then(|| lock(&self.one_stop_at_a_time));
            // It ends the servers in the directory too; a healed daemon stays.
            return Ok(daemon.stop(host, (process.pid, process.started), patience, means)?);
        }
        // An interrupted start did not get as far as recording its daemon.
        Ok(daemon.end_unrecorded(host, owner(record)?)?)
    }

    /// Waits until the driver lists no clients on a device any more. No session tells a daemon to refuse new ones here.
    fn wait_for_clients(&self, uuid: &str, limit: Duration) {
        const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
        let interrupt = &self.site.environment.interrupt;
        let begun = Instant::now();
        loop {
            let device = uuid.to_owned();
            let read = self
                .nvml
                .supervise(move |nvml| nvml.read_processes(&device));
            let is_idle = read.is_ok_and(|processes| processes.clients.is_empty());
            if is_idle || begun.elapsed() >= limit || !interrupt.pause(BETWEEN_LOOKS) {
                return;
            }
        }
    }

    fn clear_away(&self, daemon: &Daemon, record: &DeviceRecord) -> Result<(), Cause> {
        self.give_mode_back(record)?;
        daemon.remove_pipe_dir()?;
        Ok(self.run_dir.remove_record(record)?)
    }

    pub(super) fn daemon(&self, record: &DeviceRecord) -> Daemon {
        self.daemon_of(&record.uuid)
    }

    pub(super) fn daemon_of(&self, uuid: &str) -> Daemon {
        Daemon::new(
            self.site.programs.clone(),
            self.site.node.control_program(),
            self.run_dir.pipe_dir(uuid),
            self.site.home.log.join(uuid),
        )
    }
}

/// The user that a recorded daemon runs as.
fn owner(record: &DeviceRecord) -> Result<Uid, Cause> {
    match serve(record) {
        Serve::User(name) => Ok(user(&name)?.uid),
        _ => Ok(crate::host::caller()),
    }
}

/// Whose clients a recorded device serves: a record always says.
pub(super) fn serve(record: &DeviceRecord) -> Serve {
    let serve = record.settings.serve.clone();
    serve.unwrap_or(Serve::OneAtATime)
}

/// The user that a daemon serves alone and runs as, where that is another than the caller.
pub(super) fn user_beside_caller(serve: Serve) -> Option<String> {
    match serve {
        Serve::User(name) => {
            let is_caller = user(&name).is_ok_and(|user| user.uid == crate::host::caller());
            (!is_caller).then_some(name)
        }
        _ => None,
    }
}

fn user(name: &str) -> Result<Account, Cause> {
    Account::named(name)?.ok_or_else(|| Cause::nobody("user", name))
}
