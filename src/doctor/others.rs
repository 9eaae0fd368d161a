//! Daemons of others, and tools that manage the same GPUs.

use super::check::Judge;
use super::{Check, Examined, Finding, Subject};
use crate::node::Unmanaged;

/// Tools that change MIG or start MPS by themselves: name of the program, name of the unit, description.
const MANAGERS: [(&str, &str, &str); 4] = [
    (
        "nvidia-mig-manager",
        "nvidia-mig-manager.service",
        "mig-parted's service, which applies a MIG configuration of its own at boot",
    ),
    (
        "nvidia-device-plugin",
        "nvidia-device-plugin.service",
        "the device plugin of Kubernetes, which hands out the same devices",
    ),
    (
        "mps-control-daemon",
        "mps-control-daemon.service",
        "the device plugin's manager of MPS daemons",
    ),
    (
        "nvidia-mps",
        "nvidia-mps.service",
        "a service that starts an MPS daemon for all GPUs",
    ),
];

/// Schedulers that hand out GPUs, and may do so by devices of mig-mps.
const SCHEDULERS: [&str; 2] = ["slurmd", "kubelet"];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "unmanaged-daemons",
        subject: Subject::Daemons,
        fault: "an unmanaged daemon has lost its pipe directory, or an unmanaged server its daemon",
        why: "no program reaches it, and it keeps its GPU memory",
        remedy: "let its owner end it",
        judge: Judge::Records(unmanaged),
    },
    Check {
        id: "default-leftovers",
        subject: Subject::Daemons,
        fault: "the default pipe directory has the sockets, the lock or the pid file of a daemon that has ended",
        why: "CUDA programs without a pipe directory of their own try it first, and a locked one keeps new daemons away",
        remedy: "remove the directory",
        judge: Judge::Own(default_leftovers),
    },
    Check {
        id: "other-managers",
        subject: Subject::Surroundings,
        fault: "another tool manages MIG or MPS on this node",
        why: "it undoes what mig-mps does, at the next boot at the latest",
        remedy: "disable one of the two",
        judge: Judge::Own(managers),
    },
    Check {
        id: "dra-dynamic-mig",
        subject: Subject::Surroundings,
        fault: "NVIDIA's DRA driver for Kubernetes runs with DynamicMIG",
        why: "when it starts, it destroys every MIG instance that it did not make, those of mig-mps included",
        remedy: "set featureGates.DynamicMIG=false in the values of its Helm chart, or keep its pods off this node",
        judge: Judge::Own(dynamic_mig),
    },
];

fn unmanaged(examined: &Examined<'_>) -> Vec<Finding> {
    let found = examined.node.unmanaged.iter().map(|daemon| {
        let (pid, command) = (daemon.pid, &daemon.command);
        let is_alone = daemon.is_orphan || !daemon.is_daemon();
        if is_alone {
            let what = if daemon.is_daemon() {
                "its pipe directory is gone"
            } else {
                "it has no daemon"
            };
            Finding::warn(format!("pid {pid} ({command}): {what}")).run(format!("kill {pid}"))
        } else {
            Finding::ok(format!("pid {pid} ({command})"))
        }
    });
    found.collect()
}

fn default_leftovers(examined: &Examined<'_>) -> Vec<Finding> {
    let mut daemons = examined.node.unmanaged.iter();
    if daemons.any(Unmanaged::may_be_at_default) {
        return Vec::new();
    }
    let directories = examined.surroundings.default_directories.iter();
    let found = directories.map(|path| {
        let path = path.display();
        Finding::warn(format!("{path} has files of a daemon that has ended"))
            .run(format!("sudo rm -r {path}"))
    });
    found.collect()
}

fn managers(examined: &Examined<'_>) -> Vec<Finding> {
    let enabled = &examined.surroundings.enabled_units;
    let mut findings = Vec::new();
    for (program, unit, about) in MANAGERS {
        let is_enabled = enabled.iter().any(|enabled| enabled == unit);
        let how = match (examined.runs(program), is_enabled) {
            (true, _) => "runs",
            (false, true) => "starts at boot",
            (false, false) => continue,
        };
        findings.push(
            Finding::warn(format!("{program} {how}: {about}"))
                .run(format!("sudo systemctl disable --now {unit}")),
        );
    }
    let schedulers = SCHEDULERS.iter().filter(|program| examined.runs(program));
    findings.extend(schedulers.map(|program| {
        Finding::ok(format!(
            "{program} runs: it hands out GPUs as it was configured"
        ))
    }));
    findings
}

/// The process of NVIDIA's DRA driver that hands out GPUs and MIG devices. The kernel cuts names to 15 bytes.
const DRA_PLUGIN: &str = "gpu-kubelet-plu";

/// The variable and the option that hold its feature gates, such as `DynamicMIG=true,MPSSupport=true`.
const FEATURE_GATES: &str = "FEATURE_GATES";
const FEATURE_GATES_OPTION: &str = "--feature-gates";

fn dynamic_mig(examined: &Examined<'_>) -> Vec<Finding> {
    let plugins = examined.processes.iter();
    let plugins = plugins.filter(|process| process.name == DRA_PLUGIN);
    let judged = plugins.map(|process| {
        let pid = process.pid;
        let command = process.command();
        let options = command.split_once(FEATURE_GATES_OPTION);
        let environ = process.environ();
        let variable = environ.as_ref().and_then(|is| is.get(FEATURE_GATES));
        let is_on = |gates: &str| gates.contains("DynamicMIG=true");
        if options.is_some_and(|(_, gates)| is_on(gates)) || variable.is_some_and(|is| is_on(is)) {
            Finding::fail(format!(
                "pid {pid} (gpu-kubelet-plugin) runs with DynamicMIG"
            ))
        } else if environ.is_none() {
            Finding::unknown(format!(
                "pid {pid} (gpu-kubelet-plugin) runs, and its feature gates are hidden"
            ))
            .run("sudo mig-mps doctor")
        } else {
            Finding::ok(format!(
                "pid {pid} (gpu-kubelet-plugin) runs without DynamicMIG"
            ))
        }
    });
    judged.collect()
}
