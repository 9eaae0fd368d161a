use toml::{Table, Value};

use super::present::{Present, PresentDevice, PresentGpu, PresentPart, Standing};
use super::settings::by_default;
use super::templates::{Template, with_gpu};
use super::{DraftBlock, DraftPart, DraftSelect, DraftWant};

/// GPUs alike that one block is for.
pub(super) struct Group<'a> {
    present: &'a Present,
    gpus: Vec<&'a PresentGpu>,
    /// True if placements are written.
    pinned: bool,
}

impl<'a> Group<'a> {
    pub(super) fn new(present: &'a Present, gpus: Vec<&'a PresentGpu>, pinned: bool) -> Self {
        Self {
            present,
            gpus,
            pinned,
        }
    }

    /// The block for them.
    pub(super) fn block(&self) -> DraftBlock {
        let mut remarks = Vec::new();
        let without = |gpu: &&PresentGpu| gpu.devices().iter().any(|d| d.mps.is_none());
        if self.gpus.iter().any(without) {
            remarks
                .push("Some of these have no daemon now: up would start one for each.".to_owned());
        }
        let want = match &self.gpus[0].standing {
            Standing::Whole(device) => DraftWant::Whole {
                name: self.name(PresentGpu::devices),
                mps: self.differing(device),
            },
            Standing::Parts(parts) => {
                let mut entries: Vec<DraftPart> = Vec::new();
                for (nth, part) in parts.iter().enumerate() {
                    let entry = self.entry(nth, part, &mut remarks);
                    match entries.last_mut().filter(|last| can_be_one(last, &entry)) {
                        Some(last) => last.count += 1,
                        None => entries.push(entry),
                    }
                }
                DraftWant::Parts(entries)
            }
        };
        DraftBlock {
            remarks,
            select: DraftSelect::Index(self.gpus.iter().map(|gpu| gpu.index).collect()),
            want,
            is_remark: false,
        }
    }

    fn entry(&self, nth: usize, part: &PresentPart, remarks: &mut Vec<String>) -> DraftPart {
        let name = self.name(|gpu| gpu.devices_of(nth));
        let names: Vec<&str> = part
            .devices
            .iter()
            .map(|device| device.name.as_str())
            .collect();
        if name.is_none() && part.devices.iter().any(|device| !device.has_default_name) {
            remarks.push(format!(
                "A profile cannot give these names: {}",
                names.join(", ")
            ));
        }
        if part.devices.is_empty() {
            let at = part.at;
            remarks.push(format!(
                "The GPU instance at {at} has no compute instance: up would make one."
            ));
        }
        let mut settings: Vec<Table> = part.devices.iter().map(|d| self.differing(d)).collect();
        settings.dedup();
        if settings.len() > 1 {
            remarks.push(format!(
                "The settings of {} differ, which a profile cannot say.",
                names.join(", ")
            ));
        }
        DraftPart {
            name,
            profile: part.profile.clone(),
            at: self.pinned.then_some(part.at),
            count: 1,
            compute: part.compute.clone(),
            mps: settings.into_iter().next().unwrap_or_default(),
        }
    }

    /// The name that a profile gives the same devices on every GPU, if it can; none where they have
    /// their names by default.
    fn name(&self, devices: impl Fn(&'a PresentGpu) -> Vec<&'a PresentDevice>) -> Option<String> {
        let mut templates: Vec<Vec<Template>> = Vec::new();
        for gpu in &self.gpus {
            let devices = devices(gpu);
            if devices.iter().all(|device| device.has_default_name) {
                return None;
            }
            let name = self.name_of_entry(&devices)?;
            // On one GPU alone the index in a name may be chance.
            templates.push(match self.gpus.len() {
                1 => vec![name],
                _ => with_gpu(&name, gpu.index),
            });
        }
        let (first, others) = templates.split_first()?;
        let shared = |template: &&Template| others.iter().all(|other| other.contains(template));
        first.iter().find(shared).cloned()
    }

    /// The name of an entry for these devices: that of a single one, or a template with `{n}`.
    fn name_of_entry(&self, devices: &[&PresentDevice]) -> Option<String> {
        let (first, others) = devices.split_first()?;
        let template = self.present.template(&first.name);
        let same = |other: &&PresentDevice| self.present.template(&other.name) == template;
        match template {
            Some(template) => others.iter().all(same).then(|| template.clone()),
            None => others.is_empty().then(|| first.name.clone()),
        }
    }

    /// The settings of a device that are not those of `[mps]`; none for one without a daemon.
    fn differing(&self, device: &PresentDevice) -> Table {
        let unlike = |(key, value): &(&String, &Value)| {
            let default = self.present.mps.get(*key).cloned();
            default.or_else(|| by_default(key)).as_ref() != Some(*value)
        };
        let all = device.mps.iter().flatten();
        let own = all
            .filter(unlike)
            .map(|(key, value)| (key.clone(), value.clone()));
        own.collect()
    }
}

/// True if two entries without names and pins can be one with a count.
fn can_be_one(last: &DraftPart, next: &DraftPart) -> bool {
    let one = DraftPart {
        count: 1,
        ..last.clone()
    };
    last.at.is_none() && last.name.is_none() && one == *next
}
