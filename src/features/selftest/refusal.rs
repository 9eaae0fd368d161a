//! The reasons why a GPU is not tested: somebody uses it, or could.

use std::ffi::OsStr;
use std::path::Path;

use super::SelftestArgs;
use super::plan::{TestPlan, TestedGpu, compute_words};
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::host::{Environment, Holder, Uid, host_name, join_words, slurm_node_name};
use crate::node::{Detail, Gpu, Node, Unmanaged};
use crate::plan::pids_accounted_for;

/// Enough to see who uses a GPU, and what its instances are.
pub(super) const DETAIL: Detail = Detail {
    all_instances: true,
    offers: true,
    facts: true,
    ..Detail::DOCTOR
};

/// Refuses GPUs that anybody uses or serves, that were partitioned by hand, or that a batch system could hand out.
pub(super) fn check_testable(
    environment: &Environment,
    node: &Node,
    plan: &TestPlan,
    args: &SelftestArgs,
) -> Result<()> {
    let mut refused: Vec<(u32, RefusalReason)> = Vec::new();
    for tested in &plan.gpus {
        if let Some(gpu) = node.gpu_with_uuid(&tested.under_test.uuid) {
            let reason = refusal_reason(node, gpu, environment.caller)
                .or_else(|| kept_open(environment, node, tested, args.stop_holders));
            refused.extend(reason.map(|reason| (gpu.index, reason)));
        }
    }
    let Some((_, first)) = refused.first() else {
        return check_drained(environment, args);
    };
    let hint = first.hint.clone();
    let what: Vec<String> = refused
        .iter()
        .map(|(index, reason)| format!("GPU {index}: {}", reason.what))
        .collect();
    let error = CommandError::new(ExitStatus::Refused, what.join("\n  ")).with_hint(hint);
    let free: Vec<String> = plan
        .gpus
        .iter()
        .map(|gpu| gpu.under_test.index)
        .filter(|index| !refused.iter().any(|(other, _)| other == index))
        .map(|index| format!("--gpu {index}"))
        .collect();
    Err(if free.is_empty() {
        error
    } else {
        error.with_hint(format!("use {} to select the idle GPUs", free.join(" ")))
    })
}

struct RefusalReason {
    what: String,
    hint: String,
}

impl RefusalReason {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: hint.into(),
        }
    }
}

fn refusal_reason(node: &Node, gpu: &Gpu, reader: Uid) -> Option<RefusalReason> {
    let index = gpu.index;
    if let Some(mode) = gpu.mig.filter(|mode| mode.current != mode.pending) {
        let pending = if mode.pending { "on" } else { "off" };
        return Some(RefusalReason::new(
            format!("MIG mode {pending} is pending"),
            "reset the GPU or reboot first",
        ));
    }
    if let Some(reason) = unknown_instances(node, gpu) {
        return Some(reason);
    }
    let devices: Vec<_> = node
        .devices
        .iter()
        .filter(|device| device.gpu_indices().contains(&index))
        .collect();
    let served: Vec<String> = devices
        .iter()
        .filter(|device| device.served.is_some() || node.may_be_served(&device.uuid))
        .map(|device| device.name.clone())
        .collect();
    if !served.is_empty() {
        return Some(RefusalReason::new(
            format!("mig-mps serves {}", join_words(&served, "and")),
            format!("stop the devices first with `mig-mps down --gpu {index}`"),
        ));
    }
    for device in devices {
        if let Some(who) = device.describe_processes(&device.processes_outside_mps()) {
            return Some(RefusalReason::new(
                format!("{who} computes on it"),
                "wait until it has exited",
            ));
        }
        if let Some(daemon) = node
            .unmanaged
            .iter()
            .find(|daemon| daemon.serves_device(&device.name))
        {
            return Some(foreign_daemon(daemon, "serves", reader));
        }
    }
    let of_unknown_device = node
        .unmanaged
        .iter()
        .find(|daemon| daemon.devices.is_empty());
    if let Some(daemon) = of_unknown_device {
        return Some(foreign_daemon(daemon, "may serve", reader));
    }
    partitioned_by_hand(node, gpu)
}

/// The services that keep every GPU open and do not keep its MIG mode from changing.
const HARMLESS_HOLDERS: [&str; 2] = ["nvidia-fabricmanager", "nvidia-persistenced"];

/// A GPU whose MIG mode is to change, and that a process keeps open.
fn kept_open(
    environment: &Environment,
    node: &Node,
    tested: &TestedGpu,
    stops_holders: bool,
) -> Option<RefusalReason> {
    if !tested.changes_mig_mode() {
        return None;
    }
    let mut holders = environment.host.holders(tested.gpu.minor?).ok()?.seen;
    let accounted_for = pids_accounted_for(node);
    holders.retain(|holder| {
        let program = holder.command.split_whitespace().next().unwrap_or_default();
        let is_harmless = HARMLESS_HOLDERS
            .iter()
            .any(|name| Path::new(program).file_name() == Some(OsStr::new(name)));
        let is_stopped = stops_holders && holder.is_monitoring();
        !is_harmless && !is_stopped && !accounted_for.contains(&holder.pid)
    });
    let names: Vec<String> = holders.iter().map(Holder::to_string).collect();
    (!names.is_empty()).then(|| {
        let verb = if names.len() == 1 { "keeps" } else { "keep" };
        let names = join_words(&names, "and");
        RefusalReason::new(
            format!("{names} {verb} it open, so its MIG mode cannot change"),
            Holder::release_hint(&holders, stops_holders),
        )
    })
}

/// An MPS daemon that mig-mps did not start.
fn foreign_daemon(daemon: &Unmanaged, serves: &str, reader: Uid) -> RefusalReason {
    let what = format!(
        "MPS daemon {}, which mig-mps did not start, {serves} it",
        daemon.pid
    );
    RefusalReason::new(what, daemon.ending_for(reader).remedy("it"))
}

/// A GPU whose instances cannot be read, or are those of virtual machines.
fn unknown_instances(node: &Node, gpu: &Gpu) -> Option<RefusalReason> {
    if let Some(why) = &gpu.hidden {
        return Some(RefusalReason::new(
            format!("its instances cannot be read: {why}"),
            "run the command with sudo",
        ));
    }
    if let Some(machines) = node.describe_virtual_machine_instances(gpu) {
        return Some(RefusalReason::new(
            format!("{machines} may be used by virtual machines"),
            "select other GPUs with --gpu",
        ));
    }
    None
}

/// A GPU that somebody has partitioned without mig-mps, or has put into a compute mode.
fn partitioned_by_hand(node: &Node, gpu: &Gpu) -> Option<RefusalReason> {
    let foreign = gpu.instances.iter().find(|instance| {
        !node
            .created
            .iter()
            .any(|made| made.is_in(&gpu.uuid, instance.profile, instance.placement))
    });
    if let Some(instance) = foreign {
        return Some(RefusalReason::new(
            format!(
                "{} is not known to be created by mig-mps",
                gpu.instance_name(instance)
            ),
            "if you do not need the instance, destroy it first with `nvidia-smi mig -dci`, then `-dgi`",
        ));
    }
    let odd = gpu
        .instances
        .iter()
        .find(|instance| compute_words(instance).is_none());
    if let Some(instance) = odd {
        let instance = gpu.instance_name(instance);
        return Some(RefusalReason::new(
            format!("no profile can restore the compute instances of {instance}"),
            "if you do not need the instance, destroy it first with `nvidia-smi mig -dci`, then `-dgi`",
        ));
    }
    let mode = gpu
        .compute_mode
        .filter(|mode| *mode != 0 && !gpu.in_mig_mode())?;
    Some(RefusalReason::new(
        format!("its compute mode is {mode}, not DEFAULT"),
        format!("run `nvidia-smi -i {} -c DEFAULT`", gpu.index),
    ))
}

/// The programs that are a kubelet, or contain one: that of Kubernetes, k3s, RKE2 and `MicroK8s`.
const KUBELETS: [&str; 6] = [
    "kubelet",
    "k3s",
    "k3s-server",
    "k3s-agent",
    "rke2",
    "kubelite",
];

/// Refuses a node on which Slurm or a kubelet could start programs meanwhile.
fn check_drained(environment: &Environment, args: &SelftestArgs) -> Result<()> {
    if args.drained {
        return Ok(());
    }
    let host = &environment.host;
    let names = host.read_process_names().unwrap_or_default();
    let runs = |program: &&str| host.processes_named(&names, program).next().is_some();
    let refused = |what: &str, hint: String| {
        let what = format!("{what} runs and could start programs on the GPUs during the test");
        Err(CommandError::new(ExitStatus::Refused, what).with_hint(hint))
    };
    if runs(&"slurmd") {
        let node = slurm_node_name();
        let slurm = environment.find_slurm();
        let is_drained = slurm.is_ok_and(|slurm| slurm.is_drained(&node).unwrap_or(false));
        if !is_drained {
            return refused(
                "slurmd",
                format!(
                    "run `scontrol update NodeName={node} State=DRAIN Reason=selftest`, wait for its jobs, then add \
                     --drained"
                ),
            );
        }
    }
    if KUBELETS.iter().any(runs) {
        let node = host_name();
        return refused(
            "a kubelet",
            format!("run `kubectl drain {node} --ignore-daemonsets`, then add --drained"),
        );
    }
    Ok(())
}
