//! Words that the documents and the output of the program do without: they read as if translated, or mean something else
//! in the field. Code may use any word.

use regex::Regex;

/// Words and phrases, in lower case.
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

/// A banned word or phrase in a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) line: usize,
    pub(crate) phrase: String,
}

/// Every banned word in a text; of a scene, in the output of its commands.
pub(crate) fn banned(path: &str, text: &str) -> Vec<Found> {
    let is_document = !path.starts_with("tests/scenes/");
    let is_output = |line: &&str| is_document || line.starts_with("  ");
    let lines = text.lines();
    let text: Vec<&str> = lines
        .map(|line| Some(line).filter(is_output).unwrap_or_default())
        .collect();
    let text = text.join("\n");
    // `HOME` is a variable, and `ProtectHome` a setting of systemd.
    let words = text.replace("HOME", "").replace("ProtectHome", "");
    let words = words.to_lowercase();
    let between = Regex::new(r"\s+").unwrap();
    let phrases = BANNED.join("|").replace(' ', between.as_str());
    let phrases = Regex::new(&format!(r"\b({phrases})\b")).unwrap();
    phrases
        .find_iter(&words)
        .map(|phrase| Found {
            line: 1 + words[..phrase.start()].matches('\n').count(),
            phrase: between.replace_all(phrase.as_str(), " ").into_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrases(text: &str) -> Vec<String> {
        let found = banned("README.md", text).into_iter();
        found
            .map(|found| format!("{} {}", found.line, found.phrase))
            .collect()
    }

    #[test]
    fn words_and_phrases_are_found_on_their_lines() {
        assert_eq!(phrases("It SHALL be\ntold"), ["1 shall", "2 told"]);
        assert_eq!(phrases("one of\nthem"), ["1 of them"]);
        assert_eq!(phrases("the state of. Them"), [""; 0]);
        let scene = "# told\n$ mig-mps told\n  told\n";
        assert_eq!(banned("tests/scenes/a.txt", scene)[0].line, 3);
        assert_eq!(banned("tests/scenes/a.txt", scene).len(), 1);
        assert_eq!(phrases("looks lifetime $HOME XDG_STATE_HOME"), [""; 0]);
    }
}
