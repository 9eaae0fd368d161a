//! Measures the language of the README and the manual. The ceilings come from the manuals of git, systemd, `OpenZFS`, cargo, uv
//! and jj, counted in November 2026.

use std::fmt;

use regex::Regex;

use super::names::share;

/// A habit of language, and how often it may occur.
struct Habit {
    name: &'static str,
    pattern: &'static str,
    ceiling: f64,
}

const fn habit(name: &'static str, pattern: &'static str, ceiling: f64) -> Habit {
    Habit {
        name,
        pattern,
        ceiling,
    }
}

/// Habits by occurrences in 10,000 words.
const IN_WORDS: [Habit; 12] = [
    habit("alone, for only", r"\balone\b", 1.0),
    habit(
        "nobody, somebody, everybody",
        r"\b(?:no|some|every|any)body\b",
        2.0,
    ),
    habit("nothing", r"\b[Nn]othing\b", 3.0),
    habit(
        "beside, anew, for ever, mend, likewise",
        r"\b[Bb]eside\b|\banew\b|\bfor ever\b|\bmend\w*|\blikewise\b",
        0.5,
    ),
    habit(
        "of its own, of root's, of mig-mps",
        r"\bof (?:its|their|his|her) own\b|\bof root's\b|\b(?:of|by) mig-mps\b",
        1.0,
    ),
    habit(
        "what-clauses as nouns",
        r"\b[Ww]hat (?:is|was|are|were|it|they|that|a|the|mig-mps|CODE)\b",
        8.0,
    ),
    habit(
        "where, for if or when",
        r"(?m)(?:^|[.;:,(] ?|and )[Ww]here (?:a|an|the|it|no|nobody|there|one|none|they|CODE)\b",
        2.0,
    ),
    habit("else", r"\b[Ee]lse\b", 3.0),
    habit(
        "says, names, tells, knows",
        r"\b(?:says?|names?|tells?|knows?)\b",
        45.0,
    ),
    habit(
        "is refused, is named, is shown, is said",
        r"\b(?:is|are|was|were|be) (?:not )?(?:refused|named|shown|said|asked|held|ended|tried|left out|undone)\b",
        20.0,
    ),
    habit(
        "one that, those of",
        r"\bone that\b|\bthat one\b|\bthe one\b|\bones\b|\bthose (?:of|that|who)\b",
        30.0,
    ),
    habit("it", r"\b[Ii]t\b", 90.0),
];

/// Habits by the per cent of sentences that have them.
const IN_SENTENCES: [Habit; 5] = [
    habit(
        "It, They, Its, That, Those or One at the start",
        r"^(?:It|They|Its|That|Those|One)\b",
        4.0,
    ),
    habit("a colon in the middle", r"\w: \w", 8.0),
    habit("a semicolon", r";", 4.0),
    habit("a negative", r"\b(?:nothing|nobody|none|never|no)\b", 9.0),
    habit("a command in code font at the start", r"^CODE [a-z]", 3.0),
];

/// The factor by which a rate may be above its ceiling.
const TOLERANCE: f64 = 1.1;

/// The rate of a habit.
pub(super) struct Rate {
    name: &'static str,
    measured: f64,
    ceiling: f64,
}

impl Rate {
    pub(super) fn is_too_high(&self) -> bool {
        self.measured > self.ceiling * TOLERANCE
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            measured,
            ceiling,
        } = self;
        write!(f, "{measured:6.1}  ceiling {ceiling:4}  {name}")
    }
}

/// Returns the rates of these texts in Markdown, without code, tables, targets of links and headings.
pub(super) fn measure<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<Rate> {
    let prose: Vec<String> = texts.map(prose_of).collect();
    let prose = prose.join("\n\n");
    let words = Regex::new(r"[A-Za-z']+").unwrap().find_iter(&prose).count();
    let sentences = split_sentences(&prose);
    let in_words = IN_WORDS.iter().map(|habit| {
        let found = Regex::new(habit.pattern).unwrap().find_iter(&prose).count();
        (habit, share(1e4, found, words))
    });
    let in_sentences = IN_SENTENCES.iter().map(|habit| {
        let pattern = Regex::new(habit.pattern).unwrap();
        let found = sentences.iter().filter(|one| pattern.is_match(one)).count();
        (habit, share(100.0, found, sentences.len()))
    });
    in_words
        .chain(in_sentences)
        .map(|(habit, measured)| Rate {
            name: habit.name,
            measured,
            ceiling: habit.ceiling,
        })
        .collect()
}

fn prose_of(markdown: &str) -> String {
    let blocks = Regex::new(r"(?ms)^```.*?^```[ \t]*$").unwrap();
    let left_out = Regex::new(r"^\s*\||^#|^!\[|^ {4,}[^\s*\d-]").unwrap();
    let text = blocks.replace_all(markdown, "");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !left_out.is_match(line))
        .collect();
    let text = lines.join("\n");
    let text = Regex::new(r"\[([^\]]*)\]\([^)]*\)")
        .unwrap()
        .replace_all(&text, "$1");
    let text = Regex::new(r"`[^`]*`").unwrap().replace_all(&text, "CODE");
    text.replace('*', "")
}

/// Returns the sentences of more than two words.
fn split_sentences(prose: &str) -> Vec<String> {
    let paragraph = Regex::new(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s+").unwrap();
    let end = Regex::new(r"[.!?]\s+[A-Z(]").unwrap();
    let mut sentences = Vec::new();
    for part in paragraph.split(prose) {
        let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut rest = part.as_str();
        while let Some(found) = end.find(rest) {
            let (sentence, next) = rest.split_at(found.start() + 1);
            sentences.push(sentence.to_owned());
            rest = next.trim_start();
        }
        sentences.push(rest.to_owned());
    }
    sentences.retain(|sentence| sentence.split_whitespace().count() > 2);
    sentences
}
