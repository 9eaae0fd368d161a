//! Measures the names of functions and types in the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use regex::Regex;

use crate::source_tree::sources::Sources;

/// The figures of the names, in the units of their labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NameFigures([f64; 4]);

const LABELS: [&str; 4] = [
    "% of functions have a name of one word",
    "in 1,000 functions have only a participle as name",
    "names of types are defined in several files",
    "iterator chains are cut in two by a let",
];

/// The figures of 2026-11-29.
const ACCEPTED: NameFigures = NameFigures([10.1, 2.1, 0.0, 65.0]);

/// How much worse than [`ACCEPTED`] a figure may be, in its unit.
const TOLERANCE: f64 = 3.0;

/// Names that traits and habit give.
const USUAL: &str = "new main run fmt from drop default eq cmp next deref serialize deserialize hash source description clone";

/// Words with the ending of a participle that are none.
const NO_PARTICIPLES: &str = "open feed need speed seed even then token listen children";

const FUNCTION: &str = r"^\s*(?:pub(?:\([a-z:]+\))? )?(?:const |unsafe |async )*fn (\w+)";
const TRAIT: &str = r"^(?:unsafe )?(?:impl\b.*\bfor\b|(?:pub(?:\([a-z:]+\))? )?trait\b)";
const TYPE: &str = r"(?m)^(?:pub(?:\([a-z:]+\))? )?(?:struct|enum|trait|type) (\w+)";
const PARTICIPLE: &str = r"^(?:\w+(?:ed|en)|left|held|lost|made|kept|told|said|known|gone|taken|sent|met|found|put|cut)$";
/// A chain with a name, and the word that the next statement begins with, after a `let` if it has one.
const CHAIN: &str = concat!(
    r"let (?:mut )?(\w+) = [^;]{1,300}?",
    r"(?:iter\(\)|into_iter\(\)|lines\(\)|split\([^)]*\)|filter\([^;]*\)|map\([^;]*\));",
    r"\n\s*(?:let [^=]{1,60}= )?(\w+)"
);

impl NameFigures {
    /// Measures the sources without inline tests and generated files. Methods of traits do not count.
    pub(crate) fn measure(sources: &Sources) -> Self {
        let [function, of_trait, of_type, participle] =
            [FUNCTION, TRAIT, TYPE, PARTICIPLE].map(|pattern| Regex::new(pattern).unwrap());
        let mut functions = Vec::new();
        let mut types: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut cut_chains = 0;
        for (path, text) in sources {
            if path.ends_with("v1beta1.rs") || text.contains("@generated") {
                continue;
            }
            let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
            let mut in_trait = false;
            for line in code.lines() {
                in_trait = of_trait.is_match(line) || (in_trait && !line.starts_with('}'));
                if !in_trait && let Some(found) = function.captures(line) {
                    functions.push(found.extract::<1>().1[0]);
                }
            }
            for found in of_type.captures_iter(code) {
                types
                    .entry(found.extract::<1>().1[0])
                    .or_default()
                    .insert(path);
            }
            cut_chains += count_cut_chains(code);
        }
        let counted = functions.iter().filter(|name| !has_word(USUAL, name));
        let one_word: Vec<&&str> = counted.clone().filter(|name| !name.contains('_')).collect();
        let is_participle =
            |name: &&&str| participle.is_match(name) && !has_word(NO_PARTICIPLES, name);
        let participles = one_word.iter().copied().filter(is_participle).count();
        let shared_types = types.values().filter(|paths| paths.len() > 1).count();
        Self([
            share(100.0, one_word.len(), counted.count()),
            share(1000.0, participles, functions.len()),
            float(shared_types),
            float(cut_chains),
        ])
    }

    /// The figures that are worse than the accepted ones by more than the tolerance.
    pub(crate) fn worse(&self) -> Vec<String> {
        let all = self.0.iter().zip(ACCEPTED.0).zip(LABELS);
        all.filter(|((now, accepted), _)| **now > accepted + TOLERANCE)
            .map(|((now, accepted), label)| format!("{now:.1} {label}; accepted: {accepted}"))
            .collect()
    }
}

impl fmt::Display for NameFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.0.iter().zip(LABELS);
        all.try_for_each(|(figure, label)| writeln!(f, "{figure:.1} {label}"))
    }
}

/// Counts the statements that go on with a chain to which the statement before has given a name.
fn count_cut_chains(code: &str) -> usize {
    let chain = Regex::new(CHAIN).unwrap();
    let (mut from, mut count) = (0, 0);
    while let Some(found) = chain.captures_at(code, from) {
        let whole = found.get_match();
        // The crate regex has no back references.
        let is_cut = found[1] == found[2];
        count += usize::from(is_cut);
        from = if is_cut {
            whole.end()
        } else {
            whole.start() + 1
        };
    }
    count
}

fn has_word(words: &str, name: &str) -> bool {
    words.split(' ').any(|word| word == name)
}

pub(super) fn share(of: f64, part: usize, all: usize) -> f64 {
    of * float(part) / float(all.max(1))
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(files: &[&str]) -> NameFigures {
        let named = files.iter().enumerate();
        let files = named.map(|(nth, text)| (format!("{nth}.rs"), (*text).to_owned()));
        NameFigures::measure(&files.collect())
    }

    #[test]
    fn functions_count_outside_of_traits_and_tests() {
        let text = "\
pub fn checked() {}
    pub(crate) const fn read_file() {}
fn open() {}
fn new() {}
impl Read for File {
    fn read(&self) {}
}
fn stop_daemon() {}
#[cfg(test)]
mod tests {
    fn held() {}
}
";
        // `checked` and `open` of 4, as `new` is usual; `checked` of 5.
        assert_eq!(measure(&[text]), NameFigures([50.0, 200.0, 0.0, 0.0]));
        assert_eq!(
            measure(&["// @generated\nfn a() {}"]),
            NameFigures([0.0; 4])
        );
    }

    #[test]
    fn types_are_shared_by_files() {
        let (first, second) = ("struct A;\npub enum B {}\n", "trait A {}\ntype A = u8;\n");
        assert_eq!(measure(&[first, second]), NameFigures([0.0, 0.0, 1.0, 0.0]));
    }

    #[test]
    fn a_chain_is_cut_if_the_next_statement_goes_on_with_it() {
        for (text, count) in [
            ("let a = b.iter();\n    a.count()", 1),
            ("let a = b.iter();\nlet c = a.count();", 1),
            ("let a = b.iter();\nlet c = b.iter();\nc.count()", 1),
            ("let a = b.iter().count();\na + 1", 0),
            ("let a = b.iter();\nf(a)", 0),
            ("let a = b.iter();\nall", 0),
        ] {
            assert_eq!(count_cut_chains(text), count, "{text}");
        }
    }

    #[test]
    fn figures_are_worse_beyond_the_tolerance() {
        let mut figures = ACCEPTED;
        figures.0.iter_mut().for_each(|figure| *figure += TOLERANCE);
        assert!(figures.worse().is_empty());
        figures.0[3] += 1.0;
        let worse = "69.0 iterator chains are cut in two by a let; accepted: 65";
        assert_eq!(figures.worse(), [worse]);
    }
}
