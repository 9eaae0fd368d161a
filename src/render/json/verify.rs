use schemars::JsonSchema;
use serde::Serialize;

use super::{Message, VERSION, Version};
use crate::client::Verified;
use crate::host::user_name;

/// The output of `mig-mps verify --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "verify")]
pub struct VerifyDocument {
    version: Version,
    devices: Vec<VerifiedDevice>,
}

/// A device that was checked.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "verified_device")]
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
    pub fn of(all: &[Verified]) -> Self {
        Self {
            version: VERSION,
            devices: VerifiedDevice::all(all),
        }
    }
}

impl VerifiedDevice {
    pub(super) fn all(all: &[Verified]) -> Vec<Self> {
        all.iter().map(Self::of).collect()
    }

    fn of(one: &Verified) -> Self {
        let ready = one.result.as_ref().ok();
        let attached = ready.map(|ready| &ready.attached);
        let error = one.result.as_ref().err();
        Self {
            name: one.name.clone(),
            uuid: one.uuid.clone(),
            result: match error {
                None => "attached",
                Some(error) if error.is_passing() => "in use",
                Some(error) if error.is_unchecked() => "reserved",
                Some(_) => "failed",
            },
            user: attached.map(|attached| user_name(attached.user)),
            init_seconds: attached.map(|attached| attached.time.as_secs_f64()),
            multiprocessors: attached.map(|attached| attached.sm_count),
            server_pid: ready.and_then(|ready| ready.server).map(|pid| pid.0),
            error: error.map(|error| Message {
                what: error.to_string(),
                hints: vec![error.hint()],
            }),
        }
    }
}
