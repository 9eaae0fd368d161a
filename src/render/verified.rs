//! Checked devices, as text and as JSON.

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use super::format::format_count;
use super::json::{Message, VERSION, Version};
use super::output::{note, print_error, print_lines, report};
use crate::client::{NotReady, Verified};
use crate::failure::Failure;
use crate::host::user_name;

/// Prints the outcome for each device: a line on standard output if a process became its client, and else an error.
pub fn print(all: &[Verified]) -> Result<()> {
    for one in all {
        let name = &one.name;
        match &one.result {
            Ok(ready) => {
                let (time, user) = (ready.time.as_millis(), user_name(ready.user));
                let server = ready.server.map(|pid| format!(", server {pid}"));
                print_lines(&format!(
                    "{name}: attached in {time} ms as {user}, {} SMs{}",
                    ready.sm_count,
                    server.unwrap_or_default()
                ))?;
            }
            Err(cause) => print_failure(cause),
        }
    }
    Ok(())
}

/// Notes how many devices were verified: `32 devices verified`, `2 of 32 devices failed`.
pub fn print_total(all: &[Verified]) {
    let (unchecked, failed): (Vec<_>, Vec<_>) = all
        .iter()
        .filter_map(|one| one.result.as_ref().err())
        .partition(|error| error.is_unchecked());
    let devices = format_count(all.len(), "device");
    report(&match (failed.len(), unchecked.len()) {
        (0, 0) => format!("{devices} verified"),
        (0, unchecked) => format!("{} of {devices} verified", all.len() - unchecked),
        (failed, 0) => format!("{failed} of {devices} failed"),
        (failed, unchecked) => format!("{failed} of {devices} failed, {unchecked} not checked"),
    });
}

/// Prints the errors alone.
pub fn print_failures(all: &[Verified]) {
    for cause in all.iter().filter_map(|one| one.result.as_ref().err()) {
        print_failure(cause);
    }
}

fn print_failure(cause: &NotReady) {
    if cause.is_unchecked() {
        note(&format!("not checked: {cause}"));
    } else {
        print_error(&cause.to_string(), &cause.hints());
    }
}

/// The output of `mig-mps verify --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "verify")]
pub struct VerifyDocument {
    version: Version,
    devices: Vec<VerifiedDevice>,
}

/// A device that was checked.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct VerifiedDevice {
    name: String,
    uuid: String,
    /// The result: `attached`, `failed`, or not checked because it is `in use` by others or `reserved` for others.
    result: &'static str,
    /// The user who became a client; null if nobody did.
    user: Option<String>,
    /// The time that `cuInit` took.
    init_seconds: Option<f64>,
    /// The SMs that a client may use.
    multiprocessors: Option<u32>,
    /// The server; null if there was none before the check.
    server_pid: Option<u32>,
    /// The error; null if there is none.
    error: Option<Message>,
}

impl VerifyDocument {
    /// Describes these devices.
    pub fn new(all: &[Verified]) -> Self {
        Self {
            version: VERSION,
            devices: VerifiedDevice::from_all(all),
        }
    }
}

impl VerifiedDevice {
    pub(super) fn from_all(all: &[Verified]) -> Vec<Self> {
        all.iter().map(Self::from_verified).collect()
    }

    fn from_verified(one: &Verified) -> Self {
        let ready = one.result.as_ref().ok();
        let error = one.result.as_ref().err();
        Self {
            name: one.name.clone(),
            uuid: one.uuid.clone(),
            result: match error {
                None => "attached",
                Some(error) if error.is_temporary() => "in use",
                Some(error) if error.is_unchecked() => "reserved",
                Some(_) => "failed",
            },
            user: ready.map(|ready| user_name(ready.user)),
            init_seconds: ready.map(|ready| ready.time.as_secs_f64()),
            multiprocessors: ready.map(|ready| ready.sm_count),
            server_pid: ready.and_then(|ready| ready.server).map(|pid| pid.0),
            error: error.map(Message::from),
        }
    }
}
