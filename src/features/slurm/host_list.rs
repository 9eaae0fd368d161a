//! Slurm's lists of nodes and of files, such as `n[1-3,07]x[1-2],gpu4`.

use std::ops::RangeInclusive;

/// The most names that a list may stand for.
const MAX_NAMES: usize = 65_536;

/// The most memory that the names may take.
const MAX_BYTES: usize = 16 << 20;

/// The most digits of a number, leading zeros included.
const MAX_DIGITS: usize = 20;

/// A part of a name in a list.
#[derive(Debug)]
enum NamePart<'a> {
    Text(&'a str),
    Ranges(Vec<NumberRange>),
}

/// A range of numbers in brackets.
#[derive(Debug)]
struct NumberRange {
    numbers: RangeInclusive<u64>,
    /// The digits that each number has at least.
    width: usize,
}

/// Returns the names that a list stands for, in its order; `None` if it is malformed, or stands for too many.
pub(super) fn expand_host_list(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for name in split_list(list) {
        let mut found = vec![String::new()];
        for part in parse_parts(name)? {
            found = match part {
                NamePart::Text(text) if text.contains(['[', ']']) => return None,
                NamePart::Text(text) => found.into_iter().map(|name| name + text).collect(),
                NamePart::Ranges(ranges) => {
                    let count: u64 = ranges
                        .iter()
                        .map(|range| range.numbers.end() - range.numbers.start() + 1)
                        .sum();
                    let count = usize::try_from(count).ok()?.checked_mul(found.len())?;
                    if count > MAX_NAMES || count.checked_mul(name.len())? > MAX_BYTES {
                        return None;
                    }
                    let ranges = &ranges;
                    found
                        .iter()
                        .flat_map(|name| {
                            ranges
                                .iter()
                                .flat_map(move |NumberRange { numbers, width }| {
                                    numbers
                                        .clone()
                                        .map(move |number| format!("{name}{number:0width$}"))
                                })
                        })
                        .collect()
                }
            };
        }
        names.extend(found);
        if names.len() > MAX_NAMES {
            return None;
        }
    }
    Some(names)
}

/// True if a list names this node. To Slurm a list with a malformed range names no node, and a bracket that is not closed is
/// a letter.
pub(super) fn includes_node(list: &str, node: &str) -> bool {
    let names: Option<Vec<_>> = split_list(list).map(parse_parts).collect();
    names.is_some_and(|names| names.iter().any(|name| matches_name(name, node)))
}

/// True for a well-formed list of one name or more.
pub(super) fn is_list(list: &str) -> bool {
    let names: Option<Vec<_>> = split_list(list).map(parse_parts).collect();
    let is_letters =
        |part: &NamePart<'_>| matches!(part, NamePart::Text(text) if text.contains(['[', ']']));
    names.is_some_and(|names| !names.is_empty() && !names.iter().flatten().any(is_letters))
}

fn matches_name(parts: &[NamePart<'_>], name: &str) -> bool {
    match parts {
        [] => name.is_empty(),
        [NamePart::Text(text), rest @ ..] => name
            .strip_prefix(text)
            .is_some_and(|name| matches_name(rest, name)),
        [NamePart::Ranges(ranges), rest @ ..] => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            (1..=digits.min(MAX_DIGITS)).any(|count| {
                let (number, after) = name.split_at(count);
                is_within(number, ranges) && matches_name(rest, after)
            })
        }
    }
}

/// True if one of the ranges has this number, with these leading zeros.
fn is_within(number: &str, ranges: &[NumberRange]) -> bool {
    let Ok(value) = number.parse::<u64>() else {
        return false;
    };
    let has_width =
        |width| number.len() == width || (number.len() > width && !number.starts_with('0'));
    ranges
        .iter()
        .any(|range| range.numbers.contains(&value) && has_width(range.width))
}

/// Splits a list at the commas and blanks outside brackets.
fn split_list(list: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    list.split(move |sign: char| {
        match sign {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ => {}
        }
        (sign == ',' || sign.is_ascii_whitespace()) && !is_inside
    })
    .filter(|part| !part.is_empty())
}

fn parse_parts(name: &str) -> Option<Vec<NamePart<'_>>> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[')
        && let Some((ranges, after)) = after.split_once(']')
    {
        let ranges: Option<Vec<_>> = ranges.split(',').map(parse_range).collect();
        parts.extend([NamePart::Text(before), NamePart::Ranges(ranges?)]);
        rest = after;
    }
    parts.push(NamePart::Text(rest));
    Some(parts)
}

/// Reads `7`, `1-3` or `008-010`.
fn parse_range(range: &str) -> Option<NumberRange> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let is_number = |text: &str| text.bytes().all(|sign| sign.is_ascii_digit());
    let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let is_range = is_number(first) && is_number(last) && first.len() <= MAX_DIGITS;
    (is_range && from <= to && to - from < MAX_NAMES as u64).then_some(NumberRange {
        numbers: from..=to,
        width: first.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(list: &str) -> String {
        expand_host_list(list).map_or_else(|| "refused".to_owned(), |names| names.join(" "))
    }

    #[test]
    fn a_list_is_expanded() {
        assert_eq!(expanded("n1"), "n1");
        assert_eq!(expanded("n[1-3,07],gpu4"), "n1 n2 n3 n07 gpu4");
        assert_eq!(expanded("n[008-010]"), "n008 n009 n010");
        assert_eq!(expanded("r[1-2]n[1-2]x"), "r1n1x r1n2x r2n1x r2n2x");
        assert_eq!(
            expanded("/dev/nvidia[2,0-1]"),
            "/dev/nvidia2 /dev/nvidia0 /dev/nvidia1"
        );
        assert_eq!(expanded(",a, b [1]"), "a b 1");
    }

    #[test]
    fn a_malformed_or_huge_list_is_refused() {
        let zeros = format!("n[{}1]", "0".repeat(70_000));
        let ranges = format!("n[{}]", ["0-65000"; 1000].join(","));
        let long = format!("{}[1-65000]", "n".repeat(1 << 20));
        for list in [
            "n[1-",
            "n1]",
            "n[a]",
            "n[]",
            "n[+1]",
            "n[0-3,]",
            "n[3-1]",
            "n[1-99999999]",
            "n[0,0-18446744073709551615]",
            "n[1-999]x[1-999]",
            &zeros,
            &ranges,
            &long,
        ] {
            assert_eq!(expanded(list), "refused", "{list:.20}");
        }
    }

    #[test]
    fn a_list_has_the_names_that_it_stands_for() {
        for list in [
            "n1",
            "n[1-3,07],gpu4",
            "n[008-011]",
            "r[1-2]n[1-12]x",
            "n[9-10]1",
        ] {
            let names = expand_host_list(list).unwrap();
            for name in &names {
                assert!(includes_node(list, name), "{list}: {name}");
            }
            for other in [
                "n", "n0", "n01", "n4", "n11", "n0010", "r1n1", "r1n1xx", "N1", "n91x",
            ] {
                let is_one = names.iter().any(|name| name == other);
                assert_eq!(includes_node(list, other), is_one, "{list}: {other}");
            }
        }
        assert!(includes_node("rack[1-9999]node[1-9999]", "rack77node777"));
        assert!(includes_node("n1,n[2-", "n1") && !includes_node("n1,n[3-2]", "n1"));
        assert!(is_list("n[1-3,07]") && !is_list("n[1-") && !is_list(",") && !is_list("["));
    }
}
