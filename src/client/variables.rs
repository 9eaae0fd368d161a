//! The environment of a device's clients: the limits that a program takes on itself, the memory limit in the caller's own
//! environment, and the variables.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::Path;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use thiserror::Error;

use crate::failure::{ExitStatus, Failure};
use crate::host::{Environment, bounded};
use crate::mps::MAX_PIPE_DIR;
use crate::node::Served;
use crate::settings::{ClientPriority, MemoryLimit, Percentage, Settings};
use crate::state::DeviceRecord;

/// The limits that a program sets for itself. They can only be tighter than those of its device.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ClientLimits {
    /// Active thread percentage of the program: the part of the device's SMs that it may use
    #[arg(long, value_name = "PERCENT")]
    pub threads: Option<Percentage>,
    /// Pinned memory limit of the program, such as 4G or 512M
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<MemoryLimit>,
    /// Client priority of the program's work
    #[arg(long, value_parser = priorities())]
    pub priority: Option<ClientPriority>,
}

fn priorities() -> impl TypedValueParser<Value = ClientPriority> {
    PossibleValuesParser::new(ClientPriority::WORDS).try_map(|word| word.parse())
}

/// A program's limit is above the one that its device has. CUDA would use the device's without a word.
#[derive(Debug, Error)]
#[error("{option} {wanted} is more than the device allows: its {key} is {allowed}")]
pub struct TooMuch {
    option: &'static str,
    wanted: String,
    key: &'static str,
    allowed: String,
}

impl Failure for TooMuch {
    fn status(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hint(&self) -> Option<String> {
        Some(format!(
            "use {} {}, or let the device have more: mig-mps set DEVICE {}={}",
            self.option, self.allowed, self.key, self.wanted
        ))
    }
}

impl ClientLimits {
    /// Refuses limits above those of the device.
    pub fn check(&self, settings: &Settings) -> Result<(), TooMuch> {
        let allowed = settings.active_thread_percentage;
        let threads = self.threads.filter(|wanted| *wanted > allowed);
        refuse("--threads", "active-thread-percentage", threads, allowed)?;
        if let Some(allowed) = settings.pinned_memory_limit {
            let memory = self.memory.filter(|wanted| *wanted > allowed);
            refuse("--memory", "pinned-memory-limit", memory, allowed)?;
        }
        let allowed = settings.client_priority;
        let priority = self
            .priority
            .filter(|wanted| wanted.number() < allowed.number());
        refuse("--priority", "client-priority", priority, allowed)
    }
}

/// Refuses a limit that is more than the device allows, if there is one.
fn refuse<T: Copy + Display>(
    option: &'static str,
    key: &'static str,
    too_much: Option<T>,
    allowed: T,
) -> Result<(), TooMuch> {
    match too_much {
        None => Ok(()),
        Some(wanted) => Err(TooMuch {
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
            "unset {MEMORY}; with this value CUDA would lift the memory limit of the device"
        ))
    }
}

/// Returns the limit that the caller's environment has for programs on this device.
pub fn own_memory(record: &DeviceRecord) -> Result<Option<MemoryLimit>, UnreadableLimit> {
    let text = std::env::var_os(MEMORY).unwrap_or_default();
    read(&text, &record.uuid).map_err(|why| UnreadableLimit {
        text: bounded(&text.to_string_lossy()).into_owned(),
        why,
    })
}

/// Reads `0=1G,1=512MB`, where a UUID may stand for a number. The program sees one device, which is number 0; what is said
/// of others does not concern it.
fn read(text: &OsStr, uuid: &str) -> Result<Option<MemoryLimit>, String> {
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
        let ordinal = device.parse::<u32>().ok();
        if ordinal.is_none() && !is_named {
            return Err(format!("\"{device}\" is no number and no UUID of a device"));
        }
        // NVIDIA's manual writes MB.
        let limit: MemoryLimit = size.strip_suffix('B').unwrap_or(size).parse()?;
        if ordinal == Some(0) || device == uuid {
            tightest = Some(tightest.map_or(limit, |other| other.min(limit)));
        }
    }
    Ok(tightest)
}

const THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";

/// Variables with which a program would not be a client of the daemon, or not of the server that it should have: another
/// version of the protocol, and a partition of another device.
const SPOILING: [&str; 2] = ["CUDA_MPS_PROTOCOL_VERSION", "CUDA_MPS_SM_PARTITION"];

/// The variables by which a program limits itself.
pub const OWN_LIMITS: [&str; 3] = [THREADS, MEMORY, PRIORITY];

/// The environment variables of a client.
#[derive(Debug)]
pub struct Variables {
    pub set: Vec<(&'static str, OsString)>,
    /// The variables that must not be set.
    pub unset: Vec<&'static str>,
}

impl Variables {
    /// Returns the variables of a program on a device outside MPS: its pipe directory is an empty one.
    pub fn outside(record: &DeviceRecord, nowhere: &Path) -> Self {
        let mut unset = SPOILING.to_vec();
        unset.push("CUDA_MPS_LOG_DIRECTORY");
        Self {
            set: vec![
                ("CUDA_MPS_PIPE_DIRECTORY", nowhere.into()),
                ("CUDA_VISIBLE_DEVICES", record.uuid.clone().into()),
            ],
            unset,
        }
    }

    /// Returns the variables for a device.
    ///
    /// The pipe directory is named by the device's link, which survives a change of its UUID, unless that path is too long
    /// for a socket.
    pub fn of(environment: &Environment, served: &Served, limits: &ClientLimits) -> Self {
        let (record, run_dir) = (&served.record, &served.run_dir);
        let logs = environment.logs_of(run_dir.path());
        let by_name = run_dir.by_name(&record.name).join("pipe");
        let pipe = if by_name.as_os_str().len() <= MAX_PIPE_DIR {
            by_name
        } else {
            run_dir.pipe_dir(&record.uuid)
        };
        let mut set: Vec<(&'static str, OsString)> = vec![("CUDA_MPS_PIPE_DIRECTORY", pipe.into())];
        set.extend(logs.map(|logs| ("CUDA_MPS_LOG_DIRECTORY", logs.join(&record.uuid).into())));
        set.push(("CUDA_VISIBLE_DEVICES", record.uuid.clone().into()));
        let threads = limits.threads.map(|threads| threads.value().to_string());
        // The program sees one device, which is number 0.
        let memory = limits
            .memory
            .map(|memory| format!("0={}", memory.in_mebibytes()));
        let priority = limits
            .priority
            .map(|priority| priority.number().to_string());
        let mut unset = SPOILING.to_vec();
        if memory.is_none() {
            // One of another device would lift the limit of this one.
            unset.push(MEMORY);
        }
        for (name, value) in OWN_LIMITS.into_iter().zip([threads, memory, priority]) {
            if let Some(value) = value {
                set.push((name, value.into()));
            }
        }
        Self { set, unset }
    }

    /// Returns what to set where nothing can be unset. An empty memory limit limits nothing (measured on driver 580), and
    /// takes the place of one that would lift the device's.
    pub fn set_alone(self) -> Vec<(&'static str, OsString)> {
        let mut set = self.set;
        if self.unset.contains(&MEMORY) {
            set.push((MEMORY, OsString::new()));
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
            read(OsStr::new(text), "MIG-1")
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
            assert!(read(OsStr::new(wrong), "MIG-1").is_err(), "{wrong}");
        }
    }
}
