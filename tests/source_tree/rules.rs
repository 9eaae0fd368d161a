//! The rules of the source tree.

use std::collections::BTreeSet;

use regex::Regex;

use crate::source_tree::sources::Sources;

/// The modules of each layer, from the lowest up. A module is a folder of `src` or a file in it, and each folder of
/// `src/features`. A file imports lower layers and its own module, so there is no circle between modules.
const LAYERS: [&[&str]; 17] = [
    &["failure", "config", "geometry", "settings"],
    &["host"],
    &["catalog", "profile"],
    &["nvml", "mps", "cuda"],
    &["state"],
    &["node"],
    &["plan"],
    &["apply"],
    &["client"],
    &["render"],
    &["error"],
    &["commands"],
    &["shared"],
    &[FEATURES],
    &["internal_commands"],
    &["cli"],
    &["main", "device_plugin"],
];

/// The features. They do not import each other, and only the command line imports them.
const FEATURES: &str = "features";

/// The interfaces to NVML, MPS and CUDA, which import few modules.
const INTERFACES: [&str; 3] = ["nvml", "mps", "cuda"];

/// The modules that an interface may import.
const BELOW_INTERFACES: [&str; 5] = ["failure", "config", "settings", "geometry", "host"];

/// The lowest module that prints.
const PRINTING: &str = "render";

/// Where unsafe code may be.
const UNSAFE: [&str; 3] = ["src/nvml/", "src/cuda.rs", "src/host/spawn.rs"];

/// The file that no person writes, or reads.
const GENERATED: &str = "src/features/kubernetes/v1beta1.rs";

/// The most lines of code in a file. `.clippy.toml` has the most lines of a function.
const FILE_LINES: usize = 450;

/// Every fault of the tree.
pub(crate) fn faults(sources: &Sources) -> Vec<String> {
    let prints = Regex::new(r"\b(dbg|e?print(ln)?)!|[^.]\b(stdout|stderr)\(\)").unwrap();
    let has_unsafe = Regex::new(r"\bunsafe\b").unwrap();
    let mut faults = Vec::new();
    for (file, text) in sources {
        let code = code(text);
        let module = module(file);
        let mut add = |fault: String| faults.push(format!("{file} {fault}"));
        if code.lines().count() > FILE_LINES && file != GENERATED {
            add(format!("has more than {FILE_LINES} lines of code"));
        }
        if module != "lib" && layer(module).is_none() {
            add("is in a module without a layer".to_owned());
        }
        if prints.is_match(&code) && layer(module) < layer(PRINTING) {
            add("prints".to_owned());
        }
        if has_unsafe.is_match(&code) && !UNSAFE.iter().any(|place| file.starts_with(place)) {
            add("has unsafe code".to_owned());
        }
        for import in imports(file, &code) {
            if !may_import(module, &import) {
                add(format!("imports {import}"));
            }
        }
    }
    faults
}

/// The lines of a file that are neither blank nor a comment, and stand before its inline tests.
fn code(text: &str) -> String {
    let lines = text.lines();
    let code: Vec<&str> = lines
        .take_while(|line| line.trim() != "mod tests {")
        .filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//"))
        .collect();
    code.join("\n")
}

/// The modules that a file names, in a `use` or in a path. One that it reaches by `super` is `super`: a path to another
/// module begins with `crate`.
fn imports(file: &str, code: &str) -> BTreeSet<String> {
    let named = Regex::new(r"\b(?:crate|mig_mps)::(\w+|\{)").unwrap();
    let climbs = Regex::new(r"\b(?:super::)+").unwrap();
    let above = module(file).matches('/').count() + usize::from(file.ends_with("/mod.rs"));
    let depth = file.matches('/').count() - above;
    let mut found: BTreeSet<String> = named
        .captures_iter(code)
        .map(|captures| captures[1].to_owned())
        .collect();
    if climbs
        .find_iter(code)
        .any(|path| path.as_str().matches("super").count() >= depth)
    {
        found.insert("super".to_owned());
    }
    found
}

/// The folder of `src` or of `src/features` that a file is in, or its own name.
fn module(file: &str) -> &str {
    let inside = file.strip_prefix("src/").unwrap();
    let levels =
        1 + usize::from(inside.starts_with("features/") && !inside.ends_with("features/mod.rs"));
    let end = inside
        .match_indices('/')
        .nth(levels - 1)
        .map_or(inside.len(), |(at, _)| at);
    inside[..end].trim_end_matches(".rs")
}

fn layer(module: &str) -> Option<usize> {
    let module = module.split('/').next()?;
    LAYERS.iter().position(|modules| modules.contains(&module))
}

fn may_import(from: &str, to: &str) -> bool {
    match (layer(from), layer(to)) {
        _ if from == to => true,
        (_, Some(_)) if INTERFACES.contains(&from) => BELOW_INTERFACES.contains(&to),
        (Some(from), Some(to)) => to < from,
        // `lib.rs` passes on what it likes; no file imports what is in no module.
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

#[test]
fn imports_go_down_and_interfaces_import_few_modules() {
    assert!(may_import("plan", "node"));
    assert!(may_import("plan", "plan"));
    assert!(!may_import("node", "plan"));
    assert!(!may_import("geometry", "settings"));
    assert!(may_import("mps", "host"));
    assert!(!may_import("mps", "profile"));
    assert!(may_import("main", "cli"));
    assert!(may_import("features/doctor", "commands"));
    assert!(may_import("cli", "features"));
    assert!(!may_import("features/doctor", "features"));
    assert!(!may_import("commands", "features"));
}

#[test]
fn a_path_anywhere_in_the_code_is_an_import() {
    let of = |file: &str, text: &str| Vec::from_iter(imports(file, &code(text)));
    let text = "use crate::host::Pid;\n// crate::plan\nfn f() { crate::state::g(); vec![crate::node::h()] }\n\
                #[cfg(test)]\nmod tests {\n    use crate::cli;\n}\n";
    assert_eq!(of("src/mps/a.rs", text), ["host", "node", "state"]);
    assert_eq!(of("src/mps/a.rs", "use super::b;"), [""; 0]);
    assert_eq!(of("src/mps/a.rs", "use super::super::node;"), ["super"]);
    assert_eq!(of("src/mps/mod.rs", "use super::node;"), ["super"]);
    assert_eq!(of("src/mps/log/mod.rs", "use super::b;"), [""; 0]);
    assert_eq!(of("src/a.rs", "use crate::{b, c};"), ["{"]);
    assert_eq!(of("src/features/a/b.rs", "use super::c;"), [""; 0]);
    assert_eq!(of("src/features/a/mod.rs", "use super::b;"), ["super"]);
    assert_eq!(of("src/features/a/b.rs", "use super::super::c;"), ["super"]);
}

#[test]
fn faults_are_named_by_file() {
    let long = "fn f() {}\n".repeat(FILE_LINES + 1);
    let files = [
        ("attic.rs", "struct Attic;"),
        ("host/mod.rs", long.as_str()),
        ("node.rs", "use crate::plan::Plan;\nfn f() { println!() }"),
        ("plan/a.rs", "fn f() { unsafe { g() } }"),
        ("state.rs", "fn f() { writeln!(io::stderr(), \"x\"); }"),
        ("render.rs", "fn f() { io::stdout().lock(); }"),
        (
            "apply.rs",
            "fn f() { command.stdout(Stdio::null()); child.stdout(); }",
        ),
    ];
    let sources = files.map(|(path, text)| (format!("src/{path}"), text.to_owned()));
    assert_eq!(
        faults(&Sources::from(sources)),
        [
            "src/attic.rs is in a module without a layer",
            "src/host/mod.rs has more than 450 lines of code",
            "src/node.rs prints",
            "src/node.rs imports plan",
            "src/plan/a.rs has unsafe code",
            "src/state.rs prints",
        ]
    );
}
