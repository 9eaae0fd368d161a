//! The files of Compose, and the device that a text of a container engine gives to a container.

use std::fs;
use std::path::{Path, PathBuf};

use super::container::CDI_KIND;
use super::engine::PIPE_VARIABLE;
use super::engine_words::values_of;
use super::launch::{Missing, OUTSIDE, WantedInContainer};
use crate::host::quote_for_shell;

/// The files that Compose looks for, and those that it merges with one of them.
const USUAL_FILES: [&str; 4] = [
    "compose.yaml",
    "compose.yml",
    "docker-compose.yml",
    "docker-compose.yaml",
];
const OVERRIDE_FILES: [&str; 4] = [
    "compose.override.yml",
    "compose.override.yaml",
    "docker-compose.override.yml",
    "docker-compose.override.yaml",
];

/// Returns the files that Compose reads: those of the options, of `COMPOSE_FILE`, or the usual ones of the directory or the
/// nearest one above it.
pub(super) fn compose_files(
    options: &[(&str, &str)],
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<PathBuf> {
    let named: Vec<PathBuf> = values_of(options, &["f", "file"])
        .map(PathBuf::from)
        .collect();
    if !named.is_empty() {
        return named;
    }
    let text_of = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(list) = text_of("COMPOSE_FILE") {
        let separator = text_of("COMPOSE_PATH_SEPARATOR").unwrap_or_else(|| ":".to_owned());
        return list.split(&*separator).map(PathBuf::from).collect();
    }
    let place = project_directory(options);
    place.ancestors().find_map(usual_files).unwrap_or_default()
}

fn usual_files(directory: &Path) -> Option<Vec<PathBuf>> {
    let first_of = |names: [&str; 4]| {
        names
            .into_iter()
            .map(|name| directory.join(name))
            .find(|path| path.exists())
    };
    let file = first_of(USUAL_FILES)?;
    Some(
        [Some(file), first_of(OVERRIDE_FILES)]
            .into_iter()
            .flatten()
            .collect(),
    )
}

/// Returns the text of the files that Compose reads; `None` if it has other texts as well, or one that cannot be read.
pub(super) fn compose_text(
    options: &[(&str, &str)],
    wanted: WantedInContainer<'_>,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let text = compose_files(options, variable)
        .iter()
        .map(|file| fs::read_to_string(file).ok())
        .collect::<Option<Vec<_>>>()?
        .join("\n");
    let directory = wanted.directory.to_string_lossy();
    let has_others = |line: &str| {
        ["include:", "extends:", "env_file:"]
            .iter()
            .any(|key| line.contains(key))
            || (line.contains("${") && line.contains(&*directory))
    };
    let defaults = fs::read_to_string(project_directory(options).join(".env"));
    let has_list = defaults.is_ok_and(|text| text.contains("COMPOSE_FILE"));
    (!has_list && !lines_of(&text).any(has_others)).then_some(text)
}

fn project_directory(options: &[(&str, &str)]) -> PathBuf {
    let place = values_of(options, &["project-directory"]).next_back();
    let here = std::env::current_dir().unwrap_or_default();
    here.join(place.unwrap_or_default())
}

/// Returns the devices of the CDI file that a text names.
pub(super) fn cdi_devices(text: &str) -> Vec<&str> {
    let mark = format!("{CDI_KIND}=");
    lines_of(text)
        .flat_map(|line| {
            line.match_indices(&mark)
                .map(|(at, _)| &line[at + mark.len()..])
                .collect::<Vec<_>>()
        })
        .filter_map(|rest| words_of(rest).next())
        .collect()
}

/// True for a text that names the device as the CDI file does.
pub(super) fn names_device(text: &str, wanted: WantedInContainer<'_>) -> bool {
    cdi_devices(text)
        .into_iter()
        .any(|name| wanted.is_named(name))
}

/// The way in which a text of Compose gives the device to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    ByItself,
    /// With the value that the caller's variable has.
    ByCaller,
}

/// Returns how a text gives the device: as CDI names it, or by the variable and a mount of its pipe directory.
pub(super) fn given_by_compose(text: &str, wanted: WantedInContainer<'_>) -> Option<Given> {
    if names_device(text, wanted) {
        return Some(Given::ByItself);
    }
    let mounts = mounts_in(text);
    let is_mounted = |path: &Path| {
        mounts.iter().any(|(source, target)| {
            let target = Path::new(target);
            let Ok(inner) = path.strip_prefix(target) else {
                return false;
            };
            // What a variable stands for is not known here.
            let is_ours = source.contains('$') || wanted.has_pipe(&Path::new(source).join(inner));
            target.parent().is_some() && is_ours
        })
    };
    lines_of(text)
        .filter_map(|line| line.split(PIPE_VARIABLE).nth(1))
        .filter(|value| !is_empty_text(value))
        .find_map(|value| {
            let value = value.trim_start_matches([':', '=', ' ', '"', '\'']);
            let ends = |c: char| c.is_whitespace() || "\"',]}".contains(c);
            let value = value.split(ends).next().unwrap_or_default();
            let is_passed_on = value.is_empty() || value.starts_with('$');
            let (path, given) = if is_passed_on {
                (wanted.pipes[0].as_path(), Given::ByCaller)
            } else {
                (Path::new(value), Given::ByItself)
            };
            is_mounted(path).then_some(given)
        })
}

/// True for a value that is given as an empty text. Without a value, Compose passes the caller's variable on.
fn is_empty_text(value: &str) -> bool {
    let value = value.trim_start_matches(['"', '\'']).trim_end();
    let value = value.trim_end_matches(['}', ']']).trim_end();
    [": \"\"", ": ''", "=", "=\"", "='"].contains(&value)
}

/// Returns the sources and targets of the mounts that a text has, as `A:B` or by keys.
fn mounts_in(text: &str) -> Vec<(&str, &str)> {
    let words: Vec<&str> = lines_of(text).flat_map(words_of).collect();
    let after = |keys: [&str; 3]| -> Vec<&str> {
        words
            .windows(2)
            .filter(|pair| keys.contains(&pair[0]))
            .map(|pair| pair[1])
            .collect()
    };
    let sources = after(["source", "source:", "src:"]);
    let targets = after(["target:", "dst:", "destination:"]);
    // Keys have any order, so any two may belong together.
    let by_keys = sources
        .iter()
        .flat_map(|source| targets.iter().map(move |target| (*source, *target)));
    let pairs = words.iter().filter_map(|word| {
        let (source, target) = word.split_once(":/")?;
        let target = &word[word.len() - target.len() - 1..];
        Some((source, target.split(':').next().unwrap_or(target)))
    });
    pairs.chain(by_keys).collect()
}

fn lines_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split_once(" #").map_or(line, |(code, _)| code))
        .filter(|line| !line.starts_with('#'))
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || "\"',[]{}".contains(c))
        .filter(|word| !word.is_empty())
}

/// Returns what the services of Compose lack. `files` are those that `-f` would replace.
pub(super) fn missing_in_compose(files: &[PathBuf], wanted: WantedInContainer<'_>) -> Missing {
    let shown = wanted.directory.display().to_string();
    let effect = OUTSIDE.to_owned();
    if let Some(device) = wanted.fixed_device() {
        let here = std::env::current_dir().unwrap_or_default();
        let files = files.iter().map(|file| {
            let file = file.strip_prefix(&here).unwrap_or(file);
            format!("-f {} ", quote_for_shell(&file.to_string_lossy()))
        });
        let (files, limits) = (files.collect::<String>(), wanted.limits);
        let remedy = format!(
            "add {files}-f device.yaml, a file that `mig-mps env {device}{limits} --format compose` writes; in this file, replace \
             the name main with that of your service"
        );
        return Missing {
            lacks: vec![shown],
            remedy,
            effect,
        };
    }
    let names = [PIPE_VARIABLE, "CUDA_VISIBLE_DEVICES"];
    let names = [&names, wanted.limit_variables].concat().join(", ");
    let remedy =
        format!("add to the service: volumes: [\"{shown}:{shown}\"], environment: [{names}]");
    Missing {
        lacks: vec![shown, PIPE_VARIABLE.to_owned()],
        remedy,
        effect,
    }
}
