use std::fmt;

use toml::{Table, Value};

use crate::geometry::ProfileName;

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
    /// All.
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
        /// The device's name.
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
    /// The devices' name.
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
    /// Fills in the index of the only GPU that it selects.
    pub(super) fn fill_gpu(&mut self, index: u32) {
        let names: Vec<&mut String> = match &mut self.devices {
            DraftDevices::Whole { name, .. } => name.iter_mut().collect(),
            DraftDevices::Instances(entries) => entries
                .iter_mut()
                .flat_map(|entry| &mut entry.name)
                .collect(),
        };
        for name in names {
            *name = name.replace("{gpu}", &index.to_string());
        }
    }

    /// Returns the block without placements, with neighbours alike counted.
    pub(super) fn unpinned(&self) -> Self {
        let mut block = self.clone();
        if let DraftDevices::Instances(entries) = &mut block.devices {
            let mut counted: Vec<DraftEntry> = Vec::new();
            for entry in entries.drain(..) {
                let entry = DraftEntry { at: None, ..entry };
                match counted.last_mut() {
                    Some(last) if entry.name.is_none() && last.is_like(&entry) => last.count += 1,
                    _ => counted.push(entry),
                }
            }
            *entries = counted;
        }
        block
    }

    fn text(&self) -> String {
        let mut lines = vec!["[[gpu]]".to_owned(), format!("select = {}", self.select)];
        match &self.devices {
            DraftDevices::Whole { name, mps } => {
                lines.push("mig = false".to_owned());
                lines.extend(name.iter().map(|name| format!("name = {}", quoted(name))));
                if !mps.is_empty() {
                    lines.push(format!("mps = {}", inline(mps)));
                }
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
    /// True if both are the same but for their number.
    fn is_like(&self, other: &Self) -> bool {
        let count = other.count;
        Self {
            count,
            ..self.clone()
        } == *other
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
        f.write_str("{ ")?;
        if let Some(name) = &self.name {
            write!(f, "name = {}, ", quoted(name))?;
        }
        write!(f, "profile = \"{}\"", self.profile)?;
        if let Some(at) = self.at {
            write!(f, ", at = {at}")?;
        }
        if self.count > 1 {
            write!(f, ", count = {}", self.count)?;
        }
        if !self.compute.is_empty() {
            let names: Vec<String> = self.compute.iter().map(|n| format!("{n}c")).collect();
            write!(f, ", compute = {names:?}")?;
        }
        if !self.mps.is_empty() {
            write!(f, ", mps = {}", inline(&self.mps))?;
        }
        f.write_str(" }")
    }
}

fn inline(table: &Table) -> String {
    let pairs = table.iter().map(|(key, value)| format!("{key} = {value}"));
    format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
}
