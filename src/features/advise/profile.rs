//! The profile of an advice.

use std::collections::BTreeSet;
use std::fmt;

use toml::{Table, Value};

use super::advice::{AdvisedDevice, AdvisedGpus, AdvisedProgram};
use super::saturating_u32;
use crate::host::group_by;
use crate::plan::virtual_node::EmptyNode;
use crate::profile::is_device_name;
use crate::settings::{ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT, SHARE};
use crate::shared::{DraftBlock, DraftProfile, device_entry, mig_devices, table};

/// Returns a profile that makes the devices, with names that say which programs they are for.
pub fn draft_profile(gpus: &[AdvisedGpus], node: &EmptyNode) -> DraftProfile {
    // All of the node, since `check` refuses a node with others.
    let models: Option<BTreeSet<&String>> = node
        .groups
        .iter()
        .map(|group| Some(&group.model?.key))
        .collect();
    let mut keys = Table::new();
    if let Some(models) = models {
        let models: Vec<&str> = models.into_iter().map(String::as_str).collect();
        keys.insert("models".to_owned(), models.into());
    }
    DraftProfile {
        remarks: vec!["Written by mig-mps from measured figures.".to_owned()],
        keys,
        blocks: gpus.iter().map(draft_block).collect(),
        ..DraftProfile::default()
    }
}

fn draft_block(gpus: &AdvisedGpus) -> DraftBlock {
    let mut remarks: Vec<String> = gpus.map.iter().map(ToString::to_string).collect();
    let mut entries: Vec<Table> = Vec::new();
    for alike in group_by(&gpus.devices, |one, other| one == other) {
        let device = alike[0];
        remarks.push(device.to_string());
        let Some(profile) = &device.profile else {
            continue;
        };
        let name = format!("{}-{{gpu}}-{{n}}", device.name_from_programs());
        let mut entry = device_entry(profile, &[]);
        entry.insert("name".to_owned(), name.into());
        if alike.len() > 1 {
            entry.insert("count".to_owned(), Value::from(saturating_u32(alike.len())));
        }
        entry.insert("mps".to_owned(), device.mps_settings().into());
        entries.push(entry);
    }
    let want = match gpus.devices.as_slice() {
        [whole] if whole.profile.is_none() => table([
            ("mig", false.into()),
            (
                "name",
                format!("{}-{{gpu}}", whole.name_from_programs()).into(),
            ),
            ("mps", whole.mps_settings().into()),
        ]),
        _ => mig_devices(entries),
    };
    DraftBlock {
        remarks,
        select: table([("index", gpus.indices.clone().into())]),
        want,
    }
}

impl AdvisedDevice {
    /// Returns the names of its programs, as a part of the name of a device.
    fn name_from_programs(&self) -> String {
        let names = self.programs.iter().map(|one| one.program.as_str());
        let is_allowed = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
        let names = names.collect::<Vec<_>>().join("_");
        let name: String = names
            .chars()
            .map(|c| Some(c).filter(is_allowed).unwrap_or('-'))
            .take(40)
            .collect();
        let name = name.trim_start_matches(['.', '-']);
        if is_device_name(name) {
            name.to_owned()
        } else {
            format!("program-{name}")
        }
    }

    /// Returns the settings with which its programs were measured. Programs that need less than others limit themselves.
    fn mps_settings(&self) -> Table {
        let threads = self
            .programs
            .iter()
            .map(|one| one.threads.as_f64())
            .fold(0.0, f64::max);
        let mut settings = table([(SHARE, self.total_copies().into())]);
        if self.total_copies() > 1 || threads < 100.0 {
            settings.insert(ACTIVE_THREAD_PERCENTAGE.to_owned(), threads.into());
        }
        if self.programs.len() > 1 {
            // Not equal parts: each program has its own need.
            settings.insert(PINNED_MEMORY_LIMIT.to_owned(), "none".into());
        }
        settings
    }
}

/// `3g.40gb: 4 × bert (rate 120) + 1 × vgg (rate 7.5, with --threads 25)`
impl fmt::Display for AdvisedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let programs: Vec<String> = self.programs.iter().map(ToString::to_string).collect();
        let programs = programs.join(" + ");
        match &self.profile {
            Some(profile) => write!(f, "{profile}: {programs}"),
            None => write!(f, "whole GPU: {programs}"),
        }
    }
}

impl fmt::Display for AdvisedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = format!("{:.4}", self.rate);
        let rate = rate.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{} × {} (rate {rate}", self.copies, self.program)?;
        if self.limits_itself {
            write!(f, ", with --threads {}", self.threads)?;
        }
        f.write_str(if self.is_interpolated {
            ", interpolated)"
        } else {
            ")"
        })
    }
}
