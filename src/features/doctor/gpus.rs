//! GPUs, their instances, and the device nodes that programs need.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::check::{Examined, Judge};
use super::machine::may_open;
use crate::catalog::{NoMig, why_no_mig};
use crate::host::{
    Holder, Holders, Supervisor, caller, user_name, with_sudo, without_needless_sudo,
};
use crate::node::{Device, Finding, Gpu};
use crate::nvml::{EXCLUSIVE_PROCESS, GpuInstanceReading, compute_mode_in_words};
use crate::state::Created;

/// `NVML_COMPUTEMODE_PROHIBITED`
const PROHIBITED: u32 = 2;

/// The first compute capability whose clients have address spaces of their own.
const VOLTA: (u32, u32) = (7, 0);

/// The holders of a GPU that are named.
const MOST_HOLDERS: usize = 3;

pub(super) const CHECKS: &[(&str, Judge)] = &[
    ("architecture", Judge::Gpu(architecture)),
    ("mig-support", Judge::Gpu(mig_support)),
    ("profile-names", Judge::Gpu(profile_names)),
    ("gpu-held", Judge::Gpu(held)),
    ("compute-mode", Judge::Node(compute_mode)),
    ("persistence", Judge::Gpu(persistence)),
    ("instance-without-device", Judge::Gpu(without_device)),
    ("foreign-instances", Judge::Gpu(foreign)),
    ("instances-missing", Judge::Gpu(missing)),
    ("device-nodes", Judge::Node(device_nodes)),
    ("capability-nodes", Judge::Device(capability_nodes)),
];

fn architecture(id: &'static str, _: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let (index, product) = (gpu.index, &gpu.product);
    vec![match gpu.capability {
        None => Finding::unknown(
            id,
            format!("GPU {index} does not tell its compute capability"),
        ),
        Some(is) if is < VOLTA => Finding::warn(
            id,
            format!(
                "GPU {index} ({product}) has compute capability {}.{}: MPS has no memory limits and no thread \
             percentages there, at most 16 clients, and one address space for all; serve = \"all\" does not start",
                is.0, is.1
            ),
        ),
        Some(is) => Finding::ok(
            id,
            format!("GPU {index}: compute capability {}.{}", is.0, is.1),
        ),
    }]
}

fn mig_support(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let (index, product, driver) = (gpu.index, &gpu.product, &examined.node.driver);
    vec![match gpu.mig {
        Some(mode) if mode.current => Finding::ok(id, format!("GPU {index}: MIG is on")),
        Some(_) => Finding::ok(id, format!("GPU {index}: MIG is off")),
        None => match why_no_mig(product, driver) {
            Some(NoMig { cause, remedy }) => Finding::warn(
                id,
                format!(
                    "GPU {index}: {product} supports MIG, but driver {driver} does not offer it: {cause}"
                ),
            )
            .with_remedy(without_needless_sudo(remedy)),
            None => Finding::ok(id, format!("GPU {index}: {product} has no MIG")),
        },
    }]
}

fn profile_names(id: &'static str, _: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let index = gpu.index;
    let names = match &gpu.offered_names {
        None => return Vec::new(),
        Some(Err(error)) => {
            let what = format!("GPU {index}: its instance profiles cannot be read: {error}");
            return vec![Finding::fail(id, what).run(format!("nvidia-smi mig -i {index} -lgip"))];
        }
        Some(Ok(names)) => names.iter().filter(|name| name.is_unreadable()),
    };
    let names: Vec<String> = names.map(ToString::to_string).collect();
    vec![if names.is_empty() {
        Finding::ok(
            id,
            format!("GPU {index}: its instance profiles can be read"),
        )
    } else {
        let names = names.join(", ");
        let what = format!("GPU {index}: mig-mps cannot read the driver's names for {names}");
        Finding::warn(id, what).run(format!("nvidia-smi mig -i {index} -lgip"))
    }]
}

fn held(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let index = gpu.index;
    let waits = gpu.mig.is_some_and(|mode| mode.current != mode.pending);
    vec![match examined.holders(gpu) {
        None => Finding::unknown(id, format!("GPU {index}: its holders are not known")),
        Some(holders) if !holders.seen.is_empty() => {
            let seen = format!("GPU {index}: held open by {}", named(holders));
            if waits {
                Finding::warn(
                    id,
                    format!("{seen}: its MIG mode cannot change until they end"),
                )
                .run(if holders.seen.iter().any(Holder::is_slurmd) {
                    "sudo systemctl stop slurmd".to_owned()
                } else {
                    format!("sudo {} --stop-holders", examined.node.up_command())
                })
            } else {
                Finding::ok(id, seen)
            }
        }
        Some(holders) if waits && holders.hidden > 0 => Finding::unknown(
            id,
            format!(
                "GPU {index}: {} processes are hidden, and each may hold it",
                holders.hidden
            ),
        )
        .run(with_sudo()),
        Some(_) => Finding::ok(id, format!("GPU {index}: nobody has it open")),
    }]
}

fn named(holders: &Holders) -> String {
    let mut names: Vec<String> = holders
        .seen
        .iter()
        .take(MOST_HOLDERS)
        .map(ToString::to_string)
        .collect();
    let more = holders.seen.len().saturating_sub(MOST_HOLDERS);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

fn compute_mode(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = examined.reported(id);
    // The unit of a daemon often sets the mode before it starts one.
    let unmanaged = examined.node.unmanaged.iter();
    let supervisors = unmanaged.filter_map(|daemon| daemon.supervisor.as_ref());
    let services: Vec<&Supervisor> = supervisors
        .filter(|supervisor| matches!(supervisor, Supervisor::Service(_)))
        .collect();
    for gpu in examined.gpus() {
        let (index, Some(mode)) = (gpu.index, gpu.compute_mode) else {
            continue;
        };
        let device = examined.node.device_with_uuid(&gpu.uuid);
        let served = device.and_then(Device::serving);
        let is_set = served.is_some_and(|served| served.record.settings.compute_mode.is_some());
        let seen = format!("GPU {index}: {}", compute_mode_in_words(mode));
        let reset = format!("sudo nvidia-smi -i {index} -c DEFAULT");
        let setter = services.first();
        let setter = setter.map_or_else(String::new, |name| format!("; {name} may set it at boot"));
        findings.push(match mode {
            PROHIBITED => Finding::fail(id, seen).run(reset),
            EXCLUSIVE_PROCESS if !is_set => Finding::warn(id, format!(
                "{seen}, and not by a profile: a program that does not reach a daemon gets error 46{setter}"
            ))
            .run(reset),
            _ => Finding::ok(id, seen),
        });
    }
    findings
}

fn persistence(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let index = gpu.index;
    vec![match (gpu.is_persistent, examined.holders(gpu)) {
        _ if examined.runs("nvidia-persistenced") => {
            Finding::ok(id, format!("GPU {index}: by nvidia-persistenced"))
        }
        (Some(true), _) => Finding::ok(id, format!("GPU {index}: persistence mode is on")),
        (None, _) | (_, None) => Finding::unknown(id, format!("GPU {index}: not known")),
        (_, Some(holders)) if !holders.seen.is_empty() => {
            Finding::ok(id, format!("GPU {index}: by those who have it open"))
        }
        (_, Some(holders)) if holders.hidden > 0 => Finding::unknown(
            id,
            format!(
                "GPU {index}: {} processes are hidden, and each may hold it",
                holders.hidden
            ),
        ),
        _ => Finding::warn(id, format!(
            "GPU {index}: persistence mode is off, nvidia-persistenced does not run, and nobody has it open"
        ))
        .run("sudo systemctl enable --now nvidia-persistenced"),
    }]
}

fn without_device(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    if !gpu.in_mig_mode() {
        return Vec::new();
    }
    let index = gpu.index;
    let Some(instances) = &gpu.all_instances else {
        let seen = format!("GPU {index}: the driver shows its instances to root alone");
        return vec![Finding::unknown(id, seen).run(with_sudo())];
    };
    instances
        .iter()
        .filter(|one| one.compute.is_empty())
        .map(|one| {
            let (instance, placement) = (one.id, one.placement);
            if examined.node.is_of_virtual_machine(gpu, one) {
                let seen = format!(
                    "GPU {index}: GPU instance {instance} at {placement} is a virtual machine's: mig-mps leaves it alone"
                );
                return Finding::ok(id, seen);
            }
            let seen = format!(
                "GPU {index}: GPU instance {instance} at {placement} has no compute instance"
            );
            let mig = format!("sudo nvidia-smi mig -i {index} -gi {instance}");
            Finding::warn(id, seen).with_remedy(without_needless_sudo(&format!(
                "`{mig} -cci` creates one, and so does `mig-mps up` with a profile that has the instance; if no virtual machine \
                 uses the instance, `{mig} -dgi` destroys it"
            )))
        })
        .collect()
}

/// True if mig-mps made this in the GPU instance: the instance itself, or a compute instance in it.
fn is_in(created: &Created, gpu: &Gpu, one: &GpuInstanceReading) -> bool {
    created.gpu == gpu.uuid && created.profile == one.profile && created.placement == one.placement
}

fn foreign(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let created = &examined.node.created;
    let instances = gpu.all_instances.as_deref().unwrap_or_default();
    let places: Vec<String> = instances
        .iter()
        .filter(|one| !examined.node.is_of_virtual_machine(gpu, one))
        .filter(|one| {
            !created
                .iter()
                .any(|made| made.compute.is_none() && is_in(made, gpu, one))
        })
        .map(|one| one.placement.to_string())
        .collect();
    if places.is_empty() {
        return Vec::new();
    }
    let is_mixed = instances
        .iter()
        .any(|one| created.iter().any(|made| is_in(made, gpu, one)));
    let seen = format!(
        "GPU {}: another tool made the instances at {}",
        gpu.index,
        places.join(", ")
    );
    vec![if is_mixed {
        Finding::warn(id, seen).run("mig-mps plan")
    } else {
        Finding::ok(id, seen)
    }]
}

fn missing(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    // With MIG off there is none.
    let instances = match &gpu.all_instances {
        Some(instances) => instances.as_slice(),
        None if !gpu.in_mig_mode() => &[],
        None => return Vec::new(),
    };
    examined
        .node
        .created
        .iter()
        .filter(|created| created.gpu == gpu.uuid && !exists(created, gpu, instances))
        .map(|created| {
            let (index, placement) = (gpu.index, created.placement);
            let what = match created.compute {
                None => "an instance",
                Some(_) => "a compute instance",
            };
            let seen = format!("GPU {index}: mig-mps made {what} at {placement}, which is gone");
            Finding::warn(id, seen).run(examined.node.up_command())
        })
        .collect()
}

/// True if one of these instances of the GPU is the created one, or has the created compute instance.
fn exists(created: &Created, gpu: &Gpu, instances: &[GpuInstanceReading]) -> bool {
    let mut holding = instances.iter().filter(|one| is_in(created, gpu, one));
    match created.compute {
        None => holding.next().is_some(),
        Some(place) => holding.any(|one| one.compute.iter().any(|own| own.placement == place)),
    }
}

fn device_nodes(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
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
                Finding::fail(id, format!("{} may not open {name}", user_name(caller())))
                    .run(format!("ls -l {name}")),
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                findings.push(Finding::fail(id, format!("{name} is missing")).run(make));
            }
            Err(error) => findings.push(Finding::unknown(id, format!("{name}: {error}"))),
        }
    }
    findings
}

/// Judges the capabilities of a MIG device: of its GPU instance and of its compute instance.
fn capability_nodes(id: &'static str, examined: &Examined<'_>, device: &Device) -> Vec<Finding> {
    let gpu = examined.node.gpu(&device.key.gpu);
    let Some((part, minor)) = device.part.as_ref().zip(gpu.and_then(|gpu| gpu.minor)) else {
        return Vec::new();
    };
    let instance = format!("gpu{minor}/mig/gi{}", part.gpu_instance);
    let compute = format!("{instance}/ci{}", part.compute_instance);
    [instance, compute]
        .iter()
        .filter_map(|one| capability_node(id, examined, &format!("{one}/access")))
        .collect()
}

fn capability_node(id: &'static str, examined: &Examined<'_>, capability: &str) -> Option<Finding> {
    let host = &examined.environment.host;
    let Some(node) = host.capability_node(capability) else {
        let seen = format!("/proc/driver/nvidia/capabilities/{capability} cannot be read");
        return Some(Finding::unknown(id, seen));
    };
    let name = node.display();
    let make = format!("sudo nvidia-modprobe -f /proc/driver/nvidia/capabilities/{capability}");
    // Servers and clients of any user read it.
    match fs::metadata(host.below(&node)).map(|meta| meta.mode()) {
        Ok(mode) if mode & 0o004 != 0 => None,
        Ok(mode) => Some(
            Finding::warn(
                id,
                format!(
                    "{name} has mode {:04o}: not every user may read it",
                    mode & 0o7777
                ),
            )
            .run(format!("ls -l {name}")),
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Some(Finding::fail(id, format!("{name} is missing")).run(make))
        }
        Err(error) => Some(Finding::unknown(id, format!("{name}: {error}"))),
    }
}
