//! The form of help: a line for each option, options in groups, and examples below them.

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Arg, Command};

/// The colors of help.
pub const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Yellow.on_default().bold())
    .usage(AnsiColor::Yellow.on_default().bold())
    .literal(AnsiColor::Green.on_default());

/// The group of the options that no other group has. It is the last one.
pub const OTHER_OPTIONS: &str = "Options";

/// clap's usual form, but with the text before the help where clap shows the long description only in its long form.
const TEMPLATE: &str =
    "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Gives a command and its subcommands their form of help. clap's short form has a line for each option, but not the
/// description.
pub fn with_help_form(command: Command) -> Command {
    let description = description(&command);
    let command = with_groups_in_order(command)
        .help_template(TEMPLATE)
        .mut_subcommands(with_help_form);
    match description {
        Some(description) => command.before_help(description),
        None => command,
    }
}

/// Puts the options without a group into the last one. clap shows groups in the order of their first options.
fn with_groups_in_order(command: Command) -> Command {
    let mut arguments: Vec<Arg> = command.get_arguments().cloned().collect();
    for argument in &mut arguments {
        if !argument.is_positional() && argument.get_help_heading().is_none() {
            *argument = std::mem::take(argument).help_heading(OTHER_OPTIONS);
        }
    }
    arguments.sort_by_key(|argument| argument.get_help_heading() == Some(OTHER_OPTIONS));
    let mut sorted = arguments.into_iter();
    command.mut_args(|argument| sorted.next().unwrap_or(argument))
}

/// Undoes what manual pages do not need: they have room for hidden options and lists of values.
pub fn with_page_form(command: Command) -> Command {
    command
        .before_help(None)
        .mut_args(|argument| {
            argument
                .help_heading(None)
                .hide_short_help(false)
                .hide_possible_values(false)
        })
        .mut_subcommands(with_page_form)
}

/// Returns what the long description of a command has behind the short one.
fn description(command: &Command) -> Option<String> {
    let long = command.get_long_about()?.to_string();
    let (_, description) = long.split_once("\n\n")?;
    Some(description.to_owned())
}

/// Formats examples, which stand below the options of a command: command lines with what each does.
pub fn examples(commands: &[(&str, &str)]) -> String {
    format_rows("Examples", commands)
}

/// Formats examples, and the exit statuses of a command that has others than 0, 1 and 2.
pub fn examples_and_statuses(commands: &[(&str, &str)], statuses: &[(&str, &str)]) -> String {
    let statuses = format_rows("Exit status", statuses);
    format!("{}\n\n{statuses}", examples(commands))
}

fn format_rows(title: &str, rows: &[(&str, &str)]) -> String {
    let width = rows
        .iter()
        .filter(|(_, meaning)| !meaning.is_empty())
        .map(|(row, _)| row.len())
        .max()
        .unwrap_or(0);
    let mut text = heading(title);
    for (row, meaning) in rows {
        let line = format!("\n  {row:width$}  {meaning}");
        text.push_str(line.trim_end());
    }
    text
}

/// Adds the topics of the manual about a command, and about its subcommands.
pub fn with_topics(command: Command, topics: &[&str]) -> Command {
    if topics.is_empty() {
        return command;
    }
    let own = command.get_after_help().cloned().unwrap_or_default();
    let line = format!("{} mig-mps help {}", heading("See also"), topics.join(", "));
    let below = match own.ansi().to_string() {
        own if own.is_empty() => line,
        own => format!("{own}\n\n{line}"),
    };
    command
        .after_help(below)
        .mut_subcommands(|subcommand| with_topics(subcommand, topics))
}

fn heading(word: &str) -> String {
    let style = STYLES.get_header();
    format!("{style}{word}:{style:#}")
}
