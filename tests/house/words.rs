//! Words that the project's text does without: they read as if translated, or mean something else in the field.

use std::ffi::OsStr;
use std::path::Path;

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

/// The files where a home is a user's directory, as in passwd(5), and not a device's.
const HOMES_OF_USERS: [&str; 4] = [
    "src/commands/launch.rs",
    "src/host/user.rs",
    "src/mps/invocation.rs",
    "src/mps/launch.rs",
];

/// What no doc comment starts with: it says what the item does or is, with the verb or the noun in front.
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
    let words = words(text);
    let mut found = Vec::new();
    for first in 0..words.len() {
        for phrase in BANNED {
            if phrase == "home" && HOMES_OF_USERS.contains(&path) {
                continue;
            }
            if is_at(&words[first..], phrase) {
                found.push(Found {
                    line: words[first].line,
                    phrase: phrase.to_owned(),
                });
            }
        }
    }
    if Path::new(path).extension() == Some(OsStr::new("rs")) {
        found.extend(starts(text));
    }
    found.sort_by_key(|found| found.line);
    found
}

/// A word in lower case, and whether only blanks and the signs of comments stand between it and the one before.
struct Word {
    text: String,
    /// It is `HOME`, the variable.
    is_variable: bool,
    line: usize,
    follows: bool,
}

/// The words of a text. `in_its_home`, `InItsHome` and `in its home` have the same three.
fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut line = 1;
    let mut follows = false;
    let mut before = ' ';
    for sign in text.chars() {
        if sign.is_alphabetic() {
            // `whomEver` are two words, `HOME` is one.
            let goes_on = before.is_alphabetic() && !(before.is_lowercase() && sign.is_uppercase());
            match words.last_mut() {
                Some(word) if goes_on => word.text.push(sign),
                _ => words.push(Word {
                    text: sign.to_string(),
                    is_variable: false,
                    line,
                    follows,
                }),
            }
            follows = true;
        } else {
            line += usize::from(sign == '\n');
            follows &= sign.is_whitespace() || "/!*_`\\".contains(sign);
        }
        before = sign;
    }
    for word in &mut words {
        word.is_variable = word.text == "HOME";
        word.text = word.text.to_lowercase();
    }
    words
}

fn is_at(words: &[Word], phrase: &str) -> bool {
    let mut wanted = phrase.split(' ').enumerate();
    wanted.all(|(nth, wanted)| {
        words.get(nth).is_some_and(|word| {
            (nth == 0 || word.follows) && word.text == wanted && !word.is_variable
        })
    })
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
