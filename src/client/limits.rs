//! The limits that a program takes on itself, and the memory limit in the caller's own environment.

use std::ffi::OsStr;

use thiserror::Error;

use crate::failure::{ExitStatus, Failure};
use crate::host::bounded;
use crate::settings::{ClientPriority, MemoryLimit, Percentage, Settings};
use crate::state::DeviceRecord;

/// The limits that a program sets for itself. They can only be tighter than those of its device.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientLimits {
    /// The share of the device's SMs.
    pub threads: Option<Percentage>,
    /// The device memory.
    pub memory: Option<MemoryLimit>,
    pub priority: Option<ClientPriority>,
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
        let Self {
            option,
            wanted,
            key,
            allowed,
        } = self;
        Some(format!(
            "use {option} {allowed}, or let the device have more: mig-mps set DEVICE {key}={wanted}"
        ))
    }
}

impl ClientLimits {
    /// Refuses limits above those of the device.
    pub fn check(&self, settings: &Settings) -> Result<(), TooMuch> {
        let allowed = settings.active_thread_percentage;
        if let Some(wanted) = self.threads.filter(|wanted| *wanted > allowed) {
            return Err(TooMuch {
                option: "--threads",
                wanted: wanted.to_string(),
                key: "active-thread-percentage",
                allowed: allowed.to_string(),
            });
        }
        let allowed = settings.pinned_memory_limit;
        if let (Some(wanted), Some(allowed)) = (self.memory, allowed)
            && wanted > allowed
        {
            return Err(TooMuch {
                option: "--memory",
                wanted: wanted.to_string(),
                key: "pinned-memory-limit",
                allowed: allowed.to_string(),
            });
        }
        let allowed = settings.client_priority;
        if let Some(wanted) = self
            .priority
            .filter(|wanted| wanted.number() < allowed.number())
        {
            return Err(TooMuch {
                option: "--priority",
                wanted: wanted.to_string(),
                key: "client-priority",
                allowed: allowed.to_string(),
            });
        }
        Ok(())
    }
}

/// The variable by which a program limits its own memory.
///
/// An entry for a device that the program does not see, or a text that CUDA cannot read, lifts the device's limit as well
/// (measured on driver 580). So no program gets the caller's text.
pub(super) const MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

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
    read(&text, &record.uuid)
}

/// Reads `0=1G,1=512MB`, where a UUID may stand for a number. The program sees one device, which is number 0; what is said
/// of others does not concern it.
fn read(text: &OsStr, uuid: &str) -> Result<Option<MemoryLimit>, UnreadableLimit> {
    let text = text.to_string_lossy();
    if text.is_empty() {
        return Ok(None);
    }
    let mut tightest: Option<MemoryLimit> = None;
    for entry in text.split(',') {
        let entry = entry.trim();
        let Some((device, size)) = entry.split_once('=') else {
            let why = format!("\"{entry}\" is not DEVICE=SIZE, as in 0=4G");
            return Err(unreadable(&text, why));
        };
        let is_named = device.starts_with("GPU-") || device.starts_with("MIG-");
        let ordinal = device.parse::<u32>().ok();
        if ordinal.is_none() && !is_named {
            let why = format!("\"{device}\" is no number and no UUID of a device");
            return Err(unreadable(&text, why));
        }
        // NVIDIA's manual writes MB.
        let limit: MemoryLimit = size
            .strip_suffix('B')
            .unwrap_or(size)
            .parse()
            .map_err(|why| unreadable(&text, why))?;
        if ordinal == Some(0) || device == uuid {
            tightest = Some(tightest.map_or(limit, |other| other.min(limit)));
        }
    }
    Ok(tightest)
}

fn unreadable(text: &str, why: String) -> UnreadableLimit {
    UnreadableLimit {
        text: bounded(text).into_owned(),
        why,
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
