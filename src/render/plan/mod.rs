//! A plan as text.

mod lines;
mod summary;

use std::fmt::Write as _;

use console::{Style, style};

use super::consequences;
use super::format::{draw_map, format_count, group_by, shorten_list, wrap_lines, wrap_text};
use super::output::output_width;
use crate::failure::Problem;
use crate::geometry::SliceMap;
use crate::host::format_gpus;
use crate::plan::{Action, CdiChange, GpuPlan, Plan, Purge, Start};
use lines::change_lines;

pub use summary::summary;

/// Stands before the second and later parts of a wrapped line.
const INDENT: &str = "    ";

/// Formats a plan GPU by GPU; GPUs with the same changes are shown together.
pub fn render(plan: &Plan) -> String {
    let mut out = String::new();
    for group in group_by(&plan.gpus, |a, b| have_same_changes(a, b)) {
        let first = group[0];
        let _ = writeln!(out, "{}", style(group_heading(&group)).bold());
        if first.before != first.after {
            let now = remark_if_empty(&first.before, switches_mig(first, true));
            let then = remark_if_empty(&first.after, switches_mig(first, false));
            let _ = writeln!(out, "  {}  now{now}", draw_map(&first.before));
            let _ = writeln!(out, "  {}  then{then}", draw_map(&first.after));
        }
        for line in change_lines(&group) {
            let _ = writeln!(out, "{}", format_change(&line));
        }
    }
    if let Some(purge) = &plan.purge {
        let whose = match purge {
            Purge::Devices(_) => "of these devices",
            Purge::All => "of every device without a daemon",
        };
        let _ = writeln!(
            out,
            "Files {whose}\n  - remove logs, and what users left in pipe directories"
        );
    }
    match plan.cdi {
        Some(CdiChange::Write) => out.push_str("CDI file of container engines\n  + write it\n"),
        Some(CdiChange::Remove) => out.push_str("CDI file of container engines\n  - remove it\n"),
        None => {}
    }
    out.push_str(&consequences::render_unmanaged(plan));
    match &plan.kill {
        Some(kill) => out.push_str(&consequences::render_kill(kill)),
        None => out.push_str(&render_ended_clients(plan)),
    }
    out.push_str(&render_keeping_clients(plan));
    out.push_str(&render_undisturbed(plan));
    out.push_str(&render_left_out(plan));
    out
}

/// Says what of the profile is left out.
fn render_left_out(plan: &Plan) -> String {
    Problem::distinct(&plan.missing)
        .into_iter()
        .map(|missing| wrap_lines(&format!("Left out: {missing}"), output_width()) + "\n")
        .collect()
}

/// Says whose clients go on, and keep everything that they have.
fn render_undisturbed(plan: &Plan) -> String {
    let names: Vec<&str> = plan
        .undisturbed
        .iter()
        .map(|each| each.device.as_str())
        .collect();
    if names.is_empty() {
        return String::new();
    }
    let clients = plan.undisturbed.iter().map(|each| each.clients).sum();
    let clients = format_count(clients, "client");
    let text = format!("Undisturbed: {clients} on {}", shorten_list(&names));
    wrap_lines(&text, output_width()) + "\n"
}

/// Lists the clients that keep the settings they started with.
fn render_keeping_clients(plan: &Plan) -> String {
    let clients: Vec<String> = plan
        .clients_keeping_settings()
        .map(|client| format!("  {client}\n"))
        .collect();
    let what = match clients.len() {
        0 => return String::new(),
        1 => "1 client keeps the settings that it started with".to_owned(),
        many => format!("{many} clients keep the settings that they started with"),
    };
    let head = wrap_lines(
        &format!("{what}; new programs get the new ones:"),
        output_width(),
    );
    format!("{head}\n{}", clients.concat())
}

/// Describes a map without instances: a GPU in MIG mode can have none, too.
fn remark_if_empty(map: &SliceMap, is_off: bool) -> &'static str {
    if !map.is_empty() {
        ""
    } else if is_off {
        ": MIG off"
    } else {
        ": MIG on, no instances"
    }
}

fn switches_mig(gpu: &GpuPlan, to: bool) -> bool {
    gpu.steps
        .iter()
        .any(|step| matches!(step.action, Action::SwitchMig { on } if on == to))
}

/// Formats a line of a plan in the color of its sign, wrapped behind the sign.
fn format_change(line: &str) -> String {
    let style = match line.as_bytes().first() {
        Some(b'+') => Style::new().green(),
        Some(b'-') => Style::new().red(),
        Some(b'~') => Style::new().yellow(),
        _ => Style::new(),
    };
    let parts: Vec<String> = wrap_text(line, output_width().saturating_sub(INDENT.len()))
        .iter()
        .map(|part| style.apply_to(part).to_string())
        .collect();
    format!("  {}", parts.join(&format!("\n{INDENT}")))
}

/// Lists the clients that are terminated.
fn render_ended_clients(plan: &Plan) -> String {
    let clients: Vec<String> = plan
        .ended_clients()
        .map(|client| format!("  {client}\n"))
        .collect();
    if clients.is_empty() {
        return String::new();
    }
    let head = format_count(clients.len(), "client");
    format!("This ends {head}:\n{}", clients.concat())
}

/// True if both get the same changes, apart from the names of devices.
fn have_same_changes(a: &GpuPlan, b: &GpuPlan) -> bool {
    a.index.is_some()
        && b.index.is_some()
        && a.product == b.product
        && a.before == b.before
        && a.after == b.after
        && a.compute_modes == b.compute_modes
        && a.steps.len() == b.steps.len()
        && a.steps
            .iter()
            .zip(&b.steps)
            .all(|(a, b)| a.because.is_like(&b.because) && are_same_action(&a.action, &b.action))
}

/// True if both do the same to devices with other names and clients.
fn are_same_action(a: &Action, b: &Action) -> bool {
    match (a, b) {
        (Action::Stop(a), Action::Stop(b)) => a.means == b.means && a.alive == b.alive,
        (Action::Start(a), Action::Start(b)) => {
            let like_b = Start {
                name: b.name.clone(),
                uuid: b.uuid.clone(),
                ..a.clone()
            };
            like_b == *b
        }
        (Action::Set(a), Action::Set(b)) => {
            a.settings == b.settings && a.changes == b.changes && a.by_hand == b.by_hand
        }
        (Action::StartServer(a), Action::StartServer(b)) => a.settings == b.settings,
        _ => a == b,
    }
}

fn group_heading(group: &[&GpuPlan]) -> String {
    let first = group[0];
    if let [one] = group {
        return match one.index {
            Some(index) => format!("GPU {index}  {}  {}", one.product, one.uuid),
            None => format!("{}  (cannot be seen)", one.uuid),
        };
    }
    let indices: Vec<u32> = group.iter().filter_map(|gpu| gpu.index).collect();
    format!("{}  {}", format_gpus(&indices), first.product)
}
