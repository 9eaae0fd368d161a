//! GPUs, their instances, and the device nodes that programs need.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::check::{self, Check, Examined, Finding, Judge, Subject};
use crate::catalog;
use crate::host::{Holders, caller, may_open, user_name, with_sudo};
use crate::node::{Device, Gpu, ProblemId};
use crate::nvml::{EXCLUSIVE_PROCESS, GpuInstanceReading, compute_mode_in_words};
use crate::state::Created;

/// `NVML_COMPUTEMODE_PROHIBITED`
const PROHIBITED: u32 = 2;

/// The first compute capability whose clients have address spaces of their own.
const VOLTA: (u32, u32) = (7, 0);

/// The holders of a GPU that are named.
const MOST_HOLDERS: usize = 3;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "architecture",
        subject: Subject::Gpus,
        fault: "a GPU is older than Volta",
        why: "there are no limits and at most 16 clients, and a client can write into the memory of others",
        remedy: "use such a GPU without MPS, or for the ranks of one program",
        judge: Judge::Own(architecture),
    },
    Check {
        id: "mig-support",
        subject: Subject::Gpus,
        fault: "the driver offers no MIG on a GPU that has it",
        why: "the GPU cannot be partitioned: the driver is too old for this model, or the GPU is a virtual one",
        remedy: "install a newer driver; in a virtual machine ask its host",
        judge: Judge::Own(mig_support),
    },
    Check {
        id: "mig-pending",
        subject: Subject::Gpus,
        fault: "a change of the MIG mode waits for a reset or a reboot",
        why: "until then the GPU is in the old mode",
        remedy: "`sudo mig-mps up PROFILE --reset`, or reboot",
        judge: Judge::Own(mig_pending),
    },
    Check {
        id: "gpu-held",
        subject: Subject::Gpus,
        fault: "processes keep a GPU from changing its MIG mode",
        why: "only a GPU that nobody has open changes its mode or can be reset",
        remedy: "end them, or stop monitoring services meanwhile with `sudo mig-mps up PROFILE --stop-holders`",
        judge: Judge::Own(held),
    },
    Check {
        id: "compute-mode",
        subject: Subject::Gpus,
        fault: ProblemId::ComputeMode.meaning(),
        why: ProblemId::ComputeMode.why(),
        remedy: ProblemId::ComputeMode.remedy(),
        judge: Judge::Own(compute_mode),
    },
    Check {
        id: "persistence",
        subject: Subject::Gpus,
        fault: "nothing keeps an idle GPU initialised",
        why: "the first program on it waits for its initialisation, and settings of an idle GPU are lost",
        remedy: "`sudo systemctl enable --now nvidia-persistenced`",
        judge: Judge::Own(persistence),
    },
];

fn architecture(examined: &Examined<'_>) -> Vec<Finding> {
    examined.gpus().map(architecture_of).collect()
}

fn architecture_of(gpu: &Gpu) -> Finding {
    let (index, product) = (gpu.index, &gpu.product);
    match gpu.capability {
        None => Finding::unknown(format!("GPU {index} does not tell its compute capability")),
        Some(is) if is < VOLTA => Finding::warn(format!(
            "GPU {index} ({product}) has compute capability {}.{}: MPS has no memory limits and no thread \
             percentages there, at most 16 clients, and one address space for all; serve = \"all\" does not start",
            is.0, is.1
        )),
        Some(is) => Finding::ok(format!("GPU {index}: compute capability {}.{}", is.0, is.1)),
    }
}

fn mig_support(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gpu in examined.gpus() {
        let (index, product) = (gpu.index, &gpu.product);
        findings.push(match gpu.mig {
            Some(mode) if mode.current => Finding::ok(format!("GPU {index}: MIG is on")),
            Some(_) => Finding::ok(format!("GPU {index}: MIG is off")),
            None if has_mig(product) => Finding::warn(format!(
                "GPU {index}: models of {product} have MIG, and driver {} offers none",
                examined.node.driver
            ))
            .run(format!(
                "nvidia-smi -i {index} --query-gpu=mig.mode.current --format=csv"
            )),
            None => Finding::ok(format!("GPU {index}: {product} has no MIG")),
        });
    }
    findings
}

/// True if the catalog has a model with this product name.
fn has_mig(product: &str) -> bool {
    catalog::models()
        .iter()
        .any(|model| model.product_names.iter().any(|name| name == product))
}

fn mig_pending(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gpu in examined.gpus() {
        let (index, Some(mode)) = (gpu.index, gpu.mig) else {
            continue;
        };
        if mode.current == mode.pending {
            continue;
        }
        let to = if mode.pending { "on" } else { "off" };
        let how = match gpu.resetless {
            Some(true) => "as soon as nobody has the GPU open",
            _ => "with a reset of the GPU",
        };
        findings.push(
            Finding::fail(format!("GPU {index}: MIG mode changes to {to} {how}"))
                .run(format!("sudo nvidia-smi --gpu-reset -i {index}")),
        );
    }
    findings
}

fn held(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gpu in examined.gpus() {
        let index = gpu.index;
        let waits = gpu.mig.is_some_and(|mode| mode.current != mode.pending);
        findings.push(match examined.holders(gpu) {
            None => Finding::unknown(format!("GPU {index}: its holders are not known")),
            Some(holders) if !holders.seen.is_empty() => {
                let seen = format!("GPU {index}: held open by {}", named(holders));
                if waits {
                    Finding::warn(format!("{seen}: its MIG mode cannot change until they end"))
                        .run("sudo mig-mps up PROFILE --stop-holders")
                } else {
                    Finding::ok(seen)
                }
            }
            Some(holders) if waits && holders.hidden > 0 => Finding::unknown(format!(
                "GPU {index}: {} processes are hidden, and each may hold it",
                holders.hidden
            ))
            .run(with_sudo()),
            Some(_) => Finding::ok(format!("GPU {index}: nobody has it open")),
        });
    }
    findings
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

fn compute_mode(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = check::reported_findings(examined, ProblemId::ComputeMode);
    for gpu in examined.gpus() {
        let (index, Some(mode)) = (gpu.index, gpu.compute_mode) else {
            continue;
        };
        let device = examined.node.device_with_uuid(&gpu.uuid);
        let served = device.and_then(Device::serving);
        let is_set = served.is_some_and(|served| served.record.settings.compute_mode.is_some());
        let seen = format!("GPU {index}: {}", compute_mode_in_words(mode));
        let reset = format!("sudo nvidia-smi -i {index} -c DEFAULT");
        findings.push(match mode {
            PROHIBITED => Finding::fail(seen).run(reset),
            EXCLUSIVE_PROCESS if !is_set => Finding::warn(format!(
                "{seen}, and not by a profile: a program that does not reach a daemon gets error 46"
            ))
            .run(reset),
            _ => Finding::ok(seen),
        });
    }
    findings
}

fn persistence(examined: &Examined<'_>) -> Vec<Finding> {
    let has_daemon = examined.runs("nvidia-persistenced");
    let mut findings = Vec::new();
    for gpu in examined.gpus() {
        let index = gpu.index;
        findings.push(match (gpu.is_persistent, examined.holders(gpu)) {
            _ if has_daemon => Finding::ok(format!("GPU {index}: by nvidia-persistenced")),
            (Some(true), _) => Finding::ok(format!("GPU {index}: persistence mode is on")),
            (None, _) | (_, None) => Finding::unknown(format!("GPU {index}: not known")),
            (_, Some(holders)) if !holders.seen.is_empty() => Finding::ok(format!(
                "GPU {index}: by those who have it open"
            )),
            (_, Some(holders)) if holders.hidden > 0 => Finding::unknown(format!(
                "GPU {index}: {} processes are hidden, and each may hold it",
                holders.hidden
            )),
            _ => Finding::warn(format!(
                "GPU {index}: persistence mode is off, nvidia-persistenced does not run, and nobody has it open"
            ))
            .run("sudo systemctl enable --now nvidia-persistenced"),
        });
    }
    findings
}

/// It asks no driver.
pub(super) const DEVICE_NODES: &str = "device-nodes";

pub(super) const INSTANCE_CHECKS: &[Check] = &[
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
        for one in instances.iter().filter(|one| one.compute.is_empty()) {
            let (id, placement) = (one.id, one.placement);
            let seen =
                format!("GPU {index}: GPU instance {id} at {placement} has no compute instance");
            let destroy = format!("sudo nvidia-smi mig -i {index} -gi {id} -dgi");
            findings.push(Finding::warn(seen).run(destroy));
        }
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
        let instances = gpu.all_instances.as_deref().unwrap_or_default();
        let theirs: Vec<_> = instances
            .iter()
            .filter(|one| {
                !created
                    .iter()
                    .any(|made| made.compute.is_none() && is_in(made, gpu, one))
            })
            .collect();
        if theirs.is_empty() {
            continue;
        }
        let is_mixed = instances
            .iter()
            .any(|one| created.iter().any(|made| is_in(made, gpu, one)));
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
        for created in &examined.node.created {
            if created.gpu != gpu.uuid || exists(created, gpu, instances) {
                continue;
            }
            let (index, placement) = (gpu.index, created.placement);
            let what = match created.compute {
                None => "an instance",
                Some(_) => "a compute instance",
            };
            findings.push(
                Finding::warn(format!(
                    "GPU {index}: mig-mps made {what} at {placement}, which is gone"
                ))
                .run("mig-mps list"),
            );
        }
    }
    findings
}

/// True if one of these instances of the GPU is the created one, or has the created compute instance.
fn exists(created: &Created, gpu: &Gpu, instances: &[GpuInstanceReading]) -> bool {
    let mut holding = instances.iter().filter(|one| is_in(created, gpu, one));
    match created.compute {
        None => holding.next().is_some(),
        Some(place) => holding.any(|one| one.compute.iter().any(|own| own.placement == place)),
    }
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
    let mut findings = Vec::new();
    for device in examined.devices() {
        for capability in capabilities(examined, device) {
            if let Some(finding) = capability_node(examined, &capability) {
                findings.push(finding.on(&device.name));
            }
        }
    }
    findings
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
