//! The result of `check`, as text and as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use console::style;
use schemars::JsonSchema;
use serde::Serialize;

use super::{BlockOnModel, GpusToCheck};
use crate::catalog::{self, Incomplete, Model};
use crate::commands::args::ProfileSource;
use crate::commands::built_in::find_built_in;
use crate::geometry::Placement;
use crate::host::format_gpus;
use crate::plan::virtual_node::{JudgedGpu, OnNode, Shape};
use crate::plan::{DevicePlan, Refusal};
use crate::profile::Profile;
use crate::render::format::{
    display_or, draw_map, format_count, format_gib, group_by, indent_lines, shorten_list,
    wrap_behind, wrap_lines,
};
use crate::render::json::{Message, VERSION, Version};
use crate::render::table::{Column, FittedTable, Table, hidden_remark};
use crate::settings::Settings;

/// Formats the result of a profile on a node; GPUs with the same result are shown together.
pub fn render_node(profile: &Profile, on_node: &OnNode, width: usize) -> String {
    let mut out = String::new();
    let groups = group_by(&on_node.gpus, |a, b| is_same_result(a, b));
    let mut devices = fit_devices(&groups, width.saturating_sub(2));
    for group in &groups {
        let indices: Vec<u32> = group.iter().map(|gpu| gpu.index).collect();
        let key = group[0].model.map(|model| format!("{}  ", model.key));
        let (key, product) = (key.unwrap_or_default(), &group[0].product);
        let heading = format!("{}  {key}{product}", format_gpus(&indices));
        let _ = writeln!(out, "{}", style(heading).bold());
        let Some(shape) = &group[0].shape else {
            let whether = match on_node.elsewhere.as_slice() {
                [] => "no block selects it: it is not touched",
                _ => "not touched, unless a block selects it by UUID or PCI address",
            };
            let _ = writeln!(out, "  {whether}");
            continue;
        };
        if shape.is_unknown {
            let why = "not checked: the driver does not list its profiles, which it may do for root or while MIG is \
             on, and the catalog lacks them";
            out.push_str(&wrap_behind("  ", why, width));
        } else if shape.is_mig {
            let _ = writeln!(out, "  {}", draw_map(&shape.map));
        } else if shape.devices.is_empty() {
            let _ = writeln!(out, "  the whole GPU, without a daemon");
        }
        let shares = shape.devices.iter().filter_map(describe_share);
        let mut table = devices.take_rows(shape.devices.len());
        for share in group_by(shares, PartialEq::eq) {
            let _ = writeln!(table, "{}", wrap_lines(&share[0], width.saturating_sub(2)));
        }
        out.push_str(&indent_lines(&table));
    }
    out.push_str(&hidden_remark(&[&devices], width, "--json"));
    for (block, models) in &on_node.elsewhere {
        let line = format!(
            "{}: only the node can tell which GPU this is; it fits on {}",
            profile.block_heading(*block),
            model_keys(models).join(", ")
        );
        let _ = writeln!(out, "{}", wrap_lines(&line, width));
    }
    // The blocks of a built-in profile are for different models.
    if find_built_in(profile).is_none() {
        for &block in &on_node.unmatched {
            let line = describe_unmatched(profile, block, on_node.is_real);
            let _ = writeln!(out, "{}", wrap_lines(&line, width));
        }
    }
    if let Some(summary) = summarize_node(on_node) {
        let _ = writeln!(out, "{summary}");
    }
    out
}

/// Returns the numbers of devices and GPUs of a profile that fits; `None` if no GPU could be judged.
fn summarize_node(on_node: &OnNode) -> Option<String> {
    let shapes: Vec<&Shape> = on_node
        .gpus
        .iter()
        .filter_map(|gpu| gpu.shape.as_ref())
        .filter(|shape| !shape.is_unknown)
        .collect();
    if shapes.is_empty() {
        return None;
    }
    // A joint device is on several GPUs.
    let shown = on_node.gpus.iter().filter(|gpu| {
        let shape = gpu.shape.as_ref();
        shape.is_some_and(|shape| !shape.is_unknown)
    });
    let own = shown.filter_map(|gpu| Some(gpu.own_shape()?.devices.len()));
    let devices = format_count(own.sum(), "device");
    let gpus = format_count(shapes.len(), "GPU");
    let it_fits = if on_node.is_real {
        "It fits this node"
    } else {
        "It fits"
    };
    Some(format!("{it_fits}: {devices} on {gpus}."))
}

/// Names a block that selects no GPU of a node. A product that no model has either is probably a typing error.
fn describe_unmatched(profile: &Profile, block: usize, is_real: bool) -> String {
    let (heading, select) = (profile.block_heading(block), &profile.blocks[block].select);
    let none = if is_real {
        "selects no GPU of this node"
    } else {
        "selects none of these GPUs"
    };
    if catalog::has_product(|product| select.may_select(product)) {
        format!("{heading}: {none}")
    } else {
        format!("{heading}: {none}, and no model that mig-mps knows")
    }
}

fn model_keys(models: &[&'static Model]) -> Vec<&'static str> {
    models.iter().map(|model| model.key.as_str()).collect()
}

/// True if both have the same result, apart from the names of devices.
fn is_same_result(a: &JudgedGpu, b: &JudgedGpu) -> bool {
    let model_of = |gpu: &JudgedGpu| gpu.model.map(|model| model.key.as_str());
    let is_same_card = a.product == b.product && model_of(a) == model_of(b);
    is_same_card && a.shape.as_ref().map(without_names) == b.shape.as_ref().map(without_names)
}

fn without_names(shape: &Shape) -> Shape {
    let mut shape = shape.clone();
    for device in &mut shape.devices {
        *device = device.without_origin();
    }
    shape
}

/// The ways to list the names of alike devices, the longest first.
const NAME_LISTS: [fn(&[&str]) -> String; 3] = [
    |names| names.join(", "),
    shorten_list,
    |names| match names {
        [first, .., last] if names.len() > 2 => format!("{first} … {last}"),
        names => names.join(", "),
    },
];

/// Fits a table of the devices of all groups into this width: it has the same columns for every group. Names are shortened
/// before columns are hidden.
fn fit_devices(groups: &[Vec<&JudgedGpu>], width: usize) -> FittedTable {
    let [all, some, shortest] =
        NAME_LISTS.map(|list_names| device_table(groups, list_names).fit(width));
    [all, some]
        .into_iter()
        .find(|table| table.is_whole)
        .unwrap_or(shortest)
}

fn device_table(groups: &[Vec<&JudgedGpu>], list_names: fn(&[&str]) -> String) -> Table {
    let mut table = Table::new(vec![
        Column::left_aligned("PROFILE", 0),
        Column::left_aligned("AT", 7),
        Column::right_aligned("SMS", 5),
        Column::right_aligned("GIB", 4),
        Column::left_aligned("SERVE", 1),
        Column::left_aligned("SERVER", 8),
        Column::right_aligned("THREADS", 3),
        Column::right_aligned("LIMIT", 2),
        Column::right_aligned("CLIENTS", 6),
        Column::left_aligned("NAMES", 0),
    ]);
    for group in groups {
        let shapes: Vec<&Shape> = group.iter().filter_map(|gpu| gpu.shape.as_ref()).collect();
        let count = shapes.first().map_or(0, |shape| shape.devices.len());
        for nth in 0..count {
            let alike = shapes.iter().filter_map(|shape| shape.devices.get(nth));
            table.add_row(device_cells(&alike.collect::<Vec<_>>(), list_names));
        }
    }
    table
}

/// Returns the cells of devices that differ only in their names.
fn device_cells(alike: &[&DevicePlan], list_names: fn(&[&str]) -> String) -> Vec<String> {
    let device = alike[0];
    let mut names: Vec<&str> = alike
        .iter()
        .filter(|device| device.settings.is_some())
        .map(|device| device.name.as_str())
        .collect();
    // A joint device is there for each of its GPUs.
    names.dedup();
    let settings = device.settings.as_ref();
    let threads = settings.map(|settings| settings.active_thread_percentage);
    let limit = settings.and_then(|settings| settings.pinned_memory_limit);
    vec![
        device.title().to_owned(),
        display_or(device.place.placement().map(Placement::format_range), "-"),
        display_or(device.multiprocessors, "?"),
        display_or(device.memory_mib.map(|mib| format_gib(mib << 20)), "?"),
        display_or(settings.and_then(|settings| settings.serve.as_ref()), "-"),
        display_or(settings.map(|settings| settings.server), "-"),
        display_or(threads.map(|threads| format!("{threads}%")), "-"),
        display_or(limit, "-"),
        display_or(client_limit(device), "-"),
        if names.is_empty() {
            "no daemon".to_owned()
        } else {
            list_names(&names)
        },
    ]
}

/// Returns the most clients that a device takes, or `max-clients` if that is less; `None` without that setting.
fn client_limit(device: &DevicePlan) -> Option<u32> {
    let meant = device.settings.as_ref()?.max_clients?;
    Some(device.client_limit.map_or(meant, |limit| limit.min(meant)))
}

/// Describes what each client gets of a device with a share.
fn describe_share(device: &DevicePlan) -> Option<String> {
    let settings = device.settings.as_ref()?;
    let profile = device.title();
    let (clients, words) = (settings.share?.clients, settings.share_in_words()?);
    Some(format!("{profile}, share = {clients}: {words}"))
}

/// Formats the result of each block on each model that it can select.
pub fn render_models(profile: &Profile, judged: &[BlockOnModel], width: usize) -> String {
    let mut out = String::new();
    for block in 0..profile.blocks.len() {
        let _ = writeln!(out, "{}", style(profile.block_heading(block)).bold());
        let group: Vec<&BlockOnModel> = judged.iter().filter(|one| one.block == block).collect();
        if group.is_empty() {
            let none = if profile.models.is_empty() {
                "no model of the catalog reaches this block: the catalog has only GPUs with MIG"
            } else {
                "none of the models that the profile is for reaches this block"
            };
            out.push_str(&wrap_behind("  ", none, width));
            continue;
        }
        let is_whole = group
            .iter()
            .all(|one| one.shape.as_ref().is_ok_and(|shape| !shape.is_mig));
        if is_whole {
            let is_joint = group
                .iter()
                .any(|one| one.shape.as_ref().is_ok_and(Shape::is_joint));
            let becomes = if is_joint {
                "its GPUs as one joint device"
            } else {
                "the whole GPU"
            };
            let _ = writeln!(out, "  {becomes}, on any model");
            continue;
        }
        let widest = group
            .iter()
            .map(|one| one.model.key.len())
            .max()
            .unwrap_or(0);
        for one in group {
            let becomes = match &one.shape {
                Ok(shape) => draw_map(&shape.map),
                Err(refusal) => style(short_reason(refusal)).red().to_string(),
            };
            let head = format!("  {:widest$}  ", one.model.key);
            out.push_str(&wrap_behind(&head, &becomes, width));
        }
        for model in unjudged_models(profile, block) {
            let (key, lacks) = (&model.key, model.missing.join(", "));
            let head = format!("  {key:widest$}  ");
            let why = format!("not checked: no published data on {lacks}");
            out.push_str(&wrap_behind(&head, &why, width));
        }
    }
    let models: BTreeSet<&str> = judged.iter().map(|one| one.model.key.as_str()).collect();
    if judged.iter().all(|one| one.shape.is_ok()) && !models.is_empty() {
        let models = format_count(models.len(), "model");
        let _ = writeln!(out, "It fits {models} of the catalog.");
    }
    out
}

/// Returns the models that a block names and that the catalog cannot judge. A block that selects all GPUs names none.
fn unjudged_models(profile: &Profile, block: usize) -> impl Iterator<Item = &'static Incomplete> {
    let select = &profile.blocks[block].select;
    catalog::incomplete().iter().filter(move |model| {
        select.product.is_some()
            && model
                .product_names
                .iter()
                .any(|name| select.may_select(name))
    })
}

fn short_reason(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Infeasible(because) => format!("does not fit: {}", because.why),
        Refusal::Profile(error) => error.first_message(),
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
    /// The profile, as the command line names it.
    profile: String,
    /// The GPUs that it was judged on.
    judged_on: JudgedOn,
    /// True if the profile fits.
    fits: bool,
    /// The GPUs of the node; null if it was judged on models.
    gpus: Option<Vec<GpuOnNode>>,
    /// On an imaginary node the blocks that select by UUID or PCI address, which only a real one can tell; null if it was
    /// judged on models.
    blocks_by_uuid_or_pci: Option<Vec<BlockElsewhere>>,
    /// The lines of the blocks that select none of these GPUs or models; null if there is an error.
    unmatched_blocks: Option<Vec<usize>>,
    /// Each block on each model that it can select; null if it was judged on a node.
    blocks: Option<Vec<BlockDocument>>,
    /// Remarks: a layout that leaves a part of a GPU unused, a limit that limits nothing.
    remarks: Vec<String>,
    /// The reason why the profile does not fit; null if it does.
    error: Option<Message>,
}

/// The GPUs that a profile was judged on.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum JudgedOn {
    /// Those of this machine.
    ThisNode,
    /// Those that `--gpu` names.
    Gpus,
    /// Every model of the catalog that it is for.
    Models,
}

/// A GPU of the node.
#[derive(Debug, Serialize, JsonSchema)]
struct GpuOnNode {
    /// NVML's index, in PCI order.
    index: u32,
    /// The model; null if the catalog lacks it.
    model: Option<String>,
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
    /// The profile name, such as `3g.40gb` or `1c.3g.40gb`; null for whole GPUs.
    profile: Option<String>,
    /// The indices of the GPUs of a joint device, which only the first of them lists; empty for another device.
    joint_gpus: Vec<u32>,
    /// The placement of its GPU instance; null for whole GPUs.
    placement: Option<Placement>,
    /// Streaming multiprocessors, of each GPU; null if unknown.
    multiprocessors: Option<u32>,
    /// Device memory, of each GPU; null if unknown.
    memory_total_bytes: Option<u64>,
    /// The setting `serve`: the users that its daemon serves; null without a daemon.
    serve: Option<String>,
    /// The setting `server`; null without a daemon.
    server: Option<String>,
    /// The setting `active-thread-percentage`; null without a daemon.
    active_thread_percentage: Option<f64>,
    /// The setting `pinned-memory-limit`; null without a daemon, and for no limit.
    pinned_memory_limit_bytes: Option<u64>,
    /// The setting `max-clients`; null if it is not set.
    max_clients: Option<u32>,
    /// The most clients that it takes; null if that is not known.
    client_limit: Option<u32>,
    /// The setting `share`; null without a share.
    share: Option<u32>,
    /// The part of each client by `share`, in words; null without a share.
    each_client: Option<String>,
}

fn device_documents(shape: &Shape) -> Vec<PlannedDevice> {
    let devices = shape.devices.iter().map(|device| {
        let settings = device.settings.as_ref();
        PlannedDevice {
            name: settings.map(|_| device.name.clone()),
            profile: device.profile.clone(),
            joint_gpus: device.joint.clone(),
            placement: device.place.placement(),
            multiprocessors: device.multiprocessors,
            memory_total_bytes: device.memory_mib.map(|mib| mib << 20),
            serve: settings.and_then(|settings| Some(settings.serve.as_ref()?.to_string())),
            server: settings.map(|settings| settings.server.to_string()),
            active_thread_percentage: settings
                .map(|settings| settings.active_thread_percentage.as_f64()),
            pinned_memory_limit_bytes: settings
                .and_then(|settings| Some(settings.pinned_memory_limit?.bytes())),
            max_clients: settings.and_then(|settings| settings.max_clients),
            client_limit: device.client_limit,
            share: settings.and_then(|settings| Some(settings.share?.clients)),
            each_client: settings.and_then(Settings::share_in_words),
        }
    });
    devices.collect()
}

impl CheckDocument {
    /// Describes a profile that does not fit, or fits as described by the other functions.
    pub(super) fn new(profile: &ProfileSource, gpus: &GpusToCheck, error: Option<Message>) -> Self {
        Self {
            version: VERSION,
            profile: profile.to_string(),
            judged_on: match gpus {
                GpusToCheck::OfNode(node) if node.is_real => JudgedOn::ThisNode,
                GpusToCheck::OfNode(_) => JudgedOn::Gpus,
                GpusToCheck::OfCatalog => JudgedOn::Models,
            },
            fits: error.is_none(),
            gpus: None,
            blocks_by_uuid_or_pci: None,
            unmatched_blocks: None,
            blocks: None,
            remarks: Vec::new(),
            error,
        }
    }

    /// Adds what becomes of the GPUs of a node.
    pub fn with_node(self, profile: &Profile, on_node: &OnNode) -> Self {
        let gpus = on_node.gpus.iter().map(|gpu| GpuOnNode {
            index: gpu.index,
            model: gpu.model.map(|model| model.key.clone()),
            product: gpu.product.clone(),
            devices: gpu.own_shape().as_ref().map(device_documents),
        });
        let elsewhere = on_node
            .elsewhere
            .iter()
            .map(|(block, models)| BlockElsewhere {
                line: profile.line_of_block(*block),
                fits_on: model_keys(models),
            });
        let unmatched = on_node
            .unmatched
            .iter()
            .map(|block| profile.line_of_block(*block));
        Self {
            gpus: Some(gpus.collect()),
            blocks_by_uuid_or_pci: Some(elsewhere.collect()),
            unmatched_blocks: Some(unmatched.collect()),
            remarks: on_node.remarks.clone(),
            ..self
        }
    }

    /// Adds each block on each model that it can select.
    pub fn with_models(
        self,
        profile: &Profile,
        judged: &[BlockOnModel],
        remarks: &[String],
    ) -> Self {
        let blocks = judged.chunk_by(|a, b| a.block == b.block).map(|group| {
            let models = group.iter().map(|one| BlockOnOneModel {
                model: one.model.key.clone(),
                fits: one.shape.is_ok(),
                devices: one.shape.as_ref().ok().map(device_documents),
                error: one.shape.as_ref().err().map(Message::from),
            });
            BlockDocument {
                line: profile.line_of_block(group[0].block),
                models: models.collect(),
            }
        });
        let unmatched = (0..profile.blocks.len())
            .filter(|block| judged.iter().all(|one| one.block != *block))
            .map(|block| profile.line_of_block(block));
        Self {
            unmatched_blocks: Some(unmatched.collect()),
            blocks: Some(blocks.collect()),
            remarks: remarks.to_vec(),
            ..self
        }
    }
}
