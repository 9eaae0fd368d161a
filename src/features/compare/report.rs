//! The comparison of programs outside MPS with the same programs as clients.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use crate::render::format::{count, escaped, gib, shown_or};
use crate::render::json::{VERSION, Version};
use crate::render::table::{Column, Table};
use crate::render::width;

/// The least, the mean and the greatest of some measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub least: f64,
    pub mean: f64,
    pub greatest: f64,
}

impl Spread {
    /// Summarises measurements, of which there is at least one.
    pub fn of(values: &[f64]) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "there are few")]
        let count = values.len().max(1) as f64;
        Self {
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            mean: values.iter().sum::<f64>() / count,
            greatest: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// The quantity that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The number at the end of a program's last line, and one of these lines.
    Rate(String),
    /// Runs of the program per second.
    Runs,
}

/// One way of running copies: outside MPS, or as clients.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// The sum over all copies, for each round.
    pub throughput: Vec<f64>,
    /// The most device memory in use, in bytes; `None` if the driver does not tell.
    pub memory: Option<u64>,
}

impl Way {
    fn mean(&self) -> f64 {
        Spread::of(&self.throughput).mean
    }
}

/// Both ways of running a number of copies.
#[derive(Clone, Debug)]
pub struct Compared {
    pub copies: u32,
    pub outside: Way,
    pub mps: Way,
}

impl Compared {
    /// Returns the throughput as clients divided by that outside MPS, round by round.
    pub fn speed_up(&self) -> Spread {
        let rounds = self.mps.throughput.iter().zip(&self.outside.throughput);
        let ratios: Vec<f64> = rounds.map(|(mps, outside)| mps / outside).collect();
        Spread::of(&ratios)
    }
}

/// A comparison on one device.
#[derive(Debug)]
pub struct Comparison {
    /// The device's name.
    pub device: String,
    /// Its profile and GPU, such as `3g.40gb of NVIDIA A100-SXM4-80GB`.
    pub kind: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    pub quantity: Quantity,
    pub rounds: u32,
    pub rows: Vec<Compared>,
}

/// The widest bar, in characters.
const WIDEST: usize = 60;

/// The most that is shown of a program's line, in characters.
const LINE: usize = 40;

/// Formats a comparison as a table and a bar chart.
pub fn text(comparison: &Comparison) -> String {
    let program = comparison.command.first().map_or("", String::as_str);
    let measured = match &comparison.quantity {
        Quantity::Rate(line) => format!("the number at the end of {:?}", end_of(line)),
        Quantity::Runs => "runs per second".to_owned(),
    };
    let mut text = format!(
        "{} ({}): {}, {} of each\nMeasured: {measured}, summed over the copies; the mean of all rounds\n\n",
        comparison.device,
        escaped(&comparison.kind),
        escaped(program),
        count(comparison.rounds as usize, "round"),
    );
    let mut table = Table::new(vec![
        Column::right("COPIES", 0),
        Column::right("OUTSIDE MPS", 0),
        Column::right("AS CLIENTS", 0),
        Column::right("SPEED-UP", 0),
        Column::left("RANGE", 1),
        Column::right("GIB OUTSIDE", 2),
        Column::right("GIB AS CLIENTS", 2),
    ]);
    for row in &comparison.rows {
        let speed_up = row.speed_up();
        table.row(vec![
            row.copies.to_string(),
            figure(row.outside.mean()),
            figure(row.mps.mean()),
            times(speed_up.mean),
            format!("{} to {}", times(speed_up.least), times(speed_up.greatest)),
            shown_or(row.outside.memory.map(gib), "n/a"),
            shown_or(row.mps.memory.map(gib), "n/a"),
        ]);
    }
    text += &table.within(width(), "--json");
    text.push('\n');
    let mut bars: Vec<(String, f64)> = Vec::new();
    for row in &comparison.rows {
        bars.push((format!("{:>4} outside", row.copies), row.outside.mean()));
        bars.push(("     clients".to_owned(), row.mps.mean()));
    }
    let greatest = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let room = width().saturating_sub(24).clamp(10, WIDEST);
    for (label, value) in bars {
        let bar = "#".repeat(length(value / greatest, room));
        let _ = writeln!(text, "{label} {bar} {}", figure(value));
    }
    text
}

/// Returns a line, or the end of a long one.
fn end_of(line: &str) -> String {
    let length = line.chars().count();
    if length <= LINE {
        return line.to_owned();
    }
    let end = line.chars().skip(length - LINE);
    ['…'].into_iter().chain(end).collect()
}

/// Returns the length of a bar that is this share of the widest one.
fn length(share: f64, room: usize) -> usize {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share of a screen's width"
    )]
    let length = (share * room as f64).round() as usize;
    length.max(1)
}

/// Formats a number with three digits or more.
fn figure(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// Formats a ratio.
fn times(ratio: f64) -> String {
    let decimals = if ratio < 10.0 { 2 } else { 1 };
    format!("{ratio:.decimals$}")
}

/// The output of `mig-mps compare --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "compare")]
pub struct CompareDocument<'a> {
    version: Version,
    /// The device's name.
    device: &'a str,
    /// The program and its arguments.
    command_line: &'a [String],
    /// The quantity that `throughput` counts: `rate` for the number at the end of a program's last line, or `runs per second`.
    quantity: &'static str,
    /// A last line with a rate; null if runs are counted.
    last_line: Option<&'a str>,
    rounds: u32,
    comparisons: Vec<ComparedCopies>,
}

/// A number of copies.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "compared_copies")]
struct ComparedCopies {
    copies: u32,
    without_mps: ComparedWay,
    with_mps: ComparedWay,
    /// The throughput as clients divided by that outside MPS, over all rounds.
    speed_up: ComparedSpread,
}

/// Copies outside MPS, or as clients.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "compared_way")]
struct ComparedWay {
    /// The throughput of all copies together, over all rounds.
    throughput: ComparedSpread,
    /// The most device memory in use, that of the MPS server included; null if the driver does not tell.
    memory_used_bytes: Option<u64>,
}

/// A quantity over all rounds.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "spread")]
struct ComparedSpread {
    least: f64,
    mean: f64,
    greatest: f64,
}

impl<'a> CompareDocument<'a> {
    /// Describes a comparison.
    pub fn of(comparison: &'a Comparison) -> Self {
        Self {
            version: VERSION,
            device: &comparison.device,
            command_line: &comparison.command,
            quantity: match comparison.quantity {
                Quantity::Rate(_) => "rate",
                Quantity::Runs => "runs per second",
            },
            last_line: match &comparison.quantity {
                Quantity::Rate(line) => Some(line),
                Quantity::Runs => None,
            },
            rounds: comparison.rounds,
            comparisons: comparison.rows.iter().map(ComparedCopies::of).collect(),
        }
    }
}

impl ComparedCopies {
    fn of(compared: &Compared) -> Self {
        Self {
            copies: compared.copies,
            without_mps: ComparedWay::of(&compared.outside),
            with_mps: ComparedWay::of(&compared.mps),
            speed_up: compared.speed_up().into(),
        }
    }
}

impl ComparedWay {
    fn of(way: &Way) -> Self {
        Self {
            throughput: Spread::of(&way.throughput).into(),
            memory_used_bytes: way.memory,
        }
    }
}

impl From<Spread> for ComparedSpread {
    fn from(spread: Spread) -> Self {
        Self {
            least: spread.least,
            mean: spread.mean,
            greatest: spread.greatest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_up_is_that_of_each_round() {
        let way = |throughput: &[f64]| Way {
            throughput: throughput.to_vec(),
            memory: None,
        };
        let compared = Compared {
            copies: 8,
            outside: way(&[10.0, 20.0]),
            mps: way(&[30.0, 50.0]),
        };
        let wanted = Spread {
            least: 2.5,
            mean: 2.75,
            greatest: 3.0,
        };
        assert_eq!(compared.speed_up(), wanted);
    }

    #[test]
    fn figures_have_three_digits() {
        let shown = [86616.4, 123.4, 12.34, 1.234, 0.1234, 0.01234].map(figure);
        assert_eq!(shown, ["86616", "123", "12.3", "1.23", "0.123", "0.0123"]);
    }

    #[test]
    fn bars_are_shares_of_the_widest() {
        assert_eq!(
            [1.0, 0.5, 0.001].map(|share| length(share, 60)),
            [60, 30, 1]
        );
    }
}
