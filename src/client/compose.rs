//! The files of Compose, and the device that a text of a container engine gives to a container.

use std::path::{Path, PathBuf};

use super::container::CDI_KIND;
use super::engine::{PIPE_VARIABLE, WantedInContainer};
use super::engine_words::values_of;

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
    let place = values_of(options, &["project-directory"])
        .next_back()
        .unwrap_or_default();
    let place = std::env::current_dir().unwrap_or_default().join(place);
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

/// True if a text has a device as CDI names it, or the variable with its pipe directory or that of the caller.
pub(super) fn has_device(text: &str, wanted: WantedInContainer<'_>) -> bool {
    let is_end = |c: char| c.is_whitespace() || "\"',]".contains(c);
    let word_of = |rest: &str| rest.split(is_end).next().unwrap_or_default().to_owned();
    let lines = || {
        text.lines()
            .filter(|line| !line.trim_start().starts_with('#'))
    };
    let names_after = |mark: &str| -> Vec<String> {
        lines()
            .flat_map(|line| line.split(mark).skip(1))
            .map(word_of)
            .collect()
    };
    let is_ours = |name: &String| wanted.device == Some(name) || name == wanted.uuid;
    let is_passed_on = |value: &str| value.is_empty() || value.starts_with('$');
    let mut values = lines().filter_map(|line| line.split(PIPE_VARIABLE).nth(1));
    names_after(&format!("{CDI_KIND}=")).iter().any(is_ours)
        || values.any(|value| {
            let value = word_of(value.trim_start_matches([':', '=', ' ', '"', '\'']));
            is_passed_on(&value) || wanted.has_pipe(Path::new(&value))
        })
}
