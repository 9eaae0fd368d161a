//! Questions that flags, defaults or a user answer: about jobs, GPUs that stay whole, and users.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::first_profile::{GroupSupply, Supply, TooManyJobs};
use super::partition;
use crate::error::{
    CommandError, ErrorContext as _, Result, command_error, declined_by_user, usage_error,
};
use crate::failure::ExitStatus;
use crate::host::{format_count, join_words};
use crate::render::format::format_gib;
use crate::render::{self, Question, can_ask};
use crate::settings::Serve;

/// A round of questions, each of which has a flag.
pub(super) struct Interview {
    can_ask: bool,
    /// True if questions without a flag take their defaults.
    takes_defaults: bool,
    /// The flags that are needed and were not given, each with the default.
    missing: Vec<String>,
}

impl Interview {
    pub(super) fn new(takes_defaults: bool) -> Self {
        Self {
            can_ask: can_ask(),
            takes_defaults,
            missing: Vec::new(),
        }
    }

    /// True if the user is asked.
    pub(super) fn is_interactive(&self) -> bool {
        self.can_ask && !self.takes_defaults
    }

    /// Shows what the questions are about; with --quiet only to somebody who is asked.
    pub(super) fn show(&self, text: &str) {
        if self.is_interactive() {
            render::print_styled_note_always(text);
        } else {
            render::print_styled_note(text);
        }
    }

    /// Returns the answer of a flag, or else asks. Without a terminal, notes that the flag is missing and goes on with
    /// the default.
    pub(super) fn flag_or_ask<T, U>(
        &mut self,
        flag: &str,
        given: Option<&T>,
        question: Question<'_>,
        check: impl Fn(&T) -> Result<U>,
    ) -> Result<U>
    where
        T: FromStr<Err = String>,
    {
        if let Some(given) = given {
            return check(given);
        }
        if self.is_interactive() {
            let answer = render::ask_question(question, |text| {
                let answer: T = text.parse()?;
                check(&answer).map_err(|error| {
                    [&[error.to_string()], error.hints.as_slice()]
                        .concat()
                        .join("\n  ")
                })
            });
            return answer
                .context("cannot ask on the terminal")?
                .ok_or_else(end_of_input);
        }
        if !self.takes_defaults {
            self.missing.push(format!("{flag} {}", question.default));
        }
        let default: T = question.default.parse().map_err(command_error)?;
        check(&default)
    }

    /// Fails if this flag, which answers several questions, is missing.
    pub(super) fn check_flag(&mut self, flag: &str, default: &str) -> Result<()> {
        if !self.missing.is_empty() {
            self.missing = vec![format!("{flag} {default}")];
        }
        self.check_flags()
    }

    /// Fails if a flag is missing, and names all that are.
    pub(super) fn check_flags(&self) -> Result<()> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let flags: Vec<&str> = self
            .missing
            .iter()
            .filter_map(|one| one.split(' ').next())
            .collect();
        let flags = join_words(&flags, "and");
        let defaults = self.missing.join(" ");
        Err(usage_error(format_args!(
            "missing {flags}, and there is no terminal to ask on"
        ))
        .with_hint(format!(
            "add the missing options, or use --yes for the defaults {defaults}"
        )))
    }
}

/// The input ended instead of an answer.
pub(super) fn end_of_input() -> CommandError {
    declined_by_user(ExitStatus::Interrupted, "Nothing was written.")
}

/// The GPUs that stay whole: `none`, `all`, `0-1,7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeptWhole {
    All,
    Indices(BTreeSet<u32>),
}

/// More than any node has.
const MAX_GPUS: u32 = 1 << 16;

impl KeptWhole {
    /// True if it names this GPU.
    pub(super) fn names_gpu(&self, index: u32) -> bool {
        matches!(self, Self::Indices(wanted) if wanted.contains(&index))
    }

    /// The GPUs of a node that it means.
    ///
    /// # Errors
    /// The indices that no GPU has.
    pub(super) fn select_from(&self, all: &BTreeSet<u32>) -> Result<BTreeSet<u32>, String> {
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
        match text {
            "none" => return Ok(Self::Indices(BTreeSet::new())),
            "all" => return Ok(Self::All),
            _ => {}
        }
        let mut indices = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (gpu_index(first), gpu_index(last)) {
                (Some(first), Some(last)) if first <= last => indices.extend(first..=last),
                _ => {
                    return Err(format!(
                        "\"{text}\" does not name GPUs: write indices such as 0 or 0-1,7, none or all"
                    ));
                }
            }
        }
        Ok(Self::Indices(indices))
    }
}

fn gpu_index(word: &str) -> Option<u32> {
    let index = word.trim().parse().ok()?;
    (index < MAX_GPUS).then_some(index)
}

/// A number of jobs, or of a layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Positive(pub(super) u32);

impl FromStr for Positive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) | Err(_) => Err("expected a number, 1 or more".to_owned()),
            Ok(number) => Ok(Self(number)),
        }
    }
}

/// ` each` for several jobs.
fn each_suffix(jobs: u32) -> &'static str {
    if jobs == 1 { "" } else { " each" }
}

/// `3 jobs with 30 GiB each`
fn describe_jobs(jobs: u32, memory: LeastMemory) -> String {
    let all = format_count(jobs as usize, "job");
    match memory.0 {
        0 => all,
        _ => format!("{all} with {memory}{}", each_suffix(jobs)),
    }
}

/// The memory that a job must have, in MiB; 0 for any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeastMemory(pub(super) u64);

impl LeastMemory {
    /// Returns the memory of the smallest device that is enough: GiB are shown with one decimal, and what is shown can be
    /// asked for.
    fn least_mib(self) -> u64 {
        // Rounded up, as what is asked for.
        const HALF_DECIMAL_MIB: u64 = 52;
        match self.0 {
            mib if mib < 1024 => mib,
            mib => mib - HALF_DECIMAL_MIB,
        }
    }
}

/// More than any GPU has, in MiB.
const MAX_MEMORY_MIB: f64 = (1_u32 << 20) as f64;

const NO_MEMORY_SIZE: &str = "expected a memory size such as 10G or 512M, or any";

impl FromStr for LeastMemory {
    type Err = String;

    /// Reads `any`, `512M`, `19.5G`, `20 GiB`, and rounds up to whole MiB.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self(0));
        }
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.'));
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let number: f64 = number.parse().map_err(|_| NO_MEMORY_SIZE)?;
        let mebibytes = match unit.trim_start().to_lowercase().as_str() {
            "m" | "mb" | "mib" => number,
            "g" | "gb" | "gib" => number * 1024.0,
            "" => return Err(format!("\"{text}\" has no unit: {text}G or {text}M?")),
            _ => return Err(NO_MEMORY_SIZE.to_owned()),
        };
        if mebibytes > MAX_MEMORY_MIB {
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
                format!("expected no, yes, or one of {values}")
            }),
        }
    }
}

/// The default is so many jobs on each GPU, or as many as it has room for.
const JOBS_PER_GPU: u32 = 4;

/// Asks for the jobs and their memory. Returns the devices that they need on each GPU.
pub(super) fn ask_jobs<'a>(
    given_jobs: Option<&Positive>,
    given_memory: Option<&LeastMemory>,
    interview: &mut Interview,
    supply: &Supply<'a>,
) -> Result<Vec<(GroupSupply<'a>, u32)>> {
    let least = given_memory.copied().unwrap_or(LeastMemory(0));
    if given_jobs.is_none() {
        // Else no answer would do.
        distribute_jobs(supply, 1, least)?;
    }
    let enough = supply.with_memory(least.0);
    let most = enough.most_jobs();
    let usual: u32 = enough
        .groups
        .iter()
        .map(|group| group.total_devices(group.most_devices().min(JOBS_PER_GPU)))
        .sum();
    let default = usual.to_string();
    let meaning = format!("Each job gets a separate device. At most {most} fit.");
    let question = Question {
        text: "How many jobs will run at once?",
        meaning: &meaning,
        form: "Number of jobs",
        default: &default,
    };
    let jobs = interview.flag_or_ask("--jobs", given_jobs, question, |jobs| {
        distribute_jobs(supply, jobs.0, least).map(|_| jobs.0)
    })?;
    let most = supply.most_memory(jobs).unwrap_or(0);
    let meaning = format!(
        "At least this much. {} can have up to {} GiB{}.",
        format_count(jobs as usize, "job"),
        format_gib(most << 20),
        each_suffix(jobs)
    );
    let question = Question {
        text: "How much memory must each job have?",
        meaning: &meaning,
        form: "Size such as 10G, or any",
        default: "any",
    };
    interview.flag_or_ask("--min-memory", given_memory, question, |memory| {
        distribute_jobs(supply, jobs, *memory)
    })
}

/// Divides jobs among the GPUs. Returns the devices that they need on each GPU.
fn distribute_jobs<'a>(
    supply: &Supply<'a>,
    jobs: u32,
    memory: LeastMemory,
) -> Result<Vec<(GroupSupply<'a>, u32)>> {
    supply
        .distribute_jobs(jobs, memory.least_mib())
        .map_err(|error| too_many(supply, jobs, memory, error))
}

/// Explains that the memory asked for is a profile's by its name, and not what its devices have:
/// `2g.20gb has 19.5 GiB: ask for 19G`.
fn smaller_than_its_name(supply: &Supply<'_>, least_mib: u64) -> Option<String> {
    let largest = supply
        .groups
        .iter()
        .flat_map(|supply| &supply.group.profiles)
        .filter(|profile| {
            let named = profile.name.gigabytes().unwrap_or(0);
            profile.memory_mib < least_mib && u64::from(named) << 10 >= least_mib
        })
        .max_by_key(|profile| (profile.name.is_plain(), profile.name.slices()))?;
    let (name, has) = (&largest.name, largest.memory_mib);
    Some(format!(
        "ask for {1}G; {name} has {0} GiB",
        format_gib(has << 20),
        has >> 10
    ))
}

/// The error of jobs that do not fit: the most devices that do, and the nearest jobs.
fn too_many(
    supply: &Supply<'_>,
    jobs: u32,
    memory: LeastMemory,
    error: TooManyJobs,
) -> CommandError {
    let (least, most) = (memory.0, error.jobs);
    let gpus = match supply.gpu_count() {
        1 => "this GPU".to_owned(),
        several => format!("these {several} GPUs"),
    };
    let why = match most {
        0 => format!(
            "the largest device has {} GiB",
            format_gib(error.largest_mib << 20)
        ),
        _ if least == 0 => format!("{gpus} can have {most} devices"),
        _ => format!("{gpus} can have {most} devices with this much memory"),
    };
    let does = if jobs == 1 { "does" } else { "do" };
    let maps = partition::render_fullest(&supply.with_memory(memory.least_mib()));
    let what = format!(
        "{} {does} not fit: {why}{maps}",
        describe_jobs(jobs, memory)
    );
    let mut nearest = Vec::new();
    if most > 0 {
        nearest.push(describe_jobs(most, memory));
    }
    if error.memory_mib.is_some() && least > 0 {
        nearest.push(describe_largest_jobs(supply, jobs));
    }
    if nearest.is_empty() {
        nearest.push(describe_largest_jobs(supply, supply.most_jobs()));
    }
    let nearest = format!("request {}", nearest.join(", or "));
    let hints = smaller_than_its_name(supply, least).into_iter();
    let sharing = "let jobs share a device by MPS: share = N in the profile gives each of N an equal part (`mig-mps \
     help recipes`, A class of twenty)";
    CommandError {
        hints: hints.chain([nearest, sharing.to_owned()]).collect(),
        ..CommandError::new(ExitStatus::Infeasible, what)
    }
}

/// `3 jobs with 19.5 GiB each`
fn describe_largest_jobs(supply: &Supply<'_>, jobs: u32) -> String {
    let memory = supply.most_memory(jobs).unwrap_or(0);
    let (most, each) = (format_gib(memory << 20), each_suffix(jobs));
    format!(
        "{} with {most} GiB{each}",
        format_count(jobs as usize, "job")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_device_can_be_asked_for() {
        for mib in 1024..30_000 {
            let shown = format!("{}G", format_gib(mib << 20));
            let asked: LeastMemory = shown.parse().unwrap();
            assert!(asked.least_mib() <= mib, "{shown} of {mib} MiB");
            assert!(asked.least_mib() + 52 >= asked.0);
        }
        assert_eq!(LeastMemory(512).least_mib(), 512);
    }

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
        assert_eq!(KeptWhole::All.select_from(&gpus), Ok(gpus.clone()));
        let missing = read("0-3").unwrap().select_from(&gpus);
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
