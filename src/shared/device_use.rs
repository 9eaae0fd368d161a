//! The processes that use a device while a program runs: MPS clients, and others.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::failure::Failure;
use crate::host::{Host, Pid, Process, shorten_command};
use crate::node::{Node, OutsideCause, Served};
use crate::nvml::Nvml;
use crate::state::DeviceRecord;

/// The processes that compute on a device at one moment.
#[derive(Debug, Default)]
pub struct DeviceUse {
    pub clients: BTreeSet<Pid>,
    /// The processes that are no clients: MPS servers and programs outside MPS. NVML makes its two lists one after the
    /// other, so a client that has just come may be among them once.
    pub others: BTreeSet<Pid>,
    /// In bytes; `None` if the driver hides it from the caller.
    pub memory_used: Option<u64>,
}

impl DeviceUse {
    /// Asks the driver. Returns `None` if it does not answer now, or hides the processes from the caller.
    pub fn query(nvml: Nvml, device: &DeviceRecord) -> Option<Self> {
        let processes = nvml.query_processes_on(device.driver_uuids())?;
        let clients: BTreeSet<Pid> = processes.clients.iter().map(|usage| usage.pid).collect();
        Some(Self {
            others: processes
                .compute
                .iter()
                .map(|usage| usage.pid)
                .filter(|pid| !clients.contains(pid))
                .collect(),
            clients,
            memory_used: processes.memory.map(|memory| memory.used),
        })
    }

    /// Returns the processes below this one that compute outside MPS.
    pub fn descendants_outside_mps(&self, host: &Host) -> BTreeSet<Pid> {
        if self.others.is_empty() {
            return BTreeSet::new();
        }
        let table = host.read_processes().unwrap_or_default();
        let own = table.descendants(Pid(std::process::id()));
        self.others.intersection(&own).copied().collect()
    }
}

/// A program that was to be an MPS client computes outside MPS.
#[derive(Debug, Error)]
#[error("pid {pid} ({command}) used device {name} outside MPS, and {ended}")]
pub struct LeftMps {
    pid: Pid,
    command: String,
    name: String,
    /// The consequence, such as `the program was ended`.
    ended: &'static str,
    cause: OutsideCause,
}

impl LeftMps {
    pub fn new(host: &Host, node: &Node, served: &Served, pid: Pid, ended: &'static str) -> Self {
        let process = host.find_process(pid);
        let command = process.as_ref().map(Process::command_line);
        Self {
            pid,
            command: command.map_or_else(
                || "gone".to_owned(),
                |command| shorten_command(&command).into_owned(),
            ),
            name: served.record.name.clone(),
            ended,
            cause: process.map_or(OutsideCause::Unknown, |process| {
                OutsideCause::find(host, node, served, &process)
            }),
        }
    }
}

impl Failure for LeftMps {
    fn hint(&self) -> Option<String> {
        Some(self.cause.hint_for_run(&self.name))
    }
}
