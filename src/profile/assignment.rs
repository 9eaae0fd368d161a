use std::str::FromStr;

use crate::host::nearest;
use crate::settings::{KEYS, SettingKey, Settings};

/// `KEY=VALUE`: a setting of a running daemon, on the command line.
#[derive(Clone, Debug)]
pub struct SettingAssignment {
    key: &'static SettingKey,
    value: String,
}

impl SettingAssignment {
    /// Returns the keys that can be changed while a daemon runs.
    pub fn keys() -> Vec<&'static str> {
        let live = KEYS.iter().filter(|key| key.is_live());
        live.map(|key| key.name).collect()
    }

    /// Puts the value into settings.
    pub fn change(&self, settings: &mut Settings) {
        let checked = (self.key.parse)(settings, &self.value);
        debug_assert_eq!(checked, Ok(()));
    }
}

impl FromStr for SettingAssignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| "a setting is written KEY=VALUE".to_owned())?;
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let live = Self::keys();
            return Err(match nearest(name, live.iter().copied()) {
                Some(near) => format!("there is no setting {name}: did you mean {near}?"),
                None => format!(
                    "there is no setting {name}: the settings are {}",
                    live.join(", ")
                ),
            });
        };
        if !key.is_live() {
            return Err(format!(
                "{name} cannot be changed while the daemon runs: write it into the profile and run up, which starts \
                 the daemon again"
            ));
        }
        (key.parse)(&mut Settings::default(), value).map_err(|wrong| wrong.of(name, value))?;
        Ok(Self {
            key,
            value: value.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ClientPriority;

    #[test]
    fn what_cannot_be_set_says_why() {
        for (text, why) in [
            ("active-thread-percentage", "a setting is written KEY=VALUE"),
            ("=25", "a setting is written KEY=VALUE"),
            (
                "active-thread-percentage=0",
                "active-thread-percentage must be from 0.1 to 100",
            ),
            (
                "active-thread-percentage=NaN",
                "active-thread-percentage must be from 0.1 to 100",
            ),
            (
                "pinned-memory-limit=2g",
                "pinned-memory-limit = \"2g\": its unit is M (MiB) or G (GiB): 2G?",
            ),
            (
                "client-priority=7",
                "client-priority = \"7\" is not one of \"normal\", \"below-normal\"",
            ),
            ("max-clients=0", "max-clients must be from 1 to 1024"),
            (
                "active-threads-percentage=5",
                "there is no setting active-threads-percentage: did you mean active-thread-percentage?",
            ),
        ] {
            assert_eq!(
                text.parse::<SettingAssignment>().unwrap_err(),
                why,
                "{text}"
            );
        }
        assert!(
            "serve=all"
                .parse::<SettingAssignment>()
                .unwrap_err()
                .contains("run up")
        );
    }

    #[test]
    fn what_is_said_is_what_is_set() {
        let mut settings = Settings::default();
        for text in [
            "active-thread-percentage=33.3",
            "pinned-memory-limit=1.5G",
            "client-priority=below-normal",
            "max-clients=8",
        ] {
            let assignment: SettingAssignment = text.parse().unwrap();
            assignment.change(&mut settings);
        }
        let wanted = Settings {
            active_thread_percentage: "33.3".parse().unwrap(),
            pinned_memory_limit: "1536M".parse().ok(),
            client_priority: ClientPriority::BelowNormal,
            max_clients: Some(8),
            ..Settings::default()
        };
        assert_eq!(settings, wanted);
        let none: SettingAssignment = "pinned-memory-limit=none".parse().unwrap();
        none.change(&mut settings);
        assert_eq!(settings.pinned_memory_limit, None);
    }
}
