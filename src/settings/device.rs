//! The settings of a device, and those that its daemon reports.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::keys::{
    ACTIVE_THREAD_PERCENTAGE, Control, KEYS, MAX_CLIENTS, PINNED_MEMORY_LIMIT, SettingKey,
};
use super::share::{DeviceSize, Oversubscription, Share, describe_share};
use super::text::{serde_as_text, words};
use super::{CpuChoice, LimitAnswer, MemoryLimit, WrongValue};

/// The settings of a device's daemon. `None` stands for the default of the user who applies the profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Settings {
    /// Whose clients the device serves; by default `one-at-a-time` for root, `self` for others.
    pub serve: Option<Serve>,
    /// The time at which the MPS server starts.
    pub server: Server,
    /// The number of clients that the device is meant for, each with an equal part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// The factor by which SMs are given out more than once, beside `share`.
    #[serde(skip_serializing_if = "Oversubscription::is_none")]
    pub oversubscribe: Oversubscription,
    /// The part of the device's SMs that one client may use, in percent. Like the memory limit it follows from `share` unless
    /// somebody has given it.
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
    /// The form in which programs see the device in `CUDA_VISIBLE_DEVICES`.
    #[serde(skip_serializing_if = "Visible::is_default")]
    pub visible: Visible,
}

/// The number of open files that a daemon gets by default. A server with many clients needs 16384 and more, as in
/// NVIDIA's k8s device plugin and service files.
pub const NOFILE: u64 = 65536;

impl Settings {
    /// True if they limit what a client may use.
    pub fn has_client_limits(&self) -> bool {
        self.active_thread_percentage != Percentage::FULL
            || self.pinned_memory_limit.is_some()
            || self.client_priority != ClientPriority::Normal
    }

    /// Sets the number of clients that share the device, or removes it. Whatever a share decides is then as if nobody had
    /// given it; what somebody has given stays without one.
    pub(super) fn share_among(&mut self, clients: Option<u32>) {
        let new_share = clients.map(Share::for_clients);
        let Some(deciding) = new_share.or(self.share) else {
            return;
        };
        if deciding.decides(ACTIVE_THREAD_PERCENTAGE) {
            self.active_thread_percentage = Percentage::FULL;
        }
        if deciding.decides(PINNED_MEMORY_LIMIT) {
            self.pinned_memory_limit = None;
        }
        if deciding.decides(MAX_CLIENTS) {
            self.max_clients = clients;
        }
        if new_share.is_none() {
            self.oversubscribe = Oversubscription::NONE;
        }
        self.share = new_share;
    }

    /// Returns the settings on a device of a size that is asked for if need be: what `share` decides follows from it.
    pub fn for_device_size(&self, size: impl FnOnce() -> DeviceSize) -> Cow<'_, Self> {
        let Some(share) = self.share else {
            return Cow::Borrowed(self);
        };
        let device = size();
        let mut settings = self.clone();
        if share.decides(ACTIVE_THREAD_PERCENTAGE) {
            settings.active_thread_percentage =
                device.percentage_of_each(share.clients, self.oversubscribe);
        }
        if share.decides(PINNED_MEMORY_LIMIT) {
            settings.pinned_memory_limit = device.memory_of_each(share.clients);
        }
        settings.share = Some(Share { device, ..share });
        Cow::Owned(settings)
    }

    /// Describes what each client gets by `share`, and what of the device is in no share; `None` without a share.
    pub fn share_in_words(&self) -> Option<String> {
        describe_share(self)
    }

    /// Returns the number of clients that the device is meant for: the larger one of `share` and `max-clients`.
    pub fn intended_clients(&self) -> Option<u32> {
        self.share.map(|share| share.clients).max(self.max_clients)
    }

    /// Returns the memory limit that somebody has given: not one that follows from `share`.
    pub fn given_memory_limit(&self) -> Option<MemoryLimit> {
        let follows = self
            .share
            .is_some_and(|share| share.decides(PINNED_MEMORY_LIMIT));
        if follows {
            None
        } else {
            self.pinned_memory_limit
        }
    }

    /// True if users who do not own the daemon can enter its pipe directory.
    pub fn is_open_to_others(&self) -> bool {
        self.serve != Some(Serve::Own)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            serve: None,
            server: Server::Eager,
            share: None,
            oversubscribe: Oversubscription::NONE,
            active_thread_percentage: Percentage::FULL,
            pinned_memory_limit: None,
            client_priority: ClientPriority::Normal,
            cpus: None,
            compute_mode: None,
            max_clients: None,
            nofile: None,
            visible: Visible::Uuid,
        }
    }
}

/// The value of `CUDA_VISIBLE_DEVICES` that programs get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visible {
    /// The device's UUID: where the daemon is gone, the program is still on its own device.
    Uuid,
    /// `0`, for programs that read the variable as numbers: where the daemon is gone, that is the node's first GPU.
    Index,
}

words!(Visible {
    Uuid = "uuid",
    Index = "index",
});

impl Visible {
    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes it like this"
    )]
    fn is_default(&self) -> bool {
        *self == Self::Uuid
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
    pub fn to_number(self) -> u8 {
        match self {
            Self::Normal => 0,
            Self::BelowNormal => 1,
        }
    }

    /// Returns the priority with that number.
    pub fn from_number(text: &str) -> Option<Self> {
        [Self::Normal, Self::BelowNormal]
            .into_iter()
            .find(|priority| priority.to_number().to_string() == text)
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
    /// With the daemon. If users take turns, it is for the user who applies the profile.
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

    /// Returns so many tenths of a percent, from 1 to 1000.
    pub(super) fn from_tenths(tenths: u32) -> Self {
        Self(f64::from(tenths.clamp(1, 1000)) / 10.0)
    }

    /// Returns the tenths of a percent, rounded down.
    pub fn to_tenths(self) -> u32 {
        // Slightly more, for what is not exact in binary.
        let most = self.0 * 10.0 + 0.001;
        let tenths = (1..=1000).rev().find(|&tenths| f64::from(tenths) <= most);
        tenths.unwrap_or(1)
    }

    /// True if the control program's answer, which has one decimal, is another percentage.
    pub fn differs_from(self, answered: f64) -> bool {
        (self.0 - answered).abs() >= 0.051
    }

    /// The number.
    pub fn as_f64(self) -> f64 {
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
        let text = text.trim();
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        let number = number.parse().ok();
        number
            .and_then(Self::new)
            .ok_or_else(|| WrongValue::Range("from 0.1 to 100".to_owned()))
    }
}

/// The users that a device serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serve {
    /// Any user, one user at a time: the MPS default. A second user's program waits in `cuInit`.
    OneAtATime,
    /// Every user at once through one shared server (`-multiuser-server`): one fault domain.
    All,
    /// The members of a group at once, through one shared server of root's that only they can reach.
    Group(String),
    /// One user alone, by an access control list on the directories of root's daemon.
    User(String),
    /// The user who runs the daemon, alone.
    Own,
}

impl Serve {
    /// Every value, as it is written.
    pub const WORDS: &[&str] = &["one-at-a-time", "all", "group:NAME", "user:NAME", "self"];

    /// True if all users of `before` are served.
    pub fn keeps_users_of(&self, before: &Self) -> bool {
        self == before || matches!(self, Self::OneAtATime | Self::All)
    }

    /// True if one server of root serves several users at once (`-multiuser-server`).
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::All | Self::Group(_))
    }

    /// Describes the pods that have to wait, if there may be some: the device plugin does not know the users of pods.
    pub fn limits_of_pods(&self) -> Option<String> {
        match self {
            Self::User(name) => Some(format!(
                "pods need runAsUser with the uid of {name}; a pod of uid 0 also becomes a client, and the programs \
                 of {name} then wait"
            )),
            Self::OneAtATime => Some(
                "a second user's pod waits until the programs of the first user's pods have exited; serve = \"all\" lets users share"
                    .to_owned(),
            ),
            Self::All | Self::Group(_) | Self::Own => None,
        }
    }
}

impl fmt::Display for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneAtATime => f.write_str("one-at-a-time"),
            Self::All => f.write_str("all"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::User(name) => write!(f, "user:{name}"),
            Self::Own => f.write_str("self"),
        }
    }
}

impl FromStr for Serve {
    type Err = WrongValue;

    fn from_str(text: &str) -> Result<Self, WrongValue> {
        match (text, text.split_once(':')) {
            ("one-at-a-time", _) => Ok(Self::OneAtATime),
            ("all", _) => Ok(Self::All),
            ("self", _) => Ok(Self::Own),
            (_, Some(("user", name))) if is_name(name) => Ok(Self::User(name.to_owned())),
            (_, Some(("group", name))) if is_name(name) => Ok(Self::Group(name.to_owned())),
            (names, None) | (_, Some(("user" | "group", names)))
                if names.trim().contains([',', ' ']) =>
            {
                Err(WrongValue::Other(
                    "a device serves one user or one group; \"group:NAME\" is for several users"
                        .to_owned(),
                ))
            }
            _ => Err(WrongValue::Word(Self::WORDS)),
        }
    }
}

/// True if a text can name a user or a group.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || ":/,".contains(c))
}

serde_as_text!(Serve);

/// The settings that a daemon gives to new servers, as it reports them: its owner may have changed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// The answers by key, without those that the control program lacks.
    answers: BTreeMap<&'static str, String>,
}

/// The start of the answer to a command that the control program lacks.
const UNKNOWN_COMMAND: &str = "Unknown command";

impl Reported {
    /// Returns the settings that are queried, in that order: all but the percentage, which ends every session. They
    /// come before the list of servers: a priority looks like the pid of one.
    pub fn queried_settings() -> impl Iterator<Item = (&'static SettingKey, &'static Control)> {
        KEYS.iter()
            .filter_map(|key| Some((key, key.control_commands()?)))
            .filter(|(_, control)| !control.is_universal)
            .rev()
    }

    /// Takes the answers of a daemon of so many devices to these queries from the front of the lines. Returns `None` if they are
    /// something else.
    pub fn parse_answers(
        devices: usize,
        lines: &mut VecDeque<&str>,
        percentage: f64,
    ) -> Option<Self> {
        let mut answers = BTreeMap::from([(ACTIVE_THREAD_PERCENTAGE, percentage.to_string())]);
        for (key, control) in Self::queried_settings() {
            let is_unknown = |line: &&str| line.starts_with(UNKNOWN_COMMAND);
            if lines.front().is_some_and(is_unknown) {
                for _ in control.device_numbers(devices) {
                    lines.pop_front();
                }
            } else {
                answers.insert(key.name, control.take_answers(devices, lines)?);
            }
        }
        Some(Self { answers })
    }

    /// Returns the settings with the values that the daemon has.
    #[must_use]
    pub fn over(&self, settings: &Settings) -> Settings {
        let mut over = settings.clone();
        for (key, control, answer) in self.answered_settings() {
            let value = (control.read)(answer).unwrap_or_default();
            // Other values than a profile can give stay unknown.
            let _ = (key.parse)(&mut over, &value);
        }
        over
    }

    /// Returns the value of a setting if it is not that of these settings.
    pub fn differing_value(&self, key: &SettingKey, settings: &Settings) -> Option<String> {
        let (_, control, answer) = self
            .answered_settings()
            .find(|(row, ..)| row.name == key.name)?;
        if !(control.differs)(settings, answer) {
            return None;
        }
        (control.read)(answer)
    }

    /// Returns the active thread percentage.
    pub fn active_thread_percentage(&self) -> Option<f64> {
        self.answers.get(ACTIVE_THREAD_PERCENTAGE)?.parse().ok()
    }

    /// Returns the memory limit, if there is one.
    pub fn memory_limit(&self) -> Option<LimitAnswer> {
        LimitAnswer::parse(self.answers.get(PINNED_MEMORY_LIMIT)?)
    }

    /// True if the memory limit is known not to be that of these settings.
    pub fn has_other_memory_limit(&self, settings: &Settings) -> bool {
        let mut rows = self.answered_settings();
        rows.any(|(key, control, answer)| {
            key.name == PINNED_MEMORY_LIMIT && (control.differs)(settings, answer)
        })
    }

    /// Makes the memory limit exact by what a server logged.
    pub fn refine_memory_limit(&mut self, logged_bytes: u64) {
        if let Some(limit) = self.memory_limit() {
            let refined = limit.with_exact_bytes(logged_bytes).format_answer();
            self.answers.insert(PINNED_MEMORY_LIMIT, refined);
        }
    }

    fn answered_settings(
        &self,
    ) -> impl Iterator<Item = (&'static SettingKey, &'static Control, &str)> {
        KEYS.iter().filter_map(|key| {
            Some((
                key,
                key.control_commands()?,
                self.answers.get(key.name)?.as_str(),
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{ClientPriority, *};

    #[test]
    fn each_limit_alone_limits_clients() {
        let settings = Settings::default;
        assert!(!settings().has_client_limits());
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
        assert!(limits.iter().all(Settings::has_client_limits), "{limits:?}");
    }

    #[test]
    fn a_users_own_daemon_is_open_to_nobody_else() {
        let is_open = |serve: &str| {
            Settings {
                serve: serve.parse().ok(),
                ..Settings::default()
            }
            .is_open_to_others()
        };
        let open_ones = ["one-at-a-time", "all", "group:lab", "user:alice"];
        assert_eq!(open_ones.map(is_open), [true; 4]);
        assert!(!is_open("self"));
    }

    #[test]
    fn a_user_or_group_has_a_name_of_one_word() {
        let wrong = ["", "a b", "a/b", "a:b", "a,b", "a\tb"];
        for text in wrong
            .iter()
            .flat_map(|name| [format!("user:{name}"), format!("group:{name}")])
        {
            assert!(text.parse::<Serve>().is_err(), "{text}");
        }
        assert_eq!(
            "user:a-b.c_1".parse().ok(),
            Some(Serve::User("a-b.c_1".into()))
        );
        assert_eq!("group:lab$".parse().ok(), Some(Serve::Group("lab$".into())));
    }

    fn read(text: &str) -> (Option<Reported>, usize) {
        let mut lines: VecDeque<&str> = text.lines().collect();
        (Reported::parse_answers(1, &mut lines, 100.0), lines.len())
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
