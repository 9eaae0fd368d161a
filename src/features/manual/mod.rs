//! The manual, a Markdown file per topic, embedded in the program; and `mig-mps help`, which shows it.

mod index;
pub mod pages;
mod search;
mod subjects;
mod text;

use std::fmt::Write as _;

use clap::{Args, Command};

use crate::commands::Context;
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::host::{closest_match, shorten_command};
use crate::render::{self, command_for, print_paged, terminal_width, wrap_behind};

use index::places_of;
use search::search_manual;
use text::render_markdown;

pub use subjects::HelpSubjects;

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

/// Every topic, in the order in which people need them.
pub const TOPICS: [Topic; 29] = [
    topic!(
        "start",
        "First steps: on a GPU server, for a job without root, in a cluster",
        ["init"]
    ),
    topic!(
        "profile",
        "The profile file: selectors, devices, MPS settings",
        ["init", "plan", "up", "check", "set"]
    ),
    topic!(
        "recipes",
        "A class, a mail to users, a login default, roll back, Ansible",
        ["up", "down", "profiles"]
    ),
    topic!(
        "running",
        "How programs use devices",
        ["run", "env", "verify"]
    ),
    topic!("glossary", "The words of MIG, MPS and mig-mps", ["list"]),
    topic!(
        "changing",
        "How a node is changed, and who is disrupted",
        ["plan", "up", "down", "set", "restart", "profiles"]
    ),
    topic!(
        "states",
        "States of devices, and what status shows",
        ["status", "list"]
    ),
    topic!("clients", "How a client is ended", ["kill", "status"]),
    topic!(
        "troubleshooting",
        "What goes wrong, and the remedy",
        ["status", "logs", "explain", "restart", "kill"]
    ),
    topic!(
        "boot",
        "What happens at boot, and healing",
        ["systemd", "heal"]
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
    topic!("slurm", "Devices for Slurm jobs", ["slurm"]),
    topic!(
        "jobs",
        "Jobs of PBS, LSF, Grid Engine, HTCondor and others",
        ["job", "status"]
    ),
    topic!(
        "monitoring",
        "Metrics for Prometheus, and alerts",
        ["metrics", "status"]
    ),
    topic!(
        "checking",
        "Whether profiles fit, here and without a GPU",
        ["check", "plan"]
    ),
    topic!("comparing", "What MPS is worth to a program", ["compare"]),
    topic!(
        "advise",
        "The smallest hardware for programs, by measurements",
        ["advise", "compare", "init"]
    ),
    topic!(
        "daemon-logs",
        "What the daemons write, and what it means",
        ["logs"]
    ),
    topic!(
        "diagnosis",
        "Checks that doctor makes, with their ids",
        ["doctor", "explain", "status"]
    ),
    topic!(
        "upgrades",
        "Upgrades of mig-mps, the driver and the kernel",
        ["systemd", "down"]
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
        "mig-parted",
        "Import from and export to mig-parted; NVIDIA's other tools",
        ["import", "export"]
    ),
    topic!(
        "json",
        "JSON for programs, and its schemas",
        ["list", "status", "logs", "plan", "schema"]
    ),
    topic!("environment", "Environment variables and files", []),
    topic!("exit-status", "Exit statuses", ["plan", "up", "status"]),
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
    /// Command, topic of the manual, or any word, which is searched for
    #[arg(value_name = "COMMAND|TOPIC")]
    subject: Vec<String>,
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
    let is_topic = TOPICS.iter().any(|topic| topic.name == lower);
    let subject = match command_for(&lower).filter(|_| !is_topic) {
        Some(ours) => subject_of(ours),
        None => lower.as_str(),
    };
    // A command that is called as a topic has its own help behind --help.
    if let Some(topic) = TOPICS.iter().find(|topic| topic.name == subject) {
        return Some(render_markdown(topic.text, reading_width()));
    }
    let mut words = subject.split(' ');
    let command = words.try_fold(program, Command::find_subcommand_mut)?;
    let help = command.render_long_help();
    Some(if terminal_width().is_some() {
        help.ansi().to_string()
    } else {
        help.to_string()
    })
}

/// Returns where the manual has a word that is no command and no topic.
fn search_unknown(word: &str, program: &mut Command) -> Result<String> {
    let mut what = String::new();
    let found = search_manual(word, program).or_else(|error| {
        // Of a phrase that is nowhere, its longest word.
        let mut words: Vec<&str> = word.split(' ').filter(|one| one.len() > 2).collect();
        words.sort_by_key(|one| std::cmp::Reverse(one.len()));
        let mut words = words.into_iter().filter(|one| *one != word);
        let found = words.find_map(|one| Some((one, search_manual(one, program).ok()?)));
        let (one, found) = found.ok_or(error)?;
        what = format!("\"{}\"", shorten_command(one));
        Ok(found)
    });
    let found = found.map_err(|error: CommandError| {
        let commands = program.get_subcommands().map(Command::get_name);
        let topics = TOPICS.iter().map(|topic| topic.name);
        let near = closest_match(word, commands.chain(topics));
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
    text.push_str("\nTopics of the manual:\n");
    for topic in &TOPICS {
        text.push_str(&row(topic.name, topic.about));
    }
    text.push_str(
        "\nmig-mps help COMMAND and mig-mps help TOPIC show more;\n\
         mig-mps help WORD searches the manual for any other word.\n",
    );
    text
}
