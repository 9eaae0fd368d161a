//! The result of `check`, as text and as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use console::style;
use schemars::JsonSchema;
use serde::Serialize;

use super::BlockOnModel;
use crate::catalog::{self, Incomplete, Model};
use crate::geometry::Placement;
use crate::host::ranges;
use crate::plan::Refusal;
use crate::plan::virtual_node::{OnNode, Shape};
use crate::profile::Profile;
use crate::render::format::{count, fitted, grouped, hanging, indented, map, shortened, shown_or};
use crate::render::json::{Message, VERSION, Version};
use crate::render::table::{Column, Table};

/// Formats the result of a profile on an imaginary node; GPUs with the same result are shown together.
pub fn node(profile: &Profile, on_node: &OnNode, width: usize) -> String {
    let mut out = String::new();
    let gpus = (0..)
        .zip(&on_node.gpus)
        .map(|(index, (model, shape))| (index, *model, shape.as_ref()));
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
        if shape.is_mig {
            let _ = writeln!(out, "  {}", map(&shape.map));
        } else if shape.devices.is_empty() {
            let _ = writeln!(out, "  the whole GPU, without a daemon");
        }
        if shape.devices.is_empty() {
            continue;
        }
        let shapes: Vec<&Shape> = group.iter().filter_map(|(.., shape)| *shape).collect();
        out.push_str(&indented(&devices(&shapes, width.saturating_sub(2))));
    }
    for (block, models) in &on_node.elsewhere {
        let line = format!(
            "{}: only the node can tell which GPU this is; it fits on {}",
            profile.heading(*block),
            keys(models).join(", ")
        );
        let _ = writeln!(out, "{}", fitted(&line, width));
    }
    for block in &on_node.unmatched {
        let line = format!("{}: selects none of these GPUs", profile.heading(*block));
        let _ = writeln!(out, "{}", fitted(&line, width));
    }
    let shapes: Vec<&Shape> = on_node
        .gpus
        .iter()
        .filter_map(|(_, shape)| shape.as_ref())
        .collect();
    if !shapes.is_empty() {
        let devices = shapes.iter().map(|shape| shape.devices.len()).sum();
        let (devices, gpus) = (count(devices, "device"), count(shapes.len(), "GPU"));
        let _ = writeln!(out, "It fits: {devices} on {gpus}.");
    }
    out
}

fn keys(models: &[&'static Model]) -> Vec<&'static str> {
    models.iter().map(|model| model.key.as_str()).collect()
}

/// True if both have the same result, apart from the names of devices.
fn alike(a: &(u32, &Model, Option<&Shape>), b: &(u32, &Model, Option<&Shape>)) -> bool {
    a.1.key == b.1.key && a.2.map(without_names) == b.2.map(without_names)
}

fn without_names(shape: &Shape) -> Shape {
    let mut shape = shape.clone();
    for device in &mut shape.devices {
        if let Some((name, _)) = &mut device.daemon {
            name.clear();
        }
    }
    shape
}

/// Formats the devices of GPUs with the same result, one at least.
fn devices(shapes: &[&Shape], width: usize) -> String {
    let mut table = Table::new(vec![
        Column::left("PROFILE", 0),
        Column::left("AT", 1),
        Column::left("SERVE", 2),
        Column::left("SERVER", 3),
        Column::right("THREADS", 3),
        Column::left("NAMES", 0),
    ]);
    for (nth, device) in shapes[0].devices.iter().enumerate() {
        let names: Vec<&str> = shapes
            .iter()
            .filter_map(|shape| shape.devices.get(nth)?.daemon.as_ref())
            .map(|(name, _)| name.as_str())
            .collect();
        let settings = device.daemon.as_ref().map(|(_, settings)| settings);
        let threads = settings.map(|settings| settings.active_thread_percentage);
        table.row(vec![
            shown_or(device.profile.as_ref(), "whole GPU"),
            shown_or(device.place.placement().map(Placement::range), "-"),
            shown_or(settings.and_then(|settings| settings.serve.as_ref()), "-"),
            shown_or(settings.map(|settings| settings.server), "-"),
            shown_or(threads.map(|threads| format!("{threads}%")), "-"),
            if names.is_empty() {
                "no daemon".to_owned()
            } else {
                shortened(&names)
            },
        ]);
    }
    table.within(width, "--json")
}

/// Formats the result of each block on each model that it can select.
pub fn fleet(profile: &Profile, judged: &[BlockOnModel], width: usize) -> String {
    let mut out = String::new();
    for group in judged.chunk_by(|a, b| a.block == b.block) {
        let _ = writeln!(out, "{}", style(profile.heading(group[0].block)).bold());
        let is_whole = group
            .iter()
            .all(|one| one.shape.as_ref().is_ok_and(|shape| !shape.is_mig));
        if is_whole {
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
                Ok(shape) => map(&shape.map),
                Err(refusal) => style(in_short(refusal)).red().to_string(),
            };
            let head = format!("  {:widest$}  ", one.model.key);
            out.push_str(&hanging(&head, &becomes, width));
        }
        for model in unjudged(profile, group[0].block) {
            let (key, lacks) = (&model.key, model.missing.join(", "));
            let head = format!("  {key:widest$}  ");
            let why = format!("not judged: nobody has published {lacks}");
            out.push_str(&hanging(&head, &why, width));
        }
    }
    let models: BTreeSet<&str> = judged.iter().map(|one| one.model.key.as_str()).collect();
    if judged.iter().all(|one| one.shape.is_ok()) && !models.is_empty() {
        let _ = writeln!(out, "It fits {}.", count(models.len(), "model"));
    }
    out
}

/// Returns the models that a block names and that the catalog cannot judge. A block that selects all GPUs names none.
fn unjudged(profile: &Profile, block: usize) -> impl Iterator<Item = &'static Incomplete> {
    let select = &profile.blocks[block].select;
    catalog::incomplete().iter().filter(move |model| {
        let mut names = model.product_names.iter();
        select.product.is_some() && names.any(|name| select.may_select(name))
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

/// The output of `mig-mps check PROFILE --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "check")]
pub struct CheckDocument {
    version: Version,
    /// True if the profile fits.
    fits: bool,
    /// With `--gpu`: the GPUs of the imaginary node; else null.
    gpus: Option<Vec<GpuOnNode>>,
    /// With `--gpu`: the blocks that select by UUID or PCI address, which only a node can tell; else null.
    blocks_by_uuid_or_pci: Option<Vec<BlockElsewhere>>,
    /// With `--gpu`: the lines of the blocks that select none of these GPUs; else null.
    unmatched_blocks: Option<Vec<usize>>,
    /// Without `--gpu`: each block on each model that it can select; else null.
    blocks: Option<Vec<BlockDocument>>,
    /// The reason why the profile does not fit; null if it does.
    error: Option<Message>,
}

/// A GPU of the imaginary node.
#[derive(Debug, Serialize, JsonSchema)]
struct GpuOnNode {
    /// NVML's index, in PCI order.
    index: usize,
    /// The model.
    model: String,
    /// The product name.
    product: String,
    /// The devices that there would be; null if no block selects the GPU.
    devices: Option<Vec<PlannedDevice>>,
}

/// A block whose GPUs only a node can tell.
#[derive(Debug, Serialize, JsonSchema)]
struct BlockElsewhere {
    /// The line of the block in the file.
    line: usize,
    /// The models on which it fits.
    fits_on: Vec<&'static str>,
}

/// A block on all models that it can select.
#[derive(Debug, Serialize, JsonSchema)]
struct BlockDocument {
    /// The line of the block in the file.
    line: usize,
    /// The results.
    models: Vec<BlockOnOneModel>,
}

/// A block on a model.
#[derive(Debug, Serialize, JsonSchema)]
struct BlockOnOneModel {
    /// The model.
    model: String,
    /// True if it fits.
    fits: bool,
    /// The devices that there would be; null if it does not fit.
    devices: Option<Vec<PlannedDevice>>,
    /// The reason why it does not fit; null if it does.
    error: Option<Message>,
}

/// A device that there would be.
#[derive(Debug, Serialize, JsonSchema)]
struct PlannedDevice {
    /// The name; null without a daemon.
    name: Option<String>,
    /// The profile name, such as `3g.40gb` or `1c.3g.40gb`; null for a whole GPU.
    profile: Option<String>,
    /// The placement of its GPU instance; null for a whole GPU.
    placement: Option<Placement>,
    /// The setting `serve`: the users that its daemon serves; null without a daemon.
    serve: Option<String>,
    /// The setting `server`; null without a daemon.
    server: Option<String>,
    /// The setting `active-thread-percentage`; null without a daemon.
    active_thread_percentage: Option<f64>,
}

fn device_documents(shape: &Shape) -> Vec<PlannedDevice> {
    let devices = shape.devices.iter().map(|device| {
        let settings = device.daemon.as_ref().map(|(_, settings)| settings);
        PlannedDevice {
            name: device.daemon.as_ref().map(|(name, _)| name.clone()),
            profile: device.profile.clone(),
            placement: device.place.placement(),
            serve: settings.and_then(|settings| Some(settings.serve.as_ref()?.to_string())),
            server: settings.map(|settings| settings.server.to_string()),
            active_thread_percentage: settings
                .map(|settings| settings.active_thread_percentage.value()),
        }
    });
    devices.collect()
}

impl CheckDocument {
    /// Describes a profile that does not fit, or fits as described by the other functions.
    pub fn judged(error: Option<Message>) -> Self {
        Self {
            version: VERSION,
            fits: error.is_none(),
            gpus: None,
            blocks_by_uuid_or_pci: None,
            unmatched_blocks: None,
            blocks: None,
            error,
        }
    }

    /// Describes a profile on an imaginary node.
    pub fn on_node(profile: &Profile, on_node: &OnNode) -> Self {
        let mut gpus = Vec::new();
        for (index, (model, shape)) in on_node.gpus.iter().enumerate() {
            gpus.push(GpuOnNode {
                index,
                model: model.key.clone(),
                product: model.product().to_owned(),
                devices: shape.as_ref().map(device_documents),
            });
        }
        let elsewhere = on_node
            .elsewhere
            .iter()
            .map(|(block, models)| BlockElsewhere {
                line: profile.line(*block),
                fits_on: keys(models),
            });
        let unmatched = on_node.unmatched.iter().map(|block| profile.line(*block));
        Self {
            gpus: Some(gpus),
            blocks_by_uuid_or_pci: Some(elsewhere.collect()),
            unmatched_blocks: Some(unmatched.collect()),
            ..Self::judged(None)
        }
    }

    /// Describes each block on each model that it can select.
    pub fn on_models(profile: &Profile, judged: &[BlockOnModel], error: Option<Message>) -> Self {
        let blocks = judged.chunk_by(|a, b| a.block == b.block).map(|group| {
            let models = group.iter().map(|one| BlockOnOneModel {
                model: one.model.key.clone(),
                fits: one.shape.is_ok(),
                devices: one.shape.as_ref().ok().map(device_documents),
                error: one.shape.as_ref().err().map(Message::from),
            });
            BlockDocument {
                line: profile.line(group[0].block),
                models: models.collect(),
            }
        });
        Self {
            blocks: Some(blocks.collect()),
            ..Self::judged(error)
        }
    }
}
