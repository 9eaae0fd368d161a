//! Measures the errors and hints of all scenarios, as far as that can be measured.

use std::collections::BTreeSet;

use regex::Regex;

use super::{commands, messages};

/// The most separators `: ` in one line of an error, outside of quoted text and of places.
const MOST_SEPARATORS: usize = 2;

/// The words that an advice may begin with.
const VERBS: [&str; 58] = [
    "add",
    "allow",
    "apply",
    "ask",
    "bind",
    "change",
    "check",
    "choose",
    "configure",
    "correct",
    "create",
    "decode",
    "delete",
    "disable",
    "drain",
    "edit",
    "end",
    "examine",
    "find",
    "fix",
    "free",
    "give",
    "install",
    "keep",
    "let",
    "list",
    "load",
    "make",
    "map",
    "measure",
    "move",
    "omit",
    "pass",
    "put",
    "raise",
    "reboot",
    "reload",
    "remove",
    "repeat",
    "replace",
    "report",
    "request",
    "reset",
    "run",
    "search",
    "select",
    "separate",
    "set",
    "solve",
    "start",
    "stop",
    "try",
    "unset",
    "update",
    "upgrade",
    "use",
    "wait",
    "write",
];

/// The beginnings of hints that are questions, or that clap words.
const OTHER_BEGINNINGS: [&str; 5] = [
    "did you mean ",
    "usage: ",
    "a similar ",
    "some similar ",
    "for more information, ",
];

/// The texts behind `error: ` or `hint: ` in the scenarios.
fn texts_after(head: &str) -> BTreeSet<String> {
    let texts = messages() + &commands();
    let lines = texts.lines().filter_map(|line| {
        let text = line.strip_prefix("  ")?.strip_prefix(head)?;
        Some(text.to_owned())
    });
    let found: BTreeSet<String> = lines.collect();
    assert!(found.len() > 20, "{head}{found:#?}");
    found
}

/// The names that profiles of the scenarios give to devices.
fn given_names() -> BTreeSet<String> {
    let name = Regex::new(r#"name = ["']([^"'{}]{3,})["']"#).unwrap();
    let texts = messages() + &commands();
    let names = name.captures_iter(&texts).map(|found| found[1].to_owned());
    names.collect()
}

/// True if a text begins with the name of a device: `0.2 is …`, `trainer: …`, but not `1 client is …`.
fn begins_with_a_device(text: &str, names: &BTreeSet<String>) -> bool {
    let default_name = Regex::new(
        r"^(?:\d+\.\d+(?:\.c\d+)?:?|\d+:|\d+ (?:accepts|cannot|does|has|is|may|recovers|serves|takes)) ",
    )
    .unwrap();
    let first = text.split(' ').next().unwrap_or_default();
    default_name.is_match(text) || names.contains(first.trim_end_matches(':'))
}

/// Leaves out quoted text, the words of other programs, places in files, paths and exit statuses, which have colons.
fn without_quotes(text: &str) -> String {
    let quoted = Regex::new(
        r#"(?x) "[^"]*" | `[^`]*` | '[^']*'
        | [\[\]\w./-]*[./][\[\]\w./-]*(?::\d+:\d+)?:\s
        | exit\ status:\s
        | \ said:\ .*"#,
    )
    .unwrap();
    quoted.replace_all(text, "… ").into_owned()
}

#[test]
fn no_error_begins_with_the_bare_name_of_a_device() {
    let names = given_names();
    assert!(names.contains("trainer"), "{names:?}");
    assert!(begins_with_a_device("0.2: it hangs", &names));
    assert!(begins_with_a_device("0 has no daemon", &names));
    assert!(begins_with_a_device("trainer is full", &names));
    assert!(!begins_with_a_device("1 client is still running:", &names));
    let mut errors = texts_after("error: ");
    errors.retain(|error| begins_with_a_device(error, &names));
    assert!(errors.is_empty(), "write \"device …\": {errors:#?}");
}

#[test]
fn a_line_of_an_error_has_few_causes() {
    let count = |text: &str| without_quotes(text).matches(": ").count();
    assert_eq!(count(r#"p.toml:3:7: "a: b" is wrong: it is c"#), 1);
    let mut errors = texts_after("error: ");
    errors.extend(texts_after("  cause: "));
    errors.retain(|error| count(error) > MOST_SEPARATORS);
    assert!(errors.is_empty(), "write a line `cause: …`: {errors:#?}");
}

#[test]
fn a_hint_is_an_imperative() {
    let mut hints = texts_after("hint: ");
    hints.retain(|hint| {
        let first = hint.split([' ', ',', ':']).next().unwrap_or_default();
        let is_other = OTHER_BEGINNINGS.iter().any(|other| hint.starts_with(other));
        !is_other && !VERBS.contains(&first)
    });
    assert!(
        hints.is_empty(),
        "begin with a verb, and add the verb to the list if it is new: {hints:#?}"
    );
}
