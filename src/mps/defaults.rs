use std::collections::VecDeque;

use super::order::DEVICE;
use super::settings::{ANSWER_LIMIT, PATIENCE};
use super::{Daemon, MpsError};
use crate::settings::{ClientPriority, LimitAnswer, Settings};

/// What a daemon gives to servers that it starts, as it says itself: its owner may have changed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// The active thread percentage.
    pub percentage: f64,
    /// The limit of pinned device memory.
    pub pinned_memory_limit: Option<LimitAnswer>,
    /// The priority of clients; `None` where the control program does not know of priorities.
    pub client_priority: Option<ClientPriority>,
}

/// What a control program says to a command of a later one.
const UNKNOWN: &str = "Unknown command";

impl Defaults {
    /// Settings with the values that a daemon really has.
    #[must_use]
    pub fn over(&self, settings: &Settings) -> Settings {
        Settings {
            pinned_memory_limit: self.pinned_memory_limit.map(LimitAnswer::at_least),
            client_priority: self.client_priority.unwrap_or(settings.client_priority),
            ..settings.clone()
        }
    }

    /// What asks for them, but for the percentage, which every session ends with. It stands first: a priority looks
    /// like the process id of a server.
    pub(super) fn questions() -> Vec<String> {
        vec![
            "get_default_client_priority".to_owned(),
            format!("get_default_device_pinned_mem_limit {DEVICE}"),
        ]
    }

    /// Takes the answers from the front of the lines; `None` where they are none.
    pub(super) fn read(lines: &mut VecDeque<&str>, percentage: f64) -> Option<Self> {
        let client_priority = match lines.pop_front()? {
            "0" => Some(ClientPriority::Normal),
            "1" => Some(ClientPriority::BelowNormal),
            answer if answer.starts_with(UNKNOWN) => None,
            _ => return None,
        };
        // No limit is no line.
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
    /// Asks a daemon for what it gives to servers.
    ///
    /// # Errors
    /// [`MpsError`], also where its answers are not understood.
    pub fn defaults(&self) -> Result<Defaults, MpsError> {
        let questions = Defaults::questions();
        let questions: Vec<&str> = questions.iter().map(String::as_str).collect();
        let answer = self.session(&questions, PATIENCE, ANSWER_LIMIT)?;
        let mut lines = answer.lines.iter().map(String::as_str).collect();
        let read = Defaults::read(&mut lines, answer.percentage);
        read.filter(|_| lines.is_empty())
            .ok_or_else(|| MpsError::Strange {
                asked: questions.join("\n"),
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
    fn answers_are_told_from_the_servers_behind_them() {
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
