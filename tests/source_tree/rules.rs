//! The rules of the source tree.

use std::collections::BTreeSet;

use regex::Regex;

use crate::source_tree::map::{FEATURES, Map};
use crate::source_tree::sources::Sources;

/// The lowest module that prints.
const PRINTING: &str = "render";

/// Where unsafe code may be.
const UNSAFE: [&str; 3] = ["src/nvml/", "src/cuda.rs", "src/host/spawn.rs"];

/// The file that no person writes, or reads.
const GENERATED: &str = "src/features/kubernetes/v1beta1.rs";

/// The most lines of code in a file. `.clippy.toml` has the most lines of a function.
const FILE_LINES: usize = 450;

/// Every fault of the tree, and of the map of it.
pub(crate) fn faults(sources: &Sources, map: &Map) -> Vec<String> {
    let prints = Regex::new(r"\b(dbg|e?print(ln)?)!|[^.]\b(stdout|stderr)\(\)").unwrap();
    let has_unsafe = Regex::new(r"\bunsafe\b").unwrap();
    let printing = map.layer(PRINTING).expect("a layer that prints");
    let mapped = map.modules();
    let in_tree: BTreeSet<&str> = sources.keys().map(|file| module(file)).collect();
    let gone = mapped
        .iter()
        .filter(|name| !in_tree.contains(name.as_str()));
    let mut faults: Vec<String> = gone
        .map(|name| format!("the map has {name}, which src lacks"))
        .collect();
    for (file, text) in sources {
        let code = code(text);
        let module = module(file);
        let mut add = |fault: String| faults.push(format!("{file} {fault}"));
        if code.lines().count() > FILE_LINES && file != GENERATED {
            add(format!("has more than {FILE_LINES} lines of code"));
        }
        if module != "lib" && !mapped.contains(module) {
            add(format!("is in {module}, which the map lacks"));
        }
        if prints.is_match(&code) && map.layer(module).is_none_or(|layer| layer < printing) {
            add("prints".to_owned());
        }
        if has_unsafe.is_match(&code) && !UNSAFE.iter().any(|place| file.starts_with(place)) {
            add("has unsafe code".to_owned());
        }
        for import in imports(file, &code) {
            if !map.may_import(module, &import) {
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
    let is_feature = inside.starts_with(FEATURES) && inside != "features/mod.rs";
    let levels = 1 + usize::from(is_feature);
    let end = inside
        .match_indices('/')
        .nth(levels - 1)
        .map_or(inside.len(), |(at, _)| at);
    inside[..end].trim_end_matches(".rs")
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
    let map = Map::parse(
        "| layer | module |\n|---|---|\n| 1 | `host` |\n| 2 | `node` |\n| 3 | `plan`, `state`, `apply` |\n\
         | 4 | `render`, `attic` |\n| 5 | `features` |\n\n| feature |\n|---|\n| `run` |\n| `gone` |\n",
    );
    let files = [
        (
            "apply.rs",
            "fn f() { command.stdout(Stdio::null()); child.stdout(); }",
        ),
        ("cellar.rs", "struct Cellar;"),
        ("features/mod.rs", "pub mod run;"),
        ("features/other/mod.rs", "use crate::render::Table;"),
        ("features/run/mod.rs", "use crate::features::other;"),
        ("host/mod.rs", long.as_str()),
        ("lib.rs", "pub use crate::node::Node;"),
        ("node.rs", "use crate::plan::Plan;\nfn f() { println!() }"),
        ("plan/a.rs", "fn f() { unsafe { g() } }"),
        ("render.rs", "fn f() { io::stdout().lock(); }"),
        ("state.rs", "fn f() { writeln!(io::stderr(), \"x\"); }"),
    ];
    let sources = files.map(|(path, text)| (format!("src/{path}"), text.to_owned()));
    assert_eq!(
        faults(&Sources::from(sources), &map),
        [
            "the map has attic, which src lacks",
            "the map has features/gone, which src lacks",
            "src/cellar.rs is in cellar, which the map lacks",
            "src/features/other/mod.rs is in features/other, which the map lacks",
            "src/features/run/mod.rs imports features",
            "src/host/mod.rs has more than 450 lines of code",
            "src/node.rs prints",
            "src/node.rs imports plan",
            "src/plan/a.rs has unsafe code",
            "src/state.rs prints",
        ]
    );
}
