//! The devices that Slurm has assigned to a job.

use super::conf::{SlurmFiles, node_name, numbered};
use super::job::SlurmJob;
use super::joint::{gpu_of_files, joint_error};
use super::numbering::{device_of, gres_devices};
use crate::error::{CommandError, Result, command_error};
use crate::failure::ExitStatus;
use crate::host::{Environment, format_count};
use crate::node::{NoSuchDevice, Node};

/// Returns the names of a job's devices, in Slurm's order. The node is one with its geometry.
pub(super) fn devices_of_job(
    environment: &Environment,
    node: &Node,
    job: &SlurmJob,
) -> Result<Vec<String>> {
    // Slurm names what it has detected itself by UUID, and everything else by number.
    let uuids: Vec<&String> = job
        .visible
        .iter()
        .filter(|word| word.starts_with("MIG-") || word.starts_with("GPU-"))
        .collect();
    if uuids.len() == job.gpus.len() {
        return uuids
            .into_iter()
            .map(|uuid| name_by_uuid(node, uuid))
            .collect();
    }
    let devices = gres_devices(environment, node)?;
    let (files, name) = (SlurmFiles::find(&environment.host), node_name()?);
    let conf = files.gres_of(&name)?;
    if conf.detects {
        return Err(command_error(
            "gres.conf uses AutoDetect, so the GPU numbers of a job cannot be mapped to devices",
        )
        .with_hint("list the GPUs in gres.conf; `mig-mps slurm gres` prints the lines"));
    }
    let shown = files.gres_conf.display().to_string();
    let gpus = numbered(conf.gpus, files.node_gres(&name)?.as_deref())?;
    let mut names = Vec::new();
    for gpu in &job.gpus {
        let gres = gpus.get(*gpu).ok_or_else(|| {
            let count = format_count(gpus.len(), "GPU");
            command_error(format_args!(
                "the job has GPU {gpu} of node {name}, but {shown} and slurm.conf list {count}"
            ))
            .with_hint("run `mig-mps slurm gres` to print the lines of this node")
        })?;
        let device = device_of(gres, &devices).ok_or_else(|| {
            if let Some(error) = gpu_of_files(node, gres).and_then(|gpu| joint_error(node, gpu)) {
                return error;
            }
            let file = gres.files.last().map_or("without File", String::as_str);
            command_error(format_args!(
                "the job has {file}, but no device of mig-mps has this file"
            ))
            .with_hint("run `mig-mps slurm gres --check` to compare gres.conf with the node")
        })?;
        if let Some(stopped) = &device.stopped {
            return Err(stopped_error(stopped));
        }
        names.push(device.name.clone());
    }
    Ok(names)
}

/// Returns the error of a job on a device that an administrator has stopped.
fn stopped_error(stopped: &NoSuchDevice) -> CommandError {
    CommandError {
        status: ExitStatus::Failed,
        ..stopped.clone().into()
    }
}

fn name_by_uuid(node: &Node, uuid: &str) -> Result<String> {
    node.device_with_uuid(uuid)
        .filter(|device| device.served.is_some() && device.is_there())
        .map(|device| device.name.clone())
        .ok_or_else(|| {
            let gpu = node.gpu_with_uuid(uuid);
            if let Some(error) = gpu.and_then(|gpu| joint_error(node, gpu)) {
                return error;
            }
            let device = node.device_with_uuid(uuid);
            if let Some((_, stopped)) = device.and_then(|device| node.find_stopped(device)) {
                return stopped_error(&stopped.error());
            }
            command_error(format_args!("the job has {uuid}, which no daemon serves"))
                .with_hint("run `mig-mps status` to see the devices that have a daemon")
        })
}
