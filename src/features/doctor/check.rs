//! All checks: those of this module, and the faults that `status` reports.

use std::collections::BTreeMap;

use super::{daemons, directories, driver, gpus, surroundings};
use crate::host::{Environment, Holders, Pid};
use crate::node::{Device, Fault, Finding, Gpu, Node, Served, Severity};

/// A check of the fault with that id. Without findings all is well.
#[derive(Clone, Copy)]
pub(super) enum Judge {
    Node(fn(&'static str, &Examined<'_>) -> Vec<Finding>),
    /// Judges the node, and always finds something.
    Always(fn(&'static str, &Examined<'_>) -> Finding),
    /// Judges each GPU by itself.
    Gpu(fn(&'static str, &Examined<'_>, &Gpu) -> Vec<Finding>),
    /// Judges each device that exists. The findings are on it.
    Device(fn(&'static str, &Examined<'_>, &Device) -> Vec<Finding>),
    /// Judges each device with a record. The findings are on it.
    Served(fn(&'static str, &Examined<'_>, &Served) -> Vec<Finding>),
}

impl Judge {
    fn findings(self, id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
        match self {
            Self::Node(judge) => judge(id, examined),
            Self::Always(judge) => vec![judge(id, examined)],
            Self::Gpu(judge) => examined
                .examined_gpus()
                .flat_map(|gpu| judge(id, examined, gpu))
                .collect(),
            Self::Device(judge) => examined
                .present_devices()
                .flat_map(|device| on_device(&device.name, judge(id, examined, device)))
                .collect(),
            Self::Served(judge) => examined
                .recorded_devices()
                .flat_map(|served| on_device(&served.record.name, judge(id, examined, served)))
                .collect(),
        }
    }
}

fn on_device(device: &str, findings: Vec<Finding>) -> impl Iterator<Item = Finding> {
    findings
        .into_iter()
        .map(move |finding| finding.on_device(device))
}

/// A fault that was searched for.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    pub fault: &'static Fault,
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Returns the worst verdict.
    pub fn worst_severity(&self) -> Severity {
        self.findings
            .iter()
            .map(|finding| finding.severity)
            .max()
            .unwrap_or(Severity::Ok)
    }
}

/// A node under examination.
pub struct Examined<'a> {
    pub environment: &'a Environment,
    pub node: &'a Node,
    /// The devices to examine; all if none is named.
    pub devices: &'a [String],
    /// The name of every process, cut to 15 bytes.
    pub(super) process_names: BTreeMap<Pid, String>,
    /// The processes that have each GPU open, by its minor number.
    holders: BTreeMap<u32, Holders>,
    /// The findings of `status`.
    reported: Vec<Finding>,
}

impl<'a> Examined<'a> {
    /// Reads the rest of the machine.
    pub fn new(environment: &'a Environment, node: &'a Node, devices: &'a [String]) -> Self {
        let minors: Vec<u32> = node.gpus.iter().filter_map(|gpu| gpu.minor).collect();
        let holders = environment.host.holders_of(&minors).unwrap_or_default();
        Self {
            environment,
            node,
            devices,
            process_names: environment.host.read_process_names().unwrap_or_default(),
            holders: minors.into_iter().zip(holders).collect(),
            reported: node.findings(devices),
        }
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.devices.is_empty() || self.devices.iter().any(|device| device == name)
    }

    /// Returns the devices with a record that are to be examined.
    pub(super) fn recorded_devices(&self) -> impl Iterator<Item = &'a Served> {
        self.node
            .served()
            .filter(|served| self.is_wanted(&served.record.name))
    }

    /// Returns the devices to examine that exist.
    pub(super) fn present_devices(&self) -> impl Iterator<Item = &'a Device> {
        self.node
            .existing_devices()
            .filter(|device| self.is_wanted(&device.name))
    }

    /// Returns the GPUs of the devices to examine.
    pub(super) fn examined_gpus(&self) -> impl Iterator<Item = &'a Gpu> {
        let indices: Vec<u32> = self
            .present_devices()
            .flat_map(|device| device.gpu_indices().iter().copied())
            .collect();
        self.node
            .gpus
            .iter()
            .filter(move |gpu| self.devices.is_empty() || indices.contains(&gpu.index))
    }

    /// Returns the processes that have a GPU open; `None` if that cannot be seen.
    pub(super) fn holders_of(&self, gpu: &Gpu) -> Option<&Holders> {
        self.holders.get(&gpu.minor?)
    }

    /// Returns the driver's branch, such as 580.
    pub(super) fn driver_branch(&self) -> Option<u32> {
        self.node.control_program().branch
    }

    /// True if a process with this name runs.
    pub(super) fn runs_program(&self, program: &str) -> bool {
        let host = &self.environment.host;
        host.processes_named(&self.process_names, program)
            .next()
            .is_some()
    }

    /// Returns what `status` has found of a fault.
    pub(super) fn status_findings(&self, id: &str) -> Vec<Finding> {
        self.reported
            .iter()
            .filter(|finding| finding.id == id)
            .cloned()
            .collect()
    }
}

/// Searches for every fault of a node.
pub fn diagnose_all(examined: &Examined<'_>) -> Vec<Diagnosis> {
    Fault::all()
        .iter()
        .filter(|fault| !fault.is_error())
        .map(|fault| Diagnosis {
            fault,
            findings: findings_of(examined, fault),
        })
        .collect()
}

fn findings_of(examined: &Examined<'_>, fault: &'static Fault) -> Vec<Finding> {
    let id = fault.id.as_str();
    let check = CHECKS.into_iter().flatten().find(|(own, _)| *own == id);
    let mut found = match check {
        Some((_, judge)) => judge.findings(id, examined),
        None => examined.status_findings(id),
    };
    if let Some(why) = examined.node.hidden_reason(fault) {
        found.push(Finding::new(id, Severity::Unknown, why));
    }
    found
}

const CHECKS: [&[(&str, Judge)]; 5] = [
    driver::CHECKS,
    gpus::CHECKS,
    daemons::CHECKS,
    directories::CHECKS,
    surroundings::CHECKS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_checked_or_reported_by_status() {
        let checks: Vec<&str> = CHECKS.into_iter().flatten().map(|(id, _)| *id).collect();
        for fault in Fault::all() {
            let is_checked = checks.contains(&fault.id.as_str());
            assert!(
                is_checked || fault.is_error() || fault.status.is_some(),
                "{fault:?}"
            );
        }
        for id in checks {
            assert!(Fault::all().iter().any(|fault| fault.id == id), "{id}");
        }
    }
}
