//! Faults that are known, in files that only shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::rules::Faults;

/// How to take out what is mended.
const UPDATE: &str = "HOUSE_UPDATE=1 cargo test --test house";

fn is_update() -> bool {
    std::env::var_os("HOUSE_UPDATE").is_some_and(|value| value == "1")
}

/// Fails on a fault that is not known, and on a known one that is a fault no more.
pub(crate) fn compare_faults(path: &Path, faults: &Faults) {
    let text = fs::read_to_string(path).unwrap();
    let known = parse_faults(&text);
    let new = write_faults(&without(faults, &known));
    assert!(new.is_empty(), "new faults:\n{new}");
    if is_update() {
        fs::write(path, write_faults(faults)).unwrap();
        return;
    }
    let mended = write_faults(&without(&known, faults));
    assert!(
        mended.is_empty(),
        "mended, to be taken out with {UPDATE}:\n{mended}"
    );
    let is_sorted = text == write_faults(faults);
    assert!(is_sorted, "{} is not sorted: {UPDATE}", path.display());
}

/// Fails on a file that has more of what is counted than is known, or less.
pub(crate) fn compare_counts(
    path: &Path,
    counts: &BTreeMap<String, usize>,
    explain: impl Fn(&str) -> String,
) {
    let known = parse_counts(&fs::read_to_string(path).unwrap());
    let mut report = String::new();
    let files: BTreeSet<&String> = counts.keys().chain(known.keys()).collect();
    let of = |counts: &BTreeMap<String, usize>, file| counts.get(file).copied().unwrap_or(0);
    for file in files {
        let (now, then) = (of(counts, file), of(&known, file));
        if now > then {
            let _ = writeln!(report, "{file}: {now}, known are {then}\n{}", explain(file));
        } else if now < then && !is_update() {
            let _ = writeln!(report, "{file}: {now}, known are {then}: run {UPDATE}");
        }
    }
    assert!(report.is_empty(), "{report}");
    if is_update() {
        let lines = counts
            .iter()
            .map(|(file, count)| format!("{count} {file}\n"));
        fs::write(path, lines.collect::<String>()).unwrap();
    }
}

/// The faults of one set that another one lacks, with the names that it lacks.
fn without(faults: &Faults, others: &Faults) -> Faults {
    let mut left = Faults::new();
    for (fault, names) in faults {
        match others.get(fault) {
            None => {
                left.insert(fault.clone(), names.clone());
            }
            Some(others) => {
                let names: BTreeSet<String> = names.difference(others).cloned().collect();
                if !names.is_empty() {
                    left.insert(fault.clone(), names);
                }
            }
        }
    }
    left
}

fn write_faults(faults: &Faults) -> String {
    let mut lines = String::new();
    for (fault, names) in faults {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let colon = if names.is_empty() { "" } else { ": " };
        let _ = writeln!(lines, "{fault}{colon}{}", names.join(", "));
    }
    lines
}

fn parse_faults(text: &str) -> Faults {
    let lines = text.lines().map(|line| {
        let (fault, names) = line.split_once(": ").unwrap_or((line, ""));
        let names = names.split(", ").filter(|name| !name.is_empty());
        (fault.to_owned(), names.map(str::to_owned).collect())
    });
    lines.collect()
}

fn parse_counts(text: &str) -> BTreeMap<String, usize> {
    let lines = text.lines().map(|line| {
        let (count, file) = line.split_once(' ').unwrap();
        (file.to_owned(), count.parse().unwrap())
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_written_as_they_are_read() {
        let text = "src/a.rs has unsafe code\nsrc/a.rs → src/b.rs: B, C\n";
        assert_eq!(write_faults(&parse_faults(text)), text);
    }

    #[test]
    fn a_further_name_is_a_further_fault() {
        let known = parse_faults("src/a.rs → src/b.rs: B, C\n");
        let today = parse_faults("src/a.rs → src/b.rs: C, D\n");
        assert_eq!(
            write_faults(&without(&today, &known)),
            "src/a.rs → src/b.rs: D\n"
        );
        assert_eq!(
            write_faults(&without(&known, &today)),
            "src/a.rs → src/b.rs: B\n"
        );
    }
}
