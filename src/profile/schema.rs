//! The form of a profile file, as TOML.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct File {
    pub(super) name: Option<String>,
    pub(super) mps: Option<Mps>,
    #[serde(default)]
    pub(super) gpu: Vec<Spanned<Gpu>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Gpu {
    pub(super) select: Spanned<Select>,
    pub(super) mig: Option<Spanned<bool>>,
    pub(super) name: Option<Spanned<String>>,
    pub(super) mps: Option<Mps>,
    pub(super) devices: Option<Vec<Device>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Select {
    pub(super) index: Option<Vec<u32>>,
    pub(super) product: Option<Spanned<String>>,
    pub(super) uuid: Option<Spanned<String>>,
    pub(super) pci: Option<Spanned<String>>,
    pub(super) all: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Device {
    pub(super) name: Option<Spanned<String>>,
    pub(super) profile: Spanned<String>,
    pub(super) at: Option<u32>,
    pub(super) count: Option<Spanned<u32>>,
    pub(super) compute: Option<Vec<Spanned<String>>>,
    pub(super) mps: Option<Mps>,
}

/// Settings by key, checked against [`KEYS`](crate::settings::KEYS).
pub(super) type Mps = BTreeMap<Spanned<String>, Spanned<Value>>;
