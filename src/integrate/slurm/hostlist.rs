//! Lists such as `n[1-3,07],gpu4`, in which Slurm's files name nodes and device files.

/// The most names that a list may stand for.
const MOST: usize = 65_536;

/// The most memory that the names may take.
const MOST_BYTES: usize = 16 << 20;

/// The most digits of a number, leading zeros included.
const LONGEST: usize = 20;

/// Returns the names that a list stands for; `None` if it is malformed, or stands for too many.
pub(super) fn expand(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for part in split(list) {
        let mut found = vec![String::new()];
        let mut rest = part;
        while let Some((before, after)) = rest.split_once('[') {
            let (ranges, after) = after.split_once(']')?;
            let numbers = numbers(ranges)?;
            let count = found.len().checked_mul(numbers.len())?;
            if count > MOST || count.checked_mul(part.len())? > MOST_BYTES {
                return None;
            }
            found = found
                .iter()
                .flat_map(|name| {
                    let numbers = numbers.iter();
                    numbers.map(move |number| format!("{name}{before}{number}"))
                })
                .collect();
            rest = after;
        }
        names.extend(found.into_iter().map(|name| name + rest));
        if names.len() > MOST {
            return None;
        }
    }
    Some(names)
}

/// Splits a list at the commas outside brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    list.split(move |sign| {
        match sign {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ => {}
        }
        sign == ',' && !is_inside
    })
    .filter(|part| !part.is_empty())
}

/// Returns the numbers of `1-3,07`, with their leading zeros.
fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        let width = first.len();
        if numbers.len().saturating_add(to.checked_sub(from)?) > MOST || width > LONGEST {
            return None;
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::expand;

    fn expanded(list: &str) -> String {
        expand(list).map_or_else(|| "refused".to_owned(), |names| names.join(" "))
    }

    #[test]
    fn a_list_is_expanded() {
        assert_eq!(expanded("n1"), "n1");
        assert_eq!(expanded("n[1-3,07],gpu4"), "n1 n2 n3 n07 gpu4");
        assert_eq!(expanded("n[008-010]"), "n008 n009 n010");
        assert_eq!(expanded("r[1-2]n[1-2]x"), "r1n1x r1n2x r2n1x r2n2x");
        assert_eq!(expanded("/dev/nvidia[0-1]"), "/dev/nvidia0 /dev/nvidia1");
    }

    #[test]
    fn a_malformed_or_huge_list_is_refused() {
        let zeros = format!("n[{}1]", "0".repeat(70_000));
        let ranges = format!("n[{}]", ["0-65000"; 1000].join(","));
        let long = format!("{}[1-65000]", "n".repeat(1 << 20));
        for list in [
            "n[1-",
            "n[a]",
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
}
