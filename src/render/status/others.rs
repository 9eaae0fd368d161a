//! The tables and the summary below the devices: clients, programs outside MPS, unmanaged daemons.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::format::{display_or, format_age, format_count, format_gib, format_time_taken};
use super::columns::{format_pids, format_user};
use crate::host::{Workload, format_ranges};
use crate::node::{Client, Device, DeviceState, MpsProgram, Node, Served, Unmanaged, Variable};
use crate::nvml::GpuUsage;
use crate::render::table::{Column, NONE, Table, UNKNOWN};

/// The column of jobs, pods and containers, where a program belongs to one.
const WORKLOAD: Column = Column::left_aligned("WORKLOAD", 1).hidden_if_empty();

fn format_workload(of: Option<&Workload>) -> String {
    match of {
        None => UNKNOWN.to_owned(),
        Some(none) if !none.is_any() => NONE.to_owned(),
        Some(workload) => workload.to_string(),
    }
}

/// True if a table of programs has a column of GPUs.
fn has_joint_device(devices: &[&Device]) -> bool {
    devices.iter().any(|device| device.key.is_joint())
}

/// Lists the GPUs of a joint device that a program uses: `0-1`.
fn format_usages(gpus: &[GpuUsage]) -> String {
    let indices: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
    format_ranges(&indices)
}

/// Returns the table of clients and waiting programs, with notes where there are any.
pub(super) fn client_table(devices: &[&Device]) -> Table {
    let mut table = ClientTable::new(devices);
    for device in devices {
        let Some(served) = &device.served else {
            continue;
        };
        let name = &device.name;
        let mut unseen = 0;
        for client in served.clients.as_slice() {
            if client.pid.is_some() {
                let memory = display_or(client.memory.map(format_gib), "?");
                let cells = client_cells(name, client, memory);
                table.add_row(cells, note(served, client), format_usages(&client.gpus));
            } else {
                unseen += 1;
            }
        }
        if unseen > 0 {
            let cells = vec![
                name.clone(),
                "hidden".to_owned(),
                "?".to_owned(),
                "?".to_owned(),
                "?".to_owned(),
                UNKNOWN.to_owned(),
                format!("{unseen} in containers whose pids the daemon cannot see"),
            ];
            table.add_row(cells, String::new(), String::new());
        }
        for client in &served.waiting {
            let cells = client_cells(name, client, "waiting".to_owned());
            table.add_row(cells, String::new(), String::new());
        }
    }
    table.table
}

/// The table of clients, which has a column of notes only if there are any, and one of GPUs only if a device has several.
struct ClientTable {
    has_notes: bool,
    has_gpus: bool,
    table: Table,
}

/// The position of the GPUs: after the device.
const GPUS_POSITION: usize = 1;

/// The position of the notes: before the command, which is cut.
const NOTE_POSITION: usize = 5;

impl ClientTable {
    fn new(devices: &[&Device]) -> Self {
        let has_notes = devices
            .iter()
            .filter_map(|device| device.served.as_ref())
            .any(|served| {
                served
                    .clients
                    .as_slice()
                    .iter()
                    .any(|client| !note(served, client).is_empty())
            });
        let mut columns = vec![
            Column::left_aligned("CLIENT OF", 0),
            Column::right_aligned("PID", 0),
            Column::left_aligned("USER", 0),
            Column::right_aligned("MEMORY GIB", 1),
            Column::right_aligned("RUNNING", 2).changing_with_time(),
            WORKLOAD,
            Column::left_aligned("COMMAND", 0).with_least_width(20),
        ];
        if has_notes {
            columns.insert(NOTE_POSITION, Column::left_aligned("NOTE", 0));
        }
        let has_gpus = has_joint_device(devices);
        if has_gpus {
            columns.insert(GPUS_POSITION, Column::right_aligned("GPU", 3));
        }
        Self {
            has_notes,
            has_gpus,
            table: Table::new(columns),
        }
    }

    fn add_row(&mut self, mut cells: Vec<String>, note: String, gpus: String) {
        if self.has_notes {
            cells.insert(NOTE_POSITION, note);
        }
        if self.has_gpus {
            cells.insert(GPUS_POSITION, gpus);
        }
        self.table.add_row(cells);
    }
}

/// Marks a client above its memory limit, and one that started before the present settings.
fn note(served: &Served, client: &Client) -> String {
    let is_over = served.is_over_limit(client) == Some(true);
    let is_older = !served.earlier_values(client).is_empty();
    let mut notes = Vec::new();
    notes.extend(is_over.then_some("above limit"));
    notes.extend(is_older.then_some("earlier settings"));
    notes.join(", ")
}

fn client_cells(device: &str, client: &Client, memory: String) -> Vec<String> {
    vec![
        device.to_owned(),
        client.shown_pid(),
        format_user(client.user),
        memory,
        display_or(client.age.map(format_age), "?"),
        format_workload(client.workload.as_ref()),
        display_or(client.command.as_ref(), "hidden"),
    ]
}

/// Returns the table of programs outside MPS.
pub(super) fn outside_mps_table(devices: &[&Device]) -> Table {
    let mut columns = vec![
        Column::left_aligned("OUTSIDE MPS", 0),
        Column::right_aligned("PID", 0),
        Column::left_aligned("USER", 0),
        Column::right_aligned("MEMORY GIB", 0),
        Column::right_aligned("RUNNING", 2).changing_with_time(),
        WORKLOAD,
        Column::left_aligned("COMMAND", 0).with_least_width(12),
        Column::left_aligned("LIKELY CAUSE", 0).with_least_width(20),
    ];
    let has_gpus = has_joint_device(devices);
    if has_gpus {
        columns.insert(GPUS_POSITION, Column::right_aligned("GPU", 3));
    }
    let mut table = Table::new(columns);
    for device in devices {
        for outside in &device.outside_mps {
            let mut cells = vec![
                device.name.clone(),
                outside.pid.to_string(),
                format_user(outside.user),
                display_or(outside.memory.map(format_gib), "?"),
                display_or(outside.age.map(format_age), "?"),
                format_workload(outside.workload.as_ref()),
                outside.command.clone(),
                outside.cause.to_string(),
            ];
            if has_gpus {
                cells.insert(GPUS_POSITION, format_usages(&outside.gpus));
            }
            table.add_row(cells);
        }
    }
    table
}

/// Returns the table of the daemons of `run --private`, which end with their programs.
pub(super) fn private_table(node: &Node) -> Table {
    let mut table = Table::new(vec![
        Column::left_aligned("PRIVATE DAEMON OF", 0),
        Column::left_aligned("SERVES", 0),
        Column::left_aligned("RUN BY", 1).hidden_if_empty(),
        Column::right_aligned("PID", 0),
        Column::right_aligned("SERVER", 3),
        Column::right_aligned("RUNNING", 2).changing_with_time(),
    ]);
    for daemon in node.unmanaged.iter().filter(|daemon| daemon.is_private()) {
        table.add_row(vec![
            format_user(daemon.user),
            format_served(daemon),
            display_or(daemon.supervisor.as_ref(), NONE),
            daemon.pid.to_string(),
            display_or(format_pids(&daemon.servers), "-"),
            display_or(daemon.age.map(format_age), "?"),
        ]);
    }
    table
}

fn format_served(daemon: &Unmanaged) -> String {
    let indices = daemon.devices.iter().map(|name| name.parse::<u32>());
    match indices.collect::<Result<Vec<u32>, _>>() {
        Ok(indices) if !indices.is_empty() => return format_ranges(&indices),
        _ => {}
    }
    match daemon.devices.as_slice() {
        [] if daemon.visible == Variable::Hidden => "?".to_owned(),
        [] => "-".to_owned(),
        [first, .., last] if daemon.devices.len() > 4 => {
            format!("{first} … {last} ({})", daemon.devices.len())
        }
        names => names.join(","),
    }
}

/// Returns the table of unmanaged daemons and servers.
pub(super) fn unmanaged_table(node: &Node) -> Table {
    let mut table = Table::new(vec![
        Column::left_aligned("UNMANAGED", 0),
        Column::right_aligned("PID", 0),
        Column::left_aligned("STATE", 2),
        Column::left_aligned("USER", 0),
        Column::left_aligned("SERVES", 0),
        Column::left_aligned("RUN BY", 1).hidden_if_empty(),
        Column::right_aligned("SERVER", 3),
        Column::right_aligned("RUNNING", 4).changing_with_time(),
        Column::left_aligned("PIPE DIRECTORY", 1),
        Column::left_aligned("CUDA_VISIBLE_DEVICES", 5),
    ]);
    for unmanaged in node.unmanaged.iter().filter(|daemon| !daemon.is_private()) {
        let program = match unmanaged.program {
            MpsProgram::Control => "daemon",
            MpsProgram::Server => "server without daemon",
        };
        table.add_row(vec![
            program.to_owned(),
            unmanaged.pid.to_string(),
            if unmanaged.is_orphan {
                "orphan"
            } else {
                "unmanaged"
            }
            .to_owned(),
            format_user(unmanaged.user),
            format_served(unmanaged),
            display_or(unmanaged.supervisor.as_ref(), NONE),
            display_or(format_pids(&unmanaged.servers), "-"),
            display_or(unmanaged.age.map(format_age), "?"),
            format_variable(&unmanaged.pipe_directory, "default"),
            format_variable(&unmanaged.visible, "all"),
        ]);
    }
    table
}

fn format_variable(variable: &Variable, unset: &str) -> String {
    match variable {
        Variable::Hidden => "hidden".to_owned(),
        Variable::Unset => unset.to_owned(),
        Variable::Is(value) => value.clone(),
    }
}

/// Says in one line how many of these devices, or of all, are ready after a change.
pub fn summary(node: &Node, devices: &[String], took: Duration) -> String {
    let devices = node.devices_to_show(devices);
    let served: Vec<_> = devices
        .iter()
        .filter(|device| device.served.is_some())
        .collect();
    let is_one_served = !served.is_empty();
    let gpus: BTreeSet<u32> = devices
        .iter()
        .filter(|device| device.served.is_some() == is_one_served)
        .flat_map(|device| node.gpus_with_key(&device.key).map(|gpu| gpu.index))
        .collect();
    // A lazy daemon starts its server for the first client.
    let ready = served.iter().filter(|device| {
        matches!(
            node.state_of(device),
            DeviceState::Ready | DeviceState::NoServerYet
        )
    });
    let (served, ready) = (served.len(), ready.count());
    let (gpus, took) = (format_count(gpus.len(), "GPU"), format_time_taken(took));
    match (devices.len(), served, ready) {
        (0, ..) => format!("Done in {took}"),
        (all, 0, _) => format!(
            "{} on {gpus} in {took}, none with a daemon",
            format_count(all, "device")
        ),
        (_, all, ready) if all == ready => {
            format!("{} on {gpus} ready in {took}", format_count(all, "device"))
        }
        (_, all, ready) => format!(
            "{ready} of {} on {gpus} ready in {took}",
            format_count(all, "device")
        ),
    }
}
