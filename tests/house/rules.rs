//! The rules of the source tree.

use std::collections::{BTreeMap, BTreeSet};

use crate::house::circles::circles;
use crate::house::facts::{Facts, FileFacts, Imports};
use crate::house::sources::Sources;

/// The rooms of each floor, from the ground up. A room is a folder of `src` or a file in it. A file imports
/// from lower floors and from its own room.
const FLOORS: [&[&str]; 16] = [
    &["config"],
    &["geometry", "settings"],
    &["host"],
    &["catalog", "profile"],
    &["nvml", "mps", "cuda"],
    &["logs"],
    &["state"],
    &["node"],
    &["plan"],
    // An exported profile is judged by the planner.
    &["convert"],
    &["apply"],
    &["client", "doctor", "integrate"],
    &["render", "manual"],
    &["error"],
    &["commands"],
    &["cli"],
];

/// The program stands above all floors.
const PROGRAM: &str = "main";

/// The doors to the outside, which know nothing of what the project makes of it.
const DOORS: [&str; 3] = ["nvml", "mps", "cuda"];

/// What a door may import.
const UNDER_A_DOOR: [&str; 4] = ["config", "settings", "geometry", "host"];

/// The lowest room that prints.
const PRINTING: &str = "render";

/// Where unsafe code may be.
const UNSAFE: [&str; 3] = ["src/nvml/", "src/cuda/", "src/host/spawn.rs"];

/// The most lines of code in a file.
const FILE_LINES: usize = 450;

/// Faults: what is wrong and where, and the names that are concerned, if any.
pub(crate) type Faults = BTreeMap<String, BTreeSet<String>>;

/// Every fault of the tree.
pub(crate) fn faults(sources: &Sources, facts: &Facts) -> Faults {
    let mut faults = Faults::new();
    for (file, text) in sources {
        if lines_of_code(text) > FILE_LINES {
            let fault = format!("{file} has more than {FILE_LINES} lines of code");
            faults.insert(fault, BTreeSet::new());
        }
    }
    for (file, has) in &facts.files {
        // A face, such as `lib.rs`, belongs to no floor.
        if has.defines && floor(room(file)).is_none() {
            let fault = format!("{file} is in a room without a floor");
            faults.insert(fault, BTreeSet::from([room(file).to_owned()]));
        }
        if has.has_unsafe && !UNSAFE.iter().any(|place| file.starts_with(place)) {
            faults.insert(format!("{file} has unsafe code"), BTreeSet::new());
        }
        if !has.prints.is_empty() && floor(room(file)) < floor(PRINTING) {
            faults.insert(format!("{file} prints"), has.prints.clone());
        }
        if !has.unresolved.is_empty() {
            let fault = format!("{file} has paths that this test cannot resolve");
            faults.insert(fault, has.unresolved.clone());
        }
        if !has.long_functions.is_empty() {
            let fault = format!("{file} has functions of more than 60 lines");
            faults.insert(fault, has.long_functions.clone());
        }
    }
    add_imports(facts, &mut faults);
    faults
}

/// The lines of a file that are neither blank nor a comment, and stand before its inline tests.
fn lines_of_code(text: &str) -> usize {
    let lines = text.lines().map(str::trim);
    let before_tests = lines.take_while(|line| *line != "mod tests {");
    before_tests
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

fn add_imports(facts: &Facts, faults: &mut Faults) {
    let mut allowed = BTreeMap::new();
    let imports = |of: fn(&FileFacts) -> &Imports| {
        facts.files.iter().flat_map(move |(from, has)| {
            let imports = of(has).iter();
            imports.map(move |(to, names)| (from.as_str(), to.as_str(), names))
        })
    };
    for (from, to, names) in imports(|has| &has.uses) {
        if may_import(room(from), room(to)) {
            allowed.insert((from, to), names);
        } else {
            let fault = faults.entry(format!("{from} → {to}")).or_default();
            fault.extend(names.iter().cloned());
        }
    }
    for (from, to, names) in imports(|has| &has.passes_on) {
        if !may_import(room(from), room(to)) {
            let fault = faults.entry(format!("{from} → {to}")).or_default();
            fault.extend(names.iter().cloned());
        }
    }
    for (from, to) in circles(&allowed.keys().copied().collect()) {
        let fault = format!("{from} → {to} (circle)");
        faults.insert(fault, allowed[&(from, to)].clone());
    }
}

/// The folder of `src` that a file is in, or its own name.
fn room(file: &str) -> &str {
    let inside = file.strip_prefix("src/").unwrap();
    let first = inside.split('/').next().unwrap();
    first.strip_suffix(".rs").unwrap_or(first)
}

fn floor(room: &str) -> Option<usize> {
    if room == PROGRAM {
        return Some(FLOORS.len());
    }
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

fn may_import(from: &str, to: &str) -> bool {
    if from == to {
        return true;
    }
    match (floor(from), floor(to)) {
        (Some(_), Some(_)) if DOORS.contains(&from) => UNDER_A_DOOR.contains(&to),
        (Some(from), Some(to)) => to < from,
        // Faces pass on what they like; a room that is not known is a fault of its own.
        _ => true,
    }
}

#[test]
fn imports_go_down_and_doors_know_four_rooms() {
    assert!(may_import("plan", "node"));
    assert!(may_import("plan", "plan"));
    assert!(!may_import("node", "plan"));
    assert!(!may_import("geometry", "settings"));
    assert!(may_import("mps", "host"));
    assert!(!may_import("mps", "profile"));
    assert!(may_import("main", "cli"));
}
