//! `mig-mps slurm gres`

use clap::Args;

use super::super::Context;
use super::files::{SlurmFiles, checked_name, node_name};
use super::numbering::{device_of, devices};
use crate::error::{ExitStatus, Result};
use crate::integrate::{GresDevice, gres_conf, gres_string};
use crate::node::{Detail, observe};
use crate::render::{note, print};

/// Print the lines of gres.conf and slurm.conf for the devices of this node
///
/// A device's Type is its profile name, or the product of a whole GPU. Slurm numbers the GPUs of a node by the types in
/// its Gres=, so both lines belong together.
#[derive(Args, Debug)]
pub(super) struct GresArgs {
    /// Let N jobs share each device, as shards
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    shard: Option<u32>,
    /// Name one file of each device, as Slurm 22.05 needs it in a cluster with shards
    #[arg(long)]
    one_file: bool,
    /// Name of the node in Slurm [default: that of this slurmd, or of the host]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Compare with the files in use; the exit status is 3 if they differ
    #[arg(long)]
    check: bool,
}

pub(super) fn run(args: &GresArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let name = args.node.clone().map_or_else(node_name, checked_name)?;
    let environment = context.environment;
    let node = observe(environment, Detail::Geometry)?;
    let devices = devices(environment, &node)?;
    if node.unseen_daemons().is_some() {
        return Err(crate::commands::no_daemon(&node));
    }
    if args.check {
        return check(args, &name, &devices);
    }
    if devices.is_empty() {
        return Err(crate::commands::no_daemon(&node));
    }
    let lines = gres_conf(&name, &devices, args.shard, args.one_file);
    let gres = gres_string(&devices, args.shard);
    print(&format!(
        "# gres.conf\n{lines}\n# slurm.conf: append to the line of this node\n# NodeName={name} Gres={gres}\n"
    ))?;
    remark(&devices);
    Ok(ExitStatus::Done)
}

/// Warns of devices that do not take every job: the prolog of another user's job fails there.
fn remark(devices: &[GresDevice]) {
    for device in devices {
        if let Some(users) = &device.only_for {
            note(&format!(
                "{} takes only programs of {users}: Slurm gives it to any user's job, and drains the node when that job \
                 cannot use it. Give the device serve = \"one-at-a-time\" or \"all\", or leave out its lines.",
                device.name
            ));
        }
    }
}

/// Compares the files in use with the node.
fn check(args: &GresArgs, name: &str, devices: &[GresDevice]) -> Result<ExitStatus> {
    let files = SlurmFiles::find();
    let conf = files.gres_of(name)?;
    let mut differences = Vec::new();
    if conf.detects {
        note("gres.conf has AutoDetect: only the devices that it lists are compared.");
    }
    let mut listed = Vec::new();
    for gres in &conf.gpus {
        let file = gres.files.last().map_or("no file", String::as_str);
        match device_of(gres, devices) {
            None => differences.push(format!("{file}: no device of mig-mps is there")),
            Some(device) => {
                listed.push(device.name.as_str());
                let kind = gres.kind.as_deref().unwrap_or("none");
                if kind != device.kind {
                    let (name, is) = (&device.name, &device.kind);
                    differences.push(format!("{name}: its Type is {kind}, and should be {is}"));
                }
            }
        }
    }
    let is_missing = |device: &&GresDevice| !listed.contains(&device.name.as_str());
    let missing = devices.iter().filter(is_missing).filter(|_| !conf.detects);
    differences.extend(missing.map(|device| format!("{}: gres.conf lacks it", device.name)));
    if let Some(shards) = args.shard {
        let wanted = u64::from(shards) * devices.len() as u64;
        let is: u64 = conf.shards.iter().map(|shards| shards.count).sum();
        if is != wanted {
            differences.push(format!(
                "gres.conf has {is} shards, and should have {wanted}"
            ));
        }
    }
    let wanted = gres_string(devices, args.shard);
    match files.gres_string_of(name)? {
        None => differences.push(format!("slurm.conf has no line of {name} with Gres=")),
        Some(gres) if gres != wanted => {
            differences.push(format!(
                "slurm.conf has Gres={gres}, and should have Gres={wanted}"
            ));
        }
        Some(_) => {}
    }
    for difference in &differences {
        print(&format!("{difference}\n"))?;
    }
    if differences.is_empty() {
        note("gres.conf and slurm.conf are as the node is.");
        return Ok(ExitStatus::Done);
    }
    Ok(ExitStatus::Drift)
}
