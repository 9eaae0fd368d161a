//! `status`: devices, servers, clients, problems.

mod columns;
mod device;
mod map;
mod others;
mod profile;

use std::fmt::Write as _;

use anyhow::Result;
use console::Style;

use super::format::{format_ago, wrap_behind, wrap_text};
use super::output;
use super::table::Table;
use crate::node::{Device, Finding, Gpu, Node};
use crate::plan::needs_healing;

pub use columns::{StatusColumn, may_show_utilization};
pub use device::Status;
pub(super) use map::Marks;
pub use others::summary;

/// The most devices that a change shows in a table.
const MAX_TABLE_DEVICES: usize = 8;

/// The width of pictures that are not drawn on a terminal.
const DEFAULT_PICTURE_WIDTH: usize = 80;

/// Stands before the second and later parts of a wrapped line.
const INDENT: &str = "  ";

/// The form in which devices are shown.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// A table with these columns; with as many as fit if none is named.
    Table(&'a [StatusColumn]),
    /// A picture of each GPU.
    Map,
}

/// Prints the status of these devices, or of all if none is named.
pub fn print(node: &Node, devices: &[String], view: View<'_>) -> Result<()> {
    let width = match view {
        View::Table(_) => output::output_width(),
        View::Map => output::terminal_width().unwrap_or(DEFAULT_PICTURE_WIDTH),
    };
    output::print(&render(node, devices, view, width, None))
}

/// Prints the status of these devices, or of all, after a change: of many only what is wrong with them.
pub fn print_few(node: &Node, devices: &[String]) -> Result<()> {
    if node.devices_to_show(devices).len() <= MAX_TABLE_DEVICES {
        return print(node, devices, View::Table(&[]));
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
    devices: &[String],
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
    let profile = profile::describe_profile(node, format_ago);
    if let Some(line) = &profile {
        // Its age alone is no change.
        let lasting = profile::describe_profile(node, |_| String::new());
        parts.add_marked_line(line, &lasting.unwrap_or_default(), &Style::new());
        parts.add_gap();
    }
    let shown = node.devices_to_show(devices);
    if shown.is_empty() {
        if !node.describe_unseen().is_empty() {
            parts.add_line("No device can be seen on this node.");
        } else if !node.gpus.iter().any(Gpu::has_nothing_in_mig_mode) {
            parts.add_line("There is no device on this node.");
        }
    } else {
        match view {
            View::Table(columns) => {
                let titles =
                    parts.add_table(columns::device_table(node, &shown, columns), "--columns");
                // A program reads the columns that it has named, and a change has just read back what it shows.
                if profile.is_some()
                    && let Some(legend) = columns::table_legend(&shown, &titles)
                {
                    parts.add_legend(&legend);
                }
            }
            View::Map => parts.add_picture(&map::render(node, &shown, parts.width)),
        }
        parts.add_gap();
        add_clients(&mut parts, &shown);
    }
    for table in [
        others::outside_mps_table(&shown),
        others::unmanaged_table(node),
    ] {
        if !table.is_empty() {
            parts.add_gap();
            parts.add_table(table, "--json");
        }
    }
    add_notices(&mut parts, node, devices);
    parts.out
}

fn add_clients(parts: &mut StatusWriter<'_>, devices: &[&Device]) {
    let unknown: Vec<&str> = devices
        .iter()
        .filter(|device| {
            device.live_daemon().is_some() && device.daemon_with_known_clients().is_none()
        })
        .map(|device| device.name.as_str())
        .collect();
    let clients = others::client_table(devices);
    if !clients.is_empty() {
        parts.add_table(clients, "--json");
    } else if unknown.is_empty() {
        parts.add_line("No clients.");
    }
    if !unknown.is_empty() {
        parts.add_line(&format!(
            "The clients of {} are not known.",
            unknown.join(", ")
        ));
    }
}

/// Adds the problems, the remarks, and what is hidden.
fn add_notices(parts: &mut StatusWriter<'_>, node: &Node, devices: &[String]) {
    let (problems, remarks) = node.problems_and_remarks(devices);
    let (mut sentences, mut outside, mut healed) = (Vec::new(), Vec::new(), 0);
    for problem in &problems {
        if !problem.is_listed {
            sentences.push(problem.to_string());
        }
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
    match outside.as_slice() {
        [] => {}
        [one] => {
            let remedy = one.remedy.as_deref().unwrap_or_default();
            parts.add_line(&format!(
                "1 program computes outside MPS and takes turns with all clients; {remedy}"
            ));
        }
        several => parts.add_line(&format!(
            "{} programs compute outside MPS and take turns with all clients; `mig-mps doctor` has the remedies",
            several.len()
        )),
    }
    for sentence in &sentences {
        parts.add_styled_line(sentence, &Style::new().red());
    }
    if healed > 1 {
        parts.add_line(
            "`mig-mps heal` cures all devices whose daemon has died or that hang without clients.",
        );
    }
    for remark in &remarks {
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
        self.out.push('\n');
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

    /// Adds a line that explains others, and says nothing about the node.
    fn add_legend(&mut self, line: &str) {
        let gutter = if self.marks.is_some() {
            map::MARK_WIDTH
        } else {
            0
        };
        for part in wrap_behind("", line, self.width).lines() {
            let _ = writeln!(
                self.out,
                "{:gutter$}{}",
                "",
                Style::new().dim().apply_to(part)
            );
        }
    }

    /// Adds a table; the option shows the columns that do not fit. Returns the line with the titles.
    fn add_table(&mut self, table: Table, option: &str) -> String {
        let mut lasting = table.lasting_texts().into_iter();
        let drawn = table.render(self.width, option);
        for (number, line) in drawn.lines().enumerate() {
            // The head and the line about hidden columns say nothing about the node.
            let text = if number == 0 { None } else { lasting.next() };
            let mark = match (text, &self.marks) {
                // A value that is not read back this time has not changed.
                (Some(text), _) => self.line_mark(&text.replace(['(', ')'], "")),
                (None, Some(_)) => " ".repeat(map::MARK_WIDTH),
                (None, None) => String::new(),
            };
            let _ = writeln!(self.out, "{mark}{line}");
        }
        let head = drawn.lines().next().unwrap_or_default();
        console::strip_ansi_codes(head).into_owned()
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
