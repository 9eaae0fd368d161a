use serde::Deserialize;

use super::pci::PciId;

/// A model of which too little is known to plan for it without the GPU.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Incomplete {
    /// The key it would have.
    pub key: String,
    /// NVML's names for it.
    pub product_names: Vec<String>,
    /// The facts that nobody has published.
    pub missing: Vec<String>,
    /// The names of its profiles, as far as they are known.
    #[serde(default)]
    pub profiles: Vec<String>,
    /// Its PCI device ids.
    #[serde(default)]
    pub(super) pci_device_ids: Vec<PciId>,
    /// Its PCI subsystem ids, where they are known.
    #[serde(default)]
    pub(super) pci_subsystems: Vec<PciId>,
}

#[derive(Deserialize)]
struct File {
    model: Vec<Incomplete>,
}

impl Incomplete {
    pub(super) fn read(text: &str) -> Vec<Self> {
        let file: File = toml::from_str(text).expect("the file is in the form of the catalog");
        file.model
    }
}
