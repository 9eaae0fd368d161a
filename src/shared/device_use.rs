//! The processes that use a device while a program runs: MPS clients, and others.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::config::MPS_PROGRAM_PREFIX;
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
    pub fn query(nvml: Nvml, uuids: &[String]) -> Option<Self> {
        let processes = nvml.query_processes_on(uuids)?;
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
}

/// A device of the node: its name, and the UUIDs by which the driver knows it.
pub type WatchedDevice = (String, Vec<String>);

/// Returns the processes below this one that compute outside MPS, each with the name of its device: on the device that they
/// are to use, or on another one. CUDA takes the first device for a program without `CUDA_VISIBLE_DEVICES`.
pub fn find_descendants_outside_mps(
    host: &Host,
    nvml: Nvml,
    own: &DeviceRecord,
    others: &[WatchedDevice],
) -> BTreeMap<Pid, String> {
    let table = host.read_processes().unwrap_or_default();
    let descendants = table.descendants(Pid(std::process::id()));
    // A daemon that a program has started has servers of its own.
    let is_server = |pid| {
        let process = table.get(pid);
        process.is_some_and(|process| process.name.starts_with(MPS_PROGRAM_PREFIX))
    };
    let mut found = BTreeMap::new();
    let mut add = |used: &DeviceUse, name: &str| {
        for &pid in used.others.intersection(&descendants) {
            if !is_server(pid) {
                found.insert(pid, name.to_owned());
            }
        }
    };
    // If the driver does not answer now, the program has done nothing wrong.
    let used = DeviceUse::query(nvml, own.driver_uuids()).unwrap_or_default();
    add(&used, &own.name);
    // A client uses no other device.
    if !descendants.is_subset(&used.clients) {
        for (name, uuids) in others {
            add(&DeviceUse::query(nvml, uuids).unwrap_or_default(), name);
        }
    }
    found
}

/// A program that was to be an MPS client computes outside MPS.
#[derive(Debug, Error)]
#[error("pid {pid} ({command}) used device {name} outside MPS, and {ended}")]
pub struct LeftMps {
    pid: Pid,
    command: String,
    /// The name of the device that it used.
    name: String,
    /// The consequence, such as `the program was ended`.
    ended: &'static str,
    hint: String,
}

impl LeftMps {
    /// `used` is the name of the device that the process used in the place of a client's device, or that device.
    pub fn new(
        host: &Host,
        node: &Node,
        served: &Served,
        (pid, used): (Pid, &str),
        ended: &'static str,
    ) -> Self {
        let process = host.find_process(pid);
        let cause = process.as_ref().map_or(OutsideCause::Unknown, |process| {
            OutsideCause::find(host, node, served, process)
        });
        let command = process.as_ref().map(Process::command_line);
        Self {
            pid,
            command: command.map_or_else(
                || "gone".to_owned(),
                |command| shorten_command(&command).into_owned(),
            ),
            name: used.to_owned(),
            ended,
            hint: cause.hint_for_run(&served.record.name),
        }
    }
}

impl Failure for LeftMps {
    fn hint(&self) -> Option<String> {
        Some(self.hint.clone())
    }
}
