//! The settings that a daemon reports, compared with wanted ones.

use std::collections::{BTreeMap, VecDeque};

use super::key::{Control, SettingKey};
use super::keys::{ACTIVE_THREAD_PERCENTAGE, KEYS, PINNED_MEMORY_LIMIT};
use super::{LimitAnswer, Settings};

/// The settings that a daemon gives to new servers, as it reports them: its owner may have changed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// The answers by key, without those that the control program lacks.
    answers: BTreeMap<&'static str, String>,
}

/// The start of the answer to a command that the control program lacks.
const UNKNOWN: &str = "Unknown command";

impl Reported {
    /// Returns the settings that are queried, in that order: all but the percentage, which ends every session. They
    /// come before the list of servers: a priority looks like the pid of one.
    pub fn queried() -> impl Iterator<Item = (&'static SettingKey, &'static Control)> {
        let controls = KEYS.iter().filter_map(|key| Some((key, key.control()?)));
        controls.filter(|(_, control)| !control.is_universal).rev()
    }

    /// Takes the answers to these queries from the front of the lines. Returns `None` if they are something else.
    pub fn read(lines: &mut VecDeque<&str>, percentage: f64) -> Option<Self> {
        let mut answers = BTreeMap::from([(ACTIVE_THREAD_PERCENTAGE, percentage.to_string())]);
        for (key, control) in Self::queried() {
            if lines.front().is_some_and(|line| line.starts_with(UNKNOWN)) {
                lines.pop_front();
            } else {
                answers.insert(key.name, control.take(lines)?);
            }
        }
        Some(Self { answers })
    }

    /// Returns the settings with the values that the daemon has.
    #[must_use]
    pub fn over(&self, settings: &Settings) -> Settings {
        let mut over = settings.clone();
        for (key, control, answer) in self.rows() {
            let value = (control.read)(answer).unwrap_or_default();
            // Other values than a profile can give stay unknown.
            let _ = (key.parse)(&mut over, &value);
        }
        over
    }

    /// True if the daemon has answered with its value of a setting.
    pub fn has(&self, key: &SettingKey) -> bool {
        self.answers.contains_key(key.name)
    }

    /// Returns the value of a setting if it is not that of these settings.
    pub fn difference(&self, key: &SettingKey, settings: &Settings) -> Option<String> {
        let (_, control, answer) = self.rows().find(|(row, ..)| row.name == key.name)?;
        (control.differs)(settings, answer).then(|| (control.read)(answer))?
    }

    /// Returns the active thread percentage.
    pub fn percentage(&self) -> Option<f64> {
        self.answers.get(ACTIVE_THREAD_PERCENTAGE)?.parse().ok()
    }

    /// Returns the memory limit, if there is one.
    pub fn memory_limit(&self) -> Option<LimitAnswer> {
        LimitAnswer::read(self.answers.get(PINNED_MEMORY_LIMIT)?)
    }

    /// True if the memory limit is known not to be that of these settings.
    pub fn has_other_memory_limit(&self, settings: &Settings) -> bool {
        let mut rows = self.rows();
        rows.any(|(key, control, answer)| {
            key.name == PINNED_MEMORY_LIMIT && (control.differs)(settings, answer)
        })
    }

    /// Makes the memory limit exact by what a server logged.
    pub fn refine(&mut self, logged_bytes: u64) {
        if let Some(limit) = self.memory_limit() {
            let refined = limit.refined(logged_bytes).in_answer();
            self.answers.insert(PINNED_MEMORY_LIMIT, refined);
        }
    }

    fn rows(&self) -> impl Iterator<Item = (&'static SettingKey, &'static Control, &str)> {
        KEYS.iter()
            .filter_map(|key| Some((key, key.control()?, self.answers.get(key.name)?.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ClientPriority;

    fn read(text: &str) -> (Option<Reported>, usize) {
        let mut lines: VecDeque<&str> = text.lines().collect();
        (Reported::read(&mut lines, 100.0), lines.len())
    }

    fn reported(limit: Option<&str>, priority: Option<&str>) -> Reported {
        let answers = [
            (ACTIVE_THREAD_PERCENTAGE, Some("100")),
            (PINNED_MEMORY_LIMIT, limit),
            ("client-priority", priority),
        ];
        let known = answers.map(|(key, answer)| Some((key, answer?.to_owned())));
        Reported {
            answers: known.into_iter().flatten().collect(),
        }
    }

    #[test]
    fn answers_are_separated_from_the_servers_after_them() {
        let none = reported(Some(""), Some("0"));
        assert_eq!(read("0\n466\n"), (Some(none.clone()), 1));
        assert_eq!(
            read("1\n2G\n466\n"),
            (Some(reported(Some("2G"), Some("1"))), 1)
        );
        assert_eq!(read("0\n"), (Some(none), 0));
    }

    #[test]
    fn older_control_programs_know_less() {
        let unknown = "Unknown command \"get_default_client_priority\"\n";
        let limit = reported(Some(""), None);
        assert_eq!(read(&format!("{unknown}466\n")), (Some(limit), 1));
        let nothing = reported(None, None);
        assert_eq!(read(&format!("{unknown}{unknown}")), (Some(nothing), 0));
        assert_eq!(read("466\n").0, None);
    }

    #[test]
    fn the_values_of_a_daemon_replace_those_recorded() {
        let (reported, _) = read("1\n2G\n");
        let over = reported.unwrap().over(&Settings::default());
        let wanted = Settings {
            pinned_memory_limit: "2G".parse().ok(),
            client_priority: ClientPriority::BelowNormal,
            ..Settings::default()
        };
        assert_eq!(over, wanted);
    }
}
