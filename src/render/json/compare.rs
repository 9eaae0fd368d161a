use schemars::JsonSchema;
use serde::Serialize;

use super::{VERSION, Version};
use crate::client::{Compared, Comparison, Quantity, Spread, Way};

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
