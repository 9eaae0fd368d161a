use std::time::Duration;

use console::Style;
use jiff::Timestamp;

use super::columns::StatusColumn;
use super::row::Row;
use crate::host::{Uid, user_name};
use crate::node::{Node, Served};
use crate::render::format::{age, gib};
use crate::render::table::Table;
use crate::settings::Reported;

/// Returns the table of devices with these columns; with as many as fit if none is named.
pub(super) fn table(node: &Node, rows: &[Row<'_>], wanted: &[StatusColumn]) -> Table {
    let columns = if wanted.is_empty() {
        <StatusColumn as clap::ValueEnum>::value_variants()
    } else {
        wanted
    };
    let mut table = Table::new(
        columns
            .iter()
            .map(|column| {
                let column = column.column();
                // A column that the user named is shown, whatever the width.
                if wanted.is_empty() {
                    column
                } else {
                    column.kept()
                }
            })
            .collect(),
    );
    for row in rows {
        table.row(
            columns
                .iter()
                .map(|column| cell(node, row, *column))
                .collect(),
        );
    }
    table
}

fn cell(node: &Node, row: &Row<'_>, column: StatusColumn) -> String {
    let served = row.served;
    let alive = served.filter(|served| served.is_alive());
    let shown = match column {
        StatusColumn::Name => Some(row.name.clone()),
        StatusColumn::Gpu => row.gpu(node).map(|gpu| gpu.to_string()),
        StatusColumn::Profile => row.profile(),
        StatusColumn::State => Some(state_style(row.state()).apply_to(row.state()).to_string()),
        StatusColumn::User => {
            alive.map(|served| users(served).unwrap_or_else(|| unknown(row).to_owned()))
        }
        StatusColumn::Clients => alive.map(|served| clients(served, row.is_known())),
        StatusColumn::Threads => served.map(threads),
        StatusColumn::Memory => row
            .memory(node)
            .map(|memory| format!("{}/{}", gib(memory.used), gib(memory.total))),
        StatusColumn::Util if row.is_part() => Some("n/a".to_owned()),
        StatusColumn::Util => row.utilization(node).map(|percent| format!("{percent}%")),
        StatusColumn::Daemon => alive
            .and_then(|served| served.record.daemon)
            .map(|daemon| daemon.pid.to_string()),
        StatusColumn::Server => alive.map(|served| {
            let pids: Vec<String> = served.servers.iter().map(|s| s.pid.to_string()).collect();
            if pids.is_empty() {
                unknown(row).to_owned()
            } else {
                pids.join(",")
            }
        }),
        StatusColumn::Since => alive.map(|served| age(since(served))),
        StatusColumn::Serve => served
            .and_then(|served| served.record.settings.serve.as_ref())
            .map(ToString::to_string),
        StatusColumn::Device => Some(row.uuid().to_owned()),
    };
    shown.unwrap_or_else(|| "-".to_owned())
}

/// Returns the cell of a value that does not exist or is unknown.
fn unknown(row: &Row<'_>) -> &'static str {
    if row.is_known() { "-" } else { "?" }
}

/// `3`, `3/48`, `3+1 waiting`
fn clients(served: &Served, is_known: bool) -> String {
    if !is_known {
        return "?".to_owned();
    }
    let mut text = served.clients.len().to_string();
    if let Some(limit) = served.client_limit {
        text = format!("{text}/{limit}");
    }
    if !served.waiting.is_empty() {
        text = format!("{text}+{} waiting", served.waiting.len());
    }
    text
}

fn threads(served: &Served) -> String {
    let set = served.record.settings.active_thread_percentage;
    let answered = served.answered.as_ref().and_then(Reported::percentage);
    match answered {
        Some(answered) if set.differs_from(answered) => format!("{answered}%!={set}%"),
        _ => format!("{set}%"),
    }
}

/// Names the users of the servers.
fn users(served: &Served) -> Option<String> {
    let mut names: Vec<String> = served
        .servers
        .iter()
        .map(|server| user(server.user))
        .collect();
    names.dedup();
    (!names.is_empty()).then(|| names.join(","))
}

pub(super) fn user(uid: Option<Uid>) -> String {
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
