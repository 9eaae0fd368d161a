//! Checks the source tree: which module may import which, and how long files may be, what names are like, and how wide the
//! examples of the manual are.

mod documents;
mod map;
mod names;
mod rules;
mod sources;

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
fn examples_fit_a_terminal() {
    let texts = sources::text(repository());
    let shown = texts
        .iter()
        .filter(|(path, _)| path.starts_with("src/manual/") || *path == "README.md");
    let lines: String = shown
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
