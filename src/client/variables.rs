//! The environment of a device's clients: the limits that a program takes on itself, the memory limit in the caller's own
//! environment, and the variables.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use thiserror::Error;

use crate::failure::{ExitStatus, Failure};
use crate::host::{Environment, shorten_command};
use crate::mps::MAX_PIPE_DIR;
use crate::node::Served;
use crate::settings::{ClientPriority, MemoryLimit, Percentage, Settings, Visible, WrongValue};
use crate::state::DeviceRecord;

/// The group of the options that limit a program.
const LIMITS: &str = "Limits of the program";

/// The limits that a program sets for itself, which can only be tighter than those of its device, and the form in which it
/// sees the device.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ClientOptions {
    /// Active thread percentage, such as 25
    #[arg(long, value_name = "PERCENT", help_heading = LIMITS)]
    pub threads: Option<Percentage>,
    /// Pinned memory limit (device memory), such as 4G
    #[arg(long, value_name = "SIZE", help_heading = LIMITS)]
    pub memory: Option<MemoryLimit>,
    /// Client priority: normal or below-normal
    #[arg(
        long,
        value_parser = words::<ClientPriority>(ClientPriority::WORDS),
        help_heading = LIMITS,
        hide_possible_values = true
    )]
    pub priority: Option<ClientPriority>,
    /// Let the program set a percentage for each context
    #[arg(long, help_heading = LIMITS)]
    pub per_context: bool,
    /// Name the device for the program: by uuid or by index
    #[arg(
        long,
        value_name = "FORM",
        value_parser = words::<Visible>(Visible::WORDS),
        hide_possible_values = true
    )]
    pub visible: Option<Visible>,
}

/// Reads one of these words.
fn words<T>(words: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = WrongValue> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse())
}

/// A program would have more than its device allows.
#[derive(Debug, Error)]
pub enum LimitExceeded {
    /// CUDA would use the limit of the device without a word.
    #[error("{option} {wanted} is more than the device allows: its {key} is {allowed}")]
    Above {
        device: String,
        option: &'static str,
        wanted: String,
        key: &'static str,
        allowed: String,
    },
    /// A context with a percentage of 100 has all SMs, whatever the limit of the device (measured on driver 580).
    #[error(
        "--per-context would lift the limit of the device: its active-thread-percentage is {allowed}"
    )]
    PerContext { allowed: Percentage },
}

impl Failure for LimitExceeded {
    fn status(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Above {
                device,
                option,
                key,
                allowed,
                ..
            } => format!(
                "use {option} {allowed}; the owner of the daemon can raise the limit with `mig-mps set {device} {key}=VALUE`, \
                 up to the size of the device"
            ),
            Self::PerContext { .. } => {
                "omit --per-context, or run the program on a device with a percentage of 100"
                    .to_owned()
            }
        })
    }
}

impl ClientOptions {
    /// Returns the limits as options, each after a blank, and the variables by which a program has them.
    pub fn limits(&self) -> (String, Vec<&'static str>) {
        let threads = self.threads.map(|value| value.to_string());
        let memory = self.memory.map(|value| value.to_string());
        let priority = self.priority.map(|value| value.to_string());
        let per_context = self.per_context.then(String::new);
        let all = [
            ("--threads", THREADS, threads),
            ("--memory", MEMORY, memory),
            ("--priority", PRIORITY, priority),
            ("--per-context", PER_CONTEXT, per_context),
        ];
        let mut options = String::new();
        let mut variables = Vec::new();
        for (option, variable, value) in all {
            if let Some(value) = value {
                let separator = if value.is_empty() { "" } else { " " };
                options = options + " " + option + separator + &value;
                variables.push(variable);
            }
        }
        (options, variables)
    }

    /// Returns the form in which a program sees a device.
    pub fn visible_or_default(&self, device: &Settings) -> Visible {
        self.visible.unwrap_or(device.visible)
    }

    /// Refuses limits above those of the device.
    pub fn check_against(&self, record: &DeviceRecord) -> Result<(), LimitExceeded> {
        let (device, settings) = (record.name.as_str(), &record.settings);
        let allowed = settings.active_thread_percentage;
        if self.per_context && allowed < Percentage::FULL {
            return Err(LimitExceeded::PerContext { allowed });
        }
        let threads = self.threads.filter(|wanted| *wanted > allowed);
        check_limit(
            device,
            "--threads",
            "active-thread-percentage",
            threads,
            allowed,
        )?;
        if let Some(allowed) = settings.pinned_memory_limit {
            let memory = self.memory.filter(|wanted| *wanted > allowed);
            check_limit(device, "--memory", "pinned-memory-limit", memory, allowed)?;
        }
        let allowed = settings.client_priority;
        let priority = self
            .priority
            .filter(|wanted| wanted.to_number() < allowed.to_number());
        check_limit(device, "--priority", "client-priority", priority, allowed)
    }
}

/// Refuses a limit that is more than the device allows, if there is one.
fn check_limit<T: Copy + Display>(
    device: &str,
    option: &'static str,
    key: &'static str,
    too_much: Option<T>,
    allowed: T,
) -> Result<(), LimitExceeded> {
    match too_much {
        None => Ok(()),
        Some(wanted) => Err(LimitExceeded::Above {
            device: device.to_owned(),
            option,
            wanted: wanted.to_string(),
            key,
            allowed: allowed.to_string(),
        }),
    }
}

/// The variable by which a program limits its own memory.
///
/// An entry for a device that the program does not see, or a text that CUDA cannot read, lifts the device's limit as well
/// (measured on driver 580). So no program gets the caller's text.
const MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// The caller's memory limit cannot be read.
#[derive(Debug, Error)]
#[error("cannot read {MEMORY}={text}: {why}")]
pub struct UnreadableLimit {
    text: String,
    why: String,
}

impl Failure for UnreadableLimit {
    fn hint(&self) -> Option<String> {
        Some(format!(
            "unset {MEMORY}; with this value CUDA would ignore the memory limit of the device"
        ))
    }
}

impl ClientOptions {
    /// Adds the limits that the caller's environment has for programs on a device, where no other is asked for. One that is
    /// above the device's limits nothing, and neither does a percentage or a priority that cannot be read (measured on
    /// driver 580).
    pub fn with_caller_limits(self, record: &DeviceRecord) -> Result<Self, UnreadableLimit> {
        let device = &record.settings;
        let own = |name| std::env::var(name).unwrap_or_default();
        let threads = own(THREADS)
            .parse()
            .ok()
            .filter(|own| *own < device.active_thread_percentage);
        let priority = ClientPriority::from_number(&own(PRIORITY))
            .filter(|own| own.to_number() > device.client_priority.to_number());
        let memory = match self.memory {
            // CUDA takes the tighter one.
            None => caller_memory_limit(record)?.map(|own| {
                let device = device.pinned_memory_limit;
                device.map_or(own, |device| device.min(own))
            }),
            asked_for => asked_for,
        };
        Ok(Self {
            threads: self.threads.or(threads),
            memory,
            priority: self.priority.or(priority),
            ..self
        })
    }
}

/// Returns the memory limit that the caller's environment has for programs on this device.
fn caller_memory_limit(record: &DeviceRecord) -> Result<Option<MemoryLimit>, UnreadableLimit> {
    let text = std::env::var_os(MEMORY).unwrap_or_default();
    parse_memory_limit(&text, record.driver_uuids()).map_err(|why| UnreadableLimit {
        text: shorten_command(&text.to_string_lossy()).into_owned(),
        why,
    })
}

/// Reads `0=1G,1=512MB`, where a UUID may stand for a number: the tightest limit of a device with these UUIDs. A program on one
/// GPU sees number 0, and entries with other numbers have no effect on the program.
fn parse_memory_limit(text: &OsStr, uuids: &[String]) -> Result<Option<MemoryLimit>, String> {
    let text = text.to_string_lossy();
    if text.is_empty() {
        return Ok(None);
    }
    let mut tightest: Option<MemoryLimit> = None;
    for entry in text.split(',') {
        let entry = entry.trim();
        let Some((device, size)) = entry.split_once('=') else {
            return Err(format!("\"{entry}\" is not DEVICE=SIZE, as in 0=4G"));
        };
        let is_named = device.starts_with("GPU-") || device.starts_with("MIG-");
        let ordinal = device.parse::<usize>().ok();
        if ordinal.is_none() && !is_named {
            return Err(format!(
                "\"{device}\" is neither a number nor the UUID of a device"
            ));
        }
        // NVIDIA's manual writes MB.
        let size = size.strip_suffix('B').unwrap_or(size);
        // Not the other forms that mig-mps reads: CUDA must read the same, or there is no limit.
        if !size.ends_with(['M', 'G']) {
            return Err(format!("\"{size}\" is not a size with M or G, as in 0=4G"));
        }
        let limit: MemoryLimit = size.parse()?;
        let is_seen = ordinal.is_some_and(|ordinal| ordinal < uuids.len());
        if is_seen || uuids.iter().any(|uuid| uuid == device) {
            tightest = Some(tightest.map_or(limit, |other| other.min(limit)));
        }
    }
    Ok(tightest)
}

const THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";

/// The variable by which a program gives each of its contexts a percentage, also one above that of its device (measured on
/// driver 580).
const PER_CONTEXT: &str = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING";

/// Variables that no program inherits: with another version of the protocol, or a partition of another device, it would not
/// be a client of the server that it should have; and one device has no order.
const CLEARED_VARIABLES: [&str; 3] = [
    "CUDA_MPS_PROTOCOL_VERSION",
    "CUDA_MPS_SM_PARTITION",
    "CUDA_DEVICE_ORDER",
];

/// The limits that a container of the CDI file has whatever is asked for, with their values: an empty memory limit limits
/// nothing, and a 0 lets no context have a percentage (measured on driver 580). They take the place of values that would
/// lift the limits of the device.
pub(super) const LIMITS_WITHOUT_EFFECT: [(&str, &str); 2] = [(MEMORY, ""), (PER_CONTEXT, "0")];

pub(super) const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";

/// The environment variables of a client.
#[derive(Clone, Debug)]
pub struct Variables {
    pub set: Vec<(String, OsString)>,
    /// The variables that must not be set.
    pub unset: Vec<String>,
}

/// Returns the pipe directory of a device as its clients name it.
pub fn pipe_directory(served: &Served) -> PathBuf {
    let (record, run_dir) = (&served.record, &served.run_dir);
    let by_name = run_dir.by_name(&record.name).join("pipe");
    if by_name.as_os_str().len() <= MAX_PIPE_DIR {
        by_name
    } else {
        run_dir.pipe_dir(&record.uuid)
    }
}

impl Variables {
    /// Returns the variables of a program on a device outside MPS: its pipe directory is an empty one.
    pub fn outside_mps(record: &DeviceRecord, nowhere: &Path) -> Self {
        let mut variables = Self::with_pipe_directory(nowhere.into());
        variables.set_or_unset("CUDA_VISIBLE_DEVICES", Some(record.cuda_devices().into()));
        for name in [LOGS, THREADS, MEMORY, PRIORITY, PER_CONTEXT] {
            variables.set_or_unset(name, None);
        }
        variables
    }

    /// Returns the variables for a device.
    ///
    /// The pipe directory is named by the device's link, which survives a change of its UUID, unless that path is too long
    /// for a socket.
    pub fn for_device(environment: &Environment, served: &Served, options: &ClientOptions) -> Self {
        Self::for_gpus(environment, served, options, &served.record.gpu_positions())
    }

    /// Returns the same for some GPUs of a joint device, by their positions.
    pub fn for_gpus(
        environment: &Environment,
        served: &Served,
        options: &ClientOptions,
        gpus: &[usize],
    ) -> Self {
        let (record, run_dir) = (&served.record, &served.run_dir);
        let logs = environment.logs_of(run_dir.path());
        let visible: Vec<String> = match options.visible_or_default(&record.settings) {
            Visible::Uuid => {
                let uuids = record.driver_uuids();
                gpus.iter().map(|gpu| uuids[*gpu].clone()).collect()
            }
            Visible::Index => gpus.iter().map(ToString::to_string).collect(),
        };
        let threads = options.threads.map(|threads| threads.as_f64().to_string());
        // The numbers are ordinals of the GPUs that the program sees.
        let memory = options.memory.map(|memory| {
            (0..gpus.len())
                .map(|number| format!("{number}={}", memory.in_mebibytes()))
                .collect::<Vec<String>>()
                .join(",")
        });
        let priority = options
            .priority
            .map(|priority| priority.to_number().to_string());
        let mut variables = Self::with_pipe_directory(pipe_directory(served).into());
        let logs = logs.map(|logs| logs.join(&record.uuid).into());
        variables.set_or_unset(LOGS, logs);
        variables.set_or_unset("CUDA_VISIBLE_DEVICES", Some(visible.join(",").into()));
        variables.set_or_unset(THREADS, threads.map(OsString::from));
        variables.set_or_unset(MEMORY, memory.map(OsString::from));
        variables.set_or_unset(PRIORITY, priority.map(OsString::from));
        variables.set_or_unset(PER_CONTEXT, options.per_context.then(|| "1".into()));
        variables
    }

    /// Returns the positions of the GPUs of a device that a program with these variables sees.
    pub fn visible_gpus(&self, record: &DeviceRecord) -> Vec<usize> {
        let position_of = |word: &str| {
            record
                .driver_uuids()
                .iter()
                .position(|uuid| uuid == word)
                .or_else(|| word.parse().ok())
        };
        let positions_in = |value: &OsString| {
            let value = value.to_string_lossy();
            value.split(',').filter_map(position_of).collect()
        };
        self.set
            .iter()
            .find(|(name, _)| name == "CUDA_VISIBLE_DEVICES")
            .map_or_else(|| vec![0], |(_, value)| positions_in(value))
    }

    fn with_pipe_directory(pipe: OsString) -> Self {
        Self {
            set: vec![("CUDA_MPS_PIPE_DIRECTORY".to_owned(), pipe)],
            unset: CLEARED_VARIABLES.map(str::to_owned).to_vec(),
        }
    }

    /// Sets a variable, or leaves no value that the program would inherit: a memory limit of another device would lift the
    /// one of this device.
    fn set_or_unset(&mut self, name: &'static str, value: Option<OsString>) {
        match value {
            Some(value) => self.set.push((name.to_owned(), value)),
            None => self.unset.push(name.to_owned()),
        }
    }

    /// Returns what to set where nothing can be unset.
    pub fn into_set_only(self) -> Vec<(String, OsString)> {
        let mut set = self.set;
        for (name, value) in LIMITS_WITHOUT_EFFECT {
            if self.unset.iter().any(|unset| unset == name) {
                set.push((name.to_owned(), value.into()));
            }
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_said_of_the_device_counts() {
        let limit = |text: &str| {
            parse_memory_limit(OsStr::new(text), &["MIG-1".to_owned()])
                .unwrap()
                .map(|limit| limit.to_string())
        };
        assert_eq!(limit("0=1G,1=512MB").as_deref(), Some("1G"));
        assert_eq!(limit("0=2G, MIG-1=512MB").as_deref(), Some("512M"));
        for none in ["", "1=4G", "5=4G", "MIG-2=4G", "GPU-7=512MB"] {
            assert_eq!(limit(none), None, "{none}");
        }
        for wrong in [
            "junk",
            "0=2G,junk",
            "0=2G,",
            "0=",
            "0=junk",
            "x=2G",
            "-1=2G",
            "0=2",
            "0=9999G",
        ] {
            assert!(
                parse_memory_limit(OsStr::new(wrong), &["MIG-1".to_owned()]).is_err(),
                "{wrong}"
            );
        }
    }
}
