//! Devices as pictures of their GPUs.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use console::{Style, measure_text_width, style};

use super::super::format::{
    self, BORDER, FREE, display_or, format_gib, group_by, indent_lines, wrap_text,
};
use super::columns::{self, format_kind};
use super::rows::{Urgency, are_many, urgency_by_name};
use crate::geometry::Cell;
use crate::host::format_gpus;
use crate::node::{Device, Gpu, Node};
use crate::nvml::Memory;
use crate::render::table::{Column, Table};

/// The width of the names of the lines.
const MARGIN: usize = 10;

/// The widest picture: a wider one is no clearer.
const MAX_PICTURE_WIDTH: usize = 130;

/// The width of pictures that are not drawn on a terminal.
const DEFAULT_WIDTH: usize = 80;

/// Less memory than this is 0.0 GiB: a twentieth.
const MIN_SHOWN_BYTES: u64 = (1 << 30) / 20;

/// The width in a list of a bar for the memory of a whole GPU.
const BAR_WIDTH: usize = 32;

/// Draws each GPU with its devices, and if `is_folded`, many equal ones once. A GPU whose parts are too narrow for their
/// words is a list under a slice map.
pub(super) fn render(node: &Node, devices: &[&Device], is_folded: bool, width: usize) -> String {
    let gpus: Vec<&[&Device]> = devices.chunk_by(|a, b| a.key.gpu == b.key.gpu).collect();
    let groups = if is_folded && are_many(devices) {
        fold_gpus(node, devices, gpus)
    } else {
        gpus.into_iter().map(|gpu| vec![gpu]).collect()
    };
    let pictures: Vec<String> = groups
        .iter()
        .map(|group| draw_group(node, group, width))
        .collect();
    pictures.join("\n")
}

/// Puts GPUs together that are equal, well and idle. Before them stand the others: first those with problems, then those
/// in use.
fn fold_gpus<'a, 'b>(
    node: &Node,
    devices: &[&'a Device],
    mut gpus: Vec<&'b [&'a Device]>,
) -> Vec<Vec<&'b [&'a Device]>> {
    let urgency = urgency_by_name(node, devices);
    let urgency_of_gpu = |gpu: &[&Device]| gpu.iter().map(|device| urgency[&device.name]).min();
    gpus.sort_by_key(|gpu| urgency_of_gpu(gpu));
    let drawn = |gpu: &[&Device]| {
        let seen = node.gpu_with_uuid(&gpu[0].key.gpu)?;
        let kinds: Vec<_> = gpu.iter().map(|device| format_kind(node, device)).collect();
        let map = seen.in_mig_mode().then(|| seen.slice_map());
        Some((seen.product.clone(), map, kinds))
    };
    group_by(gpus, |a, b| {
        urgency_of_gpu(a) == Some(Urgency::None)
            && urgency_of_gpu(b) == Some(Urgency::None)
            && drawn(a).is_some()
            && drawn(a) == drawn(b)
    })
}

/// Draws the first of these GPUs, under the indices of all.
fn draw_group(node: &Node, group: &[&[&Device]], width: usize) -> String {
    let of_gpu = group[0];
    let Some(gpu) = node.gpu_with_uuid(&of_gpu[0].key.gpu) else {
        return render_list(node, of_gpu, width);
    };
    let indices: Vec<u32> = group
        .iter()
        .flat_map(|gpu| node.gpu_indices_of(gpu[0]))
        .collect();
    let title = format!("{}  {}", format_gpus(&indices), gpu.product);
    let mut out = style(title).bold().to_string();
    if group.len() > 1 {
        let _ = write!(
            out,
            "  {} equal GPUs; GPU {} is shown",
            group.len(),
            gpu.index
        );
    }
    out.push('\n');
    let picture_width = if width == usize::MAX {
        DEFAULT_WIDTH
    } else {
        width.min(MAX_PICTURE_WIDTH)
    };
    if let Some(drawn) = draw_gpu(node, gpu, of_gpu, picture_width) {
        return out + &drawn;
    }
    if gpu.in_mig_mode() {
        let _ = writeln!(out, "  {}", format::draw_map(&gpu.slice_map()));
    }
    out + &indent_lines(&render_list(node, of_gpu, width.saturating_sub(2)))
}

/// A column of a picture: a device, or a part of the GPU without one.
struct MapPart<'a> {
    /// The number of characters between its borders.
    room: usize,
    device: Option<&'a Device>,
    /// The label of a GPU instance without a device to show.
    label: String,
    style: Style,
}

/// Returns the parts of a GPU from left to right; `None` if a GPU instance has several devices.
fn map_parts<'a>(gpu: &Gpu, devices: &[&'a Device], width: usize) -> Option<Vec<MapPart<'a>>> {
    let room = width.checked_sub(MARGIN + 1)?;
    if !gpu.in_mig_mode() {
        return Some(vec![MapPart {
            room: room.saturating_sub(1),
            device: devices.first().copied(),
            label: String::new(),
            style: Style::new(),
        }]);
    }
    let map = gpu.slice_map();
    let unit = room / usize::try_from(map.units().max(1)).ok()?;
    map.cells()
        .iter()
        .map(|cell| map_part(cell, devices, unit))
        .collect()
}

/// Returns the part of a cell, whose slices are `unit` characters wide; `None` if it has several devices.
fn map_part<'a>(cell: &Cell<'_>, devices: &[&'a Device], unit: usize) -> Option<MapPart<'a>> {
    let mut here = devices.iter().filter(|device| {
        let part = device.part.as_ref();
        part.is_some_and(|part| part.placement == cell.placement)
    });
    let size = usize::try_from(cell.placement.size).ok()?;
    let part = MapPart {
        room: (unit * size).checked_sub(1)?,
        device: here.next().copied(),
        label: cell.segment.map_or_else(String::new, |of| of.label.clone()),
        style: format::cell_style(cell),
    };
    if here.next().is_some() {
        return None;
    }
    Some(part)
}

/// A line of a picture: its name, and the text and the style of a part.
type MapLine = (
    &'static str,
    fn(&Node, &MapPart<'_>) -> Option<(String, Style)>,
);

const LINES: [MapLine; 6] = [
    ("", |_, part| {
        Some((part.device?.name.clone(), Style::new().bold()))
    }),
    ("", |_, part| Some(part.styled_title())),
    ("state", |node, part| {
        let state = node.state_of(part.device?);
        Some((state.to_string(), columns::state_style(state)))
    }),
    ("clients", |_, part| {
        let clients = columns::format_clients(part.device?);
        Some((display_or(clients, "-"), Style::new()))
    }),
    ("memory", |_, part| {
        let memory = part.device?.memory();
        let bar = memory.map(|memory| memory_bar(memory, part.room));
        Some((display_or(bar, "?"), Style::new()))
    }),
    (GIB_LINE, |_, part| {
        Some((format_memory(part.device?.memory()?), Style::new()))
    }),
];

/// The line that is left out where it does not fit: the bar says it, too.
const GIB_LINE: &str = "GiB";

/// Draws a GPU; `None` if a word does not fit into its part.
fn draw_gpu(node: &Node, gpu: &Gpu, devices: &[&Device], width: usize) -> Option<String> {
    let parts = map_parts(gpu, devices, width)?;
    let mut out = String::new();
    for (name, cell) in LINES {
        let cells: Vec<(String, Style)> = parts
            .iter()
            .map(|part| cell(node, part).unwrap_or_default())
            .collect();
        if add_line(&mut out, name, &parts, &cells).is_none() && name != GIB_LINE {
            return None;
        }
    }
    Some(out)
}

impl MapPart<'_> {
    /// Returns the profile, or the dots of a free part, in its style.
    fn styled_title(&self) -> (String, Style) {
        let label = match self.device.and_then(Device::profile_name) {
            Some(profile) => profile.to_owned(),
            None if self.device.is_none() && self.label.is_empty() => FREE.repeat(self.room),
            None => self.label.clone(),
        };
        (label, self.style.clone())
    }
}

/// Adds a line, or several where words are wrapped; `None`, and nothing is added, if one does not fit.
fn add_line(
    out: &mut String,
    name: &str,
    parts: &[MapPart<'_>],
    cells: &[(String, Style)],
) -> Option<()> {
    let wrapped: Vec<Vec<String>> = parts
        .iter()
        .zip(cells)
        .map(|(part, (text, _))| wrap_within(text, part.room))
        .collect::<Option<_>>()?;
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    for nth in 0..height {
        let name = if nth == 0 { name } else { "" };
        let _ = write!(out, "  {name:<0$}", MARGIN - 2);
        for ((part, (_, style)), lines) in parts.iter().zip(cells).zip(&wrapped) {
            let text = lines.get(nth).map_or("", String::as_str);
            let pad = part.room.saturating_sub(measure_text_width(text));
            let _ = write!(out, "{BORDER}{}{:pad$}", style.apply_to(text), "");
        }
        let _ = writeln!(out, "{BORDER}");
    }
    Some(())
}

/// Wraps text between words; `None` if a word is too long.
fn wrap_within(text: &str, room: usize) -> Option<Vec<String>> {
    let lines = wrap_text(text, room);
    let fits = lines.iter().all(|line| measure_text_width(line) <= room);
    fits.then_some(lines)
}

fn memory_bar(memory: Memory, room: usize) -> String {
    // Nothing is drawn of what the numbers show as 0.0, and a cell of anything more.
    let full = if memory.used < MIN_SHOWN_BYTES {
        0
    } else {
        let cells = u64::try_from(room).unwrap_or(0);
        let exact = memory.used.min(memory.total) * cells / memory.total.max(1);
        usize::try_from(exact).unwrap_or(0).max(1).min(room)
    };
    format!("{}{}", "#".repeat(full), "-".repeat(room - full))
}

fn format_memory(memory: Memory) -> String {
    format!("{}/{}", format_gib(memory.used), format_gib(memory.total))
}

fn render_list(node: &Node, devices: &[&Device], width: usize) -> String {
    let mut table = Table::new(vec![
        Column::left_aligned("NAME", 0),
        Column::left_aligned("PROFILE", 2),
        Column::left_aligned("STATE", 0),
        Column::left_aligned("CLIENTS", 0),
        Column::left_aligned("MEMORY", 3),
        Column::right_aligned("GIB", 1),
    ]);
    for device in devices {
        let state = node.state_of(device);
        let memory = device.memory();
        table.add_row(vec![
            device.name.clone(),
            display_or(device.profile_name(), "-"),
            columns::state_style(state).apply_to(state).to_string(),
            display_or(columns::format_clients(device), "-"),
            display_or(
                memory.map(|memory| memory_bar(memory, bar_width(node, device))),
                "?",
            ),
            display_or(memory.map(format_memory), "?"),
        ]);
    }
    table.render(width, "--json")
}

/// Returns the width of a device's bar in a list: bars of one GPU have one scale.
fn bar_width(node: &Node, device: &Device) -> usize {
    let part = || {
        let gpu = node.gpu_with_uuid(&device.key.gpu)?;
        let size = usize::try_from(device.part.as_ref()?.placement.size).ok()?;
        Some(BAR_WIDTH * size / usize::try_from(gpu.slice_map().units()).ok()?)
    };
    part().unwrap_or(BAR_WIDTH).max(1)
}

/// Width of the mark in front of a line.
pub(super) const MARK_WIDTH: usize = 2;

/// Finds the lines that were not shown the last time. A changed line is marked with a character, so that it can be seen
/// without colors.
#[derive(Clone, Debug, Default)]
pub(in crate::render) struct Marks {
    before: Option<BTreeSet<String>>,
    now: BTreeSet<String>,
}

impl Marks {
    /// Starts a new turn: its lines are compared with those of the last one.
    pub(in crate::render) fn begin_turn(&mut self) {
        if !self.now.is_empty() {
            self.before = Some(std::mem::take(&mut self.now));
        }
    }

    /// Returns the mark in front of a line with this text.
    pub(super) fn line_mark(&mut self, text: &str) -> String {
        self.now.insert(text.to_owned());
        let is_new = self
            .before
            .as_ref()
            .is_some_and(|before| !before.contains(text));
        if is_new {
            style("* ").yellow().bold().to_string()
        } else {
            " ".repeat(MARK_WIDTH)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_there_the_last_time_is_marked() {
        let mut marks = Marks::default();
        let mut show = |lines: &[&str]| -> Vec<bool> {
            marks.begin_turn();
            lines
                .iter()
                .map(|line| marks.line_mark(line).contains('*'))
                .collect()
        };
        assert_eq!(show(&["a", "b"]), [false, false]);
        assert_eq!(show(&["a", "c"]), [false, true]);
        assert_eq!(show(&["a", "c"]), [false, false]);
    }
}
