use schemars::JsonSchema;
use serde::Serialize;

use crate::plan::ClientOf;

/// A client that a plan concerns.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "planned_client")]
pub(super) struct PlannedClient {
    /// The device's name.
    device: String,
    /// The process id; null if it cannot be seen, as in another pid namespace.
    pid: Option<u32>,
    /// The user's name.
    user: Option<String>,
    /// The command line; null if hidden.
    command: Option<String>,
}

impl PlannedClient {
    pub(super) fn of(client: &ClientOf) -> Self {
        Self {
            device: client.device.clone(),
            pid: client.pid.map(|pid| pid.0),
            user: Some(client.user.clone()),
            command: client.command.clone(),
        }
    }
}
