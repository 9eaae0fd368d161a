//! The problem of one device's daemon, with its remedy.

use super::fault::Finding;
use super::{Client, DaemonState, Device, LOST_GPU_REMEDY, Node, Presence, Served};
use crate::host::Pid;
use crate::settings::KEYS;

/// Returns the problem of a device's daemon, if there is one.
pub(super) fn daemon_problem(node: &Node, device: &Device, served: &Served) -> Option<Finding> {
    let name = &served.record.name;
    let daemon = served.record.daemon;
    let pid = daemon.map_or_else(String::new, |daemon| format!(" (pid {})", daemon.pid));
    if let Some(problem) = missing_device_problem(node, device, served) {
        return Some(problem);
    }
    if served.closing().is_some() {
        return None;
    }
    if served.is_failing() {
        return Some(given_up_problem(served));
    }
    let problem = match &served.state {
        DaemonState::Dead => return dead_daemon_problem(node, served),
        DaemonState::Orphan => Finding::fail(
            "daemon-orphan",
            format!(
                "its daemon{pid} runs, but its pipe directory no longer exists, so no program reaches it"
            ),
        )
        .with_remedy(replace_remedy(served)),
        DaemonState::Hung(why) => hung_device_problem(served, why),
        DaemonState::NoAnswer(problem) => Finding::fail(
            "daemon-silent",
            format!("its daemon{pid} does not answer: {problem}"),
        )
        .with_remedy(replace_remedy(served)),
        DaemonState::Suspended => {
            let seen = format!("its daemon{pid} is stopped (SIGSTOP)");
            Finding::fail("daemon-stopped", seen).with_remedy(replace_remedy(served))
        }
        DaemonState::NotAsked(problem) => Finding::fail(
            "daemon-not-asked",
            format!("its daemon{pid} cannot be asked: {problem}"),
        ),
        DaemonState::Fault => gpu_fault_problem(served),
        _ if served.has_lost_compute_mode() => Finding::fail(
            "compute-mode",
            format!(
                "the compute mode of {} was changed from outside mig-mps; it was exclusive-process",
                node.gpus_with_lost_mode(served)
            ),
        )
        .with_remedy(format!("run `mig-mps restart {name}` to set it again")),
        _ if served.is_abandoned => Finding::fail(
            "start-unfinished",
            "an interrupted change left it unfinished",
        )
        .with_remedy(format!(
            "run `up` to continue, or `mig-mps restart {name}` to start it again"
        )),
        _ => return None,
    };
    Some(problem)
}

/// Describes a device that is gone, or whose GPU is lost: its daemon is of no use, whatever its state.
fn missing_device_problem(node: &Node, device: &Device, served: &Served) -> Option<Finding> {
    if let Some(why) = device.lost_gpu_reason() {
        let gpu = if device.key.is_joint() {
            "one of its GPUs"
        } else {
            "its GPU"
        };
        let seen = format!("{gpu} cannot be read: {why}");
        return Some(Finding::fail("gpu-lost", seen).with_remedy(LOST_GPU_REMEDY));
    }
    if !node.expects_device(served) {
        return None;
    }
    let what = match node.first_absent_gpu(served) {
        Some(absent) if device.key.is_joint() => absent,
        _ => "its device".to_owned(),
    };
    let seen = match device.presence {
        Presence::MadeAgain => "its device was created again, with another UUID".to_owned(),
        Presence::Gone if served.is_alive() => {
            format!("{what} no longer exists, but its daemon runs")
        }
        Presence::Gone => format!("{what} no longer exists"),
        Presence::There | Presence::Unseen(_) => return None,
    };
    Some(Finding::fail("device-gone", seen).with_remedy(restore_remedy(node, served)))
}

/// Returns the remedy for a device that is gone.
pub fn restore_remedy(node: &Node, served: &Served) -> String {
    let name = &served.record.name;
    let removes = format!("`mig-mps down {name}` to remove what is left");
    match node.first_absent_gpu(served) {
        None => format!("run `{}` to restore it, or {removes}", node.up_command()),
        Some(_) => format!("run {removes}"),
    }
}

/// Describes a device that `heal` has given up.
fn given_up_problem(served: &Served) -> Finding {
    let name = &served.record.name;
    let times = served.record.healed.len();
    let state = match served.state {
        DaemonState::Hung(_) => "hangs",
        _ => "is dead",
    };
    let seen = format!("`heal` has started it {times} times within an hour, and it {state} again");
    Finding::fail("device-failing", seen).with_remedy(format!(
        "run `mig-mps logs {name}` to find the cause, then `mig-mps restart {name}` to start it again"
    ))
}

/// Returns the remedy for a daemon that lives and that no session reaches.
pub fn replace_remedy(served: &Served) -> String {
    let name = &served.record.name;
    match (&served.state, served.record.daemon) {
        (DaemonState::Suspended, Some(daemon)) => format!(
            "run `kill -CONT {}` to resume it, or `mig-mps restart {name} --force` to replace it",
            daemon.pid
        ),
        _ => format!("run `mig-mps restart {name} --force` to start another daemon"),
    }
}

fn dead_daemon_problem(node: &Node, served: &Served) -> Option<Finding> {
    if node.is_changing() {
        // The change is stopping or restarting it.
        return None;
    }
    let name = &served.record.name;
    if served.record.boot_id != node.boot_id {
        let seen = "its directory is from an earlier boot";
        let remedy =
            format!("run `up` to start it again, or `mig-mps down {name}` to remove its record");
        return Some(Finding::fail("earlier-boot", seen).with_remedy(remedy));
    }
    let what = match served.record.daemon {
        Some(_) => "its daemon has died",
        None => "an interrupted change has left it without a daemon",
    };
    let dead = Finding::fail("daemon-dead", what);
    Some(dead.with_remedy(format!(
        "run `mig-mps restart {name}` to start it again, or `mig-mps down {name}` to remove what it left"
    )))
}

fn gpu_fault_problem(served: &Served) -> Finding {
    let name = &served.record.name;
    if served.clients.as_slice().is_empty() {
        let seen = "a GPU fault whose clients have exited; it clears within a second or so";
        return Finding::fail("gpu-fault", seen).with_remedy(format!(
            "if it does not, run `mig-mps restart {name}` to start another daemon"
        ));
    }
    if served.record.key.is_joint() {
        // Measured on driver 580.
        let seen = "a GPU fault: it accepts programs again when the affected clients have exited (the clients on that \
         GPU, and on every GPU that one of them also uses)";
        let working: Vec<String> = served.unaffected.iter().map(Pid::to_string).collect();
        let seen = match working.as_slice() {
            [] => seen.to_owned(),
            [pid] => format!("{seen}; pid {pid} is not affected"),
            pids => format!("{seen}; pids {} are not affected", pids.join(", ")),
        };
        return Finding::fail("gpu-fault", seen).with_remedy(format!(
            "run `mig-mps logs {name}` to see which device must be reset, or `mig-mps kill {name} PID --signal` to end a client"
        ));
    }
    let pids = served.clients.shown_pids();
    let remedy = if pids.is_empty() {
        format!("mig-mps restart {name} --force")
    } else {
        format!("mig-mps kill {name} {} --signal", pids.join(" "))
    };
    let seen = "a GPU fault: it accepts programs again when all its clients have exited";
    Finding::fail("gpu-fault", seen).with_remedy(format!("run `{remedy}` to end them"))
}

/// Describes a device that hangs, its clients, and the remedy.
fn hung_device_problem(served: &Served, why: &str) -> Finding {
    let name = &served.record.name;
    let remedy = match served.clients.as_slice() {
        [] if served.clients.are_known() => {
            format!("run `mig-mps restart {name}` to start a new daemon")
        }
        [] => format!(
            "run `mig-mps restart {name} --force` to end the clients and start a new daemon"
        ),
        _ => format!(
            "run `mig-mps restart {name} --drain 5m` to wait for them and start a new daemon, or use --force to end them"
        ),
    };
    let seen = format!(
        "it is hung: {why}, so every new client waits forever; {}",
        describe_working_clients(served)
    );
    Finding::fail("device-hung", seen).with_remedy(remedy)
}

/// `pid 4711, 4712 still work`
fn describe_working_clients(served: &Served) -> String {
    let pids: Vec<String> = served
        .clients
        .as_slice()
        .iter()
        .map(Client::shown_pid)
        .collect();
    match pids.as_slice() {
        [] if served.clients.are_known() => "it has no clients".to_owned(),
        [] => "whether clients still work is hidden".to_owned(),
        [one] => format!("pid {one} still works"),
        _ => format!("pids {} still work", pids.join(", ")),
    }
}

/// Returns the settings of a daemon that somebody changed, as a problem.
pub(super) fn changed_settings_problem(node: &Node, served: &Served) -> Option<Finding> {
    if !served.record.finished {
        // A change is setting them.
        return None;
    }
    let set = &served.record.settings;
    let reported = served.answered.as_ref()?;
    let changed: Vec<String> = KEYS
        .iter()
        .filter_map(|key| {
            let is = reported.differing_value(key, set)?;
            let (name, set) = (key.name, (key.show)(set));
            Some(format!("{name} is {is}, but mig-mps set it to {set}"))
        })
        .collect();
    if changed.is_empty() {
        return None;
    }
    let seen = format!(
        "{}; it was changed from outside mig-mps",
        changed.join("; ")
    );
    let remedy = format!("run `{}` to set it again", node.up_command());
    Some(Finding::fail("settings-changed", seen).with_remedy(remedy))
}
