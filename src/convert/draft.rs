//! A profile on its way to a file.

use std::fmt;

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
    /// True if it is only a comment.
    pub is_remark: bool,
}

/// Which GPUs a block selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftSelect {
    All,
    /// Those with these indices.
    Index(Vec<u32>),
    /// Those whose product name this regular expression finds.
    Product(String),
}

/// The devices that a block asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum DraftDevices {
    /// Whole, one device.
    Whole {
        name: Option<String>,
        /// Its settings, where they differ.
        mps: Table,
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
    /// Their settings, where they differ.
    pub mps: Table,
}

impl fmt::Display for DraftProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        remarks(f, &self.remarks)?;
        if let Some(name) = &self.name {
            writeln!(f, "name = {}", quoted(name))?;
        }
        if !self.mps.is_empty() {
            writeln!(f, "\n[mps]")?;
            for (key, value) in &self.mps {
                writeln!(f, "{key} = {value}")?;
            }
        }
        for block in &self.blocks {
            writeln!(f)?;
            remarks(f, &block.remarks)?;
            let text = block.text();
            for line in text.lines() {
                writeln!(f, "{}{line}", if block.is_remark { "# " } else { "" })?;
            }
        }
        Ok(())
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
    pub(super) fn of_gpus(mut self, indices: Vec<u32>) -> Self {
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
        self.select = DraftSelect::Index(indices);
        self
    }

    /// Returns the block without placements, with neighbours alike counted.
    pub(super) fn unpinned(&self) -> Self {
        let mut block = self.clone();
        if let DraftDevices::Instances(entries) = &mut block.devices {
            for entry in entries.iter_mut() {
                entry.at = None;
            }
            *entries = DraftEntry::counted(entries);
        }
        block
    }

    fn text(&self) -> String {
        let mut lines = vec!["[[gpu]]".to_owned(), format!("select = {}", self.select)];
        match &self.devices {
            DraftDevices::Whole { name, mps } => {
                lines.push("mig = false".to_owned());
                lines.extend(name.iter().map(|name| format!("name = {}", quoted(name))));
                lines.extend(inline(mps));
            }
            DraftDevices::Instances(entries) => {
                lines.push("devices = [".to_owned());
                lines.extend(entries.iter().map(|entry| format!("  {entry},")));
                lines.push("]".to_owned());
            }
        }
        lines.join("\n")
    }
}

impl DraftEntry {
    /// One instance without a name, a placement and settings of its own.
    pub(super) fn plain(profile: ProfileName, compute: Vec<u32>) -> Self {
        Self {
            name: None,
            profile,
            at: None,
            count: 1,
            compute,
            mps: Table::new(),
        }
    }

    /// Makes one entry of neighbours that are alike and have no names.
    pub(super) fn counted(entries: &[Self]) -> Vec<Self> {
        let alike = entries.chunk_by(|a, b| a.name.is_none() && a == b);
        alike
            .map(|alike| Self {
                count: u32::try_from(alike.len()).unwrap_or(u32::MAX),
                ..alike[0].clone()
            })
            .collect()
    }
}

impl DraftSelect {
    /// True if it lists a GPU.
    pub(super) fn selects(&self, index: u32) -> bool {
        matches!(self, Self::Index(indices) if indices.contains(&index))
    }
}

impl fmt::Display for DraftSelect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("{ all = true }"),
            Self::Index(indices) => write!(f, "{{ index = {indices:?} }}"),
            Self::Product(regex) => write!(f, "{{ product = {} }}", quoted(regex)),
        }
    }
}

impl fmt::Display for DraftEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        parts.extend(inline(&self.mps));
        write!(f, "{{ {} }}", parts.join(", "))
    }
}

/// `mps = { … }`, unless the table is empty.
fn inline(mps: &Table) -> Option<String> {
    let pairs = mps.iter().map(|(key, value)| format!("{key} = {value}"));
    let pairs: Vec<String> = pairs.collect();
    (!pairs.is_empty()).then(|| format!("mps = {{ {} }}", pairs.join(", ")))
}
