use schemars::JsonSchema;
use serde::Serialize;

use super::super::list::Offer;
use super::{VERSION, Version};
use crate::catalog;

/// The output of `mig-mps check --models --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "models")]
pub struct ModelsDocument {
    version: Version,
    /// The models that `check` can plan for.
    models: Vec<ListedModel>,
    /// The models of which too little is known.
    incomplete: Vec<Incomplete>,
}

/// A model of a GPU.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "model")]
struct ListedModel {
    /// Its name for `--gpu`.
    model: String,
    /// Other names for `--gpu`.
    aliases: Vec<String>,
    /// NVML's product names.
    products: Vec<String>,
    /// The architecture.
    architecture: String,
    /// Device memory, as the product is sold; null if nobody has published it.
    memory_total_bytes: Option<u64>,
    /// The GPU instance profiles that it offers.
    profiles: Vec<Offer>,
    /// The certainty of the profiles: the source of the least certain.
    profiles_are: String,
    /// The certainty of the placements, likewise.
    placements_are: String,
    /// Remarks.
    notes: Vec<String>,
}

/// A model without all that a plan needs.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "incomplete_model")]
struct Incomplete {
    /// The name of its entry.
    model: String,
    /// NVML's product names.
    products: Vec<String>,
    /// The names of the profiles that are known.
    known_profiles: Vec<String>,
    /// The facts that nobody has published.
    missing: Vec<String>,
}

impl ModelsDocument {
    /// Describes these models.
    pub fn of(models: &[catalog::Model], incomplete: &[catalog::Incomplete]) -> Self {
        let models = models.iter().map(|model| ListedModel {
            model: model.key.clone(),
            aliases: model.aliases.clone(),
            products: model.product_names.clone(),
            architecture: model.architecture.clone(),
            memory_total_bytes: model.memory_gib().map(|gib| gib << 30),
            profiles: model.offers().iter().map(Offer::of).collect(),
            profiles_are: model.profiles_known().to_string(),
            placements_are: model.placements_known().to_string(),
            notes: model.notes.clone(),
        });
        let incomplete = incomplete.iter().map(|model| Incomplete {
            model: model.key.clone(),
            products: model.product_names.clone(),
            known_profiles: model.profiles.clone(),
            missing: model.missing.clone(),
        });
        Self {
            version: VERSION,
            models: models.collect(),
            incomplete: incomplete.collect(),
        }
    }
}
