//! The last line of `status`: whether all is well.

use std::collections::BTreeSet;

use console::Style;

use super::super::findings::fold_findings;
use super::super::format::{format_count, group_by};
use super::columns::format_user;
use crate::host::Uid;
use crate::node::{Applied, Device, DeviceState, Finding, Node, Unseen};

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
    parts.extend(describe_private_daemons(node, names));
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

/// Counts the problems, those of named devices apart from those of the node. What is not known is not taken for fine, and
/// what else is not in order stands in the place of praise, with the command that goes on from there.
fn describe_problems(node: &Node, names: &[String], devices: &[&Device]) -> (String, Style) {
    let (problems, remarks) = node.problems_and_remarks(names);
    let is_asked_for = |one: &&Finding| names.is_empty() || one.device.is_some();
    let (asked, of_node): (Vec<&Finding>, Vec<_>) = problems.iter().partition(is_asked_for);
    let remarks = remarks.iter().filter(is_asked_for);
    let yellow = Style::new().yellow();
    let details = "(details: `mig-mps doctor`)";
    let (what, style) = if !asked.is_empty() {
        let count = format_count(asked.len(), "problem");
        (format!("{count} {details}"), Style::new().red().bold())
    } else if !is_all_known(node, names, devices) {
        let what = "no problems found, but not everything can be seen";
        (what.to_owned(), yellow.clone())
    } else if let Some(what) = describe_unfinished(node, names) {
        (what, yellow.clone())
    } else {
        let is_judged = !matches!(
            node.applied,
            Applied::Unreadable(_)
                | Applied::Known {
                    differs: None,
                    taken_down: None,
                    ..
                }
        );
        match (is_judged, fold_findings(remarks).len()) {
            (false, _) => ("no problems found".to_owned(), Style::new()),
            (true, 0) => ("no problems".to_owned(), Style::new().green()),
            (true, many) => (
                format!("no problems, {}", format_count(many, "remark")),
                Style::new(),
            ),
        }
    };
    if of_node.is_empty() {
        return (what, style);
    }
    let of_node = format_count(of_node.len(), "problem");
    let of_node = format!("{of_node} of the node as a whole {details}");
    match asked.as_slice() {
        [] => (format!("{what}; {of_node}"), yellow),
        _ => (format!("{what}; {of_node}"), style),
    }
}

/// Says what a node lacks although nothing is wrong with it: it was not partitioned, or not as its profile says.
fn describe_unfinished(node: &Node, names: &[String]) -> Option<String> {
    if !names.is_empty() {
        return None;
    }
    let up = node.up_command();
    let empty = node.describe_unpartitioned_gpus();
    let empty = empty.map(|gpus| format!("MIG is on without devices on {gpus}"));
    let (what, next) = match &node.applied {
        Applied::Known {
            differs: Some(true),
            is_of_earlier_boot: true,
            ..
        } => ("nothing was applied since the boot", up),
        Applied::Known {
            differs: Some(true),
            ..
        } => ("the node differs from its profile", "mig-mps plan"),
        Applied::Nothing
            if node.served().next().is_none() && node.unmanaged.is_empty() && empty.is_none() =>
        {
            ("no profile was applied", "mig-mps help start")
        }
        // The applied profile wants no devices there.
        Applied::Known {
            taken_down: None, ..
        } => return empty.map(|empty| format!("{empty} (next: `mig-mps up PROFILE`)")),
        _ => return empty.map(|empty| format!("{empty} (next: `{up}`)")),
    };
    let parts: Vec<String> = empty.into_iter().chain([what.to_owned()]).collect();
    Some(format!("{} (next: `{next}`)", parts.join(", ")))
}

/// True if all of these devices, or of the node if none is named, could be seen.
fn is_all_known(node: &Node, names: &[String], devices: &[&Device]) -> bool {
    let mut unseen = node.unseen.iter();
    // Another GPU is none of the named devices.
    unseen.all(|unseen| !names.is_empty() && matches!(unseen, Unseen::Gpu { .. }))
        && are_all_clients_known(devices)
}

/// `32 devices on 8 GPUs`; `1 device on 1 of 2 GPUs`; `no devices on 8 GPUs`
fn describe_devices(node: &Node, names: &[String], devices: &[&Device]) -> String {
    let all = node.gpus.len();
    if devices.is_empty() {
        return format!("no devices on {}", format_count(all, "GPU"));
    }
    let is_there =
        |device: &Device, gpu: &str| !device.is_gone() || node.gpu_with_uuid(gpu).is_some();
    let gpus: BTreeSet<&String> = devices
        .iter()
        .flat_map(|one| one.key.gpus().iter().filter(|gpu| is_there(one, gpu)))
        .collect();
    let devices = format_count(devices.len(), "device");
    if gpus.is_empty() {
        devices
    } else if names.is_empty() && gpus.len() < all {
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

/// Counts the daemons of `run --private`, if there are any.
fn describe_private_daemons(node: &Node, names: &[String]) -> Option<String> {
    let count = node
        .unmanaged
        .iter()
        .filter(|daemon| daemon.is_private())
        .filter(|daemon| names.is_empty() || names.iter().any(|name| daemon.serves_device(name)))
        .count();
    (count > 0).then(|| format_count(count, "private daemon"))
}

/// True if the clients of each of these devices are known.
fn are_all_clients_known(devices: &[&Device]) -> bool {
    devices
        .iter()
        .filter_map(|device| device.live_daemon())
        .all(|served| served.clients.are_known())
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
