//! The rows of the table of devices: one device each, or many that are equal, well and idle.

use std::collections::{BTreeMap, BTreeSet};

use super::super::format::group_by;
use super::super::table::SEVERAL;
use super::columns;
use crate::host::format_ranges;
use crate::node::{Device, Node};

/// The most devices on a terminal that have a row each in any case.
const MAX_ROWS: usize = 8;

/// The number of names up to which a row has them all.
const MAX_NAMES: usize = 3;

/// True if there are so many devices that equal ones are folded.
pub fn are_many(devices: &[&Device]) -> bool {
    devices.len() > MAX_ROWS
}

/// The urgency of a device or a GPU: the first ones are shown first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    HasProblem,
    IsInUse,
    /// Well and idle.
    None,
}

/// Returns the urgency of each device, by name.
pub fn urgency_by_name(node: &Node, devices: &[&Device]) -> BTreeMap<String, Urgency> {
    let troubled = node.devices_with_findings();
    let urgency = |device: &Device| {
        if troubled.contains(&device.name) {
            Urgency::HasProblem
        } else if device.is_in_use() {
            Urgency::IsInUse
        } else {
            Urgency::None
        }
    };
    devices
        .iter()
        .map(|device| (device.name.clone(), urgency(device)))
        .collect()
}

/// A row of the table of devices.
#[derive(Debug)]
pub struct DeviceRow<'a>(Vec<&'a Device>);

impl<'a> DeviceRow<'a> {
    /// Makes a row for each device.
    pub fn single_rows(devices: &[&'a Device]) -> Vec<Self> {
        devices.iter().map(|device| Self(vec![device])).collect()
    }

    /// Puts devices that are equal, well and idle into one row, if there are many devices. Before them stand the others:
    /// first the GPUs with problems, then those in use.
    pub fn fold(node: &Node, devices: &[&'a Device]) -> Vec<Self> {
        if !are_many(devices) {
            return Self::single_rows(devices);
        }
        let urgency = urgency_by_name(node, devices);
        let idle = devices
            .iter()
            .copied()
            .filter(|device| urgency[&device.name] == Urgency::None);
        let mut folded = group_by(idle, |a, b| {
            columns::format_kind(node, a) == columns::format_kind(node, b)
        });
        folded.retain(|equal| equal.len() > 1);
        let mut others: Vec<&Device> = devices.to_vec();
        others.retain(|device| {
            let mut folded = folded.iter().flatten();
            folded.all(|one| one.uuid != device.uuid)
        });
        others.sort_by_key(|device| {
            devices
                .iter()
                .filter(|one| one.key.gpu == device.key.gpu)
                .map(|one| urgency[&one.name])
                .min()
        });
        let mut rows = Self::single_rows(&others);
        rows.extend(folded.into_iter().map(Self));
        rows
    }

    pub fn devices(&self) -> impl Iterator<Item = &'a Device> {
        self.0.iter().copied()
    }

    pub fn is_of_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Formats the names: `0.4`, `0.4, 1.4 … 7.4 (8)`.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.devices().map(|device| device.name.as_str()).collect();
        match names.as_slice() {
            [first, second, _, .., last] if names.len() > MAX_NAMES => {
                format!("{first}, {second} … {last} ({})", names.len())
            }
            all => all.join(", "),
        }
    }

    /// Formats the indices of the GPUs: `3`, `0-7`.
    pub fn gpus(&self, node: &Node) -> String {
        let indices: BTreeSet<u32> = self
            .devices()
            .flat_map(|device| node.gpu_indices_of(device))
            .collect();
        let indices: Vec<u32> = indices.into_iter().collect();
        format_ranges(&indices)
    }

    /// Returns the value of these devices, or a sign for several.
    pub fn value_of_all(&self, value: impl Fn(&Device) -> String) -> String {
        let values: BTreeSet<String> = self.devices().map(value).collect();
        match values.len() {
            0 | 1 => values.into_iter().next().unwrap_or_default(),
            _ => SEVERAL.to_owned(),
        }
    }
}
