//! `mig-mps help`

use std::fmt::Write as _;

use clap::{Args, Command};

use super::Context;
use crate::error::{Result, usage};
use crate::failure::ExitStatus;
use crate::manual::TOPICS;
use crate::render::{self, behind, markdown, page, print, terminal_width};

/// Show the manual, or the help of a command
#[derive(Args, Debug)]
pub struct HelpArgs {
    /// Command, or topic of the manual
    #[arg(value_name = "COMMAND|TOPIC")]
    subject: Option<String>,
}

/// Shows the help of a command, a chapter of the manual, or a list of both.
pub fn run(args: &HelpArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let mut program = (context.program)();
    program.build();
    match &args.subject {
        None => print(&overview(&program, context.tasks))?,
        // A command that is called as a topic has its own help behind --help.
        Some(subject) if is_topic(subject) => page(&chapter(subject)?)?,
        Some(subject) => match program.find_subcommand_mut(subject) {
            Some(command) => {
                let help = command.render_long_help();
                let text = if terminal_width().is_some() {
                    help.ansi().to_string()
                } else {
                    help.to_string()
                };
                page(&text)?;
            }
            None => page(&chapter(subject)?)?,
        },
    }
    Ok(ExitStatus::Done)
}

fn is_topic(name: &str) -> bool {
    TOPICS.iter().any(|topic| topic.name == name)
}

/// The width of a chapter that is not read on a terminal.
const USUAL_WIDTH: usize = 80;

/// The widest lines that are read easily.
const WIDEST: usize = 100;

/// Formats a chapter for the terminal.
fn chapter(name: &str) -> Result<String> {
    let topic = TOPICS.iter().find(|topic| topic.name == name);
    let unknown =
        || usage(format_args!("no topic \"{name}\"")).hint("mig-mps help lists the topics");
    let width = terminal_width().unwrap_or(USUAL_WIDTH);
    Ok(markdown(topic.ok_or_else(unknown)?.text, width.min(WIDEST)))
}

fn overview(program: &Command, tasks: &[(&str, &[&str])]) -> String {
    let width = TOPICS.iter().map(|topic| topic.name.len()).max();
    let width = width.unwrap_or(0);
    let room = render::width();
    let row = |name: &str, about: &str| behind(&format!("  {name:width$}  "), about, room);
    let about = program.get_about().cloned().unwrap_or_default();
    let mut text = behind("", &about.to_string(), room);
    for (task, commands) in tasks {
        let _ = write!(text, "\n{task}:\n");
        for name in *commands {
            let about = program.find_subcommand(name).and_then(Command::get_about);
            let about = about.cloned().unwrap_or_default();
            text.push_str(&row(name, &about.to_string()));
        }
    }
    text.push_str("\nTopics of the manual:\n");
    for topic in &TOPICS {
        text.push_str(&row(topic.name, topic.about));
    }
    text.push_str("\nmig-mps help COMMAND and mig-mps help TOPIC show more.\n");
    text
}
