//! The manual, a Markdown file per topic, embedded in the program; and `mig-mps help`, which shows it.

pub mod pages;
mod search;
mod text;

use std::fmt::Write as _;

use clap::{Args, Command};

use crate::commands::Context;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::render::{self, command_for, print, print_paged, terminal_width, wrap_behind};

use search::search_manual;
use text::render_markdown;

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
pub const TOPICS: [Topic; 27] = [
    topic!(
        "security",
        "What users of a device can do to each other and to root",
        ["up", "down", "restart"]
    ),
    topic!(
        "auditing",
        "What root's commands do with processes and files of users",
        []
    ),
    topic!(
        "profile",
        "The profile file: selectors, devices, MPS settings",
        ["init", "plan", "up", "check", "set"]
    ),
    topic!(
        "changing",
        "How a node is changed, and who is disrupted",
        ["plan", "up", "down", "set", "restart", "profiles"]
    ),
    topic!(
        "recipes",
        "A class, a GPU out of service, roll back, leave no trace, Ansible",
        ["up", "down", "profiles"]
    ),
    topic!(
        "boot",
        "What happens at boot, and healing",
        ["systemd", "heal"]
    ),
    topic!(
        "upgrades",
        "Upgrades of mig-mps, the driver and the kernel",
        ["systemd", "down"]
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
        ["run", "env", "verify"]
    ),
    topic!(
        "containers",
        "Devices in containers: Docker, podman, Kubernetes",
        ["cdi", "env"]
    ),
    topic!(
        "kubernetes",
        "Shares of devices for pods, by a device plugin of the kubelet",
        ["systemd", "env"]
    ),
    topic!("comparing", "What MPS is worth to a program", ["compare"]),
    topic!(
        "advise",
        "The smallest hardware for programs, by measurements",
        ["advise", "compare", "init"]
    ),
    topic!("slurm", "Devices for Slurm jobs", ["slurm"]),
    topic!("clients", "How a client is ended", ["kill", "status"]),
    topic!(
        "daemon-logs",
        "What the daemons write, and what it means",
        ["logs"]
    ),
    topic!(
        "checking",
        "Whether profiles fit, here and without a GPU",
        ["check", "plan"]
    ),
    topic!(
        "mig-parted",
        "Import from and export to mig-parted",
        ["import", "export"]
    ),
    topic!(
        "selftest",
        "Testing MIG and MPS on a node's own GPUs, and giving them back",
        ["selftest"]
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
        ["status", "logs", "explain", "restart", "kill"]
    ),
    topic!(
        "diagnosis",
        "Checks that doctor makes, with their ids",
        ["doctor", "explain", "status"]
    ),
    topic!("glossary", "The words of MIG, MPS and mig-mps", ["list"]),
];

/// The meaning of a setting, from the table of the chapter `profile`; empty if it is not there.
pub fn setting_meaning(key: &str) -> String {
    let row = format!("| `{key}` | ");
    TOPICS
        .iter()
        .flat_map(|topic| topic.text.lines())
        .filter_map(|line| line.strip_prefix(&row))
        .find_map(|rest| rest.trim_end_matches(" |").rsplit(" | ").next())
        .unwrap_or_default()
        .replace('`', "")
}

/// Show the manual, or the help of a command
#[derive(Args, Debug)]
pub struct HelpArgs {
    /// Command, or topic of the manual
    #[arg(value_name = "COMMAND|TOPIC")]
    subject: Option<String>,
    /// Show where the manual and the help of commands have words that begin with WORD
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
    let Some(subject) = &args.subject else {
        print(&overview(&program, context.tasks))?;
        return Ok(ExitStatus::Done);
    };
    let subject = command_for(subject).map_or(subject.as_str(), subject_of);
    // A command that is called as a topic has its own help behind --help.
    if let Some(topic) = TOPICS.iter().find(|topic| topic.name == subject) {
        print_paged(&render_markdown(topic.text, reading_width()))?;
    } else if let Some(command) = program.find_subcommand_mut(subject) {
        let help = command.render_long_help();
        let text = if terminal_width().is_some() {
            help.ansi().to_string()
        } else {
            help.to_string()
        };
        print_paged(&text)?;
    }
    Ok(ExitStatus::Done)
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

/// The commands by task, without what each does: what the program shows if it is called without a command.
pub fn first_screen(tasks: &[(&str, &[&str])]) -> String {
    let width = tasks.iter().map(|(task, _)| task.len()).max().unwrap_or(0);
    let room = reading_width();
    let mut text =
        "Usage: mig-mps COMMAND\n\nNew here: list, check, plan, up, status\n\n".to_owned();
    for (task, commands) in tasks {
        text += &wrap_behind(&format!("  {task:width$}  "), &commands.join(", "), room);
    }
    text + "\nmig-mps help says what each does, mig-mps help COMMAND how it is used,\n\
            and mig-mps help --search WORD where the manual has a word."
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
    text.push_str(
        "\nUsage: mig-mps [OPTIONS] COMMAND\n\nNew here: list, check, plan, up, status\n",
    );
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
    text.push_str("\nTopics of the manual:\n");
    for topic in &TOPICS {
        text.push_str(&row(topic.name, topic.about));
    }
    text.push_str(
        "\nmig-mps help COMMAND and mig-mps help TOPIC show more;\n\
         mig-mps help --search WORD finds a word.\n",
    );
    text
}
