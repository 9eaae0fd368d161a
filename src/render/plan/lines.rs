//! The lines of the changes of a GPU, or of several with the same changes.

use std::collections::BTreeMap;

use super::super::format::{format_count, group_by, keep_together, shorten_list};
use crate::geometry::{ComputeChoice, Placement};
use crate::host::{format_gpus, format_ranges};
use crate::mps::StopMethod;
use crate::nvml::compute_mode_name;
use crate::plan::{Action, GpuPlan, ModeChange, PlanInstance, Reason, Start, Step};

/// Returns a line for each kind of change and its reason.
pub(super) fn change_lines(group: &[&GpuPlan]) -> Vec<String> {
    let first = group[0];
    let steps = &first.steps;
    let each = if group.len() > 1 { " on each GPU" } else { "" };
    let mut lines = Vec::new();
    for verb in [STOP, END_HUNG, END_STRAY, CLEAN_UP] {
        lines.extend(daemon_lines(group, verb));
    }
    let destroyed = first
        .destroyed_instances()
        .into_iter()
        .map(|(because, part)| (Some(because), part));
    lines.extend(instance_lines("- destroy", destroyed, each));
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
    lines.extend(instance_lines("+ create", instances, each));
    lines.extend(mode_change_lines(&first.compute_modes));
    lines.extend(daemon_lines(group, START));
    lines.extend(set_lines(group));
    for verb in [START_SERVER, REPLACE] {
        lines.extend(daemon_lines(group, verb));
    }
    if first.to_be_continued {
        let rest = "  its driver lists profiles only while MIG is on: the rest is planned then";
        lines.push(rest.to_owned());
    }
    lines
}

const STOP: &str = "- stop";
pub(super) const END_HUNG: &str = "- end the hung server of";
pub(super) const END_STRAY: &str = "- end the stray server of";
pub(super) const CLEAN_UP: &str = "- clean up after";
pub(super) const START: &str = "+ start";
pub(super) const START_SERVER: &str = "+ start the server of";
pub(super) const REPLACE: &str = "~ replace";

/// Returns the name of the device whose daemon changes, and the start of the line that names it.
fn daemon_change<'a>(action: &'a Action, steps: &[Step]) -> Option<(&'static str, &'a str)> {
    Some(match action {
        Action::Stop(stop) if stop.means == StopMethod::Heal => (END_HUNG, &stop.name),
        Action::Stop(stop) if stop.alive => (STOP, &stop.name),
        Action::Stop(stop) => (CLEAN_UP, &stop.name),
        Action::EndStray(stray) => (END_STRAY, &stray.name),
        Action::Start(start) if is_healed(start, steps) => (START_SERVER, &start.name),
        Action::Start(start) => (START, &start.name),
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

/// Returns a line for each new compute mode. It affects programs outside MPS: none computes on a GPU in exclusive mode.
fn mode_change_lines(changes: &[ModeChange]) -> Vec<String> {
    let is_alike = |a: &&ModeChange, b: &&ModeChange| {
        a.to == b.to && a.joint_gpu.is_some() == b.joint_gpu.is_some()
    };
    let mut sorted: Vec<&ModeChange> = changes.iter().collect();
    sorted.sort_by_key(|change| change.to);
    let line = |group: Vec<&ModeChange>| {
        let gpus: Vec<u32> = group.iter().filter_map(|change| change.joint_gpu).collect();
        let gpus = if gpus.is_empty() {
            String::new()
        } else {
            format!(" of {}", format_gpus(&gpus))
        };
        let wanted = compute_mode_name(group[0].to);
        if group[0].is_for_a_daemon() {
            format!("~ set compute mode{gpus} to {wanted}: MPS alone computes (restored by down)")
        } else {
            format!("~ set compute mode{gpus} back to {wanted} (as before its daemon)")
        }
    };
    group_by(sorted, is_alike).into_iter().map(line).collect()
}

/// Puts instances with the same reason on one line. Those of the profile have none. `each` says that there are as many on
/// each of several GPUs.
fn instance_lines<'a>(
    verb: &str,
    parts: impl IntoIterator<Item = (Option<&'a Reason>, PlanInstance<'a>)>,
    each: &str,
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
        lines.push(format!("{verb} {}{each}{because}", kinds.join(", ")));
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

/// The number of GPU instances, and that of compute instances in GPU instances that stay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InstanceCount {
    pub gpu: usize,
    pub compute: usize,
}

pub(super) fn count_destroyed(gpus: &[GpuPlan]) -> InstanceCount {
    let mut count = InstanceCount::default();
    for (_, part) in gpus.iter().flat_map(GpuPlan::destroyed_instances) {
        match part {
            PlanInstance::Gpu(_) => count.gpu += 1,
            PlanInstance::Compute(_) => count.compute += 1,
        }
    }
    count
}

pub(super) fn count_created(gpus: &[GpuPlan]) -> InstanceCount {
    let mut count = InstanceCount::default();
    for gpu in gpus {
        for step in &gpu.steps {
            match step.action {
                Action::CreateGpuInstance(_) => count.gpu += 1,
                Action::CreateComputeInstance { instance, .. } if !is_new(instance, &gpu.steps) => {
                    count.compute += 1;
                }
                _ => {}
            }
        }
    }
    count
}

/// Counts the daemons that are named behind this verb.
pub(super) fn count_daemons(gpus: &[GpuPlan], verb: &str) -> usize {
    gpus.iter()
        .flat_map(|gpu| {
            gpu.steps
                .iter()
                .filter_map(|step| daemon_change(&step.action, &gpu.steps))
        })
        .filter(|(own, _)| *own == verb)
        .count()
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
    let mut by_reason: BTreeMap<String, (&Reason, Vec<String>)> = BTreeMap::new();
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
                let title = match because.as_rename() {
                    Some((from, to)) if verb == START => format!("{from}{RENAMED_TO}{to}"),
                    _ => name.to_owned(),
                };
                names.push(match step.action.joint_gpus() {
                    [] => title,
                    gpus => format!("{title} on {}", format_gpus(gpus)),
                });
            }
        }
    }
    by_reason
        .values()
        .map(|(because, names)| {
            let because = in_parentheses(because, names.len());
            daemon_line(group, verb, &because, names)
        })
        .collect()
}

/// Formats the line of daemons that get the same.
fn daemon_line(group: &[&GpuPlan], verb: &str, because: &str, names: &[String]) -> String {
    let daemons = format_count(names.len(), "daemon");
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Of several GPUs with the same changes, the first names and the last tell enough.
    let (in_all, names) = match names.as_slice() {
        all if group.len() == 1 => ("", shorten_list(all)),
        [first, .., last] if first.contains(RENAMED_TO) => (" in all", format!("{first} … {last}")),
        [first, second, _, .., last] => (" in all", format!("{first}, {second} … {last}")),
        all => (" in all", all.join(", ")),
    };
    format!("{verb} {daemons}{in_all}{because}: {names}")
}

/// Stands between the old and the new name of a device.
const RENAMED_TO: &str = " → ";

/// Returns a line for the daemons that get the same settings while they run, and below it a line for each setting.
fn set_lines(group: &[&GpuPlan]) -> Vec<String> {
    let sets = group
        .iter()
        .flat_map(|gpu| &gpu.steps)
        .filter_map(|step| match &step.action {
            Action::Set(set) => Some((&step.because, set)),
            _ => None,
        });
    let mut lines = Vec::new();
    for alike in group_by(sets, |a, b| a.0 == b.0 && a.1.changes == b.1.changes) {
        let (because, first) = alike[0];
        let names: Vec<String> = alike.iter().map(|(_, set)| set.name.clone()).collect();
        let because = in_parentheses(because, names.len());
        lines.push(daemon_line(group, "~ set", &because, &names));
        let width = first
            .changes
            .iter()
            .map(|change| change.key.len())
            .max()
            .unwrap_or(0);
        for change in &first.changes {
            let (key, is, wanted) = (change.key, &change.is, &change.wanted);
            lines.push(format!("    {key:width$}  {is} → {wanted}"));
        }
    }
    lines
}

/// Formats the reason of a line about so many; empty if the command itself asks for it.
fn in_parentheses(because: &Reason, number: usize) -> String {
    match because.text_in_plan(number).as_ref() {
        "" => String::new(),
        reason => format!(" ({reason})"),
    }
}
