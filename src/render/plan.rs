//! A plan as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use console::{Style, style};

use super::consequences;
use super::format::{
    draw_map, format_count, group_by, keep_together, shorten_list, wrap_lines, wrap_text,
};
use super::output::output_width;
use crate::geometry::{ComputeChoice, Placement, SliceMap};
use crate::host::format_ranges;
use crate::mps::StopMethod;
use crate::nvml::compute_mode_name;
use crate::plan::{
    Action, CdiChange, GpuPlan, ModeChange, Plan, PlanInstance, Purge, Reason, Start, Step,
};

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
            "Logs and files left in pipe directories, {whose}\n  - remove them"
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
    let mut lines: Vec<String> = plan
        .missing
        .iter()
        .map(|missing| wrap_lines(&format!("Left out: {missing}"), output_width()) + "\n")
        .collect();
    // GPUs that the same processes hold have the same reason.
    lines.dedup();
    lines.concat()
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
        && a.compute_mode == b.compute_mode
        && a.steps.len() == b.steps.len()
        && a.steps
            .iter()
            .zip(&b.steps)
            .all(|(a, b)| a.because == b.because && are_same_action(&a.action, &b.action))
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
    format!("GPU {}  {}", format_ranges(&indices), first.product)
}

/// Returns a line for each kind of change and its reason.
fn change_lines(group: &[&GpuPlan]) -> Vec<String> {
    let first = group[0];
    let steps = &first.steps;
    let mut lines = Vec::new();
    for verb in [STOP, END_HUNG, END_STRAY, CLEAN_UP] {
        lines.extend(daemon_lines(group, verb));
    }
    let destroyed = first
        .destroyed_instances()
        .into_iter()
        .map(|(because, part)| (Some(because), part));
    lines.extend(instance_lines("- destroy", destroyed));
    for step in steps {
        if let Action::SwitchMig { on } = step.action {
            let verb = if on { "+ enable" } else { "- disable" };
            lines.push(format!(
                "{verb} MIG mode{}",
                in_parentheses(&step.because, 1)
            ));
        }
    }
    let instances = steps
        .iter()
        .filter_map(|step| created_instance(step, steps));
    lines.extend(instance_lines("+ create", instances));
    lines.extend(first.compute_mode.map(describe_mode_change));
    for verb in [START, SET, START_SERVER, REPLACE] {
        lines.extend(daemon_lines(group, verb));
    }
    if first.to_be_continued {
        let rest = "  its driver lists profiles only while MIG is on: the rest is planned then";
        lines.push(rest.to_owned());
    }
    lines
}

const STOP: &str = "- stop";
const END_HUNG: &str = "- end the hung server of";
const END_STRAY: &str = "- end the stray server of";
const CLEAN_UP: &str = "- clean up after";
const START: &str = "+ start";
const SET: &str = "~ set";
const START_SERVER: &str = "+ start the server of";
const REPLACE: &str = "~ replace";

/// Returns the name of the device whose daemon changes, and the start of the line that names it.
fn daemon_change<'a>(action: &'a Action, steps: &[Step]) -> Option<(&'static str, &'a str)> {
    Some(match action {
        Action::Stop(stop) if stop.means == StopMethod::Heal => (END_HUNG, &stop.name),
        Action::Stop(stop) if stop.alive => (STOP, &stop.name),
        Action::Stop(stop) => (CLEAN_UP, &stop.name),
        Action::EndStray(stray) => (END_STRAY, &stray.name),
        Action::Start(start) if is_healed(start, steps) => (START_SERVER, &start.name),
        Action::Start(start) => (START, &start.name),
        Action::Set(set) => (SET, &set.name),
        Action::StartServer(server) => (START_SERVER, &server.name),
        Action::Close(close) => (REPLACE, &close.name),
        _ => return None,
    })
}

/// True if the hung server of the daemon is ended, and the daemon itself goes on.
fn is_healed(start: &Start, steps: &[Step]) -> bool {
    steps
        .iter()
        .filter_map(|step| step.action.as_stop())
        .any(|stop| stop.name == start.name && stop.means == StopMethod::Heal)
}

/// Describes a change of compute mode. It affects programs outside MPS: none computes on a GPU in exclusive mode.
fn describe_mode_change(change: ModeChange) -> String {
    let wanted = compute_mode_name(change.to);
    if change.is_for_a_daemon() {
        format!("~ set compute mode to {wanted}: MPS alone computes (restored by down)")
    } else {
        format!("~ set compute mode back to {wanted} (as before its daemon)")
    }
}

/// Puts instances with the same reason on one line. Those of the profile have none.
fn instance_lines<'a>(
    verb: &str,
    parts: impl IntoIterator<Item = (Option<&'a Reason>, PlanInstance<'a>)>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for group in group_by(parts, |a, b| a.0 == b.0) {
        let number = group.len();
        let because = group[0].0;
        let because = because.map_or_else(String::new, |because| in_parentheses(because, number));
        let kinds: Vec<String> = group_by(group, |a, b| match (&a.1, &b.1) {
            (PlanInstance::Gpu(a), PlanInstance::Gpu(b)) => a.name == b.name,
            (a, b) => a == b,
        })
        .iter()
        .map(|parts| keep_together(&describe_instances(parts)))
        .collect();
        lines.push(format!("{verb} {}{because}", kinds.join(", ")));
    }
    lines
}

/// `3g.40gb at slices 4-7`, `5 × 1g.10gb at slices 2-6`
fn describe_instances(parts: &[(Option<&Reason>, PlanInstance<'_>)]) -> String {
    let (number, (_, first)) = (parts.len(), &parts[0]);
    if number == 1 {
        return first.to_string();
    }
    let PlanInstance::Gpu(instance) = first else {
        return format!("{number} × {first}");
    };
    let mut placements: Vec<Placement> = parts
        .iter()
        .filter_map(|(_, part)| match part {
            PlanInstance::Gpu(instance) => Some(instance.placement),
            PlanInstance::Compute(_) => None,
        })
        .collect();
    placements.sort_unstable();
    let slices = if placements.iter().all(|placement| placement.size == 1) {
        let starts: Vec<u32> = placements.iter().map(|placement| placement.start).collect();
        format_ranges(&starts)
    } else {
        let each: Vec<String> = placements.iter().map(|each| each.format_range()).collect();
        each.join(",")
    };
    format!("{number} × {} at slices {slices}", instance.name)
}

/// Describes an instance that is created; none for the full compute instance of a new GPU instance.
fn created_instance<'a>(
    step: &'a Step,
    steps: &[Step],
) -> Option<(Option<&'a Reason>, PlanInstance<'a>)> {
    match &step.action {
        Action::CreateGpuInstance(instance) => Some((None, PlanInstance::Gpu(instance))),
        Action::CreateComputeInstance {
            instance,
            compute: ComputeChoice::Slices { count, .. },
        } => Some((
            None,
            PlanInstance::Compute(format!("{count}c in {instance}")),
        )),
        Action::CreateComputeInstance { instance, .. } if !is_new(*instance, steps) => {
            let what = format!("the full compute instance in {instance}");
            Some((Some(&step.because), PlanInstance::Compute(what)))
        }
        _ => None,
    }
}

/// True if the steps create the GPU instance at this placement.
fn is_new(instance: Placement, steps: &[Step]) -> bool {
    steps.iter().any(
        |step| matches!(&step.action, Action::CreateGpuInstance(new) if new.placement == instance),
    )
}

/// Puts daemons with this verb and the same reason on one line.
fn daemon_lines(group: &[&GpuPlan], verb: &str) -> Vec<String> {
    let mut by_reason: BTreeMap<String, (&Reason, Vec<&str>)> = BTreeMap::new();
    for gpu in group {
        // Daemons start in the order in which their devices are created, and are shown from left to right.
        let mut steps: Vec<&Step> = gpu.steps.iter().collect();
        steps.sort_by_key(|step| step.action.as_start().map(|start| start.place));
        for step in steps {
            if let Some((own, name)) = daemon_change(&step.action, &gpu.steps)
                && own == verb
            {
                let because = &step.because;
                let of_reason = by_reason.entry(in_parentheses(because, 1));
                let (_, names) = of_reason.or_insert_with(|| (because, Vec::new()));
                names.push(name);
            }
        }
    }
    by_reason
        .values()
        .map(|(because, names)| {
            let daemons = format_count(names.len(), "daemon");
            let because = in_parentheses(because, names.len());
            format!("{verb} {daemons}{because}: {}", shorten_list(names))
        })
        .collect()
}

/// Formats the reason of a line about so many; empty if the command itself asks for it.
fn in_parentheses(because: &Reason, number: usize) -> String {
    match because.text_in_plan(number).as_ref() {
        "" => String::new(),
        reason => format!(" ({reason})"),
    }
}
