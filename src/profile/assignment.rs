use std::str::FromStr;

use super::nearest;
use crate::settings::{ClientPriority, MemoryLimit, Percentage, Settings};

/// `KEY=VALUE`: a setting of a running daemon, said by hand.
#[derive(Clone, Debug, PartialEq)]
pub enum Assignment {
    /// `active-thread-percentage=33.3`
    ActiveThreadPercentage(Percentage),
    /// `pinned-memory-limit=1.5G`, or `none`
    PinnedMemoryLimit(Option<MemoryLimit>),
    /// `client-priority=below-normal`
    ClientPriority(ClientPriority),
    /// `max-clients=8`, or `none`
    MaxClients(Option<u32>),
}

/// The keys that take another daemon.
const OTHERS: [&str; 5] = ["serve", "server", "cpus", "compute-mode", "nofile"];

impl Assignment {
    /// The keys that can be changed while a daemon runs.
    pub const KEYS: [&str; 4] = [
        "active-thread-percentage",
        "pinned-memory-limit",
        "client-priority",
        "max-clients",
    ];

    /// Its key.
    pub fn key(&self) -> &'static str {
        Self::KEYS[match self {
            Self::ActiveThreadPercentage(_) => 0,
            Self::PinnedMemoryLimit(_) => 1,
            Self::ClientPriority(_) => 2,
            Self::MaxClients(_) => 3,
        }]
    }

    /// Puts it into settings.
    pub fn change(&self, settings: &mut Settings) {
        match self {
            Self::ActiveThreadPercentage(percentage) => {
                settings.active_thread_percentage = *percentage;
            }
            Self::PinnedMemoryLimit(limit) => settings.pinned_memory_limit = *limit,
            Self::ClientPriority(priority) => settings.client_priority = *priority,
            Self::MaxClients(most) => settings.max_clients = *most,
        }
    }
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| "a setting is written KEY=VALUE".to_owned())?;
        match key {
            "active-thread-percentage" => {
                let number = value.strip_suffix('%').unwrap_or(value).parse().ok();
                let percentage = number.and_then(Percentage::new);
                percentage
                    .map(Self::ActiveThreadPercentage)
                    .ok_or_else(|| format!("{key} must be from 0.1 to 100"))
            }
            "pinned-memory-limit" if value == "none" => Ok(Self::PinnedMemoryLimit(None)),
            "pinned-memory-limit" => {
                let limit = value.parse().map(Some);
                limit.map(Self::PinnedMemoryLimit)
            }
            "client-priority" => match value {
                "normal" => Ok(Self::ClientPriority(ClientPriority::Normal)),
                "below-normal" => Ok(Self::ClientPriority(ClientPriority::BelowNormal)),
                _ => Err(format!("{key} is {}", ClientPriority::WORDS.join(" or "))),
            },
            "max-clients" if value == "none" => Ok(Self::MaxClients(None)),
            "max-clients" => match value.parse() {
                Ok(most @ 1..=1024) => Ok(Self::MaxClients(Some(most))),
                _ => Err(format!("{key} must be from 1 to 1024")),
            },
            key if OTHERS.contains(&key) => Err(format!(
                "{key} cannot be changed while the daemon runs: write it into the profile and run up, which \
                 starts the daemon again"
            )),
            key => Err(match nearest(key, Self::KEYS) {
                Some(near) => format!("there is no setting {key}: did you mean {near}?"),
                None => format!(
                    "there is no setting {key}: there are {}",
                    Self::KEYS.join(", ")
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                "its unit is M (MiB) or G (GiB): 2G?",
            ),
            (
                "client-priority=7",
                "client-priority is normal or below-normal",
            ),
            ("max-clients=0", "max-clients must be from 1 to 1024"),
            (
                "active-threads-percentage=5",
                "there is no setting active-threads-percentage: did you mean active-thread-percentage?",
            ),
        ] {
            assert_eq!(text.parse::<Assignment>(), Err(why.to_owned()), "{text}");
        }
        assert!(
            "serve=all"
                .parse::<Assignment>()
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
            let assignment: Assignment = text.parse().unwrap();
            assert!(text.starts_with(assignment.key()));
            assignment.change(&mut settings);
        }
        let wanted = Settings {
            active_thread_percentage: Percentage::new(33.3).unwrap(),
            pinned_memory_limit: "1536M".parse().ok(),
            client_priority: ClientPriority::BelowNormal,
            max_clients: Some(8),
            ..Settings::default()
        };
        assert_eq!(settings, wanted);
        let none: Assignment = "pinned-memory-limit=none".parse().unwrap();
        none.change(&mut settings);
        assert_eq!(settings.pinned_memory_limit, None);
    }
}
