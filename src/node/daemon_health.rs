//! The problems of one device's daemon, each with its remedy.

use super::problem::{Problem, ProblemId};
use super::served::LogGrowth;
use super::{Client, DaemonState, LOST, Node, Served};
use crate::settings::KEYS;

/// Returns the problem of a device's daemon, if there is one.
pub(super) fn daemon_problem(node: &Node, served: &Served) -> Option<Problem> {
    let name = &served.record.name;
    let daemon = served.record.daemon;
    let pid = daemon.map_or_else(String::new, |daemon| format!(" (pid {})", daemon.pid));
    if let Some(problem) = absent(node, served) {
        return Some(problem);
    }
    if let Some(growth) = served.log_growth.as_ref().filter(|_| served.is_alive()) {
        return Some(logs_without_pause(growth, served, &pid));
    }
    if served.is_failing() {
        return Some(failing(served));
    }
    let problem = match (served.state, &served.problem) {
        (DaemonState::Dead, _) => return dead(node, served),
        (DaemonState::Orphan, _) => Problem::new(
            ProblemId::DaemonOrphan,
            format!(
                "its daemon{pid} lives and its pipe directory is gone, so no program reaches it"
            ),
        )
        .with_remedy(format!("`mig-mps restart {name} --force` starts another")),
        (DaemonState::Hung, _) => hung(served),
        (DaemonState::NoAnswer, Some(problem)) => Problem::new(
            ProblemId::DaemonSilent,
            format!("its daemon{pid} does not answer: {problem}"),
        )
        .with_remedy(format!("`mig-mps restart {name} --force` starts another")),
        (DaemonState::NoAnswer, None) => stopped(served, &pid),
        (DaemonState::Hidden, Some(problem)) => Problem::new(
            ProblemId::DaemonNotAsked,
            format!("its daemon{pid} cannot be asked: {problem}"),
        ),
        (DaemonState::Fault, _) => fault(served),
        _ if served.mode_is_lost() => Problem::new(
            ProblemId::ComputeMode,
            "somebody has changed its GPU's compute mode, which was exclusive-process",
        )
        .with_remedy(format!("`mig-mps restart {name}` sets it again")),
        _ if served.is_abandoned => Problem::new(
            ProblemId::StartUnfinished,
            "an interrupted change left it unfinished",
        )
        .with_remedy(format!(
            "`up` continues, `mig-mps restart {name}` starts it again"
        )),
        _ => return None,
    };
    Some(problem)
}

/// Describes a device that is gone, or whose GPU is lost: its daemon is of no use, whatever its state.
fn absent(node: &Node, served: &Served) -> Option<Problem> {
    if let Some(why) = served.lost() {
        let seen = format!("its GPU cannot be read: {why}");
        return Some(Problem::new(ProblemId::GpuLost, seen).with_remedy(LOST));
    }
    if !served.is_gone() || !node.misses(served) {
        return None;
    }
    let is_again = node.devices().any(|device| device.key == served.record.key);
    let seen = match (is_again, served.is_alive()) {
        (true, _) => "its device was made again, with another UUID",
        (false, true) => "its device is gone, and its daemon runs",
        (false, false) => "its device is gone",
    };
    Some(Problem::new(ProblemId::DeviceGone, seen).with_remedy(restored(node, served)))
}

/// Returns the remedy for a device that is gone.
pub fn restored(node: &Node, served: &Served) -> String {
    let name = &served.record.name;
    let removes = format!("`mig-mps down {name}` removes what is left");
    match node.gpu(&served.record.key.gpu) {
        Some(_) => format!("`mig-mps up PROFILE` restores it, {removes}"),
        None => removes,
    }
}

/// Describes a device that `heal` has given up.
fn failing(served: &Served) -> Problem {
    let name = &served.record.name;
    let (times, state) = match served.state {
        DaemonState::Hung => (served.record.healed.len(), "hangs"),
        _ => (served.record.healed.len(), "is dead"),
    };
    let seen = format!("`heal` has started it {times} times within an hour, and it {state} again");
    Problem::new(ProblemId::DeviceFailing, seen).with_remedy(format!(
        "`mig-mps logs {name}` may show the cause, `mig-mps restart {name}` starts it again"
    ))
}

fn stopped(served: &Served, pid: &str) -> Problem {
    let name = &served.record.name;
    let seen = format!("its daemon{pid} is stopped (SIGSTOP)");
    let daemon = served
        .record
        .daemon
        .map(|daemon| format!(" {}", daemon.pid));
    Problem::new(ProblemId::DaemonStopped, seen).with_remedy(format!(
        "`kill -CONT{}` resumes it, `mig-mps restart {name} --force` replaces it",
        daemon.unwrap_or_default()
    ))
}

fn dead(node: &Node, served: &Served) -> Option<Problem> {
    if node.is_changing() {
        // The change is stopping or restarting it.
        return None;
    }
    let name = &served.record.name;
    if served.record.boot_id != node.boot_id {
        let seen = "its directory is from an earlier boot";
        let remedy = format!("`up` starts it again, `mig-mps down {name}` removes it");
        return Some(Problem::new(ProblemId::EarlierBoot, seen).with_remedy(remedy));
    }
    let what = match served.record.daemon {
        Some(_) => "its daemon has died",
        None => "an interrupted change has left it without a daemon",
    };
    let dead = Problem::new(ProblemId::DaemonDead, what);
    Some(dead.with_remedy(format!(
        "`mig-mps restart {name}` starts it again, `mig-mps down {name}` removes what it left"
    )))
}

fn fault(served: &Served) -> Problem {
    let name = &served.record.name;
    if served.clients.listed().is_empty() {
        let seen = "a GPU fault whose clients have gone: it clears within a second or so";
        return Problem::new(ProblemId::GpuFault, seen).with_remedy(format!(
            "if it does not, `mig-mps restart {name}` starts another"
        ));
    }
    let clients = served.clients.listed().iter();
    let pids: Vec<String> = clients
        .filter_map(|client| Some(client.pid?.to_string()))
        .collect();
    let remedy = if pids.is_empty() {
        format!("mig-mps restart {name} --force")
    } else {
        format!("mig-mps kill {name} {} --signal", pids.join(" "))
    };
    let seen = "a GPU fault: it serves again when all its clients have ended";
    Problem::new(ProblemId::GpuFault, seen).with_remedy(format!("`{remedy}` ends them"))
}

/// `its daemon (pid 4711) logs without pause: …`
fn logs_without_pause(growth: &LogGrowth, served: &Served, pid: &str) -> Problem {
    let (path, name) = (growth.path.display(), &served.record.name);
    let (length, per_second) = (growth.length >> 10, growth.per_second >> 10);
    let cause = if growth.accepts_nobody() {
        format!(
            "most likely its limit of open files is exhausted, and no program can join it; {}",
            who_works(served)
        )
    } else {
        format!("`mig-mps logs {name}` shows it")
    };
    let seen = format!(
        "its daemon{pid} logs without pause: {path} has {length} KiB and grows by {per_second} KiB/s with \"{}\": \
         {cause}",
        growth.text
    );
    Problem::new(ProblemId::LogGrowth, seen)
        .with_remedy(format!("`mig-mps restart {name} --force` starts another"))
}

/// Describes a device that hangs, its clients, and the remedy.
fn hung(served: &Served) -> Problem {
    let name = &served.record.name;
    let remedy = match served.clients.listed() {
        [] if served.clients.are_known() => format!("`mig-mps restart {name}` ends that"),
        [] => format!("`mig-mps restart {name} --force` ends that, and terminates them"),
        _ => format!(
            "`mig-mps restart {name} --drain 5m` waits for them and ends that, --force ends them too"
        ),
    };
    let why = match &served.problem {
        Some(problem) => format!("{problem}, and every client waits for ever"),
        None => "a client died while it connected, and every new one waits for ever".to_owned(),
    };
    let seen = format!("it hangs: {why}; {}", who_works(served));
    Problem::new(ProblemId::DeviceHung, seen).with_remedy(remedy)
}

/// `pid 4711, 4712 still work`
fn who_works(served: &Served) -> String {
    let clients = served.clients.listed().iter();
    let pids: Vec<String> = clients.map(Client::shown_pid).collect();
    match pids.as_slice() {
        [] if served.clients.are_known() => "no client works".to_owned(),
        [] => "whether clients still work is hidden".to_owned(),
        [one] => format!("pid {one} still works"),
        _ => format!("pids {} still work", pids.join(", ")),
    }
}

/// Returns the settings of a daemon that somebody changed, as a problem.
pub(super) fn drift(served: &Served) -> Option<Problem> {
    if !served.record.finished {
        // A change is setting them.
        return None;
    }
    let set = &served.record.settings;
    let reported = served.answered.as_ref()?;
    let changed: Vec<String> = KEYS
        .iter()
        .filter_map(|key| {
            let is = reported.difference(key, set)?;
            let (name, set) = (key.name, (key.show)(set));
            Some(format!("{name} was set to {set} and is {is}"))
        })
        .collect();
    let seen = format!("{}: somebody has changed it", changed.join("; "));
    (!changed.is_empty()).then(|| Problem::new(ProblemId::SettingsChanged, seen))
}
