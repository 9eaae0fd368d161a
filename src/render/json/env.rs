use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::{VERSION, Version};
use crate::client::Variables;

/// The output of `mig-mps env --format json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "env")]
pub struct EnvDocument {
    version: Version,
    /// The device's name.
    device: String,
    /// The variables to set, with their values.
    set: BTreeMap<&'static str, String>,
    /// The variables that must not be set.
    unset: Vec<&'static str>,
}

impl EnvDocument {
    /// Describes the environment of a device's clients.
    pub fn of(device: &str, variables: &Variables) -> Self {
        let set = variables.set.iter();
        let set = set.map(|(name, value)| (*name, value.to_string_lossy().into_owned()));
        Self {
            version: VERSION,
            device: device.to_owned(),
            set: set.collect(),
            unset: variables.unset.clone(),
        }
    }
}
