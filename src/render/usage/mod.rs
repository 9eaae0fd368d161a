//! Mistakes on the command line, in clap's words, with what was probably meant.

mod forms;
mod help;
mod options;
mod words;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use super::json::Message;

pub use help::{
    OTHER_OPTIONS, STYLES, examples, examples_and_statuses, with_help_form, with_page_form,
    with_topics,
};
pub use words::{command_for, words_for};

use forms::{form_of_program, form_of_settings};
use options::{
    incomplete_option, missing_profile, needless_option, option_for_setting, other_option,
};
use words::hint_for_nvidia_smi;

/// The devices that a command line can name.
#[derive(Debug, Default)]
pub struct KnownDevices {
    pub names: Vec<String>,
    /// The names of those that are stopped.
    pub stopped: Vec<String>,
    /// The hint that names them, or says how there will be some.
    pub hint: Option<String>,
    /// The hint for a command that starts a program, if it is another one.
    pub hint_for_program: Option<String>,
}

/// A mistake on the command line.
struct UsageMistake<'a> {
    error: &'a Error,
    /// The words of the command line.
    words: &'a [String],
    /// The subcommand; empty without one.
    command: &'a str,
    devices: &'a dyn Fn() -> KnownDevices,
}

impl UsageMistake<'_> {
    /// The words behind the command, without those of a program behind two dashes.
    fn own_words(&self) -> &[String] {
        let after = self.words.iter().position(|word| word == self.command);
        let behind = &self.words[after.map_or(self.words.len(), |at| at + 1)..];
        let end = behind.iter().position(|word| word == "--");
        &behind[..end.unwrap_or(behind.len())]
    }

    /// Returns a word or an option that the command does not take.
    fn unexpected(&self) -> Option<&str> {
        match self.error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(typed))
                if self.error.kind() == ErrorKind::UnknownArgument =>
            {
                Some(typed)
            }
            _ => None,
        }
    }

    /// True if the command lacks this argument, or one of several with this among them.
    fn lacks(&self, argument: &str) -> bool {
        let missing = match self.error.get(ContextKind::InvalidArg) {
            Some(ContextValue::Strings(missing)) => missing.iter(),
            _ => return false,
        };
        self.error.kind() == ErrorKind::MissingRequiredArgument
            && missing
                .into_iter()
                .any(|missing| missing.contains(argument))
    }

    /// Returns what was probably meant, the most telling hint first.
    fn hints(&self) -> Vec<String> {
        let form = form_of_program(self).or_else(|| form_of_settings(self));
        let needs_device = form.as_ref().is_some_and(|form| form.contains(" DEVICE"));
        let lacks_device = self.lacks("<DEVICE>")
            && !self.lacks("--by-rank")
            && !self.words.iter().any(|word| word.starts_with("--gpu"));
        let option = other_option(self)
            .or_else(|| option_for_setting(self))
            .or_else(|| needless_option(self))
            .or_else(|| missing_profile(self))
            .or_else(|| incomplete_option(self));
        let meant = form.or(option).or_else(|| self.other_command());
        let devices = if needs_device || lacks_device {
            self.device_hint()
        } else {
            None
        };
        meant.into_iter().chain(devices).collect()
    }

    /// Returns the hint to give a device of this node.
    fn device_hint(&self) -> Option<String> {
        let known = (self.devices)();
        match known.hint_for_program {
            Some(hint) if ["run", "env", "compare"].contains(&self.command) => Some(hint),
            _ => known.hint,
        }
    }

    /// Returns the hint for a word or an option of another program in the place of a command.
    fn other_command(&self) -> Option<String> {
        if let Some(hint) = hint_for_nvidia_smi(self.words) {
            return Some(hint);
        }
        if self.error.kind() != ErrorKind::InvalidSubcommand {
            return None;
        }
        let Some(ContextValue::String(word)) = self.error.get(ContextKind::InvalidSubcommand)
        else {
            return None;
        };
        if word == "help" {
            return Some(format!("run `mig-mps {} --help`", self.command));
        }
        if ["get", "describe", "show"].contains(&word.as_str())
            && let Some(object) = self.own_words().first().map(String::as_str)
        {
            if ["pod", "pods"].contains(&object) {
                let what = "run `mig-mps status --by-user` to see the pods of each user's clients";
                return Some(format!("{what}; `mig-mps help kubernetes` has more"));
            }
            let names = (self.devices)().names;
            if names.iter().any(|name| name == object) {
                return Some(format!("did you mean `mig-mps status {object}`?"));
            }
            if let Some(command) = command_for(object) {
                return Some(format!("did you mean `mig-mps {command}`?"));
            }
        }
        let command = command_for(word)?;
        Some(format!("did you mean `mig-mps {command}`?"))
    }
}

/// Describes a mistake on the command line of the program. Of clap's paragraphs the first is the error, and the others are
/// its hints.
pub fn usage_error(
    error: &Error,
    program: &mut Command,
    devices: &dyn Fn() -> KnownDevices,
) -> Message {
    let text = error.to_string();
    let text = text.trim_end();
    let (what, others) = text.split_once("\n\n").unwrap_or((text, ""));
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let command = words.iter().find(|word| !word.starts_with('-'));
    let mistake = UsageMistake {
        error,
        words: &words,
        command: command.map_or("", String::as_str),
        devices,
    };
    let mut hints = mistake.hints();
    let has_own = !hints.is_empty();
    hints.extend(
        others
            .split("\n\n")
            .flat_map(|paragraph| hints_of_paragraph(paragraph, program))
            // What is meant is known better than by letters.
            .filter(|hint| !has_own || !hint.contains(" similar ")),
    );
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

/// Returns the hints in a paragraph of clap's text: the usage, or a line each.
fn hints_of_paragraph(paragraph: &str, program: &mut Command) -> Vec<String> {
    if let Some(forms) = paragraph.strip_prefix("Usage: ") {
        let whole = whole_usage(program, forms);
        let forms = whole.as_deref().unwrap_or(forms);
        return vec![format!("usage: {}", forms.replace('\n', "\n      "))];
    }
    paragraph
        .lines()
        .map(|line| line.trim_start().trim_start_matches("tip: "))
        // It is meant for programs that take words which begin with a dash.
        .filter(|tip| !tip.starts_with("to pass "))
        .map(|tip| tip.replace("For more information", "for more information"))
        .map(|tip| tip.trim_end_matches('.').to_owned())
        .collect()
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

/// Formats a part of the help: a line for each name, with its meaning.
pub fn help_section(heading: &str, rows: &[(String, &str)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = rows
        .iter()
        .map(|(name, meaning)| format!("  {name:width$}  {meaning}"))
        .collect();
    format!("{heading}:\n{}", lines.join("\n"))
}
