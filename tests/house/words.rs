//! Words that the project's text does without: they read as if translated, or mean something else in the field.

use std::ffi::OsStr;
use std::path::Path;

use regex::Regex;

/// Single words and phrases, in lower case.
const BANNED: [&str; 18] = [
    "come to be",
    "comes to be",
    "for want of",
    "gives back",
    "home",
    "is had",
    "life",
    "look",
    "of them",
    "shall",
    "so long as",
    "such a one",
    "terms",
    "told",
    "what is there",
    "whoever",
    "whom",
    "wish",
];

/// The file with this list, and one that has the id of a recorded row.
const EXCEPT: [&str; 2] = [
    "tests/house/words.rs",
    "fixtures/simnode/tests/conformance/rows/users.rs",
];

/// Words that no doc comment starts with: it says what the item does or is, with the verb or the noun in front.
const BANNED_STARTS: [&str; 5] = ["that", "why", "what", "how", "whether"];

/// A banned word or phrase in a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) line: usize,
    pub(crate) phrase: String,
}

/// Every banned word in a text: of a Rust file in comments, literals and identifiers, and at the start of its
/// doc comments.
pub(crate) fn banned(path: &str, text: &str) -> Vec<Found> {
    if EXCEPT.contains(&path) {
        return Vec::new();
    }
    // `in_its_home`, `InItsHome` and `in its home` have the same three words; `HOME` is a variable.
    let parts = Regex::new(r"(\p{Ll})(\p{Lu})").unwrap();
    let words = parts.replace_all(text, "$1 $2").replace('_', " ");
    // So is `ProtectHome`, of systemd.
    let words = words.replace("HOME", "").replace("Protect Home", "");
    let words = words.to_lowercase();
    // Only blanks and the signs of comments stand between the words of a phrase.
    let between = Regex::new(r"[\s/!*`\\]+").unwrap();
    let phrases = BANNED.join("|").replace(' ', between.as_str());
    let phrases = Regex::new(&format!(r"\b({phrases})\b")).unwrap();
    let mut found: Vec<Found> = phrases
        .find_iter(&words)
        .map(|phrase| Found {
            line: 1 + words[..phrase.start()].matches('\n').count(),
            phrase: between.replace_all(phrase.as_str(), " ").into_owned(),
        })
        .collect();
    if Path::new(path).extension() == Some(OsStr::new("rs")) {
        found.extend(starts(text));
    }
    found.sort_by_key(|found| found.line);
    found
}

/// Doc comments that start with a banned word.
fn starts(text: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut inside = false;
    for (nth, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = ["///", "//!"]
            .iter()
            .find_map(|sign| line.strip_prefix(sign));
        if let Some(doc) = doc
            && !inside
        {
            let first = doc.trim_start().split(|sign: char| !sign.is_alphabetic());
            let first = first.map(str::to_lowercase).next().unwrap_or_default();
            if BANNED_STARTS.contains(&first.as_str()) {
                found.push(Found {
                    line: nth + 1,
                    phrase: format!("doc comment starts with {first:?}"),
                });
            }
        }
        inside = doc.is_some();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrases(text: &str) -> Vec<String> {
        banned("src/a.rs", text)
            .into_iter()
            .map(|found| format!("{} {}", found.line, found.phrase))
            .collect()
    }

    #[test]
    fn words_are_found_in_comments_literals_and_identifiers() {
        assert_eq!(
            phrases("// It SHALL\nlet x = \"told\";"),
            ["1 shall", "2 told"]
        );
        assert_eq!(
            phrases("fn look_for(a: LifeOf, home: Home) {}"),
            ["1 look", "1 life", "1 home", "1 home"]
        );
        assert_eq!(phrases("// looks lifetime $HOME XDG_STATE_HOME"), [""; 0]);
    }

    #[test]
    fn phrases_run_over_lines_and_identifiers_but_not_sentences() {
        assert_eq!(
            phrases("/// one of\n    /// them\nfn is_had() {}"),
            ["1 of them", "3 is had"]
        );
        assert_eq!(phrases("// the state of. Them"), [""; 0]);
    }

    #[test]
    fn doc_comments_start_with_what_they_say() {
        assert_eq!(
            phrases("/// What it is.\n/// Whether so.\nfn f() {}\n//! How\n// Why\n/// Whatever\n"),
            [
                "1 doc comment starts with \"what\"",
                "4 doc comment starts with \"how\""
            ]
        );
    }
}
