//! `check --models`: the models of the catalog, as text and as JSON.

use std::fmt::Write as _;

use console::style;
use schemars::JsonSchema;
use serde::Serialize;

use crate::catalog::{Evidence, Incomplete, models};
use crate::geometry::GpuInstanceProfile;
use crate::render::format::{display_or, indent_lines, wrap_lines, wrap_text};
use crate::render::json::{Report, VERSION, Version};

impl Report for ModelsDocument {
    /// Formats every model, and those with incomplete data.
    fn text(&self, width: usize) -> String {
        let mut out = String::new();
        for listed in &self.models {
            let names: Vec<&str> = [&listed.model]
                .into_iter()
                .chain(&listed.aliases)
                .map(String::as_str)
                .collect();
            let heading = format!(
                "{}  {} GiB  profiles {}, placements {}",
                style(names.join(", ")).bold(),
                display_or(listed.memory_total_bytes.map(|bytes| bytes >> 30), "?"),
                listed.profiles_are,
                listed.placements_are
            );
            let _ = writeln!(out, "{}", wrap_lines(&heading, width));
            out.push_str(&indented_lines(
                &short_names(&listed.profiles).join(" "),
                width,
            ));
            out.push_str(&indented_lines(&list_products(&listed.products), width));
        }
        let _ = writeln!(out, "\nThe least sure of each model's facts:");
        for (evidence, meaning) in Evidence::MEANINGS {
            let _ = writeln!(out, "  {evidence:11}  {meaning}");
        }
        let _ = writeln!(
            out,
            "\nIncomplete models, with the data that is not published:"
        );
        for incomplete in &self.incomplete {
            let _ = writeln!(out, "{}", style(&incomplete.model).bold());
            out.push_str(&indented_lines(&list_products(&incomplete.products), width));
            let missing = format!("missing: {}", incomplete.missing.join(", "));
            out.push_str(&indented_lines(&missing, width));
        }
        out
    }
}

/// Returns the text as indented lines.
fn indented_lines(text: &str, width: usize) -> String {
    indent_lines(&wrap_text(text, width.saturating_sub(2)).join("\n"))
}

fn list_products(names: &[String]) -> String {
    if names.is_empty() {
        return "(no product name known)".to_owned();
    }
    names.join(", ")
}

/// Returns the shortest names of profiles.
fn short_names(offers: &[GpuInstanceProfile]) -> Vec<String> {
    let mut names = Vec::new();
    for offer in offers {
        let short = offer.name.to_short();
        let is_clear =
            short.find_among(offers.iter().map(|other| (&other.name, other.id))) == Some(offer.id);
        names.push(if is_clear { &short } else { &offer.name }.to_string());
    }
    names
}

/// The output of `mig-mps check --models --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "models")]
pub struct ModelsDocument {
    version: Version,
    /// The models that `check` can plan for.
    models: Vec<ListedModel>,
    /// The models of which too little is known.
    incomplete: Vec<IncompleteModel>,
}

/// A model of a GPU.
#[derive(Debug, Serialize, JsonSchema)]
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
    profiles: Vec<GpuInstanceProfile>,
    /// The certainty of the profiles: the source of the least certain.
    profiles_are: String,
    /// The certainty of the placements, likewise.
    placements_are: String,
    /// Remarks.
    notes: Vec<String>,
}

/// A model without all that a plan needs.
#[derive(Debug, Serialize, JsonSchema)]
struct IncompleteModel {
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
    pub fn new(incomplete: &[Incomplete]) -> Self {
        let models = models().map(|model| ListedModel {
            model: model.key.clone(),
            aliases: model.aliases.clone(),
            products: model.product_names.clone(),
            architecture: model.architecture.clone(),
            memory_total_bytes: model.memory_gib().map(|gib| gib << 30),
            profiles: model.offers(),
            profiles_are: model.profiles_known().to_string(),
            placements_are: model.placements_known().to_string(),
            notes: model.notes.clone(),
        });
        let incomplete = incomplete.iter().map(|model| IncompleteModel {
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
