use std::ptr;

use crate::node::{Device, Gpu, Node, Served};
use crate::nvml::Memory;
use crate::render::format::or;
use crate::state::DeviceKey;

/// A device and its daemon.
pub(super) struct Row<'a> {
    node: &'a Node,
    pub(super) name: String,
    pub(super) uuid: String,
    key: DeviceKey,
    /// `None` if it is gone.
    pub(super) device: Option<Device>,
    pub(super) served: Option<&'a Served>,
}

/// Returns the devices in the order of `list`; those that are gone come last.
pub(super) fn rows<'a>(node: &'a Node, devices: &[String]) -> Vec<Row<'a>> {
    let served = node.served.iter().map(|served| {
        let record = &served.record;
        // A device that was made again may have two records.
        let is_its = |device: &Device| {
            let its = node.served_on(&device.key);
            device.key == record.key && its.is_some_and(|its| ptr::eq(its, served))
        };
        let device = node.devices().find(is_its);
        let uuid = device.as_ref().map_or(&record.uuid, |device| &device.uuid);
        Row {
            node,
            name: record.name.clone(),
            uuid: uuid.clone(),
            key: record.key.clone(),
            device,
            served: Some(served),
        }
    });
    let mut rows: Vec<Row<'a>> = served.collect();
    for device in node.devices() {
        if node.served_on(&device.key).is_none() {
            rows.push(Row {
                node,
                name: node.name_of(&device),
                uuid: device.uuid.clone(),
                key: device.key.clone(),
                device: Some(device),
                served: None,
            });
        }
    }
    rows.retain(|row| devices.is_empty() || devices.contains(&row.name));
    let order: Vec<Device> = node.devices().collect();
    rows.sort_by_key(|row| {
        let position = order
            .iter()
            .position(|device| Some(device) == row.device.as_ref());
        position.unwrap_or(order.len())
    });
    rows
}

impl Row<'_> {
    pub(super) fn gpu(&self) -> Option<&Gpu> {
        self.node.gpu(&self.key.gpu)
    }

    /// Returns the index of its GPU, also of one that is lost.
    pub(super) fn gpu_index(&self) -> Option<u32> {
        let recorded = || {
            let served = self.served.filter(|served| !served.is_gone())?;
            served.record.gpu
        };
        self.gpu().map(|gpu| gpu.index).or_else(recorded)
    }

    /// True if its device should be there.
    pub(super) fn is_missed(&self) -> bool {
        self.served.is_some_and(|served| self.node.misses(served))
    }

    /// True if it has no record that can be read, and a daemon may serve it.
    pub(super) fn may_be_served(&self) -> bool {
        self.served.is_none() && self.node.may_be_served(&self.uuid)
    }

    pub(super) fn profile(&self) -> Option<String> {
        let part = self.device.as_ref()?.part.as_ref();
        Some(or(part.map(|part| &part.title), "whole GPU"))
    }

    pub(super) fn memory(&self) -> Option<Memory> {
        self.node.processes.get(&self.uuid)?.memory
    }

    /// True for a MIG device: no driver reports its utilization.
    pub(super) fn is_part(&self) -> bool {
        self.key.instance.is_some()
    }

    pub(super) fn utilization(&self) -> Option<u32> {
        let is_whole = self.device.is_some() && !self.is_part();
        self.gpu().filter(|_| is_whole)?.utilization
    }

    /// Returns its daemon if that runs, or may run.
    pub(super) fn alive(&self) -> Option<&Served> {
        self.served.filter(|served| served.is_alive())
    }

    /// True if its servers and clients are known.
    pub(super) fn is_known(&self) -> bool {
        self.served.is_some_and(|served| served.clients.are_known())
    }

    /// True if its daemon runs and its servers and clients are unknown.
    pub(super) fn is_unknown(&self) -> bool {
        self.alive().is_some() && !self.is_known()
    }
}
