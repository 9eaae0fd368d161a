//! The table of settings: a row per key.

use std::collections::VecDeque;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::device::ComputeMode;
use super::text::display_or;
use super::{
    ClientPriority, LimitAnswer, MemoryLimit, Oversubscription, Serve, Server, Settings, Share,
    Visible, WrongValue,
};

/// Every setting, in the order of the manual.
pub const KEYS: &[SettingKey] = &[
    SettingKey {
        name: SERVE,
        form: SettingForm::Text,
        words: Serve::WORDS,
        parse: |settings, text| set_field(&mut settings.serve, text.parse().map(Some)),
        show: |settings| display_or(settings.serve.as_ref(), "the default"),
        update: Update::Plan,
    },
    SettingKey {
        name: "server",
        form: SettingForm::Text,
        words: Server::WORDS,
        parse: |settings, text| set_field(&mut settings.server, text.parse()),
        show: |settings| settings.server.to_string(),
        update: Update::Plan,
    },
    SettingKey {
        name: SHARE,
        form: SettingForm::WholeNumber,
        words: &[],
        parse: |settings, text| {
            settings.share_among(parse_or_none("none", text, |text| {
                parse_in_range(CLIENT_COUNT_RANGE, text)
            })?);
            Ok(())
        },
        show: |settings| display_or(settings.share.map(|share| share.clients), "none"),
        update: Update::Record,
    },
    SettingKey {
        name: OVERSUBSCRIBE,
        form: SettingForm::Number,
        words: &[],
        parse: |settings, text| {
            let factor = parse_or_none("none", text, str::parse);
            let factor = factor.map(|factor| factor.unwrap_or(Oversubscription::NONE));
            set_field(&mut settings.oversubscribe, factor)
        },
        show: |settings| settings.oversubscribe.to_string(),
        update: Update::Record,
    },
    SettingKey {
        name: ACTIVE_THREAD_PERCENTAGE,
        form: SettingForm::Number,
        words: &[],
        parse: |settings, text| {
            set_field(&mut settings.active_thread_percentage, text.parse())?;
            mark_given(settings, |share| share.threads_are_given = true);
            Ok(())
        },
        show: |settings| settings.active_thread_percentage.to_string(),
        update: Update::Control(Control {
            word: "active_thread_percentage",
            is_by_device: false,
            is_of_servers: true,
            is_universal: true,
            is_silent_unless_set: false,
            value: |settings| settings.active_thread_percentage.to_string(),
            read: |line| Some(line.parse::<f64>().ok()?.to_string()),
            differs: |settings, answer| {
                let set = settings.active_thread_percentage;
                answer.parse().map_or(true, |is| set.differs_from(is))
            },
        }),
    },
    SettingKey {
        name: PINNED_MEMORY_LIMIT,
        form: SettingForm::Text,
        words: &[],
        parse: |settings, text| {
            let limit = parse_or_none("none", text, str::parse);
            set_field(&mut settings.pinned_memory_limit, limit)?;
            mark_given(settings, |share| share.memory_is_given = true);
            Ok(())
        },
        show: |settings| display_or(settings.pinned_memory_limit, "none"),
        update: Update::Control(Control {
            word: "device_pinned_mem_limit",
            // By number: up to driver 555 a limit by UUID is ignored without a message.
            is_by_device: true,
            is_of_servers: true,
            is_universal: false,
            is_silent_unless_set: true,
            // 0 removes a limit, also of a running server (measured on drivers 535 to 615).
            value: |settings| {
                let limit = settings.pinned_memory_limit;
                limit.map_or_else(|| "0".to_owned(), MemoryLimit::in_mebibytes)
            },
            read: |line| match LimitAnswer::parse(line) {
                None if line.is_empty() => Some("none".to_owned()),
                None if line == DIFFERENT => Some(line.to_owned()),
                limit => Some(limit?.lower_bound().to_string()),
            },
            differs: |settings, answer| {
                answer == DIFFERENT
                    || LimitAnswer::differs(
                        LimitAnswer::parse(answer),
                        settings.pinned_memory_limit,
                    )
            },
        }),
    },
    SettingKey {
        name: CLIENT_PRIORITY,
        form: SettingForm::Text,
        words: ClientPriority::WORDS,
        parse: |settings, text| set_field(&mut settings.client_priority, text.parse()),
        show: |settings| settings.client_priority.to_string(),
        update: Update::Control(Control {
            word: "client_priority",
            is_by_device: false,
            is_of_servers: false,
            is_universal: false,
            is_silent_unless_set: false,
            value: |settings| settings.client_priority.to_number().to_string(),
            read: |line| {
                let word = ClientPriority::WORDS.get(line.parse::<usize>().ok()?);
                word.map(ToString::to_string)
            },
            differs: |settings, answer| settings.client_priority.to_number().to_string() != answer,
        }),
    },
    SettingKey {
        name: "cpus",
        form: SettingForm::Text,
        words: &[],
        parse: |settings, text| {
            set_field(&mut settings.cpus, parse_or_none("all", text, str::parse))
        },
        show: |settings| display_or(settings.cpus.as_ref(), "all"),
        update: Update::Restart,
    },
    SettingKey {
        name: "nofile",
        form: SettingForm::WholeNumber,
        words: &[],
        parse: |settings, text| {
            set_field(
                &mut settings.nofile,
                parse_in_range(OPEN_FILES_RANGE, text).map(Some),
            )
        },
        show: |settings| display_or(settings.nofile, "the default"),
        update: Update::Restart,
    },
    SettingKey {
        name: COMPUTE_MODE,
        form: SettingForm::Text,
        words: ComputeMode::WORDS,
        parse: |settings, text| set_field(&mut settings.compute_mode, text.parse().map(Some)),
        show: |settings| display_or(settings.compute_mode, "as it was"),
        update: Update::Restart,
    },
    SettingKey {
        name: MAX_CLIENTS,
        form: SettingForm::WholeNumber,
        words: &[],
        parse: |settings, text| {
            let most = parse_or_none("none", text, |text| {
                parse_in_range(CLIENT_COUNT_RANGE, text)
            });
            set_field(&mut settings.max_clients, most)?;
            mark_given(settings, |share| share.max_clients_is_given = true);
            Ok(())
        },
        show: |settings| display_or(settings.max_clients, "none"),
        update: Update::Record,
    },
    SettingKey {
        name: VISIBLE,
        form: SettingForm::Text,
        words: Visible::WORDS,
        parse: |settings, text| set_field(&mut settings.visible, text.parse()),
        show: |settings| settings.visible.to_string(),
        update: Update::Record,
    },
];

pub const SERVE: &str = "serve";
pub const COMPUTE_MODE: &str = "compute-mode";
pub const ACTIVE_THREAD_PERCENTAGE: &str = "active-thread-percentage";
pub const PINNED_MEMORY_LIMIT: &str = "pinned-memory-limit";
pub const CLIENT_PRIORITY: &str = "client-priority";
pub const SHARE: &str = "share";
pub const OVERSUBSCRIBE: &str = "oversubscribe";
pub const MAX_CLIENTS: &str = "max-clients";
const VISIBLE: &str = "visible";

/// The short names of settings. `run` has options with these names, by which a program tightens a setting for itself.
const SHORT_NAMES: [(&str, &str); 3] = [
    ("threads", ACTIVE_THREAD_PERCENTAGE),
    ("memory", PINNED_MEMORY_LIMIT),
    ("priority", CLIENT_PRIORITY),
];

/// The words of other programs for settings.
const OTHER_WORDS: [(&str, &[&str]); 4] = [
    (SERVE, &["user", "users", "group", "groups", "owner"]),
    ("threads", &["sm", "sms", "compute", "percentage"]),
    ("memory", &["mem", "vram", "limit", "memory-limit"]),
    (MAX_CLIENTS, &["clients", "processes"]),
];

/// Returns the name of the setting for which another program has this word.
pub fn setting_for_word(word: &str) -> Option<&'static str> {
    let (name, _) = OTHER_WORDS
        .iter()
        .find(|(_, words)| words.contains(&word))?;
    Some(name)
}

/// Returns the setting with this name or short name.
pub fn setting_named(name: &str) -> Option<&'static SettingKey> {
    let short = SHORT_NAMES.iter().find(|(short, _)| *short == name);
    let name = short.map_or(name, |(_, key)| key);
    KEYS.iter().find(|key| key.name == name)
}

/// Returns the setting with this name, or the one that NVIDIA's programs call so: by the variable of a client, a control
/// command or its name with underscores.
pub fn find_setting(name: &str) -> Option<&'static SettingKey> {
    let name = name.to_ascii_lowercase().replace('_', "-");
    let starts = ["cuda-mps-", "set-default-", "get-default-", "set-", "get-"];
    let name = starts
        .iter()
        .find_map(|start| name.strip_prefix(start))
        .unwrap_or(&name);
    let name = match name {
        "pinned-device-mem-limit" | "device-pinned-mem-limit" => PINNED_MEMORY_LIMIT,
        other => other,
    };
    setting_named(name)
}

/// Up to well above the most clients of a device with any known driver: 48, and 60 from CUDA 13.1.
pub const CLIENT_COUNT_RANGE: RangeInclusive<u32> = 1..=1024;

/// From enough for a daemon with one server and a few clients, to the limit of Linux by default (`fs.nr_open`).
const OPEN_FILES_RANGE: RangeInclusive<u64> = 256..=1 << 30;

fn set_field<T>(field: &mut T, value: Result<T, impl Into<WrongValue>>) -> Result<(), WrongValue> {
    *field = value.map_err(Into::into)?;
    Ok(())
}

/// Marks a value as given, in place of what follows from a share.
fn mark_given(settings: &mut Settings, mark: impl FnOnce(&mut Share)) {
    if let Some(share) = &mut settings.share {
        mark(share);
    }
}

/// Reads a value, or the word for none.
fn parse_or_none<T, E>(
    none: &str,
    text: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, E> {
    (text != none).then(|| read(text)).transpose()
}

fn parse_in_range<T>(range: RangeInclusive<T>, text: &str) -> Result<T, WrongValue>
where
    T: FromStr + PartialOrd + Display,
{
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(WrongValue::Range(format!(
            "from {} to {}",
            range.start(),
            range.end()
        ))),
    }
}

/// A setting of a device's daemon: a row of [`KEYS`].
#[derive(Debug)]
pub struct SettingKey {
    /// Its name in a profile, for `mig-mps set` and in messages.
    pub name: &'static str,
    /// The form of its value in a profile.
    pub form: SettingForm,
    /// The words that it takes, if it takes nothing else; `NAME` in one stands for any name.
    pub words: &'static [&'static str],
    /// Puts a value into settings.
    pub parse: fn(&mut Settings, &str) -> Result<(), WrongValue>,
    /// Returns the value as text. Settings with the same text are the same.
    pub show: fn(&Settings) -> String,
    pub update: Update,
}

/// The form of a value in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingForm {
    Text,
    Number,
    WholeNumber,
}

/// The way in which the setting of a running daemon changes.
#[derive(Debug)]
pub enum Update {
    /// The daemon restarts.
    Restart,
    /// `plan` decides: another `serve` restarts the daemon, another `server` holds from its next start on.
    Plan,
    /// The control daemon takes it, for clients that start afterwards.
    Control(Control),
    /// MPS does not know it: only the record changes.
    Record,
}

/// The control commands `set_default_WORD` and `get_default_WORD`, and `set_WORD` and `get_WORD` for a running server.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a property of the commands"
)]
pub struct Control {
    pub word: &'static str,
    /// True if each device of the daemon has a value, and the number of the device precedes it.
    pub is_by_device: bool,
    /// True if a running server has a value of its own.
    pub is_of_servers: bool,
    /// True if every control program has the commands. They are always sent then, and setting is answered as reading
    /// is. Others are sent only for a value that is not the default.
    pub is_universal: bool,
    /// True if the control program answers nothing where nothing is set: `read` takes an empty text for that.
    is_silent_unless_set: bool,
    /// Returns the value in the control program's form.
    pub value: fn(&Settings) -> String,
    /// Reads a line of an answer, and shows the value; `None` if the line is no answer.
    pub read: fn(&str) -> Option<String>,
    /// True if an answer cannot be that to these settings.
    pub differs: fn(&Settings, &str) -> bool,
}

/// The answer of a daemon whose devices have different values. No control program prints it.
const DIFFERENT: &str = "different on its GPUs";

impl Control {
    /// Returns the numbers of the devices for which it has a value, of so many; `None` for the value of all.
    pub fn device_numbers(&self, devices: usize) -> impl Iterator<Item = Option<usize>> + use<> {
        let by_device = self.is_by_device;
        (0..if by_device { devices } else { 1 }).map(move |device| by_device.then_some(device))
    }

    /// Takes the answers for all devices of a daemon from the front of the lines.
    pub fn take_answers(&self, devices: usize, lines: &mut VecDeque<&str>) -> Option<String> {
        let mut answers = Vec::new();
        for _ in self.device_numbers(devices) {
            answers.push(self.take_answer(lines)?);
        }
        answers.dedup();
        match answers.as_slice() {
            [same] => Some(same.clone()),
            _ => Some(DIFFERENT.to_owned()),
        }
    }

    /// Takes an answer from the front of the lines.
    pub fn take_answer(&self, lines: &mut VecDeque<&str>) -> Option<String> {
        let line = lines.front().map_or("", |line| line.trim());
        if (self.read)(line).is_some() {
            lines.pop_front();
            return Some(line.to_owned());
        }
        self.is_silent_unless_set.then(String::new)
    }
}

impl SettingKey {
    /// Returns the commands that set it, if the control daemon takes it.
    pub fn control_commands(&self) -> Option<&Control> {
        match &self.update {
            Update::Control(control) => Some(control),
            _ => None,
        }
    }

    /// Returns a value in our words if it is one of NVIDIA's: `BELOW_NORMAL`, or the number of a priority.
    pub fn in_own_words(&self, value: &str) -> String {
        match value {
            "0" if self.name == CLIENT_PRIORITY => ClientPriority::WORDS[0].to_owned(),
            "1" if self.name == CLIENT_PRIORITY => ClientPriority::WORDS[1].to_owned(),
            value if self.words.is_empty() => value.to_owned(),
            value => value.to_ascii_lowercase().replace('_', "-"),
        }
    }

    /// Returns its short name, which is that of an option of `run`.
    pub fn short_name(&self) -> Option<&'static str> {
        let (short, _) = SHORT_NAMES.iter().find(|(_, key)| *key == self.name)?;
        Some(short)
    }

    /// Returns its name, and its short name if it has one.
    pub fn accepted_names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.short_name())
    }

    /// True if it can change while the daemon runs.
    pub fn is_live(&self) -> bool {
        matches!(self.update, Update::Control(_) | Update::Record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    const MANUAL: &str = include_str!("../manual/profile.md");

    /// The rows of the manual's table: the key in backticks, and its values.
    fn rows() -> Vec<(&'static str, &'static str)> {
        let (_, section) = MANUAL.split_once("\n## MPS settings\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let row = |line: &'static str| {
            let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
            Some((name, rest.split_once(" | ")?.0))
        };
        section.lines().filter_map(row).collect()
    }

    #[test]
    fn the_manual_has_a_row_for_each_key_with_values_that_it_takes() {
        let names: Vec<&str> = rows().into_iter().map(|(name, _)| name).collect();
        let keys: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(names, keys);
        for (key, (name, values)) in KEYS.iter().zip(rows()) {
            let words = values.split('`').skip(1).step_by(2);
            let numbers = values
                .split([' ', ','])
                .filter(|word| word.parse::<f64>().is_ok());
            for value in words.chain(numbers) {
                let parsed = (key.parse)(&mut Settings::default(), value.trim_matches('"'));
                assert_eq!(parsed, Ok(()), "{name} = {value}");
            }
        }
    }

    #[test]
    fn the_manual_says_which_keys_change_while_the_daemon_runs() {
        let live: Vec<String> = KEYS
            .iter()
            .filter(|key| key.is_live())
            .map(|key| format!("`{}`", key.name))
            .collect();
        let (last, others) = live.split_last().unwrap();
        let sentence = format!(
            "`up` changes {} and {last} while the daemon runs.",
            others.join(", ")
        );
        let manual: Vec<&str> = MANUAL.split_whitespace().collect();
        assert!(manual.join(" ").contains(&sentence), "{sentence}");
    }

    #[test]
    fn settings_have_the_names_of_nvidias_programs() {
        for (name, key) in [
            ("pinned_device_mem_limit", PINNED_MEMORY_LIMIT),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", PINNED_MEMORY_LIMIT),
            ("set_default_device_pinned_mem_limit", PINNED_MEMORY_LIMIT),
            ("set_device_pinned_mem_limit", PINNED_MEMORY_LIMIT),
            (
                "set_default_active_thread_percentage",
                ACTIVE_THREAD_PERCENTAGE,
            ),
            (
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                ACTIVE_THREAD_PERCENTAGE,
            ),
            ("CUDA_MPS_CLIENT_PRIORITY", CLIENT_PRIORITY),
            ("set_default_client_priority", CLIENT_PRIORITY),
            ("max_clients", MAX_CLIENTS),
            ("memory", PINNED_MEMORY_LIMIT),
        ] {
            assert_eq!(find_setting(name).map(|key| key.name), Some(key), "{name}");
        }
        assert!(find_setting("CUDA_VISIBLE_DEVICES").is_none());
    }

    #[test]
    fn a_shown_value_reads_as_the_same_value() {
        let mut settings = Settings::default();
        for (key, value) in KEYS.iter().zip([
            "group:vision",
            "lazy",
            "4",
            "1.5",
            "33.3",
            "1536M",
            "below-normal",
            "0-7,16",
            "4096",
            "exclusive-process",
            "8",
            "index",
        ]) {
            assert_ne!((key.show)(&settings), value);
            assert_eq!((key.parse)(&mut settings, value), Ok(()));
            assert_eq!((key.show)(&settings), value);
        }
    }
}
