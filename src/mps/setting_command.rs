use std::collections::VecDeque;

use crate::host::Pid;
use crate::settings::{ClientPriority, LimitAnswer, MemoryLimit, Percentage, Settings};

/// The number of a daemon's only device. Up to driver 555 a limit by UUID is ignored without a message.
pub(super) const DEVICE: u32 = 0;

/// A control command and its expected answer. Nothing separates the answers of one session.
pub(super) struct SettingCommand {
    command: String,
    expected: Expected,
}

enum Expected {
    /// No line, or a refusal in words.
    Nothing,
    Percentage(Percentage),
    /// No line if there is no limit.
    Limit(Option<MemoryLimit>),
    Priority(ClientPriority),
}

impl SettingCommand {
    fn new(command: String, expected: Expected) -> Self {
        Self { command, expected }
    }

    /// Returns the commands that set and read back a daemon's defaults, which are for servers that start later. `old`
    /// settings may have to be reset; a daemon that has just started has none.
    pub(super) fn defaults(new: &Settings, old: Option<&Settings>) -> Vec<Self> {
        let percentage = new.active_thread_percentage;
        let mut commands = vec![Self::new(
            format!("set_default_active_thread_percentage {percentage}"),
            Expected::Percentage(percentage),
        )];
        let limit = new.pinned_memory_limit;
        let has_limit = limit.is_some() || old.is_some_and(|old| old.pinned_memory_limit.is_some());
        if has_limit {
            let limit = in_command(limit);
            let command = format!("set_default_device_pinned_mem_limit {DEVICE} {limit}");
            commands.push(Self::new(command, Expected::Nothing));
        }
        let priority = new.client_priority;
        // Left alone unless a profile sets it: older control programs lack these commands.
        let is_set = |settings: &Settings| settings.client_priority != ClientPriority::Normal;
        let has_priority = is_set(new) || old.is_some_and(is_set);
        if has_priority {
            let command = format!("set_default_client_priority {}", priority.number());
            commands.push(Self::new(command, Expected::Nothing));
            let command = "get_default_client_priority".to_owned();
            commands.push(Self::new(command, Expected::Priority(priority)));
        }
        if has_limit {
            let command = format!("get_default_device_pinned_mem_limit {DEVICE}");
            commands.push(Self::new(command, Expected::Limit(limit)));
        }
        let command = "get_default_active_thread_percentage".to_owned();
        commands.push(Self::new(command, Expected::Percentage(percentage)));
        commands
    }

    /// Returns the commands that set and read back what a running server gives to its next clients.
    pub(super) fn of_server(server: Pid, new: &Settings, old: Option<&Settings>) -> Vec<Self> {
        let percentage = new.active_thread_percentage;
        let mut commands = vec![Self::new(
            format!("set_active_thread_percentage {server} {percentage}"),
            Expected::Percentage(percentage),
        )];
        let limit = new.pinned_memory_limit;
        if limit.is_some() || old.is_some_and(|old| old.pinned_memory_limit.is_some()) {
            let value = in_command(limit);
            commands.extend([
                Self::new(
                    format!("set_device_pinned_mem_limit {server} {DEVICE} {value}"),
                    Expected::Nothing,
                ),
                Self::new(
                    format!("get_device_pinned_mem_limit {server} {DEVICE}"),
                    Expected::Limit(limit),
                ),
            ]);
        }
        commands.push(Self::new(
            format!("get_active_thread_percentage {server}"),
            Expected::Percentage(percentage),
        ));
        commands
    }

    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Takes the answer to this command from the front of the lines. Returns `Err` with the difference, and `None` if
    /// the lines are no answer to this command.
    fn compare(&self, lines: &mut VecDeque<&str>) -> Option<Result<(), String>> {
        let difference = |key: &str, set: String, is: String| {
            if set == is {
                Ok(())
            } else {
                Err(format!("{key} was set to {set} and reads back as {is}"))
            }
        };
        let key = self.command.split_whitespace().next().unwrap_or_default();
        let key = if key.contains("_default_") {
            ""
        } else {
            "the server's "
        };
        match self.expected {
            Expected::Nothing => Some(Ok(())),
            Expected::Percentage(set) => {
                let is: f64 = lines.pop_front()?.trim().parse().ok()?;
                if set.differs_from(is) {
                    let key = format!("{key}active-thread-percentage");
                    return Some(difference(&key, set.to_string(), is.to_string()));
                }
                Some(Ok(()))
            }
            Expected::Limit(set) => {
                let is = lines.front().and_then(|line| LimitAnswer::read(line));
                if is.is_some() {
                    lines.pop_front();
                }
                if !LimitAnswer::differs(is, set) {
                    return Some(Ok(()));
                }
                let none = || "none".to_owned();
                let set = set.map_or_else(none, |limit| limit.to_string());
                let is = is.map_or_else(none, |limit| limit.to_string());
                Some(difference(&format!("{key}pinned-memory-limit"), set, is))
            }
            Expected::Priority(set) => {
                let is: u8 = lines.pop_front()?.trim().parse().ok()?;
                let word = |number: u8| {
                    let word = ClientPriority::WORDS.get(usize::from(number));
                    word.map_or_else(|| number.to_string(), |word| (*word).to_owned())
                };
                let key = format!("{key}client-priority");
                Some(difference(&key, word(set.number()), word(is)))
            }
        }
    }
}

/// Formats a limit for the control program. 0 removes a limit, also of a running server (measured on drivers 535 to
/// 615).
fn in_command(limit: Option<MemoryLimit>) -> String {
    limit.map_or_else(|| "0".to_owned(), MemoryLimit::in_mebibytes)
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
    commands: &[SettingCommand],
    lines: &'l [String],
) -> Result<Vec<&'l str>, Mismatch> {
    let mut lines: VecDeque<&str> = lines.iter().map(String::as_str).collect();
    for command in commands {
        match command.compare(&mut lines) {
            Some(Ok(())) => {}
            Some(Err(difference)) => return Err(Mismatch::Differs(difference)),
            None => return Err(Mismatch::NoAnswer),
        }
    }
    Ok(lines.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn all() -> Settings {
        Settings {
            active_thread_percentage: Percentage::new(33.3).unwrap(),
            pinned_memory_limit: "1.5G".parse().ok(),
            client_priority: ClientPriority::BelowNormal,
            ..Settings::default()
        }
    }

    #[test]
    fn commands_are_complete_and_keyed_by_device_0() {
        let commands = SettingCommand::defaults(&all(), None);
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
        let plain = SettingCommand::defaults(&Settings::default(), None);
        assert_eq!(
            plain.len(),
            2,
            "settings at their defaults have no commands"
        );
        let back = SettingCommand::defaults(&Settings::default(), Some(&all()));
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
        let commands = SettingCommand::defaults(&all(), None);
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
        let commands = SettingCommand::of_server(Pid(466), &all(), None);
        let Err(Mismatch::Differs(why)) = compare(&commands, &lines("33.3 33.3")) else {
            panic!("a limit that a server ignores goes unnoticed");
        };
        assert_eq!(
            why,
            "the server's pinned-memory-limit was set to 1536M and reads back as none"
        );
        let cleared = SettingCommand::of_server(Pid(466), &Settings::default(), Some(&all()));
        assert_eq!(cleared[1].command(), "set_device_pinned_mem_limit 466 0 0");
        assert!(compare(&cleared, &lines("100.0 100.0")).is_ok());
        assert!(compare(&cleared, &lines("100.0 1G 100.0")).is_err());
    }
}
