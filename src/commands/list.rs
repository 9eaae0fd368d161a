//! `mig-mps list`

use clap::Args;

use super::Context;
use super::args::DeviceArgs;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::node::{Detail, Device, Gpu, NoSuchDevice, Node, observe};
use crate::render::json::ListDocument;
use crate::render::{list, print, print_json, width};

/// Show GPUs and their MIG devices
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Also show what each GPU offers: profiles, placements, how many more fit
    #[arg(long)]
    profiles: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    /// The GPUs to show, and their devices to show; everything if nothing is named.
    fn shown<'a>(&self, node: &'a Node) -> Result<Vec<(&'a Gpu, Vec<Device>)>, NoSuchDevice> {
        let names = node.resolve(&self.devices.words)?;
        for &index in &self.devices.gpus {
            if node.gpus.iter().all(|gpu| gpu.index != index) {
                node.names_on(index)?;
            }
        }
        let gpus = node.gpus.iter().map(|gpu| {
            let mut devices = gpu.devices();
            let is_meant = self.devices.is_empty() || self.devices.gpus.contains(&gpu.index);
            devices.retain(|device| is_meant || names.contains(&node.name_of(device)));
            (gpu, is_meant, devices)
        });
        let shown = gpus.filter(|(_, is_meant, devices)| *is_meant || !devices.is_empty());
        Ok(shown.map(|(gpu, _, devices)| (gpu, devices)).collect())
    }
}

/// Shows GPUs and their MIG devices.
pub fn run(args: &ListArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let node = observe(context.environment, Detail::Offers)?;
    let shown = args.shown(&node)?;
    if args.json {
        print_json(&ListDocument::of(&node, &shown))?;
    } else {
        print(&list::text(&node, &shown, args.profiles, width()))?;
    }
    Ok(ExitStatus::Done)
}
