//! `mig-mps help --search`: where the manual and the help of commands have a word.

use std::cmp::Reverse;
use std::fmt::Write as _;

use clap::Command;
use console::strip_ansi_codes;
use regex::{Regex, RegexBuilder};

use super::index::places_of;
use super::text::render_markdown;
use super::{TOPICS, reading_width, subject_of};
use crate::error::{CommandError, Result, command_error};
use crate::host::shorten_command;
use crate::render::command_for;
use crate::settings::find_setting;

/// The most lines that are shown of a chapter, or of the help of a command.
const MAX_SHOWN_LINES: usize = 5;
/// The most chapters and commands whose lines are shown. The others are named.
const MAX_SHOWN_PARTS: usize = 8;

/// A chapter, or the help of a command.
struct Searched {
    /// The name of the topic or of the command.
    name: String,
    /// The command line that shows it.
    command: String,
    /// The line that describes it in the overview.
    about: String,
    /// The titles of its sections.
    titles: Vec<String>,
    text: String,
}

impl Searched {
    fn collect_all(program: &mut Command) -> Vec<Self> {
        let helps = program.get_subcommands_mut().map(|command| {
            let name = command.get_name().to_owned();
            let about = command.get_about().cloned().unwrap_or_default();
            Self {
                command: format!("mig-mps {name} --help"),
                about: about.to_string(),
                titles: Vec::new(),
                text: command.render_help().to_string(),
                name,
            }
        });
        let chapters = TOPICS.iter().map(|topic| {
            let titles = topic
                .text
                .lines()
                .filter_map(|line| line.strip_prefix("## "));
            let text = render_markdown(topic.text, reading_width());
            Self {
                name: topic.name.to_owned(),
                command: format!("mig-mps help {}", topic.name),
                about: topic.about.to_owned(),
                titles: titles.map(|title| title.replace('`', "")).collect(),
                text: strip_ansi_codes(&text).into_owned(),
            }
        });
        helps.chain(chapters).collect()
    }

    /// True if its name, its description or the title of a section has the word.
    fn is_about(&self, word: &Regex) -> bool {
        let mut titles = self.titles.iter().chain([&self.name, &self.about]);
        titles.any(|title| word.is_match(title))
    }

    /// True for the help of the command with this name.
    fn is_command(&self, word: &str) -> bool {
        self.command.ends_with(" --help") && self.name.eq_ignore_ascii_case(word)
    }

    /// True for the chapter about profiles, if the word is a setting.
    fn explains_setting(&self, word: &str) -> bool {
        self.name == "profile" && find_setting(&word.to_lowercase()).is_some()
    }

    /// Returns the lines with the word: titles first, then the rows of tables about the word.
    fn lines_with(&self, word: &Regex) -> Vec<&str> {
        let mut lines: Vec<&str> = self
            .text
            .lines()
            .map(str::trim)
            .filter(|line| word.is_match(line))
            .collect();
        lines.sort_by_key(|line| {
            let is_title = self.titles.iter().any(|title| title == line);
            let is_row = line.contains("  ") && word.find(line).is_some_and(|at| at.start() == 0);
            (!is_title, !is_row)
        });
        lines
    }
}

/// Finds a word at the beginning of words in the manual and in the help of commands. First comes what the words of other
/// programs mean here, then what is about the word.
pub(super) fn search_manual(word: &str, program: &mut Command) -> Result<String> {
    let beginning = format!(r"(?:^|[^\p{{L}}\p{{N}}]){}", regex::escape(word));
    let beginning = RegexBuilder::new(&beginning)
        .case_insensitive(true)
        .build()
        // It is too long for an expression, and so for every line.
        .map_err(|_| not_found(word))?;
    let ours = command_for(&word.to_lowercase());
    let places = places_of(word);
    let searched = Searched::collect_all(program);
    let position = |command: &str| places.iter().position(|place| place.command() == command);
    let mut found: Vec<Hit> = Vec::new();
    for place in places {
        let command = place.command();
        if !searched.iter().any(|one| one.command == command) {
            found.push(Hit::in_index(&command, position(&command), place.what));
        }
    }
    for searched in searched {
        let ours = ours.filter(|ours| subject_of(ours) == searched.name);
        let indexed: Vec<&str> = places
            .iter()
            .filter(|place| place.command() == searched.command)
            .map(|place| place.what)
            .collect();
        let is_indexed = !indexed.is_empty();
        let mut with_word = searched.lines_with(&beginning);
        with_word.retain(|line| !indexed.contains(line));
        let lines = [indexed, with_word].concat();
        if lines.is_empty() && ours.is_none() {
            continue;
        }
        let kind = match ours {
            Some(_) => 0,
            None if is_indexed || searched.explains_setting(word) => 0,
            None if searched.is_about(&beginning) => 1,
            None => 2,
        };
        let rank = HitRank {
            kind,
            position: position(&searched.command).unwrap_or(0),
            is_other: !searched.is_command(word),
            lines: Reverse(lines.len()),
        };
        let is_whole = |ours: &&str| ours.contains(" --") || ours.starts_with("explain ");
        let command = match ours.filter(is_whole) {
            Some(ours) => format!("mig-mps {ours}"),
            None => searched.command.clone(),
        };
        found.push(Hit {
            rank,
            text: render_hit(&command, &lines, &searched.about),
            command,
        });
    }
    if found.is_empty() {
        return Err(not_found(word));
    }
    found.sort_by_key(|hit| hit.rank);
    Ok(render_hits(found))
}

/// A chapter, or the help of a command, that has the word.
struct Hit {
    rank: HitRank,
    command: String,
    text: String,
}

impl Hit {
    /// A place that the index names outside of what is searched.
    fn in_index(command: &str, position: Option<usize>, what: &str) -> Self {
        Self {
            rank: HitRank {
                position: position.unwrap_or(0),
                ..HitRank::default()
            },
            text: render_hit(command, &[what], ""),
            command: command.to_owned(),
        }
    }
}

/// The place of a hit among others: the least comes first.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct HitRank {
    /// 0 for what is meant by the word, 1 for what is about the word, 2 for the rest.
    kind: u8,
    /// The position in the index.
    position: usize,
    /// False for the command of this name.
    is_other: bool,
    /// The number of lines with the word.
    lines: Reverse<usize>,
}

fn not_found(word: &str) -> CommandError {
    let what = format!("no command and no topic has \"{}\"", shorten_command(word));
    command_error(what).with_hint("run `mig-mps help` to list all commands and topics")
}

/// Shows the first hits, and names the others.
fn render_hits(mut hits: Vec<Hit>) -> String {
    let others = hits.split_off(hits.len().min(MAX_SHOWN_PARTS));
    let mut parts: Vec<String> = hits.into_iter().map(|hit| hit.text).collect();
    if !others.is_empty() {
        let commands: Vec<String> = others.into_iter().map(|hit| hit.command).collect();
        parts.push(format!("Also in:\n  {}\n", commands.join("\n  ")));
    }
    parts.join("\n")
}

/// Shows some lines below the command that shows all, or what that is about.
fn render_hit(command: &str, lines: &[&str], about: &str) -> String {
    let mut part = format!("{command}\n");
    if lines.is_empty() {
        let _ = writeln!(part, "  {about}");
    }
    for line in lines.iter().take(MAX_SHOWN_LINES) {
        let _ = writeln!(part, "  {line}");
    }
    if lines.len() > MAX_SHOWN_LINES {
        let _ = writeln!(part, "  and {} more lines", lines.len() - MAX_SHOWN_LINES);
    }
    part
}
