use std::fmt::Write as _;

use console::style;

use super::format::{fitted, or, wrapped};
use crate::catalog::{Evidence, Incomplete, Model};

/// Formats every model, and those with incomplete data.
pub fn text(models: &[Model], incomplete: &[Incomplete], width: usize) -> String {
    let mut out = String::new();
    for model in models {
        let names: Vec<&str> = [&model.key]
            .into_iter()
            .chain(&model.aliases)
            .map(String::as_str)
            .collect();
        let heading = format!(
            "{}  {} GiB  profiles {}, placements {}",
            style(names.join(", ")).bold(),
            or(model.memory_gib(), "?"),
            model.profiles_known(),
            model.placements_known()
        );
        let _ = writeln!(out, "{}", fitted(&heading, width));
        out.push_str(&below(&short_profiles(model).join(" "), width));
        out.push_str(&below(&products(&model.product_names), width));
    }
    let _ = writeln!(out, "\nThe least sure of each model's facts:");
    for (evidence, meaning) in Evidence::MEANINGS {
        let _ = writeln!(out, "  {evidence:11}  {meaning}");
    }
    let _ = writeln!(
        out,
        "\nNot to be checked against, for nobody has published what is missing:"
    );
    for model in incomplete {
        let _ = writeln!(out, "{}", style(&model.key).bold());
        out.push_str(&below(&products(&model.product_names), width));
        let missing = format!("missing: {}", model.missing.join(", "));
        out.push_str(&below(&missing, width));
    }
    out
}

/// Returns the text as indented lines.
fn below(text: &str, width: usize) -> String {
    let lines = wrapped(text, width.saturating_sub(2));
    lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "  {line}");
        text
    })
}

fn products(names: &[String]) -> String {
    if names.is_empty() {
        return "(no product name known)".to_owned();
    }
    names.join(", ")
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
