use std::fmt::Write as _;

use console::style;

use super::format::{count, grouped, ranges, shortened};
use super::{kill, unmanaged};
use crate::geometry::{ComputeChoice, Placement};
use crate::mps::{Means, Patience};
use crate::nvml::compute_mode_in_words;
use crate::plan::{Action, GpuPlan, ModeChange, Plan, Purge, Start, Step};

/// Formats a plan GPU by GPU; GPUs with the same changes are shown together.
pub(super) fn text(plan: &Plan) -> String {
    let mut out = plan.kill.as_ref().map(kill::text).unwrap_or_default();
    for group in grouped(&plan.gpus, |a, b| alike(a, b)) {
        let first = group[0];
        let _ = writeln!(out, "{}", style(heading(&group)).bold());
        if first.before != first.after {
            let _ = writeln!(out, "  {}  now\n  {}  then", first.before, first.after);
        }
        for line in lines(&group) {
            let _ = writeln!(out, "  {line}");
        }
    }
    if let Some(purge) = &plan.purge {
        let whose = match purge {
            Purge::Devices(_) => "of these devices",
            Purge::All => "of every device without a daemon",
        };
        let _ = writeln!(
            out,
            "Logs and files left in pipe directories, {whose}\n  - remove them (asked for)"
        );
    }
    out.push_str(&unmanaged::text(plan));
    out.push_str(&ended(plan));
    out
}

/// Lists the clients that are terminated.
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

/// True if both get the same changes, apart from the names of devices.
fn alike(a: &GpuPlan, b: &GpuPlan) -> bool {
    a.index.is_some()
        && b.index.is_some()
        && a.product == b.product
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
        return match one.index {
            Some(index) => format!("GPU {index}  {}  {}", one.product, one.uuid),
            None => format!("A GPU that is gone  {}", one.uuid),
        };
    }
    let indices: Vec<u32> = group.iter().filter_map(|gpu| gpu.index).collect();
    format!("GPU {}  {}", ranges(&indices), first.product)
}

/// Returns a line for each kind of change and its reason.
fn lines(group: &[&GpuPlan]) -> Vec<String> {
    let mut lines = removals(group);
    let first = group[0];
    for step in &first.steps {
        if let Action::SwitchMig { on } = step.action {
            let verb = if on { "+ enable" } else { "- disable" };
            lines.push(format!("{verb} MIG mode ({})", step.because));
        }
    }
    lines.extend(additions(group));
    if first.to_be_continued {
        let rest = "  its driver lists profiles only while MIG is on: the rest is planned then";
        lines.push(rest.to_owned());
    }
    lines
}

fn removals(group: &[&GpuPlan]) -> Vec<String> {
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
    let destroyed = steps.iter().filter_map(|step| destroyed(step, steps));
    lines.extend(listed("- destroy", destroyed));
    lines
}

fn additions(group: &[&GpuPlan]) -> Vec<String> {
    let steps = &group[0].steps;
    let created = steps.iter().filter_map(|step| created(step, steps));
    let mut lines = listed("+ create", created);
    lines.extend(group[0].compute_mode.map(mode));
    // A daemon whose hung server is killed goes on.
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
    lines
}

/// Describes a change of compute mode. It affects programs outside MPS: none computes on a GPU in exclusive mode.
fn mode(change: ModeChange) -> String {
    let wanted = compute_mode_in_words(change.to);
    if change.is_for_a_daemon() {
        format!("~ set compute mode to {wanted}: MPS alone computes (restored by down)")
    } else {
        format!("~ set compute mode back to {wanted} (as before its daemon)")
    }
}

/// Puts instances with the same reason on one line. Those of the profile have none.
fn listed<'a>(verb: &str, items: impl Iterator<Item = (&'a str, String)>) -> Vec<String> {
    grouped(items, |a, b| a.0 == b.0)
        .into_iter()
        .map(|group| {
            let because = group[0].0;
            let items: Vec<String> = group.into_iter().map(|(_, item)| item).collect();
            match because {
                "" => format!("{verb} {}", items.join(", ")),
                _ => format!("{verb} {} ({because})", items.join(", ")),
            }
        })
        .collect()
}

/// Describes an instance that is destroyed; none if its GPU instance is, too.
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

/// Describes an instance that is created; none for the full compute instance of a new GPU instance.
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

/// Puts daemons with the same reason on one line.
fn daemons(
    group: &[&GpuPlan],
    verb: &str,
    name: impl Fn(&Action) -> Option<&String>,
) -> Vec<String> {
    // They start in the order in which their devices are created, and are shown from left to right.
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
    let mut groups = grouped(all, |a, b| a.0 == b.0);
    groups.sort_by_key(|group| group[0].0);
    groups
        .into_iter()
        .map(|group| {
            let names: Vec<&str> = group.iter().map(|(_, name)| *name).collect();
            format!(
                "{verb} {} ({}): {}",
                count(names.len(), "daemon"),
                group[0].0,
                shortened(&names)
            )
        })
        .collect()
}
