use std::fmt::Write as _;

use console::style;
use serde_json::{Value, json};

use super::format::{grouped, indented, or, ranges, shortened};
use super::json::VERSION;
use super::table::{Column, Table};
use crate::catalog::{self, Incomplete, Model};
use crate::plan::Refusal;
use crate::plan::check::{BlockOnModel, OnNode, Shape, ShapeDevice};
use crate::profile::{Profile, Selector};

/// Formats the result of a profile on an imaginary node; GPUs with the same result are shown together.
pub fn node(profile: &Profile, on_node: &OnNode, width: usize) -> String {
    let mut out = String::new();
    let gpus = (0..).zip(&on_node.gpus);
    let gpus = gpus.map(|(index, (model, shape))| (index, *model, shape.as_ref()));
    for group in grouped(gpus, alike) {
        let indices: Vec<u32> = group.iter().map(|(index, ..)| *index).collect();
        let (indices, (_, model, shape)) = (ranges(&indices), group[0]);
        let heading = format!("GPU {indices}  {}  {}", model.key, model.product());
        let _ = writeln!(out, "{}", style(heading).bold());
        let Some(shape) = shape else {
            let whether = match on_node.elsewhere.as_slice() {
                [] => "no block selects it: it is not touched",
                _ => "not touched, unless a block selects it by UUID or PCI address",
            };
            let _ = writeln!(out, "  {whether}");
            continue;
        };
        if is_partitioned(shape) {
            let _ = writeln!(out, "  {}", shape.map);
        }
        let shapes: Vec<&Shape> = group.iter().filter_map(|(.., shape)| *shape).collect();
        out.push_str(&indented(&devices(&shapes, width.saturating_sub(2))));
    }
    for (block, models) in &on_node.elsewhere {
        let _ = writeln!(
            out,
            "{}: which GPU that is, only the node tells; it fits on {}",
            heading(profile, *block),
            keys(models).join(", ")
        );
    }
    out
}

fn keys(models: &[&'static Model]) -> Vec<&'static str> {
    models.iter().map(|model| model.key.as_str()).collect()
}

/// True if one of its devices is a MIG device.
fn is_partitioned(shape: &Shape) -> bool {
    let mut devices = shape.devices.iter();
    devices.any(|device| device.placement.is_some())
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
        table.row(vec![
            or(device.profile.as_ref(), "whole GPU"),
            or(device.placement, "-"),
            or(device.settings.serve.as_ref(), ""),
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
    let select = profile.source.written(span).lines().next();
    format!(
        "line {}: {}",
        line(profile, block),
        select.unwrap_or_default()
    )
}

fn line(profile: &Profile, block: usize) -> usize {
    profile.source.line(profile.blocks[block].span)
}

/// Formats the result of each block on each model that it can select.
pub fn fleet(profile: &Profile, judged: &[BlockOnModel]) -> String {
    let mut out = String::new();
    for group in judged.chunk_by(|a, b| a.block == b.block) {
        let _ = writeln!(out, "{}", style(heading(profile, group[0].block)).bold());
        let mut shapes = group.iter().map(|one| &one.shape);
        if shapes.all(|shape| shape.as_ref().is_ok_and(|shape| !is_partitioned(shape))) {
            let _ = writeln!(out, "  the whole GPU, on any model");
            continue;
        }
        let widths = group.iter().map(|one| one.model.key.len());
        let widest = widths.max().unwrap_or(0);
        for one in group {
            let becomes = match &one.shape {
                Ok(shape) => shape.map.to_string(),
                Err(refusal) => style(in_short(refusal)).red().to_string(),
            };
            let _ = writeln!(out, "  {:widest$}  {becomes}", one.model.key);
        }
        for model in unjudged(profile, group[0].block) {
            let (key, lacks) = (&model.key, model.missing.join(", "));
            let _ = writeln!(
                out,
                "  {key:widest$}  not judged: nobody has published {lacks}"
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
        other => {
            let text = other.to_string();
            text.lines().next().unwrap_or_default().to_owned()
        }
    }
}

/// Returns the content of [`node`] as JSON.
pub fn node_json(profile: &Profile, judged: &Result<OnNode, Refusal>) -> Value {
    let on_node = match judged {
        Ok(on_node) => on_node,
        Err(refusal) => {
            return json!({ "version": VERSION, "fits": false, "error": refusal.to_string() });
        }
    };
    let gpu = |(index, (model, shape)): (usize, &(&Model, Option<Shape>))| {
        json!({
            "index": index,
            "model": model.key,
            "product": model.product(),
            "devices": shape.as_ref().map(devices_json),
        })
    };
    let gpus: Value = on_node.gpus.iter().enumerate().map(gpu).collect();
    let elsewhere = on_node.elsewhere.iter();
    let elsewhere = elsewhere
        .map(|(block, models)| json!({ "line": line(profile, *block), "models": keys(models) }));
    let elsewhere: Value = elsewhere.collect();
    json!({ "version": VERSION, "fits": true, "gpus": gpus, "blocks_by_uuid_or_pci": elsewhere })
}

fn devices_json(shape: &Shape) -> Value {
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
pub fn fleet_json(profile: &Profile, judged: &[BlockOnModel]) -> Value {
    let on_model = |one: &BlockOnModel| {
        json!({
            "model": one.model.key,
            "fits": one.shape.is_ok(),
            "devices": one.shape.as_ref().ok().map(devices_json),
            "error": one.shape.as_ref().err().map(ToString::to_string),
        })
    };
    let block = |group: &[BlockOnModel]| {
        let models: Value = group.iter().map(on_model).collect();
        json!({ "line": line(profile, group[0].block), "models": models })
    };
    let groups = judged.chunk_by(|a, b| a.block == b.block);
    let blocks: Value = groups.map(block).collect();
    let fits = judged.iter().all(|one| one.shape.is_ok());
    json!({ "version": VERSION, "fits": fits, "blocks": blocks })
}
