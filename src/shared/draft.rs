//! A profile on its way to a file: tables of TOML, with notes for their reader.

use std::collections::BTreeSet;
use std::fmt;

use regex::escape;
use toml::{Table, Value};

use crate::geometry::{ComputeName, ProfileName};
use crate::settings::{PINNED_MEMORY_LIMIT, SHARE, Settings};

/// A profile made of another tool's file, or of a node.
#[derive(Clone, Debug)]
pub struct ConvertedProfile {
    /// The profile.
    pub draft: DraftProfile,
    /// The differences from mig-parted, or the steps that `up` would still take.
    pub notes: Vec<String>,
}

/// A profile on its way to being a file. It prints as TOML.
#[derive(Clone, Debug, Default)]
pub struct DraftProfile {
    /// Notes for the reader, a line each.
    pub remarks: Vec<String>,
    /// The keys of the profile itself, such as `name`.
    pub keys: Table,
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
    pub select: Table,
    /// The other keys: what becomes of these GPUs.
    pub want: Table,
}

/// Makes a table of these keys.
pub fn table<const N: usize>(pairs: [(&str, Value); N]) -> Table {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// The keys of a block for MIG devices with these entries. `mps = false` stands once where all have it.
pub fn mig_devices(mut entries: Vec<Table>) -> Table {
    if entries.is_empty() || !entries.iter().all(is_off) {
        return table([("devices", entries.into())]);
    }
    for entry in &mut entries {
        entry.remove(MPS);
    }
    table([(MPS, false.into()), ("devices", entries.into())])
}

/// An entry of `devices`; `compute` are the slices of the compute instances, none for the one that has all SMs.
pub fn device_entry(profile: &ProfileName, compute: &[u32]) -> Table {
    let mut entry = table([("profile", profile.to_string().into())]);
    if !compute.is_empty() {
        let names: Vec<String> = compute
            .iter()
            .map(|&slices| ComputeName { slices })
            .map(|name| name.to_string())
            .collect();
        entry.insert("compute".to_owned(), names.into());
    }
    entry
}

/// Makes one entry of neighbors that are alike and have no names.
pub fn merge_equal_entries(entries: &[Table]) -> Vec<Table> {
    let alike = entries.chunk_by(|a, b| !a.contains_key("name") && a == b);
    alike
        .map(|alike| {
            let mut entry = alike[0].clone();
            if alike.len() > 1 {
                let count = u32::try_from(alike.len()).unwrap_or(u32::MAX);
                entry.insert("count".to_owned(), count.into());
            }
            entry
        })
        .collect()
}

/// Settings as a profile writes them.
pub fn settings_table(settings: &Settings) -> Table {
    let mut table = Table::try_from(settings).unwrap_or_default();
    if let Some(share) = &settings.share {
        table.insert(SHARE.to_owned(), Value::from(i64::from(share.clients)));
        table.retain(|key, _| !share.decides(key));
        if settings.pinned_memory_limit.is_none() && !share.decides(PINNED_MEMORY_LIMIT) {
            table.insert(PINNED_MEMORY_LIMIT.to_owned(), Value::from("none"));
        }
    }
    table
}

/// The value of a setting that a profile omits.
pub fn default_setting(key: &str) -> Option<Value> {
    settings_table(&Settings::default()).remove(key)
}

const MPS: &str = "mps";

/// True if a table says `mps = false`.
fn is_off(table: &Table) -> bool {
    table.get(MPS) == Some(&Value::Boolean(false))
}

impl DraftProfile {
    /// True if `mps = false` stands at the top: there are MIG devices, and no device has a daemon.
    fn is_off(&self) -> bool {
        let without_devices = mig_devices(Vec::new());
        let wants: Vec<&Table> = self
            .blocks
            .iter()
            .map(|block| &block.want)
            .filter(|want| **want != without_devices)
            .collect();
        wants.iter().all(|want| is_off(want))
            && wants.iter().any(|want| want.contains_key("devices"))
    }
}

impl fmt::Display for DraftProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_remarks(f, &self.remarks)?;
        write_keys(f, &self.keys)?;
        let is_off = self.is_off();
        if is_off {
            writeln!(f, "\n{MPS} = false")?;
        }
        if !self.mps.is_empty() {
            writeln!(f, "\n[{MPS}]")?;
            write_remarks(f, &self.mps_remarks)?;
            write_keys(f, &self.mps)?;
        }
        for block in &self.blocks {
            writeln!(f)?;
            write_remarks(f, &block.remarks)?;
            writeln!(f, "[[gpu]]\nselect = {}", render_inline(&block.select))?;
            let mut want = block.want.clone();
            if is_off {
                want.remove(MPS);
            }
            write_keys(f, &want)?;
        }
        Ok(())
    }
}

fn write_remarks(f: &mut fmt::Formatter<'_>, remarks: &[String]) -> fmt::Result {
    remarks
        .iter()
        .flat_map(|remark| remark.lines())
        .try_for_each(|line| writeln!(f, "# {line}"))
}

/// Writes each key on its line, and each table of a list on a line of its own.
fn write_keys(f: &mut fmt::Formatter<'_>, table: &Table) -> fmt::Result {
    for (key, value) in sorted_entries(table) {
        match value.as_array().map(Vec::as_slice) {
            Some(entries @ [Value::Table(_), ..]) => {
                writeln!(f, "{key} = [")?;
                for entry in entries.iter().filter_map(Value::as_table) {
                    writeln!(f, "  {},", render_inline(entry))?;
                }
                writeln!(f, "]")?;
            }
            _ => writeln!(f, "{}", render_pair(key, value))?,
        }
    }
    Ok(())
}

/// A table on one line.
fn render_inline(table: &Table) -> String {
    let pairs: Vec<String> = sorted_entries(table)
        .into_iter()
        .map(|(key, value)| render_pair(key, value))
        .collect();
    format!("{{ {} }}", pairs.join(", "))
}

fn render_pair(key: &str, value: &Value) -> String {
    match value {
        Value::Table(table) => format!("{key} = {}", render_inline(table)),
        // 50 and not 50.0
        Value::Float(number) => format!("{key} = {number}"),
        value => format!("{key} = {value}"),
    }
}

/// Returns the keys in the order in which people write them; settings go by their names.
fn sorted_entries(table: &Table) -> Vec<(&String, &Value)> {
    const KEYS: [&str; 8] = [
        "mig", "name", "profile", "at", "count", "compute", MPS, "devices",
    ];
    let mut ordered: Vec<(&String, &Value)> = table.iter().collect();
    ordered.sort_by_key(|(key, _)| KEYS.iter().position(|known| known == key));
    ordered
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
