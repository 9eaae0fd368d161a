//! The answers of `init`, as they are written.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::settings::Serve;

/// The GPUs that stay whole: `none`, `all`, `0-1,7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeptWhole {
    All,
    Indices(BTreeSet<u32>),
}

/// More than any node has.
const MOST_GPUS: u32 = 1 << 16;

impl KeptWhole {
    /// The GPUs of a node that it means.
    ///
    /// # Errors
    /// The indices that no GPU has.
    pub(super) fn among(&self, all: &BTreeSet<u32>) -> Result<BTreeSet<u32>, String> {
        let Self::Indices(wanted) = self else {
            return Ok(all.clone());
        };
        let missing: Vec<String> = wanted.difference(all).map(u32::to_string).collect();
        match missing.as_slice() {
            [] => Ok(wanted.clone()),
            [one] => Err(format!("there is no GPU {one}")),
            several => Err(format!("there are no GPUs {}", several.join(", "))),
        }
    }
}

impl FromStr for KeptWhole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("\"{text}\" does not name GPUs: write indices such as 0 or 0-1,7, none or all")
        };
        match text {
            "none" => return Ok(Self::Indices(BTreeSet::new())),
            "all" => return Ok(Self::All),
            _ => {}
        }
        let number = |word: &str| {
            let number: u32 = word.trim().parse().map_err(|_| wrong())?;
            (number < MOST_GPUS).then_some(number).ok_or_else(wrong)
        };
        let mut indices = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            indices.extend(first..=last);
        }
        Ok(Self::Indices(indices))
    }
}

/// A number of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobCount(pub(super) u32);

impl FromStr for JobCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number| *number > 0);
        let wrong = || format!("\"{text}\" is not a number of jobs: write 1 or more");
        number.map(Self).ok_or_else(wrong)
    }
}

impl JobCount {
    /// ` each` for several.
    pub(super) fn each(self) -> &'static str {
        if self.0 == 1 { "" } else { " each" }
    }
}

impl fmt::Display for JobCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} job{s}", self.0)
    }
}

/// Jobs with the memory that each must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) jobs: u32,
    pub(super) memory: LeastMemory,
}

/// `3 jobs with 30 GiB each`
impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = JobCount(self.jobs);
        match self.memory.0 {
            0 => jobs.fmt(f),
            _ => write!(f, "{jobs} with {}{}", self.memory, jobs.each()),
        }
    }
}

/// The memory that a job must have, in MiB; 0 for any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeastMemory(pub(super) u64);

/// More than any GPU has, in MiB.
const MOST_MEMORY: f64 = (1_u32 << 20) as f64;

impl FromStr for LeastMemory {
    type Err = String;

    /// Reads `any`, `512M`, `19.5G`, `20 GiB`, and rounds up to whole MiB.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self(0));
        }
        let wrong =
            || format!("\"{text}\" is not a memory size: write one such as 10G, 512M, or any");
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.'));
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let mebibytes = match unit.trim_start().to_lowercase().as_str() {
            "m" | "mb" | "mib" => number,
            "g" | "gb" | "gib" => number * 1024.0,
            "" => return Err(format!("\"{text}\" has no unit: {text}G or {text}M?")),
            _ => return Err(wrong()),
        };
        if mebibytes > MOST_MEMORY {
            return Err(format!("\"{text}\" is more than any GPU has"));
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is a whole number up to 2^20, and has no sign"
        )]
        Ok(Self(mebibytes.ceil() as u64))
    }
}

impl fmt::Display for LeastMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("any memory"),
            mib if mib.is_multiple_of(1024) => write!(f, "{} GiB", mib >> 10),
            mib if mib < 1024 => write!(f, "{mib} MiB"),
            mib => {
                let hundredths = (mib * 100).div_ceil(1024);
                let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
                write!(f, "{} GiB", text.trim_end_matches('0'))
            }
        }
    }
}

/// The users of a device: `no`, `yes`, or a value of `serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Users(pub(super) Serve);

impl FromStr for Users {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "no" | "n" => Ok(Self(Serve::OneAtATime)),
            "yes" | "y" => Ok(Self(Serve::All)),
            _ => text.parse().map(Self).map_err(|_| {
                let values = Serve::WORDS.join(", ");
                format!("\"{text}\" is not an answer: write no, yes, or one of {values}")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_that_stay_whole_are_indices_and_ranges() {
        let read = |text: &str| text.parse::<KeptWhole>();
        let indices = |all: &[u32]| Ok(KeptWhole::Indices(all.iter().copied().collect()));
        assert_eq!(read("none"), indices(&[]));
        assert_eq!(read("7, 0-2"), indices(&[0, 1, 2, 7]));
        assert_eq!(read("all"), Ok(KeptWhole::All));
        for wrong in [
            "",
            "x",
            "1-",
            "-1",
            "2-1",
            "0,,1",
            "0-99999999999",
            "0-4000000000",
            "1.5",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let gpus = BTreeSet::from([0, 1]);
        assert_eq!(KeptWhole::All.among(&gpus), Ok(gpus.clone()));
        let missing = read("0-3").unwrap().among(&gpus);
        assert_eq!(missing, Err("there are no GPUs 2, 3".to_owned()));
    }

    #[test]
    fn memory_is_rounded_up_to_whole_mebibytes() {
        let read = |text: &str| text.parse::<LeastMemory>().map(|memory| memory.0);
        for (text, mib) in [
            ("any", 0),
            ("512M", 512),
            ("10G", 10240),
            ("10 GiB", 10240),
            ("10gb", 10240),
            ("39.2G", 40141),
            ("0G", 0),
        ] {
            assert_eq!(read(text), Ok(mib), "{text}");
        }
        for wrong in [
            "", "10", "G", "-1G", "1.2.3G", "1e3G", "nanG", "infG", "99999G", "ten",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let shown = |mib| LeastMemory(mib).to_string();
        assert_eq!(
            [shown(10240), shown(19968), shown(40141), shown(512)],
            ["10 GiB", "19.5 GiB", "39.21 GiB", "512 MiB"]
        );
    }
}
