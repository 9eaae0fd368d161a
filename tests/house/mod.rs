//! Keeps the order of the source tree: who may import whom, how long files and functions may be, and which
//! words its text does without.

mod circles;
mod facts;
mod items;
mod modules;
mod resolver;
mod rules;
mod sources;
mod tokens;
mod words;

use std::path::Path;

use facts::Facts;
use modules::Crate;

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_house_is_in_order() {
    let sources = sources::rust(root());
    let tree = Crate::parse(&sources);
    let faults = rules::faults(&sources, &Facts::collect(&tree));
    let lines = faults.iter().map(|(fault, names)| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("  {fault}: {}\n", names.join(", "))
    });
    assert!(faults.is_empty(), "\n{}", lines.collect::<String>());
}

#[test]
fn there_are_no_banned_words() {
    let texts = sources::text(root());
    let found = texts.iter().flat_map(|(path, text)| {
        let found = words::banned(path, text).into_iter();
        found.map(move |found| format!("  {path}:{}: {}\n", found.line, found.phrase))
    });
    let lines: String = found.collect();
    assert!(lines.is_empty(), "\n{lines}");
}
