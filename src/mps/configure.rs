//! The defaults of a daemon and the settings of its running servers: set, read back and compared.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::log::{LOG_END, log_shows_ready, logged_memory_limit};
use super::session::{ANSWER_TIMEOUT, BUSY_TIMEOUT, parse_pid};
use super::{Daemon, LogFile, MpsError, ServerState};
use crate::host::{Pid, Uid};
use crate::settings::{Control, KEYS, MemoryLimit, Reported, SettingKey, Settings};

/// The time that a server may take to become ready (0.15 to 0.3 s on an H200). The daemon is single-threaded and
/// answers nothing meanwhile.
const SERVER_READY_TIMEOUT: Duration = Duration::from_secs(60);
const SERVER_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The least time in which a daemon is asked once more.
const MIN_QUERY_TIME: Duration = Duration::from_millis(500);

/// The time by which server.log may lag behind a server's answers: the daemon writes it.
const LOG_LAG_TIMEOUT: Duration = Duration::from_secs(1);
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Asks for the pids of the servers.
const SERVER_LIST: &str = "get_server_list";

/// The number of attempts to set servers that start and exit meanwhile.
const MAX_SET_ATTEMPTS: usize = 5;

impl Daemon {
    /// Sets the defaults of the daemon and reads them back. `old` are the settings of a daemon that was already running:
    /// its servers, which have settings of their own, are set too.
    pub fn configure(&self, settings: &Settings, old: Option<&Settings>) -> Result<(), MpsError> {
        let commands = SettingCommand::for_settings(self.devices, None, settings, old);
        let servers =
            self.send_commands(&commands, [SERVER_LIST.to_owned()], SERVER_READY_TIMEOUT)?;
        self.set_servers(servers, settings, old)
    }

    /// Sets the defaults of the daemon, reads them back, and starts a server of this user. Returns once it is ACTIVE.
    /// `old` are the settings of a daemon that was already running.
    pub fn start_server(
        &self,
        settings: &Settings,
        old: Option<&Settings>,
        user: Uid,
    ) -> Result<(), MpsError> {
        let commands = SettingCommand::for_settings(self.devices, None, settings, old);
        let start = [format!("start_server -uid {user}"), SERVER_LIST.to_owned()];
        let servers = self.send_commands(&commands, start, SERVER_READY_TIMEOUT)?;
        self.wait_until_active(servers.first().copied())
    }

    /// Changes the settings of a running daemon and its servers, for clients that connect later. Every value is read
    /// back. After an error some values may have been set.
    pub fn change_settings(&self, new: &Settings, old: &Settings) -> Result<(), MpsError> {
        let commands = SettingCommand::for_settings(self.devices, None, new, Some(old));
        let servers = self.send_commands(&commands, [SERVER_LIST.to_owned()], ANSWER_TIMEOUT)?;
        self.set_servers(servers, new, Some(old))
    }

    /// Waits until the server that a daemon has started is ready. It may have none: the daemon starts one for a client.
    pub fn wait_for_server(&self) -> Result<(), MpsError> {
        let servers = self.send_commands(&[], [SERVER_LIST.to_owned()], ANSWER_TIMEOUT)?;
        let status = self.query_status(&servers, false, BUSY_TIMEOUT, ANSWER_TIMEOUT)?;
        for server in status.servers {
            if server.state == Some(ServerState::Initializing) {
                return self.wait_until_active(Some(server.pid));
            }
        }
        Ok(())
    }

    /// Waits until a server is ACTIVE.
    fn wait_until_active(&self, first: Option<Pid>) -> Result<(), MpsError> {
        let start = Instant::now();
        let mut server = first;
        loop {
            // The list is empty only if the server failed to start: the daemon answers nothing while one is starting.
            let Some(pid) = server else {
                return Err(self.error_with_logs("the MPS server did not start"));
            };
            let remaining = SERVER_READY_TIMEOUT.saturating_sub(start.elapsed());
            if remaining < MIN_QUERY_TIME {
                let limit = SERVER_READY_TIMEOUT.as_secs();
                return Err(self.error_with_logs(format!(
                    "the MPS server {pid} was not ready after {limit} s"
                )));
            }
            let status =
                self.query_status(&[pid], false, BUSY_TIMEOUT.min(remaining / 2), remaining)?;
            match status.servers.iter().find(|server| server.pid == pid) {
                Some(server)
                    if server.state == Some(ServerState::Active) && self.has_logged_ready(pid) =>
                {
                    return Ok(());
                }
                Some(_) => std::thread::sleep(SERVER_POLL_INTERVAL),
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
        log.is_empty() || log_shows_ready(&log, server)
    }

    /// Sets running servers. A server that starts afterwards has the daemon's defaults.
    fn set_servers(
        &self,
        mut servers: Vec<Pid>,
        new: &Settings,
        old: Option<&Settings>,
    ) -> Result<(), MpsError> {
        for _ in 0..MAX_SET_ATTEMPTS {
            let commands: Vec<SettingCommand<'_>> = servers
                .iter()
                .flat_map(|&server| {
                    SettingCommand::for_settings(self.devices, Some(server), new, old)
                })
                .collect();
            if commands.is_empty() {
                return Ok(());
            }
            match self.send_commands(&commands, [], ANSWER_TIMEOUT) {
                // A server that has exited needs nothing, and another one may have started.
                Err(MpsError::Unexpected { answer, .. }) if answer.contains("not found") => {
                    servers = self.send_commands(&[], [SERVER_LIST.to_owned()], ANSWER_TIMEOUT)?;
                }
                other => {
                    other?;
                    self.wait_for_log(&servers, new);
                    return Ok(());
                }
            }
        }
        Err(self.error_with_logs("its servers change, so their settings cannot be set"))
    }

    /// Waits until the servers' log has their new memory limit. Only the log has its exact value, so the next reader
    /// would take the old one for the current one. A log that lags longer or is lost is no failure.
    fn wait_for_log(&self, servers: &[Pid], new: &Settings) {
        let Some(limit) = new.pinned_memory_limit else {
            return;
        };
        let start = Instant::now();
        while start.elapsed() < LOG_LAG_TIMEOUT {
            let log = self.log_end(LogFile::Server, LOG_END);
            let lags = servers
                .iter()
                .filter_map(|server| logged_memory_limit(&log, *server))
                .any(|logged| logged != limit.bytes());
            if !lags {
                return;
            }
            std::thread::sleep(LOG_POLL_INTERVAL);
        }
    }

    /// Sends commands in one session, compares their answers with what was set, and returns the pids that the `rest` of
    /// the commands answers.
    fn send_commands(
        &self,
        setting_commands: &[SettingCommand<'_>],
        rest: impl IntoIterator<Item = String>,
        limit: Duration,
    ) -> Result<Vec<Pid>, MpsError> {
        let commands: Vec<String> = setting_commands
            .iter()
            .map(SettingCommand::command)
            .map(str::to_owned)
            .chain(rest)
            .collect();
        let answer = self.run_commands(&commands, BUSY_TIMEOUT, limit)?;
        // A refused value is answered with the one that stays, at exit status 0.
        let rest =
            check_answers(setting_commands, &answer.lines).map_err(|mismatch| match mismatch {
                Mismatch::Differs(what) => self.error_with_logs(what),
                Mismatch::NoAnswer => answer.unexpected_error(),
            })?;
        // Anything but pids is a refusal.
        rest.into_iter()
            .map(parse_pid)
            .collect::<Option<_>>()
            .ok_or_else(|| answer.unexpected_error())
    }
}

/// A control command and its expected answer. Nothing separates the answers of one session.
pub(super) struct SettingCommand<'a> {
    command: String,
    /// The setting that is answered; `None` if there is no line, or a refusal in words.
    answer: Option<(&'static SettingKey, &'static Control)>,
    settings: &'a Settings,
    of_server: bool,
}

/// Returns the commands that query the defaults of a daemon of so many devices.
pub(super) fn default_queries(devices: usize) -> Vec<String> {
    Reported::queried_settings()
        .flat_map(|(_, control)| {
            let numbers = control.device_numbers(devices);
            numbers.map(|device| control_command(control, "get", (None, device), None))
        })
        .collect()
}

/// True if settings have another value than the default.
fn is_set(control: &Control, settings: &Settings) -> bool {
    (control.value)(settings) != (control.value)(&Settings::default())
}

/// `set_default_WORD DEVICE VALUE`, `get_WORD SERVER DEVICE`
fn control_command(
    control: &Control,
    verb: &str,
    (server, device): (Option<Pid>, Option<usize>),
    value: Option<String>,
) -> String {
    let (default, pid) = match server {
        Some(pid) => ("", Some(pid.to_string())),
        None => ("_default", None),
    };
    [format!("{verb}{default}_{}", control.word)]
        .into_iter()
        .chain(pid)
        .chain(device.map(|device| device.to_string()))
        .chain(value)
        .collect::<Vec<_>>()
        .join(" ")
}

impl<'a> SettingCommand<'a> {
    /// Returns the commands that set and read back what a daemon of so many devices gives to servers that start later, or
    /// what a running server gives to its next clients. `old` settings may have to be reset; a daemon that has just started has
    /// none.
    pub(super) fn for_settings(
        devices: usize,
        server: Option<Pid>,
        new: &'a Settings,
        old: Option<&Settings>,
    ) -> Vec<Self> {
        // One value of several devices may differ from the others.
        let may_differ = |control: &Control| control.is_by_device && devices > 1;
        let by_device: Vec<(&SettingKey, &Control, Option<usize>)> = KEYS
            .iter()
            .filter_map(|key| Some((key, key.control_commands()?)))
            .filter(|(_, control)| server.is_none() || control.is_of_servers)
            .filter(|(_, control)| {
                control.is_universal
                    || is_set(control, new)
                    || old.is_some_and(|old| is_set(control, old) || may_differ(control))
            })
            .flat_map(|(key, control)| {
                let numbers = control.device_numbers(devices);
                numbers.map(move |device| (key, control, device))
            })
            .collect();
        let of_server = server.is_some();
        let sets = by_device.iter().map(|&(key, control, device)| Self {
            command: control_command(control, "set", (server, device), Some((control.value)(new))),
            answer: control.is_universal.then_some((key, control)),
            settings: new,
            of_server,
        });
        // Backwards: an unset memory limit prints no line, so a line that can be recognized has to follow it.
        let gets = by_device.iter().rev().map(|&(key, control, device)| Self {
            command: control_command(control, "get", (server, device), None),
            answer: Some((key, control)),
            settings: new,
            of_server,
        });
        sets.chain(gets).collect()
    }

    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Takes the answer to this command from the front of the lines, and compares it with what the command expects.
    fn check_answer(&self, lines: &mut VecDeque<&str>) -> Result<(), Mismatch> {
        let Some((key, control)) = self.answer else {
            return Ok(());
        };
        let answer = control.take_answer(lines).ok_or(Mismatch::NoAnswer)?;
        if !(control.differs)(self.settings, &answer) {
            return Ok(());
        }
        let (name, set) = (key.name, (key.show)(self.settings));
        let is = (control.read)(&answer).ok_or(Mismatch::NoAnswer)?;
        let whose = if self.of_server { "the server's " } else { "" };
        Err(Mismatch::Differs(format!(
            "{whose}{name} was set to {set} but reads back as {is}"
        )))
    }
}

/// The first answer that is not the expected one.
#[derive(Debug)]
pub(super) enum Mismatch {
    /// Another value than the one that was set, in words.
    Differs(String),
    /// A line that is no answer to the command, such as a refusal.
    NoAnswer,
}

/// Compares answers with what the commands expect. Returns the lines after the answers.
pub(super) fn check_answers<'l>(
    commands: &[SettingCommand<'_>],
    lines: &'l [String],
) -> Result<Vec<&'l str>, Mismatch> {
    let mut lines: VecDeque<&str> = lines.iter().map(String::as_str).collect();
    for command in commands {
        command.check_answer(&mut lines)?;
    }
    Ok(lines.into())
}

/// The memory of a CUDA context, which counts against the memory limit of a program: with a lower limit no program
/// starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextMemory {
    product: &'static str,
    branch: u32,
    mebibytes: u64,
}

/// Measured on whole GPUs; MIG devices have not been measured.
// With 516M a program started and had nothing left to allocate; with 400M its first allocation failed with error 2
// (driver 580.159.04).
const MEASURED_CONTEXT: ContextMemory = ContextMemory {
    product: "NVIDIA H200",
    branch: 580,
    mebibytes: 516,
};

impl ContextMemory {
    /// Returns the reason why no program starts on a whole GPU with this limit, if its model and driver were measured.
    pub fn reason_against_limit(
        limit: MemoryLimit,
        product: &str,
        branch: Option<u32>,
    ) -> Option<String> {
        let is_this =
            product == MEASURED_CONTEXT.product && branch == Some(MEASURED_CONTEXT.branch);
        (is_this && limit.bytes() < MEASURED_CONTEXT.mebibytes << 20).then(|| {
            format!(
                "pinned-memory-limit {limit} is too small for any program: {}",
                MEASURED_CONTEXT.in_words()
            )
        })
    }

    /// Returns a warning if perhaps no program starts with this limit on another GPU.
    pub fn limit_warning(limit: MemoryLimit) -> Option<String> {
        (limit.bytes() <= MEASURED_CONTEXT.mebibytes << 20).then(|| {
            format!(
                "pinned-memory-limit {limit} may be too small for any program: {}",
                MEASURED_CONTEXT.in_words()
            )
        })
    }

    fn in_words(&self) -> String {
        format!(
            "on a whole {} with driver {}, a CUDA context uses {} MiB",
            self.product, self.branch, self.mebibytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ClientPriority;

    fn lines(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn all() -> Settings {
        Settings {
            active_thread_percentage: "33.3".parse().unwrap(),
            pinned_memory_limit: "1.5G".parse().ok(),
            client_priority: ClientPriority::BelowNormal,
            ..Settings::default()
        }
    }

    #[test]
    fn commands_are_complete_and_keyed_by_device_0() {
        let (new, plain) = (all(), Settings::default());
        let commands = SettingCommand::for_settings(1, None, &new, None);
        let commands: Vec<&str> = commands.iter().map(SettingCommand::command).collect();
        assert_eq!(
            commands,
            [
                "set_default_active_thread_percentage 33.3",
                "set_default_device_pinned_mem_limit 0 1536M",
                "set_default_client_priority 1",
                "get_default_client_priority",
                "get_default_device_pinned_mem_limit 0",
                "get_default_active_thread_percentage",
            ]
        );
        let commands = SettingCommand::for_settings(1, None, &plain, None);
        assert_eq!(
            commands.len(),
            2,
            "settings at their defaults have no commands"
        );
        let back = SettingCommand::for_settings(1, None, &plain, Some(&new));
        assert_eq!(
            back.iter().map(SettingCommand::command).collect::<Vec<_>>(),
            [
                "set_default_active_thread_percentage 100",
                "set_default_device_pinned_mem_limit 0 0",
                "set_default_client_priority 0",
                "get_default_client_priority",
                "get_default_device_pinned_mem_limit 0",
                "get_default_active_thread_percentage",
            ]
        );
        assert!(check_answers(&back, &lines("100.0 0 100.0")).is_ok());
        assert!(check_answers(&back, &lines("100.0 0 1G 100.0")).is_err());
    }

    #[test]
    fn answers_are_compared_and_the_lines_after_them_returned() {
        let new = all();
        let commands = SettingCommand::for_settings(1, None, &new, None);
        let answer = lines("33.3 1 1536M 33.3 466");
        assert_eq!(check_answers(&commands, &answer).unwrap(), ["466"]);
        let rounded = lines("33.3 1 1G 33.3");
        assert!(check_answers(&commands, &rounded).is_ok());
        for (answer, what) in [
            (
                "100.0 1 1536M 100.0",
                "active-thread-percentage was set to 33.3 but reads back as 100",
            ),
            (
                "33.3 0 1536M 33.3",
                "client-priority was set to below-normal but reads back as normal",
            ),
            (
                "33.3 1 1M 33.3",
                "pinned-memory-limit was set to 1536M but reads back as 1M",
            ),
            (
                "33.3 1 2G 33.3",
                "pinned-memory-limit was set to 1536M but reads back as 2G",
            ),
            (
                "33.3 1 33.3",
                "pinned-memory-limit was set to 1536M but reads back as none",
            ),
        ] {
            let Err(Mismatch::Differs(why)) = check_answers(&commands, &lines(answer)) else {
                panic!("{answer}");
            };
            assert_eq!(why, what);
        }
        for refusal in ["33.3 Insufficient", "Unknown", "33.3 1 1536M"] {
            let lines = lines(refusal);
            let compared = check_answers(&commands, &lines);
            assert!(matches!(compared, Err(Mismatch::NoAnswer)), "{refusal}");
        }
    }

    #[test]
    fn a_servers_own_settings_are_read_back_too() {
        let (new, plain) = (all(), Settings::default());
        let commands = SettingCommand::for_settings(1, Some(Pid(466)), &new, None);
        let Err(Mismatch::Differs(why)) = check_answers(&commands, &lines("33.3 33.3")) else {
            panic!("a limit that a server ignores goes unnoticed");
        };
        assert_eq!(
            why,
            "the server's pinned-memory-limit was set to 1536M but reads back as none"
        );
        let cleared = SettingCommand::for_settings(1, Some(Pid(466)), &plain, Some(&new));
        assert_eq!(cleared[1].command(), "set_device_pinned_mem_limit 466 0 0");
        assert!(check_answers(&cleared, &lines("100.0 100.0")).is_ok());
        assert!(check_answers(&cleared, &lines("100.0 1G 100.0")).is_err());
    }

    #[test]
    fn a_limit_is_refused_where_it_was_measured_and_warned_of_elsewhere() {
        let limit = |text: &str| text.parse::<MemoryLimit>().unwrap();
        let forbids = |text, product, branch| {
            ContextMemory::reason_against_limit(limit(text), product, Some(branch)).is_some()
        };
        assert!(forbids("515M", "NVIDIA H200", 580));
        assert!(!forbids("516M", "NVIDIA H200", 580));
        assert!(!forbids("400M", "NVIDIA H200", 595));
        assert!(!forbids("400M", "NVIDIA H100 80GB HBM3", 580));
        let warns = |text| ContextMemory::limit_warning(limit(text));
        assert_eq!(
            warns("400M").unwrap(),
            "pinned-memory-limit 400M may be too small for any program: on a whole NVIDIA H200 with driver 580, a CUDA context uses 516 MiB"
        );
        assert!(warns("516M").is_some() && warns("517M").is_none());
    }
}
