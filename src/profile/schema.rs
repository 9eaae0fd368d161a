//! The form of a profile file, as TOML.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ProfileFile {
    pub(super) name: Option<String>,
    pub(super) mps: Option<MpsTable>,
    #[serde(default)]
    pub(super) gpu: Vec<Spanned<GpuTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct GpuTable {
    pub(super) select: Spanned<SelectTable>,
    pub(super) mig: Option<bool>,
    pub(super) name: Option<Spanned<String>>,
    pub(super) mps: Option<MpsTable>,
    pub(super) devices: Option<Vec<DeviceTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct SelectTable {
    pub(super) index: Option<Vec<u32>>,
    pub(super) product: Option<Spanned<String>>,
    pub(super) uuid: Option<Spanned<String>>,
    pub(super) pci: Option<Spanned<String>>,
    pub(super) all: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DeviceTable {
    pub(super) name: Option<Spanned<String>>,
    pub(super) profile: Spanned<String>,
    pub(super) at: Option<u32>,
    pub(super) count: Option<Spanned<u32>>,
    pub(super) compute: Option<Vec<Spanned<String>>>,
    pub(super) mps: Option<MpsTable>,
}

/// Settings by key, checked against [`KEYS`](crate::settings::KEYS).
pub(super) type MpsTable = BTreeMap<Spanned<String>, Spanned<Value>>;
