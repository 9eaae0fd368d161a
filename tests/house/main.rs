//! Keeps the order of the source tree: who may import whom, how long files and functions may be, and which
//! words its text does without.
//!
//! Faults known today stand in `known.txt` and `known_words.txt`. A fault that is not there fails the test, and
//! so does a line there that is no fault any more. `HOUSE_UPDATE=1 cargo test --test house` removes such lines;
//! it never adds one.

mod circles;
mod facts;
mod items;
mod known;
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
    known::compare_faults(&root().join("tests/house/known.txt"), &faults);
}

#[test]
fn banned_words_only_become_fewer() {
    let texts = sources::text(root());
    let counts = texts
        .iter()
        .map(|(path, text)| (path.clone(), words::banned(path, text).len()))
        .filter(|(_, count)| *count > 0)
        .collect();
    known::compare_counts(
        &root().join("tests/house/known_words.txt"),
        &counts,
        |path| {
            let found = words::banned(path, &texts[path]);
            let lines = found
                .iter()
                .map(|found| format!("  {path}:{}: {}\n", found.line, found.phrase));
            lines.collect()
        },
    );
}
