use schemars::JsonSchema;
use serde::Serialize;

use super::{Message, VERSION, Version};
use crate::catalog::Model;
use crate::geometry::Placement;
use crate::plan::check::{BlockOnModel, OnNode, Shape, ShapeDevice};
use crate::profile::Profile;

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
    blocks: Option<Vec<Block>>,
    /// The reason why the profile does not fit; null if it does.
    error: Option<Message>,
}

/// A GPU of the imaginary node.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "gpu_on_node")]
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
#[schemars(rename = "block_elsewhere")]
struct BlockElsewhere {
    /// The line of the block in the file.
    line: usize,
    /// The models on which it fits.
    fits_on: Vec<&'static str>,
}

/// A block on all models that it can select.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "block")]
struct Block {
    /// The line of the block in the file.
    line: usize,
    /// The results.
    models: Vec<BlockOnOneModel>,
}

/// A block on a model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "block_on_model")]
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
#[schemars(rename = "planned_device")]
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

impl PlannedDevice {
    fn of(device: &ShapeDevice) -> Self {
        let daemon = device.daemon.as_ref();
        let settings = daemon.map(|daemon| &daemon.settings);
        Self {
            name: daemon.map(|daemon| daemon.name.clone()),
            profile: device.profile.clone(),
            placement: device.placement,
            serve: settings.and_then(|settings| Some(settings.serve.as_ref()?.to_string())),
            server: settings.map(|settings| settings.server.to_string()),
            active_thread_percentage: settings
                .map(|settings| settings.active_thread_percentage.value()),
        }
    }
}

fn devices(shape: &Shape) -> Vec<PlannedDevice> {
    shape.devices.iter().map(PlannedDevice::of).collect()
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
        let gpu = |(index, (model, shape)): (usize, &(&Model, Option<Shape>))| GpuOnNode {
            index,
            model: model.key.clone(),
            product: model.product().to_owned(),
            devices: shape.as_ref().map(devices),
        };
        let elsewhere = on_node
            .elsewhere
            .iter()
            .map(|(block, models)| BlockElsewhere {
                line: profile.line(*block),
                fits_on: models.iter().map(|model| model.key.as_str()).collect(),
            });
        let unmatched = on_node.unmatched.iter();
        let unmatched = unmatched.map(|block| profile.line(*block));
        Self {
            gpus: Some(on_node.gpus.iter().enumerate().map(gpu).collect()),
            blocks_by_uuid_or_pci: Some(elsewhere.collect()),
            unmatched_blocks: Some(unmatched.collect()),
            ..Self::judged(None)
        }
    }

    /// Describes each block on each model that it can select.
    pub fn on_models(profile: &Profile, judged: &[BlockOnModel], error: Option<Message>) -> Self {
        let on_model = |one: &BlockOnModel| BlockOnOneModel {
            model: one.model.key.clone(),
            fits: one.shape.is_ok(),
            devices: one.shape.as_ref().ok().map(devices),
            error: one.shape.as_ref().err().map(Message::from),
        };
        let blocks = judged.chunk_by(|a, b| a.block == b.block);
        let blocks = blocks.map(|group| Block {
            line: profile.line(group[0].block),
            models: group.iter().map(on_model).collect(),
        });
        Self {
            blocks: Some(blocks.collect()),
            ..Self::judged(error)
        }
    }
}
