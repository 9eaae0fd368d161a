//! Keeps the order of the source tree: which file may import which, how long files may be, and which words its
//! documents and messages do without; and how wide the examples of the manual are.

mod documents;
mod rules;
mod sources;
mod words;

use testkit::repository;

#[test]
fn the_house_is_in_order() {
    let faults = rules::faults(&sources::rust(repository()));
    assert!(faults.is_empty(), "\n  {}\n", faults.join("\n  "));
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

#[test]
fn users_read_no_banned_words() {
    let texts = sources::text(repository());
    let found = texts.iter().flat_map(|(path, text)| {
        let found = words::banned(path, text).into_iter();
        found.map(move |found| format!("  {path}:{}: {}\n", found.line, found.phrase))
    });
    let lines: String = found.collect();
    assert!(lines.is_empty(), "\n{lines}");
}
