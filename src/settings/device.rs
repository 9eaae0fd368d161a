use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::text::words;
use super::{CpuChoice, MemoryLimit, Serve, WrongValue};

/// The settings of a device's daemon. `None` stands for the default of the user who applies the profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Settings {
    /// Whose clients the device serves; by default `one-at-a-time` for root, `self` for others.
    pub serve: Option<Serve>,
    /// The time at which the MPS server starts.
    pub server: Server,
    /// The share of the device's SMs that one client may use.
    pub active_thread_percentage: Percentage,
    /// The device memory that each client may allocate; no limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_memory_limit: Option<MemoryLimit>,
    /// The priority of the clients' work against that of other programs: a hint to the GPU.
    pub client_priority: ClientPriority,
    /// The CPUs that the daemon and its server run on; by default those of the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuChoice>,
    /// The compute mode that a whole GPU has while its daemon runs; by default it is left as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<ComputeMode>,
    /// The number of clients that the device is meant for, which `status` shows. MPS has no such
    /// limit to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_clients: Option<u32>,
    /// The number of files that the daemon and its server may have open each; by default [`NOFILE`], or as many
    /// as the system lets the caller have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nofile: Option<u64>,
}

/// The number of open files that a daemon gets by default. A server with many clients needs 16384 and more, as in
/// NVIDIA's k8s device plugin and service files.
pub const NOFILE: u64 = 65536;

impl Settings {
    /// True if they limit what a client may use.
    pub fn limit_clients(&self) -> bool {
        self.active_thread_percentage != Percentage::FULL
            || self.pinned_memory_limit.is_some()
            || self.client_priority != ClientPriority::Normal
    }

    /// True if users who do not own the daemon can enter its pipe directory.
    pub fn open_to_others(&self) -> bool {
        !matches!(self.serve, Some(Serve::User(_) | Serve::Own))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            serve: None,
            server: Server::Eager,
            active_thread_percentage: Percentage::FULL,
            pinned_memory_limit: None,
            client_priority: ClientPriority::Normal,
            cpus: None,
            compute_mode: None,
            max_clients: None,
            nofile: None,
        }
    }
}

/// The priority of clients' work (MPS guide, client priority levels).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPriority {
    /// As much as anybody's.
    Normal,
    /// Less.
    BelowNormal,
}

words!(ClientPriority {
    Normal = "normal",
    BelowNormal = "below-normal",
});

impl ClientPriority {
    /// Returns the number that the control program has for it.
    pub fn number(self) -> u8 {
        match self {
            Self::Normal => 0,
            Self::BelowNormal => 1,
        }
    }
}

/// A compute mode that is set for a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// One process may compute on the GPU: the MPS server. A program outside MPS gets CUDA error 46.
    ExclusiveProcess,
}

words!(ComputeMode {
    ExclusiveProcess = "exclusive-process",
});

/// The time at which a device's MPS server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// With the daemon: the first client finds it ready.
    Eager,
    /// With the first client, which waits for it (0.2 to 0.3 s on an H200).
    Lazy,
}

words!(Server {
    Eager = "eager",
    Lazy = "lazy",
});

/// A percentage from 0.1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Percentage(f64);

impl Percentage {
    /// 100 %: no limit.
    pub const FULL: Self = Self(100.0);

    /// Returns `None` unless the value lies in [0.1, 100]. The control program takes more than 0, and answers with one
    /// decimal: what is less cannot be read back.
    pub fn new(value: f64) -> Option<Self> {
        (0.1..=100.0).contains(&value).then_some(Self(value))
    }

    /// True if the control program's answer, which has one decimal, is another percentage.
    pub fn differs_from(self, answered: f64) -> bool {
        (self.0 - answered).abs() >= 0.051
    }

    /// The number.
    pub fn value(self) -> f64 {
        self.0
    }
}

/// With one decimal where it has one: `100`, `33.3`.
impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        write!(f, "{tenths}")
    }
}

impl FromStr for Percentage {
    type Err = WrongValue;

    /// Reads `33.3` and `33.3%`.
    fn from_str(text: &str) -> Result<Self, WrongValue> {
        let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
        number
            .and_then(Self::new)
            .ok_or_else(|| WrongValue::Range("from 0.1 to 100".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_alone_limits_clients() {
        let settings = Settings::default;
        assert!(!settings().limit_clients());
        let limits = [
            Settings {
                active_thread_percentage: Percentage(50.0),
                ..settings()
            },
            Settings {
                pinned_memory_limit: "1G".parse().ok(),
                ..settings()
            },
            Settings {
                client_priority: ClientPriority::BelowNormal,
                ..settings()
            },
        ];
        assert!(limits.iter().all(Settings::limit_clients), "{limits:?}");
    }

    #[test]
    fn a_daemon_of_one_user_is_open_to_nobody_else() {
        let is_open = |serve: &str| {
            Settings {
                serve: serve.parse().ok(),
                ..Settings::default()
            }
            .open_to_others()
        };
        assert_eq!(["user:alice", "self"].map(is_open), [false; 2]);
        assert_eq!(
            ["one-at-a-time", "all", "group:lab"].map(is_open),
            [true; 3]
        );
    }
}
