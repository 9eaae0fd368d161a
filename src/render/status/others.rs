//! The tables and the summary below the devices: clients, programs outside MPS, unmanaged daemons.

use std::collections::BTreeSet;
use std::time::Duration;

use console::truncate_str;

use super::super::format::{age, count, gib, shown_or, time_taken};
use super::columns::{pids, user};
use crate::host::Workload;
use crate::node::{Client, Device, DeviceState, MpsProgram, Node, Served, Variable};
use crate::render::table::{Column, NONE, Table, UNKNOWN};

/// The column of jobs, pods and containers, where a program belongs to one.
const WORKLOAD: Column = Column::left("WORKLOAD", 1).for_values();

fn workload(of: Option<&Workload>) -> String {
    match of {
        None => UNKNOWN.to_owned(),
        Some(none) if !none.is_any() => NONE.to_owned(),
        Some(workload) => workload.to_string(),
    }
}

/// Returns the table of clients and waiting programs, with notes where there are any.
pub(super) fn clients(devices: &[&Device]) -> Table {
    let mut served = devices.iter().filter_map(|device| device.served.as_ref());
    let has_notes = served.any(|served| {
        let mut clients = served.clients.listed().iter();
        clients.any(|client| !note(served, client).is_empty())
    });
    let mut columns = vec![
        Column::left("CLIENT OF", 0),
        Column::right("PID", 0),
        Column::left("USER", 0),
        Column::right("MEMORY GIB", 1),
        Column::right("RUNNING", 2).changing_with_time(),
        WORKLOAD,
        Column::left("COMMAND", 0).cut(20),
    ];
    if has_notes {
        columns.insert(NOTE_AT, Column::left("NOTE", 0));
    }
    let mut table = ClientTable {
        has_notes,
        table: Table::new(columns),
    };
    for device in devices {
        let Some(served) = &device.served else {
            continue;
        };
        let name = &device.name;
        let mut unseen = 0;
        for client in served.clients.listed() {
            if client.pid.is_some() {
                let memory = shown_or(client.memory.map(gib), "?");
                table.row(client_cells(name, client, memory), note(served, client));
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
            table.row(cells, String::new());
        }
        for client in &served.waiting {
            let cells = client_cells(name, client, "waiting".to_owned());
            table.row(cells, String::new());
        }
    }
    table.table
}

/// The table of clients, which has a column of notes only if there are any.
struct ClientTable {
    has_notes: bool,
    table: Table,
}

/// The position of the notes: before the command, which is cut.
const NOTE_AT: usize = 5;

impl ClientTable {
    fn row(&mut self, mut cells: Vec<String>, note: String) {
        if self.has_notes {
            cells.insert(NOTE_AT, note);
        }
        self.table.row(cells);
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
        user(client.user),
        memory,
        shown_or(client.age.map(age), "?"),
        workload(client.workload.as_ref()),
        shown_or(client.command.as_ref(), "hidden"),
    ]
}

/// Returns the table of programs outside MPS.
pub(super) fn outside(devices: &[&Device]) -> Table {
    let mut table = Table::new(vec![
        Column::left("OUTSIDE MPS", 0),
        Column::right("PID", 0),
        Column::left("USER", 0),
        Column::right("MEMORY GIB", 0),
        Column::right("RUNNING", 2).changing_with_time(),
        WORKLOAD,
        Column::left("COMMAND", 0).cut(12),
        Column::left("LIKELY CAUSE", 0).cut(20),
    ]);
    for device in devices {
        for outside in &device.outside_mps {
            table.row(vec![
                device.name.clone(),
                outside.pid.to_string(),
                user(outside.user),
                shown_or(outside.memory.map(gib), "?"),
                shown_or(outside.age.map(age), "?"),
                workload(outside.workload.as_ref()),
                truncate_str(&outside.command, 30, "…").into_owned(),
                outside.cause.to_string(),
            ]);
        }
    }
    table
}

/// Returns the table of unmanaged daemons and servers.
pub(super) fn unmanaged(node: &Node) -> Table {
    let mut table = Table::new(vec![
        Column::left("UNMANAGED", 0),
        Column::right("PID", 0),
        Column::left("STATE", 2),
        Column::left("USER", 0),
        Column::left("SERVES", 0),
        Column::left("RUN BY", 1).for_values(),
        Column::right("SERVER", 3),
        Column::right("RUNNING", 4).changing_with_time(),
        Column::left("PIPE DIRECTORY", 1),
        Column::left("CUDA_VISIBLE_DEVICES", 5),
    ]);
    for unmanaged in &node.unmanaged {
        let names = unmanaged.devices.as_slice();
        let served = match names {
            [] if unmanaged.visible == Variable::Hidden => "?".to_owned(),
            [] => "-".to_owned(),
            [first, .., last] if names.len() > 4 => format!("{first} … {last} ({})", names.len()),
            names => names.join(","),
        };
        let program = match unmanaged.program {
            MpsProgram::Control => "daemon",
            MpsProgram::Server => "server without daemon",
        };
        table.row(vec![
            program.to_owned(),
            unmanaged.pid.to_string(),
            if unmanaged.is_orphan {
                "orphan"
            } else {
                "unmanaged"
            }
            .to_owned(),
            user(unmanaged.user),
            served,
            shown_or(unmanaged.supervisor.as_ref(), NONE),
            shown_or(pids(&unmanaged.servers), "-"),
            shown_or(unmanaged.age.map(age), "?"),
            variable(&unmanaged.pipe_directory, "default"),
            variable(&unmanaged.visible, "all"),
        ]);
    }
    table
}

fn variable(variable: &Variable, unset: &str) -> String {
    match variable {
        Variable::Hidden => "hidden".to_owned(),
        Variable::Unset => unset.to_owned(),
        Variable::Is(value) => value.clone(),
    }
}

/// Says in one line how many of these devices, or of all, are ready after a change.
pub fn summary(node: &Node, devices: &[String], took: Duration) -> String {
    let devices = node.shown(devices);
    let served = devices.iter().filter(|device| device.served.is_some());
    let is_one_served = served.clone().next().is_some();
    let gpus: BTreeSet<u32> = devices
        .iter()
        .filter(|device| device.served.is_some() == is_one_served)
        .filter_map(|device| Some(node.gpu(&device.key.gpu)?.index))
        .collect();
    // A lazy daemon starts its server for the first client.
    let ready = served.clone().filter(|device| {
        matches!(
            node.state_of(device),
            DeviceState::Ready | DeviceState::NoServerYet
        )
    });
    let (served, ready) = (served.count(), ready.count());
    let (gpus, took) = (count(gpus.len(), "GPU"), time_taken(took));
    match (devices.len(), served, ready) {
        (0, ..) => format!("Done in {took}"),
        (all, 0, _) => format!(
            "{} on {gpus} in {took}, none with a daemon",
            count(all, "device")
        ),
        (_, all, ready) if all == ready => {
            format!("{} on {gpus} ready in {took}", count(all, "device"))
        }
        (_, all, ready) => format!(
            "{ready} of {} on {gpus} ready in {took}",
            count(all, "device")
        ),
    }
}
