//! GPU and compute instances, and the device nodes that programs need.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::check::Judge;
use super::{Check, Examined, Finding, Subject};
use crate::host::{caller, may_open, user_name, with_sudo};
use crate::node::{Device, Gpu};
use crate::nvml::GpuInstanceReading;
use crate::state::Created;

/// It asks no driver.
pub(super) const DEVICE_NODES: &str = "device-nodes";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "instance-without-device",
        subject: Subject::Gpus,
        fault: "a GPU instance has no compute instance",
        why: "it takes its slices, and no CUDA program can use them",
        remedy: "`mig-mps up PROFILE` completes or replaces it; `sudo nvidia-smi mig -dgi` destroys it",
        judge: Judge::Own(without_device),
    },
    Check {
        id: "foreign-instances",
        subject: Subject::Gpus,
        fault: "a GPU has instances of mig-mps and of another tool",
        why: "`down --destroy-mig` leaves those of others, and the other tool may destroy these",
        remedy: "let one tool partition the GPU",
        judge: Judge::Records(foreign),
    },
    Check {
        id: "instances-missing",
        subject: Subject::Gpus,
        fault: "instances that mig-mps made do not exist any more",
        why: "somebody else destroyed them, with the devices of users",
        remedy: "`mig-mps up PROFILE` makes them again",
        judge: Judge::Records(missing),
    },
    Check {
        id: DEVICE_NODES,
        subject: Subject::Gpus,
        fault: "the device nodes of a GPU are missing, or users may not open them",
        why: "a program that cannot open them sees no GPU (error 100)",
        remedy: "`sudo nvidia-modprobe -c=MINOR -u` makes them; a container must have them passed in",
        judge: Judge::Own(device_nodes),
    },
    Check {
        id: "capability-nodes",
        subject: Subject::Gpus,
        fault: "the capability nodes of a MIG device are missing, or its users may not read them",
        why: "a program that cannot open them does not see the device (error 100), nor does its server",
        remedy: "`sudo nvidia-modprobe -f /proc/driver/nvidia/capabilities/…/access` makes one; a container must have it passed in",
        judge: Judge::Own(capability_nodes),
    },
];

fn without_device(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gpu in examined.gpus().filter(|gpu| gpu.in_mig_mode()) {
        let index = gpu.index;
        let Some(instances) = &gpu.all_instances else {
            let seen = format!("GPU {index}: the driver shows its instances to root alone");
            findings.push(Finding::unknown(seen).run(with_sudo()));
            continue;
        };
        let empty = instances.iter().filter(|one| one.compute.is_empty());
        findings.extend(empty.map(|one| {
            let (id, placement) = (one.id, one.placement);
            let seen =
                format!("GPU {index}: GPU instance {id} at {placement} has no compute instance");
            Finding::warn(seen).run(format!("sudo nvidia-smi mig -i {index} -gi {id} -dgi"))
        }));
    }
    findings
}

/// True if mig-mps made this in the GPU instance: the instance itself, or a compute instance in it.
fn is_in(created: &Created, gpu: &Gpu, one: &GpuInstanceReading) -> bool {
    created.gpu == gpu.uuid && created.profile == one.profile && created.placement == one.placement
}

fn foreign(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gpu in examined.gpus() {
        let created = &examined.node.created;
        let instances = || gpu.all_instances.iter().flatten();
        let theirs: Vec<_> = instances()
            .filter(|one| {
                let mut made = created.iter().filter(|made| made.compute.is_none());
                !made.any(|made| is_in(made, gpu, one))
            })
            .collect();
        if theirs.is_empty() {
            continue;
        }
        let is_mixed = instances().any(|one| created.iter().any(|made| is_in(made, gpu, one)));
        let places: Vec<String> = theirs.iter().map(|one| one.placement.to_string()).collect();
        let seen = format!(
            "GPU {}: another tool made the instances at {}",
            gpu.index,
            places.join(", ")
        );
        findings.push(if is_mixed {
            Finding::warn(seen).run("mig-mps list")
        } else {
            Finding::ok(seen)
        });
    }
    findings
}

fn missing(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gpu in examined.gpus() {
        // With MIG off there is none.
        let instances = match &gpu.all_instances {
            Some(instances) => instances.as_slice(),
            None if !gpu.in_mig_mode() => &[],
            None => continue,
        };
        let created = examined.node.created.iter();
        let gone = created.filter(|created| {
            let mut holding = instances.iter().filter(|one| is_in(created, gpu, one));
            let exists = match created.compute {
                None => holding.next().is_some(),
                Some(place) => holding.any(|one| {
                    let mut compute = one.compute.iter();
                    compute.any(|compute| compute.placement == place)
                }),
            };
            created.gpu == gpu.uuid && !exists
        });
        findings.extend(gone.map(|created| {
            let (index, placement) = (gpu.index, created.placement);
            let what = match created.compute {
                None => "an instance",
                Some(_) => "a compute instance",
            };
            Finding::warn(format!(
                "GPU {index}: mig-mps made {what} at {placement}, which is gone"
            ))
            .run("mig-mps list")
        }));
    }
    findings
}

fn device_nodes(examined: &Examined<'_>) -> Vec<Finding> {
    let host = &examined.environment.host;
    let minors = examined.gpus().filter_map(|gpu| gpu.minor);
    let names = minors.map(|minor| (format!("/dev/nvidia{minor}"), minor));
    let mut findings = Vec::new();
    let common = ["ctl", "-uvm"].map(|name| (format!("/dev/nvidia{name}"), 0));
    for (name, minor) in names.chain(common) {
        let make = format!("sudo nvidia-modprobe -c={minor} -u");
        match may_open(&host.below(Path::new(&name))) {
            Ok(true) => {}
            Ok(false) => findings.push(
                Finding::fail(format!("{} may not open {name}", user_name(caller())))
                    .run(format!("ls -l {name}")),
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                findings.push(Finding::fail(format!("{name} is missing")).run(make));
            }
            Err(error) => findings.push(Finding::unknown(format!("{name}: {error}"))),
        }
    }
    findings
}

fn capability_nodes(examined: &Examined<'_>) -> Vec<Finding> {
    let devices = examined.devices();
    devices
        .flat_map(|(name, device)| {
            capabilities(examined, &device)
                .into_iter()
                .filter_map(|capability| capability_node(examined, &capability))
                .map(|finding| finding.on(&name))
                .collect::<Vec<Finding>>()
        })
        .collect()
}

/// The capabilities of a MIG device: of its GPU instance and of its compute instance.
fn capabilities(examined: &Examined<'_>, device: &Device) -> Vec<String> {
    let gpu = examined.node.gpu(&device.key.gpu);
    let Some((part, minor)) = device.part.as_ref().zip(gpu.and_then(|gpu| gpu.minor)) else {
        return Vec::new();
    };
    let instance = format!("gpu{minor}/mig/gi{}", part.gpu_instance);
    let compute = format!("{instance}/ci{}/access", part.compute_instance);
    vec![format!("{instance}/access"), compute]
}

fn capability_node(examined: &Examined<'_>, capability: &str) -> Option<Finding> {
    let host = &examined.environment.host;
    let Some(node) = host.capability_node(capability) else {
        let seen = format!("/proc/driver/nvidia/capabilities/{capability} cannot be read");
        return Some(Finding::unknown(seen));
    };
    let name = node.display();
    let make = format!("sudo nvidia-modprobe -f /proc/driver/nvidia/capabilities/{capability}");
    // Servers and clients of any user read it.
    match fs::metadata(host.below(&node)).map(|meta| meta.mode()) {
        Ok(mode) if mode & 0o004 != 0 => None,
        Ok(mode) => Some(
            Finding::warn(format!(
                "{name} has mode {:04o}: not every user may read it",
                mode & 0o7777
            ))
            .run(format!("ls -l {name}")),
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Some(Finding::fail(format!("{name} is missing")).run(make))
        }
        Err(error) => Some(Finding::unknown(format!("{name}: {error}"))),
    }
}
