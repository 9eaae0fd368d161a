//! Devices by the words of a command line, in the order of their names; and the error for a word that names none.

use std::collections::BTreeSet;

use regex::Regex;
use thiserror::Error;

use crate::config::{begins_as_uuid, end_of_uuid};
use crate::failure::{ExitStatus, Failure};
use crate::host::{closest_match, format_ranges, join_words, quote_for_shell};
use crate::state::DeviceKey;

/// A device that a word can mean.
pub(super) struct Candidate<'a, T> {
    pub(super) value: T,
    /// Its name, if it has one.
    pub(super) name: Option<&'a str>,
    /// Its UUID, and earlier ones.
    pub(super) uuids: Vec<&'a str>,
}

impl<T> Candidate<'_, T> {
    fn is_called(&self, word: &str) -> bool {
        self.name == Some(word)
            || self
                .uuids
                .iter()
                .any(|uuid| uuid.eq_ignore_ascii_case(word))
    }

    /// True if the word is the beginning of its name or of a UUID, also without the kind of UUID if it is long enough for
    /// one.
    fn begins_with(&self, word: &str) -> bool {
        let is_start = |text: &str| {
            let start = text.as_bytes().get(..word.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
        };
        let digits = |uuid: &str| is_digits_of_uuid(word) && uuid.get(4..).is_some_and(is_start);
        self.name.is_some_and(|name| name.starts_with(word))
            || self.uuids.iter().any(|uuid| is_start(uuid) || digits(uuid))
    }

    fn title(&self) -> &str {
        self.name
            .or(self.uuids.first().copied())
            .unwrap_or_default()
    }
}

/// True for the first block of digits of a UUID, or more.
fn is_digits_of_uuid(word: &str) -> bool {
    word.len() >= 8 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

/// Returns the devices that a word means: one by its name, its UUID, or a unique prefix of either, or all that a glob
/// such as `trainer-*` matches.
pub(super) fn select_candidates<T>(
    word: &str,
    mut candidates: Vec<Candidate<'_, T>>,
) -> Result<Vec<T>, NoSuchDevice> {
    // Every name begins with an empty word.
    if word.trim().is_empty() {
        return Err(NoSuchDevice::Empty);
    }
    let mut known: Vec<String> = candidates
        .iter()
        .map(|one| one.title().to_owned())
        .collect();
    let glob = glob_to_regex(word);
    if let Some(glob) = &glob {
        // Every UUID is full of digits and dashes: only a glob that is meant for UUIDs is held against them.
        let is_for_uuids = begins_as_uuid(word);
        candidates.retain(|one| {
            if is_for_uuids {
                one.uuids.iter().any(|uuid| glob.is_match(uuid))
            } else {
                glob.is_match(one.title())
            }
        });
    } else if candidates.iter().any(|one| one.is_called(word)) {
        candidates.retain(|one| one.is_called(word));
    } else {
        candidates.retain(|one| one.begins_with(word));
    }
    let wanted = word.to_owned();
    match candidates.len() {
        0 => Err(NoSuchDevice::Unknown { wanted, known }),
        2.. if glob.is_none() => {
            known = candidates
                .iter()
                .map(|one| one.title().to_owned())
                .collect();
            // The logs of several devices can have the same name.
            if known.iter().collect::<BTreeSet<_>>().len() < candidates.len() {
                let uuids = candidates.iter().filter_map(|one| one.uuids.first());
                known = uuids.map(|&uuid| uuid.to_owned()).collect();
            }
            Err(NoSuchDevice::Ambiguous { wanted, known })
        }
        _ => Ok(candidates.into_iter().map(|one| one.value).collect()),
    }
}

/// True for a word that a glob on UUIDs can begin with, unlike `MIG-1g.10gb`.
fn is_start_of_uuid(word: &str) -> bool {
    end_of_uuid(word).is_some_and(|end| end.chars().all(|c| c.is_ascii_hexdigit() || c == '-'))
}

/// Returns the pattern of a word with `*`, `?` or `[…]`.
pub fn glob_to_regex(word: &str) -> Option<Regex> {
    if !word.contains(['*', '?', '[']) {
        return None;
    }
    let pattern = regex::escape(word)
        .replace(r"\*", ".*")
        .replace(r"\?", ".")
        .replace(r"\[!", "[^")
        .replace(r"\[", "[")
        .replace(r"\]", "]")
        .replace(r"\-", "-");
    Regex::new(&format!("^(?:{pattern})$")).ok()
}

/// True for a word that can mean several devices by their names.
pub fn is_glob(word: &str) -> bool {
    glob_to_regex(word).is_some()
}

/// The name matches no device, or several.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoSuchDevice {
    /// A script has an empty variable.
    #[error("the name of a device is empty")]
    Empty,
    /// No device has this name or UUID.
    #[error("no device has the name \"{wanted}\"{}", if known.is_empty() { "; this node has no devices" } else { "" })]
    Unknown {
        /// The name from the command line.
        wanted: String,
        /// The names of all devices.
        known: Vec<String>,
    },
    /// No record has this name, UUID or GPU, and nobody has looked for devices without one.
    #[error("{what}")]
    NotServed {
        what: String,
        hint: String,
        /// The hint for a command that takes one device.
        hint_for_one: String,
    },
    /// There is no GPU with this index, or it has no device.
    #[error("{}", no_device_on(*index, gpus))]
    OfGpu {
        index: u32,
        /// The indices of all GPUs.
        gpus: Vec<u32>,
    },
    /// There is no GPU with this index, UUID, PCI address or device file.
    #[error("no GPU has the name \"{wanted}\"")]
    NoGpu {
        wanted: String,
        /// The indices of all GPUs.
        gpus: Vec<u32>,
    },
    /// Another program's word for a GPU that has several devices, or for a device by its number in a list.
    #[error("\"{wanted}\" is ambiguous: {}", list(known))]
    OfOneGpu {
        wanted: String,
        gpu: u32,
        /// The names of its devices.
        known: Vec<String>,
    },
    /// The name that a GPU would have, or another mark of the GPU, which is part of a joint device.
    #[error("no device has the name \"{wanted}\": GPU {gpu} is part of the joint device {device}")]
    PartOfJoint {
        wanted: String,
        gpu: u32,
        device: String,
    },
    /// `down` has stopped the joint device that has the GPU with this index.
    #[error("GPU {gpu} is part of the stopped device {device}")]
    PartOfStopped { gpu: u32, device: String },
    /// `down` has stopped it.
    #[error("device {device} was stopped by {origin}")]
    Stopped {
        device: String,
        /// The user, the time and the command.
        origin: String,
    },
    /// `down` has stopped it, and it cannot start now.
    #[error("device {device} is stopped, and cannot start: {why}")]
    Unstartable {
        device: String,
        why: String,
        hint: String,
    },
    /// The GPU is lost or cannot be read, with the driver's error.
    #[error("{0}")]
    Lost(String),
    /// Several devices match.
    #[error("\"{wanted}\" is ambiguous: {}", list(known))]
    Ambiguous {
        /// The name from the command line.
        wanted: String,
        /// The names of the devices that match, or their UUIDs.
        known: Vec<String>,
    },
}

impl NoSuchDevice {
    /// Returns the error for a name or a GPU of which no record is. `served` names those of records for a command that
    /// takes so many devices, if there are any; `unread` is the reason why a record cannot be read.
    pub(super) fn not_served(
        what: &str,
        served: impl Fn(Takes) -> Option<String>,
        unread: Option<&str>,
    ) -> Self {
        let seen = unread.map_or_else(String::new, |why| format!(" that can be seen: {why}"));
        let hint = |takes| match (unread, served(takes)) {
            (Some(_), _) => "run `mig-mps doctor` to check directories and records".to_owned(),
            (None, Some(served)) => format!("{served}; `mig-mps list` shows all devices"),
            (None, None) => {
                "run `mig-mps up PROFILE` to start daemons, or `mig-mps list` to see the devices"
                    .to_owned()
            }
        };
        Self::NotServed {
            what: format!("no daemon serves {what}{seen}"),
            hint: hint(Takes::Several),
            hint_for_one: hint(Takes::One),
        }
    }

    /// True if `down` has stopped the device that is meant, and it cannot start, or only one of its GPUs is meant.
    pub fn is_of_stopped_device(&self) -> bool {
        matches!(self, Self::Unstartable { .. } | Self::PartOfStopped { .. })
    }

    /// Returns the hint for a command that takes one device, without `--gpu` and globs.
    pub fn hint_for_one(&self) -> Option<String> {
        match self {
            Self::Unknown { wanted, known } if !known.is_empty() => {
                Some(known_devices_hint(wanted, known, "device", Takes::One))
            }
            Self::NotServed { hint_for_one, .. } => Some(hint_for_one.clone()),
            Self::Ambiguous { wanted, known } => {
                // 1* also stands for 10.0.
                let glob = [".", ""]
                    .into_iter()
                    .map(|end| format!("{wanted}{end}"))
                    .find(|start| known.iter().all(|name| name.starts_with(start)))
                    .map_or_else(String::new, |start| format!("{start}*"));
                Some(one_device_hint(&glob))
            }
            Self::OfOneGpu { .. } => Some(one_device_hint("")),
            _ => self.hint(),
        }
    }
}

const SEE_DEVICES: &str = "run `mig-mps status` to see the devices";

/// How the hint for several devices in the place of one begins.
pub const ONE_DEVICE_HINT: &str = "choose one device";

/// Returns the hint for several devices in the place of one: those that match a glob, if there is one.
pub fn one_device_hint(glob: &str) -> String {
    let glob = match glob {
        "" => String::new(),
        glob => format!(" {}", quote_for_shell(glob)),
    };
    format!("{ONE_DEVICE_HINT}; `mig-mps run --any{glob}` selects a free one")
}

/// Returns the error of a word that is the index of a GPU of a joint device; `None` for another word. The devices are given by
/// their names and the indices of their GPUs.
pub(super) fn part_of_joint_error(
    word: &str,
    devices: impl IntoIterator<Item = (String, Vec<u32>)>,
) -> Option<NoSuchDevice> {
    let gpu = parse_index(word)?;
    let (device, _) = devices
        .into_iter()
        .find(|(_, gpus)| gpus.len() > 1 && gpus.contains(&gpu))?;
    let wanted = word.to_owned();
    Some(NoSuchDevice::PartOfJoint {
        wanted,
        gpu,
        device,
    })
}

/// The hint to start a device that `down` has stopped, if it can start.
pub fn start_again_hint(device: &str) -> String {
    format!("run `mig-mps start {device}` to start it again")
}

/// The number of devices that a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    One,
    Several,
}

impl Failure for NoSuchDevice {
    fn status(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unknown { known, .. } if known.is_empty() => {
                "run `mig-mps up PROFILE` to create devices, or `mig-mps doctor` to find out why a device is not \
                 visible"
                    .to_owned()
            }
            Self::Unknown { wanted, known } => {
                known_devices_hint(wanted, known, "device", Takes::Several)
            }
            Self::NotServed { hint, .. } | Self::Unstartable { hint, .. } => hint.clone(),
            Self::Empty => SEE_DEVICES.to_owned(),
            Self::OfGpu { index, gpus } if gpus.contains(index) => SEE_DEVICES.to_owned(),
            Self::NoGpu { wanted, .. } if wanted.contains(',') => repeat_gpu_hint(wanted),
            Self::NoGpu { wanted, .. } if matches!(wanted.as_str(), "all" | "*") => {
                format!("write '*' instead of --gpu {wanted} to select every device")
            }
            Self::NoGpu { wanted, gpus } if let Some(range) = gpus_of_range(wanted, gpus) => {
                repeat_gpu_hint(&range)
            }
            Self::OfGpu { gpus, .. } | Self::NoGpu { gpus, .. } => match gpus.as_slice() {
                [] => "run `mig-mps doctor` to find out why there is no GPU".to_owned(),
                [only] => format!("use GPU {only}, the only GPU"),
                _ => format!("choose one of the GPUs {}", format_ranges(gpus)),
            },
            Self::OfOneGpu { gpu, .. } => {
                format!(
                    "choose one device, or all of GPU {gpu} with --gpu {gpu} in commands that accept several"
                )
            }
            Self::PartOfStopped { device, .. } | Self::Stopped { device, .. } => {
                start_again_hint(device)
            }
            Self::PartOfJoint { device, .. } => format!("use the name {device} instead"),
            Self::Lost(_) => LOST_GPU_REMEDY.to_owned(),
            Self::Ambiguous { wanted, .. } if is_index(wanted) => format!(
                "choose one device, or all of GPU {wanted} with --gpu {wanted} in commands that accept several"
            ),
            Self::Ambiguous { wanted, known }
                if !is_start_of_uuid(wanted)
                    && known.iter().any(|name| !name.starts_with(wanted)) =>
            {
                "choose one device".to_owned()
            }
            Self::Ambiguous { wanted, .. } => {
                format!("choose one device; commands that accept several also accept '{wanted}*'")
            }
        })
    }
}

/// The remedy for a lost GPU.
pub const LOST_GPU_REMEDY: &str =
    "run `dmesg | grep NVRM` to find the cause, then reset the GPU or reboot";

pub(super) fn is_index(word: &str) -> bool {
    parse_index(word).is_some()
}

/// Parses an index, which has no sign.
pub(super) fn parse_index(word: &str) -> Option<u32> {
    if word.chars().all(|c| c.is_ascii_digit()) {
        word.parse().ok()
    } else {
        None
    }
}

/// A kind of devices.
pub(super) const DEVICE_WITH_LOGS: &str = "device with logs";

/// The most names of a message.
const MAX_LISTED_NAMES: usize = 8;

/// Names the devices, or the nearest of many.
pub(super) fn known_devices_hint(
    wanted: &str,
    known: &[String],
    kind: &str,
    takes: Takes,
) -> String {
    let several = (takes == Takes::Several).then(|| several_devices_hint(wanted));
    if let Some(hint) = several.flatten() {
        return hint;
    }
    let near = closest_match(wanted, known.iter().map(String::as_str))
        .filter(|near| known.len() > MAX_LISTED_NAMES || near.contains(char::is_alphabetic))
        .map(|near| format!("did you mean \"{near}\"? "));
    let kinds = kind.replacen("device", "devices", 1);
    let all = match known {
        [only] => format!(
            "use device {only}, the only one{}",
            kind.trim_start_matches("device")
        ),
        _ if known.len() <= MAX_LISTED_NAMES => {
            format!("choose one of the {kinds}: {}", known.join(", "))
        }
        // No command lists them.
        _ if kind == DEVICE_WITH_LOGS => {
            format!(
                "choose one of the {kinds}: {}",
                list(known).replace(" or ", " and ")
            )
        }
        _ => format!("run `mig-mps status` to see the {} devices", known.len()),
    };
    near.unwrap_or_default() + &all
}

/// Returns how several devices are named, for a word that seems to mean several.
fn several_devices_hint(wanted: &str) -> Option<String> {
    let lower = wanted.to_ascii_lowercase();
    let index = lower.strip_prefix("gpu");
    // More digits are the beginning of a UUID.
    let index = index
        .map(|rest| rest.trim_start_matches('-'))
        .filter(|index| is_index(index) && index.len() < 4);
    if lower == "all" {
        return Some("use '*' for every device".to_owned());
    }
    if let Some(index) = index {
        return Some(format!("use --gpu {index} for every device of GPU {index}"));
    }
    let is_list = wanted.contains(',');
    is_list.then(|| format!("separate devices by blanks: {}", wanted.replace(',', " ")))
}

/// Returns the GPUs of a range such as `0-3`, with commas; `None` if it is no range, or has none of them.
fn gpus_of_range(word: &str, gpus: &[u32]) -> Option<String> {
    let (first, last) = word.split_once('-')?;
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    let within: Vec<String> = gpus
        .iter()
        .filter(|gpu| (first..=last).contains(gpu))
        .map(u32::to_string)
        .collect();
    (!within.is_empty()).then(|| within.join(","))
}

/// Returns the hint about `--gpu 0,1`.
pub(super) fn repeat_gpu_hint(words: &str) -> String {
    format!(
        "repeat --gpu for several GPUs: --gpu {}",
        words.replace(',', " --gpu ")
    )
}

fn no_device_on(index: u32, gpus: &[u32]) -> String {
    if gpus.contains(&index) {
        return format!("GPU {index} has no device");
    }
    format!("there is no GPU {index}")
}

/// `0.0, 0.2 or 0.4`, and not more than a line of names.
fn list(names: &[String]) -> String {
    match names {
        few if few.len() <= MAX_LISTED_NAMES => join_words(few, "or"),
        _ => format!(
            "{} or {} others",
            names[..MAX_LISTED_NAMES].join(", "),
            names.len() - MAX_LISTED_NAMES
        ),
    }
}

/// The order in which every command names devices: by the index of their GPU, from left to right on it, then by name.
/// Devices of unknown GPUs come last.
pub fn device_order(gpu: Option<u32>, key: &DeviceKey, name: &str) -> impl Ord + use<> {
    let place = key.instance.map(|key| (key.placement, key.compute));
    (gpu.is_none(), gpu, place, name_order(name))
}

/// Returns the key by which names sort, so that `0.10` follows `0.9`: runs of digits, which sort before others as
/// numbers, and runs of other characters.
pub(super) fn name_order(name: &str) -> Vec<Result<u64, String>> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != is_number);
        let (part, tail) = rest.split_at(end.unwrap_or(rest.len()));
        parts.push(part.parse().map_err(|_| part.to_owned()));
        rest = tail;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(word: &str) -> Result<Vec<u32>, String> {
        let all = [
            ("trainer-1", "MIG-11"),
            ("trainer-10", "MIG-12"),
            ("0.0", "MIG-21"),
            ("0.2", "MIG-22"),
            ("1", "GPU-1"),
        ];
        let candidates = (0..).zip(all).map(|(value, (name, uuid))| Candidate {
            value,
            name: Some(name),
            uuids: vec![uuid],
        });
        select_candidates(word, candidates.collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_a_uuid_and_a_unique_prefix_mean_one() {
        for (word, number) in [
            ("trainer-1", 0),
            ("trainer-10", 1),
            ("MIG-21", 2),
            ("0.2", 3),
            ("1", 4),
            ("G", 4),
            ("mig-21", 2),
        ] {
            assert_eq!(selected(word), Ok(vec![number]), "{word}");
        }
        assert_eq!(
            selected("train"),
            Err("\"train\" is ambiguous: trainer-1 or trainer-10".to_owned())
        );
        assert_eq!(
            selected("MIG-"),
            Err("\"MIG-\" is ambiguous: trainer-1, trainer-10, 0.0 or 0.2".to_owned())
        );
        for empty in ["", " ", "\t"] {
            let error = "the name of a device is empty".to_owned();
            assert_eq!(selected(empty), Err(error), "{empty:?}");
        }
        assert_eq!(
            selected("2"),
            Err("no device has the name \"2\"".to_owned())
        );
    }

    #[test]
    fn a_glob_means_all_that_it_matches() {
        for (word, numbers) in [
            ("trainer-*", vec![0, 1]),
            ("*", vec![0, 1, 2, 3, 4]),
            ("0.?", vec![2, 3]),
            ("0.[0-1]", vec![2]),
            ("0.[!0]", vec![3]),
            ("MIG-1*", vec![0, 1]),
            ("*-1*", vec![0, 1]),
        ] {
            assert_eq!(selected(word), Ok(numbers), "{word}");
        }
        assert!(
            selected("x*")
                .unwrap_err()
                .contains("no device has the name \"x*\"")
        );
        assert!(selected("*-2*").is_err());
        assert!(selected("[").is_err());
    }

    fn unknown(wanted: &str, known: Vec<String>) -> String {
        let wanted = wanted.to_owned();
        NoSuchDevice::Unknown { wanted, known }.hint().unwrap()
    }

    #[test]
    fn of_many_devices_the_nearest_is_named() {
        let trainers = |count: usize| (0..count).map(|n| format!("trainer-{n}")).collect();
        assert_eq!(
            unknown("trainr-7", trainers(56)),
            "did you mean \"trainer-7\"? run `mig-mps status` to see the 56 devices"
        );
        assert_eq!(
            unknown("x", trainers(56)),
            "run `mig-mps status` to see the 56 devices"
        );
        assert_eq!(
            unknown("x", trainers(2)),
            "choose one of the devices: trainer-0, trainer-1"
        );
        let numbered = vec!["0.0".to_owned(), "0.2".to_owned()];
        assert_eq!(
            unknown("0.1", numbered),
            "choose one of the devices: 0.0, 0.2"
        );
    }

    #[test]
    fn the_gpus_are_named() {
        let of = |gpus: &[u32]| {
            let gpus = gpus.to_vec();
            NoSuchDevice::OfGpu { index: 9, gpus }.hint().unwrap()
        };
        assert_eq!(of(&[0, 1, 2, 3, 6]), "choose one of the GPUs 0-3,6");
        assert_eq!(of(&[0]), "use GPU 0, the only GPU");
        assert_eq!(of(&[9]), "run `mig-mps status` to see the devices");
    }

    #[test]
    fn an_index_means_the_option() {
        assert!(ambiguous("0", &["0.0", "0.2"]).contains("--gpu 0"));
    }

    #[test]
    fn a_pattern_is_offered_only_where_it_matches() {
        for (wanted, known) in [
            ("infer", ["infer-0", "infer-1"]),
            ("MIG-", ["0.0", "big"]),
            ("MIG-5f1c2a3b-", ["0.0", "big"]),
        ] {
            let pattern = format!("'{wanted}*'");
            assert!(ambiguous(wanted, &known).contains(&pattern), "{wanted}");
        }
        for wanted in ["1g.10gb", "MIG-1g.10gb", "MIG 1g.10gb"] {
            assert_eq!(ambiguous(wanted, &["0.0", "0.2"]), "choose one device");
        }
    }

    fn ambiguous(wanted: &str, known: &[&str]) -> String {
        let wanted = wanted.to_owned();
        let known = known.iter().map(|&name| name.to_owned()).collect();
        NoSuchDevice::Ambiguous { wanted, known }.hint().unwrap()
    }

    #[test]
    fn names_sort_as_people_count() {
        let mut names = vec![
            "0.10",
            "0.9",
            "trainer-10",
            "1.0",
            "trainer-9",
            "0.0.c1",
            "0.0",
        ];
        names.sort_by_key(|name| name_order(name));
        assert_eq!(
            names,
            [
                "0.0",
                "0.0.c1",
                "0.9",
                "0.10",
                "1.0",
                "trainer-9",
                "trainer-10"
            ]
        );
    }
}
