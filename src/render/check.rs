use std::fmt::Write as _;

use console::style;
use serde_json::{Value, json};

use super::format::{grouped, ranges, shortened};
use super::json::VERSION;
use super::table::{Column, Table};
use crate::catalog::{self, Incomplete, Model};
use crate::plan::Refusal;
use crate::plan::check::{BlockOnModel, OnNode, Shape, ShapeDevice};
use crate::profile::{Profile, Selector};

/// Formats the result of a profile on an imaginary node; GPUs with the same result are shown together.
pub(super) fn node(profile: &Profile, on_node: &OnNode, width: usize) -> String {
    let mut out = String::new();
    let gpus = (0..).zip(&on_node.gpus);
    let gpus = gpus.map(|(index, (model, shape))| (index, *model, shape.as_ref()));
    for group in grouped(gpus, alike) {
        let indices: Vec<u32> = group.iter().map(|(index, ..)| *index).collect();
        let (_, model, shape) = group[0];
        let heading = format!(
            "GPU {}  {}  {}",
            ranges(&indices),
            model.key,
            model.product()
        );
        let _ = writeln!(out, "{}", style(heading).bold());
        let Some(shape) = shape else {
            let whether = match on_node.elsewhere.as_slice() {
                [] => "no block selects it: it is not touched",
                _ => "not touched, unless a block selects it by UUID or PCI address",
            };
            let _ = writeln!(out, "  {whether}");
            continue;
        };
        if shape
            .devices
            .iter()
            .any(|device| device.placement.is_some())
        {
            let _ = writeln!(out, "  {}", shape.map);
        }
        let shapes: Vec<&Shape> = group.iter().filter_map(|(.., shape)| *shape).collect();
        for line in devices(&shapes, width.saturating_sub(2)).lines() {
            let _ = writeln!(out, "  {line}");
        }
    }
    for (block, models) in &on_node.elsewhere {
        let keys: Vec<&str> = models.iter().map(|model| model.key.as_str()).collect();
        let _ = writeln!(
            out,
            "{}: which GPU that is, only the node tells; it fits on {}",
            heading(profile, *block),
            keys.join(", ")
        );
    }
    out
}

/// True if both have the same result, apart from the names of devices.
fn alike(a: &(u32, &Model, Option<&Shape>), b: &(u32, &Model, Option<&Shape>)) -> bool {
    let nameless = |shape: Option<&Shape>| {
        let mut shape = shape.cloned();
        for device in shape.iter_mut().flat_map(|shape| &mut shape.devices) {
            device.name.clear();
        }
        shape
    };
    a.1.key == b.1.key && nameless(a.2) == nameless(b.2)
}

fn devices(shapes: &[&Shape], width: usize) -> String {
    let mut table = Table::new(vec![
        Column::left("PROFILE", 0),
        Column::left("AT", 1),
        Column::left("SERVE", 2),
        Column::left("SERVER", 3),
        Column::right("THREADS", 3),
        Column::left("NAMES", 0),
    ]);
    let Some(first) = shapes.first() else {
        return String::new();
    };
    for (nth, device) in first.devices.iter().enumerate() {
        let same = shapes.iter().filter_map(|shape| shape.devices.get(nth));
        let names: Vec<&str> = same.map(|device| device.name.as_str()).collect();
        let whole = || "whole GPU".to_owned();
        table.row(vec![
            device.profile.clone().unwrap_or_else(whole),
            device
                .placement
                .map_or_else(|| "-".to_owned(), |at| at.to_string()),
            device
                .settings
                .serve
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
            device.settings.server.to_string(),
            format!("{}%", device.settings.active_thread_percentage),
            shortened(&names),
        ]);
    }
    table.within(width, "--json")
}

/// `line 12: { all = true }`
fn heading(profile: &Profile, block: usize) -> String {
    let span = profile.blocks[block].span;
    let select = profile
        .source
        .written(span)
        .lines()
        .next()
        .unwrap_or_default();
    format!("line {}: {select}", profile.source.line(span))
}

/// Formats the result of each block on each model that it can select.
pub(super) fn fleet(profile: &Profile, judged: &[BlockOnModel]) -> String {
    let mut out = String::new();
    for group in judged.chunk_by(|a, b| a.block == b.block) {
        let _ = writeln!(out, "{}", style(heading(profile, group[0].block)).bold());
        let is_whole = |one: &BlockOnModel| {
            let shape = one.shape.as_ref();
            shape.is_ok_and(|shape| {
                shape
                    .devices
                    .iter()
                    .all(|device| device.placement.is_none())
            })
        };
        if group.iter().all(is_whole) {
            let _ = writeln!(out, "  the whole GPU, on any model");
            continue;
        }
        let widest = group
            .iter()
            .map(|one| one.model.key.len())
            .max()
            .unwrap_or(0);
        for one in group {
            let becomes = match &one.shape {
                Ok(shape) => shape.map.to_string(),
                Err(refusal) => style(in_short(refusal)).red().to_string(),
            };
            let _ = writeln!(out, "  {:widest$}  {becomes}", one.model.key);
        }
        for model in unjudged(profile, group[0].block) {
            let lacks = model.missing.join(", ");
            let _ = writeln!(
                out,
                "  {:widest$}  not judged: nobody has published {lacks}",
                model.key
            );
        }
    }
    out
}

/// Returns the models that a block names and that the catalog cannot judge. A block that selects all GPUs names none.
fn unjudged(profile: &Profile, block: usize) -> impl Iterator<Item = &'static Incomplete> {
    let select = &profile.blocks[block].select;
    catalog::incomplete().iter().filter(move |model| {
        let mut names = model.product_names.iter();
        matches!(select, Selector::Product(_)) && names.any(|name| select.may_select(name))
    })
}

fn in_short(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Infeasible(because) => format!("does not fit: {}", because.why),
        Refusal::Profile(error) => error.message(),
        other => other
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned(),
    }
}

/// Returns the content of [`node`] as JSON.
pub(super) fn node_json(profile: &Profile, judged: &Result<OnNode, Refusal>) -> Value {
    let on_node = match judged {
        Ok(on_node) => on_node,
        Err(refusal) => {
            return json!({ "version": VERSION, "fits": false, "error": refusal.to_string() });
        }
    };
    let gpus: Vec<Value> = (0..)
        .zip(&on_node.gpus)
        .map(|(index, (model, shape)): (u32, _)| {
            json!({
                "index": index,
                "model": model.key,
                "product": model.product(),
                "devices": shape.as_ref().map(devices_json),
            })
        })
        .collect();
    let elsewhere: Vec<Value> = on_node
        .elsewhere
        .iter()
        .map(|(block, models)| {
            let keys: Vec<&str> = models.iter().map(|model| model.key.as_str()).collect();
            json!({ "line": profile.source.line(profile.blocks[*block].span), "models": keys })
        })
        .collect();
    json!({ "version": VERSION, "fits": true, "gpus": gpus, "blocks_by_uuid_or_pci": elsewhere })
}

fn devices_json(shape: &Shape) -> Vec<Value> {
    let device = |device: &ShapeDevice| {
        json!({
            "name": device.name,
            "profile": device.profile,
            "placement": device.placement,
            "serve": device.settings.serve,
            "server": device.settings.server,
            "active_thread_percentage": device.settings.active_thread_percentage,
        })
    };
    shape.devices.iter().map(device).collect()
}

/// Returns the content of [`fleet`] as JSON.
pub(super) fn fleet_json(profile: &Profile, judged: &[BlockOnModel]) -> Value {
    let blocks: Vec<Value> = judged
        .chunk_by(|a, b| a.block == b.block)
        .map(|group| {
            let models: Vec<Value> = group
                .iter()
                .map(|one| {
                    json!({
                        "model": one.model.key,
                        "fits": one.shape.is_ok(),
                        "devices": one.shape.as_ref().ok().map(devices_json),
                        "error": one.shape.as_ref().err().map(ToString::to_string),
                    })
                })
                .collect();
            let line = profile.source.line(profile.blocks[group[0].block].span);
            json!({ "line": line, "models": models })
        })
        .collect();
    let fits = judged.iter().all(|one| one.shape.is_ok());
    json!({ "version": VERSION, "fits": fits, "blocks": blocks })
}
