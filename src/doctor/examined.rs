use std::collections::BTreeMap;

use crate::host::{Environment, Holders, ProcessTable, Surroundings};
use crate::node::{Device, Gpu, Node, Problem, Served};

/// A node under examination.
pub struct Examined<'a> {
    pub environment: &'a Environment,
    pub node: &'a Node,
    /// The devices to examine; all if none is named.
    pub devices: &'a [String],
    /// The result of the attach check of each device; `None` if it was not made.
    pub attached: Option<Vec<Attached>>,
    pub(super) surroundings: Surroundings,
    pub(super) processes: ProcessTable,
    /// The processes that have each GPU open, by its minor number.
    holders: BTreeMap<u32, Holders>,
    /// The problems and the remarks of `status`.
    pub(super) problems: Vec<Problem>,
    pub(super) remarks: Vec<Problem>,
}

/// The result of the attach check of one device.
#[derive(Clone, Debug)]
pub struct Attached {
    pub name: String,
    pub result: AttachResult,
}

#[derive(Clone, Debug)]
pub enum AttachResult {
    /// A description of the client that the check was.
    Attached(String),
    /// The device serves others now and was left alone.
    LeftAlone(String),
    /// The error, and a remedy.
    Failed(String, Option<String>),
}

impl<'a> Examined<'a> {
    /// Reads the rest of the machine.
    pub fn new(
        environment: &'a Environment,
        node: &'a Node,
        devices: &'a [String],
        attached: Option<Vec<Attached>>,
    ) -> Self {
        let minors: Vec<u32> = node.gpus.iter().filter_map(|gpu| gpu.minor).collect();
        let holders = environment.host.holders_of(&minors).unwrap_or_default();
        Self {
            environment,
            node,
            devices,
            attached,
            surroundings: Surroundings::read(&environment.host),
            processes: environment.host.processes().unwrap_or_default(),
            holders: minors.into_iter().zip(holders).collect(),
            problems: node.problems(devices),
            remarks: node.remarks(devices),
        }
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.devices.is_empty() || self.devices.iter().any(|device| device == name)
    }

    /// Returns the devices with a record that are to be examined.
    pub(super) fn served(&self) -> impl Iterator<Item = &'a Served> {
        let served = self.node.served.iter();
        served.filter(|served| self.is_wanted(&served.record.name))
    }

    /// Returns the devices to examine that exist, with their names.
    pub(super) fn devices(&self) -> impl Iterator<Item = (String, Device)> {
        let named = self.node.devices();
        let named = named.map(|device| (self.node.name_of(&device), device));
        named.filter(|(name, _)| self.is_wanted(name))
    }

    /// Returns the GPUs of the devices to examine.
    pub(super) fn gpus(&self) -> impl Iterator<Item = &'a Gpu> {
        let indices: Vec<u32> = self.devices().map(|(_, device)| device.gpu).collect();
        let gpus = self.node.gpus.iter();
        gpus.filter(move |gpu| self.devices.is_empty() || indices.contains(&gpu.index))
    }

    /// Returns the processes that have a GPU open; `None` if that cannot be seen.
    pub(super) fn holders(&self, gpu: &Gpu) -> Option<&Holders> {
        self.holders.get(&gpu.minor?)
    }

    /// Returns the driver's branch, such as 580.
    pub(super) fn branch(&self) -> Option<u32> {
        self.node.control_program().branch
    }

    /// True if a process with this name runs. The kernel cuts names to 15 bytes.
    pub(super) fn runs(&self, program: &str) -> bool {
        let name = &program[..program.len().min(15)];
        self.processes.iter().any(|process| process.name == name)
    }
}
