//! The table of `status --by-user`: who uses which devices.

use std::collections::{BTreeMap, BTreeSet};

use super::super::format::{format_gib, shorten_list};
use super::columns::format_user;
use crate::host::{Pid, Uid, Workload};
use crate::node::Device;
use crate::render::table::{Column, Table};

/// The most jobs, pods and containers of a user that are named.
const MAX_WORKLOADS: usize = 2;

/// What a user has on the devices.
#[derive(Default)]
struct UserUse<'a> {
    devices: Vec<&'a str>,
    clients: usize,
    waiting: usize,
    /// One may be on several devices.
    outside: BTreeSet<Pid>,
    memory: u64,
    has_unknown_memory: bool,
    workloads: BTreeSet<String>,
}

impl<'a> UserUse<'a> {
    /// Adds a program on a device, which may use none of its memory yet.
    fn add_program(&mut self, device: &'a str, memory: Option<u64>, workload: Option<&Workload>) {
        if self.devices.last() != Some(&device) {
            self.devices.push(device);
        }
        self.has_unknown_memory |= memory.is_none();
        self.memory += memory.unwrap_or(0);
        let workload = workload.filter(|workload| workload.is_any());
        self.workloads.extend(workload.map(Workload::to_string));
    }

    fn format_memory(&self) -> String {
        match (self.memory, self.has_unknown_memory) {
            (0, true) => "?".to_owned(),
            (known, true) => format!("{}+?", format_gib(known)),
            (known, false) => format_gib(known),
        }
    }

    fn format_workloads(&self) -> String {
        let mut named: Vec<String> = self.workloads.iter().take(MAX_WORKLOADS).cloned().collect();
        let more = self.workloads.len() - named.len();
        named.extend((more > 0).then(|| format!("{more} more")));
        named.join(", ")
    }
}

/// Returns a table with a row for each user of these devices, those with the most devices first.
pub(super) fn user_table(devices: &[&Device]) -> Table {
    let mut uses: BTreeMap<Option<Uid>, UserUse<'_>> = BTreeMap::new();
    for device in devices {
        let name = device.name.as_str();
        let served = device.served.as_ref();
        let clients = served.map_or(&[][..], |served| served.clients.as_slice());
        for client in clients {
            let of_user = uses.entry(client.user).or_default();
            of_user.add_program(name, client.memory, client.workload.as_ref());
            of_user.clients += 1;
        }
        for client in served.iter().flat_map(|served| &served.waiting) {
            let of_user = uses.entry(client.user).or_default();
            of_user.add_program(name, Some(0), client.workload.as_ref());
            of_user.waiting += 1;
        }
        for program in &device.outside_mps {
            let of_user = uses.entry(program.user).or_default();
            of_user.add_program(name, program.memory, program.workload.as_ref());
            of_user.outside.insert(program.pid);
        }
    }
    let mut uses: Vec<_> = uses.into_iter().collect();
    uses.sort_by_key(|(_, of_user)| std::cmp::Reverse(of_user.devices.len()));
    let mut table = Table::new(vec![
        Column::left_aligned("USER", 0),
        Column::right_aligned("CLIENTS", 0),
        Column::right_aligned("WAITING", 0).hidden_if_empty(),
        Column::right_aligned("OUTSIDE MPS", 0).hidden_if_empty(),
        Column::right_aligned("MEMORY GIB", 0),
        Column::left_aligned("WORKLOADS", 1).hidden_if_empty(),
        Column::right_aligned("DEVICES", 0),
        Column::left_aligned("NAMES", 2),
    ]);
    let count = |number: usize| {
        if number == 0 {
            "-".to_owned()
        } else {
            number.to_string()
        }
    };
    for (user, of_user) in uses {
        table.add_row(vec![
            format_user(user),
            of_user.clients.to_string(),
            count(of_user.waiting),
            count(of_user.outside.len()),
            of_user.format_memory(),
            of_user.format_workloads(),
            of_user.devices.len().to_string(),
            shorten_list(&of_user.devices),
        ]);
    }
    table
}
