//! `mig-mps help`

use std::fmt::Write as _;

use clap::builder::PossibleValuesParser;
use clap::{Args, Command};

use crate::error::{CommandError, ExitStatus, Result};
use crate::manual::TOPICS;
use crate::render::Ui;

#[derive(Args, Debug)]
pub struct HelpArgs {
    /// Command, or topic of the manual
    #[arg(value_name = "COMMAND|TOPIC", value_parser = subjects())]
    subject: Option<String>,
}

/// The commands by task.
const TASKS: [(&str, &[&str]); 4] = [
    ("See GPUs, devices and clients", &["list", "status", "logs"]),
    (
        "Change the node",
        &["plan", "up", "set", "restart", "kill", "down"],
    ),
    ("Write profiles", &["check", "import", "export"]),
    ("Learn more", &["help", "completions"]),
];

fn subjects() -> PossibleValuesParser {
    let commands = TASKS
        .iter()
        .flat_map(|(_, commands)| commands.iter().copied());
    PossibleValuesParser::new(commands.chain(TOPICS.iter().map(|topic| topic.name)))
}

/// Shows the help of a command, a chapter of the manual, or a list of both.
pub fn run(args: &HelpArgs, program: Command, ui: &Ui) -> Result<ExitStatus> {
    let mut program = program;
    program.build();
    match &args.subject {
        None => ui.text(&overview(&program))?,
        Some(subject) => match program.find_subcommand_mut(subject) {
            Some(command) => {
                let help = command.render_long_help();
                let text = if ui.is_for_a_person() {
                    help.ansi().to_string()
                } else {
                    help.to_string()
                };
                ui.page(&text)?;
            }
            None => ui.page(chapter(subject)?)?,
        },
    }
    Ok(ExitStatus::Done)
}

fn chapter(name: &str) -> Result<&'static str> {
    let topic = TOPICS.iter().find(|topic| topic.name == name);
    let unknown = || CommandError::new(ExitStatus::Usage, format_args!("no topic \"{name}\""));
    Ok(topic.ok_or_else(unknown)?.text)
}

fn overview(program: &Command) -> String {
    let width = TOPICS.iter().map(|topic| topic.name.len()).max();
    let width = width.unwrap_or(0);
    let mut text = format!("{}\n", program.get_about().cloned().unwrap_or_default());
    for (task, commands) in TASKS {
        let _ = write!(text, "\n{task}:\n");
        for name in commands {
            let about = program.find_subcommand(name).and_then(Command::get_about);
            let about = about.cloned().unwrap_or_default();
            let _ = writeln!(text, "  {name:width$}  {about}");
        }
    }
    text.push_str("\nTopics of the manual:\n");
    for topic in &TOPICS {
        let _ = writeln!(text, "  {:width$}  {}", topic.name, topic.about);
    }
    text.push_str("\nmig-mps help COMMAND and mig-mps help TOPIC show more.\n");
    text
}
