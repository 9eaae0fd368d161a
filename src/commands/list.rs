//! `mig-mps list`

use clap::Args;

use super::Context;
use super::args::DeviceArgs;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::node::{Detail, Device, Gpu, NoSuchDevice, Node, observe};
use crate::render::json::ListDocument;
use crate::render::{examples, list, output_width, print, print_json};

/// Show GPUs and their MIG devices
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps list", "Show the GPUs of this node"),
    ("mig-mps list --gpu 0 --offers", "Show what else fits on GPU 0"),
]))]
pub struct ListArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Also show instance profiles, placements, and how many more fit
    #[arg(long, alias = "profiles")]
    offers: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    /// The GPUs to show, and their devices to show; everything if nothing is named.
    fn select_gpus<'a>(
        &self,
        node: &'a Node,
    ) -> Result<Vec<(&'a Gpu, Vec<&'a Device>)>, NoSuchDevice> {
        let names = node.resolve_words(&self.devices.words)?;
        let mut indices = Vec::new();
        for word in &self.devices.gpus {
            let index = node.gpu_index(word)?;
            if node.gpus.iter().all(|gpu| gpu.index != index) {
                node.names_on(index)?;
            }
            indices.push(index);
        }
        let mut shown = Vec::new();
        for gpu in &node.gpus {
            let mut devices: Vec<&Device> = node.devices_of(gpu).collect();
            let is_whole = self.devices.is_empty() || indices.contains(&gpu.index);
            devices.retain(|device| is_whole || names.contains(&device.name));
            if is_whole || !devices.is_empty() {
                shown.push((gpu, devices));
            }
        }
        Ok(shown)
    }
}

/// Shows GPUs and their MIG devices.
pub fn run(args: &ListArgs, context: &Context<'_>) -> Result<ExitStatus> {
    // The driver takes 8 ms a GPU to list what it offers.
    let detail = if args.offers || args.json {
        Detail::OFFERS
    } else {
        Detail::GEOMETRY
    };
    let node = observe(context.environment, detail)?;
    let shown = args.select_gpus(&node)?;
    if args.json {
        print_json(&ListDocument::from_node(&node, &shown))?;
    } else {
        print(&list::render(&node, &shown, args.offers, output_width()))?;
    }
    Ok(ExitStatus::Done)
}
