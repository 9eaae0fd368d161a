use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a device's daemon shall serve. `None` is the default of whoever applies the profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// Whose clients the device serves; by default `one-at-a-time` for root, `self` for others.
    pub serve: Option<Serve>,
    /// When the MPS server starts.
    pub server: Server,
    /// The share of the device's SMs that one client may use.
    pub active_thread_percentage: Percentage,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            serve: None,
            server: Server::Eager,
            active_thread_percentage: Percentage::FULL,
        }
    }
}

/// Whose clients a device serves (DESIGN 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serve {
    /// Any user, one user at a time: the MPS default. A second user's program waits in `cuInit`.
    OneAtATime,
    /// Every user at once through one shared server (`-multiuser-server`): one fault domain.
    All,
    /// The user who runs the daemon, alone.
    #[serde(rename = "self")]
    Own,
}

impl Serve {
    /// Every value, as it is written.
    pub const WORDS: [&str; 3] = ["one-at-a-time", "all", "self"];
}

impl fmt::Display for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneAtATime => "one-at-a-time",
            Self::All => "all",
            Self::Own => "self",
        })
    }
}

impl FromStr for Serve {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "one-at-a-time" => Ok(Self::OneAtATime),
            "all" => Ok(Self::All),
            "self" => Ok(Self::Own),
            _ => Err(()),
        }
    }
}

/// When a device's MPS server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// With the daemon: the first client finds it ready.
    Eager,
    /// With the first client, which waits for it (0.2 to 0.3 s on an H200).
    Lazy,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eager => "eager",
            Self::Lazy => "lazy",
        })
    }
}

/// A percentage from 0.1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Percentage(f64);

impl Percentage {
    /// 100 %: no limit.
    pub const FULL: Self = Self(100.0);

    /// `None` unless the value lies in [0.1, 100]. The control program takes more than 0, and answers
    /// with one decimal: what is less cannot be read back.
    pub fn new(value: f64) -> Option<Self> {
        (0.1..=100.0).contains(&value).then_some(Self(value))
    }

    /// Whether the control program's answer, which has one decimal, is another percentage.
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
