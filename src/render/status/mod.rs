//! `status`: devices, servers, clients, problems.

mod columns;
mod device;
mod map;
mod others;
mod profile;
mod rows;
mod users;
mod verdict;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Result;
use console::Style;

use super::findings::fold_findings;
use super::format::{format_ago, format_count, shorten_list, wrap_text};
use super::output;
use super::table::Table;
use crate::host::Pid;
use crate::node::{Applied, Device, Finding, Node};
use crate::plan::needs_healing;

pub use columns::{StatusColumn, may_show_utilization};
pub use device::Status;
pub(super) use map::Marks;
pub use others::summary;
use rows::DeviceRow;

/// The most devices that a change shows in a table.
const MAX_TABLE_DEVICES: usize = 8;

/// Stands before the second and later parts of a wrapped line.
const INDENT: &str = "  ";

/// Which devices are shown, and how.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The names of the devices; none for all.
    pub devices: &'a [String],
    /// Leaves others out.
    pub filter: Option<Filter>,
    pub form: Form<'a>,
    /// True if many devices that are equal, well and idle share a row.
    pub is_folded: bool,
}

/// The form in which devices are shown.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// A table with these columns; with as many as fit if none is named.
    Table(&'a [StatusColumn]),
    /// A picture of each GPU.
    Map,
    /// A table of the users of the devices.
    Users,
}

/// The devices that are not left out.
#[derive(Clone, Copy, Debug)]
pub enum Filter {
    /// Those with a problem.
    Problems,
    /// Those that a program uses or waits for, as far as is known.
    InUse,
}

impl<'a> View<'a> {
    /// Shows each of these devices, or of all if none is named, in a table.
    pub fn table(devices: &'a [String]) -> Self {
        Self {
            devices,
            filter: None,
            form: Form::Table(&[]),
            is_folded: false,
        }
    }

    fn select_devices<'n>(&self, node: &'n Node) -> Vec<&'n Device> {
        let mut devices = node.devices_to_show(self.devices);
        match self.filter {
            None => {}
            Some(Filter::InUse) => devices.retain(|device| device.is_in_use()),
            Some(Filter::Problems) => {
                let problems = node.problems(self.devices);
                let has_problem = |device: &&Device| {
                    let name = Some(device.name.as_str());
                    problems.iter().any(|one| one.device.as_deref() == name)
                };
                devices.retain(has_problem);
            }
        }
        devices
    }
}

/// Prints the status of these devices.
pub fn print(node: &Node, view: View<'_>) -> Result<()> {
    output::print(&render(node, view, output::output_width(), None))
}

/// Prints the status of these devices, or of all, after a change: of many only what is wrong with them.
pub fn print_few(node: &Node, devices: &[String]) -> Result<()> {
    if node.devices_to_show(devices).len() <= MAX_TABLE_DEVICES {
        return print(node, View::table(devices));
    }
    let mut parts = StatusWriter {
        out: String::new(),
        width: output::output_width(),
        marks: None,
    };
    add_notices(&mut parts, node, devices);
    output::print(&parts.out)
}

/// Formats the status. With `marks`, lines that differ from the last time are marked.
pub(super) fn render(
    node: &Node,
    view: View<'_>,
    width: usize,
    marks: Option<&mut Marks>,
) -> String {
    let gutter = if marks.is_some() { map::MARK_WIDTH } else { 0 };
    let mut parts = StatusWriter {
        out: String::new(),
        width: width.saturating_sub(gutter),
        marks,
    };
    if let Some(line) = profile::describe_profile(node, format_ago) {
        // Its age alone is no change.
        let lasting = profile::describe_profile(node, |_| String::new());
        parts.add_marked_line(&line, &lasting.unwrap_or_default(), &Style::new());
        parts.add_gap();
    }
    let shown = view.select_devices(node);
    add_devices(&mut parts, node, view, &shown);
    let outside = others::outside_mps_table(&shown);
    // The table of users counts them.
    let outside = (!matches!(view.form, Form::Users)).then_some(outside);
    let daemons = [others::private_table(node), others::unmanaged_table(node)];
    for table in outside.into_iter().chain(daemons) {
        if !table.is_empty() {
            parts.add_gap();
            parts.add_table(table, "--json");
        }
    }
    add_notices(&mut parts, node, view.devices);
    // A program reads the columns that it has named, and a change ends with a line of its own.
    if !matches!(node.applied, Applied::NotRead) {
        add_verdict(&mut parts, node, view, shown.len());
    }
    parts.out
}

/// The most clients that are shown without a remark on `--by-user`.
const MANY_CLIENTS: usize = 16;

/// Adds the table or the pictures of these devices, and their clients.
fn add_devices(parts: &mut StatusWriter<'_>, node: &Node, view: View<'_>, shown: &[&Device]) {
    if shown.is_empty() {
        if let Some(line) = describe_absence(node, view) {
            parts.add_line(&line);
        }
    } else {
        match view.form {
            Form::Users => return add_users(parts, shown),
            Form::Table(columns) => {
                let rows = if view.is_folded && !node.has_no_driver() {
                    DeviceRow::fold(node, shown)
                } else {
                    DeviceRow::single_rows(shown)
                };
                parts.add_table(columns::device_table(node, &rows, columns), "--columns");
                if rows.iter().any(DeviceRow::is_of_several) {
                    let remark = Style::new().dim();
                    parts.add_styled_line(
                        "Equal idle devices share a row: --all shows each.",
                        &remark,
                    );
                }
                let clients: usize = shown
                    .iter()
                    .filter_map(|device| device.served.as_ref())
                    .map(|served| served.clients.as_slice().len())
                    .sum();
                if view.is_folded && clients > MANY_CLIENTS {
                    let remark = Style::new().dim();
                    parts.add_styled_line("--by-user shows a row for each user.", &remark);
                }
            }
            Form::Map => parts.add_picture(&map::render(node, shown, view.is_folded, parts.width)),
        }
        // Devices whose clients are unknown may be in use.
        let is_filtered = matches!(view.filter, Some(Filter::InUse));
        let devices = if is_filtered {
            node.devices_to_show(view.devices)
        } else {
            shown.to_vec()
        };
        add_clients(parts, &devices);
    }
}

/// Adds the last line, for all devices that are not filtered.
fn add_verdict(parts: &mut StatusWriter<'_>, node: &Node, view: View<'_>, shown: usize) {
    let devices = node.devices_to_show(view.devices);
    let (line, style) = verdict::describe_verdict(node, view.devices, &devices);
    parts.add_gap();
    if view.filter.is_some() && shown > 0 {
        let all = format_count(devices.len(), "device");
        parts.add_line(&format!("{shown} of {all} are shown."));
    }
    parts.add_styled_line(&line, &style);
}

/// Says why no device is shown; `None` if a remark says it.
fn describe_absence(node: &Node, view: View<'_>) -> Option<String> {
    let machines: Vec<String> = node
        .gpus
        .iter()
        .filter_map(|gpu| {
            let named = node.describe_virtual_machine_instances(gpu)?;
            Some(format!("{named} on GPU {}", gpu.index))
        })
        .collect();
    let what = match view.filter {
        Some(Filter::Problems) if !node.describe_unseen().is_empty() => {
            Some("No problem was found on the devices that can be seen.")
        }
        Some(Filter::Problems) if node.problems(view.devices).is_empty() => {
            Some("No device has a problem.")
        }
        Some(Filter::Problems) => Some("No device has a problem, but the node has:"),
        Some(Filter::InUse) => Some("No device is known to be in use."),
        None if !node.describe_unseen().is_empty() => Some("No device can be seen on this node."),
        None if node.gpus.iter().any(|gpu| node.is_unpartitioned(gpu)) => None,
        None if !machines.is_empty() => {
            let machines = machines.join("; ");
            return Some(format!(
                "There is no device on this node. Virtual machines have {machines}."
            ));
        }
        None => Some("There is no device on this node."),
    };
    what.map(str::to_owned)
}

fn add_users(parts: &mut StatusWriter<'_>, devices: &[&Device]) {
    let users = users::user_table(devices);
    if users.is_empty() {
        parts.add_line("No program is known to use devices of mig-mps.");
    } else {
        parts.add_table(users, "--json");
    }
    add_unknown_clients(parts, devices);
}

fn add_clients(parts: &mut StatusWriter<'_>, devices: &[&Device]) {
    let clients = others::client_table(devices);
    if !clients.is_empty() {
        parts.add_gap();
        parts.add_table(clients, "--json");
    }
    add_unknown_clients(parts, devices);
}

/// Names the devices whose clients may be others than those that are shown.
fn add_unknown_clients(parts: &mut StatusWriter<'_>, devices: &[&Device]) {
    let unknown: Vec<&str> = devices
        .iter()
        .filter(|device| {
            device.live_daemon().is_some() && device.daemon_with_known_clients().is_none()
        })
        .map(|device| device.name.as_str())
        .collect();
    if !unknown.is_empty() {
        parts.add_gap();
        parts.add_line(&format!(
            "The clients of {} are not known.",
            shorten_list(&unknown)
        ));
    }
}

/// Adds the problems, the remarks, and what is hidden.
fn add_notices(parts: &mut StatusWriter<'_>, node: &Node, devices: &[String]) {
    let (problems, remarks) = node.problems_and_remarks(devices);
    let (mut outside, mut healed) = (Vec::new(), 0);
    let unlisted = problems.iter().filter(|problem| !problem.is_listed);
    let sentences: Vec<String> = fold_findings(unlisted)
        .iter()
        .map(Finding::to_string)
        .collect();
    for problem in &problems {
        if problem.id == "outside-mps" {
            outside.push(problem);
        }
        if is_cured_by_heal(problem, node) {
            healed += 1;
        }
    }
    if !sentences.is_empty() || !remarks.is_empty() || !outside.is_empty() {
        parts.add_gap();
    }
    // One on GPUs of several devices is a problem of each.
    let programs: BTreeSet<Pid> = node
        .devices_to_show(devices)
        .into_iter()
        .flat_map(|device| &device.outside_mps)
        .filter(|program| program.is_served)
        .map(|program| program.pid)
        .collect();
    match (outside.as_slice(), programs.len()) {
        ([], _) => {}
        ([one, ..], 1) => {
            let remedy = one.remedy.as_deref().unwrap_or_default();
            let device = one.device.as_deref().and_then(|name| node.device_named(name));
            // A narrow table cuts the cause.
            let cause = device
                .and_then(|device| device.outside_mps.iter().find(|program| program.is_served))
                .map_or_else(String::new, |program| format!(" ({})", program.cause));
            parts.add_line(&format!(
                "1 program computes outside MPS{cause} and is time-sliced with all clients; {remedy}"
            ));
        }
        (_, several) => parts.add_line(&format!(
            "{several} programs compute outside MPS and are time-sliced with all clients; run `mig-mps doctor` to see the causes and remedies"
        )),
    }
    for sentence in &sentences {
        parts.add_styled_line(sentence, &Style::new().red());
    }
    if healed > 1 {
        parts.add_line(
            "Run `mig-mps heal` to restart all devices whose daemon has died or that hang without clients.",
        );
    }
    for remark in fold_findings(&remarks) {
        parts.add_line(&remark.to_string());
    }
    for hidden in node.describe_unseen() {
        // The problems of its devices say it.
        if !sentences.iter().any(|sentence| sentence.contains(&hidden)) {
            parts.add_line(&format!("not seen: {hidden}"));
        }
    }
}

/// True for a daemon that has died, or a device that hangs, if `heal` restarts it.
fn is_cured_by_heal(problem: &Finding, node: &Node) -> bool {
    if !matches!(problem.id, "daemon-dead" | "device-hung") {
        return false;
    }
    let name = problem.device.as_deref();
    let device = name.and_then(|name| node.device_named(name));
    device.is_some_and(|device| needs_healing(device, node))
}

/// The text under construction.
struct StatusWriter<'a> {
    out: String,
    width: usize,
    marks: Option<&'a mut Marks>,
}

impl StatusWriter<'_> {
    fn add_gap(&mut self) {
        if !self.out.is_empty() && !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }

    fn add_line(&mut self, line: &str) {
        self.add_styled_line(line, &Style::new());
    }

    fn add_styled_line(&mut self, line: &str, style: &Style) {
        self.add_marked_line(line, line, style);
    }

    /// Adds a line in this style, wrapped at the width. It has changed if `lasting` has.
    fn add_marked_line(&mut self, line: &str, lasting: &str, style: &Style) {
        let mark = self.line_mark(lasting);
        let gutter = console::measure_text_width(&mark);
        let room = self.width.saturating_sub(INDENT.len());
        for (nth, part) in wrap_text(line, room).iter().enumerate() {
            let part = style.apply_to(part);
            let _ = match nth {
                0 => writeln!(self.out, "{mark}{part}"),
                _ => writeln!(self.out, "{:gutter$}{INDENT}{part}", ""),
            };
        }
    }

    /// Adds a table; the option shows the columns that do not fit.
    fn add_table(&mut self, table: Table, option: &str) {
        let mut lasting = table.lasting_texts().into_iter();
        let drawn = table.render(self.width, option);
        for (number, line) in drawn.lines().enumerate() {
            // The head and the line about hidden columns say nothing about the node.
            let text = if number == 0 { None } else { lasting.next() };
            let mark = match (text, &self.marks) {
                (Some(text), _) => self.line_mark(&text),
                (None, Some(_)) => " ".repeat(map::MARK_WIDTH),
                (None, None) => String::new(),
            };
            let _ = writeln!(self.out, "{mark}{line}");
        }
    }

    fn add_picture(&mut self, picture: &str) {
        for line in picture.lines() {
            let plain = console::strip_ansi_codes(line).into_owned();
            let mark = self.line_mark(&plain);
            let _ = writeln!(self.out, "{mark}{line}");
        }
    }

    fn line_mark(&mut self, text: &str) -> String {
        match &mut self.marks {
            Some(marks) => marks.line_mark(text),
            None => String::new(),
        }
    }
}
