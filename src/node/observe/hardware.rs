//! Reads GPUs, instances and processes through NVML.

use std::collections::BTreeMap;

use super::observer::Detail;
use crate::node::{Gpu, Node, Unseen};
use crate::nvml::{Code, GpuHandle, Nvml, NvmlError, Processes, Session, Watched};

/// Attempts to read a GPU while another command destroys its devices: each that disappears costs one, and a GPU has up to
/// 14 instances, GPU instances and compute instances together.
const MAX_READ_ATTEMPTS: u32 = 16;

/// The processes that compute on each device, by its UUID. Devices whose lists are hidden are left out.
pub(super) type ProcessLists = BTreeMap<String, Processes>;

/// Reads every GPU, and the processes on its devices.
pub(super) fn read_hardware(
    nvml: Nvml,
    detail: Detail,
    node: &mut Node,
) -> Result<ProcessLists, NvmlError> {
    let (driver, count) =
        nvml.supervise(|session| Ok((session.driver_version()?, session.gpu_count()?)))?;
    node.driver = driver;
    if detail.facts {
        node.cuda_version = nvml.supervise(Session::cuda_version).ok();
    }
    let mut processes = ProcessLists::new();
    for (read, index) in read_gpus(nvml, detail, count)?.into_iter().zip(0..) {
        match read {
            Ok(read) => {
                node.gpus.push(read.gpu);
                processes.extend(read.processes);
                node.unseen.extend(read.unseen);
            }
            // A GPU that is lost must not hide the others.
            Err(error) if error.concerns_subject() => {
                node.unseen.push(Unseen::Gpu {
                    index,
                    why: error.to_string(),
                });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(processes)
}

/// Reads the GPUs side by side, but for their offers: two H200s take 64 ms for these at a time, and 53 ms in turn.
fn read_gpus(
    nvml: Nvml,
    detail: Detail,
    count: u32,
) -> Result<Vec<Result<GpuSnapshot, NvmlError>>, NvmlError> {
    let read = move |session: &Session, index| read_with_retries(session, detail, index);
    if !detail.offers {
        return Ok(nvml.run_on_each_gpu(count, read));
    }
    for opened in nvml.run_on_each_gpu(count, |session, index| session.gpu_at(index).map(|_| ())) {
        if let Err(error @ NvmlError::Hung { .. }) = opened {
            return Err(error);
        }
    }
    let in_turn = (0..count).map(|index| nvml.supervise(move |session| read(session, index)));
    Ok(in_turn.collect())
}

/// The utilization of each GPU, by its UUID.
pub(super) type Utilizations = Vec<(String, Watched<Option<u32>>)>;

/// Starts to read the utilization of whole GPUs. It stays unknown where no thread can be had.
pub(super) fn start_utilizations(nvml: Nvml, node: &Node) -> Utilizations {
    node.gpus
        .iter()
        .filter(|gpu| !gpu.in_mig_mode())
        .filter_map(|gpu| {
            let started = nvml.start_on(&gpu.uuid, |handle| Ok(handle.query_utilization()));
            Some((gpu.uuid.clone(), started.ok()?))
        })
        .collect()
}

/// Waits for the utilization of GPUs.
pub(super) fn finish_utilizations(started: Utilizations, node: &mut Node) {
    for (uuid, reading) in started {
        match reading.wait() {
            Ok(percent) => {
                for gpu in node.gpus.iter_mut().filter(|gpu| gpu.uuid == uuid) {
                    gpu.utilization = percent;
                }
            }
            Err(error) => {
                let unseen = format!("the utilization of {uuid}: {error}");
                node.unseen.push(Unseen::Other(unseen));
            }
        }
    }
}

/// A GPU, the processes on each of its devices, and what could not be read.
struct GpuSnapshot {
    gpu: Gpu,
    processes: ProcessLists,
    unseen: Vec<Unseen>,
}

/// Reads a GPU, again if a device disappears meanwhile: another command may be destroying it.
fn read_with_retries(
    session: &Session,
    detail: Detail,
    index: u32,
) -> Result<GpuSnapshot, NvmlError> {
    for _ in 1..MAX_READ_ATTEMPTS {
        match read_once(session, detail, index) {
            Err(error) if error.may_be_gone() => {}
            read => return read,
        }
    }
    read_once(session, detail, index)
}

fn read_once(session: &Session, detail: Detail, index: u32) -> Result<GpuSnapshot, NvmlError> {
    let (handle, mut gpu) = read_gpu(session, detail, index)?;
    read_facts(&handle, detail, &mut gpu)?;
    let mut processes = ProcessLists::new();
    let mut unseen = Vec::new();
    if let Some(why) = gpu.hidden.clone() {
        unseen.push(Unseen::Instances { gpu: index, why });
    }
    let reads_processes = detail.reads_processes();
    let asked = if reads_processes {
        gpu.devices()
    } else {
        Vec::new()
    };
    for device in asked {
        let read = session
            .gpu_with_uuid(&device.uuid)
            .and_then(|device| device.query_processes());
        match read {
            Ok(read) => {
                processes.insert(device.uuid, read);
            }
            Err(error) if error.code() == Some(Code::NO_PERMISSION) => {
                unseen.push(Unseen::Other(format!(
                    "who computes on {}, which the driver shows only to root",
                    device.name
                )));
            }
            Err(error) if error.may_be_gone() => return Err(error),
            Err(error) => {
                let hidden = format!("processes of {}: {error}", device.uuid);
                unseen.push(Unseen::Other(hidden));
            }
        }
    }
    if reads_processes && !gpu.in_mig_mode() {
        gpu.compute_mode = handle.compute_mode().ok();
    }
    Ok(GpuSnapshot {
        gpu,
        processes,
        unseen,
    })
}

/// Reads the facts about a GPU that not everybody asks for.
fn read_facts(handle: &GpuHandle, detail: Detail, gpu: &mut Gpu) -> Result<(), NvmlError> {
    let is_pending = gpu.mig.is_some_and(|mode| mode.current != mode.pending);
    if (detail.all_instances || detail.facts || is_pending) && gpu.mig.is_some() {
        gpu.resetless = handle.changes_without_reset().ok();
    }
    gpu.health = detail.health.then(|| handle.query_health());
    if detail.facts {
        gpu.capability = handle.compute_capability().ok();
        gpu.is_persistent = handle.is_persistent().ok();
    }
    if detail.facts && gpu.mig.is_some() {
        let offers = match handle.profiles_without_placements() {
            Err(error) if error.may_be_gone() || !error.concerns_subject() => return Err(error),
            offers => offers,
        };
        if let (true, Ok(offers)) = (gpu.in_mig_mode(), &offers) {
            gpu.all_instances = match handle.gpu_instances(offers) {
                Err(error) if error.may_be_gone() => return Err(error),
                instances => instances.ok(),
            };
        }
        gpu.offered_names =
            Some(offers.map(|offers| offers.into_iter().map(|offer| offer.name).collect()));
    }
    let mut instances = gpu
        .instances
        .iter()
        .chain(gpu.all_instances.iter().flatten());
    if instances.any(|instance| instance.compute.is_empty()) {
        gpu.is_of_vgpu_host = handle.is_of_vgpu_host();
    } else if gpu.has_nothing_in_mig_mode() && handle.is_of_vgpu_host() {
        gpu.is_of_vgpu_host = true;
        return read_virtual_machine_instances(handle, gpu);
    }
    Ok(())
}

/// Reads the instances of virtual machines, which have no MIG devices on the host, and their profiles.
fn read_virtual_machine_instances(handle: &GpuHandle, gpu: &mut Gpu) -> Result<(), NvmlError> {
    if gpu.all_instances.is_some() {
        return Ok(());
    }
    let offers = handle.profiles_without_placements();
    let read = offers.and_then(|offers| Ok((handle.gpu_instances(&offers)?, offers)));
    match read {
        Ok((instances, mut offers)) => {
            offers.retain(|offer| {
                let is_used = instances.iter().any(|one| one.profile == offer.id);
                is_used && gpu.profile(offer.id).is_none()
            });
            gpu.profiles.extend(offers);
            gpu.all_instances = Some(instances);
            Ok(())
        }
        Err(error) if error.may_be_gone() || !error.concerns_subject() => Err(error),
        // Such as those that only root may see.
        Err(_) => Ok(()),
    }
}

/// Reads a GPU with all its instances and profiles, or with its MIG devices alone.
fn read_gpu(session: &Session, detail: Detail, index: u32) -> Result<(GpuHandle, Gpu), NvmlError> {
    let reading = if detail.all_instances {
        session.read_gpu(index)?
    } else {
        session.read_gpu_briefly(index)?
    };
    let in_mig_mode = reading.mig.is_some_and(|mode| mode.current);
    let handle = session.gpu_with_uuid(&reading.uuid)?;
    let offers = if detail.offers || (detail.all_instances && in_mig_mode) {
        handle.offered_profiles(&reading)?
    } else {
        Vec::new()
    };
    let mut gpu = Gpu::new(reading, offers);
    if detail.free {
        for profile in &mut gpu.profiles {
            profile.free = if in_mig_mode {
                handle.remaining_capacity(profile.id)
            } else {
                // With MIG mode off, the GPU has no instances.
                Some(profile.most)
            };
        }
    }
    if !in_mig_mode {
        return Ok((handle, gpu));
    }
    let instances = if detail.all_instances {
        handle.gpu_instances(&gpu.profiles)
    } else {
        handle.mig_devices()
    };
    match instances {
        Ok(instances) => gpu.instances = instances,
        Err(error) if error.code() == Some(Code::NO_PERMISSION) => {
            gpu.hidden = Some(error.to_string());
        }
        Err(error) => return Err(error),
    }
    if !detail.all_instances && !detail.offers {
        let ids = gpu.instances.iter().map(|instance| instance.profile);
        gpu.profiles = handle.profiles_in_use(&ids.collect())?;
    }
    Ok((handle, gpu))
}
