use std::fmt::Write as _;

use console::style;

use super::words::count;
use crate::plan::{Action, GpuPlan, Plan, Step};

/// What will happen, GPU by GPU; GPUs that are treated alike are shown together.
pub(super) fn text(plan: &Plan) -> String {
    let mut out = String::new();
    let mut groups: Vec<Vec<&GpuPlan>> = Vec::new();
    for gpu in &plan.gpus {
        match groups.iter_mut().find(|group| alike(group[0], gpu)) {
            Some(group) => group.push(gpu),
            None => groups.push(vec![gpu]),
        }
    }
    for group in groups {
        let first = group[0];
        let _ = writeln!(out, "{}", style(heading(&group)).bold());
        if first.before != first.after {
            let _ = writeln!(out, "  {}  now\n  {}  then", first.before, first.after);
        }
        for line in lines(&group) {
            let _ = writeln!(out, "  {line}");
        }
    }
    out
}

/// Whether the same happens to both, whatever their devices are called.
fn alike(a: &GpuPlan, b: &GpuPlan) -> bool {
    a.product == b.product
        && a.before == b.before
        && a.after == b.after
        && nameless(a) == nameless(b)
}

fn nameless(gpu: &GpuPlan) -> Vec<Step> {
    let mut steps = gpu.steps.clone();
    for step in &mut steps {
        match &mut step.action {
            Action::Start(start) => start.name.clear(),
            Action::Stop(stop) => {
                stop.name.clear();
                stop.uuid.clear();
            }
            _ => {}
        }
    }
    steps
}

fn heading(group: &[&GpuPlan]) -> String {
    let first = group[0];
    if let [one] = group {
        return format!("GPU {}  {}  {}", one.index, one.product, one.uuid);
    }
    let indices: Vec<u32> = group.iter().map(|gpu| gpu.index).collect();
    format!("GPU {}  {}", ranges(&indices), first.product)
}

/// `0-3,6`
pub(super) fn ranges(indices: &[u32]) -> String {
    indices
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [one] => one.to_string(),
            _ => format!("{}-{}", run[0], run[run.len() - 1]),
        })
        .collect::<Vec<_>>()
        .join(",")
}

fn lines(group: &[&GpuPlan]) -> Vec<String> {
    let steps = &group[0].steps;
    let mut lines = daemons(group, "- stop", |action| match action {
        Action::Stop(stop) if stop.alive => Some(&stop.name),
        _ => None,
    });
    lines.extend(daemons(group, "- clear away", |action| match action {
        Action::Stop(stop) if !stop.alive => Some(&stop.name),
        _ => None,
    }));
    lines.extend(listed("- destroy", steps.iter().filter_map(destroyed)));
    if steps.iter().any(|step| step.action == Action::EnableMig) {
        lines.push("+ enable MIG mode".to_owned());
    }
    let created = |step| created(step, steps);
    lines.extend(listed("+ create", steps.iter().filter_map(created)));
    lines.extend(daemons(group, "+ start", |action| match action {
        Action::Start(start) => Some(&start.name),
        _ => None,
    }));
    if group[0].to_be_continued {
        let rest = "  its driver lists profiles only while MIG is on: the rest is planned then";
        lines.push(rest.to_owned());
    }
    lines
}

fn listed(verb: &str, items: impl Iterator<Item = String>) -> Option<String> {
    let items: Vec<String> = items.collect();
    (!items.is_empty()).then(|| format!("{verb} {}", items.join(", ")))
}

fn destroyed(step: &Step) -> Option<String> {
    match &step.action {
        Action::DestroyGpuInstance { name, placement } => Some(format!("{name} at {placement}")),
        _ => None,
    }
}

/// What is made. The compute instance that every new GPU instance needs goes without saying.
fn created(step: &Step, steps: &[Step]) -> Option<String> {
    match &step.action {
        Action::CreateGpuInstance {
            name, placement, ..
        } => Some(format!("{name} at {placement}")),
        Action::CreateComputeInstance { instance, slices } => {
            let is_new = steps.iter().any(|other| {
                matches!(&other.action, Action::CreateGpuInstance { placement, .. } if placement == instance)
            });
            match slices {
                Some(slices) => Some(format!("{slices}c in {instance}")),
                None => (!is_new).then(|| format!("the compute instance missing in {instance}")),
            }
        }
        _ => None,
    }
}

/// Daemons that are started or ended for the same reason, on one line.
fn daemons(
    group: &[&GpuPlan],
    verb: &str,
    name: impl Fn(&Action) -> Option<&String>,
) -> Vec<String> {
    let all: Vec<(&str, &str)> = group
        .iter()
        .flat_map(|gpu| &gpu.steps)
        .filter_map(|step| Some((step.because.as_str(), name(&step.action)?.as_str())))
        .collect();
    let mut reasons: Vec<&str> = all.iter().map(|(reason, _)| *reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons
        .into_iter()
        .map(|reason| {
            let names: Vec<&str> = all
                .iter()
                .filter(|(other, _)| *other == reason)
                .map(|(_, name)| *name)
                .collect();
            format!(
                "{verb} {} ({reason}): {}",
                count(names.len(), "daemon"),
                some(&names)
            )
        })
        .collect()
}

/// A few names, and the last one.
pub(super) fn some(names: &[&str]) -> String {
    match names {
        [first @ .., last] if first.len() > 4 => format!("{} … {last}", first[..4].join(", ")),
        _ => names.join(", "),
    }
}

/// What a plan ends or destroys, as one phrase; empty where it does neither.
pub(super) fn disturbances(plan: &Plan) -> String {
    let mut phrases = Vec::new();
    let interrupts = plan.interrupts();
    if !interrupts.is_empty() {
        // The plan shown above has the names; a question must fit on a line.
        phrases.push(format!("stop {}", count(interrupts.len(), "daemon")));
    }
    let destroys = plan.destroys();
    match destroys.as_slice() {
        [] => {}
        [one] => phrases.push(format!("destroy {one}")),
        _ => phrases.push(format!("destroy {}", count(destroys.len(), "GPU instance"))),
    }
    phrases.join(" and ")
}
