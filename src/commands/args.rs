//! Arguments that several commands have: devices, consent, limits, profiles, durations.

use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::SpanRelativeTo;
use jiff::fmt::friendly::SpanParser;

use super::drain::DEFAULT_FORCE_SECONDS;
use crate::catalog::BuiltIn;
use crate::error::{CommandError, Result, usage_error};
use crate::geometry::ProfileName;
use crate::host::{closest_match, quote_for_shell, read_text_from};
use crate::node::{NoSuchDevice, Node, SelectDevices, is_glob};
use crate::profile::{Profile, ProfileError};
use crate::render::{ProgressForm, is_quiet, is_watched};

/// The devices of a command line.
#[derive(Args, Clone, Debug, Default)]
pub struct DeviceArgs {
    /// Device name, UUID, unique prefix, or glob such as 'trainer-*'
    #[arg(value_name = "DEVICE")]
    pub words: Vec<String>,
    /// Select the devices of a GPU (index, UUID or PCI address)
    #[arg(long = "gpu", value_name = "N")]
    pub gpus: Vec<String>,
}

/// Reads a whole number in a range.
pub fn number<const LEAST: u32, const MOST: u32>(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (LEAST..=MOST).contains(&number) => Ok(number),
        _ if MOST == u32::MAX => Err(format!("expected a number from {LEAST}")),
        _ => Err(format!("expected a number from {LEAST} to {MOST}")),
    }
}

/// Reads an address to listen at.
pub fn socket_address(text: &str) -> Result<SocketAddr, &'static str> {
    let error = "expected an address and a port, such as 127.0.0.1:19835 or [::]:19835";
    text.parse().map_err(|_| error)
}

impl SelectDevices for DeviceArgs {
    fn select(&self, node: &Node) -> Option<Vec<String>> {
        let names = self.resolve_names(node).ok()?;
        (!self.is_empty()).then_some(names)
    }
}

impl DeviceArgs {
    /// Returns the devices and the values of `set DEVICE VALUE…` or `set --gpu N VALUE…`, where the first word is a
    /// value, too.
    pub fn parse_with_values<T: Clone, E: Display>(
        first: &str,
        gpus: &[String],
        others: &[T],
        parse: impl Fn(&str) -> std::result::Result<T, E>,
    ) -> Result<(Self, Vec<T>)> {
        let gpus = gpus.to_vec();
        if gpus.is_empty() && first.contains(',') && !first.contains('[') {
            return Err(
                usage_error("the command accepts one device, or one glob").with_hint(
                    "run the command once for each device, or use a glob such as 'trainer-*'",
                ),
            );
        }
        if gpus.is_empty() {
            let words = vec![first.to_owned()];
            return Ok((Self { words, gpus }, others.to_vec()));
        }
        let value = parse(first).map_err(usage_error)?;
        let words = Vec::new();
        Ok((Self { words, gpus }, [&[value], others].concat()))
    }

    /// True if no device is named: the command is about all.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && self.gpus.is_empty()
    }

    /// Returns the names of the devices, and the UUIDs of the GPUs of `--gpu`, which may have no device.
    pub fn resolve_names_and_gpus(
        &self,
        node: &Node,
    ) -> std::result::Result<(Vec<String>, Vec<String>), NoSuchDevice> {
        let (mut names, mut gpus) = (node.resolve_words(&self.words)?, Vec::new());
        for word in &self.gpus {
            let index = node.gpu_index(word)?;
            let gpu = node.gpus.iter().find(|gpu| gpu.index == index);
            match node.names_on(index) {
                Ok(on_it) => names.extend(on_it),
                Err(error) if gpu.is_none() => return Err(error),
                Err(_) => {}
            }
            gpus.extend(gpu.map(|gpu| gpu.uuid.clone()));
        }
        Ok((names, gpus))
    }

    /// Returns the names of the devices; none only if [`is_empty`](Self::is_empty).
    pub fn resolve_names(&self, node: &Node) -> std::result::Result<Vec<String>, NoSuchDevice> {
        let mut names = node.resolve_words(&self.words)?;
        for word in &self.gpus {
            for name in node.names_on(node.gpu_index(word)?)? {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    /// Returns the names of the devices whose daemons a command acts on. Of the devices of a glob or a GPU, these are the ones
    /// that are served or stopped, if there is one.
    pub fn resolve_served_names(
        &self,
        node: &Node,
    ) -> std::result::Result<Vec<String>, NoSuchDevice> {
        let mut names = self.resolve_names(node)?;
        let of_one: Vec<String> = self
            .words
            .iter()
            .filter(|word| !is_glob(word))
            .cloned()
            .collect();
        let single = node.resolve_words(&of_one)?;
        if names.iter().any(|name| node.is_served_or_stopped(name)) {
            names.retain(|name| node.is_served_or_stopped(name) || single.contains(name));
        }
        Ok(names)
    }
}

/// The hint about clients in the way.
pub const IN_USE_HINT: &str =
    "wait for running clients with --drain DURATION, or end them with --force";

/// The hint about clients in the way where nobody waits for them.
pub const IN_USE_HINT_WITHOUT_WAIT: &str =
    "end the clients with --force; or wait for them with --drain DURATION, without --keep-going";

/// The exit status of a refused change, for help.
pub const REFUSED_STATUS: (&str, &str) = (
    "4",
    "a program is running, or another change is in progress",
);

/// The group of the options for programs that a change would disrupt.
const RUNNING_PROGRAMS: &str = "Running programs";

/// The flags of every command that changes the node.
#[derive(Args, Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct ConsentArgs {
    /// Show the plan and change nothing
    #[arg(long, help_heading = "Plan")]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short, help_heading = "Plan")]
    pub yes: bool,
    /// Wait up to DURATION (such as 5m) for blocking clients
    #[arg(long, value_name = "DURATION", value_parser = seconds, help_heading = RUNNING_PROGRAMS)]
    pub drain: Option<u32>,
    /// End blocking clients, after --drain if given
    #[arg(long, help_heading = RUNNING_PROGRAMS)]
    pub force: bool,
    /// Print the plan and the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Show progress on standard error: auto, plain or none
    #[arg(
        long,
        value_name = "WHEN",
        hide_short_help = true,
        hide_possible_values = true
    )]
    pub progress: Option<ProgressForm>,
    /// True for a change that nobody watches: it shows neither its plan nor progress, and its failures are in the outcome.
    #[arg(skip)]
    pub is_unattended: bool,
}

impl ConsentArgs {
    /// The consent of an administrator who has set up changes that nobody watches.
    pub const UNATTENDED: Self = Self {
        dry_run: false,
        yes: true,
        drain: None,
        force: false,
        json: false,
        progress: None,
        is_unattended: true,
    };

    /// The time that clients get before they are ended; `None` without `--force`.
    pub fn force_after_seconds(&self) -> Option<u32> {
        self.force
            .then(|| self.drain.unwrap_or(DEFAULT_FORCE_SECONDS))
    }

    /// A program that reads JSON, and a log of what nobody watches, get progress only if they ask for it.
    pub(super) fn progress_form(&self) -> ProgressForm {
        let is_for_a_program = self.json && !is_watched();
        let default = if is_for_a_program || is_quiet() || self.is_unattended {
            ProgressForm::None
        } else {
            ProgressForm::Auto
        };
        self.progress.unwrap_or(default)
    }
}

/// The option that keeps new programs out while a change waits for those that run.
#[derive(Args, Clone, Copy, Debug)]
pub struct NoNewArgs {
    /// Admit no new programs while --drain waits (driver 580)
    #[arg(long, requires = "drain", help_heading = RUNNING_PROGRAMS)]
    pub no_new: bool,
}

/// A number of lines of a log; `None` for all.
pub type LineCount = Option<usize>;

/// Reads a number of lines.
pub fn line_count(text: &str) -> Result<LineCount, String> {
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) if text == "all" => Ok(None),
        Err(_) => Err("expected a number, or all".to_owned()),
    }
}

/// The profile of a command line: a file, `-`, or the name of a built-in one.
#[derive(Clone, Debug)]
pub struct ProfileSource(String);

impl From<&str> for ProfileSource {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl Display for ProfileSource {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ProfileSource {
    /// Returns it as a word of a command line; `None` for standard input, which is read once.
    pub fn as_word(&self) -> Option<String> {
        (self.0 != "-").then(|| quote_for_shell(&self.0))
    }

    /// Returns the absolute path of its file, the name of the built-in profile, or `standard input`.
    pub fn origin(&self) -> String {
        match self.0.as_str() {
            "-" => "standard input".to_owned(),
            name if BuiltIn::find_by_name(name).is_some() => name.to_owned(),
            path => std::path::absolute(path)
                .map_or_else(|_| path.to_owned(), |path| path.display().to_string()),
        }
    }

    /// Reads and checks the profile.
    pub fn load(&self) -> Result<Profile> {
        if self.0.is_empty() {
            let error = usage_error("the name of the profile is empty");
            return Err(error.with_hint(
                "give a file, a built-in profile (`mig-mps profiles` lists them), or - for standard input",
            ));
        }
        let path = Path::new(&self.0);
        if let Some(profile) = BuiltIn::find_by_name(&self.0) {
            return Ok(Profile::parse(path, profile.text.to_owned())?);
        }
        let (shown, text) = read_text_from(path);
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                let is_missing = error.kind() == ErrorKind::NotFound;
                let error = CommandError::from(ProfileError::Unreadable {
                    path: shown.to_owned(),
                    error,
                });
                return Err(if is_missing {
                    error.with_hint(suggest_profile(&self.0))
                } else {
                    error
                });
            }
        };
        let is_of_mig_parted = text.lines().any(|line| line.starts_with("mig-configs:"));
        Profile::parse(shown, text).map_err(|error| {
            let error = CommandError::from(error);
            if !is_of_mig_parted {
                return error;
            }
            let path = shown.display();
            let what =
                format!("{path} is a configuration of mig-parted (YAML), not a profile (TOML)");
            let hint = format!("run `mig-mps import {path}` to convert it to a profile");
            CommandError::new(error.status, what).with_hint(hint)
        })
    }
}

/// Names the built-in profile, or the file beside it, that was probably meant instead of a missing file.
fn suggest_profile(word: &str) -> String {
    let path = Path::new(word);
    let with_extension = path.with_extension("toml");
    if with_extension.is_file() {
        let shown = with_extension.display().to_string();
        return format!("did you mean {}?", quote_for_shell(&shown));
    }
    if word.parse::<ProfileName>().is_ok() {
        return format!(
            "run `mig-mps init` to write a profile with sizes that fit; {word} is a size of MIG devices"
        );
    }
    let names: Vec<&str> = BuiltIn::all().iter().map(|profile| profile.name).collect();
    if let Some(near) = closest_match(word.trim_end_matches(".toml"), names.iter().copied()) {
        return format!("did you mean the built-in profile {near}?");
    }
    similar_file_hint(path, &["toml"]).unwrap_or_else(|| {
        format!(
            "check the path, or choose one of the built-in profiles {}",
            names.join(", ")
        )
    })
}

/// Names the file with one of these extensions, in the same directory, that was probably meant instead of a missing file.
pub fn similar_file_hint(path: &Path, extensions: &[&str]) -> Option<String> {
    let directory = path.parent()?;
    let is_here = directory == Path::new("");
    let entries = fs::read_dir(if is_here { Path::new(".") } else { directory });
    let names: Vec<String> = entries
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            let extension = Path::new(name).extension().and_then(OsStr::to_str);
            extension.is_some_and(|extension| extensions.contains(&extension))
        })
        .collect();
    let stem = |name: &str| Some(Path::new(name).file_stem()?.to_str()?.to_owned());
    let stems: Vec<String> = names.iter().filter_map(|name| stem(name)).collect();
    let own = stem(path.file_name()?.to_str()?)?;
    let near = closest_match(&own, stems.iter().map(String::as_str))?;
    let name = names
        .iter()
        .find(|name| stem(name).as_deref() == Some(near))?;
    let shown = directory.join(name).display().to_string();
    Some(format!("did you mean {}?", quote_for_shell(&shown)))
}

/// Parses a duration such as `30s`, `5m`, `1h30m` or `2d`; a number alone counts seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let is_number = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let unit = if is_number { "s" } else { "" };
    SpanParser::new()
        .parse_span(format!("{text}{unit}"))
        .and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()))
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        // The clock must be able to hold the time at which it ends.
        .filter(|duration| Instant::now().checked_add(*duration).is_some())
        .ok_or_else(|| {
            "expected a number of seconds, or a duration such as 30s, 5m, 1h or 2d".to_owned()
        })
}

/// Parses a duration in whole seconds.
pub fn seconds(text: &str) -> Result<u32, String> {
    let duration = duration(text)?;
    match u32::try_from(duration.as_secs()) {
        Ok(seconds) if duration.subsec_nanos() == 0 => Ok(seconds),
        _ => Err("expected whole seconds, at most 4294967295".to_owned()),
    }
}

/// The words of the command line before those of a program of the user.
pub fn own_arguments() -> Vec<String> {
    std::env::args_os()
        .skip(1)
        .take_while(|word| word != "--")
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_seconds_and_units_may_be_combined() {
        for (text, wanted) in [
            ("30", 30),
            ("30s", 30),
            ("5m", 300),
            ("1h", 3600),
            ("1h30m", 5400),
            ("2d", 172_800),
            ("0", 0),
            ("4294967295", u32::MAX),
        ] {
            assert_eq!(seconds(text), Ok(wanted), "{text}");
        }
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn other_texts_are_refused() {
        let beyond = "18446744073709551615";
        for text in [
            "",
            "-5",
            "-5m",
            "5m ago",
            "soon",
            "1:30",
            "5 parsecs",
            "s",
            beyond,
        ] {
            let error = seconds(text).unwrap_err();
            assert!(error.contains("30s, 5m, 1h"), "{text}: {error}");
        }
        for text in ["0.5", "4294967296", "2000000h"] {
            let error = seconds(text).unwrap_err();
            assert!(error.contains("whole seconds"), "{text}: {error}");
        }
    }
}
