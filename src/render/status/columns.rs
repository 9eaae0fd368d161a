//! The table of devices.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use console::Style;
use jiff::Timestamp;

use super::super::format::{display_or, format_age, format_gib};
use super::super::output::output_width;
use super::rows::DeviceRow;
use crate::host::{Uid, format_count, format_ranges, user_name};
use crate::node::{Device, DeviceState, Node, Served, ServerProcess};
use crate::render::table::{Column, NONE, SEVERAL, Table, UNKNOWN};
use crate::settings::{
    ACTIVE_THREAD_PERCENTAGE, CLIENT_PRIORITY, KEYS, PINNED_MEMORY_LIMIT, Serve,
};

/// A column of the table of devices.
#[derive(Clone, Copy, Debug)]
pub struct StatusColumn {
    /// Its name for `--columns`.
    name: &'static str,
    help: &'static str,
    column: Column,
    /// Formats its cell; `None` if the device has no such value.
    cell: fn(&Node, &Device) -> Option<String>,
}

/// The number of columns that are shown if none is named.
const DEFAULT_COLUMN_COUNT: usize = 15;

/// The values that are left blank if no column is named.
const DEFAULT_VALUES: [(&str, &str); 2] = [("threads", "100%"), ("limit", "none")];

/// The columns in which equal devices differ.
const DIFFERENT_COLUMNS: [&str; 8] = [
    "name", "gpu", "memory", "util", "daemon", "server", "since", "device",
];

/// All columns: the usual ones in the order in which they are shown, and those that are only shown if named.
const ALL_COLUMNS: [StatusColumn; 18] = [
    StatusColumn {
        name: "name",
        help: "Name of the device",
        column: Column::left_aligned("NAME", 0),
        cell: |_, device| Some(device.name.clone()),
    },
    StatusColumn {
        name: "gpu",
        help: "Index of its GPU, or indices of a joint device",
        column: Column::right_aligned("GPU", 7),
        cell: |node, device| {
            let gpus = node.gpu_indices_of(device);
            (!gpus.is_empty()).then(|| format_ranges(&gpus))
        },
    },
    StatusColumn {
        name: "profile",
        help: "Profile name, such as 3g.40gb",
        column: Column::left_aligned("PROFILE", 0),
        cell: |_, device| device.profile_name().map(str::to_owned),
    },
    StatusColumn {
        name: "state",
        help: "State of its daemon",
        column: Column::left_aligned("STATE", 0),
        cell: |node, device| {
            let state = node.state_of(device);
            Some(state_style(state).apply_to(state).to_string())
        },
    },
    StatusColumn {
        name: "user",
        help: "Users of its clients",
        column: Column::left_aligned("USER", 5),
        cell: |_, device| {
            // A server remains when its user's programs have exited, and does not exclude other users then.
            let served = device
                .live_daemon()
                .filter(|served| !served.clients.are_none())?;
            Some(format_users(served).unwrap_or_else(|| missing_cell(device)))
        },
    },
    StatusColumn {
        name: "clients",
        help: "Number of clients, and the limit where it is known",
        column: Column::right_aligned("CLIENTS", 0),
        cell: |_, device| format_clients(device),
    },
    StatusColumn {
        name: "threads",
        help: "Active thread percentage, as set",
        column: Column::right_aligned("THREADS", 3).hidden_if_empty(),
        cell: |_, device| format_setting(device, ACTIVE_THREAD_PERCENTAGE, "%"),
    },
    StatusColumn {
        name: "limit",
        help: "Pinned memory limit of a client, as set",
        column: Column::right_aligned("LIMIT", 2).hidden_if_empty(),
        cell: |_, device| format_setting(device, PINNED_MEMORY_LIMIT, ""),
    },
    StatusColumn {
        name: "memory",
        help: "Device memory, used and total",
        column: Column::right_aligned("MEMORY GIB", 1),
        cell: |_, device| {
            let memory = device.memory()?;
            Some(format!(
                "{}/{}",
                format_gib(memory.used),
                format_gib(memory.total)
            ))
        },
    },
    StatusColumn {
        name: "util",
        help: "Utilization of a whole GPU",
        column: Column::right_aligned("UTIL", 9).hidden_if_empty(),
        cell: |node, device| Some(format!("{}%", node.gpu_utilization(device)?)),
    },
    StatusColumn {
        name: "daemon",
        help: "Process id of its daemon",
        column: Column::right_aligned("DAEMON", 12).hidden_if_empty(),
        cell: |_, device| Some(device.live_daemon()?.record.daemon?.pid.to_string()),
    },
    StatusColumn {
        name: "server",
        help: "Process ids of its servers",
        column: Column::right_aligned("SERVER", 11).hidden_if_empty(),
        cell: |_, device| {
            Some(
                format_pids(&device.live_daemon()?.servers).unwrap_or_else(|| missing_cell(device)),
            )
        },
    },
    StatusColumn {
        name: "since",
        help: "Time since its daemon was started",
        column: Column::right_aligned("SINCE", 8)
            .changing_with_time()
            .hidden_if_empty(),
        cell: |_, device| Some(format_age(daemon_age(device.live_daemon()?))),
    },
    StatusColumn {
        name: "serve",
        help: "Users that its daemon serves",
        column: Column::left_aligned("SERVE", 4),
        cell: |_, device| device.serve_setting().map(Serve::to_string),
    },
    StatusColumn {
        name: "device",
        help: "UUID of the device",
        column: Column::left_aligned("DEVICE", 10).hidden_if_empty(),
        cell: |_, device| Some(device.uuid.clone()),
    },
    StatusColumn {
        name: "priority",
        help: "Priority of the clients, as set",
        column: Column::left_aligned("PRIORITY", 0),
        cell: |_, device| format_setting(device, CLIENT_PRIORITY, ""),
    },
    StatusColumn {
        name: "cpus",
        help: "CPUs of its daemon and servers",
        column: Column::left_aligned("CPUS", 0),
        cell: |_, device| {
            let settings = &device.served.as_ref()?.record.settings;
            Some(display_or(settings.cpus.as_ref(), "all"))
        },
    },
    StatusColumn {
        name: "by-hand",
        help: "Settings that mig-mps set has changed",
        column: Column::left_aligned("SET BY HAND", 0),
        cell: |_, device| {
            let keys = device.served.as_ref()?.record.by_hand.join(",");
            Some(keys).filter(|keys| !keys.is_empty())
        },
    },
];

impl ValueEnum for StatusColumn {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL_COLUMNS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.help))
    }
}

impl StatusColumn {
    /// Returns the cell of this device.
    fn format_cell(&self, node: &Node, device: &Device) -> String {
        display_or((self.cell)(node, device), NONE)
    }

    /// Returns the cell of a row, in a table whose columns are not named.
    fn format_usual_cell(&self, node: &Node, row: &DeviceRow<'_>) -> String {
        let cell = match self.name {
            "name" => row.names(),
            "gpu" => row.gpus(node),
            // They are equal by chance.
            "since" if row.is_of_several() => SEVERAL.to_owned(),
            _ => row.value_of_all(|device| self.format_cell(node, device)),
        };
        if DEFAULT_VALUES.contains(&(self.name, &cell)) {
            return String::new();
        }
        cell
    }
}

/// Returns the table of devices with these columns; with as many as fit if none is named.
pub fn device_table(node: &Node, rows: &[DeviceRow<'_>], wanted: &[StatusColumn]) -> Table {
    if wanted.is_empty() {
        let columns = &ALL_COLUMNS[..DEFAULT_COLUMN_COUNT];
        let mut table = Table::new(columns.iter().map(|column| column.column).collect());
        for row in rows {
            let cells = columns
                .iter()
                .map(|column| column.format_usual_cell(node, row));
            table.add_row(cells.collect());
        }
        return table;
    }
    let mut columns: Vec<&StatusColumn> = Vec::new();
    for column in wanted {
        if columns.iter().all(|earlier| earlier.name != column.name) {
            columns.push(column);
        }
    }
    // A column that the user named is shown whatever the width.
    let shown = columns.iter().map(|column| column.column.never_hidden());
    let mut table = Table::new(shown.collect());
    for device in rows.iter().flat_map(DeviceRow::devices) {
        let cells = columns
            .iter()
            .map(|column| column.format_cell(node, device));
        table.add_row(cells.collect());
    }
    table
}

/// Returns the cells by which devices are equal.
pub fn format_kind(node: &Node, device: &Device) -> Vec<String> {
    let gpu = node.gpu_with_uuid(&device.key.gpu);
    let product = gpu.map(|gpu| gpu.product.clone()).unwrap_or_default();
    ALL_COLUMNS
        .iter()
        .filter(|column| !DIFFERENT_COLUMNS.contains(&column.name))
        .map(|column| column.format_cell(node, device))
        .chain([product])
        .collect()
}

/// True if the table may have a column for the utilization on this terminal: cells make it only wider.
pub fn may_show_utilization(wanted: &[StatusColumn]) -> bool {
    if !wanted.is_empty() {
        return wanted.iter().any(|column| column.name == "util");
    }
    let mut table = device_table(&Node::default(), &[], &[]);
    table.add_row(vec!["0".to_owned(); DEFAULT_COLUMN_COUNT]);
    let drawn = table.render(output_width(), "");
    drawn
        .lines()
        .next()
        .is_some_and(|head| head.contains("UTIL"))
}

/// Returns the cell of a value that does not exist or is unknown.
fn missing_cell(device: &Device) -> String {
    let is_known = device.daemon_with_known_clients().is_some();
    if is_known { NONE } else { UNKNOWN }.to_owned()
}

/// `3`, `3/48`, `3+1 waiting`; `None` without a daemon.
pub fn format_clients(device: &Device) -> Option<String> {
    let alive = device.live_daemon()?;
    let Some(served) = device.daemon_with_known_clients() else {
        return Some("?".to_owned());
    };
    let mut text = served.clients.as_slice().len().to_string();
    if let Some(limit) = alive.client_limit() {
        text = format!("{text}/{limit}");
    }
    if !alive.waiting.is_empty() {
        text = format!("{text}+{} waiting", alive.waiting.len());
    }
    Some(text)
}

/// `50%`, as set; `70%!=50%` if the daemon was asked and has another value.
fn format_setting(device: &Device, name: &str, unit: &str) -> Option<String> {
    let served = device.served.as_ref()?;
    let key = KEYS.iter().find(|key| key.name == name)?;
    let settings = &served.record.settings;
    let set = format!("{}{unit}", (key.show)(settings));
    let reported = served.answered.as_ref();
    let differing = reported.and_then(|reported| reported.differing_value(key, settings));
    Some(match differing {
        Some(is) => format!("{is}{unit}!={set}"),
        None => set,
    })
}

/// The most users that are named.
const MAX_USERS: usize = 2;

/// Returns the users of the clients, or of the servers if no client can be seen: `alice`, `alice,bob`, `3 users`.
fn format_users(served: &Served) -> Option<String> {
    let users: Vec<Option<Uid>> = match served.clients.as_slice() {
        [] => served.servers.iter().map(|server| server.user).collect(),
        clients => clients.iter().map(|client| client.user).collect(),
    };
    let names: BTreeSet<String> = users.into_iter().map(format_user).collect();
    match names.len() {
        0 => None,
        count if count > MAX_USERS => Some(format_count(count, "user")),
        _ => Some(names.into_iter().collect::<Vec<_>>().join(",")),
    }
}

pub fn format_pids(servers: &[ServerProcess]) -> Option<String> {
    let pids: Vec<String> = servers
        .iter()
        .map(|server| server.pid.to_string())
        .collect();
    (!pids.is_empty()).then(|| pids.join(","))
}

pub fn format_user(uid: Option<Uid>) -> String {
    display_or(uid.map(user_name), "hidden")
}

fn daemon_age(served: &Served) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(served.record.since)).unwrap_or_default()
}

pub fn state_style(state: DeviceState) -> Style {
    match state {
        DeviceState::Ready => Style::new().green(),
        DeviceState::Fault
        | DeviceState::Dead
        | DeviceState::Failing
        | DeviceState::Orphan
        | DeviceState::NoDevice
        | DeviceState::GpuLost => Style::new().red().bold(),
        DeviceState::NoDaemon | DeviceState::NoServerYet => Style::new().dim(),
        _ => Style::new().yellow(),
    }
}
