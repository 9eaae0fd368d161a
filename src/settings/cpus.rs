use std::fmt;
use std::str::FromStr;

use super::text::serde_as_text;

/// A set of CPUs, as the kernel writes it: `0-7,16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// In order, apart from each other.
    ranges: Vec<(usize, usize)>,
}

/// The size of the mask of `sched_setaffinity(2)`, in bits.
const MAX_CPUS: usize = 1024;

impl Cpus {
    /// Their numbers, in order.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        self.ranges.iter().flat_map(|&(first, last)| first..=last)
    }

    /// Returns all CPUs of several sets.
    pub fn union_of(sets: impl IntoIterator<Item = Self>) -> Self {
        Self::from_ranges(sets.into_iter().flat_map(|set| set.ranges).collect())
    }

    fn from_ranges(mut ranges: Vec<(usize, usize)>) -> Self {
        ranges.sort_unstable();
        let mut joined: Vec<(usize, usize)> = Vec::new();
        for (first, last) in ranges {
            match joined.last_mut() {
                Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        Self { ranges: joined }
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if nth > 0 { "," } else { "" };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (parse_cpu_number(first)?, parse_cpu_number(last)?);
            if last < first {
                return Err(format!("{part} goes backwards: {last}-{first}?"));
            }
            ranges.push((first, last));
        }
        Ok(Self::from_ranges(ranges))
    }
}

fn parse_cpu_number(digits: &str) -> Result<usize, String> {
    // The kernel takes no sign, which `parse` would.
    let plain = !digits.contains('+');
    match digits.trim().parse() {
        Ok(number) if plain && number < MAX_CPUS => Ok(number),
        Ok(number) if plain => {
            let last = MAX_CPUS - 1;
            Err(format!("there is no CPU {number}: Linux counts to {last}"))
        }
        _ => Err(format!(
            "\"{digits}\" is not the number of a CPU: CPUs are written as in 0-7,16"
        )),
    }
}

/// The CPUs that a daemon and its server run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuChoice {
    /// Those of the GPU's NUMA node.
    Near,
    These(Cpus),
}

const NEAR: &str = "near";

impl fmt::Display for CpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near => f.write_str(NEAR),
            Self::These(cpus) => cpus.fmt(f),
        }
    }
}

impl FromStr for CpuChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            NEAR => Ok(Self::Near),
            cpus => cpus.parse().map(Self::These),
        }
    }
}

serde_as_text!(CpuChoice);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_written_as_the_kernel_writes_it() {
        for (text, written) in [
            ("0-7,16", "0-7,16"),
            ("16, 0-3,4-7", "0-7,16"),
            ("3", "3"),
            ("1,0,2", "0-2"),
            ("0-5,2-3", "0-5"),
        ] {
            assert_eq!(text.parse::<Cpus>().unwrap().to_string(), written, "{text}");
        }
        let cpus: Cpus = "1-2,9".parse().unwrap();
        assert_eq!(cpus.numbers().collect::<Vec<_>>(), [1, 2, 9]);
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for (text, why) in [
            ("7-0", "7-0 goes backwards: 0-7?"),
            (
                "",
                "\"\" is not the number of a CPU: CPUs are written as in 0-7,16",
            ),
            (
                "0-",
                "\"\" is not the number of a CPU: CPUs are written as in 0-7,16",
            ),
            (
                "0,x",
                "\"x\" is not the number of a CPU: CPUs are written as in 0-7,16",
            ),
            (
                "+1",
                "\"+1\" is not the number of a CPU: CPUs are written as in 0-7,16",
            ),
            ("1024", "there is no CPU 1024: Linux counts to 1023"),
        ] {
            assert_eq!(text.parse::<Cpus>(), Err(why.to_owned()), "{text}");
        }
    }
}
