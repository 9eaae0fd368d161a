//! Demands of programs, and figures that were measured: the file that `advise` reads and `compare --save` appends to.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use toml::Value;

use super::diagnostic::ProfileError;
use super::read::{Noted, ProfileCheck, parse_file};
use super::schema::{At, Companions, KeyValue, MeasuredTable, ProgramTable, WantedTable};
use crate::geometry::ProfileName;
use crate::settings::{CLIENT_COUNT_RANGE, MemoryLimit, Percentage};

/// Programs with what each wants, and figures.
#[derive(Clone, Debug, Default)]
pub struct WantedPrograms {
    pub programs: Vec<WantedProgram>,
    pub measured: Vec<Measurement>,
}

/// The demand of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedProgram {
    pub name: String,
    pub amount: Amount,
    /// The least memory of each copy; 0 for any.
    pub memory_mib: u64,
    pub latency_ms: Option<f64>,
    pub sharing: Sharing,
}

/// An amount of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A throughput of all its copies together.
    Rate(f64),
    Copies(u32),
}

/// The programs that may share a device with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// None, and no other copy of it.
    Alone,
    /// Its own copies.
    Own,
    /// Its own copies, and any other program.
    Any,
    /// Its own copies, and the programs with these names.
    With(Vec<String>),
}

/// Figures of copies of a program that ran on one device at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    pub program: String,
    /// A model of the catalog, or NVML's name.
    pub gpu: String,
    pub device: MeasuredDevice,
    /// The active thread percentage of each copy.
    pub threads: Percentage,
    pub copies: u32,
    /// The throughput of all copies together.
    pub throughput: f64,
    /// True if it counts runs of the program, and not what the program printed.
    pub counts_runs: bool,
    /// The device memory of all copies together, if it is known.
    pub memory_mib: Option<u64>,
    pub latency_ms: Option<f64>,
    /// True if it was computed from two others.
    pub is_interpolated: bool,
}

/// A size of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeasuredDevice {
    /// A GPU without MIG.
    Whole,
    Instance(ProfileName),
}

/// True if a text can name a program: it stands in figures, in tables and in the remarks of a profile.
pub fn is_program_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_control)
}

const WHOLE: &str = "whole";
const RUNS: &str = "runs";

impl fmt::Display for MeasuredDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str(WHOLE),
            Self::Instance(profile) => profile.fmt(f),
        }
    }
}

impl FromStr for MeasuredDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            WHOLE => Ok(Self::Whole),
            name => name.parse().map(Self::Instance),
        }
    }
}

/// The numbers that can be figures of a program: also their sums and quotients are finite.
pub const FIGURE_RANGE: RangeInclusive<f64> = 1e-100..=1e100;

/// Formats a figure without digits that mean nothing, as TOML takes it.
fn format_six_digits(figure: f64) -> String {
    let rounded = format!("{figure:.5e}").parse().unwrap_or(figure);
    if (1e-6..1e15).contains(&rounded) {
        rounded.to_string()
    } else {
        format!("{rounded:e}")
    }
}

/// The table for a file of figures.
impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| Value::from(text);
        writeln!(f, "[[measured]]\nprogram = {}", quoted(&self.program))?;
        writeln!(f, "gpu = {}", quoted(&self.gpu))?;
        writeln!(f, "device = \"{}\"", self.device)?;
        if self.threads != Percentage::FULL {
            writeln!(f, "threads = {}", self.threads)?;
        }
        writeln!(f, "copies = {}", self.copies)?;
        writeln!(f, "throughput = {}", format_six_digits(self.throughput))?;
        if self.counts_runs {
            writeln!(f, "counts = \"{RUNS}\"")?;
        }
        if let Some(mib) = self.memory_mib.filter(|mib| *mib > 0) {
            writeln!(f, "memory = \"{mib}M\"")?;
        }
        if let Some(latency) = self.latency_ms {
            writeln!(f, "latency_ms = {}", format_six_digits(latency))?;
        }
        Ok(())
    }
}

impl WantedPrograms {
    /// Reads a file of programs and figures; `path` is for messages only.
    pub fn parse(path: &Path, text: String) -> Result<Self, ProfileError> {
        parse_file(path, text, &|check, table, span| {
            let file = WantedTable::of(check, table, span);
            let programs = read_each(check, file.program, ProfileCheck::check_program);
            let measured = read_each(check, file.measured, ProfileCheck::check_measurement);
            let (programs, measured) = (programs?, measured?);
            for (nth, (program, span)) in programs.iter().enumerate() {
                if programs[..nth]
                    .iter()
                    .any(|(earlier, _)| earlier.name == program.name)
                {
                    let message = format!("\"{}\" has two [[program]] entries", program.name);
                    return check.refuse(*span, message);
                }
                if let Sharing::With(names) = &program.sharing
                    && let Some(name) = names
                        .iter()
                        .find(|name| programs.iter().all(|(other, _)| other.name != **name))
                {
                    let message = format!(
                        "\"{}\" should share devices with \"{name}\", which has no [[program]]",
                        program.name
                    );
                    return check.refuse(*span, message);
                }
            }
            Ok(Self {
                programs: programs.into_iter().map(|(program, _)| program).collect(),
                measured: measured.into_iter().map(|(measured, _)| measured).collect(),
            })
        })
    }
}

/// Reads every element of a list, also after a wrong one.
fn read_each<'a, T, U>(
    check: &ProfileCheck<'a>,
    list: KeyValue<Vec<At<T>>>,
    read: impl Fn(&ProfileCheck<'a>, T) -> Result<At<U>, Noted>,
) -> Result<Vec<At<U>>, Noted> {
    let list = list?.map_or_else(Vec::new, |(list, _)| list);
    let elements: Vec<Result<At<U>, Noted>> = list
        .into_iter()
        .map(|(element, _)| read(check, element))
        .collect();
    elements.into_iter().collect()
}

impl<'a> ProfileCheck<'a> {
    fn check_program(&self, table: ProgramTable<'a>) -> Result<At<WantedProgram>, Noted> {
        let name = table.name.and_then(|name| self.check_program_name(name));
        let memory = self.check_memory(table.memory);
        let copies = self.check_copies(table.copies, u32::MAX);
        let sharing = table.share.map(|share| match share {
            None => Sharing::Own,
            Some((Companions::Any(true), _)) => Sharing::Any,
            Some((Companions::Any(false), _)) => Sharing::Alone,
            Some((Companions::Named(names), _)) => {
                Sharing::With(names.into_iter().map(str::to_owned).collect())
            }
        });
        let (name, span) = name?;
        let amount = match (table.rate?, copies?) {
            (Some((rate, _)), None) => Amount::Rate(rate),
            (None, Some(copies)) => Amount::Copies(copies),
            (rate, _) => {
                let what = format!("program \"{name}\" needs either rate or copies");
                let hint = match rate {
                    Some(_) => "remove one of them: a rate decides how many copies are needed",
                    None => "add one: rate = 500, or copies = 4",
                };
                return Err(self.note(self.error_at(span, what).with_hint(hint)));
            }
        };
        let program = WantedProgram {
            name: name.to_owned(),
            amount,
            memory_mib: memory?.unwrap_or(0),
            latency_ms: table.latency_ms?.map(|(latency, _)| latency),
            sharing: sharing?,
        };
        Ok((program, span))
    }

    #[allow(clippy::needless_pass_by_value, reason = "as every reader of a table")]
    fn check_measurement(&self, table: MeasuredTable<'a>) -> Result<At<Measurement>, Noted> {
        let program = table.program.and_then(|name| self.check_program_name(name));
        let memory = self.check_memory(table.memory);
        let copies = self.check_copies(table.copies.map(Some), *CLIENT_COUNT_RANGE.end());
        let device = table.device.and_then(|(text, span)| {
            text.parse().map_err(|error: String| {
                let error = self.error_at(span, error);
                let hint = format!("or \"{WHOLE}\" for a GPU without MIG");
                self.note(error.with_hint(hint))
            })
        });
        let threads = table.threads.and_then(|threads| {
            let Some((threads, span)) = threads else {
                return Ok(Percentage::FULL);
            };
            let percentage = Percentage::new(threads);
            percentage.map_or_else(|| self.refuse(span, "threads must be from 0.1 to 100"), Ok)
        });
        let counts = table.counts.and_then(|counts| match counts {
            None => Ok(false),
            Some((RUNS, _)) => Ok(true),
            Some((_, span)) => {
                let message = format!("counts can only be \"{RUNS}\"; remove it for other figures");
                self.refuse(span, message)
            }
        });
        let (program, span) = program?;
        let measurement = Measurement {
            program: program.to_owned(),
            gpu: table.gpu?.0.to_owned(),
            device: device?,
            threads: threads?,
            copies: copies?.ok_or(Noted)?,
            throughput: table.throughput?.0,
            counts_runs: counts?,
            memory_mib: memory?,
            latency_ms: table.latency_ms?.map(|(latency, _)| latency),
            is_interpolated: false,
        };
        Ok((measurement, span))
    }

    fn check_program_name<'t>(&self, name: At<&'t str>) -> Result<At<&'t str>, Noted> {
        let (text, span) = name;
        if is_program_name(text) {
            return Ok(name);
        }
        self.refuse(span, "a program needs a name without control characters")
    }

    fn check_memory(&self, size: KeyValue<&str>) -> Result<Option<u64>, Noted> {
        let Some((text, span)) = size? else {
            return Ok(None);
        };
        let size: Result<MemoryLimit, String> = text.parse();
        size.map(|size| Some(size.bytes() >> 20))
            .or_else(|error| self.refuse(span, error))
    }

    fn check_copies(&self, copies: KeyValue<u32>, most: u32) -> Result<Option<u32>, Noted> {
        match copies? {
            Some((0, span)) => self.refuse(span, "copies must be 1 or more"),
            Some((copies, span)) if copies > most => {
                self.refuse(span, format!("a device accepts at most {most} copies"))
            }
            copies => Ok(copies.map(|(copies, _)| copies)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_read_as_it_was_written() {
        let measured = Measurement {
            program: "bert \"large\"".to_owned(),
            gpu: "NVIDIA X1".to_owned(),
            device: MeasuredDevice::Whole,
            threads: Percentage::new(12.5).unwrap(),
            copies: 4,
            throughput: 1234.5,
            counts_runs: true,
            memory_mib: Some(9728),
            latency_ms: Some(0.25),
            is_interpolated: false,
        };
        let plain = Measurement {
            device: MeasuredDevice::Instance("3g.40gb".parse().unwrap()),
            threads: Percentage::FULL,
            counts_runs: false,
            memory_mib: None,
            latency_ms: None,
            ..measured.clone()
        };
        let text = format!("{measured}\n{plain}");
        let read = WantedPrograms::parse(Path::new("figures.toml"), text).unwrap();
        assert_eq!(read.measured, [measured, plain]);
    }

    /// Each figure is written so that it is read as the same number, to six digits.
    #[test]
    fn figures_of_any_size_are_written() {
        for (figure, text) in [
            (1_234.567_89, "1234.57"),
            (123_456_789.0, "123457000"),
            (0.000_000_123_456_7, "1.23457e-7"),
            (0.000_12, "0.00012"),
            (1e15, "1e15"),
            (9.999_999e99, "1e100"),
            (1e-100, "1e-100"),
        ] {
            assert_eq!(format_six_digits(figure), text);
            let file = format!(
                "[[measured]]\nprogram = \"a\"\ngpu = \"a30\"\ndevice = \"1g\"\ncopies = 1\nthroughput = {text}\n"
            );
            let read = WantedPrograms::parse(Path::new("figures.toml"), file).unwrap();
            assert_eq!(
                read.measured[0].throughput.to_string(),
                text.parse::<f64>().unwrap().to_string()
            );
        }
    }

    #[test]
    fn every_mistake_is_shown_in_file_order() {
        let text = r#"
[[program]]
name = "a"
rate = 0
[[program]]
name = "b"
memory = "lots"
[[program]]
name = "c"
copies = 0
share = "c"
[[measured]]
program = "a\nb"
gpu = "a30"
device = "3h"
threads = 101
copies = 1025
throughput = 1
counts = "x"
"#;
        let error = WantedPrograms::parse(Path::new("w.toml"), text.to_owned()).unwrap_err();
        let lines = error.to_string();
        let places = lines
            .lines()
            .filter_map(|line| line.strip_prefix("w.toml:")?.split_once(": "));
        let places: Vec<&str> = places.map(|(at, _)| at).collect();
        assert_eq!(
            places,
            [
                "4:8", "6:8", "7:10", "10:10", "11:9", "13:11", "15:10", "16:11", "17:10", "19:10"
            ],
            "{lines}"
        );
    }
}
