//! Daemons of mig-mps beyond what `status` reports, and daemons of others.

use std::collections::BTreeMap;

use super::check::{Examined, Judge};
use crate::host::{Holder, MIN_OPEN_FILES, Pid, Process, caller};
use crate::mps::ContextMemory;
use crate::node::{Finding, NO_DRIVER, Served, Variable};

/// Each client takes several files of its server.
const FEW_FILES: u64 = 1024;

/// The prefix of the scopes and slices in which mig-mps starts daemons.
const OWN_UNITS: &str = "mig-mps";

pub(super) const CHECKS: &[(&str, Judge)] = &[
    ("memory-limit", Judge::Served(memory_limit)),
    ("limits-open", Judge::Served(open_limits)),
    ("daemon-files", Judge::Served(daemon_files)),
    ("daemon-outdated", Judge::Served(outdated_program)),
    ("daemon-cgroup", Judge::Served(daemon_cgroup)),
    ("zombies", Judge::Node(unreaped_programs)),
    ("unmanaged-daemons", Judge::Node(unmanaged_daemons)),
    ("default-leftovers", Judge::Node(default_leftovers)),
    ("other-managers", Judge::Node(other_managers)),
    ("dra-dynamic-mig", Judge::Node(dynamic_mig)),
];

fn memory_limit(id: &'static str, examined: &Examined<'_>, served: &Served) -> Vec<Finding> {
    let record = &served.record;
    let Some(limit) = record.settings.given_memory_limit() else {
        return Vec::new();
    };
    let forbidden = match examined.node.gpu_with_uuid(&record.key.gpu) {
        Some(gpu) if record.key.instance.is_none() => {
            ContextMemory::reason_against_limit(limit, &gpu.product, examined.driver_branch())
        }
        _ => None,
    };
    let finding = match (forbidden, ContextMemory::limit_warning(limit)) {
        (Some(why), _) => Finding::fail(id, why),
        (None, Some(why)) => Finding::warn(id, why),
        (None, None) => return Vec::new(),
    };
    let set = format!("mig-mps set {} pinned-memory-limit=2G", record.name);
    vec![finding.with_command(set)]
}

fn open_limits(id: &'static str, examined: &Examined<'_>, served: &Served) -> Vec<Finding> {
    let (node, settings) = (examined.node, &served.record.settings);
    if !(served.is_alive() && settings.has_client_limits() && settings.is_open_to_others()) {
        Vec::new()
    } else if node.control_program().has_open_settings {
        let seen = format!(
            "every user of the device can change its limits, because the MPS of driver {} accepts settings from all \
             users",
            node.driver
        );
        vec![Finding::warn(id, seen)]
    } else if node.driver.is_empty() {
        vec![Finding::unknown(id, NO_DRIVER)]
    } else {
        Vec::new()
    }
}

/// Returns the process of a daemon, if it runs.
fn daemon_process(examined: &Examined<'_>, served: &Served) -> Option<Process> {
    served
        .record
        .daemon?
        .find_process(&examined.environment.host)
}

fn daemon_files(id: &'static str, examined: &Examined<'_>, served: &Served) -> Vec<Finding> {
    let Some(process) = daemon_process(examined, served) else {
        return Vec::new();
    };
    let record = &served.record;
    vec![match process.open_file_limit() {
        None => Finding::hidden(id, "its limit of open files is hidden"),
        Some(many) if many >= FEW_FILES => Finding::ok(id, format!("{many} files")),
        // A restart would not change it.
        Some(few) if record.settings.nofile == Some(few) => Finding::warn(
            id,
            format!("its daemon may open {few} files, as its profile says (nofile)"),
        ),
        Some(few) => {
            let seen = format!("its daemon may open only {few} files");
            let finding = if few < MIN_OPEN_FILES {
                Finding::fail(id, seen)
            } else {
                Finding::warn(id, seen)
            };
            finding.with_command(format!("mig-mps restart {} --drain 5m", record.name))
        }
    }]
}

fn outdated_program(id: &'static str, examined: &Examined<'_>, served: &Served) -> Vec<Finding> {
    let Some(process) = daemon_process(examined, served) else {
        return Vec::new();
    };
    vec![match process.is_replaced() {
        None => Finding::hidden(id, "the file of its program is hidden"),
        Some(false) => Finding::ok(id, "its program is the installed one"),
        Some(true) => Finding::warn(
            id,
            format!(
                "the program of its daemon (pid {}) was replaced after the daemon started",
                process.pid
            ),
        )
        .with_command(format!("mig-mps restart {} --drain 5m", served.record.name)),
    }]
}

fn daemon_cgroup(id: &'static str, examined: &Examined<'_>, served: &Served) -> Vec<Finding> {
    let Some(process) = daemon_process(examined, served) else {
        return Vec::new();
    };
    match Holder::from_process(&process).unit {
        Some(unit) if !unit.starts_with(OWN_UNITS) => {
            let seen = format!("its daemon (pid {}) ends with {unit}", process.pid);
            let show = format!("systemctl status {}", process.pid);
            vec![Finding::warn(id, seen).with_command(show)]
        }
        _ => Vec::new(),
    }
}

fn unreaped_programs(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut by_parent: BTreeMap<(Pid, bool), Vec<String>> = BTreeMap::new();
    for zombie in examined
        .environment
        .host
        .mps_zombies(&examined.process_names)
    {
        let children = by_parent
            .entry((zombie.parent, zombie.is_neglected))
            .or_default();
        children.push(zombie.pid.to_string());
    }
    let mut findings = Vec::new();
    for ((parent, is_neglected), children) in by_parent {
        let (have, them) = match children.as_slice() {
            [_] => ("an MPS program has", "it"),
            _ => ("MPS programs have", "them"),
        };
        let seen = format!(
            "{have} exited, and pid {parent} does not reap {them}: pid {}",
            children.join(", ")
        );
        if !is_neglected {
            // The program that started them reaps them when it pleases.
            findings.push(Finding::ok(id, seen));
            continue;
        }
        let ps = format!(
            "ps -o pid,ppid,stat,args -p {parent},{}",
            children.join(",")
        );
        findings.push(Finding::warn(id, seen).with_command(ps));
    }
    findings
}

/// A tool that changes MIG or starts MPS by itself.
struct Manager {
    /// The name of its program, which is that of its service.
    program: &'static str,
    about: &'static str,
    /// The part of NVIDIA's GPU Operator with which it runs in a pod, unless there is a service.
    operand: Option<&'static str>,
}

const MANAGERS: [Manager; 4] = [
    Manager {
        program: "nvidia-mig-manager",
        about: "mig-parted's service, which applies a separate MIG configuration at boot",
        operand: Some("mig-manager"),
    },
    Manager {
        program: "nvidia-device-plugin",
        about: "NVIDIA's device plugin of Kubernetes, which hands out the same devices",
        operand: Some("device-plugin"),
    },
    Manager {
        program: "mps-control-daemon",
        about: "the device plugin's manager of MPS daemons",
        operand: Some("device-plugin"),
    },
    Manager {
        program: "nvidia-mps",
        about: "a service that starts an MPS daemon for all GPUs",
        operand: None,
    },
];

/// Schedulers that hand out GPUs, and may do so by devices of mig-mps.
const SCHEDULERS: [&str; 3] = ["slurmd", "kubelet", "mig-mps-device-plugin"];

fn unmanaged_daemons(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for daemon in &examined.node.unmanaged {
        let seen = format!("pid {} ({})", daemon.pid, daemon.command);
        let fault = match daemon.is_daemon() {
            false => "it has no daemon",
            true if daemon.is_orphan => "its pipe directory is gone",
            true => {
                findings.push(Finding::ok(id, seen));
                continue;
            }
        };
        let ending = daemon.ending_for(caller()).remedy("it");
        findings.push(Finding::warn(id, format!("{seen}: {fault}")).with_remedy(ending));
    }
    findings
}

fn default_leftovers(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut daemons = examined.node.unmanaged.iter();
    if daemons.any(|one| one.uses_default_pipe_dir() || one.pipe_directory == Variable::Hidden) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for path in examined.environment.host.default_directories() {
        let path = path.display();
        findings.push(
            Finding::warn(id, format!("{path} has files of a daemon that has exited"))
                .with_command(format!("sudo rm -r {path}")),
        );
    }
    findings
}

fn other_managers(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let enabled = examined.environment.host.enabled_units();
    let mut findings = Vec::new();
    for manager in MANAGERS {
        let (program, about) = (manager.program, manager.about);
        let unit = format!("{program}.service");
        let is_unit = enabled.contains(&unit);
        let how = match (examined.runs_program(program), is_unit) {
            (true, _) => "runs",
            (false, true) => "starts at boot",
            (false, false) => continue,
        };
        let remedy = match manager.operand {
            Some(operand) if !is_unit => {
                format!("kubectl label node NODE nvidia.com/gpu.deploy.{operand}=false")
            }
            _ => format!("sudo systemctl disable --now {unit}"),
        };
        findings.push(Finding::warn(id, format!("{program} {how}: {about}")).with_command(remedy));
    }
    for program in SCHEDULERS {
        if examined.runs_program(program) {
            findings.push(Finding::ok(
                id,
                format!("{program} runs: it hands out GPUs as it was configured"),
            ));
        }
    }
    findings
}

/// The process of NVIDIA's DRA driver that hands out GPUs and MIG devices. The kernel cuts names to 15 bytes.
const DRA_PLUGIN: &str = "gpu-kubelet-plu";

/// The variable and the option that hold its feature gates, such as `DynamicMIG=true,MPSSupport=true`.
const FEATURE_GATES: &str = "FEATURE_GATES";
const FEATURE_GATES_OPTION: &str = "--feature-gates";

fn dynamic_mig(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let host = &examined.environment.host;
    let plugins = host.processes_named(&examined.process_names, DRA_PLUGIN);
    let mut findings = Vec::new();
    for process in plugins {
        let pid = process.pid;
        let command = process.command_line();
        let (_, options) = command.split_once(FEATURE_GATES_OPTION).unzip();
        let environ = process.environ();
        let variable = environ.as_ref().and_then(|is| is.get(FEATURE_GATES));
        let is_on = options
            .into_iter()
            .chain(variable.map(String::as_str))
            .any(|gates| gates.contains("DynamicMIG=true"));
        findings.push(if is_on {
            Finding::fail(
                id,
                format!("pid {pid} (gpu-kubelet-plugin) runs with DynamicMIG"),
            )
        } else if environ.is_none() {
            Finding::hidden(
                id,
                format!("pid {pid} (gpu-kubelet-plugin) runs, and its feature gates are hidden"),
            )
            .with_command("sudo mig-mps doctor")
        } else {
            Finding::ok(
                id,
                format!("pid {pid} (gpu-kubelet-plugin) runs without DynamicMIG"),
            )
        });
    }
    findings
}
