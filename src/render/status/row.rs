use crate::node::{Device, Node, Served};
use crate::nvml::Memory;

/// A device and its daemon.
pub(super) struct Row<'a> {
    pub(super) node: &'a Node,
    pub(super) name: String,
    pub(super) device: Option<Device>,
    pub(super) served: Option<&'a Served>,
}

/// Returns the devices with a record first, then the others.
pub(super) fn rows<'a>(node: &'a Node, devices: &[String]) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = node
        .served
        .iter()
        .map(|served| Row {
            node,
            name: served.record.name.clone(),
            device: node.devices().find(|device| {
                device.key == served.record.key && device.uuid == served.record.uuid
            }),
            served: Some(served),
        })
        .collect();
    let unserved = node.devices().filter(|device| {
        !rows.iter().any(|row| {
            row.device
                .as_ref()
                .is_some_and(|shown| shown.key == device.key)
        })
    });
    let unserved: Vec<Row<'a>> = unserved
        .map(|device| Row {
            node,
            name: device.default_name.clone(),
            device: Some(device),
            served: None,
        })
        .collect();
    rows.extend(unserved);
    rows.retain(|row| devices.is_empty() || devices.contains(&row.name));
    rows
}

impl Row<'_> {
    pub(super) fn uuid(&self) -> &str {
        match (&self.device, self.served) {
            (Some(device), _) => &device.uuid,
            (None, Some(served)) => &served.record.uuid,
            (None, None) => "",
        }
    }

    pub(super) fn gpu(&self) -> Option<u32> {
        let gone = || {
            let served = self.served?;
            let mut gpus = self.node.gpus.iter();
            let gpu = gpus.find(|gpu| gpu.uuid == served.record.key.gpu)?;
            Some(gpu.index)
        };
        self.device.as_ref().map(|device| device.gpu).or_else(gone)
    }

    pub(super) fn profile(&self) -> Option<String> {
        match &self.device {
            Some(Device {
                part: Some(part), ..
            }) => Some(part.title.clone()),
            Some(_) => Some("whole GPU".to_owned()),
            None => None,
        }
    }

    pub(super) fn memory(&self) -> Option<Memory> {
        self.node
            .processes
            .get(self.uuid())
            .and_then(|processes| processes.memory)
    }

    /// True for a MIG device: no driver reports its utilization.
    pub(super) fn is_part(&self) -> bool {
        let key = self.device.as_ref().map(|device| &device.key);
        let key = key.or_else(|| self.served.map(|served| &served.record.key));
        key.is_some_and(|key| key.instance.is_some())
    }

    pub(super) fn utilization(&self) -> Option<u32> {
        let device = self
            .device
            .as_ref()
            .filter(|device| device.part.is_none())?;
        let mut gpus = self.node.gpus.iter();
        gpus.find(|gpu| gpu.index == device.gpu)?.utilization
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
