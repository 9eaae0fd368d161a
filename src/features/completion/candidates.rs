//! The values that completion offers, by the name that a value has in help.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Arg;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};

use crate::catalog::{self, BuiltIn};
use crate::host::{Environment, format_gpus, user_name};
use crate::mps::{MpsProgram, uses_pipe_dir};
use crate::node::{Fault, device_order};
use crate::settings::{KEYS, Settings};
use crate::state::{DeviceRecord, RunDir};

/// The values that other features know.
#[derive(Clone, Copy)]
pub struct Sources {
    /// The configurations in a file, if it is one of mig-parted.
    pub configurations: fn(&Path) -> Option<Vec<String>>,
    /// The meaning of a setting.
    pub setting_meaning: fn(&str) -> String,
}

/// Returns values with their meanings.
type Candidates = fn(&Words) -> Vec<(String, String)>;

/// The values that are completed, by their names in help.
const VALUES: [(&str, Candidates); 8] = [
    ("DEVICE", device_candidates),
    (DEVICE_TO_START, device_to_start_candidates),
    (PID, client_candidates),
    (SETTING, setting_candidates),
    ("MODEL[:COUNT]", model_candidates),
    ("CONFIGURATION", configuration_candidates),
    (PROFILE, built_in_profile_candidates),
    ("ID", fault_candidates),
];

/// A device of a command that starts daemons.
const DEVICE_TO_START: &str = "DEVICE of start";
const PID: &str = "PID";
const SETTING: &str = "KEY=VALUE";
/// A profile is also a file.
const PROFILE: &str = "PROFILE";

/// The words of a command line up to the cursor.
struct Words {
    sources: Sources,
    before: Vec<String>,
    /// The beginning of the value.
    current: String,
}

impl Words {
    fn new(sources: Sources, words: &[OsString], current: &OsStr) -> Self {
        let before = words.split_last().map_or(&[][..], |(_, before)| before);
        Self {
            sources,
            before: before
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            current: current.to_string_lossy().into_owned(),
        }
    }

    /// The values of `--gpu` before the cursor.
    fn given_gpus(&self) -> Vec<u32> {
        let mut gpus = Vec::new();
        for (nth, word) in self.before.iter().enumerate() {
            let value = if word == "--gpu" {
                self.before.get(nth + 1).map(String::as_str)
            } else {
                word.strip_prefix("--gpu=")
            };
            gpus.extend(value.and_then(|value| value.parse::<u32>().ok()));
        }
        gpus
    }

    /// True if a word before the cursor is this device's name or UUID.
    fn names_device(&self, record: &DeviceRecord) -> bool {
        self.before
            .iter()
            .any(|word| *word == record.name || *word == record.uuid)
    }
}

/// Completes an argument's values; `None` for one whose values clap knows.
pub(super) fn completer_for(
    sources: Sources,
    command: &str,
    arg: &Arg,
    words: &Arc<[OsString]>,
) -> Option<ArgValueCompleter> {
    let name = arg.get_value_names()?.first()?.to_string();
    // After `--gpu N` no device follows.
    let has_gpu = matches!(command, "set" | "kill")
        && !Words::new(sources, words, OsStr::new(""))
            .given_gpus()
            .is_empty();
    let name = match (name.as_str(), command) {
        ("DEVICE", "set") if has_gpu => SETTING.to_owned(),
        ("DEVICE", "kill") if has_gpu => PID.to_owned(),
        ("DEVICE", "start" | "restart") => DEVICE_TO_START.to_owned(),
        _ => name,
    };
    let (_, candidates) = VALUES.iter().find(|(value, _)| *value == name)?;
    let words = Arc::clone(words);
    Some(ArgValueCompleter::new(move |current: &OsStr| {
        let words = Words::new(sources, &words, current);
        let mut found = candidates(&words);
        found.retain(|(value, _)| value.starts_with(&words.current));
        let found = found
            .into_iter()
            .map(|(value, meaning)| CompletionCandidate::new(value).help(Some(meaning.into())));
        let files =
            (name == PROFILE).then(|| PathCompleter::file().filter(is_toml).complete(current));
        found.chain(files.into_iter().flatten()).collect()
    }))
}

fn is_toml(path: &Path) -> bool {
    path.is_file()
        && path
            .extension()
            .is_some_and(|extension| extension == "toml")
}

fn fault_candidates(_: &Words) -> Vec<(String, String)> {
    Fault::all()
        .iter()
        .map(|fault| (fault.id.clone(), fault.meaning.clone()))
        .collect()
}

fn built_in_profile_candidates(_: &Words) -> Vec<(String, String)> {
    BuiltIn::all()
        .into_iter()
        .map(|profile| (profile.name.to_owned(), profile.summary().to_owned()))
        .collect()
}

/// The devices that have a record and are not named yet: names first, and UUIDs once one is begun.
fn device_candidates(words: &Words) -> Vec<(String, String)> {
    let environment = Environment::read();
    let (mut names, mut uuids) = (Vec::new(), Vec::new());
    for (_, record) in all_records(&environment) {
        if words.names_device(&record) {
            continue;
        }
        let meaning = describe_record(&record, &environment);
        if !words.current.is_empty() {
            uuids.push((record.uuid, format!("{}, {meaning}", record.name)));
        }
        names.push((record.name, meaning));
    }
    names.extend(uuids);
    names
}

/// Those, and the devices that `down` has stopped, which come first.
fn device_to_start_candidates(words: &Words) -> Vec<(String, String)> {
    let environment = Environment::read();
    let served = all_records(&environment);
    let mut all: Vec<(String, String)> = RunDir::all(&environment)
        .into_iter()
        .filter_map(|run_dir| run_dir.load_node().ok())
        .flat_map(|file| file.stopped)
        .map(|stopped| stopped.record)
        .filter(|record| {
            served
                .iter()
                .all(|(_, known)| !known.key.excludes(&record.key))
        })
        .filter(|record| !words.names_device(record))
        .map(|record| {
            let meaning = describe_place(&record, "stopped");
            (record.name, meaning)
        })
        .collect();
    all.extend(device_candidates(words));
    all
}

/// The records of every run directory, in the order of their devices; the system's directory comes first.
fn all_records(environment: &Environment) -> Vec<(RunDir, DeviceRecord)> {
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for run_dir in RunDir::all(environment) {
        for record in run_dir.load_records().unwrap_or_default().0 {
            if names.insert(record.name.clone()) {
                all.push((run_dir.clone(), record));
            }
        }
    }
    all.sort_by_cached_key(|(_, record)| device_order(record.gpu, &record.key, &record.name));
    all
}

/// `GPU 0, 3g.40gb, running`
fn describe_record(record: &DeviceRecord, environment: &Environment) -> String {
    describe_place(record, daemon_state(record, environment))
}

/// The same with this state.
fn describe_place(record: &DeviceRecord, state: &str) -> String {
    let gpus = record.gpu_indices();
    let gpu = (!gpus.is_empty()).then(|| format_gpus(gpus));
    let profile = match &record.key.instance {
        Some(_) => record.profile.clone(),
        None if record.key.is_joint() => Some("joint".to_owned()),
        None => Some("whole GPU".to_owned()),
    };
    let parts: Vec<String> = [gpu, profile, Some(state.to_owned())]
        .into_iter()
        .flatten()
        .collect();
    parts.join(", ")
}

/// The state of a daemon as far as its process tells: one that runs may still hang.
fn daemon_state(record: &DeviceRecord, environment: &Environment) -> &'static str {
    let host = &environment.host;
    let is_of_this_boot = host.boot_id().is_ok_and(|id| id == record.boot_id);
    if !is_of_this_boot {
        return "dead";
    }
    match record.daemon {
        _ if !record.finished => "starting",
        Some(daemon) if daemon.find_process(host).is_some() => "running",
        Some(daemon) if daemon.is_hidden(host) => "hidden",
        _ => "dead",
    }
}

/// The processes that were started with the pipe directory of a device that the words before the cursor name, or whose GPU
/// they name: its clients, and also a shell that exported it. Only a control session or NVML would tell them apart.
fn client_candidates(words: &Words) -> Vec<(String, String)> {
    let environment = Environment::read();
    let gpus = words.given_gpus();
    let pipes: Vec<PathBuf> = all_records(&environment)
        .into_iter()
        .filter(|(_, record)| {
            let mut indices = record.gpu_indices().iter();
            words.names_device(record) || indices.any(|gpu| gpus.contains(gpu))
        })
        .flat_map(|(run_dir, record)| {
            [
                run_dir.pipe_dir(&record.uuid),
                run_dir.by_name(&record.name).join("pipe"),
            ]
        })
        .collect();
    if pipes.is_empty() {
        return Vec::new();
    }
    let mut clients = Vec::new();
    for process in environment.host.read_processes().unwrap_or_default().iter() {
        let is_client = !MpsProgram::is_mps_process(process)
            && pipes.iter().any(|pipe| uses_pipe_dir(process, pipe))
            && !words.before.contains(&process.pid.to_string());
        if is_client {
            let user = process
                .owner()
                .map_or_else(String::new, |user| format!("{}, ", user_name(user)));
            let meaning = format!("{user}{}", process.command_line());
            clients.push((process.pid.to_string(), meaning));
        }
    }
    clients
}

/// The settings of a running daemon, and the values of the one that is begun: words, and the default.
fn setting_candidates(words: &Words) -> Vec<(String, String)> {
    let mut live = KEYS.iter().filter(|key| key.is_live());
    let Some((name, _)) = words.current.split_once('=') else {
        let named = live.flat_map(|key| key.accepted_names().map(move |name| (name, key.name)));
        return named
            .map(|(name, key)| (format!("{name}="), (words.sources.setting_meaning)(key)))
            .collect();
    };
    let Some(key) = live.find(|key| key.accepted_names().any(|accepted| accepted == name)) else {
        return Vec::new();
    };
    let default = (key.show)(&Settings::default());
    let mut values: Vec<String> = key.words.iter().map(ToString::to_string).collect();
    if !values.contains(&default) {
        values.push(default.clone());
    }
    values
        .into_iter()
        .map(|value| {
            let note = if value == default { "default" } else { "" };
            (format!("{name}={value}"), note.to_owned())
        })
        .collect()
}

/// The GPU models of the catalog.
fn model_candidates(_: &Words) -> Vec<(String, String)> {
    catalog::models()
        .map(|model| (model.key.clone(), model.product_names.join(", ")))
        .collect()
}

/// The configurations of mig-parted's file that a word before the cursor names.
fn configuration_candidates(words: &Words) -> Vec<(String, String)> {
    words
        .before
        .iter()
        .map(Path::new)
        .filter(|path| path.is_file())
        .find_map(words.sources.configurations)
        .into_iter()
        .flatten()
        .map(|name| (name, String::new()))
        .collect()
}
