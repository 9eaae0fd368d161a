//! The disruptions and obstacles of a plan: clients that a kill terminates, unmanaged daemons on devices.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use super::format::{format_count, format_time_limit, group_by, shorten_list, wrap_lines};
use super::output::{note, output_width};
use crate::apply::{Allowed, OnFailure};
use crate::failure::Problem;
use crate::host::{format_gpus, join_words};
use crate::node::DaemonEnding;
use crate::plan::{Cost, HeldGpus, Kill, Plan, Signal, Work};

/// Lists the clients that a plan disrupts, and its obstacles; empty if there are none. `on_failure` is what follows where
/// the driver refuses to switch the MIG mode of a GPU that is held.
pub fn render(plan: &Plan, held: &[HeldGpus], on_failure: OnFailure) -> String {
    let mut out = String::new();
    let clients: Vec<_> = plan.clients_in_the_way().collect();
    if !clients.is_empty() {
        let _ = writeln!(
            out,
            "\n{} would be disrupted (refused, unless --drain lets them exit in time or --force ends them):",
            format_count(clients.len(), "client"),
        );
    }
    for client in clients {
        let _ = writeln!(out, "  {client}");
    }
    let pods: Vec<_> = plan.pods_in_the_way().collect();
    if !pods.is_empty() {
        let _ = writeln!(
            out,
            "\n{} would lose a share (refused, unless --drain lets them end in time or --force takes it from them):",
            format_count(pods.len(), "pod"),
        );
    }
    for pod in pods {
        let _ = writeln!(out, "  {pod}");
    }
    let dues = plan
        .gpus
        .iter()
        .filter_map(|gpu| Some((gpu.due.as_deref()?, gpu.index?)));
    for group in group_by(dues, |a, b| a.0 == b.0) {
        let gpus: Vec<u32> = group.iter().map(|(_, gpu)| *gpu).collect();
        let _ = writeln!(out, "\n{}: {}", format_gpus(&gpus), group[0].0);
    }
    let unasked = plan.stops().filter_map(|stop| stop.unasked.as_ref());
    let obstacles = plan.gpus.iter().flat_map(|gpu| &gpu.obstacles);
    for problem in obstacles.chain(unasked) {
        let _ = writeln!(out, "\n{}", describe_problem(problem));
    }
    if !out.is_empty() {
        out = wrap_lines(&out, output_width()) + "\n";
    }
    out + &render_held(held, on_failure)
}

/// Describes the processes that hold GPUs; empty if there are none.
pub fn render_held(held: &[HeldGpus], on_failure: OnFailure) -> String {
    held.iter()
        .map(|held| {
            wrap_lines(
                &format!("\n{}", describe_held(held, on_failure)),
                output_width(),
            ) + "\n"
        })
        .collect()
}

/// Lists the clients that a plan waits for, up to this time; empty if there are none.
pub fn render_waits(plan: &Plan, limit: Duration) -> String {
    let clients = plan
        .clients_in_the_way()
        .map(|client| format!("\n  {client}"));
    let pods = plan.pods_in_the_way().map(|pod| format!("\n  {pod}"));
    let (clients, pods): (Vec<String>, Vec<String>) = (clients.collect(), pods.collect());
    let counts = [(&clients, "client"), (&pods, "pod")];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(lines, _)| !lines.is_empty())
        .map(|(lines, word)| format_count(lines.len(), word))
        .collect();
    if counts.is_empty() {
        return String::new();
    }
    format!(
        "This waits up to {} for {} to exit:{}{}",
        format_time_limit(limit),
        counts.join(" and "),
        clients.concat(),
        pods.concat()
    )
}

/// Describes what `--no-new` means for the programs of others. On a node of Slurm, jobs are kept away first.
pub fn render_no_new(has_slurmd: bool) -> String {
    let mut text = "\nDuring this time, these devices are closed to new programs, one after the other. On a closed \
     device, a new program gets CUDA error 805, even if a running job starts it (a step, a worker, an evaluation), \
     and so does a running program that creates another CUDA context."
        .to_owned();
    if has_slurmd {
        text += "\nThis is a node of Slurm. To keep new jobs away, drain it first: \
                 scontrol update NodeName=$(hostname -s) State=DRAIN Reason=mig-mps";
    }
    text
}

/// Describes the processes that hold GPUs on which the plan switches MIG modes or destroys instances.
fn describe_held(held: &HeldGpus, on_failure: OnFailure) -> String {
    let title = held.title();
    if let Err(problem) = held.check_not_held() {
        return describe_problem(&problem);
    }
    let mut lines = Vec::new();
    let services: Vec<&str> = held.services.iter().map(String::as_str).collect();
    if !services.is_empty() {
        let them = if services.len() == 1 { "it" } else { "them" };
        let services = join_words(&services, "and");
        lines.push(if held.needs_reset {
            format!(
                "This stops {services} during the change of the MIG mode of {title}, and starts {them} again."
            )
        } else {
            let work = match held.work {
                Work::Switch => "switch the MIG mode",
                Work::Destroy => "destroy instances",
                Work::DestroyAndSwitch => "destroy instances or switch the MIG mode",
            };
            format!(
                "If the driver refuses to {work} of {title}, this stops {services} for the change, and starts {them} again."
            )
        });
    }
    if !held.holder_names().is_empty() {
        let then = match (on_failure, held.cost) {
            (OnFailure::GoOn, _) => "that mode stays, and the rest is done",
            (OnFailure::LeaveOut, _) => {
                held.singular_or_plural("it is left as it was", "they are left as they were")
            }
            (OnFailure::RollBack, Cost::Nothing) => "nothing else is done",
            (OnFailure::RollBack, _) => held.singular_or_plural(
                "its daemons and instances are restored, and nothing else is done",
                "their daemons and instances are restored, and nothing else is done",
            ),
        };
        let spared = if held.stay && held.cost == Cost::Clients && on_failure != OnFailure::GoOn {
            held.singular_or_plural(
                " While it is kept open, --force ends no client on it.",
                " While they are kept open, --force ends no client on them.",
            )
        } else {
            ""
        };
        lines.push(format!(
            "{title} {} kept open by {}. If the driver does not switch {} MIG mode because of this, {then}.{spared}\n  \
             {}",
            held.singular_or_plural("is", "are"),
            held.holder_names(),
            held.singular_or_plural("its", "their"),
            held.hint()
        ));
    }
    if held.holders.hidden > 0 {
        lines.push(format!(
            "{title} may be kept open by {} of other users, which only root can inspect",
            format_count(held.holders.hidden, "program"),
        ));
    }
    lines.join("\n")
}

/// Describes what a plan stops or destroys, as one phrase; empty if nothing.
pub(super) fn describe_disruptions(plan: &Plan, allowed: Allowed, held: &[HeldGpus]) -> String {
    let mut phrases = Vec::new();
    let again = plan.count_restarted();
    let stopped = plan.stopped_daemons().len() - again;
    let clients = plan.ended_clients().count();
    match &plan.kill {
        _ if clients == 0 => {}
        None => phrases.push(format!("end {}", format_count(clients, "client"))),
        Some(kill) => phrases.push(describe_kill(kill)),
    }
    // The plan shown above has the names; a question is short.
    for (verb, daemons) in [("stop", stopped), ("restart", again)] {
        if daemons > 0 {
            phrases.push(format!("{verb} {}", format_count(daemons, "daemon")));
        }
    }
    let destroys = plan.destroyed_instances();
    match destroys.as_slice() {
        [] => {}
        [one] => phrases.push(format!("destroy {one}")),
        _ => phrases.push(format!(
            "destroy {}",
            format_count(destroys.len(), "instance")
        )),
    }
    // Switching MIG off may make a reset due; switching it on is part of partitioning.
    let off = plan.mig_switched_off();
    if !off.is_empty() {
        phrases.push(format!("switch MIG mode off on {}", format_gpus(&off)));
    }
    let switched = plan.mig_switched();
    if allowed.reset && !switched.is_empty() {
        phrases.push(format!("reset {} if that is due", format_gpus(&switched)));
    }
    // To stop them is what the option asks for: they are named where there is a question.
    if !phrases.is_empty() {
        phrases.extend(describe_services(held));
    }
    join_words(&phrases, "and")
}

/// Describes the services that are stopped: in any case for a reset, else if the driver refuses a step.
fn describe_services(held: &[HeldGpus]) -> Option<String> {
    let services: BTreeSet<&str> = held
        .iter()
        .flat_map(|held| &held.services)
        .map(String::as_str)
        .collect();
    let are = match services.len() {
        0 => return None,
        1 => "it is",
        _ => "they are",
    };
    let services: Vec<&str> = services.into_iter().collect();
    let condition = if held.iter().any(|held| held.needs_reset) {
        String::new()
    } else {
        format!(" if {are} in the way")
    };
    let services = join_words(&services, "and");
    Some(format!("stop {services} for a moment{condition}"))
}

/// Lists these clients, describes the effect, and counts the clients that go on.
pub(super) fn render_kill(kill: &Kill) -> String {
    let number = kill.victims.len();
    let clients = format_count(number, "client");
    let mut out = match kill.signal.map(Signal::name) {
        Some(signal) if kill.has_fault => {
            let processes = if number == 1 { "process" } else { "processes" };
            format!("This sends {signal} to {number} {processes}:\n")
        }
        Some(signal) if number == 1 => {
            format!("This ends the work of {clients} and sends its process {signal}:\n")
        }
        Some(signal) => {
            format!("This ends the work of {clients} and sends their processes {signal}:\n")
        }
        None => format!("This ends the work of {clients}:\n"),
    };
    for victim in &kill.victims {
        let _ = writeln!(out, "  {}", victim.client);
    }
    if let Some(working) = kill.describe_working() {
        let _ = writeln!(out, "{working}.");
    }
    let _ = match kill.others {
        _ if kill.has_fault => writeln!(
            out,
            "{} had a GPU fault: the work of the affected clients has ended, and it accepts programs again when all \
             their processes have exited.",
            kill.name
        ),
        0 => Ok(()),
        1 => writeln!(out, "1 other client continues."),
        others => writeln!(out, "{others} other clients continue."),
    };
    wrap_lines(&out, output_width()) + "\n"
}

/// Describes it in a question.
pub(super) fn describe_kill(kill: &Kill) -> String {
    let number = kill.victims.len();
    let work = format!(
        "end the work of {} on {}",
        format_count(number, "client"),
        kill.name
    );
    let processes = if number == 1 {
        "its process"
    } else {
        "their processes"
    };
    match kill.signal {
        Some(signal) => format!("{work} and send {processes} {}", signal.name()),
        None => work,
    }
}

/// An unmanaged daemon that also serves devices of a plan.
struct DaemonBeside {
    /// Says which devices the daemon serves, and what to do about that.
    text: String,
    /// The command that ends the daemon, if there is one.
    command: Option<String>,
}

/// Said once of all such daemons.
const TWO_DAEMONS: &str = "Two daemons on a device share it independently of each other.";

/// Describes these daemons for a plan; empty if there are none.
pub fn render_unmanaged(plan: &Plan) -> String {
    let mut out = String::new();
    for daemon in unmanaged_daemons(plan) {
        let line = wrap_lines(&format!("Unmanaged {}", daemon.text), output_width());
        let _ = writeln!(out, "{line}");
        // A command stays in one line: it is there to be pasted.
        if let Some(command) = daemon.command {
            let _ = writeln!(out, "  {command}");
        }
    }
    if !out.is_empty() {
        let _ = writeln!(out, "{TWO_DAEMONS}");
    }
    out
}

/// Prints a note about these daemons after a change.
pub fn note_unmanaged(plan: &Plan) {
    let daemons = unmanaged_daemons(plan);
    let count = daemons.len();
    for (position, daemon) in daemons.into_iter().enumerate() {
        let mut text = format!("unmanaged {}", daemon.text);
        if let Some(command) = daemon.command {
            let _ = write!(text, "\n  {command}");
        }
        if position + 1 == count {
            let _ = write!(text, "\n{TWO_DAEMONS}");
        }
        note(&text);
    }
}

fn unmanaged_daemons(plan: &Plan) -> Vec<DaemonBeside> {
    let mut beside = Vec::new();
    for start in plan.starts() {
        for daemon in &start.beside {
            beside.push((daemon, start.name.as_str()));
        }
    }
    let described = group_by(beside, |a, b| a.0 == b.0)
        .into_iter()
        .map(|group| {
            let daemon = group[0].0;
            let names: Vec<&str> = group.iter().map(|(_, name)| *name).collect();
            let user = daemon.user.as_deref().map(|user| format!(" of {user}"));
            let serves = format!(
                "daemon {}{} also serves {}",
                daemon.pid,
                user.unwrap_or_default(),
                shorten_list(&names),
            );
            let (text, command) = match &daemon.ending {
                DaemonEnding::Command {
                    command,
                    is_for_good: true,
                } => (format!("{serves}. This ends it for good:"), Some(command)),
                DaemonEnding::Command { command, .. } => {
                    (format!("{serves}. This ends it:"), Some(command))
                }
                DaemonEnding::Advice(advice) => (format!("{serves}: {advice}"), None),
            };
            DaemonBeside {
                text,
                command: command.cloned(),
            }
        });
    described.collect()
}

fn describe_problem(problem: &Problem) -> String {
    let hint = problem.hint.as_deref().unwrap_or_default();
    format!("In the way: {problem}\n  {hint}")
}
