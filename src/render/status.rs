use std::fmt::Write as _;
use std::time::Duration;

use console::Style;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::json::VERSION;
use super::table::{Column, Table};
use super::words::{age, gib};
use crate::host::{Uid, user_name};
use crate::node::{Device, Life, Node, Served};

/// One line of the servers table.
struct Row<'a> {
    name: String,
    device: Option<Device>,
    served: Option<&'a Served>,
}

/// The devices with their daemons: what is recorded first, then what nobody serves.
fn rows<'a>(node: &'a Node, devices: &[String]) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = node
        .served
        .iter()
        .map(|served| Row {
            name: served.record.name.clone(),
            device: node.devices().find(|device| {
                device.key == served.record.key && device.uuid == served.record.uuid
            }),
            served: Some(served),
        })
        .collect();
    let unserved = node.devices().filter(|device| {
        !rows.iter().any(|row| {
            row.device
                .as_ref()
                .is_some_and(|shown| shown.key == device.key)
        })
    });
    let unserved: Vec<Row<'a>> = unserved
        .map(|device| Row {
            name: device.default_name.clone(),
            device: Some(device),
            served: None,
        })
        .collect();
    rows.extend(unserved);
    rows.retain(|row| devices.is_empty() || devices.contains(&row.name));
    rows
}

impl Row<'_> {
    fn state(&self) -> &'static str {
        match self.served {
            None => "no daemon",
            Some(served) if served.is_alive() && !served.device_is_there => "no device",
            Some(served) => served.life.word(),
        }
    }

    fn uuid(&self) -> &str {
        match (&self.device, self.served) {
            (Some(device), _) => &device.uuid,
            (None, Some(served)) => &served.record.uuid,
            (None, None) => "",
        }
    }

    fn gpu(&self, node: &Node) -> String {
        let gone = || {
            let served = self.served?;
            let gpu = node
                .gpus
                .iter()
                .find(|gpu| gpu.uuid == served.record.key.gpu)?;
            Some(gpu.index)
        };
        let index = self.device.as_ref().map(|device| device.gpu).or_else(gone);
        index.map_or_else(|| "-".to_owned(), |index| index.to_string())
    }

    fn profile(&self) -> String {
        match &self.device {
            Some(Device {
                part: Some(part), ..
            }) => part.title.clone(),
            Some(_) => "whole GPU".to_owned(),
            None => "-".to_owned(),
        }
    }

    fn memory(&self, node: &Node) -> Option<crate::nvml::Memory> {
        node.processes
            .get(self.uuid())
            .and_then(|processes| processes.memory)
    }

    /// Whether its servers and clients are known.
    fn is_known(&self) -> bool {
        self.served.is_some_and(|served| served.is_known)
    }
}

/// The servers table and the clients table.
pub(super) fn text(node: &Node, devices: &[String], width: usize) -> String {
    let rows = rows(node, devices);
    let mut out = String::new();
    if rows.is_empty() {
        return "There is no device on this node.\n".to_owned();
    }
    out.push_str(&servers(node, &rows).within(width));
    out.push('\n');
    let has_clients = |row: &Row<'_>| row.served.is_some_and(|served| !served.clients.is_empty());
    let is_unknown = |row: &&Row<'_>| row.served.is_some_and(Served::is_alive) && !row.is_known();
    let unknown: Vec<&str> = rows
        .iter()
        .filter(is_unknown)
        .map(|row| row.name.as_str())
        .collect();
    if rows.iter().any(has_clients) {
        out.push_str(&clients(&rows, width));
    } else if unknown.is_empty() {
        out.push_str("No clients.\n");
    }
    if !unknown.is_empty() {
        let _ = writeln!(out, "The clients of {} are not known.", unknown.join(", "));
    }
    for row in &rows {
        if let Some(problem) = row.served.and_then(|served| served.problem.as_ref()) {
            let _ = writeln!(out, "{}: {problem}", row.name);
        }
    }
    for hidden in &node.hidden {
        let _ = writeln!(out, "not seen: {hidden}");
    }
    out
}

fn servers(node: &Node, rows: &[Row<'_>]) -> Table {
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::right("GPU", 4),
        Column::left("PROFILE", 0),
        Column::left("STATE", 0),
        Column::left("USER", 3),
        Column::right("CLIENTS", 0),
        Column::right("THREADS", 5),
        Column::right("MEMORY GIB", 1),
        Column::right("DAEMON", 2),
        Column::right("SERVER", 1),
        Column::right("SINCE", 6),
        Column::left("SERVE", 7),
        Column::left("DEVICE", 8),
    ]);
    let dash = || "-".to_owned();
    for row in rows {
        let served = row.served;
        let alive = served.filter(|served| served.is_alive());
        let unknown = if row.is_known() { "-" } else { "?" };
        let user = alive.map(|served| users(served).unwrap_or_else(|| unknown.to_owned()));
        let server_pids = alive.map(|served| {
            let pids: Vec<String> = served.servers.iter().map(|s| s.pid.to_string()).collect();
            if pids.is_empty() {
                unknown.to_owned()
            } else {
                pids.join(",")
            }
        });
        let clients = alive.map(|served| {
            if row.is_known() {
                served.clients.len().to_string()
            } else {
                "?".to_owned()
            }
        });
        let threads = served.map(|served| {
            let set = served.record.settings.active_thread_percentage;
            match served.percentage {
                Some(answered) if set.differs_from(answered) => format!("{answered}%!={set}%"),
                _ => format!("{set}%"),
            }
        });
        let memory = row.memory(node).map_or_else(dash, |memory| {
            format!("{}/{}", gib(memory.used), gib(memory.total))
        });
        let daemon = alive.and_then(|served| served.record.daemon);
        table.row(vec![
            row.name.clone(),
            row.gpu(node),
            row.profile(),
            state_style(row.state()).apply_to(row.state()).to_string(),
            user.unwrap_or_else(dash),
            clients.unwrap_or_else(dash),
            threads.unwrap_or_else(dash),
            memory,
            daemon.map_or_else(dash, |daemon| daemon.pid.to_string()),
            server_pids.unwrap_or_else(dash),
            alive.map_or_else(dash, |served| age(since(served))),
            served
                .and_then(|s| s.record.settings.serve.as_ref())
                .map_or_else(dash, ToString::to_string),
            row.uuid().to_owned(),
        ]);
    }
    table
}

/// Whose the servers are.
fn users(served: &Served) -> Option<String> {
    let mut names: Vec<String> = served
        .servers
        .iter()
        .map(|server| user(server.user))
        .collect();
    names.dedup();
    (!names.is_empty()).then(|| names.join(","))
}

fn user(uid: Option<Uid>) -> String {
    uid.map_or_else(|| "hidden".to_owned(), user_name)
}

fn since(served: &Served) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(served.record.since)).unwrap_or_default()
}

fn state_style(state: &str) -> Style {
    match state {
        "ready" => Style::new().green(),
        "fault" | "dead" | "orphan" | "no device" => Style::new().red().bold(),
        "no daemon" | "no server yet" => Style::new().dim(),
        _ => Style::new().yellow(),
    }
}

fn clients(rows: &[Row<'_>], width: usize) -> String {
    let mut table = Table::new(vec![
        Column::left("CLIENT OF", 0),
        Column::right("PID", 0),
        Column::left("USER", 0),
        Column::right("MEMORY GIB", 1),
        Column::right("RUNNING", 2),
        Column::left("COMMAND", 0),
    ]);
    // What is left of the line for the command: it is cut, not the table.
    let room = width.saturating_sub(48).max(20);
    for row in rows {
        for client in row.served.into_iter().flat_map(|served| &served.clients) {
            let command = client
                .command
                .clone()
                .unwrap_or_else(|| "hidden".to_owned());
            let pid = match client.pid.0 {
                0 => "hidden".to_owned(),
                pid => pid.to_string(),
            };
            table.row(vec![
                row.name.clone(),
                pid,
                user(client.user),
                client.memory.map_or_else(|| "?".to_owned(), gib),
                client.age.map_or_else(|| "?".to_owned(), age),
                console::truncate_str(&command, room, "…").into_owned(),
            ]);
        }
    }
    table.within(width)
}

/// The same for programs.
pub(super) fn json(node: &Node, devices: &[String]) -> Value {
    let rows = rows(node, devices);
    let devices: Vec<Value> = rows.iter().map(|row| row_json(node, row)).collect();
    let clients: Vec<Value> = rows
        .iter()
        .flat_map(|row| {
            let clients = row.served.into_iter().flat_map(|served| &served.clients);
            clients.map(|client| {
                json!({
                    "device": row.name,
                    "pid": Some(client.pid.0).filter(|&pid| pid != 0),
                    "user": client.user.map(user_name),
                    "uid": client.user,
                    "command": client.command,
                    "memory_bytes": client.memory,
                    "running_seconds": client.age.map(|age| age.as_secs()),
                })
            })
        })
        .collect();
    json!({
        "version": VERSION,
        "driver": node.driver,
        "devices": devices,
        "clients": clients,
        "hidden": node.hidden,
    })
}

fn row_json(node: &Node, row: &Row<'_>) -> Value {
    let served = row.served;
    let alive = served.filter(|served| served.is_alive());
    let known = row.is_known();
    let servers = alive.filter(|served| known || served.life == Life::Busy).map(|served| {
        let all = served.servers.iter();
        all.map(|server| json!({ "pid": server.pid, "user": server.user.map(user_name), "uid": server.user }))
            .collect::<Vec<_>>()
    });
    let memory = row.memory(node);
    json!({
        "name": row.name,
        "uuid": row.uuid(),
        "gpu": row.device.as_ref().map(|device| device.gpu),
        "profile": row.device.as_ref().and_then(|device| device.part.as_ref()).map(|part| &part.title),
        "state": row.state(),
        "serve": served.and_then(|served| served.record.settings.serve.as_ref()),
        "pipe_directory": served.map(|served| served.run_dir.pipe_dir(&served.record.uuid)),
        "daemon_pid": alive.and_then(|served| served.record.daemon).map(|daemon| daemon.pid),
        "servers": servers,
        "clients": alive.filter(|_| known).map(|served| served.clients.len()),
        "active_thread_percentage": served.map(|s| s.record.settings.active_thread_percentage),
        "answered_active_thread_percentage": served.and_then(|served| served.percentage),
        "problem": served.and_then(|served| served.problem.as_ref()),
        "memory_used_bytes": memory.map(|memory| memory.used),
        "memory_total_bytes": memory.map(|memory| memory.total),
        "since": alive.map(|served| served.record.since),
    })
}
