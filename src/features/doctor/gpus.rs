//! GPUs, their instances, and the device nodes that programs need.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::check::{Examined, Judge};
use super::machine::may_open;

use crate::catalog::{NoMig, explain_no_mig};
use crate::commands::give_back::find_interrupted_selftest;
use crate::host::{
    Holder, Holders, Supervisor, caller, format_ranges, strip_needless_sudo, sudo_command_line,
    user_name,
};
use crate::node::{Device, Finding, Gpu};
use crate::nvml::{EXCLUSIVE_PROCESS, compute_mode_name};

/// `NVML_COMPUTEMODE_PROHIBITED`
const COMPUTE_MODE_PROHIBITED: u32 = 2;

/// The first compute capability whose clients have address spaces of their own.
const VOLTA: (u32, u32) = (7, 0);

/// The holders of a GPU that are named.
const MAX_NAMED_HOLDERS: usize = 3;

pub(super) const CHECKS: &[(&str, Judge)] = &[
    ("architecture", Judge::Gpu(architecture)),
    ("mig-support", Judge::Gpu(mig_support)),
    ("profile-names", Judge::Gpu(profile_names)),
    ("gpu-held", Judge::Gpu(gpu_holders)),
    ("compute-mode", Judge::Node(compute_mode)),
    ("persistence", Judge::Gpu(persistence)),
    (
        "instance-without-device",
        Judge::Gpu(instances_without_device),
    ),
    ("foreign-instances", Judge::Gpu(foreign_instances)),
    ("instances-missing", Judge::Gpu(missing_instances)),
    ("device-nodes", Judge::Node(device_nodes)),
    ("capability-nodes", Judge::Device(capability_nodes)),
];

fn architecture(id: &'static str, _: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let (index, product) = (gpu.index, &gpu.product);
    vec![match gpu.capability {
        None => Finding::unknown(
            id,
            format!("GPU {index} does not report its compute capability"),
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
        None => match explain_no_mig(product, driver) {
            Some(NoMig { cause, remedy }) => Finding::warn(
                id,
                format!(
                    "GPU {index}: {product} supports MIG, but driver {driver} does not offer it: {cause}"
                ),
            )
            .with_remedy(strip_needless_sudo(remedy)),
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
            return vec![
                Finding::fail(id, what).with_command(format!("nvidia-smi mig -i {index} -lgip")),
            ];
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
        Finding::warn(id, what).with_command(format!("nvidia-smi mig -i {index} -lgip"))
    }]
}

fn gpu_holders(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let index = gpu.index;
    let waits = gpu.mig.is_some_and(|mode| mode.current != mode.pending);
    vec![match examined.holders_of(gpu) {
        None => Finding::unknown(id, format!("GPU {index}: its holders are not known")),
        Some(holders) if !holders.seen.is_empty() => {
            let seen = format!("GPU {index}: kept open by {}", name_holders(holders));
            if waits {
                Finding::warn(
                    id,
                    format!("{seen}: its MIG mode cannot change until these processes exit"),
                )
                .with_command(if holders.seen.iter().any(Holder::is_slurmd) {
                    "sudo systemctl stop slurmd".to_owned()
                } else {
                    format!("sudo {} --stop-holders", examined.node.up_command())
                })
            } else {
                Finding::ok(id, seen)
            }
        }
        Some(holders) if waits && holders.hidden > 0 => Finding::hidden(
            id,
            format!(
                "GPU {index}: {} processes are hidden, and each may keep it open",
                holders.hidden
            ),
        )
        .with_command(sudo_command_line()),
        Some(_) => Finding::ok(id, format!("GPU {index}: no process has it open")),
    }]
}

fn name_holders(holders: &Holders) -> String {
    let mut names: Vec<String> = holders
        .seen
        .iter()
        .take(MAX_NAMED_HOLDERS)
        .map(ToString::to_string)
        .collect();
    let more = holders.seen.len().saturating_sub(MAX_NAMED_HOLDERS);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

fn compute_mode(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = examined.status_findings(id);
    // The unit of a daemon often sets the mode before it starts one.
    let services: Vec<&Supervisor> = examined
        .node
        .unmanaged
        .iter()
        .filter_map(|daemon| daemon.supervisor.as_ref())
        .filter(|supervisor| matches!(supervisor, Supervisor::Service(_)))
        .collect();
    for gpu in examined.examined_gpus() {
        let (index, Some(mode)) = (gpu.index, gpu.compute_mode) else {
            continue;
        };
        // A daemon that died, or that a lost GPU ended, has not restored the mode.
        let is_set = examined.node.served().any(|served| {
            let record = &served.record;
            record.key.has_gpu(&gpu.uuid) && record.settings.compute_mode.is_some()
        });
        let seen = format!("GPU {index}: {}", compute_mode_name(mode));
        let reset = format!("sudo nvidia-smi -i {index} -c DEFAULT");
        let setter = services.first();
        let setter = setter.map_or_else(String::new, |name| format!("; {name} may set it at boot"));
        findings.push(match mode {
            COMPUTE_MODE_PROHIBITED => Finding::fail(id, seen).with_command(reset),
            EXCLUSIVE_PROCESS if !is_set => Finding::warn(id, format!(
                "{seen}, but not by a profile: a program that does not reach a daemon gets error 46{setter}"
            ))
            .with_command(reset),
            _ => Finding::ok(id, seen),
        });
    }
    findings
}

fn persistence(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let index = gpu.index;
    vec![match (gpu.is_persistent, examined.holders_of(gpu)) {
        _ if examined.runs_program("nvidia-persistenced") => {
            Finding::ok(id, format!("GPU {index}: by nvidia-persistenced"))
        }
        (Some(true), _) => Finding::ok(id, format!("GPU {index}: persistence mode is on")),
        (None, _) | (_, None) => Finding::unknown(id, format!("GPU {index}: not known")),
        (_, Some(holders)) if !holders.seen.is_empty() => {
            Finding::ok(id, format!("GPU {index}: by the processes that have it open"))
        }
        (_, Some(holders)) if holders.hidden > 0 => Finding::hidden(
            id,
            format!(
                "GPU {index}: {} processes are hidden, and each may keep it open",
                holders.hidden
            ),
        ),
        _ => Finding::warn(id, format!(
            "GPU {index}: persistence mode is off, nvidia-persistenced does not run, and no process has it open"
        ))
        .with_command("sudo systemctl enable --now nvidia-persistenced"),
    }]
}

fn instances_without_device(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    if !gpu.in_mig_mode() {
        return Vec::new();
    }
    let index = gpu.index;
    let Some(instances) = &gpu.all_instances else {
        let seen = format!("GPU {index}: the driver shows its instances only to root");
        return vec![Finding::hidden(id, seen).with_command(sudo_command_line())];
    };
    instances
        .iter()
        .filter(|one| one.compute.is_empty())
        .map(|one| {
            let (instance, placement) = (one.id, one.placement);
            if examined.node.belongs_to_virtual_machine(gpu, one) {
                let seen = format!(
                    "GPU {index}: GPU instance {instance} at {placement} belongs to a virtual machine, so mig-mps \
                     does not change it"
                );
                return Finding::ok(id, seen);
            }
            let seen = format!(
                "GPU {index}: GPU instance {instance} at {placement} has no compute instance"
            );
            let mig = format!("sudo nvidia-smi mig -i {index} -gi {instance}");
            Finding::warn(id, seen).with_remedy(strip_needless_sudo(&format!(
                "`{mig} -cci` creates one, and so does `mig-mps up` with a profile that has the instance; if no virtual machine \
                 uses the instance, `{mig} -dgi` destroys it"
            )))
        })
        .collect()
}

fn foreign_instances(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    let created = &examined.node.created;
    let instances = gpu.all_instances.as_deref().unwrap_or_default();
    let places: Vec<String> = instances
        .iter()
        .filter(|one| !examined.node.belongs_to_virtual_machine(gpu, one))
        .filter(|one| {
            !created.iter().any(|made| {
                made.compute.is_none() && made.is_in(&gpu.uuid, one.profile, one.placement)
            })
        })
        .map(|one| one.placement.to_string())
        .collect();
    if places.is_empty() {
        return Vec::new();
    }
    let is_mixed = instances.iter().any(|one| {
        created
            .iter()
            .any(|made| made.is_in(&gpu.uuid, one.profile, one.placement))
    });
    let seen = format!(
        "GPU {}: another tool created the instances at {}",
        gpu.index,
        places.join(", ")
    );
    vec![if is_mixed {
        Finding::warn(id, seen).with_command("mig-mps plan")
    } else {
        Finding::ok(id, seen)
    }]
}

fn missing_instances(id: &'static str, examined: &Examined<'_>, gpu: &Gpu) -> Vec<Finding> {
    // With MIG off there is none.
    let instances = match &gpu.all_instances {
        Some(instances) => instances.as_slice(),
        None if !gpu.in_mig_mode() => &[],
        None => return Vec::new(),
    };
    let selftest = find_interrupted_selftest(examined.environment);
    let is_under_test =
        selftest.is_some_and(|record| record.gpus.iter().any(|one| one.uuid == gpu.uuid));
    let made = examined.node.created.iter();
    let (mut whole, mut compute) = (BTreeSet::new(), BTreeSet::new());
    for gone in made.filter(|made| made.gpu == gpu.uuid && !made.is_among(instances)) {
        let kind = match gone.compute {
            None => &mut whole,
            Some(_) => &mut compute,
        };
        kind.insert(gone.placement);
    }
    // The compute instances go with their GPU instance.
    compute.retain(|placement| !whole.contains(placement));
    [("GPU instances", whole), ("compute instances", compute)]
        .into_iter()
        .filter(|(_, places)| !places.is_empty())
        .map(|(kind, places)| {
            let units: BTreeSet<u32> = places
                .iter()
                .flat_map(|place| place.start..place.end())
                .collect();
            let noun = if units.len() == 1 { "slice" } else { "slices" };
            let places = format_ranges(&Vec::from_iter(units));
            let index = gpu.index;
            let seen = format!(
                "GPU {index}: {kind} that mig-mps created no longer exist: {noun} {places}"
            );
            if is_under_test {
                let seen = format!("{seen}; a self-test was interrupted");
                return Finding::warn(id, seen).with_command("sudo mig-mps heal");
            }
            Finding::warn(id, seen).with_command(examined.node.up_command())
        })
        .collect()
}

fn device_nodes(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let host = &examined.environment.host;
    let names = examined
        .examined_gpus()
        .filter_map(|gpu| gpu.minor)
        .map(|minor| (format!("/dev/nvidia{minor}"), minor));
    let mut findings = Vec::new();
    let common = ["ctl", "-uvm"].map(|name| (format!("/dev/nvidia{name}"), 0));
    for (name, minor) in names.chain(common) {
        let make = format!("sudo nvidia-modprobe -c={minor} -u");
        match may_open(&host.under_root(Path::new(&name))) {
            Ok(true) => {}
            Ok(false) => findings.push(
                Finding::fail(id, format!("{} may not open {name}", user_name(caller())))
                    .with_command(format!("ls -l {name}")),
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                findings.push(Finding::fail(id, format!("{name} is missing")).with_command(make));
            }
            Err(error) => findings.push(Finding::unknown(id, format!("{name}: {error}"))),
        }
    }
    findings
}

/// Judges the capabilities of a MIG device: of its GPU instance and of its compute instance.
fn capability_nodes(id: &'static str, examined: &Examined<'_>, device: &Device) -> Vec<Finding> {
    let gpu = examined.node.gpu_with_uuid(&device.key.gpu);
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
    match fs::metadata(host.under_root(&node)).map(|meta| meta.mode()) {
        Ok(mode) if mode & 0o004 != 0 => None,
        Ok(mode) => Some(
            Finding::warn(
                id,
                format!(
                    "{name} has mode {:04o}: not every user may read it",
                    mode & 0o7777
                ),
            )
            .with_command(format!("ls -l {name}")),
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Some(Finding::fail(id, format!("{name} is missing")).with_command(make))
        }
        Err(error) => Some(Finding::unknown(id, format!("{name}: {error}"))),
    }
}
