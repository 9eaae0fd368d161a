use thiserror::Error;

use crate::settings::{ClientPriority, MemoryLimit, Percentage, Settings};

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

impl TooMuch {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        let Self {
            option,
            wanted,
            key,
            allowed,
        } = self;
        format!(
            "use {option} {allowed}, or let the device have more: mig-mps set DEVICE {key}={wanted}"
        )
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
