//! Mistakes on the command line, in clap's words.

use std::str::FromStr;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use super::json::Message;
use crate::profile::SettingAssignment;
use crate::settings::option_for_key;

/// Describes a mistake on the command line of the program. Of clap's paragraphs the first is the error, and the others are
/// its hints. `devices` names the devices that a command may mean that has none.
pub fn usage_error(
    error: &Error,
    program: &mut Command,
    devices: impl FnOnce() -> Option<String>,
) -> Message {
    let text = error.to_string();
    let text = text.trim_end();
    let (what, others) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut hints = Vec::new();
    for paragraph in others.split("\n\n") {
        if let Some(forms) = paragraph.strip_prefix("Usage: ") {
            let whole = whole_usage(program, forms);
            let forms = whole.as_deref().unwrap_or(forms);
            hints.push(format!("usage: {}", forms.replace('\n', "\n      ")));
            continue;
        }
        for line in paragraph.lines() {
            let tip = line.trim_start().trim_start_matches("tip: ");
            // It is meant for programs that take words which begin with a dash.
            if tip.starts_with("to pass ") {
                continue;
            }
            let tip = tip.replace("For more information", "for more information");
            hints.push(tip.trim_end_matches('.').to_owned());
        }
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let other_word =
        command_for_nvidia_smi(&words).or_else(|| wrong_word(error).and_then(command_for));
    // It is similar in letters alone.
    hints.retain(|hint| other_word.is_none() || !hint.contains("similar subcommand"));
    if let Some(hint) = option_for_setting(error) {
        hints.insert(0, hint);
    }
    if let Some(command) = other_word {
        hints.insert(0, format!("did you mean mig-mps {command}?"));
    }
    let hint = other_option(error).or_else(|| program_without_dashes(error));
    if let Some(hint) = hint.or_else(|| needless_option(error)) {
        hints.insert(0, hint.to_owned());
    }
    if let Some(hint) = device_behind_settings(error, &words) {
        hints.insert(0, hint);
    }
    if lacks_device(error, &words) {
        hints.splice(0..0, devices());
    }
    let lines: Vec<&str> = what
        .trim_start_matches("error: ")
        .lines()
        .map(str::trim)
        .collect();
    let mut what = lines.join(" ");
    // With a similar value, the list of all is of no use, and a long one of little.
    if let Some(list) = what.find(" [possible values: ")
        && (error.get(ContextKind::SuggestedValue).is_some() || what.len() - list > MAX_LIST_CHARS)
    {
        what.truncate(list);
    }
    Message { what, hints }
}

/// Returns the usage of a subcommand. In an error, clap leaves out what does not go with the words that it has understood.
fn whole_usage(program: &mut Command, forms: &str) -> Option<String> {
    program.build();
    let mut command = program;
    for word in forms.split_whitespace().skip(1) {
        if command.find_subcommand(word).is_none() {
            break;
        }
        command = command.find_subcommand_mut(word)?;
    }
    let usage = command.render_usage().to_string();
    Some(usage.strip_prefix("Usage: ")?.trim_end().to_owned())
}

/// The length of a list of values that only help shows.
const MAX_LIST_CHARS: usize = 200;

/// The words that other programs have for what a command does, and those that a topic of the manual explains.
const OTHER_WORDS: &[(&str, &[&str])] = &[
    ("up", &["apply", "create"]),
    (
        "up --previous",
        &["rollback", "roll-back", "undo", "revert"],
    ),
    ("profiles --history", &["history"]),
    ("down", &["stop", "delete", "destroy", "remove", "rm"]),
    ("status", &["show", "ps", "top", "info", "get"]),
    ("list", &["ls", "gpus", "devices"]),
    ("run", &["exec"]),
    ("plan", &["diff"]),
    ("check", &["validate", "lint"]),
    ("logs", &["log"]),
    ("explain", &["error", "errors"]),
    ("--version", &["version"]),
    (
        "help containers",
        &["container", "docker", "podman", "apptainer"],
    ),
    ("help kubernetes", &["pod", "pods", "kubelet", "k8s"]),
    ("help running", &["mpi", "mpirun", "srun", "pipes"]),
    (
        "help recipes",
        &[
            "quickstart",
            "quick-start",
            "tutorial",
            "howto",
            "faq",
            "student",
            "students",
            "examples",
        ],
    ),
    (
        "help troubleshooting",
        &["slow", "performance", "hang", "hangs"],
    ),
    ("explain device-hung", &["hang", "hangs", "hung"]),
    ("help glossary", &["words", "mps", "mig", "slice", "slices"]),
    ("help profile", &["settings", "configuration"]),
];

/// Returns the words of other programs for a command, such as `up` or `help running`, with those for its options.
pub fn words_for(command: &str) -> Vec<&'static str> {
    let is_its = |ours: &str| {
        ours.strip_prefix(command)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(" --"))
    };
    OTHER_WORDS
        .iter()
        .filter(|(ours, _)| is_its(ours))
        .flat_map(|(_, words)| *words)
        .copied()
        .collect()
}

/// Returns the command that does what another program has this word for.
pub fn command_for(word: &str) -> Option<&'static str> {
    let (command, _) = OTHER_WORDS
        .iter()
        .find(|(_, words)| words.contains(&word))?;
    Some(command)
}

/// Returns the option of `run` and `env` for a setting that is typed as an option of theirs.
fn option_for_setting(error: &Error) -> Option<String> {
    let (typed, usage) = unknown_option(error)?;
    if !["mig-mps run ", "mig-mps env "]
        .iter()
        .any(|command| usage.contains(command))
    {
        return None;
    }
    let name = typed.trim_start_matches('-').split('=').next()?;
    let option = option_for_key(name)?;
    Some(format!("{name} is called --{option} here"))
}

/// Returns the word that stands in place of one of ours.
fn wrong_word(error: &Error) -> Option<&str> {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::InvalidValue => ContextKind::InvalidValue,
        _ => return None,
    };
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        _ => None,
    }
}

/// The options of other programs: the form of usage in which the option is wrong, its spellings, and our way.
const OTHER_OPTIONS: &[(&str, &[&str], &str)] = &[
    (
        "PROFILE",
        &["-f", "--file", "-p", "--profile"],
        "the profile is named without an option",
    ),
    (
        "mig-mps up ",
        &["-n"],
        "--dry-run shows the plan and changes nothing",
    ),
    (
        "mig-mps up ",
        &["--rollback", "--undo", "--revert"],
        "--previous takes the profile before the present one",
    ),
    ("mig-mps up ", &["--wait"], WAIT),
    ("mig-mps down ", &["--wait"], WAIT),
    ("mig-mps restart ", &["--wait"], WAIT),
    (
        "DEVICE",
        &["-d", "--device", "--name"],
        "the device is named without an option",
    ),
    ("[DEVICE]...", &["-a", "--all"], "'*' takes every device"),
    (
        "mig-mps status ",
        &["-w"],
        "--watch shows it again and again; --columns all shows every column",
    ),
    (
        "mig-mps status ",
        &["--wide"],
        "--columns all shows every column",
    ),
    (
        "mig-mps list ",
        &["-i", "--id"],
        "--gpu N shows the GPU with index N",
    ),
    (
        "mig-mps doctor ",
        &["--fix", "--repair", "--heal"],
        "mig-mps heal starts daemons that died",
    ),
    (
        "mig-mps run ",
        &["--gpus", "--rm", "-it", "-d", "--device"],
        "mig-mps run DEVICE -- PROGRAM; mig-mps help containers shows containers",
    ),
    (
        "mig-mps metrics ",
        &["--port", "--listen", "--address", "--web.listen-address"],
        "it opens no port: mig-mps systemd --metrics DIR writes them for a node exporter",
    ),
    (
        "mig-mps logs ",
        &["--tail", "--head"],
        "-n N shows the last N lines",
    ),
    (
        "mig-mps ",
        &["-o", "--output", "--format"],
        "--json prints JSON, where a command has it",
    ),
];

/// The option that is called `--wait` elsewhere, and in `run`.
const WAIT: &str = "--drain 5m waits for clients in the way";

/// Returns what does here what an unknown option does in other programs.
fn other_option(error: &Error) -> Option<&'static str> {
    let (typed, usage) = unknown_option(error)?;
    let (.., hint) = OTHER_OPTIONS
        .iter()
        .find(|(form, options, _)| usage.contains(form) && options.contains(&typed))?;
    Some(hint)
}

/// Says that an option does what another one asks for, too.
fn needless_option(error: &Error) -> Option<&'static str> {
    let both = [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| error.get(kind));
    let has = |option: &str| {
        both.iter().flatten().any(|named| match named {
            ContextValue::String(named) => named == option,
            ContextValue::Strings(named) => named.iter().any(|named| named == option),
            _ => false,
        })
    };
    (error.kind() == ErrorKind::ArgumentConflict && has("--private") && has("--by-rank"))
        .then_some("--private goes by rank already: each rank gets the device of its rank")
}

/// Returns the form of a command whose program is typed without the dashes before it.
fn program_without_dashes(error: &Error) -> Option<&'static str> {
    let (typed, usage) = unknown_option(error)?;
    let forms = [
        (
            "mig-mps run ",
            "the program follows two dashes: mig-mps run DEVICE -- PROGRAM",
        ),
        (
            "mig-mps env ",
            "env starts no program: mig-mps run DEVICE -- PROGRAM does",
        ),
        (
            "mig-mps compare ",
            "the program follows two dashes: mig-mps compare DEVICE -- PROGRAM",
        ),
    ];
    let (_, hint) = forms.iter().find(|(form, _)| usage.contains(form))?;
    (!typed.starts_with('-')).then_some(*hint)
}

/// Returns the form of `set` for words in another order: `set share=4 class`.
fn device_behind_settings(error: &Error, words: &[String]) -> Option<String> {
    let set = words.iter().position(|word| word == "set")?;
    let is_setting = |word: &&String| SettingAssignment::from_str(word).is_ok();
    let first = words
        .iter()
        .skip(set + 1)
        .find(|word| !word.starts_with('-'));
    let first = first.filter(is_setting)?;
    let device = match (error.kind(), error.get(ContextKind::InvalidValue)) {
        (ErrorKind::ValueValidation, Some(ContextValue::String(device))) => device,
        (ErrorKind::MissingRequiredArgument, _) => "DEVICE",
        _ => return None,
    };
    (!device.contains('=')).then(|| format!("the device comes first: mig-mps set {device} {first}"))
}

/// True if a command lacks its device, and has no GPU in its place.
fn lacks_device(error: &Error, words: &[String]) -> bool {
    let mut missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.iter(),
        _ => return false,
    };
    error.kind() == ErrorKind::MissingRequiredArgument
        && missing.any(|argument| argument == "<DEVICE>")
        && !words.iter().any(|word| word.starts_with("--gpu"))
}

/// Returns our command for these words of nvidia-smi.
fn command_for_nvidia_smi(words: &[String]) -> Option<&'static str> {
    let has = |options: &[&str]| words.iter().any(|word| options.contains(&word.as_str()));
    let is_mig = words.first().is_some_and(|word| word == "mig");
    Some(match () {
        () if is_mig && has(&["-lgip", "-lgipp", "-lcip", "-lcipp"]) => "list --offers",
        () if is_mig && has(&["-cgi", "-cci"]) => "up",
        () if is_mig && has(&["-dgi", "-dci"]) => "down --destroy-mig",
        () if is_mig && words.len() > 1 => "list",
        () if has(&["-mig", "--multi-instance-gpu"]) => "up",
        () if words.first().is_some_and(|word| word == "-L") => "list",
        () => return None,
    })
}

/// Returns an option that the command lacks, and the usage of the command.
fn unknown_option(error: &Error) -> Option<(&str, String)> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    match (
        error.get(ContextKind::InvalidArg),
        error.get(ContextKind::Usage),
    ) {
        (Some(ContextValue::String(typed)), Some(ContextValue::StyledStr(usage))) => {
            Some((typed, usage.to_string()))
        }
        _ => None,
    }
}
/// Formats a part of the help: a line for each name, with its meaning.
pub fn help_section(heading: &str, rows: &[(String, &str)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = rows
        .iter()
        .map(|(name, meaning)| format!("  {name:width$}  {meaning}"))
        .collect();
    format!("{heading}:\n{}", lines.join("\n"))
}
