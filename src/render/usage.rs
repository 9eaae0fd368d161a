//! Mistakes on the command line, in the program's own words.

use std::num::{ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use strsim::damerau_levenshtein;

use super::json::Message;
use crate::host::nearest;

/// Describes a mistake of a command line, which are the words after the program.
pub fn usage_error(error: &Error, program: &mut Command, words: &[String]) -> Message {
    // Gives the subcommands their full names and the options of the program.
    program.build();
    let mistake = UsageMistake::of(error, program, words);
    let mut hints: Vec<String> = mistake.hint().into_iter().collect();
    hints.push(match error.kind() {
        ErrorKind::InvalidSubcommand | ErrorKind::MissingSubcommand => {
            format!("{} --help lists the commands", mistake.name)
        }
        ErrorKind::InvalidValue if mistake.argument() == SUBJECT => {
            format!("{} lists them", mistake.name)
        }
        _ => format!("{} --help lists the options", mistake.name),
    });
    Message {
        what: mistake.what(),
        hints,
    }
}

/// The argument of `help`.
const SUBJECT: &str = "COMMAND|TOPIC";

/// The most values of a hint that names the nearest one.
const MOST: usize = 20;

/// A mistake, and the subcommand in which it was made.
struct UsageMistake<'a> {
    error: &'a Error,
    command: &'a Command,
    /// The words that name the subcommand: `mig-mps slurm gres`.
    name: String,
}

impl<'a> UsageMistake<'a> {
    fn of(error: &'a Error, program: &'a Command, words: &[String]) -> Self {
        let mut command = program;
        let mut name = program.get_name().to_owned();
        for word in words.iter().filter(|word| !word.starts_with('-')) {
            let Some(sub) = command.find_subcommand(word) else {
                break;
            };
            command = sub;
            name = format!("{name} {word}");
        }
        Self {
            error,
            command,
            name,
        }
    }

    fn text(&self, kind: ContextKind) -> Option<&str> {
        match self.error.get(kind)? {
            ContextValue::String(text) => Some(text),
            ContextValue::Strings(texts) => texts.first().map(String::as_str),
            _ => None,
        }
    }

    fn list(&self, kind: ContextKind) -> Vec<String> {
        match self.error.get(kind) {
            Some(ContextValue::Strings(texts)) => texts.clone(),
            Some(ContextValue::String(text)) => vec![text.clone()],
            _ => Vec::new(),
        }
    }

    /// The arguments of a list, in the form that `shown` makes of clap's.
    fn arguments(&self, kind: ContextKind, shown: fn(&str) -> String) -> Vec<String> {
        self.list(kind).iter().map(|word| shown(word)).collect()
    }

    /// `--drain`, or `DEVICE`.
    fn argument(&self) -> String {
        self.text(ContextKind::InvalidArg)
            .map(plain)
            .unwrap_or_default()
    }

    fn what(&self) -> String {
        let argument = self.argument();
        let value = self.text(ContextKind::InvalidValue).unwrap_or_default();
        match self.error.kind() {
            ErrorKind::InvalidSubcommand => {
                let word = self.text(ContextKind::InvalidSubcommand);
                format!("there is no command \"{}\"", word.unwrap_or_default())
            }
            ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                format!("{} needs a command", self.name)
            }
            ErrorKind::UnknownArgument if self.is_misplaced() => {
                format!("mig-mps has no option {argument}")
            }
            ErrorKind::UnknownArgument if argument.starts_with('-') => {
                format!("{} has no option {argument}", self.name)
            }
            ErrorKind::UnknownArgument => {
                format!("{}: unexpected word \"{argument}\"", self.name)
            }
            ErrorKind::MissingRequiredArgument => {
                let missing = self.arguments(ContextKind::InvalidArg, alternatives);
                format!("{} needs {}", self.name, missing.join(" and "))
            }
            ErrorKind::ArgumentConflict => {
                let others = self.arguments(ContextKind::PriorArg, plain);
                match others.as_slice() {
                    [] => format!("{argument} cannot be used here"),
                    [one] if *one == argument => format!("{argument} is given twice"),
                    others => format!("{argument} cannot be used with {}", others.join(" and ")),
                }
            }
            ErrorKind::InvalidValue if value.is_empty() => format!("{argument} needs a value"),
            ErrorKind::InvalidValue if argument == SUBJECT => {
                format!("no command or topic is called \"{value}\"")
            }
            ErrorKind::InvalidValue => format!("{argument} cannot be \"{value}\""),
            ErrorKind::ValueValidation => {
                let reason = self.reason();
                if argument.starts_with('-') {
                    let between = if self.takes_equals() { '=' } else { ' ' };
                    format!("{argument}{between}{value}: {reason}")
                } else {
                    format!("\"{value}\": {reason}")
                }
            }
            ErrorKind::InvalidUtf8 => "a word is not UTF-8 text".to_owned(),
            ErrorKind::NoEquals => format!("{argument} needs its value after an =: {argument}=…"),
            _ => {
                let text = self.error.to_string();
                let text = text.trim_start_matches("error: ");
                text.split("\n\n").next().unwrap_or_default().to_owned()
            }
        }
    }

    /// The reason why a value is refused.
    fn reason(&self) -> String {
        let Some(source) = std::error::Error::source(self.error) else {
            return "it cannot be read".to_owned();
        };
        if source.is::<ParseIntError>() || source.is::<ParseFloatError>() {
            return "expected a number".to_owned();
        }
        let text = source.to_string();
        if source.is::<regex::Error>() {
            let reason = text.rsplit_once("error: ").map_or("", |(_, reason)| reason);
            return format!("not a regular expression: {reason}");
        }
        // clap's words for a range: `0 is not in 1..`.
        match text.rsplit_once(" is not in ").map(|(_, range)| range) {
            Some(range) => match range.split_once("..") {
                Some((least, "" | "=4294967295")) => format!("expected a number from {least}"),
                Some((least, most)) => {
                    let most = most.trim_start_matches('=');
                    format!("expected a number from {least} to {most}")
                }
                None => text,
            },
            None => text,
        }
    }

    fn hint(&self) -> Option<String> {
        match self.error.kind() {
            ErrorKind::InvalidSubcommand => {
                let word = self.text(ContextKind::InvalidSubcommand)?;
                let names = self
                    .command
                    .get_subcommands()
                    .filter(|sub| !sub.is_hide_set());
                let near = match near(word, names.map(Command::get_name)) {
                    None if self.name == "mig-mps" => meant_by(word, OTHER_WORDS),
                    near => near,
                };
                Some(format!("did you mean {} {}?", self.name, near?))
            }
            ErrorKind::UnknownArgument => self.instead(),
            ErrorKind::InvalidValue => self.possible(),
            ErrorKind::MissingRequiredArgument | ErrorKind::NoEquals => Some(self.usage()),
            _ => None,
        }
    }

    /// The option that was meant by an unknown word, or the form of the command.
    fn instead(&self) -> Option<String> {
        let argument = self.argument();
        if !argument.starts_with("--") {
            if !self.command.get_arguments().any(Arg::is_last_set) {
                return Some(self.usage());
            }
            let device = self
                .command
                .get_arguments()
                .find(|argument| argument.get_id() == "device");
            let form = match device.map(Arg::is_positional) {
                Some(true) => " DEVICE",
                Some(false) => " [--device DEVICE]",
                None => "",
            };
            let name = &self.name;
            return Some(format!("the program follows --: {name}{form} -- PROGRAM"));
        }
        if self.is_misplaced() {
            return Some(format!(
                "write it after the command: {} {argument}",
                self.name
            ));
        }
        let options: Vec<&str> = self
            .command
            .get_arguments()
            .filter(|option| !option.is_hide_set())
            .filter_map(Arg::get_long)
            .collect();
        let near = near(argument.trim_start_matches('-'), options.iter().copied())?;
        Some(format!("did you mean --{near}?"))
    }

    /// The option of the command that was given.
    fn option(&self) -> Option<&Arg> {
        let argument = self.argument();
        let name = argument.strip_prefix("--")?;
        self.command
            .get_arguments()
            .find(|option| option.get_long() == Some(name))
    }

    /// True for an option of the command that stands before the command.
    fn is_misplaced(&self) -> bool {
        self.option().is_some_and(|option| !option.is_hide_set())
    }

    /// True for an option whose value comes after an =.
    fn takes_equals(&self) -> bool {
        self.option().is_some_and(Arg::is_require_equals_set)
    }

    /// The values that an argument takes.
    fn possible(&self) -> Option<String> {
        let all = self.list(ContextKind::ValidValue);
        let value = self.text(ContextKind::InvalidValue).unwrap_or_default();
        if all.is_empty() {
            return Some(self.usage());
        }
        let values = all.iter().map(String::as_str);
        let near = match self.argument().as_str() {
            SUBJECT => meant_by(value, OTHER_TOPICS).or_else(|| near(value, values)),
            _ => nearest(value, values).filter(|_| !value.is_empty()),
        };
        let list = all.join(", ");
        Some(match (near, all.as_slice()) {
            (_, [only]) => format!("the only value is {only}"),
            (Some(near), all) if all.len() > MOST => format!("did you mean {near}?"),
            (Some(near), _) => format!("did you mean {near}? The values are {list}"),
            (None, _) if self.argument() == SUBJECT => return None,
            (None, _) => format!("the values are {list}"),
        })
    }

    /// The form of the command.
    fn usage(&self) -> String {
        let usage = self.command.clone().render_usage().to_string();
        let lines: Vec<&str> = usage
            .lines()
            .map(|line| line.trim_start_matches("Usage:").trim())
            .collect();
        format!("usage: {}", lines.join("\n             "))
    }
}

/// The word of `known` that a word is for. Every one is somewhat near to a word of three letters.
fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = nearest(word, known)?;
    let distance = damerau_levenshtein(word, near);
    (distance <= (word.len() / 3).max(1)).then_some(near)
}

/// The words that other programs have for what a command does.
const OTHER_WORDS: &[(&str, &[&str])] = &[
    ("up", &["apply", "start", "create"]),
    ("down", &["stop", "delete", "destroy", "remove", "rm"]),
    ("status", &["show", "ps", "top", "info", "get"]),
    ("list", &["ls", "gpus", "devices"]),
    ("run", &["exec"]),
    ("plan", &["diff"]),
    ("check", &["validate", "lint"]),
    ("doctor --explain", &["explain"]),
    ("--version", &["version"]),
];

/// Words that are explained in a topic.
const OTHER_TOPICS: &[(&str, &[&str])] = &[(
    "running",
    &[
        "docker",
        "podman",
        "container",
        "containers",
        "kubernetes",
        "k8s",
        "mpi",
    ],
)];

/// Returns what has another word elsewhere.
fn meant_by(word: &str, others: &[(&'static str, &[&str])]) -> Option<&'static str> {
    let (command, _) = others.iter().find(|(_, words)| words.contains(&word))?;
    Some(command)
}

/// `--any, --by-rank or -n` of clap's `<--any|--by-rank|-n <N>>`.
fn alternatives(argument: &str) -> String {
    let inner = argument
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'));
    let Some(inner) = inner.filter(|inner| inner.starts_with('-')) else {
        return plain(argument);
    };
    let words: Vec<String> = inner.split('|').map(plain).collect();
    match words.as_slice() {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        _ => words.concat(),
    }
}

/// `--drain` of clap's `--drain <SECONDS>`, `DEVICE` of its `<DEVICE>...`.
fn plain(argument: &str) -> String {
    if argument.starts_with('-') {
        let end = argument.find([' ', '=', '[']).unwrap_or(argument.len());
        return argument[..end].to_owned();
    }
    argument
        .trim_end_matches("...")
        .trim_matches(['<', '>', '[', ']'])
        .to_owned()
}
