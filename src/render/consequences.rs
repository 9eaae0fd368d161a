//! The disruptions and obstacles of a plan.

use std::fmt::Write as _;

use super::format::{count, fitted, grouped};
use super::kill;
use super::output::width;
use crate::apply::Allowed;
use crate::host::ranges;
use crate::plan::{Held, Plan};

/// Lists the clients that a plan disrupts, and its obstacles; empty if there are none.
pub fn text(plan: &Plan, held: &[Held]) -> String {
    let mut out = String::new();
    let clients: Vec<_> = plan.clients_in_the_way().collect();
    if !clients.is_empty() {
        let _ = writeln!(
            out,
            "\n{} would be disrupted (refused, unless --drain lets them exit in time or --force ends them):",
            count(clients.len(), "client"),
        );
    }
    for client in clients {
        let _ = writeln!(out, "  {client}");
    }
    let dues = plan.gpus.iter();
    let dues = dues.filter_map(|gpu| Some((gpu.due.as_deref()?, gpu.index?)));
    for group in grouped(dues, |a, b| a.0 == b.0) {
        let gpus: Vec<u32> = group.iter().map(|(_, gpu)| *gpu).collect();
        let _ = writeln!(out, "\nGPU {}: {}", ranges(&gpus), group[0].0);
    }
    let unasked = plan.stops().filter_map(|stop| stop.unasked.as_ref());
    let obstacles = plan.gpus.iter().flat_map(|gpu| &gpu.obstacles);
    for obstacle in obstacles.chain(unasked) {
        let _ = writeln!(out, "\nIn the way: {obstacle}\n  {}", obstacle.hint);
    }
    for held in held {
        let _ = writeln!(out, "\n{}", held_by(held));
    }
    if out.is_empty() {
        return out;
    }
    fitted(&out, width()) + "\n"
}

/// Describes the processes that hold GPUs whose MIG mode is switched.
fn held_by(held: &Held) -> String {
    let title = held.title();
    if let Some(obstacle) = held.obstacle() {
        return format!("In the way: {obstacle}\n  {}", obstacle.hint);
    }
    let mut lines = Vec::new();
    if !held.holders.is_empty() {
        lines.push(format!(
            "{title} is held open by {}. If the driver does not switch its MIG mode meanwhile, nothing else is done.\n  {}",
            held.named(),
            held.hint()
        ));
    }
    if held.hidden > 0 {
        lines.push(format!(
            "{title} may be held open by {} of other users, which only root can inspect",
            count(held.hidden, "program"),
        ));
    }
    lines.join("\n")
}

/// Describes what a plan stops or destroys, as one phrase; empty if nothing.
pub(super) fn disruptions(plan: &Plan, allowed: Allowed) -> String {
    let mut phrases = Vec::new();
    let again = plan.restarts();
    let stopped = plan.interrupts().len() - again;
    let clients = plan.ended_clients().count();
    match &plan.kill {
        _ if clients == 0 => {}
        None => phrases.push(format!("end {}", count(clients, "client"))),
        Some(kill) => phrases.push(kill::phrase(kill)),
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
    // Switching MIG off may make a reset due; switching it on is part of partitioning.
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
