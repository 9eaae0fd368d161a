//! The profile of an advice.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::advice::{Advice, AdvisedDevice, AdvisedGpu, number};
use crate::geometry::{Partition, SliceMap};
use crate::host::grouped;
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::profile::{
    DraftBlock, DraftProfile, Measurement, device_entry, is_device_name, mig_devices, table,
};
use crate::settings::{ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT, SHARE};

impl Advice {
    /// Returns the GPUs with their indices in a node; those with the same devices together.
    pub fn placed(&self, node: &EmptyNode) -> Vec<(Vec<u32>, &AdvisedGpu)> {
        let mut free: Vec<_> = node
            .groups
            .iter()
            .map(|group| group.indices.iter())
            .collect();
        let placed = self
            .gpus
            .iter()
            .filter_map(|gpu| Some((*free[gpu.group].next()?, gpu)));
        grouped(placed, |(_, one), (_, other)| one == other)
            .into_iter()
            .map(|alike| (alike.iter().map(|(index, _)| *index).collect(), alike[0].1))
            .collect()
    }

    /// Returns a profile that makes the devices, with names that tell the programs.
    pub fn profile(&self, node: &EmptyNode) -> DraftProfile {
        let placed = self.placed(node);
        // All of the node, since `check` refuses a node with others.
        let models: Option<BTreeSet<&str>> = node
            .groups
            .iter()
            .map(|group| group.model.map(|model| model.key.as_str()))
            .collect();
        let mut keys = Table::new();
        if let Some(models) = models {
            let models: Vec<&str> = models.into_iter().collect();
            keys.insert("models".to_owned(), models.into());
        }
        DraftProfile {
            remarks: vec!["Written by mig-mps from measured figures.".to_owned()],
            keys,
            blocks: placed
                .iter()
                .map(|(indices, gpu)| block(indices, gpu, &node.groups[gpu.group]))
                .collect(),
            ..DraftProfile::default()
        }
    }
}

fn block(indices: &[u32], gpu: &AdvisedGpu, group: &GpuGroup) -> DraftBlock {
    let mut remarks: Vec<String> = Vec::new();
    remarks.extend(gpu.map(group).map(|map| map.to_string()));
    let mut entries: Vec<Table> = Vec::new();
    for alike in grouped(&gpu.devices, |one, other| one == other) {
        let device = alike[0];
        remarks.push(device.to_string());
        let Some(profile) = &device.profile else {
            continue;
        };
        let mut entry = device_entry(profile, &[]);
        entry.insert(
            "name".to_owned(),
            format!("{}-{{gpu}}-{{n}}", device.name()).into(),
        );
        if alike.len() > 1 {
            entry.insert("count".to_owned(), Value::from(number(alike.len())));
        }
        entry.insert("mps".to_owned(), device.settings().into());
        entries.push(entry);
    }
    let want = match gpu.devices.as_slice() {
        [whole] if whole.profile.is_none() => table([
            ("mig", false.into()),
            ("name", format!("{}-{{gpu}}", whole.name()).into()),
            ("mps", whole.settings().into()),
        ]),
        _ => mig_devices(entries),
    };
    DraftBlock {
        remarks,
        select: table([("index", indices.to_vec().into())]),
        want,
    }
}

impl AdvisedGpu {
    /// Returns the map of its instances; `None` for a whole GPU.
    pub fn map(&self, group: &GpuGroup) -> Option<SliceMap> {
        let instances: Option<Vec<_>> = self
            .devices
            .iter()
            .map(|device| {
                let name = device.profile.as_ref()?;
                group.profiles.iter().find(|profile| profile.name == *name)
            })
            .collect();
        Partition::of(instances?.into_iter()).map(&group.profiles)
    }
}

impl AdvisedDevice {
    /// Returns the names of its programs, as a part of the name of a device.
    pub fn name(&self) -> String {
        let names: Vec<&str> = self
            .programs
            .iter()
            .map(|row| row.program.as_str())
            .collect();
        let name: String = names
            .join("_")
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "._-".contains(c) {
                    c
                } else {
                    '-'
                }
            })
            .take(40)
            .collect();
        let name = name.trim_start_matches(['.', '-']);
        if is_device_name(name) {
            name.to_owned()
        } else {
            format!("program-{name}")
        }
    }

    /// Returns the number of copies of all its programs.
    pub fn copies(&self) -> u32 {
        self.programs.iter().map(|row| row.copies).sum()
    }

    /// Returns the settings with which its programs were measured. Programs that need less than others limit themselves.
    fn settings(&self) -> Table {
        let mut settings = table([(SHARE, Value::from(self.copies()))]);
        let threads = self
            .programs
            .iter()
            .map(|row| row.threads.value())
            .fold(0.0, f64::max);
        if self.copies() > 1 || threads < 100.0 {
            settings.insert(ACTIVE_THREAD_PERCENTAGE.to_owned(), percentage(threads));
        }
        if self.programs.len() > 1 {
            // Not equal parts: each program has its own need.
            settings.insert(PINNED_MEMORY_LIMIT.to_owned(), "none".into());
        }
        settings
    }

    /// Returns the programs that must limit themselves when they are started.
    pub fn limited(&self) -> Vec<&Measurement> {
        let most = self
            .programs
            .iter()
            .map(|row| row.threads.value())
            .fold(0.0, f64::max);
        self.programs
            .iter()
            .filter(|row| row.threads.value() < most)
            .collect()
    }
}

/// A number as people write it: 50 and not 50.0.
fn percentage(value: f64) -> Value {
    let text = value.to_string();
    text.parse::<i64>()
        .map_or(Value::Float(value), Value::Integer)
}

/// `3g.40gb: 4 × bert (rate 120) + 1 × vgg (rate 7.5, with --threads 25)`
impl std::fmt::Display for AdvisedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.profile {
            Some(profile) => write!(f, "{profile}: ")?,
            None => f.write_str("whole GPU: ")?,
        }
        let limited = self.limited();
        for (nth, row) in self.programs.iter().enumerate() {
            let plus = if nth == 0 { "" } else { " + " };
            let rate = format!("{:.4}", row.throughput);
            let rate = rate.trim_end_matches('0').trim_end_matches('.');
            write!(f, "{plus}{} × {} (rate {rate}", row.copies, row.program)?;
            if limited.contains(&row) {
                write!(f, ", with --threads {}", row.threads)?;
            }
            let mark = if row.is_interpolated {
                ", interpolated)"
            } else {
                ")"
            };
            f.write_str(mark)?;
        }
        Ok(())
    }
}
