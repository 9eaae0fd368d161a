//! The defaults of a daemon and the settings of its running servers: set, read back and compared.

use std::time::{Duration, Instant};

use super::log::{LOG_END, logged_limit, logged_ready};
use super::session::{ANSWER_LIMIT, PATIENCE, parse_pid};
use super::setting_command::{Mismatch, SettingCommand, compare};
use super::{Daemon, LogFile, MpsError, ServerState};
use crate::host::{Pid, Uid};
use crate::settings::Settings;

/// The time that a server may take to become ready (0.15 to 0.3 s on an H200). The daemon is single-threaded and
/// answers nothing meanwhile.
const READY_LIMIT: Duration = Duration::from_secs(60);
const READY_PAUSE: Duration = Duration::from_millis(10);

/// The least time in which a daemon is asked once more.
const LEAST_TIME: Duration = Duration::from_millis(500);

/// The time by which server.log may lag behind a server's answers: the daemon writes it.
const LOG_LIMIT: Duration = Duration::from_secs(1);
const LOG_PAUSE: Duration = Duration::from_millis(5);

/// Asks for the pids of the servers.
const SERVER_LIST: &str = "get_server_list";

/// The number of attempts to set servers that start and exit meanwhile.
const ROUNDS: usize = 5;

impl Daemon {
    /// Sets the defaults of the daemon, reads them back, and starts a server if a `user` is given. Returns that server
    /// once it is ACTIVE. `old` are the settings of a daemon that was already running.
    pub fn configure(
        &self,
        settings: &Settings,
        old: Option<&Settings>,
        user: Option<Uid>,
    ) -> Result<Option<Pid>, MpsError> {
        let commands = SettingCommand::all(None, settings, old);
        let start = user.map(|user| format!("start_server -uid {user}"));
        let rest = start.into_iter().chain([SERVER_LIST.to_owned()]);
        let servers = self.send(&commands, rest, READY_LIMIT)?;
        if user.is_none() {
            // A server that was already running has settings of its own.
            self.set_servers(servers, settings, old)?;
            return Ok(None);
        }
        self.wait_for_user(READY_LIMIT, |limit| {
            self.await_active(servers.first().copied(), limit).map(Some)
        })
    }

    /// Changes the settings of a running daemon and its servers, for clients that connect later. Every value is read
    /// back. After an error some values may have been set.
    pub fn set(&self, new: &Settings, old: &Settings) -> Result<(), MpsError> {
        let commands = SettingCommand::all(None, new, Some(old));
        let servers = self.send(&commands, [SERVER_LIST.to_owned()], ANSWER_LIMIT)?;
        self.set_servers(servers, new, Some(old))
    }

    /// Waits until the server that a daemon has started is ready. It may have none: the daemon starts one for a client.
    pub fn await_server(&self) -> Result<(), MpsError> {
        let servers = self.send(&[], [SERVER_LIST.to_owned()], ANSWER_LIMIT)?;
        let status = self.query(&servers, false, PATIENCE, ANSWER_LIMIT)?;
        let mut servers = status.servers.into_iter();
        let starts = servers.find(|server| server.state == Some(ServerState::Initializing));
        let Some(server) = starts else { return Ok(()) };
        self.wait_for_user(READY_LIMIT, |limit| {
            self.await_active(Some(server.pid), limit).map(drop)
        })
    }

    /// Waits until a server is ACTIVE.
    fn await_active(&self, first: Option<Pid>, limit: Duration) -> Result<Pid, MpsError> {
        let start = Instant::now();
        let mut server = first;
        loop {
            // The list is empty only if the server failed to start: the daemon answers nothing while one is starting.
            let Some(pid) = server else {
                return Err(self.failure("the MPS server did not start"));
            };
            let left = limit.saturating_sub(start.elapsed());
            if left < LEAST_TIME {
                let limit = limit.as_secs();
                return Err(
                    self.failure(format!("the MPS server {pid} is not ready after {limit} s"))
                );
            }
            let status = self.query_within(&[pid], false, (PATIENCE, limit), left)?;
            match status.servers.iter().find(|server| server.pid == pid) {
                Some(server)
                    if server.state == Some(ServerState::Active) && self.has_logged_ready(pid) =>
                {
                    return Ok(pid);
                }
                Some(_) => std::thread::sleep(READY_PAUSE),
                None => server = status.servers.first().map(|server| server.pid),
            }
        }
    }

    /// True if the daemon has logged that the server is ready. Without `get_server_status` only the log tells that: the
    /// daemon lists a server as soon as its process exists. A daemon without a log is believed.
    fn has_logged_ready(&self, server: Pid) -> bool {
        if self.program.has_server_status {
            return true;
        }
        let log = self.log_end(LogFile::Control, LOG_END);
        log.is_empty() || logged_ready(&log, server)
    }

    /// Sets running servers. A server that starts afterwards has the daemon's defaults.
    fn set_servers(
        &self,
        mut servers: Vec<Pid>,
        new: &Settings,
        old: Option<&Settings>,
    ) -> Result<(), MpsError> {
        for _ in 0..ROUNDS {
            let commands: Vec<SettingCommand<'_>> = servers
                .iter()
                .flat_map(|&server| SettingCommand::all(Some(server), new, old))
                .collect();
            if commands.is_empty() {
                return Ok(());
            }
            match self.send(&commands, [], ANSWER_LIMIT) {
                // A server that has exited needs nothing, and another one may have started.
                Err(MpsError::Unexpected { answer, .. }) if answer.contains("not found") => {
                    servers = self.send(&[], [SERVER_LIST.to_owned()], ANSWER_LIMIT)?;
                }
                other => {
                    other?;
                    self.await_log(&servers, new);
                    return Ok(());
                }
            }
        }
        Err(self.failure("its servers come and go: their settings cannot be set"))
    }

    /// Waits until the servers' log has their new memory limit. Only the log has its exact value, so the next reader
    /// would take the old one for the current one. A log that lags longer or is lost is no failure.
    fn await_log(&self, servers: &[Pid], new: &Settings) {
        let Some(limit) = new.pinned_memory_limit else {
            return;
        };
        let start = Instant::now();
        while start.elapsed() < LOG_LIMIT {
            let log = self.log_end(LogFile::Server, LOG_END);
            let lags = |server: &Pid| {
                let logged = logged_limit(&log, *server);
                logged.is_some_and(|logged| logged != limit.bytes())
            };
            if !servers.iter().any(lags) {
                return;
            }
            std::thread::sleep(LOG_PAUSE);
        }
    }

    /// Sends commands in one session, compares their answers with what was set, and returns the pids that the `rest` of
    /// the commands answers.
    fn send(
        &self,
        setting_commands: &[SettingCommand<'_>],
        rest: impl IntoIterator<Item = String>,
        limit: Duration,
    ) -> Result<Vec<Pid>, MpsError> {
        let commands = setting_commands.iter().map(SettingCommand::command);
        let commands: Vec<String> = commands.map(str::to_owned).chain(rest).collect();
        let answer = self.session(&commands, PATIENCE, limit)?;
        // A refused value is answered with the one that stays, at exit status 0.
        let rest = compare(setting_commands, &answer.lines).map_err(|mismatch| match mismatch {
            Mismatch::Differs(what) => self.failure(what),
            Mismatch::NoAnswer => answer.unexpected(),
        })?;
        // Anything but pids is a refusal.
        let pids = rest.into_iter().map(parse_pid).collect::<Option<_>>();
        pids.ok_or_else(|| answer.unexpected())
    }
}
