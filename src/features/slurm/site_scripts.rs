//! The scripts of a site that slurm.conf names, as Slurm finds and runs them: by patterns, links, and lines that call ours.

use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::shell::parse_commands;
use crate::host::{directory_of, read_configuration};
use crate::node::glob_to_regex;

/// The relation of a value of slurm.conf to a script of mig-mps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptCall {
    Runs,
    /// A script of the site ends before the line with the call.
    BehindEnd,
    Missing,
    /// The same, of a script that no shell runs.
    MissingInProgram,
}

/// True for a pattern that stands for several scripts.
pub(super) fn is_pattern(value: &str) -> bool {
    value.contains(['*', '?', '['])
}

/// True if the last part of a pattern stands for a file of this name.
pub(super) fn pattern_matches(pattern: &str, name: &OsStr) -> bool {
    let (Some(last), Some(name)) = (
        Path::new(pattern).file_name().and_then(OsStr::to_str),
        name.to_str(),
    ) else {
        return false;
    };
    let is_hidden = name.starts_with('.') && !last.starts_with('.');
    glob_to_regex(last).map_or(last == name, |names| names.is_match(name) && !is_hidden)
}

/// Returns the existing paths for which a pattern stands.
fn matching_paths(pattern: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.components() {
        let name = part.as_os_str();
        let is_plain =
            !matches!(part, Component::Normal(_)) || !name.to_str().is_some_and(is_pattern);
        if is_plain {
            for path in &mut found {
                path.push(name);
            }
            continue;
        }
        let pattern = name.to_str().unwrap_or_default();
        let taken = found
            .iter()
            .flat_map(|path| fs::read_dir(path).into_iter().flatten().flatten())
            .filter(|entry| pattern_matches(pattern, &entry.file_name()));
        found = taken.map(|entry| entry.path()).collect();
    }
    found.retain(|path| path.exists());
    found
}

/// True if a pattern is about the files of this directory, also by another name of the directory.
pub(super) fn is_about(pattern: &str, directory: &Path) -> bool {
    let of_pattern = directory_of(Path::new(pattern));
    let directory = resolve_links(directory);
    resolve_links(of_pattern) == directory
        || matching_paths(of_pattern)
            .iter()
            .any(|path| resolve_links(path) == directory)
}

/// Returns a path without links, as far as it exists.
fn resolve_links(path: &Path) -> PathBuf {
    let mut ancestors = path.ancestors();
    let Some((part, real)) = ancestors.find_map(|part| Some((part, fs::canonicalize(part).ok()?)))
    else {
        return path.to_owned();
    };
    path.strip_prefix(part)
        .map_or_else(|_| path.to_owned(), |rest| real.join(rest))
}

/// Tells whether Slurm runs a script of mig-mps by this value of slurm.conf. `command` is its subcommand of `mig-mps slurm`.
pub(super) fn call_by_value(value: &str, script: &Path, command: &str) -> ScriptCall {
    if leads_to(value, script) {
        return ScriptCall::Runs;
    }
    let calls =
        matching_paths(Path::new(value))
            .into_iter()
            .map(|path| match read_configuration(&path) {
                Ok(text) => call_in(&text, script, command),
                Err(_) => ScriptCall::Missing,
            });
    let calls: Vec<ScriptCall> = calls.collect();
    let known = [
        ScriptCall::Runs,
        ScriptCall::BehindEnd,
        ScriptCall::MissingInProgram,
    ];
    let found = known.into_iter().find(|call| calls.contains(call));
    found.unwrap_or(ScriptCall::Missing)
}

/// True if a script is a path for which a pattern stands, or a link to it is.
fn leads_to(pattern: &str, script: &Path) -> bool {
    let pattern = Path::new(pattern);
    let script = resolve_links(script);
    let is_not_there_yet = || resolve_links(pattern) == script;
    is_not_there_yet()
        || matching_paths(pattern)
            .iter()
            .any(|path| resolve_links(path) == script)
}

/// Tells whether a script of the site runs one of mig-mps.
fn call_in(text: &str, script: &Path, command: &str) -> ScriptCall {
    if !is_of_shell(text) {
        let is_called = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with('#'))
            .flat_map(path_words)
            .any(|word| Path::new(word) == script);
        return if is_called {
            ScriptCall::Runs
        } else {
            ScriptCall::MissingInProgram
        };
    }
    let mut call = ScriptCall::Missing;
    let (mut depth, mut has_ended) = (0_usize, false);
    for (words, is_conditional) in parse_commands(text) {
        for word in &words {
            match word.as_str() {
                "if" | "case" | "for" | "while" | "until" | "{" => depth += 1,
                "fi" | "esac" | "done" | "}" => depth = depth.saturating_sub(1),
                _ => break,
            }
        }
        let Some((program, arguments)) = program_of(&words) else {
            continue;
        };
        if is_call(program, arguments, script, command) {
            if !has_ended {
                return ScriptCall::Runs;
            }
            call = ScriptCall::BehindEnd;
        }
        let is_end = program == "exit" || words.first().is_some_and(|word| word == "exec");
        has_ended |= is_end && depth == 0 && !is_conditional;
    }
    call
}

/// True for a text without another interpreter.
fn is_of_shell(text: &str) -> bool {
    let Some(line) = text.strip_prefix("#!") else {
        return !text.contains('\0');
    };
    let line = line.lines().next().unwrap_or_default();
    line.split([' ', '\t', '/'])
        .any(|word| word.ends_with("sh") || word == "busybox")
}

/// Returns the words of a line of any language, as far as they may be paths.
fn path_words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|sign: char| !(sign.is_ascii_alphanumeric() || "/._-+".contains(sign)))
}

/// Words of the shell, and programs that run the one behind them.
const COMMAND_PREFIXES: [&str; 22] = [
    "!", "{", "if", "then", "else", "elif", "do", "while", "until", "time", "exec", "command", ".",
    "source", "sh", "bash", "dash", "env", "nice", "nohup", "sudo", "timeout",
];

/// Returns the program that a command runs, and its arguments.
fn program_of(words: &[String]) -> Option<(&str, &[String])> {
    let is_before = |word: &String| {
        let name = word.rsplit('/').next().unwrap_or_default();
        let is_assignment = word.split_once('=').is_some_and(|(name, _)| is_name(name));
        let is_number = word.starts_with(|sign: char| sign.is_ascii_digit());
        COMMAND_PREFIXES.contains(&name) || is_assignment || is_number || word.starts_with('-')
    };
    let at = words.iter().position(|word| !is_before(word))?;
    Some((&words[at], &words[at + 1..]))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|sign| sign.is_ascii_alphanumeric() || sign == '_')
}

fn is_call(program: &str, arguments: &[String], script: &Path, command: &str) -> bool {
    let (directory, name) = program.rsplit_once('/').unwrap_or(("", program));
    let is_argument =
        |at: usize, word: &str| arguments.get(at).is_some_and(|argument| argument == word);
    match name {
        // A loop over scripts, and a program that runs those of a directory.
        "for" => arguments
            .iter()
            .any(|word| is_pattern(word) && leads_to(word, script)),
        "run-parts" => arguments
            .iter()
            .any(|word| leads_to(&format!("{word}/*"), script)),
        "mig-mps" => is_argument(0, "slurm") && is_argument(1, command),
        // What a variable stands for is not known.
        _ if !directory.starts_with('/') => script.file_name().is_some_and(|own| own == name),
        _ => leads_to(program, script),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(script: &str) -> ScriptCall {
        call_in(script, Path::new("/no/slurm/mig-mps-prolog"), "prolog")
    }

    #[test]
    fn a_script_that_calls_ours_runs_it() {
        for line in [
            "exec /no/slurm/mig-mps-prolog",
            "/no/slurm/mig-mps-prolog || exit 1",
            "\"/no/slurm/mig-mps-prolog\" \"$@\" >>/var/log/prolog 2>&1",
            "if [ -n \"$SLURM_JOB_GPUS\" ]; then /no/slurm/mig-mps-prolog; fi",
            "[ -x /no/slurm/mig-mps-prolog ] && exec /no/slurm/mig-mps-prolog",
            "A=b timeout 60 /no/slurm/mig-mps-prolog &",
            "run() {\n  sudo -n /no/slurm/mig-mps-prolog\n}\nrun",
            "cd /no/slurm; ./mig-mps-prolog",
            "\"$(dirname \"$0\")/mig-mps-prolog\"",
            "exec \"$SLURM_DIR\"/mig-mps-prolog",
            "/usr/bin/mig-mps slurm prolog",
            "exec 2>>/var/log/prolog\nexec /no/slurm/mig-mps-prolog",
            "case $x in\n a) exit 0;;\nesac\nexec /no/slurm/mig-mps-prolog",
            "[ -e /skip ] && exit 0\nexec \\\n  /no/slurm/mig-mps-prolog # ours",
            "if true; then\nexit 0\nfi\n/no/slurm/mig-mps-prolog",
        ] {
            assert_eq!(
                call(&format!("#!/bin/sh\n{line}\n")),
                ScriptCall::Runs,
                "{line}"
            );
        }
    }

    #[test]
    fn a_script_that_only_names_ours_does_not_run_it() {
        for line in [
            "# exec /no/slurm/mig-mps-prolog",
            "true # /no/slurm/mig-mps-prolog",
            "echo /no/slurm/mig-mps-prolog",
            "logger 'now /no/slurm/mig-mps-prolog'",
            "echo \"done; /no/slurm/mig-mps-prolog\"",
            "[ -x /no/slurm/mig-mps-prolog ]",
            "exec /no/slurm/mig-mps-prolog.old",
            "exec /no/slurm/mig-mps-prolog-2",
            "exec /other/mig-mps-prolog",
            "OURS=/no/slurm/mig-mps-prolog",
            "cat <<EOF\n/no/slurm/mig-mps-prolog\nEOF",
            "cat <<-'EOF' >/dev/null\n\t/no/slurm/mig-mps-prolog\n\tEOF",
            "mig-mps slurm epilog",
            "mig-mps status",
            "cp x /no/slurm/mig-mps-prolog",
            "true >/no/slurm/mig-mps-prolog",
            "",
        ] {
            assert_eq!(
                call(&format!("#!/bin/bash\n{line}\n")),
                ScriptCall::Missing,
                "{line}"
            );
        }
    }

    #[test]
    fn what_is_behind_the_end_of_a_script_does_not_run() {
        for line in [
            "exit 0\n/no/slurm/mig-mps-prolog",
            "exec /bin/true\nexec /no/slurm/mig-mps-prolog",
        ] {
            assert_eq!(
                call(&format!("#!/bin/sh -e\n{line}\n")),
                ScriptCall::BehindEnd,
                "{line}"
            );
        }
    }

    #[test]
    fn a_program_in_another_language_names_ours() {
        let python = |line: &str| call(&format!("#!/usr/bin/env python3\nimport os\n{line}\n"));
        assert_eq!(
            python("os.execv(\"/no/slurm/mig-mps-prolog\", [])"),
            ScriptCall::Runs
        );
        assert_eq!(
            python("# /no/slurm/mig-mps-prolog"),
            ScriptCall::MissingInProgram
        );
        assert_eq!(
            python("os.execv('/no/slurm/mig-mps-prolog.old', [])"),
            ScriptCall::MissingInProgram
        );
    }

    #[test]
    fn patterns_and_links_lead_to_ours() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for directory in ["ours", "site.d", "other.d"] {
            fs::create_dir(at(directory)).unwrap();
        }
        let script = at("ours/mig-mps-prolog");
        fs::write(&script, "").unwrap();
        std::os::unix::fs::symlink(at("ours"), at("link")).unwrap();
        std::os::unix::fs::symlink(&script, at("site.d/90-mig-mps")).unwrap();
        std::os::unix::fs::symlink(&script, at("other.d/.hidden")).unwrap();
        let dir = root.path().display();
        let call = |value: &str| call_by_value(&format!("{dir}/{value}"), &script, "prolog");
        for value in [
            "ours/mig-mps-prolog",
            "link/mig-mps-prolog",
            "site.d/*",
            "s*.d/[0-9]*",
            "site.d/90-mig-mps",
        ] {
            assert_eq!(call(value), ScriptCall::Runs, "{value}");
        }
        for value in ["other.d/*", "site.d/*.sh", "site.d/[!9]*", "none"] {
            assert_eq!(call(value), ScriptCall::Missing, "{value}");
        }
        fs::write(
            at("loop"),
            format!("for one in {dir}/site.d/*; do $one; done"),
        )
        .unwrap();
        fs::write(at("parts"), format!("run-parts --verbose {dir}/site.d")).unwrap();
        fs::write(at("no-parts"), format!("run-parts {dir}/other.d")).unwrap();
        assert_eq!(
            (call("loop"), call("parts"), call("no-parts")),
            (ScriptCall::Runs, ScriptCall::Runs, ScriptCall::Missing)
        );
        for pattern in ["link/*", "ours/*", "l?nk/mig*", "*/*"] {
            assert!(
                is_about(&format!("{dir}/{pattern}"), &at("ours")),
                "{pattern}"
            );
        }
        assert!(!is_about(&format!("{dir}/site.d/*"), &at("ours")));
        assert!(is_about(&format!("{dir}/link/new/*"), &at("ours/new")));
    }
}
