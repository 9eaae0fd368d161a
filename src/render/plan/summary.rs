//! The last line of a plan.

use std::collections::BTreeSet;

use super::super::format::format_count;
use super::lines::count_created;
use crate::host::{format_ranges, join_words};
use crate::plan::{Plan, Start};

/// Sums a plan up: `Plan: create 4 instances, start 6 daemons, and restart 1 (1 client of alice disrupted).`
pub fn summary(plan: &Plan) -> String {
    let stopped: BTreeSet<&str> = plan
        .stops()
        .filter(|stop| stop.alive)
        .map(|stop| stop.uuid.as_str())
        .collect();
    let restarts = |start: &&Start| {
        let uuid = start.uuid.as_deref();
        uuid.is_some_and(|uuid| stopped.contains(uuid))
    };
    let restarted = plan.starts().filter(restarts).count();
    let off = plan.mig_switched_off();
    let mut on = plan.mig_switched();
    on.retain(|gpu| !off.contains(gpu));
    let of_mig = |verb: &str, gpus: &[u32]| {
        (!gpus.is_empty()).then(|| format!("{verb} MIG mode on GPU {}", format_ranges(gpus)))
    };
    let created = plan.gpus.iter().map(count_created).sum();
    let mut parts = Vec::new();
    parts.extend(of_mig("enable", &on));
    parts.extend(of_mig("disable", &off));
    parts.extend(count_acts(
        "instance",
        [
            ("destroy", plan.destroyed_instances().len()),
            ("create", created),
        ],
    ));
    parts.extend(count_acts(
        "daemon",
        [
            ("stop", stopped.len() - restarted),
            ("start", plan.starts().count() - restarted),
            ("restart", restarted),
            ("change the settings of", plan.sets().count()),
        ],
    ));
    if parts.is_empty() {
        return String::new();
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    format!("Plan: {}{}.", join_words(&parts, "and"), disrupted(plan))
}

/// Counts the acts on such a noun, which only the first one repeats: `stop 2 daemons`, `start 3`.
fn count_acts<const N: usize>(noun: &str, acts: [(&str, usize); N]) -> Vec<String> {
    let mut acts = acts.into_iter().filter(|(_, number)| *number > 0);
    let first = acts.next();
    let first = first.map(|(verb, number)| format!("{verb} {}", format_count(number, noun)));
    let others = acts.map(|(verb, number)| format!("{verb} {number}"));
    first.into_iter().chain(others).collect()
}

/// ` (1 client of alice disrupted)`, or nothing.
fn disrupted(plan: &Plan) -> String {
    let clients: Vec<_> = plan
        .clients_in_the_way()
        .chain(plan.ended_clients())
        .collect();
    let users: BTreeSet<&str> = clients.iter().map(|client| client.user.as_str()).collect();
    let users: Vec<&str> = users.into_iter().collect();
    match users.as_slice() {
        [] => String::new(),
        [user] => format!(
            " ({} of {user} disrupted)",
            format_count(clients.len(), "client")
        ),
        users => format!(
            " ({} of {} users disrupted)",
            format_count(clients.len(), "client"),
            users.len()
        ),
    }
}
