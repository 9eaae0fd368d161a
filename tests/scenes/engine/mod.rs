//! Plays scene files: `tests/scenes/README.md` says what is in them.

use std::fmt::Write;
use std::fs;

pub(crate) use file::{Part, matches, parse};
use file::{is_line, written};
pub(crate) use stage::{QUESTION, Stage};

use testkit::{Ran, repository};

use crate::scenes::blocks::{self, SeenIn};

mod file;
mod stage;
mod tidy;

/// Plays a file of `tests/scenes`, and compares what the program says with what is in it, or writes that into it.
#[track_caller]
pub(crate) fn play(name: &str) {
    let path = repository().join("tests/scenes").join(name);
    let text = fs::read_to_string(&path).unwrap();
    let mut parts = parse(&text);
    let needs_root = parts.iter().any(|part| part.head == "root");
    if needs_root && !testkit::is_root(name) {
        return;
    }
    let mut stage = None;
    let mut differences = String::new();
    for part in &mut parts {
        let Some(ran) = take(part, &mut stage, name) else {
            continue;
        };
        let mut said = stage
            .as_ref()
            .map_or_else(Vec::new, |stage| stage.said(&ran));
        if ran.status != 0 {
            said.push(format!("[exit status {}]", ran.status));
        }
        if !matches(&part.body, &said, &is_line) {
            let was = part.text();
            part.body = said;
            let (line, head, now) = (part.line, &part.head, part.text());
            let _ = write!(
                differences,
                "tests/scenes/{name}:{line}: {head}\n--- in the file\n{was}--- said\n{now}\n"
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
fn take(part: &Part, stage: &mut Option<Stage>, file: &str) -> Option<Ran> {
    let head = part.head.as_str();
    let (verb, rest) = head.split_once(' ').unwrap_or((head, ""));
    if matches!(verb, "" | "#" | "root" | "leave") {
        return None;
    }
    if verb == "node" {
        // The old one ends first.
        drop(stage.take());
        *stage = Some(Stage::with(rest));
        return None;
    }
    let at = format!("tests/scenes/{file}:{}: {head}", part.line);
    // It is seen if the test fails.
    println!("{at}");
    let stage = stage
        .as_mut()
        .unwrap_or_else(|| panic!("{at}: there is no node yet"));
    let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
    match verb.strip_suffix('$').unwrap_or(verb) {
        "ask" => stage.ask(rest),
        "press" => return Some(stage.press(rest)),
        way if verb.ends_with('$') => {
            let mut ran = stage.run(way, rest);
            if !matches!(ran.status, 0 | 2) {
                ran.stdout.clear();
            }
            return Some(ran);
        }
        "block" => blocks::play(stage, first, second, SeenIn::Pipe),
        "screen" => blocks::play(stage, first, second, SeenIn::Terminal),
        "profile" => stage.profile(rest, &part.text()),
        "file" => stage.file(rest, &part.text()),
        "policy" => stage.policy(first, second),
        "do" => stage.prepare(rest),
        "simnode" => stage.prepare(&format!("simnode {first} $SIMNODE {second}")),
        "start" => stage.start(first, second),
        "end" => stage.end(rest),
        "kill" | "stop" => stage.signal(verb, rest),
        "wait" => stage.wait(first, second),
        _ => panic!("{at}: there is no such word"),
    }
    None
}

/// Asserts that these are all the files of a folder.
pub(crate) fn are_all(folder: &str, names: &[&str]) {
    let path = repository().join("tests/scenes").join(folder);
    let files = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut found: Vec<String> = files
        .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort();
    assert_eq!(found, names);
}
