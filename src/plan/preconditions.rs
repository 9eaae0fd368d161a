//! The preconditions of a command that acts on the daemon of a device.

use crate::failure::Problem;
use crate::host::{Uid, caller, root_hint, user_name};
use crate::node::{DaemonState, Device, Node, Served, Unseen, lost_gpu_hint, replace_remedy};
use crate::state::RunDir;

/// A command that acts on the daemons of devices that the user named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Restart,
    Set,
    Kill,
}

/// Returns the device with that name and its record, if the command may act on its daemon; otherwise the reason why not.
pub(super) fn find_device_for_command<'a>(
    node: &'a Node,
    run_dir: &RunDir,
    name: &str,
    verb: Verb,
) -> Result<(&'a Device, &'a Served), Problem> {
    let device = node.device_named(name);
    let Some((device, served)) = device.and_then(|found| Some((found, found.served.as_ref()?)))
    else {
        check_records_readable(node, run_dir)?;
        return Err(verb.not_served(node, name));
    };
    if verb == Verb::Set {
        check_device(device)?;
    }
    // The clients of another daemon may be those of the caller.
    if verb != Verb::Kill {
        check_ours(served, run_dir)?;
    }
    // A restart fixes a daemon in any state.
    if verb != Verb::Restart {
        verb.check_state(served)?;
    }
    if verb == Verb::Set && !served.record.finished {
        return Err(Problem::new(
            format!("an interrupted change did not finish with the daemon of {name}"),
            "run mig-mps up with its profile, which goes on from there, or mig-mps restart",
        ));
    }
    Ok((device, served))
}

impl Verb {
    /// The problem that no daemon of mig-mps serves the device. Another user's may.
    fn not_served(self, node: &Node, name: &str) -> Problem {
        let (verb, problem) = match self {
            Self::Restart => (
                "restart",
                Problem::new(
                    format!("{name} has no daemon of mig-mps to be started again"),
                    START_HINT,
                ),
            ),
            Self::Set => ("set", not_settable(name, "mig-mps does not serve it")),
            Self::Kill => (
                "kill",
                Problem::new(
                    format!("{name} has no clients: no daemon of mig-mps serves it"),
                    "mig-mps status shows who computes there",
                ),
            ),
        };
        Problem {
            hint: node.command_as_owner(name, verb).or(problem.hint),
            ..problem
        }
    }

    /// Refuses a daemon that takes no commands, or may not be asked.
    fn check_state(self, served: &Served) -> Result<(), Problem> {
        let name = &served.record.name;
        Err(match &served.state {
            DaemonState::Dead if self == Self::Set => not_settable(name, "it has died"),
            DaemonState::Dead => Problem::new(
                format!("the daemon of {name} has died, and its clients get CUDA error 806"),
                format!("mig-mps restart {name} starts it again"),
            ),
            DaemonState::Closing => Problem::new(
                format!(
                    "device {name} is closing: its daemon accepts no commands until the running programs have exited"
                ),
                match self {
                    Self::Kill => "end the process with kill(1): mig-mps kill cannot reach a program on a device that is closing".to_owned(),
                    _ => format!("see those programs with mig-mps status {name}"),
                },
            ),
            DaemonState::Hung(_) => Problem::new(
                format!("the daemon of {name} hangs: it takes no commands and no new clients"),
                format!("mig-mps restart {name} ends that"),
            ),
            _ => match (
                unknown_clients_problem(served),
                served.record.runs_as_its_user(),
            ) {
                (Some(problem), _) => problem,
                (None, Some(user)) if caller() == Uid::ROOT => Problem::new(
                    format!(
                        "the daemon of {name} runs as {}, as mig-mps 0.2 started it: root opens no session with it",
                        user_name(user)
                    ),
                    format!("mig-mps restart {name} starts one that runs as root"),
                ),
                _ => return Ok(()),
            },
        })
    }
}

/// The remedy where no daemon of mig-mps serves a device.
const START_HINT: &str = "start it with mig-mps up and its profile";

fn not_settable(name: &str, why: &str) -> Problem {
    Problem::new(
        format!("{name} has no daemon whose settings could be changed: {why}"),
        START_HINT,
    )
}

/// Refuses a device that is gone or cannot be seen.
fn check_device(device: &Device) -> Result<(), Problem> {
    let name = &device.name;
    if let Some(why) = device.lost_gpu_reason() {
        let what = format!("the device of {name} cannot be seen: {why}");
        return Err(Problem::new(what, lost_gpu_hint()));
    }
    if device.is_gone() {
        return Err(not_settable(name, "its device is gone"));
    }
    Ok(())
}

/// A device served from another run directory is not ours to change.
pub(super) fn foreign_daemon(served: &Served) -> Problem {
    let what = format!(
        "device {} is served by a daemon of {}",
        served.record.name,
        served.run_dir.path().display()
    );
    Problem::new(what, owner_hint("take that one down first, as its owner"))
}

/// Refuses where none of the daemons here is the caller's.
pub(super) fn check_own_daemon(node: &Node, run_dir: &RunDir) -> Result<(), Problem> {
    let Some(first) = node.served().next() else {
        return Ok(());
    };
    if node.served().any(|served| served.run_dir == *run_dir) {
        return Ok(());
    }
    let (served, daemons) = match node.served().count() {
        1 => ("1 device is".to_owned(), "a daemon"),
        count => (format!("{count} devices are"), "daemons"),
    };
    let what = format!(
        "none of the daemons here is yours: {served} served by {daemons} of {}",
        first.run_dir.path().display()
    );
    Err(Problem::new(what, owner_hint("run it as their owner")))
}

/// The remedy for a plain user, who finds no daemons but root's beside the own ones; root finds those of a directory that
/// is not root's.
pub(super) fn owner_hint(of_root: &str) -> String {
    if caller() == Uid::ROOT {
        of_root.to_owned()
    } else {
        root_hint()
    }
}

/// Refuses where a run directory cannot be read: a daemon there may serve any device.
pub(super) fn check_run_dirs_readable(node: &Node) -> Result<(), Problem> {
    for unseen in &node.unseen {
        if let Unseen::RunDir { why, hint, .. } = unseen {
            let hint = hint.as_deref();
            return Err(Problem::new(
                format!("{why}: whether daemons run there is unknown"),
                hint.unwrap_or("mig-mps doctor checks directories and records"),
            ));
        }
    }
    Ok(())
}

/// Refuses where a record cannot be read: it may be that of a daemon that runs.
pub(super) fn check_records_readable(node: &Node, run_dir: &RunDir) -> Result<(), Problem> {
    check_run_dirs_readable(node)?;
    let Some((_, problem)) = node
        .unreadable_records()
        .find(|(other, _)| *other == run_dir)
    else {
        return Ok(());
    };
    Err(Problem::new(
        format!("{problem}: who uses the device is unknown"),
        "mig-mps up with its profile takes a living daemon over and writes the record anew; mig-mps down --force ends it, \
         with its clients",
    ))
}

/// Refuses a device whose daemon somebody else started: only they can change it.
pub(super) fn check_ours(served: &Served, run_dir: &RunDir) -> Result<(), Problem> {
    if served.run_dir == *run_dir {
        return Ok(());
    }
    Err(Problem {
        hint: Some(owner_hint("run it as its owner")),
        ..foreign_daemon(served)
    })
}

/// The remedy that `status` shows for a daemon that no session reaches.
fn replacement_hint(served: &Served) -> String {
    replace_remedy(served).replace('`', "")
}

/// The problem of a daemon that may have clients that nobody can see: it is not touched.
pub(super) fn unknown_clients_problem(served: &Served) -> Option<Problem> {
    let name = &served.record.name;
    let (why, hint) = match &served.state {
        DaemonState::NotAsked(why) => (
            why.as_str(),
            "see why it does not start, and run this again".to_owned(),
        ),
        DaemonState::Orphan => ("its pipe directory was removed", replacement_hint(served)),
        DaemonState::Busy => (
            "another control session is open",
            "either another mig-mps is waiting for clients to exit, or somebody left nvidia-cuda-mps-control open: \
             wait, or close it"
                .to_owned(),
        ),
        DaemonState::Hung(_) if !served.clients.are_known() => (
            "it hangs, and the driver hides its clients",
            format!("mig-mps restart {name} --force ends its server, with whatever computes there"),
        ),
        DaemonState::NoAnswer(_) => ("it does not answer", replacement_hint(served)),
        DaemonState::Suspended => ("it is stopped by a signal", replacement_hint(served)),
        DaemonState::Hidden => (
            "it may not be asked",
            owner_hint("run this as its owner"),
        ),
        _ => return None,
    };
    let what = format!("the daemon of {name} cannot be asked for its clients: {why}");
    Some(Problem::new(what, hint))
}
