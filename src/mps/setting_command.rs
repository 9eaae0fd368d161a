use std::collections::VecDeque;

use crate::host::Pid;
use crate::settings::{Control, KEYS, Reported, SettingKey, Settings};

/// A control command and its expected answer. Nothing separates the answers of one session.
pub(super) struct SettingCommand<'a> {
    command: String,
    /// The setting that is answered; `None` if there is no line, or a refusal in words.
    answer: Option<(&'static SettingKey, &'static Control)>,
    settings: &'a Settings,
    of_server: bool,
}

/// Returns the commands that query a daemon's defaults.
pub(super) fn queries() -> Vec<String> {
    let queried = Reported::queried();
    queried
        .map(|(_, control)| command(control, "get", None, None))
        .collect()
}

/// `set_default_WORD ARGUMENTS VALUE`, `get_WORD SERVER ARGUMENTS`
fn command(control: &Control, verb: &str, server: Option<Pid>, value: Option<String>) -> String {
    let (default, pid) = match server {
        Some(pid) => ("", Some(pid.to_string())),
        None => ("_default", None),
    };
    let arguments = control.arguments.iter().map(ToString::to_string);
    [format!("{verb}{default}_{}", control.word)]
        .into_iter()
        .chain(pid)
        .chain(arguments)
        .chain(value)
        .collect::<Vec<_>>()
        .join(" ")
}

impl<'a> SettingCommand<'a> {
    /// Returns the commands that set and read back what a daemon gives to servers that start later, or what a running
    /// server gives to its next clients. `old` settings may have to be reset; a daemon that has just started has none.
    pub(super) fn all(server: Option<Pid>, new: &'a Settings, old: Option<&Settings>) -> Vec<Self> {
        let is_sent = |control: &Control| {
            let default = (control.value)(&Settings::default());
            let is_set = |settings| (control.value)(settings) != default;
            control.is_universal || is_set(new) || old.is_some_and(is_set)
        };
        let controls: Vec<(&SettingKey, &Control)> = KEYS
            .iter()
            .filter_map(|key| Some((key, key.control()?)))
            .filter(|(_, control)| server.is_none() || control.is_of_servers)
            .filter(|(_, control)| is_sent(control))
            .collect();
        let of = |command, answer| Self {
            command,
            answer,
            settings: new,
            of_server: server.is_some(),
        };
        let sets = controls.iter().map(|&(key, control)| {
            let command = command(control, "set", server, Some((control.value)(new)));
            of(command, control.is_universal.then_some((key, control)))
        });
        let gets = controls
            .iter()
            .rev()
            .map(|&(key, control)| of(command(control, "get", server, None), Some((key, control))));
        sets.chain(gets).collect()
    }

    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Takes the answer to this command from the front of the lines, and compares it with what the command expects.
    fn compare(&self, lines: &mut VecDeque<&str>) -> Result<(), Mismatch> {
        let Some((key, control)) = self.answer else {
            return Ok(());
        };
        let answer = control.take(lines).ok_or(Mismatch::NoAnswer)?;
        if !(control.differs)(self.settings, &answer) {
            return Ok(());
        }
        let (name, set) = (key.name, (key.show)(self.settings));
        let is = (control.read)(&answer).ok_or(Mismatch::NoAnswer)?;
        let whose = if self.of_server { "the server's " } else { "" };
        Err(Mismatch::Differs(format!(
            "{whose}{name} was set to {set} and reads back as {is}"
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
pub(super) fn compare<'l>(
    commands: &[SettingCommand<'_>],
    lines: &'l [String],
) -> Result<Vec<&'l str>, Mismatch> {
    let mut lines: VecDeque<&str> = lines.iter().map(String::as_str).collect();
    for command in commands {
        command.compare(&mut lines)?;
    }
    Ok(lines.into())
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
        let commands = SettingCommand::all(None, &new, None);
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
        let commands = SettingCommand::all(None, &plain, None);
        assert_eq!(
            commands.len(),
            2,
            "settings at their defaults have no commands"
        );
        let back = SettingCommand::all(None, &plain, Some(&new));
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
        assert!(compare(&back, &lines("100.0 0 100.0")).is_ok());
        assert!(compare(&back, &lines("100.0 0 1G 100.0")).is_err());
    }

    #[test]
    fn answers_are_compared_and_the_lines_after_them_returned() {
        let new = all();
        let commands = SettingCommand::all(None, &new, None);
        let answer = lines("33.3 1 1536M 33.3 466");
        assert_eq!(compare(&commands, &answer).unwrap(), ["466"]);
        let rounded = lines("33.3 1 1G 33.3");
        assert!(compare(&commands, &rounded).is_ok());
        for (answer, what) in [
            (
                "100.0 1 1536M 100.0",
                "active-thread-percentage was set to 33.3 and reads back as 100",
            ),
            (
                "33.3 0 1536M 33.3",
                "client-priority was set to below-normal and reads back as normal",
            ),
            (
                "33.3 1 1M 33.3",
                "pinned-memory-limit was set to 1536M and reads back as 1M",
            ),
            (
                "33.3 1 2G 33.3",
                "pinned-memory-limit was set to 1536M and reads back as 2G",
            ),
            (
                "33.3 1 33.3",
                "pinned-memory-limit was set to 1536M and reads back as none",
            ),
        ] {
            let Err(Mismatch::Differs(why)) = compare(&commands, &lines(answer)) else {
                panic!("{answer}");
            };
            assert_eq!(why, what);
        }
        for refusal in ["33.3 Insufficient", "Unknown", "33.3 1 1536M"] {
            let lines = lines(refusal);
            let compared = compare(&commands, &lines);
            assert!(matches!(compared, Err(Mismatch::NoAnswer)), "{refusal}");
        }
    }

    #[test]
    fn a_servers_own_settings_are_read_back_too() {
        let (new, plain) = (all(), Settings::default());
        let commands = SettingCommand::all(Some(Pid(466)), &new, None);
        let Err(Mismatch::Differs(why)) = compare(&commands, &lines("33.3 33.3")) else {
            panic!("a limit that a server ignores goes unnoticed");
        };
        assert_eq!(
            why,
            "the server's pinned-memory-limit was set to 1536M and reads back as none"
        );
        let cleared = SettingCommand::all(Some(Pid(466)), &plain, Some(&new));
        assert_eq!(cleared[1].command(), "set_device_pinned_mem_limit 466 0 0");
        assert!(compare(&cleared, &lines("100.0 100.0")).is_ok());
        assert!(compare(&cleared, &lines("100.0 1G 100.0")).is_err());
    }
}
