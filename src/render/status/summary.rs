use std::collections::BTreeSet;
use std::time::Duration;

use super::device::State;
use super::row::{Row, rows};
use crate::node::Node;
use crate::render::format::{count, time_taken};

/// Says in one line how many of these devices, or of all, are ready after a change.
pub fn summary(node: &Node, devices: &[String], took: Duration) -> String {
    let rows = rows(node, devices);
    let gpus: BTreeSet<u32> = rows
        .iter()
        .filter_map(|row| Some(row.gpu()?.index))
        .collect();
    let served: Vec<&Row<'_>> = rows.iter().filter(|row| row.served.is_some()).collect();
    let ready = served.iter().filter(|row| is_ready(row)).count();
    let (gpus, took) = (count(gpus.len(), "GPU"), time_taken(took));
    match (rows.len(), served.len(), ready) {
        (0, ..) => format!("Done in {took}"),
        (all, 0, _) => format!(
            "{} on {gpus} in {took}, none with a daemon",
            count(all, "device")
        ),
        (_, all, ready) if all == ready => {
            format!("{} on {gpus} ready in {took}", count(all, "device"))
        }
        (_, all, ready) => format!(
            "{ready} of {} on {gpus} ready in {took}",
            count(all, "device")
        ),
    }
}

/// True if it accepts clients. A lazy daemon starts its server for the first one.
fn is_ready(row: &Row<'_>) -> bool {
    matches!(State::of(row), State::Ready | State::NoServerYet)
}
