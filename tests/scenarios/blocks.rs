//! The console blocks of the README and the manual show what really happens: `tests/scenarios/documents` says what a block
//! needs on the node before its first command, or why it is not run.

use std::collections::BTreeSet;
use std::fs;

use regex::Regex;

use testkit::repository;

use crate::scenarios::engine::{Part, QUESTION, Testbed, matches, parse};

/// The commands of a block that are ours: the others are not there, or are not what it is about.
const OURS: [&str; 10] = [
    "mig-mps ",
    "sudo mig-mps ",
    "sudo mig-mps-device-plugin ",
    "systemctl is-active ",
    "sudo systemctl reset-failed ",
    "sudo systemctl start mig-mps",
    "sudo systemctl stop mig-mps",
    "cargo sim ",
    "eval ",
    "./train",
];

/// Lines that a node other than the one of `cargo sim` does not have.
const OF_CARGO_SIM: &str = "cargo sim: ";

/// The documents: their names and texts.
fn documents() -> Vec<(String, String)> {
    let manual = fs::read_dir(repository().join("src/manual")).unwrap();
    let files = manual.map(|entry| entry.unwrap().path());
    let files = files.filter(|file| !file.ends_with("README.md"));
    let chapters = files.filter(|file| file.extension().is_some_and(|end| end == "md"));
    let all = chapters.chain([repository().join("README.md")]);
    all.map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(&path).unwrap())
    })
    .collect()
}

/// The blocks of a document: the commands, each with the lines that it prints.
fn blocks(text: &str) -> impl Iterator<Item = Vec<Part>> {
    // A command goes on in the line below a backslash.
    let text = Regex::new(r" \\\n *").unwrap().replace_all(text, " ");
    let blocks: Vec<String> = text
        .split("```console\n")
        .skip(1)
        .map(str::to_owned)
        .collect();
    blocks.into_iter().map(|block| {
        let (block, _) = block.split_once("```").unwrap();
        let mut parts: Vec<Part> = Vec::new();
        for line in block.lines() {
            match line.strip_prefix("$ ") {
                Some(command) => parts.push(Part {
                    line: 0,
                    head: command.split("  #").next().unwrap().trim_end().to_owned(),
                    body: Vec::new(),
                }),
                None => parts.last_mut().unwrap().body.push(line.to_owned()),
            }
        }
        parts
    })
}

#[test]
fn every_block_is_run_or_says_why_not() {
    let files = fs::read_dir(repository().join("tests/scenarios/documents")).unwrap();
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let parts: Vec<Part> = texts.flat_map(|text| parse(&text)).collect();
    let named = |word: &str| {
        let named = parts
            .iter()
            .filter_map(|part| Some((part.head.strip_prefix(word)?, part)));
        named.collect::<Vec<_>>()
    };
    let mut run = named("block ");
    run.extend(named("screen "));
    let left = named("leave ");
    assert!(
        left.iter().all(|(_, part)| !part.body.is_empty()),
        "{left:#?}"
    );
    let listed = run
        .iter()
        .chain(&left)
        .map(|(block, _)| (*block).to_owned());
    let mut there = BTreeSet::new();
    for (name, text) in documents() {
        for block in blocks(&text) {
            let block = format!("{name} {}", block[0].head);
            assert!(there.insert(block.clone()), "twice: {block}");
        }
    }
    assert_eq!(listed.collect::<BTreeSet<_>>(), there);
}

/// Where output of a block is seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeenIn {
    Pipe,
    /// A terminal of 80 columns, where questions are answered as the block has it.
    Terminal,
}

/// Runs the block of a document that begins with a command.
pub(crate) fn run_block(testbed: &mut Testbed, document: &str, first: &str, seen_in: SeenIn) {
    let documents = documents();
    let (_, text) = documents
        .iter()
        .find(|(name, _)| name == document)
        .expect("a document");
    let block = blocks(text)
        .find(|block| block[0].head == first)
        .expect("a block of it");
    let ours = block
        .iter()
        .filter(|part| OURS.iter().any(|begin| part.head.starts_with(begin)));
    if block.iter().all(|part| part.body.is_empty()) {
        let lines: Vec<String> = ours.map(|part| here(&part.head)).collect();
        testbed.prepare(&lines.join(" &&\n"));
        return;
    }
    for part in ours {
        let command = here(&part.head);
        let ran = match seen_in {
            SeenIn::Pipe => testbed.run("", &command),
            SeenIn::Terminal => testbed.run_in_terminal(&command, answer(&part.body)),
        };
        let (status, said) = (ran.status, testbed.said(&ran));
        let fails = part.body.iter().any(|line| line.starts_with("error: "));
        assert_eq!(
            !matches!(status, 0 | 3),
            fails,
            "{}: {status} {said:#?}",
            part.head
        );
        let wanted: Vec<String> = part.body.iter().flat_map(|line| wanted(line)).collect();
        let are_shown = part.body.is_empty() || matches(&wanted, &said, &is_example);
        assert!(
            are_shown,
            "{document}: {}\n{wanted:#?}\nit said {said:#?}",
            part.head
        );
    }
}

/// The text that is typed at a question that a block shows.
fn answer(body: &[String]) -> Option<&str> {
    let answer = body.iter().find_map(|line| line.split_once(QUESTION));
    answer.map(|(_, answer)| answer)
}

/// The command as it is typed on a simulated node by root.
fn here(command: &str) -> String {
    let command = command.trim_start_matches("sudo ");
    let command = command.replacen("cargo sim ", "mig-mps ", 1);
    ["/etc/", "/var/"].iter().fold(command, |command, dir| {
        command.replace(&format!(" {dir}"), &format!(" $PWD{dir}"))
    })
}

/// A line of a document as a pattern. `…` stands for any number of lines, and `[5 more lines]` for as many.
fn wanted(line: &str) -> Vec<String> {
    if line.starts_with(OF_CARGO_SIM) {
        return Vec::new();
    }
    let more = line
        .strip_prefix('[')
        .and_then(|line| line.strip_suffix(" more lines]"));
    match more {
        Some(count) => vec!["[..]".to_owned(); count.parse().unwrap()],
        None if line == "…" => vec!["...".to_owned()],
        None => vec![line.to_owned()],
    }
}

/// True if a line of a document could be what was said: with other pids, times, directories and users, and other widths
/// of columns.
fn is_example(line: &str, said: &str) -> bool {
    let mut pattern = regex::escape(said);
    for (from, to) in [
        // The program that the reader of the tutorial starts.
        (r"\\\[(?:PID|reader)\\\]", r"\d+"),
        (r"\\\[TIME\\\]", r"(?:[0-9.]+ m?s|\w+)"),
        (r"\\\[UUID\\\]", r"(?:[0-9a-f\-]{36}|…)"),
        (r"\\\[DIR\\\][\w/]*", r"/[\w/]+"),
        (r" {2,}", " {2,}"),
    ] {
        let to = to.replace('$', "$$");
        pattern = Regex::new(from)
            .unwrap()
            .replace_all(&pattern, to)
            .into_owned();
    }
    let line = line.replace("alice", "nobody");
    line == "[..]"
        || Regex::new(&format!("^{pattern}$"))
            .unwrap()
            .is_match(line.trim_end())
}
