//! The last line of `status`: whether all is well.

use std::collections::BTreeSet;

use console::Style;

use super::super::format::{format_count, group_by};
use super::columns::format_user;
use crate::host::Uid;
use crate::node::{Applied, Device, DeviceState, Node};

/// Says in one line how many devices are in which state, who uses them, and whether there is a problem: of these devices,
/// or of all if none is named.
pub(super) fn describe_verdict(
    node: &Node,
    names: &[String],
    devices: &[&Device],
) -> (String, Style) {
    let mut parts = if node.has_no_driver() {
        vec!["the driver does not answer".to_owned()]
    } else {
        describe_states(node, devices)
    };
    parts.extend(describe_clients(devices));
    let (problems, style) = describe_problems(node, names, devices);
    parts.push(problems);
    let line = format!(
        "{}: {}.",
        describe_devices(node, names, devices),
        parts.join(", ")
    );
    (line, style)
}

/// Counts the problems. What is not known is not taken for fine.
fn describe_problems(node: &Node, names: &[String], devices: &[&Device]) -> (String, Style) {
    let (problems, remarks) = node.problems_and_remarks(names);
    let differs = match &node.applied {
        Applied::Unreadable(_)
        | Applied::Known {
            differs: None,
            taken_down: None,
            ..
        } => None,
        Applied::Known { differs, .. } => Some(*differs == Some(true)),
        Applied::NotRead | Applied::Nothing => Some(false),
    };
    let is_all_known = node.describe_unseen().is_empty() && are_all_clients_known(devices);
    let yellow = Style::new().yellow();
    match (problems.len(), differs) {
        (0, _) if !is_all_known => (
            "no problems found, but not everything can be seen".to_owned(),
            yellow,
        ),
        (0, Some(true)) => (
            "no problems, but the node differs from its profile".to_owned(),
            yellow,
        ),
        (0, None) => ("no problems found".to_owned(), Style::new()),
        (0, Some(false)) if remarks.is_empty() => ("no problems".to_owned(), Style::new().green()),
        (0, Some(false)) => ("no problems".to_owned(), Style::new()),
        (many, _) => (
            format!(
                "{} (details: `mig-mps doctor`)",
                format_count(many, "problem")
            ),
            Style::new().red().bold(),
        ),
    }
}

/// `32 devices on 8 GPUs`; `1 device on 1 of 2 GPUs`; `no devices on 8 GPUs`
fn describe_devices(node: &Node, names: &[String], devices: &[&Device]) -> String {
    let all = node.gpus.len();
    if devices.is_empty() {
        return format!("no devices on {}", format_count(all, "GPU"));
    }
    let gpus: BTreeSet<&str> = devices.iter().map(|one| one.key.gpu.as_str()).collect();
    let devices = format_count(devices.len(), "device");
    if names.is_empty() && gpus.len() < all {
        format!(
            "{devices} on {} of {}",
            gpus.len(),
            format_count(all, "GPU")
        )
    } else {
        format!("{devices} on {}", format_count(gpus.len(), "GPU"))
    }
}

/// Counts the devices in each state: `all ready`; `30 ready`, `1 dead`, `1 without a daemon`.
fn describe_states(node: &Node, devices: &[&Device]) -> Vec<String> {
    let states = devices.iter().map(|device| node.state_of(device));
    let mut groups = group_by(states, |a, b| a == b);
    groups.sort_by_key(|group| group[0] != DeviceState::Ready);
    let is_one_state = groups.len() == 1;
    groups
        .iter()
        .map(|group| {
            let state = match group[0] {
                DeviceState::NoDaemon => "without a daemon".to_owned(),
                DeviceState::NoServerYet => "without a server yet".to_owned(),
                DeviceState::NoDevice => "without a device".to_owned(),
                DeviceState::NoAnswer => "not answering".to_owned(),
                DeviceState::GpuLost => "on a lost GPU".to_owned(),
                DeviceState::Fault => "with a GPU fault".to_owned(),
                state => state.to_string(),
            };
            match group.len() {
                1 if is_one_state => state,
                _ if is_one_state => format!("all {state}"),
                many => format!("{many} {state}"),
            }
        })
        .collect()
}

/// True if the clients of each of these devices are known.
fn are_all_clients_known(devices: &[&Device]) -> bool {
    let mut served = devices.iter().filter_map(|device| device.live_daemon());
    served.all(|served| served.clients.are_known())
}

/// Counts the clients: `no clients`; `12 clients of 3 users`, `1 waiting`. Nothing of devices without a daemon.
fn describe_clients(devices: &[&Device]) -> Vec<String> {
    let served = || devices.iter().filter_map(|device| device.live_daemon());
    if served().next().is_none() {
        return Vec::new();
    }
    let is_known = are_all_clients_known(devices);
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
