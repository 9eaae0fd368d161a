//! The manual, a Markdown file per topic, embedded in the program; and `mig-mps help`, which shows it.

pub mod pages;
mod text;

use std::fmt::Write as _;

use clap::{Args, Command};

use crate::commands::Context;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::render::{self, hanging, page, print, terminal_width};

use text::markdown;

/// A chapter of the manual.
#[derive(Debug)]
pub struct Topic {
    /// The word that `mig-mps help` takes.
    pub name: &'static str,
    pub about: &'static str,
    pub text: &'static str,
    /// The commands whose help refers to it.
    pub commands: &'static [&'static str],
}

macro_rules! topic {
    ($name:literal, $about:literal, $commands:expr) => {
        Topic {
            name: $name,
            about: $about,
            text: include_str!(concat!("../../manual/", $name, ".md")),
            commands: &$commands,
        }
    };
}

/// Every topic, in the order of the manual.
pub const TOPICS: [Topic; 18] = [
    topic!(
        "security",
        "What users of a device can do to each other and to root",
        ["up", "down", "restart"]
    ),
    topic!(
        "profile",
        "The profile file: selectors, devices, MPS settings",
        ["init", "plan", "up", "check", "set"]
    ),
    topic!(
        "changing",
        "How a node is changed, and who is disrupted",
        ["plan", "up", "down", "set", "restart"]
    ),
    topic!(
        "boot",
        "What happens at boot, healing, and fleets",
        ["systemd", "heal"]
    ),
    topic!(
        "monitoring",
        "Metrics for Prometheus, and alerts",
        ["metrics", "status"]
    ),
    topic!(
        "states",
        "States of devices, and what status shows",
        ["status", "list"]
    ),
    topic!(
        "running",
        "How programs use devices",
        ["run", "env", "cdi", "verify", "compare"]
    ),
    topic!("slurm", "Devices for Slurm jobs", ["slurm"]),
    topic!("clients", "How a client is ended", ["kill", "status"]),
    topic!(
        "daemon-logs",
        "What the daemons write, and what it means",
        ["logs"]
    ),
    topic!("checking", "Profiles and commands without a GPU", ["check"]),
    topic!(
        "mig-parted",
        "Import from and export to mig-parted",
        ["import", "export"]
    ),
    topic!(
        "hardware",
        "Drivers, models, and what was tried on real GPUs",
        ["list", "check"]
    ),
    topic!(
        "json",
        "JSON for programs, and its schemas",
        ["list", "status", "logs", "plan", "schema"]
    ),
    topic!("environment", "Environment variables and files", []),
    topic!("exit-status", "Exit statuses", ["plan", "up", "status"]),
    topic!(
        "troubleshooting",
        "What goes wrong, and the remedy",
        ["status", "logs", "restart", "kill"]
    ),
    topic!(
        "diagnosis",
        "Checks that doctor makes, with their ids",
        ["doctor", "status"]
    ),
];

/// The meaning of a setting, from the table of the chapter `profile`; empty if it is not there.
pub fn setting_meaning(key: &str) -> String {
    let row = format!("| `{key}` | ");
    let rows = TOPICS.iter().flat_map(|topic| topic.text.lines());
    let meaning = rows
        .filter_map(|line| line.strip_prefix(&row))
        .find_map(|rest| rest.trim_end_matches(" |").rsplit(" | ").next());
    meaning.unwrap_or_default().replace('`', "")
}

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
    let Some(subject) = &args.subject else {
        print(&overview(&program, context.tasks))?;
        return Ok(ExitStatus::Done);
    };
    // A command that is called as a topic has its own help behind --help.
    if let Some(topic) = TOPICS.iter().find(|topic| topic.name == subject) {
        let width = terminal_width().unwrap_or(USUAL_WIDTH);
        page(&markdown(topic.text, width.min(WIDEST)))?;
    } else if let Some(command) = program.find_subcommand_mut(subject) {
        let help = command.render_long_help();
        let text = if terminal_width().is_some() {
            help.ansi().to_string()
        } else {
            help.to_string()
        };
        page(&text)?;
    }
    Ok(ExitStatus::Done)
}

/// The width of a chapter that is not read on a terminal.
const USUAL_WIDTH: usize = 80;

/// The widest lines that are read easily.
const WIDEST: usize = 100;

fn overview(program: &Command, tasks: &[(&str, &[&str])]) -> String {
    let width = TOPICS
        .iter()
        .map(|topic| topic.name.len())
        .max()
        .unwrap_or(0);
    let room = render::width();
    let row = |name: &str, about: &str| hanging(&format!("  {name:width$}  "), about, room);
    let about = program.get_about().cloned().unwrap_or_default();
    let mut text = hanging("", &about.to_string(), room);
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
    text.push_str("\nTopics of the manual:\n");
    for topic in &TOPICS {
        text.push_str(&row(topic.name, topic.about));
    }
    text.push_str("\nmig-mps help COMMAND and mig-mps help TOPIC show more.\n");
    text
}
