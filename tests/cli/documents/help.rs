//! What `--help` shows, for each command of both programs.

use std::process::Command as Process;

use clap::{Arg, Command};
use mig_mps::cli::{command, device_plugin_command};
use mig_mps::internals::failure::ExitStatus;
use mig_mps::internals::manual::TOPICS;
use testkit::{Ran, built, shell};

/// The most lines of help: one screen of a large terminal.
const MAX_LINES: usize = 60;

/// The width of help without a terminal.
const MAX_COLUMNS: usize = 100;

/// The width of a small terminal, which wraps no example and no topic.
const MIN_COLUMNS: usize = 80;

/// Returns the command lines of a command and its subcommands, such as `mig-mps slurm gres`, that have a help page.
fn command_lines(command: &Command) -> Vec<String> {
    let name = command.get_name();
    let mut lines = vec![name.to_owned()];
    for subcommand in command.get_subcommands() {
        let below = command_lines(subcommand).into_iter();
        lines.extend(below.map(|line| format!("{name} {line}")));
    }
    lines
}

/// Returns each command line with its help. The help of mig-mps itself is an overview of another form.
fn helps() -> Vec<(String, String)> {
    let lines = [
        command_lines(&command()),
        command_lines(&device_plugin_command()),
    ]
    .concat();
    let pages: Vec<_> = lines
        .into_iter()
        .filter(|line| line != "mig-mps")
        .map(|line| {
            let text = help(&line, "--help");
            (line, text)
        })
        .collect();
    assert!(pages.len() > 40, "{pages:?}");
    pages
}

fn help(line: &str, option: &str) -> String {
    let mut words = line.split(' ');
    let program = built().programs.join(words.next().unwrap());
    Ran::of(Process::new(program).args(words).arg(option))
        .ended(0)
        .stdout
}

/// Returns the lines of the part of a help that has this title; none without the part.
fn section<'a>(help: &'a str, title: &str) -> Vec<&'a str> {
    let start = format!("{title}:");
    let mut lines = help.lines().skip_while(|line| *line != start);
    lines.next();
    lines.take_while(|line| !line.is_empty()).collect()
}

#[test]
fn a_help_fits_on_a_screen_and_is_the_same_for_both_options() {
    for (line, text) in helps() {
        assert!(text.lines().count() <= MAX_LINES, "{line}: {text}");
        let wide = text.lines().find(|row| row.chars().count() > MAX_COLUMNS);
        assert_eq!(wide, None, "{line}");
        assert_eq!(help(&line, "-h"), text, "{line}");
        let about = text.lines().next().unwrap();
        assert!(
            about.len() <= MIN_COLUMNS && !about.ends_with('.'),
            "{line}: {about}"
        );
    }
}

/// The options of all commands are where readers expect them.
#[test]
fn the_last_group_has_the_options_of_every_command() {
    for (line, text) in helps() {
        let mut groups = text.lines().filter(|row| {
            !row.starts_with(' ')
                && row.ends_with(':')
                && *row != "Examples:"
                && *row != "Exit status:"
        });
        assert_eq!(groups.next_back(), Some("Options:"), "{line}: {text}");
        let options = section(&text, "Options");
        assert!(
            options.iter().any(|row| row.contains("-h, --help  ")),
            "{line}: {text}"
        );
    }
}

#[test]
fn an_option_is_described_in_one_phrase() {
    let mut all = Vec::new();
    for program in [command(), device_plugin_command()] {
        visit(&program, &mut |arg| all.push(arg.clone()));
    }
    for arg in all.iter().filter(|arg| !arg.is_hide_set()) {
        // An argument of a command that is not built yet has no other form.
        let id = arg.get_id();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let is_phrase = !help.is_empty() && !help.ends_with('.') && !help.contains('\n');
        assert!(is_phrase, "{id}: {help}");
        assert!(
            arg.get_long_help().is_none(),
            "{id}: the manual has the details"
        );
    }
}

fn visit(command: &Command, look: &mut impl FnMut(&Arg)) {
    command.get_arguments().for_each(&mut *look);
    for subcommand in command.get_subcommands() {
        visit(subcommand, look);
    }
}

/// Each command line of ours in an example is understood.
#[test]
fn every_command_has_examples_that_parse() {
    for (line, text) in helps() {
        let rows = section(&text, "Examples");
        assert!((1..=3).contains(&rows.len()), "{line}: {text}");
        for row in rows {
            assert!(row.len() <= MIN_COLUMNS, "{row}");
            let example = row.trim_start().split("  ").next().unwrap();
            let ours = example.find("mig-mps").map(|at| &example[at..]).unwrap();
            let end = ours.find(['|', '>', ')']).unwrap_or(ours.len());
            assert!(ours.starts_with(&line), "{line}: {row}");
            let words = shell(format!("printf '%s\\n' {}", &ours[..end]))
                .ended(0)
                .stdout;
            let program = if line.starts_with("mig-mps-device-plugin") {
                device_plugin_command()
            } else {
                command()
            };
            let parsed = program.try_get_matches_from(words.lines());
            assert!(parsed.is_ok(), "{row}: {}", parsed.unwrap_err());
        }
    }
}

#[test]
fn exit_statuses_and_topics_exist() {
    let mut topics = 0;
    for (line, text) in helps() {
        for row in section(&text, "Exit status") {
            assert!(row.len() <= MIN_COLUMNS, "{row}");
            let status: u8 = row.split_whitespace().next().unwrap().parse().unwrap();
            let mut known = ExitStatus::MEANINGS.iter();
            assert!(known.any(|(one, _)| *one as u8 == status), "{line}: {row}");
        }
        let last = text.lines().last().unwrap();
        if let Some(names) = last.strip_prefix("See also: mig-mps help ") {
            assert!(last.len() <= MIN_COLUMNS, "{line}: {last}");
            for name in names.split(", ") {
                assert!(
                    TOPICS.iter().any(|topic| topic.name == name),
                    "{line}: {name}"
                );
                topics += 1;
            }
        }
    }
    assert!(topics > 60, "{topics}");
}

/// What a help leaves out is in the manual.
#[test]
fn the_manual_describes_hidden_options() {
    let mut hidden = Vec::new();
    visit(&command(), &mut |arg| {
        if arg.is_hide_short_help_set() {
            hidden.push(format!("--{}", arg.get_long().unwrap()));
        }
    });
    assert!(hidden.contains(&"--progress".to_owned()), "{hidden:?}");
    for option in hidden {
        let described = TOPICS.iter().any(|topic| {
            let mut places = topic.text.match_indices(&option);
            places.any(|(at, _)| {
                let rest = &topic.text[at + option.len()..];
                !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '-')
            })
        });
        assert!(described, "{option}");
    }
}
