use std::fmt::Write as _;

use console::style;

use super::words::count;
use crate::plan::{Action, GpuPlan, Place, Plan, Step};

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
    let nameless = |gpu: &GpuPlan| -> Vec<Step> {
        let nameless = |step: &Step| {
            let mut step = step.clone();
            if let Action::Start(start) = &mut step.action {
                start.name.clear();
            }
            step
        };
        gpu.steps.iter().map(nameless).collect()
    };
    a.product == b.product
        && a.before == b.before
        && a.after == b.after
        && nameless(a) == nameless(b)
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
fn ranges(indices: &[u32]) -> String {
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
    let mut lines = Vec::new();
    let steps = &group[0].steps;
    let mut created: Vec<String> = Vec::new();
    let mut started: Vec<&Step> = Vec::new();
    for step in steps {
        match &step.action {
            Action::CreateGpuInstance {
                name, placement, ..
            } => {
                created.push(format!("{name} at {placement}"));
            }
            // The one that every GPU instance needs goes without saying.
            Action::CreateComputeInstance {
                instance,
                slices: None,
            } => {
                let fresh = steps.iter().any(|other| {
                    matches!(&other.action, Action::CreateGpuInstance { placement, .. } if placement == instance)
                });
                if !fresh {
                    lines.push(format!("+ {}: {}", step.action, step.because));
                }
            }
            Action::CreateComputeInstance {
                instance,
                slices: Some(slices),
            } => {
                created.push(format!("{slices}c in {instance}"));
            }
            Action::Start(_) => started.push(step),
            Action::EnableMig => lines.push("+ enable MIG mode".to_owned()),
            Action::Stop(_) | Action::DestroyComputeInstance { .. } => {
                lines.push(format!("- {}: {}", step.action, step.because));
            }
            Action::DestroyGpuInstance { .. } => lines.push(format!("- {}", step.action)),
        }
    }
    if !created.is_empty() {
        lines.push(format!("+ create {}", created.join(", ")));
    }
    lines.extend(starts(group, &started));
    if group[0].to_be_continued {
        lines.push(
            "  its driver lists profiles only while MIG is on: the rest is planned then".to_owned(),
        );
    }
    lines
}

/// Daemons started for the same reason on one line.
fn starts(group: &[&GpuPlan], started: &[&Step]) -> Vec<String> {
    let mut reasons: Vec<&str> = started.iter().map(|step| step.because.as_str()).collect();
    reasons.dedup();
    reasons
        .into_iter()
        .map(|reason| {
            let names: Vec<&str> = group
                .iter()
                .flat_map(|gpu| &gpu.steps)
                .filter(|step| step.because == reason)
                .filter_map(|step| match &step.action {
                    Action::Start(start) => Some(start.name.as_str()),
                    _ => None,
                })
                .collect();
            let whole = started.iter().any(
                |step| matches!(&step.action, Action::Start(start) if start.place == Place::Whole),
            );
            let noun = if whole && group.len() == 1 {
                "daemon of the whole GPU"
            } else {
                "daemon"
            };
            let shown = if names.len() > 5 {
                format!("{} … {}", names[..4].join(", "), names[names.len() - 1])
            } else {
                names.join(", ")
            };
            format!("+ start {} ({reason}): {shown}", count(names.len(), noun))
        })
        .collect()
}

/// What a plan ends or destroys, as one phrase; empty where it does neither.
pub(super) fn disturbances(plan: &Plan) -> String {
    let mut phrases = Vec::new();
    let interrupts = plan.interrupts();
    if !interrupts.is_empty() {
        phrases.push(format!("stop the daemons of {}", interrupts.join(", ")));
    }
    let destroys = plan.destroys();
    if !destroys.is_empty() {
        phrases.push(format!("destroy {}", destroys.join(", ")));
    }
    phrases.join(" and ")
}
