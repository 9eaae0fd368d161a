//! The comparison of programs outside MPS with the same programs as clients.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::verdict::verdict;
use crate::render::format::{
    display_or, escape_text, format_count, format_figure, format_gib, wrap_lines,
};
use crate::render::json::{Report, Version, as_seconds};
use crate::render::table::{Column, NONE, Table};

/// A quantity over all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Spread {
    pub least: f64,
    pub mean: f64,
    pub greatest: f64,
}

impl Spread {
    /// Summarizes measurements, of which there is at least one.
    pub fn from_values(values: &[f64]) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "there are few")]
        let count = values.len().max(1) as f64;
        Self {
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            mean: values.iter().sum::<f64>() / count,
            greatest: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

fn as_spread<S: Serializer>(rounds: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    Spread::from_values(rounds).serialize(serializer)
}

/// Copies outside MPS, or as clients.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Way {
    /// The throughput of all copies together, over all rounds.
    #[serde(serialize_with = "as_spread")]
    #[schemars(with = "Spread")]
    pub throughput: Vec<f64>,
    /// The most device memory in use, that of the MPS server included; null if the driver does not tell.
    pub memory_used_bytes: Option<u64>,
    /// True if the driver listed a copy in each round as it was to run: outside MPS, or as a client; null if it shows no
    /// processes to the caller.
    #[serde(rename = "seen_on_device", serialize_with = "as_seen")]
    #[schemars(with = "Option<bool>")]
    pub sightings: Vec<Option<bool>>,
    /// The largest latency that a copy has printed; null if none has.
    #[serde(rename = "latency_seconds", serialize_with = "as_seconds")]
    #[schemars(with = "Option<f64>")]
    pub latency_ms: Option<f64>,
}

fn as_seen<S: Serializer>(sightings: &[Option<bool>], serializer: S) -> Result<S::Ok, S::Error> {
    all_seen(sightings).serialize(serializer)
}

/// Returns false if a round has no sighting, and `None` if one is hidden.
fn all_seen(sightings: &[Option<bool>]) -> Option<bool> {
    if sightings.contains(&Some(false)) {
        return Some(false);
    }
    (!sightings.contains(&None)).then_some(true)
}

impl Way {
    /// True if copies were seen in each round; `None` if that is hidden.
    pub fn is_seen(&self) -> Option<bool> {
        all_seen(&self.sightings)
    }

    fn mean_throughput(&self) -> f64 {
        Spread::from_values(&self.throughput).mean
    }
}

/// A number of copies.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Compared {
    pub copies: u32,
    pub without_mps: Way,
    pub with_mps: Way,
    /// The throughput as clients divided by that outside MPS, over all rounds.
    #[serde(serialize_with = "as_spread")]
    #[schemars(with = "Spread")]
    pub speed_up: Vec<f64>,
}

impl Compared {
    pub fn rounds(&self) -> u32 {
        u32::try_from(self.with_mps.throughput.len()).unwrap_or(u32::MAX)
    }

    /// Leaves only the rounds that were measured both ways; false if there is none.
    pub fn keep_whole_rounds(&mut self) -> bool {
        let (outside, mps) = (&mut self.without_mps, &mut self.with_mps);
        let rounds = outside.throughput.len().min(mps.throughput.len());
        outside.throughput.truncate(rounds);
        mps.throughput.truncate(rounds);
        rounds > 0
    }

    /// Computes the speed-up once all rounds are measured.
    pub fn add_speed_up(&mut self) {
        let outside = &self.without_mps.throughput;
        let rounds = self.with_mps.throughput.iter().zip(outside);
        self.speed_up = rounds.map(|(mps, outside)| mps / outside).collect();
    }
}

/// The output of `mig-mps compare --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "compare")]
pub struct Comparison {
    pub version: Version,
    /// The device's name.
    pub device: String,
    /// Its profile and GPU, such as `3g.40gb of NVIDIA A100-SXM4-80GB`.
    #[serde(skip)]
    pub kind: String,
    /// The program and its arguments.
    pub command_line: Vec<String>,
    /// The quantity that `throughput` counts: `rate` for the number at the end of a program's last line, or `runs per second`.
    pub quantity: &'static str,
    /// A last line with a rate; null if runs are counted.
    pub last_line: Option<String>,
    pub rounds: u32,
    pub comparisons: Vec<Compared>,
}

/// The widest bar, in characters.
const MAX_BAR_WIDTH: usize = 60;

/// The most that is shown of a program's line, in characters.
const MAX_LINE_CHARS: usize = 40;

impl Report for Comparison {
    /// Formats it as a table and a bar chart.
    fn text(&self, width: usize) -> String {
        let program = self.command_line.first().map_or("", String::as_str);
        let measured = match &self.last_line {
            Some(line) => format!("the number at the end of {:?}", end_of(line)),
            None => self.quantity.to_owned(),
        };
        let heading = format!(
            "{} ({}): {}, {} of each\n\
             Measured: {measured}, summed over the copies; the mean of all rounds",
            self.device,
            escape_text(&self.kind),
            escape_text(program),
            format_count(self.rounds as usize, "round"),
        );
        format!(
            "{}\n\n{}\n{}\n{}\n",
            wrap_lines(&heading, width),
            render_table(&self.comparisons, width),
            render_chart(&self.comparisons, width),
            wrap_lines(&verdict(&self.device, &self.comparisons), width),
        )
    }
}

fn render_table(rows: &[Compared], width: usize) -> String {
    let mut table = Table::new(vec![
        Column::right_aligned("COPIES", 0),
        Column::right_aligned("OUTSIDE MPS", 0),
        Column::right_aligned("AS CLIENTS", 0),
        Column::right_aligned("SPEED-UP", 0),
        Column::left_aligned("RANGE", 1),
        Column::right_aligned(MEMORY, 0),
        Column::right_aligned(LATENCY, 0).hidden_if_empty(),
    ]);
    for row in rows {
        let speed_up = Spread::from_values(&row.speed_up);
        let ways = [&row.without_mps, &row.with_mps];
        table.add_row(vec![
            row.copies.to_string(),
            format_figure(row.without_mps.mean_throughput()),
            format_figure(row.with_mps.mean_throughput()),
            format_ratio(speed_up.mean),
            format!(
                "{} to {}",
                format_ratio(speed_up.least),
                format_ratio(speed_up.greatest)
            ),
            format_pair(ways.map(|way| way.memory_used_bytes.map(format_gib)), "n/a"),
            format_pair(ways.map(|way| way.latency_ms.map(format_figure)), NONE),
        ]);
    }
    let has_latency = rows.iter().any(|row| {
        row.without_mps
            .latency_ms
            .or(row.with_mps.latency_ms)
            .is_some()
    });
    let titles = if has_latency {
        format!("{MEMORY}, {LATENCY}")
    } else {
        MEMORY.to_owned()
    };
    let legend = format!("{titles}: outside MPS → as clients");
    table.render(width, "--json") + &wrap_lines(&legend, width) + "\n"
}

/// The titles of the columns with two figures, of which none is to be hidden without the other.
const MEMORY: &str = "MEMORY GIB";
const LATENCY: &str = "LATENCY MS";

/// `0.5 → 0.9`, or only the word for no figure if there is none.
fn format_pair([outside, clients]: [Option<String>; 2], none: &str) -> String {
    if outside.is_none() && clients.is_none() {
        return none.to_owned();
    }
    format!(
        "{} → {}",
        display_or(outside, none),
        display_or(clients, none)
    )
}

fn render_chart(rows: &[Compared], width: usize) -> String {
    let mut bars: Vec<(String, f64)> = Vec::new();
    for row in rows {
        bars.push((
            format!("{:>4} outside", row.copies),
            row.without_mps.mean_throughput(),
        ));
        bars.push(("     clients".to_owned(), row.with_mps.mean_throughput()));
    }
    let greatest = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let room = width.saturating_sub(24).clamp(10, MAX_BAR_WIDTH);
    let mut text = String::new();
    for (label, value) in bars {
        let bar = "#".repeat(bar_length(value / greatest, room));
        let _ = writeln!(text, "{label} {bar} {}", format_figure(value));
    }
    text
}

/// Returns a line, or the end of a long one.
fn end_of(line: &str) -> String {
    let length = line.chars().count();
    if length <= MAX_LINE_CHARS {
        return line.to_owned();
    }
    let end = line.chars().skip(length - MAX_LINE_CHARS);
    ['…'].into_iter().chain(end).collect()
}

/// Returns the length of a bar that is this share of the widest one.
fn bar_length(share: f64, room: usize) -> usize {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share of a screen's width"
    )]
    let length = (share * room as f64).round() as usize;
    length.max(1)
}

/// Formats a ratio.
pub fn format_ratio(ratio: f64) -> String {
    let decimals = if ratio < 10.0 { 2 } else { 1 };
    format!("{ratio:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_up_is_that_of_each_round() {
        let mut compared = Compared::default();
        compared.without_mps.throughput = vec![10.0, 20.0];
        compared.with_mps.throughput = vec![30.0, 50.0];
        compared.add_speed_up();
        let wanted = Spread {
            least: 2.5,
            mean: 2.75,
            greatest: 3.0,
        };
        assert_eq!(Spread::from_values(&compared.speed_up), wanted);
    }

    #[test]
    fn bars_are_shares_of_the_widest() {
        assert_eq!(
            [1.0, 0.5, 0.001].map(|share| bar_length(share, 60)),
            [60, 30, 1]
        );
    }
}
