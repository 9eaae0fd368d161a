//! Runs scenario files: `tests/scenarios/README.md` says what is in them.

use std::fmt::Write;
use std::fs;

pub(crate) use file::{Part, matches, parse};
use file::{is_line, written};
pub(crate) use testbed::{QUESTION, Testbed};

use testkit::{Ran, repository};

use crate::scenarios::blocks::{self, SeenIn};

mod file;
mod testbed;
mod tidy;

/// Runs a file of `tests/scenarios`, and compares what the program says with what is in it, or writes that into it.
#[track_caller]
pub(crate) fn run_file(name: &str) {
    let path = repository().join("tests/scenarios").join(name);
    let text = fs::read_to_string(&path).unwrap();
    let mut parts = parse(&text);
    let needs_root = parts.iter().any(|part| part.head == "root");
    if needs_root && !testkit::is_root(name) {
        return;
    }
    let mut testbed = None;
    let mut differences = String::new();
    for part in &mut parts {
        let Some(ran) = take(part, &mut testbed, name) else {
            continue;
        };
        let mut said = testbed
            .as_ref()
            .map_or_else(Vec::new, |testbed| testbed.said(&ran));
        if ran.status != 0 {
            said.push(format!("[exit status {}]", ran.status));
        }
        if !matches(&part.body, &said, &is_line) {
            let was = part.text();
            part.body = said;
            let (line, head, now) = (part.line, &part.head, part.text());
            let _ = write!(
                differences,
                "tests/scenarios/{name}:{line}: {head}\n--- in the file\n{was}--- said\n{now}\n"
            );
        }
    }
    if std::env::var_os("RENEW").is_some() {
        fs::write(&path, written(&parts)).unwrap();
    } else {
        assert!(
            differences.is_empty(),
            "\n{differences}`cargo renew` writes it so"
        );
    }
}

/// Does what a part of a file says. Returns what a program left, if it ran one to check that.
fn take(part: &Part, testbed: &mut Option<Testbed>, file: &str) -> Option<Ran> {
    let head = part.head.as_str();
    let (verb, rest) = head.split_once(' ').unwrap_or((head, ""));
    if matches!(verb, "" | "#" | "root" | "leave") {
        return None;
    }
    if verb == "node" {
        // The old one ends first.
        drop(testbed.take());
        *testbed = Some(Testbed::with(rest));
        return None;
    }
    let at = format!("tests/scenarios/{file}:{}: {head}", part.line);
    // It is seen if the test fails.
    println!("{at}");
    let testbed = testbed
        .as_mut()
        .unwrap_or_else(|| panic!("{at}: there is no node yet"));
    let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
    match verb.strip_suffix('$').unwrap_or(verb) {
        "ask" => testbed.ask(rest),
        "press" => return Some(testbed.press(rest)),
        way if verb.ends_with('$') => {
            let mut ran = testbed.run(way, rest);
            if !matches!(ran.status, 0 | 2) {
                ran.stdout.clear();
            }
            return Some(ran);
        }
        "block" => blocks::run_block(testbed, first, second, SeenIn::Pipe),
        "screen" => blocks::run_block(testbed, first, second, SeenIn::Terminal),
        "profile" => testbed.profile(rest, &part.text()),
        "file" => testbed.file(rest, &part.text()),
        "policy" => testbed.policy(first, second),
        "do" => testbed.prepare(rest),
        "simnode" => testbed.prepare(&format!("simnode {first} $SIMNODE {second}")),
        "start" => testbed.start(first, second),
        "end" => testbed.end(rest),
        "kill" | "stop" => testbed.signal(verb, rest),
        "wait" => testbed.wait(first, second),
        _ => panic!("{at}: there is no such word"),
    }
    None
}

/// Asserts that these are all the files of a folder.
pub(crate) fn are_all(folder: &str, names: &[&str]) {
    let path = repository().join("tests/scenarios").join(folder);
    let files = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut found: Vec<String> = files
        .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort();
    assert_eq!(found, names);
}
