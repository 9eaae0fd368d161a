use std::collections::VecDeque;

use super::session::{ANSWER_LIMIT, PATIENCE};
use super::setting_command::DEVICE;
use super::{Daemon, MpsError};
use crate::settings::{ClientPriority, LimitAnswer, Settings};

/// The settings that a daemon gives to new servers, as it reports them: its owner may have changed them.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    pub percentage: f64,
    pub pinned_memory_limit: Option<LimitAnswer>,
    /// `None` if the control program has no client priorities.
    pub client_priority: Option<ClientPriority>,
}

/// The start of the answer to a command that the control program lacks.
const UNKNOWN: &str = "Unknown command";

impl Defaults {
    /// Returns the settings with the values that the daemon has.
    #[must_use]
    pub fn over(&self, settings: &Settings) -> Settings {
        Settings {
            pinned_memory_limit: self.pinned_memory_limit.map(LimitAnswer::at_least),
            client_priority: self.client_priority.unwrap_or(settings.client_priority),
            ..settings.clone()
        }
    }

    /// Returns the commands that query the defaults, except for the percentage, which ends every session. They must come
    /// first: a priority looks like the pid of a server.
    pub(super) fn queries() -> Vec<String> {
        vec![
            "get_default_client_priority".to_owned(),
            format!("get_default_device_pinned_mem_limit {DEVICE}"),
        ]
    }

    /// Takes the answers from the front of the lines. Returns `None` if they are something else.
    pub(super) fn read(lines: &mut VecDeque<&str>, percentage: f64) -> Option<Self> {
        let client_priority = match lines.pop_front()? {
            "0" => Some(ClientPriority::Normal),
            "1" => Some(ClientPriority::BelowNormal),
            answer if answer.starts_with(UNKNOWN) => None,
            _ => return None,
        };
        // Without a limit there is no line.
        let first = lines.front().copied().unwrap_or_default();
        let pinned_memory_limit = LimitAnswer::read(first);
        if pinned_memory_limit.is_some() || first.starts_with(UNKNOWN) {
            lines.pop_front();
        }
        Some(Self {
            percentage,
            pinned_memory_limit,
            client_priority,
        })
    }
}

impl Daemon {
    /// Asks the daemon for its defaults.
    pub fn defaults(&self) -> Result<Defaults, MpsError> {
        let queries = Defaults::queries();
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        let answer = self.session(&queries, PATIENCE, ANSWER_LIMIT)?;
        let mut lines = answer.lines.iter().map(String::as_str).collect();
        let read = Defaults::read(&mut lines, answer.percentage);
        read.filter(|_| lines.is_empty())
            .ok_or_else(|| MpsError::Unexpected {
                asked: queries.join("\n"),
                answer: answer.lines.join("\n"),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<Defaults>, usize) {
        let mut lines: VecDeque<&str> = text.lines().collect();
        (Defaults::read(&mut lines, 100.0), lines.len())
    }

    fn defaults(limit: Option<&str>, client_priority: Option<ClientPriority>) -> Defaults {
        Defaults {
            percentage: 100.0,
            pinned_memory_limit: limit.and_then(LimitAnswer::read),
            client_priority,
        }
    }

    #[test]
    fn answers_are_separated_from_the_servers_after_them() {
        let (normal, below) = (ClientPriority::Normal, ClientPriority::BelowNormal);
        assert_eq!(read("0\n466\n"), (Some(defaults(None, Some(normal))), 1));
        assert_eq!(
            read("1\n2G\n466\n"),
            (Some(defaults(Some("2G"), Some(below))), 1)
        );
        assert_eq!(read("0\n"), (Some(defaults(None, Some(normal))), 0));
    }

    #[test]
    fn older_control_programs_know_less() {
        let unknown = "Unknown command \"get_default_client_priority\"\n";
        let nothing = Some(defaults(None, None));
        assert_eq!(read(&format!("{unknown}466\n")), (nothing.clone(), 1));
        assert_eq!(read(&format!("{unknown}{unknown}")), (nothing, 0));
        assert_eq!(read("466\n").0, None);
    }
}
