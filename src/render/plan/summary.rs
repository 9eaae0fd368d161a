//! The last line of a plan.

use std::collections::BTreeSet;

use super::super::format::format_count;
use super::lines::{
    CLEAN_UP, END_HUNG, END_STRAY, REPLACE, START, START_SERVER, count_created, count_daemons,
    count_destroyed,
};
use crate::host::{format_gpus, join_words};
use crate::mps::StopMethod;
use crate::plan::{CdiChange, Plan, Start};

/// Sums a plan up: `Plan: create 4 GPU instances, start 6 daemons and restart 1 (1 client of alice disrupted).`
pub fn summary(plan: &Plan) -> String {
    let off = plan.mig_switched_off();
    let mut on = plan.mig_switched();
    on.retain(|gpu| !off.contains(gpu));
    let mut parts = Vec::new();
    for (verb, gpus) in [("enable", on), ("disable", off)] {
        if !gpus.is_empty() {
            parts.push(format!("{verb} MIG mode on {}", format_gpus(&gpus)));
        }
    }
    let [destroyed, created] = [count_destroyed(&plan.gpus), count_created(&plan.gpus)];
    parts.extend(count_acts(
        "GPU instance",
        &[("destroy", destroyed.gpu), ("create", created.gpu)],
    ));
    parts.extend(count_acts(
        "compute instance",
        &[("destroy", destroyed.compute), ("create", created.compute)],
    ));
    parts.extend(count_daemon_acts(plan));
    let changed = plan.gpus.iter().map(|gpu| gpu.compute_modes.len()).sum();
    parts.extend(count_acts("GPU", &[("set the compute mode of", changed)]));
    parts.extend(match plan.cdi {
        Some(CdiChange::Write) => Some("write the CDI file".to_owned()),
        Some(CdiChange::Remove) => Some("remove the CDI file".to_owned()),
        None => None,
    });
    if plan.purge.is_some() {
        parts.push("remove logs".to_owned());
    }
    if let Some(kill) = &plan.kill {
        parts.extend(count_acts(
            "client",
            &[("end the work of", kill.victims.len())],
        ));
    }
    if parts.is_empty() {
        parts.push("leave devices and daemons as they are".to_owned());
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    format!(
        "Plan: {}{}.",
        join_words(&parts, "and"),
        describe_disrupted_clients(plan)
    )
}

/// Counts what happens to daemons and servers.
fn count_daemon_acts(plan: &Plan) -> Vec<String> {
    let count = |verb: &str| count_daemons(&plan.gpus, verb);
    let stopped: BTreeSet<&str> = plan
        .stops()
        .filter(|stop| stop.alive && stop.means != StopMethod::Heal)
        .map(|stop| stop.uuid.as_str())
        .collect();
    let is_restart = |start: &&Start| {
        let uuid = start.uuid.as_deref();
        uuid.is_some_and(|uuid| stopped.contains(uuid))
    };
    let restarted = plan.starts().filter(is_restart).count();
    let mut parts = count_acts(
        "daemon",
        &[
            ("stop", stopped.len().saturating_sub(restarted)),
            ("start", count(START).saturating_sub(restarted)),
            ("restart", restarted),
            ("replace", count(REPLACE)),
            ("change the settings of", plan.sets().count()),
            ("clean up after", count(CLEAN_UP)),
        ],
    );
    let hung = count(END_HUNG);
    parts.extend(count_acts(
        "server",
        &[
            ("end", count(END_STRAY)),
            ("restart", hung),
            ("start", count(START_SERVER).saturating_sub(hung)),
        ],
    ));
    parts
}

/// Counts the acts on such a noun, which only the first one repeats: `stop 2 daemons`, `start 3`.
fn count_acts(noun: &str, acts: &[(&str, usize)]) -> Vec<String> {
    acts.iter()
        .filter(|(_, number)| *number > 0)
        .enumerate()
        .map(|(nth, (verb, number))| {
            if nth == 0 {
                format!("{verb} {}", format_count(*number, noun))
            } else {
                format!("{verb} {number}")
            }
        })
        .collect()
}

/// ` (1 client of alice disrupted)`, or nothing.
fn describe_disrupted_clients(plan: &Plan) -> String {
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
