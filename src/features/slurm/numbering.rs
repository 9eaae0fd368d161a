//! `mig-mps slurm gres`: the devices of this node, and the numbers by which Slurm knows them.

use clap::Args;

use super::conf::Gres;
use super::files::{SlurmFiles, checked_name, node_name};
use super::gres::{GresDevice, gres_conf, gres_string, in_order, type_name};
use super::job::SlurmJob;
use crate::commands::Context;
use crate::error::{Result, failed};
use crate::failure::ExitStatus;
use crate::host::Environment;
use crate::node::{Detail, Device, Gpu, Node, observe};
use crate::render::{note, print};
use crate::settings::Serve;

/// Returns the devices that have a daemon, as Slurm counts them. The node is one with its geometry.
pub(super) fn devices(environment: &Environment, node: &Node) -> Result<Vec<GresDevice>> {
    let own = environment.roots_run_dir();
    let mut devices = Vec::new();
    for gpu in &node.gpus {
        if let Some(why) = &gpu.hidden {
            note(&format!(
                "GPU {}: its instances cannot be seen: {why}",
                gpu.index
            ));
        }
        for device in gpu.devices() {
            let served = node.served_on(&device.key);
            if let Some(served) = served.filter(|served| served.run_dir.path() == own) {
                devices.push(GresDevice {
                    name: node.name_of(&device),
                    kind: kind(gpu, &device),
                    files: device_files(environment, gpu, &device)?,
                    only_for: match &served.record.settings.serve {
                        Some(serve @ (Serve::User(_) | Serve::Group(_))) => Some(serve.to_string()),
                        _ => None,
                    },
                });
            }
        }
    }
    Ok(devices)
}

fn kind(gpu: &Gpu, device: &Device) -> String {
    match &device.part {
        Some(part) => part.title.clone(),
        None => type_name(&gpu.product),
    }
}

fn device_files(environment: &Environment, gpu: &Gpu, device: &Device) -> Result<Vec<String>> {
    let minor = gpu.minor.ok_or_else(|| {
        failed(format_args!(
            "the driver does not tell the device file of GPU {}",
            gpu.index
        ))
        .hint("update the driver, which tells it from version 450 on")
    })?;
    let of_gpu = format!("/dev/nvidia{minor}");
    let Some(part) = &device.part else {
        return Ok(vec![of_gpu]);
    };
    let table = environment.host.capabilities();
    let table = table.map_err(|error| {
        failed(format_args!(
            "cannot read the driver's table of capability files: {error}"
        ))
        .hint("mig-mps slurm needs the driver's /proc/driver/nvidia-caps: nvidia-modprobe loads the module")
    })?;
    let files = table.files(minor, part.gpu_instance.0, part.compute_instance.0);
    let [of_instance, of_compute] = files.ok_or_else(|| {
        failed(format_args!(
            "the driver's table of capability files lacks {}",
            device.default_name
        ))
        .hint("load the driver's module anew, or reboot: the table is the kernel module's")
    })?;
    Ok(vec![of_gpu, of_instance, of_compute])
}

/// Returns the device that an entry of gres.conf means.
pub(super) fn device_of<'d>(gres: &Gres, devices: &'d [GresDevice]) -> Option<&'d GresDevice> {
    let is_of_instance = gres.files.iter().any(|file| file.contains("/nvidia-caps/"));
    let mut devices = devices.iter();
    devices.find(|device| {
        let is_named = gres.files.iter().any(|file| file == device.own_file());
        // The file of the GPU stands in the entries of its instances, too.
        is_named && (device.files.len() > 1) == is_of_instance
    })
}

/// Returns the names of a job's devices, in Slurm's order. The node is one with its geometry.
pub(super) fn devices_of_job(
    environment: &Environment,
    node: &Node,
    job: &SlurmJob,
) -> Result<Vec<String>> {
    // Slurm names what it has detected itself by UUID, and everything else by number.
    let is_uuid = |word: &&String| word.starts_with("MIG-") || word.starts_with("GPU-");
    let uuids: Vec<&String> = job.visible.iter().filter(is_uuid).collect();
    if uuids.len() == job.gpus.len() {
        return uuids.into_iter().map(|uuid| by_uuid(node, uuid)).collect();
    }
    let devices = devices(environment, node)?;
    let (files, name) = (SlurmFiles::find(), node_name()?);
    let conf = files.gres_of(&name)?;
    if conf.detects {
        return Err(failed(
            "gres.conf has AutoDetect, and Slurm gives a job a GPU by a number that only Slurm can explain",
        )
        .hint("list the GPUs in gres.conf: mig-mps slurm gres prints the lines"));
    }
    let shown = files.gres_conf.display().to_string();
    let gpus = in_order(conf.gpus, files.gres_string_of(&name)?.as_deref())?;
    let device = |&gpu: &usize| {
        let gres = gpus.get(gpu).ok_or_else(|| {
            let count = gpus.len();
            failed(format_args!(
                "the job has GPU {gpu} of node {name}, and {shown} lists {count}"
            ))
            .hint("mig-mps slurm gres prints the lines of this node")
        })?;
        let device = device_of(gres, &devices).ok_or_else(|| {
            let file = gres.files.last().map_or("without File", String::as_str);
            failed(format_args!(
                "the job has {file}, and no device of mig-mps is there"
            ))
            .hint("mig-mps slurm gres --check shows how gres.conf differs from the node")
        })?;
        Ok(device.name.clone())
    };
    job.gpus.iter().map(device).collect()
}

fn by_uuid(node: &Node, uuid: &str) -> Result<String> {
    let mut served = node.served.iter();
    let served = served.find(|served| served.record.uuid == uuid && served.is_there());
    let name = served.map(|served| served.record.name.clone());
    name.ok_or_else(|| {
        failed(format_args!("the job has {uuid}, which no daemon serves"))
            .hint("mig-mps status shows the devices that have a daemon")
    })
}

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
