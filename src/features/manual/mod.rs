//! The manual, a Markdown file per topic, embedded in the program; and `mig-mps help`, which shows it.

mod index;
pub mod pages;
mod roff;
mod search;
mod subjects;
mod text;
mod topics;

use std::fmt::Write as _;

use clap::{Args, Command};

use crate::commands::Context;
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::host::{closest_match, shorten_command};
use crate::render::{self, command_for, print_paged, terminal_width, wrap_behind};

use index::places_of;
use search::search_manual;
use text::{render_markdown, section};
use topics::{Part, Topic};

pub use subjects::HelpSubjects;
pub use topics::{ALIASES, TOPICS};

/// The meaning of a setting, from the table of the chapter `profile`; empty if it is not there.
pub fn setting_meaning(key: &str) -> String {
    let row = format!("| `{key}` | ");
    TOPICS
        .iter()
        // Other chapters have tables with the keys of other files.
        .filter(|topic| topic.name == "profile")
        .flat_map(|topic| topic.text.lines())
        .filter_map(|line| line.strip_prefix(&row))
        .find_map(|rest| rest.trim_end_matches(" |").rsplit(" | ").next())
        .unwrap_or_default()
        .replace('`', "")
}

/// Show the manual, or the help of a command
#[derive(Args, Debug)]
#[command(after_help = render::examples(&[
    ("mig-mps help start", "Show the first steps"),
    ("mig-mps help up", "Show the help of a command"),
    ("mig-mps help --search docker", "Search the manual"),
]))]
pub struct HelpArgs {
    /// Command, topic, or any other word to search for
    #[arg(value_name = "COMMAND|TOPIC", hide_possible_values = true)]
    subject: Vec<String>,
    /// Search the manual and the help of commands for WORD
    #[arg(
        long,
        value_name = "WORD",
        allow_hyphen_values = true,
        conflicts_with = "subject"
    )]
    search: Option<String>,
}

/// Shows the help of a command, a chapter of the manual, a list of both, or where they have a word.
pub fn run(args: &HelpArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let mut program = (context.program)();
    program.build();
    if let Some(word) = &args.search {
        print_paged(&search_manual(word, &mut program)?)?;
        return Ok(ExitStatus::Done);
    }
    if args.subject.is_empty() {
        print_paged(&overview(&program, context.tasks))?;
        return Ok(ExitStatus::Done);
    }
    let subject = args.subject.join(" ");
    let known = match places_of(&subject) {
        [] => find_help(&subject, &mut program),
        _ => None,
    };
    let text = match known {
        Some(text) => text,
        None => search_unknown(&subject, &mut program)?,
    };
    print_paged(&text)?;
    Ok(ExitStatus::Done)
}

/// Returns the chapter or the help of a command that is called so, here or in other programs.
fn find_help(subject: &str, program: &mut Command) -> Option<String> {
    let lower = subject.to_lowercase();
    let is_ours = TOPICS.iter().any(|topic| topic.name == lower)
        || ALIASES.iter().any(|alias| alias.name == lower);
    // A state such as `dead` is explained, and the help of `explain` says nothing about the state.
    let is_help = |ours: &&str| !is_ours && !ours.starts_with("explain ");
    let subject = match command_for(&lower).filter(is_help) {
        Some(ours) => subject_of(ours),
        None => lower.as_str(),
    };
    // A command that is called as a topic has its own help behind --help.
    if let Some(text) = chapter(subject) {
        return Some(text);
    }
    let command = subject
        .split(' ')
        .try_fold(program, Command::find_subcommand_mut)?;
    let help = command.render_help();
    Some(if terminal_width().is_some() {
        help.ansi().to_string()
    } else {
        help.to_string()
    })
}

/// Returns the chapter or the section that a word stands for.
fn chapter(name: &str) -> Option<String> {
    let alias = ALIASES.iter().find(|alias| alias.name == name);
    let name = alias.map_or(name, |alias| alias.topic);
    let topic = TOPICS.iter().find(|topic| topic.name == name)?;
    let Some(title) = alias.and_then(|alias| alias.section) else {
        return Some(render_markdown(topic.text, reading_width()));
    };
    let text = section(topic.text, title)?;
    let more = format!("\nThis is a section of [{name}]({name}.md).\n");
    Some(render_markdown(&(text.to_owned() + &more), reading_width()))
}

/// Returns where the manual has a word that is no command and no topic.
fn search_unknown(word: &str, program: &mut Command) -> Result<String> {
    let mut what = String::new();
    let found = search_manual(word, program).or_else(|error| {
        // Of a phrase that is nowhere, its longest word.
        let mut words: Vec<&str> = word.split(' ').filter(|one| one.len() > 2).collect();
        words.sort_by_key(|one| std::cmp::Reverse(one.len()));
        let (one, found) = words
            .into_iter()
            .filter(|one| *one != word)
            .find_map(|one| Some((one, search_manual(one, program).ok()?)))
            .ok_or(error)?;
        what = format!("\"{}\"", shorten_command(one));
        Ok(found)
    });
    let found = found.map_err(|error: CommandError| {
        let commands = program.get_subcommands().map(Command::get_name);
        let topics = TOPICS.iter().map(|topic| topic.name);
        let others = ALIASES.iter().map(|alias| alias.name);
        let near = closest_match(word, commands.chain(topics).chain(others));
        let near = near.map(|near| format!("did you mean `mig-mps help {near}`?"));
        CommandError {
            status: ExitStatus::Usage,
            hints: near.into_iter().chain(error.hints).collect(),
            ..error
        }
    })?;
    let what = if what.is_empty() { "it" } else { &what };
    Ok(format!(
        "No command and no topic is called \"{}\". The manual has {what} here:\n\n{found}",
        shorten_command(word)
    ))
}

/// Returns the command or the topic that a command line is about: `up` of `up --previous`, `running` of `help running`.
fn subject_of(ours: &str) -> &str {
    let rest = ours.strip_prefix("help ").unwrap_or(ours);
    rest.split(' ').next().unwrap_or(rest)
}

/// The width of a chapter that is not read on a terminal.
const USUAL_WIDTH: usize = 80;

/// The widest lines that are read easily.
const MAX_READING_WIDTH: usize = 100;

fn reading_width() -> usize {
    terminal_width()
        .unwrap_or(USUAL_WIDTH)
        .min(MAX_READING_WIDTH)
}

/// What mig-mps is, in one sentence.
const PURPOSE: &str = "mig-mps partitions NVIDIA GPUs with MIG (Multi-Instance GPU) and shares every \
                       part among programs with MPS (Multi-Process Service), as one file describes.";

/// The first commands of those who run a node, and of those who use it.
const WAYS_IN: &str = "\
You run this node:
  mig-mps init                   write a profile, after some questions
  sudo mig-mps up profile.toml   make the devices and start their daemons

You want to use a GPU:
  mig-mps status                 show the devices, and who uses them
  mig-mps run DEVICE -- PROGRAM  run a program on a device
";

/// The commands by task, without what each does: what the program shows if it is called without a command.
pub fn first_screen(tasks: &[(&str, &[&str])]) -> String {
    let width = tasks.iter().map(|(task, _)| task.len()).max().unwrap_or(0);
    let room = reading_width();
    let mut text = format!("{}\n{WAYS_IN}\n", wrap_behind("", PURPOSE, room));
    for (task, commands) in tasks {
        text += &wrap_behind(&format!("{task:width$}  "), &commands.join(", "), room);
    }
    text + "\nmig-mps help start shows first steps, mig-mps help COMMAND explains a command,\n\
            and mig-mps help WORD searches the manual."
}

/// The commands by task, the options of all, and the topics of the manual.
pub fn overview(program: &Command, tasks: &[(&str, &[&str])]) -> String {
    let width = TOPICS
        .iter()
        .map(|topic| topic.name.len())
        .max()
        .unwrap_or(0);
    let room = render::output_width();
    let row = |name: &str, about: &str| wrap_behind(&format!("  {name:width$}  "), about, room);
    let about = program.get_about().cloned().unwrap_or_default();
    let mut text = wrap_behind("", &about.to_string(), room);
    text.push_str("\nUsage: mig-mps [OPTIONS] COMMAND\n\nNew here: mig-mps help start\n");
    for (task, commands) in tasks {
        let _ = write!(text, "\n{task}:\n");
        for name in *commands {
            let about = program
                .find_subcommand(name)
                .and_then(Command::get_about)
                .cloned()
                .unwrap_or_default();
            text.push_str(&row(name, &about.to_string()));
        }
    }
    text.push_str("\nOptions of every command:\n");
    for option in program.get_arguments() {
        let (Some(short), Some(long)) = (option.get_short(), option.get_long()) else {
            continue;
        };
        let help = option.get_help().cloned().unwrap_or_default();
        text.push_str(&row(&format!("-{short}, --{long}"), &help.to_string()));
    }
    for part in Part::ALL {
        let _ = write!(text, "\n{}:\n", part.title());
        for topic in TOPICS.iter().filter(|topic| topic.part == part) {
            text.push_str(&row(topic.name, topic.about));
        }
    }
    text.push_str(
        "\nmig-mps help COMMAND and mig-mps help TOPIC show more;\n\
         mig-mps help WORD searches the manual for any other word.\n",
    );
    text
}
