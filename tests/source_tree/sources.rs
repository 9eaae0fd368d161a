//! The files of the repository, by their path in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Texts by path, such as `src/host/lock.rs`.
pub(crate) type Sources = BTreeMap<String, String>;

/// Every Rust file under `src`.
pub(crate) fn rust(root: &Path) -> Sources {
    let mut sources = Sources::new();
    read(root, "src", ".rs", &mut sources);
    assert!(!sources.is_empty(), "no sources in {}", root.display());
    sources
}

/// Every file whose text a user sees: the manual, the documents at the root, and the scenarios, which have every message of
/// the program.
pub(crate) fn text(root: &Path) -> Sources {
    let mut sources = Sources::new();
    read(root, "src/manual", ".md", &mut sources);
    read(root, "tests/scenarios", ".txt", &mut sources);
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        let text = fs::read_to_string(root.join(name)).unwrap_or_default();
        sources.insert(name.to_owned(), text);
    }
    sources
}

fn read(root: &Path, folder: &str, ending: &str, into: &mut Sources) {
    for entry in fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            read(root, &path, ending, into);
        } else if path.ends_with(ending) {
            into.insert(path, fs::read_to_string(entry.path()).unwrap());
        }
    }
}
