//! The devices of this node, and the numbers by which Slurm knows them.

use super::files::{SlurmFiles, node_name};
use crate::error::{CommandError, Result};
use crate::host::Environment;
use crate::integrate::{Gres, GresDevice, SlurmJob, in_order, type_name};
use crate::node::{Device, Gpu, Node};
use crate::render::note;
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
        CommandError::failed(format_args!(
            "the driver does not tell the device file of GPU {}",
            gpu.index
        ))
        .with_hint("update the driver, which tells it from version 450 on")
    })?;
    let of_gpu = format!("/dev/nvidia{minor}");
    let Some(part) = &device.part else {
        return Ok(vec![of_gpu]);
    };
    let table = environment.host.capabilities();
    let table = table.map_err(|error| {
        CommandError::failed(format_args!(
            "cannot read the driver's table of capability files: {error}"
        ))
        .with_hint("mig-mps slurm needs the driver's /proc/driver/nvidia-caps: nvidia-modprobe loads the module")
    })?;
    let files = table.files(minor, part.gpu_instance.0, part.compute_instance.0);
    let [of_instance, of_compute] = files.ok_or_else(|| {
        CommandError::failed(format_args!(
            "the driver's table of capability files lacks {}",
            device.default_name
        ))
        .with_hint("load the driver's module anew, or reboot: the table is the kernel module's")
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
        return Err(CommandError::failed(
            "gres.conf has AutoDetect, and Slurm gives a job a GPU by a number that only Slurm can explain",
        )
        .with_hint("list the GPUs in gres.conf: mig-mps slurm gres prints the lines"));
    }
    let shown = files.gres_conf.display().to_string();
    let gpus = in_order(conf.gpus, files.gres_string_of(&name)?.as_deref())?;
    let device = |&gpu: &usize| {
        let gres = gpus.get(gpu).ok_or_else(|| {
            let count = gpus.len();
            CommandError::failed(format_args!(
                "the job has GPU {gpu} of node {name}, and {shown} lists {count}"
            ))
            .with_hint("mig-mps slurm gres prints the lines of this node")
        })?;
        let device = device_of(gres, &devices).ok_or_else(|| {
            let file = gres.files.last().map_or("without File", String::as_str);
            CommandError::failed(format_args!(
                "the job has {file}, and no device of mig-mps is there"
            ))
            .with_hint("mig-mps slurm gres --check shows how gres.conf differs from the node")
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
        CommandError::failed(format_args!("the job has {uuid}, which no daemon serves"))
            .with_hint("mig-mps status shows the devices that have a daemon")
    })
}
