//! A profile on its way to a file.

use std::collections::BTreeSet;
use std::fmt;

use regex::escape;
use toml::{Table, Value};

use crate::geometry::ProfileName;

/// A profile made of another tool's file, or of a node.
#[derive(Clone, Debug)]
pub struct Converted {
    /// The profile.
    pub draft: DraftProfile,
    /// The differences from mig-parted, or the steps that `up` would still take.
    pub notes: Vec<String>,
}

/// A profile on its way to being a file. It prints as TOML.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftProfile {
    /// Notes for the reader, a line each.
    pub remarks: Vec<String>,
    /// The profile's name.
    pub name: Option<String>,
    /// The catalog models that it is for; none if it does not say.
    pub models: Vec<String>,
    /// Notes on `mps`, a line each.
    pub mps_remarks: Vec<String>,
    /// `[mps]`: the settings of all devices that say nothing else.
    pub mps: Table,
    /// The blocks, in order.
    pub blocks: Vec<DraftBlock>,
}

/// One `[[gpu]]` block.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftBlock {
    /// Notes for the reader, a line each.
    pub remarks: Vec<String>,
    /// Which GPUs.
    pub select: DraftSelect,
    /// The devices of these GPUs.
    pub devices: DraftDevices,
}

/// Which GPUs a block selects: all that every key has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftSelect {
    /// Those with these indices.
    pub index: Option<Vec<u32>>,
    /// Those whose product name this regular expression finds.
    pub product: Option<String>,
}

/// The devices that a block asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum DraftDevices {
    /// Whole, one device.
    Whole {
        name: Option<String>,
        /// The settings of its daemon, where they differ; `None` for no daemon.
        mps: Option<Table>,
    },
    /// Partitioned.
    Instances(Vec<DraftEntry>),
}

/// One entry of `devices`.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftEntry {
    pub name: Option<String>,
    /// The GPU instance profile.
    pub profile: ProfileName,
    /// Where it is pinned to.
    pub at: Option<u32>,
    /// Their number.
    pub count: u32,
    /// The slices of the compute instances that share each; empty for the one that has all its SMs.
    pub compute: Vec<u32>,
    /// The settings of their daemons, where they differ; `None` for no daemons.
    pub mps: Option<Table>,
}

impl fmt::Display for DraftProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        remarks(f, &self.remarks)?;
        if let Some(name) = &self.name {
            writeln!(f, "name = {}", quoted(name))?;
        }
        if !self.models.is_empty() {
            writeln!(f, "models = {:?}", self.models)?;
        }
        let is_off = self.is_off();
        if is_off {
            writeln!(f, "\n{OFF}")?;
        }
        if !self.mps.is_empty() {
            writeln!(f, "\n[mps]")?;
            remarks(f, &self.mps_remarks)?;
            for (key, value) in &self.mps {
                writeln!(f, "{key} = {value}")?;
            }
        }
        for block in &self.blocks {
            writeln!(f)?;
            remarks(f, &block.remarks)?;
            writeln!(f, "{}", block.text(is_off))?;
        }
        Ok(())
    }
}

/// No daemons, in any of the three tables.
const OFF: &str = "mps = false";

impl DraftProfile {
    /// True if `mps = false` stands at the top: there are MIG devices, and no device has a daemon.
    fn is_off(&self) -> bool {
        self.blocks.iter().all(DraftBlock::is_off)
            && self.blocks.iter().any(DraftBlock::has_instances)
    }
}

fn remarks(f: &mut fmt::Formatter<'_>, remarks: &[String]) -> fmt::Result {
    let mut lines = remarks.iter().flat_map(|remark| remark.lines());
    lines.try_for_each(|line| writeln!(f, "# {line}"))
}

/// A string as TOML writes it.
fn quoted(text: &str) -> Value {
    Value::String(text.to_owned())
}

impl DraftBlock {
    /// Returns the block for the GPUs with these indices. One for a single GPU has its names without `{gpu}`.
    pub fn of_gpus(mut self, indices: Vec<u32>) -> Self {
        if let [gpu] = indices.as_slice() {
            let names: Vec<&mut String> = match &mut self.devices {
                DraftDevices::Whole { name, .. } => name.iter_mut().collect(),
                DraftDevices::Instances(entries) => entries
                    .iter_mut()
                    .flat_map(|entry| &mut entry.name)
                    .collect(),
            };
            for name in names {
                *name = name.replace("{gpu}", &gpu.to_string());
            }
        }
        self.select.index = Some(indices);
        self
    }

    /// Returns the block without placements, with neighbours alike counted.
    pub fn unpinned(&self) -> Self {
        let mut block = self.clone();
        if let DraftDevices::Instances(entries) = &mut block.devices {
            for entry in entries.iter_mut() {
                entry.at = None;
            }
            *entries = DraftEntry::counted(entries);
        }
        block
    }

    /// True if none of its devices has a daemon.
    fn is_off(&self) -> bool {
        match &self.devices {
            DraftDevices::Whole { mps, .. } => mps.is_none(),
            DraftDevices::Instances(entries) => entries.iter().all(|entry| entry.mps.is_none()),
        }
    }

    fn has_instances(&self) -> bool {
        matches!(&self.devices, DraftDevices::Instances(entries) if !entries.is_empty())
    }

    /// The block as TOML; `is_off` is what the table around it says.
    fn text(&self, is_off: bool) -> String {
        let mut lines = vec!["[[gpu]]".to_owned(), format!("select = {}", self.select)];
        match &self.devices {
            DraftDevices::Whole { name, mps } => {
                lines.push("mig = false".to_owned());
                lines.extend(name.iter().map(|name| format!("name = {}", quoted(name))));
                lines.extend(inline(mps.as_ref(), is_off));
            }
            DraftDevices::Instances(entries) if entries.is_empty() => {
                lines.push("devices = []".to_owned());
            }
            DraftDevices::Instances(entries) => {
                let is_block_off = self.is_off();
                if is_block_off && !is_off {
                    lines.push(OFF.to_owned());
                }
                lines.push("devices = [".to_owned());
                let entries = entries.iter().map(|entry| entry.text(is_block_off));
                lines.extend(entries.map(|entry| format!("  {entry},")));
                lines.push("]".to_owned());
            }
        }
        lines.join("\n")
    }
}

impl DraftEntry {
    /// One instance without a name, a placement and settings of its own.
    pub fn plain(profile: ProfileName, compute: Vec<u32>) -> Self {
        Self {
            name: None,
            profile,
            at: None,
            count: 1,
            compute,
            mps: Some(Table::new()),
        }
    }

    /// Makes one entry of neighbours that are alike and have no names.
    pub fn counted(entries: &[Self]) -> Vec<Self> {
        let alike = entries.chunk_by(|a, b| a.name.is_none() && a == b);
        alike
            .map(|alike| Self {
                count: u32::try_from(alike.len()).unwrap_or(u32::MAX),
                ..alike[0].clone()
            })
            .collect()
    }

    /// The entry as TOML; `is_off` is what the block says.
    fn text(&self, is_off: bool) -> String {
        let name = self.name.iter();
        let mut parts: Vec<String> = name
            .map(|name| format!("name = {}", quoted(name)))
            .collect();
        parts.push(format!("profile = \"{}\"", self.profile));
        parts.extend(self.at.map(|at| format!("at = {at}")));
        if self.count > 1 {
            parts.push(format!("count = {}", self.count));
        }
        if !self.compute.is_empty() {
            let names: Vec<String> = self.compute.iter().map(|n| format!("{n}c")).collect();
            parts.push(format!("compute = {names:?}"));
        }
        parts.extend(inline(self.mps.as_ref(), is_off));
        format!("{{ {} }}", parts.join(", "))
    }
}

impl DraftSelect {
    /// True if it lists a GPU.
    pub fn selects(&self, index: u32) -> bool {
        let mut indices = self.index.iter().flatten();
        indices.any(|listed| *listed == index)
    }
}

impl fmt::Display for DraftSelect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.index.iter().map(|index| format!("index = {index:?}"));
        let product = self
            .product
            .iter()
            .map(|regex| format!("product = {}", quoted(regex)));
        let mut keys: Vec<String> = index.chain(product).collect();
        if keys.is_empty() {
            keys.push("all = true".to_owned());
        }
        write!(f, "{{ {} }}", keys.join(", "))
    }
}

/// `mps = { … }` unless the table is empty; `mps = false` without one, unless the table around says so.
fn inline(mps: Option<&Table>, is_off: bool) -> Option<String> {
    let Some(mps) = mps else {
        return (!is_off).then(|| OFF.to_owned());
    };
    let pairs: Vec<String> = mps
        .iter()
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    (!pairs.is_empty()).then(|| format!("mps = {{ {} }}", pairs.join(", ")))
}

/// A regular expression for exactly these names.
pub fn regex_of(products: &BTreeSet<&str>) -> String {
    // A hyphen means nothing outside of brackets, and people read this.
    let names: Vec<String> = products
        .iter()
        .map(|product| escape(product).replace(r"\-", "-"))
        .collect();
    match names.as_slice() {
        [one] => format!("^{one}$"),
        names => format!("^({})$", names.join("|")),
    }
}
