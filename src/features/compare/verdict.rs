//! The last line of a comparison: whether MPS is worth it, in figures.

use super::report::{Compared, Spread, format_ratio};
use crate::render::format::format_gib;

/// Returns the verdict on a comparison with at least one row, all of whose rounds are measured.
pub(super) fn verdict(device: &str, rows: &[Compared]) -> String {
    let is_unseen = |row: &Compared| {
        [&row.without_mps, &row.with_mps]
            .iter()
            .any(|way| way.is_seen() == Some(false))
    };
    if rows.iter().any(is_unseen) {
        return format!(
            "No verdict: in some measurements the driver listed no copy on {device}. The program exited too soon, or \
             did not use the GPU."
        );
    }
    let speed_ups = rows.iter().map(|row| Spread::from_values(&row.speed_up));
    let judged: Vec<(&Compared, Spread)> = rows.iter().zip(speed_ups).collect();
    let losses = losses(&judged);
    // Every round gains, and on average more than noise does.
    let is_clear = |one: &&(&Compared, Spread)| one.1.least > 1.0 && is_gain(one.1.mean);
    if let Some((row, speed_up)) = best_of(judged.iter().filter(is_clear)) {
        return format!("As clients of MPS, {}{losses}.", gain(row, speed_up.mean));
    }
    let Some((row, speed_up)) = best_of(judged.iter()) else {
        return String::new();
    };
    if is_gain(speed_up.mean) {
        return format!(
            "No clear gain: {} {} times the throughput{losses}.",
            copies_have(row),
            format_range(*speed_up)
        );
    }
    let all = Spread {
        least: judged
            .iter()
            .map(|(_, one)| one.least)
            .fold(f64::INFINITY, f64::min),
        greatest: judged
            .iter()
            .map(|(_, one)| one.greatest)
            .fold(0.0, f64::max),
        ..*speed_up
    };
    let range = format_range(all);
    if all.greatest < 1.0 && is_loss(speed_up.mean) {
        return format!("A loss: as clients of MPS, copies have {range} times the throughput.");
    }
    format!("No gain: {range}.")
}

/// Returns the row that gains most, of equal ones the last.
fn best_of<'a, 'r>(
    rows: impl Iterator<Item = &'a (&'r Compared, Spread)>,
) -> Option<&'a (&'r Compared, Spread)>
where
    'r: 'a,
{
    rows.max_by(|one, other| one.1.mean.total_cmp(&other.1.mean))
}

/// The part of a throughput by which measurements of the same differ.
const NOISE: f64 = 0.03;

fn is_gain(speed_up: f64) -> bool {
    speed_up >= 1.0 + NOISE
}

fn is_loss(speed_up: f64) -> bool {
    speed_up <= 1.0 - NOISE
}

fn copies_have(row: &Compared) -> String {
    match row.copies {
        1 => "1 copy has".to_owned(),
        copies => format!("{copies} copies have"),
    }
}

/// `4 copies have 8.9 times the throughput, and use 0.4 GiB more`
fn gain(row: &Compared, speed_up: f64) -> String {
    let times = match speed_up {
        2.0.. => format!("{speed_up:.1}"),
        _ => format_ratio(speed_up),
    };
    let use_memory = if row.copies == 1 { "uses" } else { "use" };
    let memory = match (
        row.without_mps.memory_used_bytes,
        row.with_mps.memory_used_bytes,
    ) {
        (Some(outside), Some(clients)) => {
            let difference = format_gib(clients.abs_diff(outside));
            match difference.as_str() {
                "0.0" => format!(", and {use_memory} as much memory"),
                gib if clients > outside => format!(", and {use_memory} {gib} GiB more"),
                gib => format!(", and {use_memory} {gib} GiB less"),
            }
        }
        _ => String::new(),
    };
    format!("{} {times} times the throughput{memory}", copies_have(row))
}

/// Names the numbers of copies that are slower as clients: `; 1 copy has 0.90 times`.
fn losses(judged: &[(&Compared, Spread)]) -> String {
    let losing: Vec<String> = judged
        .iter()
        .filter(|(_, one)| one.greatest < 1.0 && is_loss(one.mean))
        .map(|(row, one)| format!("{} {} times", copies_have(row), format_ratio(one.mean)))
        .collect();
    if losing.is_empty() {
        String::new()
    } else {
        format!("; {}", losing.join(", "))
    }
}

/// `0.99 to 1.00`, or one figure if both are the same.
fn format_range(spread: Spread) -> String {
    let (least, greatest) = (format_ratio(spread.least), format_ratio(spread.greatest));
    if least == greatest {
        least
    } else {
        format!("{least} to {greatest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::compare::report::Way;

    fn row(copies: u32, speed_up: &[f64], memory: Option<(u64, u64)>) -> Compared {
        let way = |memory_used_bytes| Way {
            memory_used_bytes,
            sightings: vec![Some(true)],
            ..Way::default()
        };
        Compared {
            copies,
            without_mps: way(memory.map(|(outside, _)| outside)),
            with_mps: way(memory.map(|(_, clients)| clients)),
            speed_up: speed_up.to_vec(),
        }
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_gain_is_that_of_the_best_number_of_copies() {
        let rows = [
            row(1, &[0.99, 1.01], None),
            row(4, &[8.8, 9.0], Some((GIB, 7 * GIB / 5))),
            row(8, &[8.0, 8.2], Some((GIB, GIB))),
        ];
        assert_eq!(
            verdict("0", &rows),
            "As clients of MPS, 4 copies have 8.9 times the throughput, and use 0.4 GiB more."
        );
        assert_eq!(
            verdict("0", &[row(1, &[1.2, 1.3], Some((GIB, GIB / 2)))]),
            "As clients of MPS, 1 copy has 1.25 times the throughput, and uses 0.5 GiB less."
        );
        assert_eq!(
            verdict("0", &[row(2, &[2.0], Some((GIB, GIB)))]),
            "As clients of MPS, 2 copies have 2.0 times the throughput, and use as much memory."
        );
    }

    #[test]
    fn a_clear_gain_goes_before_a_larger_one_that_is_not() {
        let rows = [row(2, &[1.1, 1.3], None), row(4, &[0.95, 1.9], None)];
        assert_eq!(
            verdict("0", &rows),
            "As clients of MPS, 2 copies have 1.20 times the throughput."
        );
    }

    #[test]
    fn a_gain_does_not_hide_a_loss() {
        let rows = [row(1, &[0.9, 0.92], None), row(2, &[1.5], None)];
        assert_eq!(
            verdict("0", &rows),
            "As clients of MPS, 2 copies have 1.50 times the throughput; 1 copy has 0.91 times."
        );
    }

    #[test]
    fn what_is_no_gain_is_said_in_figures() {
        let said = |rows: &[Compared]| verdict("0", rows);
        assert_eq!(
            said(&[row(1, &[0.99, 1.0], None), row(2, &[1.0], None)]),
            "No gain: 0.99 to 1.00."
        );
        assert_eq!(said(&[row(1, &[1.001], None)]), "No gain: 1.00.");
        assert_eq!(
            said(&[row(1, &[0.99], None), row(2, &[1.01, 1.02], None)]),
            "No gain: 0.99 to 1.02."
        );
        assert_eq!(
            said(&[row(1, &[0.98, 0.99], None)]),
            "No gain: 0.98 to 0.99."
        );
        assert_eq!(
            said(&[row(1, &[0.8], None), row(2, &[0.95, 1.3], None)]),
            "No clear gain: 2 copies have 0.95 to 1.30 times the throughput; 1 copy has 0.80 times."
        );
        assert_eq!(
            said(&[row(1, &[0.9, 0.95], None), row(2, &[0.7], None)]),
            "A loss: as clients of MPS, copies have 0.70 to 0.95 times the throughput."
        );
    }

    #[test]
    fn figures_of_programs_that_were_not_seen_get_no_verdict() {
        let mut unseen = row(2, &[3.0], None);
        unseen.with_mps.sightings.push(Some(false));
        assert!(verdict("0", &[unseen.clone()]).starts_with("No verdict: "));
        // The driver shows processes to root only.
        unseen.with_mps.sightings = vec![None];
        assert!(verdict("0", &[unseen]).starts_with("As clients of MPS, 2 copies"));
    }
}
