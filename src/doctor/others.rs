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
        judge: Judge::Own(unmanaged),
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
