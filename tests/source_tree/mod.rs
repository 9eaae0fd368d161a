//! Checks the source tree: which module may import which, and how long files may be, what names are like, and the
//! language and the examples of the manual.

mod documents;
mod map;
mod names;
mod prose;
mod rules;
mod sources;

use std::collections::BTreeMap;

use testkit::repository;

#[test]
fn the_source_tree_is_in_order() {
    let texts = sources::text(repository());
    let map = map::Map::parse(&texts["CONTRIBUTING.md"]);
    let faults = rules::faults(&sources::rust(repository()), &map);
    assert!(faults.is_empty(), "\n  {}\n", faults.join("\n  "));
}

/// The interfaces know nothing of what the project makes of them.
#[test]
fn interfaces_import_only_what_is_below_profiles() {
    let map = map::Map::parse(&sources::text(repository())["CONTRIBUTING.md"]);
    for interface in ["nvml", "mps", "cuda"] {
        for other in ["catalog", "profile", "state", "node"] {
            assert!(!map.may_import(interface, other), "{interface}, {other}");
        }
    }
}

#[test]
fn names_are_not_worse_than_they_were() {
    let figures = names::NameFigures::measure(&sources::rust(repository()));
    println!("{figures}");
    let worse = figures.worse();
    assert!(worse.is_empty(), "\n  {}\n", worse.join("\n  "));
}

#[test]
fn the_manual_reads_as_others_do() {
    let texts = sources::text(repository());
    let shown = manual(&texts).map(|(_, text)| text.as_str());
    let rates = prose::measure(shown);
    for rate in &rates {
        println!("{rate}");
    }
    let high = rates.iter().filter(|rate| rate.is_too_high());
    let high: Vec<String> = high.map(ToString::to_string).collect();
    assert!(high.is_empty(), "\n  {}\n", high.join("\n  "));
}

/// The README and the chapters of the manual, by their paths.
fn manual(texts: &BTreeMap<String, String>) -> impl Iterator<Item = (&String, &String)> {
    let is_manual = |path: &str| path.starts_with("src/manual/") || path == "README.md";
    texts.iter().filter(move |(path, _)| is_manual(path))
}

#[test]
fn examples_fit_a_terminal() {
    let texts = sources::text(repository());
    let lines: String = manual(&texts)
        .flat_map(|(path, text)| {
            let wide = documents::wide_lines(text).into_iter();
            wide.map(move |line| format!("  {path}:{line}\n"))
        })
        .collect();
    assert!(
        lines.is_empty(),
        "wider than {} columns:\n{lines}",
        documents::COLUMNS
    );
}
