use std::fmt::Write as _;

use console::style;

use super::beside;
use super::words::count;
use crate::apply::Allowed;
use crate::geometry::{ComputeChoice, Placement};
use crate::mps::{Means, Patience};
use crate::nvml::compute_mode_in_words;
use crate::plan::{Action, GpuPlan, ModeChange, Plan, Start, Step};

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
    out.push_str(&beside::text(plan));
    out.push_str(&ended(plan));
    out
}

/// The clients that are not waited for.
fn ended(plan: &Plan) -> String {
    let forced = plan.stops().filter(|stop| stop.patience != Patience::Idle);
    let clients: Vec<String> = forced
        .flat_map(|stop| &stop.clients)
        .map(|client| format!("\n  {client}"))
        .collect();
    match clients.len() {
        0 => String::new(),
        1 => format!("1 client is ended:{}\n", clients.concat()),
        number => format!("{number} clients are ended:{}\n", clients.concat()),
    }
}

/// Whether the same happens to both, whatever their devices are called.
fn alike(a: &GpuPlan, b: &GpuPlan) -> bool {
    a.product == b.product
        && a.before == b.before
        && a.after == b.after
        && a.compute_mode == b.compute_mode
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
                stop.clients.clear();
                stop.patience = Patience::Idle;
                stop.unasked = None;
            }
            Action::Set(set) => {
                set.name.clear();
                set.uuid.clear();
                set.keep.clear();
            }
            Action::StartServer(server) => {
                server.name.clear();
                server.uuid.clear();
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
        Action::Stop(stop) if stop.alive && stop.means != Means::Heal => Some(&stop.name),
        _ => None,
    });
    lines.extend(daemons(
        group,
        "- end the hung server of",
        |action| match action {
            Action::Stop(stop) if stop.means == Means::Heal => Some(&stop.name),
            _ => None,
        },
    ));
    lines.extend(daemons(
        group,
        "- end the stray server of",
        |action| match action {
            Action::EndStray(stray) => Some(&stray.name),
            _ => None,
        },
    ));
    lines.extend(daemons(
        group,
        "- clear away what is left of",
        |action| match action {
            Action::Stop(stop) if !stop.alive => Some(&stop.name),
            _ => None,
        },
    ));
    lines.extend(listed(
        "- destroy",
        steps.iter().filter_map(|step| destroyed(step, steps)),
    ));
    for step in steps {
        if let Action::SwitchMig { on } = step.action {
            let verb = if on { "+ enable" } else { "- disable" };
            lines.push(format!("{verb} MIG mode ({})", step.because));
        }
    }
    lines.extend(listed(
        "+ create",
        steps.iter().filter_map(|step| created(step, steps)),
    ));
    lines.extend(group[0].compute_mode.map(mode));
    // Its daemon goes on.
    let is_healed = |start: &Start| {
        group.iter().flat_map(|gpu| &gpu.steps).any(|step| {
            matches!(&step.action, Action::Stop(stop) if stop.name == start.name && stop.means == Means::Heal)
        })
    };
    lines.extend(daemons(group, "+ start", |action| match action {
        Action::Start(start) if !is_healed(start) => Some(&start.name),
        _ => None,
    }));
    lines.extend(daemons(group, "~ set", |action| match action {
        Action::Set(set) => Some(&set.name),
        _ => None,
    }));
    lines.extend(daemons(
        group,
        "+ start the server of",
        |action| match action {
            Action::StartServer(server) => Some(&server.name),
            Action::Start(start) if is_healed(start) => Some(&start.name),
            _ => None,
        },
    ));
    if group[0].to_be_continued {
        let rest = "  its driver lists profiles only while MIG is on: the rest is planned then";
        lines.push(rest.to_owned());
    }
    lines
}

/// Programs outside MPS feel it: none computes on a GPU that one process has to itself.
fn mode(change: ModeChange) -> String {
    let shall = compute_mode_in_words(change.to);
    if change.is_for_a_daemon() {
        format!("~ set compute mode to {shall}: MPS alone computes (given back by down)")
    } else {
        format!("~ set compute mode back to {shall} (as before its daemon)")
    }
}

/// Instances that go or come for the same reason, on one line. What the profile asks for needs none.
fn listed<'a>(verb: &str, items: impl Iterator<Item = (&'a str, String)>) -> Vec<String> {
    let mut lines: Vec<(&str, Vec<String>)> = Vec::new();
    for (because, item) in items {
        match lines.iter_mut().find(|(other, _)| *other == because) {
            Some((_, items)) => items.push(item),
            None => lines.push((because, vec![item])),
        }
    }
    lines
        .into_iter()
        .map(|(because, items)| match because {
            "" => format!("{verb} {}", items.join(", ")),
            _ => format!("{verb} {} ({because})", items.join(", ")),
        })
        .collect()
}

/// What goes. That a GPU instance's compute instances go with it needs no saying.
fn destroyed<'a>(step: &'a Step, steps: &[Step]) -> Option<(&'a str, String)> {
    let goes = |instance: &Placement| {
        steps.iter().any(|other| {
            matches!(&other.action, Action::DestroyGpuInstance { placement, .. } if placement == instance)
        })
    };
    let what = match &step.action {
        Action::DestroyGpuInstance {
            name, placement, ..
        } => format!("{name} at {placement}"),
        Action::DestroyComputeInstance { instance, compute } if !goes(instance) => {
            format!("compute instance {compute} in {instance}")
        }
        _ => return None,
    };
    Some((&step.because, what))
}

/// What is made. The compute instance that every new GPU instance needs goes without saying.
fn created<'a>(step: &'a Step, steps: &[Step]) -> Option<(&'a str, String)> {
    match &step.action {
        Action::CreateGpuInstance {
            name, placement, ..
        } => Some(("", format!("{name} at {placement}"))),
        Action::CreateComputeInstance { instance, compute } => {
            let is_new = steps.iter().any(|other| {
                matches!(&other.action, Action::CreateGpuInstance { placement, .. } if placement == instance)
            });
            match compute {
                ComputeChoice::Slices { count, .. } => {
                    Some(("", format!("{count}c in {instance}")))
                }
                _ if is_new => None,
                _ => Some((
                    &step.because,
                    format!("the full compute instance in {instance}"),
                )),
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
    // They start in the order in which their devices come to be; a reader wants them from left to
    // right.
    let place = |action: &Action| match action {
        Action::Start(start) => Some(start.place),
        _ => None,
    };
    let mut all: Vec<(&str, &str)> = Vec::new();
    for gpu in group {
        let mut steps: Vec<&Step> = gpu.steps.iter().collect();
        steps.sort_by_key(|step| place(&step.action));
        for step in steps {
            if let Some(name) = name(&step.action) {
                all.push((&step.because, name));
            }
        }
    }
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

/// Whom a plan disturbs, and what keeps it from being carried out; empty where there is neither.
pub(super) fn consequences(plan: &Plan) -> String {
    let mut out = String::new();
    let clients: Vec<_> = plan.clients().collect();
    if !clients.is_empty() {
        let _ = writeln!(
            out,
            "\n{} would be disturbed ({} refuses, unless --drain lets them end or --force ends them):",
            count(clients.len(), "client"),
            if plan.restarts() > 0 { "restart" } else { "up" },
        );
    }
    for client in clients {
        let _ = writeln!(out, "  {client}");
    }
    let kept: Vec<_> = plan.keep().collect();
    if !kept.is_empty() {
        let (s, their) = if kept.len() == 1 {
            ("s", "it")
        } else {
            ("", "they")
        };
        let _ = writeln!(
            out,
            "\n{} keep{s} what {their} started with: the settings are for programs that start afterwards:",
            count(kept.len(), "client")
        );
    }
    for client in kept {
        let _ = writeln!(out, "  {client}");
    }
    let mut dues: Vec<(&str, Vec<u32>)> = Vec::new();
    for gpu in &plan.gpus {
        let Some(due) = gpu.due.as_deref() else {
            continue;
        };
        match dues.iter_mut().find(|(other, _)| *other == due) {
            Some((_, gpus)) => gpus.push(gpu.index),
            None => dues.push((due, vec![gpu.index])),
        }
    }
    for (due, gpus) in dues {
        let _ = writeln!(out, "\nGPU {}: {due}", ranges(&gpus));
    }
    let unasked = plan.stops().filter_map(|stop| stop.unasked.as_ref());
    let obstacles = plan.gpus.iter().flat_map(|gpu| &gpu.obstacles);
    for obstacle in obstacles.chain(unasked) {
        let _ = writeln!(out, "\nIn the way: {obstacle}\n  {}", obstacle.hint);
    }
    out
}

/// What a plan ends or destroys, as one phrase; empty where it does neither.
pub(super) fn disturbances(plan: &Plan, allowed: Allowed) -> String {
    let mut phrases = Vec::new();
    let again = plan.restarts();
    let stopped = plan.interrupts().len() - again;
    let clients = plan.ended_clients().count();
    if clients > 0 {
        phrases.push(format!("end {}", count(clients, "client")));
    }
    // The plan shown above has the names; a question is short.
    for (verb, daemons) in [("stop", stopped), ("restart", again)] {
        if daemons > 0 {
            phrases.push(format!("{verb} {}", count(daemons, "daemon")));
        }
    }
    let destroys = plan.destroys();
    match destroys.as_slice() {
        [] => {}
        [one] => phrases.push(format!("destroy {one}")),
        _ => phrases.push(format!("destroy {}", count(destroys.len(), "instance"))),
    }
    // Off may leave a GPU in need of a reset; on is what partitioning it means.
    let off = plan.switches(&[false]);
    if !off.is_empty() {
        phrases.push(format!("switch MIG mode off on GPU {}", ranges(&off)));
    }
    let switched = plan.switches(&[true, false]);
    if allowed.reset && !switched.is_empty() {
        phrases.push(format!("reset GPU {} if that is due", ranges(&switched)));
    }
    match phrases.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
        None => String::new(),
    }
}
