//! A daemon's defaults and a running server's own settings: set, read back and compared.

use std::time::{Duration, Instant};

use super::daemon::parse_pid;
use super::glance::ENOUGH_LOG;
use super::log::logged_limit;
use super::order::{Order, Unlike, compare};
use super::{Daemon, LogFile, MpsError};
use crate::host::Pid;
use crate::settings::Settings;

/// For how long a daemon may be kept busy by somebody else's session.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// For how long it may answer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// For how long the log of servers may lag behind their answers: the daemon writes it.
const LOG_LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// How often servers are looked for that come and go while they are told.
const ROUNDS: usize = 5;

impl Daemon {
    /// Changes the settings of a running daemon and of its servers: for clients that come later. Every
    /// value is read back.
    ///
    /// # Errors
    /// [`MpsError`]; some of them may have been set.
    pub fn set(&self, shall: &Settings, was: &Settings) -> Result<(), MpsError> {
        let orders = Order::defaults(shall, Some(was));
        let servers = self.give(&orders, true)?;
        self.set_servers(servers, shall, Some(was))
    }

    /// Tells running servers. One that starts afterwards has the daemon's defaults.
    pub(super) fn set_servers(
        &self,
        servers: Vec<Pid>,
        shall: &Settings,
        was: Option<&Settings>,
    ) -> Result<(), MpsError> {
        let mut servers = servers;
        for _ in 0..ROUNDS {
            let orders: Vec<Order> = servers
                .iter()
                .flat_map(|&server| Order::of_server(server, shall, was))
                .collect();
            if orders.is_empty() {
                return Ok(());
            }
            match self.give(&orders, false) {
                // One that goes meanwhile needs nothing, and another one may have come.
                Err(MpsError::Strange { answer, .. }) if answer.contains("not found") => {
                    servers = self.give(&[], true)?;
                }
                other => {
                    other?;
                    self.await_log(&servers, shall);
                    return Ok(());
                }
            }
        }
        Err(self.failure("its servers come and go: they cannot be told their settings"))
    }

    /// Waits for the limit that servers were given to stand in their log, which alone has it exactly: whoever looks next
    /// would take the one before it for the present one. A log that lags or is lost is no failure.
    fn await_log(&self, servers: &[Pid], shall: &Settings) {
        let Some(limit) = shall.pinned_memory_limit else {
            return;
        };
        let begun = Instant::now();
        while begun.elapsed() < LOG_LIMIT {
            let log = self.log_end(LogFile::Server, ENOUGH_LOG);
            let lags = |server: &Pid| {
                let logged = logged_limit(&log, *server);
                logged.is_some_and(|logged| logged != limit.bytes())
            };
            if !servers.iter().any(lags) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Gives orders in one session, and asks for the servers behind them.
    fn give(&self, orders: &[Order], list: bool) -> Result<Vec<Pid>, MpsError> {
        let mut commands: Vec<&str> = orders.iter().map(Order::command).collect();
        if list {
            commands.push("get_server_list");
        }
        let answer = self.session(&commands, PATIENCE, ANSWER_LIMIT)?;
        let strange = || MpsError::Strange {
            asked: commands.join("\n"),
            answer: answer.lines.join("\n"),
        };
        let rest = self.judged(compare(orders, &answer.lines), strange)?;
        rest.into_iter()
            .map(parse_pid)
            .collect::<Option<_>>()
            .ok_or_else(strange)
    }

    /// The comparison, as an error about this daemon.
    pub(super) fn judged<T>(
        &self,
        compared: Result<T, Unlike>,
        strange: impl FnOnce() -> MpsError,
    ) -> Result<T, MpsError> {
        compared.map_err(|unlike| match unlike {
            Unlike::Differs(what) => self.failure(what),
            Unlike::Strange => strange(),
        })
    }
}
