use std::time::{Duration, Instant};

use super::daemon::parse_pid;
use super::order::{Order, compare};
use super::{Daemon, MpsError, ServerState};
use crate::host::{Pid, Uid};
use crate::settings::Settings;

/// How long a server may take to become ready (0.15 to 0.3 s on an H200). The daemon is
/// single-threaded and answers nothing meanwhile.
const READY_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// For how long a fresh daemon may be kept busy by somebody else's session.
const PATIENCE: Duration = Duration::from_secs(10);

impl Daemon {
    /// Sets what its servers shall have, reads it back, and starts a server for `user` where one is asked
    /// for; returns the server once it is ACTIVE. `was` is what a daemon has that was running before.
    ///
    /// # Errors
    /// [`MpsError`] with the last log lines.
    pub fn configure(
        &self,
        settings: &Settings,
        was: Option<&Settings>,
        user: Option<Uid>,
    ) -> Result<Option<Pid>, MpsError> {
        let orders = Order::defaults(settings, was);
        let start = user.map(|user| format!("start_server -uid {user}"));
        let mut commands: Vec<&str> = orders.iter().map(Order::command).collect();
        commands.extend(start.as_deref());
        commands.push("get_server_list");
        let answer = self.session(&commands, PATIENCE, READY_LIMIT)?;
        let strange = || MpsError::Strange {
            asked: commands.join("\n"),
            answer: answer.lines.join("\n"),
        };
        // A value that is refused is answered with the one that stays, at exit status 0.
        let rest = self.judged(compare(&orders, &answer.lines), strange)?;
        // What follows is the server list, or a refusal.
        let servers: Option<Vec<Pid>> = rest.into_iter().map(parse_pid).collect();
        let servers = servers.ok_or_else(strange)?;
        if user.is_none() {
            // One that was running before has its own settings.
            self.set_servers(servers, settings, was)?;
            return Ok(None);
        }
        self.await_active(servers.first().copied()).map(Some)
    }

    /// Waits until a server says ACTIVE.
    fn await_active(&self, first: Option<Pid>) -> Result<Pid, MpsError> {
        let begun = Instant::now();
        let mut server = first;
        loop {
            // The server list is empty when the server did not come up: the daemon answers nothing
            // while one is starting.
            let Some(pid) = server else {
                return Err(self.failure("the MPS server did not start"));
            };
            let glance = self.glance(&[pid], false, PATIENCE, READY_LIMIT)?;
            match glance.servers.iter().find(|seen| seen.pid == pid) {
                Some(seen) if seen.state == Some(ServerState::Active) => return Ok(pid),
                Some(_) if begun.elapsed() < READY_LIMIT => std::thread::sleep(PAUSE),
                Some(seen) => {
                    return Err(self.failure(format!(
                        "the MPS server {pid} is not ready after {} s: its state is {:?}",
                        READY_LIMIT.as_secs(),
                        seen.state
                    )));
                }
                None => server = glance.servers.first().map(|seen| seen.pid),
            }
        }
    }
}
