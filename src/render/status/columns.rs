//! The table of devices.

use std::ptr;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use console::Style;
use jiff::Timestamp;

use super::super::format::{age, gib, shown_or};
use super::device::ShownState;
use crate::host::{Uid, user_name};
use crate::node::{Device, Gpu, Node, Served, ServerProcess};
use crate::nvml::Memory;
use crate::render::table::{Column, Table};
use crate::settings::{ACTIVE_THREAD_PERCENTAGE, CLIENT_PRIORITY, KEYS, PINNED_MEMORY_LIMIT};
use crate::state::DeviceKey;

/// A device and its daemon.
pub struct Row<'a> {
    node: &'a Node,
    pub name: String,
    pub uuid: String,
    key: DeviceKey,
    /// `None` if it is gone.
    pub device: Option<Device>,
    pub served: Option<&'a Served>,
}

/// Returns the devices in the order of `list`; those that are gone come last.
pub fn rows<'a>(node: &'a Node, devices: &[String]) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for served in &node.served {
        let record = &served.record;
        let device = device_of(node, served);
        let uuid = device.as_ref().map_or(&record.uuid, |device| &device.uuid);
        rows.push(Row {
            node,
            name: record.name.clone(),
            uuid: uuid.clone(),
            key: record.key.clone(),
            device,
            served: Some(served),
        });
    }
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
        order
            .iter()
            .position(|device| Some(device) == row.device.as_ref())
            .unwrap_or(order.len())
    });
    rows
}

/// Returns the device of a record. A device that was made again may have two records, of which one has it.
fn device_of(node: &Node, served: &Served) -> Option<Device> {
    let key = &served.record.key;
    if !ptr::eq(node.served_on(key)?, served) {
        return None;
    }
    node.devices().find(|device| device.key == *key)
}

impl Row<'_> {
    pub fn gpu(&self) -> Option<&Gpu> {
        self.node.gpu(&self.key.gpu)
    }

    /// Returns the index of its GPU, also of one that is lost.
    pub fn gpu_index(&self) -> Option<u32> {
        match (self.gpu(), self.served) {
            (Some(gpu), _) => Some(gpu.index),
            (None, Some(served)) if !served.is_gone() => served.record.gpu,
            (None, _) => None,
        }
    }

    /// True if its device should be there.
    pub fn is_missed(&self) -> bool {
        self.served.is_some_and(|served| self.node.misses(served))
    }

    /// True if it has no record that can be read, and a daemon may serve it.
    pub fn may_be_served(&self) -> bool {
        self.served.is_none() && self.node.may_be_served(&self.uuid)
    }

    pub fn profile(&self) -> Option<String> {
        let part = self.device.as_ref()?.part.as_ref();
        Some(shown_or(part.map(|part| &part.title), "whole GPU"))
    }

    pub fn memory(&self) -> Option<Memory> {
        self.node.processes.get(&self.uuid)?.memory
    }

    /// True for a MIG device: no driver reports its utilization.
    pub fn is_part(&self) -> bool {
        self.key.instance.is_some()
    }

    pub fn utilization(&self) -> Option<u32> {
        let is_whole = self.device.is_some() && !self.is_part();
        self.gpu().filter(|_| is_whole)?.utilization
    }

    /// Returns its daemon if that runs, or may run.
    pub fn alive(&self) -> Option<&Served> {
        self.served.filter(|served| served.is_alive())
    }

    /// True if its servers and clients are known.
    pub fn is_known(&self) -> bool {
        self.served.is_some_and(|served| served.clients.are_known())
    }

    /// True if its daemon runs and its servers and clients are unknown.
    pub fn is_unknown(&self) -> bool {
        self.alive().is_some() && !self.is_known()
    }
}

/// A column of the table of devices.
#[derive(Clone, Copy, Debug)]
pub struct StatusColumn {
    /// Its name for `--columns`.
    name: &'static str,
    help: &'static str,
    column: Column,
    /// Formats its cell; `None` if the device has no such value.
    cell: fn(&Row<'_>) -> Option<String>,
}

/// The number of columns that are shown if none is named.
const USUAL: usize = 14;

/// All columns: the usual ones in the order in which they are shown, and those that are only shown if named.
const ALL: [StatusColumn; 18] = [
    StatusColumn {
        name: "name",
        help: "Name of the device",
        column: Column::left("NAME", 0),
        cell: |row| Some(row.name.clone()),
    },
    StatusColumn {
        name: "gpu",
        help: "Index of its GPU",
        column: Column::right("GPU", 5),
        cell: |row| row.gpu_index().map(|index| index.to_string()),
    },
    StatusColumn {
        name: "profile",
        help: "Profile name, such as 3g.40gb",
        column: Column::left("PROFILE", 0),
        cell: |row| row.profile(),
    },
    StatusColumn {
        name: "state",
        help: "State of its daemon",
        column: Column::left("STATE", 0),
        cell: |row| {
            let state = ShownState::of(row);
            Some(style(state).apply_to(state).to_string())
        },
    },
    StatusColumn {
        name: "user",
        help: "Users of its servers",
        column: Column::left("USER", 3),
        cell: |row| Some(users(row.alive()?).unwrap_or_else(|| unknown(row))),
    },
    StatusColumn {
        name: "clients",
        help: "Number of clients, and the limit where it is known",
        column: Column::right("CLIENTS", 0),
        cell: |row| Some(clients(row.alive()?, row.is_known())),
    },
    StatusColumn {
        name: "threads",
        help: "Active thread percentage, in parentheses if not read back",
        column: Column::right("THREADS", 6),
        cell: |row| setting(row, ACTIVE_THREAD_PERCENTAGE, "%"),
    },
    StatusColumn {
        name: "memory",
        help: "Device memory, used and total",
        column: Column::right("MEMORY GIB", 1),
        cell: |row| {
            let memory = row.memory()?;
            Some(format!("{}/{}", gib(memory.used), gib(memory.total)))
        },
    },
    StatusColumn {
        name: "util",
        help: "Utilization of the GPU; n/a for MIG devices",
        column: Column::right("UTIL", 7),
        cell: |row| {
            if row.is_part() {
                return Some("n/a".to_owned());
            }
            row.utilization().map(|percent| format!("{percent}%"))
        },
    },
    StatusColumn {
        name: "daemon",
        help: "Process id of its daemon",
        column: Column::right("DAEMON", 2),
        cell: |row| Some(row.alive()?.record.daemon?.pid.to_string()),
    },
    StatusColumn {
        name: "server",
        help: "Process ids of its servers",
        column: Column::right("SERVER", 1),
        cell: |row| Some(pids(&row.alive()?.servers).unwrap_or_else(|| unknown(row))),
    },
    StatusColumn {
        name: "since",
        help: "Time since its daemon was started",
        column: Column::right("SINCE", 8).changing_with_time(),
        cell: |row| Some(age(since(row.alive()?))),
    },
    StatusColumn {
        name: "serve",
        help: "Users that its daemon serves",
        column: Column::left("SERVE", 9),
        cell: |row| Some(row.served?.record.settings.serve.as_ref()?.to_string()),
    },
    StatusColumn {
        name: "device",
        help: "UUID of the device",
        column: Column::left("DEVICE", 10),
        cell: |row| Some(row.uuid.clone()),
    },
    StatusColumn {
        name: "limit",
        help: "Most device memory of a client, in parentheses if not read back",
        column: Column::right("LIMIT", 0),
        cell: |row| setting(row, PINNED_MEMORY_LIMIT, ""),
    },
    StatusColumn {
        name: "priority",
        help: "Priority of the clients, in parentheses if not read back",
        column: Column::left("PRIORITY", 0),
        cell: |row| setting(row, CLIENT_PRIORITY, ""),
    },
    StatusColumn {
        name: "cpus",
        help: "CPUs of its daemon and servers",
        column: Column::left("CPUS", 0),
        cell: |row| Some(shown_or(row.served?.record.settings.cpus.as_ref(), "all")),
    },
    StatusColumn {
        name: "by-hand",
        help: "Settings that mig-mps set has changed",
        column: Column::left("SET BY HAND", 0),
        cell: |row| Some(row.served?.record.by_hand.join(",")).filter(|keys| !keys.is_empty()),
    },
];

impl ValueEnum for StatusColumn {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.help))
    }
}

impl PartialEq for StatusColumn {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Returns the table of devices with these columns; with as many as fit if none is named.
pub fn table(rows: &[Row<'_>], wanted: &[StatusColumn]) -> Table {
    let mut columns: Vec<StatusColumn> = Vec::new();
    // A column that the user named is shown whatever the width, and once.
    for wanted in wanted {
        if !columns.contains(wanted) {
            columns.push(StatusColumn {
                column: wanted.column.kept(),
                ..*wanted
            });
        }
    }
    if columns.is_empty() {
        columns = ALL[..USUAL].to_vec();
    }
    let mut table = Table::new(columns.iter().map(|column| column.column).collect());
    for row in rows {
        let cells = columns
            .iter()
            .map(|column| shown_or((column.cell)(row), "-"))
            .collect();
        table.row(cells);
    }
    table
}

/// Returns the cell of a value that does not exist or is unknown.
fn unknown(row: &Row<'_>) -> String {
    if row.is_known() { "-" } else { "?" }.to_owned()
}

/// `3`, `3/48`, `3+1 waiting`
pub fn clients(served: &Served, is_known: bool) -> String {
    if !is_known {
        return "?".to_owned();
    }
    let mut text = served.clients.listed().len().to_string();
    if let Some(limit) = served.client_limit {
        text = format!("{text}/{limit}");
    }
    if !served.waiting.is_empty() {
        text = format!("{text}+{} waiting", served.waiting.len());
    }
    text
}

/// `50%`, `70%!=50%` if somebody has changed it, `(50%)` as configured if the daemon was not asked for it.
fn setting(row: &Row<'_>, name: &str, unit: &str) -> Option<String> {
    let served = row.served?;
    let key = KEYS.iter().find(|key| key.name == name)?;
    let settings = &served.record.settings;
    let set = format!("{}{unit}", (key.show)(settings));
    let reported = served
        .answered
        .as_ref()
        .filter(|reported| reported.has(key));
    let Some(reported) = reported else {
        return Some(format!("({set})"));
    };
    Some(match reported.difference(key, settings) {
        Some(is) => format!("{is}{unit}!={set}"),
        None => set,
    })
}

fn users(served: &Served) -> Option<String> {
    let mut names: Vec<String> = served
        .servers
        .iter()
        .map(|server| user(server.user))
        .collect();
    names.dedup();
    (!names.is_empty()).then(|| names.join(","))
}

pub fn pids(servers: &[ServerProcess]) -> Option<String> {
    let pids: Vec<String> = servers
        .iter()
        .map(|server| server.pid.to_string())
        .collect();
    (!pids.is_empty()).then(|| pids.join(","))
}

pub fn user(uid: Option<Uid>) -> String {
    shown_or(uid.map(user_name), "hidden")
}

fn since(served: &Served) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(served.record.since)).unwrap_or_default()
}

pub fn style(state: ShownState) -> Style {
    match state {
        ShownState::Ready => Style::new().green(),
        ShownState::Fault
        | ShownState::Dead
        | ShownState::Failing
        | ShownState::Orphan
        | ShownState::NoDevice
        | ShownState::GpuLost => Style::new().red().bold(),
        ShownState::NoDaemon | ShownState::NoServerYet => Style::new().dim(),
        _ => Style::new().yellow(),
    }
}
