//! The last line of `status`: whether all is well.

use std::collections::BTreeSet;

use console::Style;

use super::super::format::{format_count, group_by};
use super::columns::format_user;
use crate::host::Uid;
use crate::node::{Applied, Device, DeviceState, Node};

/// Says in one line how many devices are in which state, who uses them, and whether there is a problem: of these devices,
/// or of all if none is named.
pub(super) fn describe(node: &Node, names: &[String], devices: &[&Device]) -> (String, Style) {
    let (problems, remarks) = node.problems_and_remarks(names);
    let differs = matches!(
        node.applied,
        Applied::Known {
            differs: Some(true),
            ..
        }
    );
    let is_all_seen = node.describe_unseen().is_empty();
    let (problems, style) = match problems.len() {
        0 if !is_all_seen => (
            "no problems found, but not everything can be seen".to_owned(),
            Style::new().yellow(),
        ),
        0 if differs => (
            "no problems, but the node differs from its profile".to_owned(),
            Style::new().yellow(),
        ),
        0 if !remarks.is_empty() => ("no problems".to_owned(), Style::new()),
        0 => ("no problems".to_owned(), Style::new().green()),
        many => (
            format!(
                "{} (`mig-mps doctor` says more)",
                format_count(many, "problem")
            ),
            Style::new().red().bold(),
        ),
    };
    let mut parts = describe_states(node, devices);
    parts.extend(describe_clients(devices));
    parts.push(problems);
    let line = format!("{}: {}.", describe_devices(node, devices), parts.join(", "));
    (line, style)
}

/// `32 devices on 8 GPUs`; `no devices on 8 GPUs`
fn describe_devices(node: &Node, devices: &[&Device]) -> String {
    if devices.is_empty() {
        return format!("no devices on {}", format_count(node.gpus.len(), "GPU"));
    }
    let gpus: BTreeSet<&str> = devices.iter().map(|one| one.key.gpu.as_str()).collect();
    format!(
        "{} on {}",
        format_count(devices.len(), "device"),
        format_count(gpus.len(), "GPU")
    )
}

/// Counts the devices in each state: `all ready`; `30 ready`, `1 dead`, `1 without a daemon`.
fn describe_states(node: &Node, devices: &[&Device]) -> Vec<String> {
    let states = devices.iter().map(|device| match node.state_of(device) {
        // The first client starts the server.
        DeviceState::NoServerYet => DeviceState::Ready,
        state => state,
    });
    let mut groups = group_by(states, |a, b| a == b);
    groups.sort_by_key(|group| group[0] != DeviceState::Ready);
    let is_one_state = groups.len() == 1;
    groups
        .iter()
        .map(|group| match (group[0], group.len()) {
            (DeviceState::NoDaemon, 1) if is_one_state => "without a daemon".to_owned(),
            (DeviceState::NoDaemon, _) if is_one_state => "none with a daemon".to_owned(),
            (DeviceState::NoDaemon, many) => format!("{many} without a daemon"),
            (state, 1) if is_one_state => state.to_string(),
            (state, _) if is_one_state => format!("all {state}"),
            (state, many) => format!("{many} {state}"),
        })
        .collect()
}

/// Counts the clients: `no clients`; `12 clients of 3 users`, `1 waiting`. Nothing of devices without a daemon.
fn describe_clients(devices: &[&Device]) -> Vec<String> {
    let served = || devices.iter().filter_map(|device| device.live_daemon());
    if served().next().is_none() {
        return Vec::new();
    }
    let is_known = served().all(|served| served.clients.are_known());
    let users: Vec<Option<Uid>> = served()
        .flat_map(|served| served.clients.as_slice())
        .map(|client| client.user)
        .collect();
    let of_users = match users.iter().collect::<BTreeSet<_>>() {
        distinct if distinct.contains(&None) => String::new(),
        distinct => match distinct.into_iter().collect::<Vec<_>>().as_slice() {
            [one] => format!(" of {}", format_user(**one)),
            many => format!(" of {} users", many.len()),
        },
    };
    let clients = match (users.len(), is_known) {
        (0, true) => "no clients".to_owned(),
        (0, false) => "clients unknown".to_owned(),
        (many, true) => format!("{}{of_users}", format_count(many, "client")),
        (many, false) => format!("at least {}", format_count(many, "client")),
    };
    let waiting: usize = served().map(|served| served.waiting.len()).sum();
    let mut parts = vec![clients];
    if waiting > 0 {
        parts.push(format!("{waiting} waiting"));
    }
    parts
}
