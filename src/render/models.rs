use std::fmt::Write as _;

use serde_json::{Value, json};

use super::format::or;
use super::json::VERSION;
use super::table::{Column, Table};
use crate::catalog::{Evidence, Incomplete, Model};
use crate::geometry::GpuInstanceProfile;

/// Formats every model, and those with incomplete data.
pub fn text(models: &[Model], incomplete: &[Incomplete], width: usize) -> String {
    let mut table = Table::new(vec![
        Column::left("MODEL", 0),
        Column::left("PRODUCT", 2),
        Column::right("GIB", 1),
        Column::left("PROFILES", 0),
        Column::left("PROFILES ARE", 1),
        Column::left("PLACEMENTS ARE", 1),
    ]);
    for model in models {
        table.row(vec![
            model.key.clone(),
            products(&model.product_names),
            or(model.memory_gib(), "?"),
            short_profiles(model).join(" "),
            model.profiles_known().to_string(),
            model.placements_known().to_string(),
        ]);
    }
    let mut out = table.within(width, "--json");
    let _ = writeln!(out, "\nThe least sure of each model's facts:");
    for (evidence, meaning) in Evidence::MEANINGS {
        let _ = writeln!(out, "  {evidence:11}  {meaning}");
    }
    let _ = writeln!(
        out,
        "\nNot to be checked against, for nobody has published what is missing:"
    );
    let mut table = Table::new(vec![
        Column::left("MODEL", 0),
        Column::left("PRODUCT", 1),
        Column::left("MISSING", 0),
    ]);
    for model in incomplete {
        table.row(vec![
            model.key.clone(),
            products(&model.product_names),
            model.missing.join(", "),
        ]);
    }
    out.push_str(&table.within(width, "--json"));
    out
}

fn products(names: &[String]) -> String {
    match names {
        [] => "(no name known)".to_owned(),
        [one] => one.clone(),
        [first, others @ ..] => format!("{first} and {} more", others.len()),
    }
}

/// Returns a model's profiles by their shortest names.
fn short_profiles(model: &Model) -> Vec<String> {
    let offers = model.offers();
    let names = offers.iter().map(|offer| {
        let short = offer.name.short();
        let meant = short.choose(offers.iter().map(|other| (&other.name, other.id)));
        let is_clear = meant == Some(offer.id);
        if is_clear { &short } else { &offer.name }.to_string()
    });
    names.collect()
}

/// Returns the same as JSON.
pub fn json(models: &[Model], incomplete: &[Incomplete]) -> Value {
    let offer = |offer: &GpuInstanceProfile| {
        json!({
            "name": offer.name,
            "id": offer.id,
            "slices": offer.slices,
            "most": offer.most,
            "placements": offer.placements,
        })
    };
    let complete = |model: &Model| {
        json!({
            "model": model.key,
            "aliases": model.aliases,
            "products": model.product_names,
            "architecture": model.architecture,
            "memory_gib": model.memory_gib(),
            "profiles": model.offers().iter().map(offer).collect::<Value>(),
            "profiles_are": model.profiles_known().to_string(),
            "placements_are": model.placements_known().to_string(),
            "notes": model.notes,
        })
    };
    let lacking = |model: &Incomplete| {
        json!({
            "model": model.key,
            "products": model.product_names,
            "profiles": model.profiles,
            "missing": model.missing,
        })
    };
    json!({
        "version": VERSION,
        "models": models.iter().map(complete).collect::<Value>(),
        "incomplete": incomplete.iter().map(lacking).collect::<Value>(),
    })
}
