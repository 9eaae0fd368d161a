//! The preconditions of a command that acts on the daemon of a device.

use crate::failure::Problem;
use crate::host::{Uid, caller, root_hint, user_name};
use crate::node::{
    DaemonState, Device, LOST_GPU_REMEDY, NoSuchDevice, Node, Served, Unseen, replace_remedy,
    start_again_hint,
};
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
            format!("an interrupted change did not finish starting the daemon of device {name}"),
            "run `mig-mps up` with its profile to continue, or `mig-mps restart`",
        ));
    }
    Ok((device, served))
}

impl Verb {
    /// The problem that no daemon of mig-mps serves the device. Another user's may.
    fn not_served(self, node: &Node, name: &str) -> Problem {
        let joint = node
            .device_named(name)
            .and_then(|device| Some((device.gpu?, &node.stopped_joint_of(device)?.name)));
        if let Some((gpu, joint)) = joint {
            let device = joint.clone();
            let error = NoSuchDevice::PartOfStopped { gpu, device };
            return Problem::new(error.to_string(), start_again_hint(joint));
        }
        if self != Self::Restart
            && let Some(stopped) = node.stopped_error(name)
        {
            return Problem::new(stopped.to_string(), start_again_hint(name));
        }
        let (verb, problem) = match self {
            Self::Restart => (
                "restart",
                Problem::new(format!("device {name} has no mig-mps daemon"), START_HINT),
            ),
            Self::Set => ("set", not_settable(name, "mig-mps does not serve it")),
            Self::Kill => (
                "kill",
                Problem::new(
                    format!("device {name} has no clients: mig-mps does not serve it"),
                    "run `mig-mps status` to see who computes there; `kill PID` ends a program that is no client",
                ),
            ),
        };
        Problem {
            hint: node
                .command_as_owner(name, verb)
                .map(|command| format!("run `{command}`"))
                .or(problem.hint),
            ..problem
        }
    }

    /// Refuses a daemon that takes no commands, or may not be asked.
    fn check_state(self, served: &Served) -> Result<(), Problem> {
        let name = &served.record.name;
        Err(match &served.state {
            DaemonState::Dead if self == Self::Set => not_settable(name, "its daemon has died"),
            DaemonState::Dead => Problem::new(
                format!("the daemon of device {name} has died, and its clients get CUDA error 806"),
                format!("run `mig-mps restart {name}` to start it again"),
            ),
            DaemonState::Closing => Problem::new(
                format!(
                    "device {name} is closing: its daemon accepts no commands until the running programs have exited"
                ),
                match self {
                    Self::Kill => "end the process with kill(1); `mig-mps kill` cannot reach a program on a device \
                     that is closing".to_owned(),
                    _ => format!("run `mig-mps status {name}` to see these programs"),
                },
            ),
            DaemonState::Hung(_) => Problem::new(
                format!("the daemon of device {name} is hung: it accepts no commands and no new clients"),
                format!("run `mig-mps restart {name}` to start a new daemon"),
            ),
            _ => match (
                unknown_clients_problem(served),
                served.record.runs_as_its_user(),
            ) {
                (Some(problem), _) => problem,
                (None, Some(user)) if caller() == Uid::ROOT => Problem::new(
                    format!(
                        "the daemon of device {name} runs as {}, as mig-mps 0.2 started it, so root cannot open a \
                         session with it",
                        user_name(user)
                    ),
                    format!("run `mig-mps restart {name}` to start a daemon that runs as root"),
                ),
                _ => return Ok(()),
            },
        })
    }
}

/// The remedy where no daemon of mig-mps serves a device.
const START_HINT: &str =
    "run `mig-mps up PROFILE` to start a daemon, with a profile that contains the device";

fn not_settable(name: &str, why: &str) -> Problem {
    Problem::new(
        format!("cannot change settings of device {name}: {why}"),
        START_HINT,
    )
}

/// Refuses a device that is gone or cannot be seen.
fn check_device(device: &Device) -> Result<(), Problem> {
    let name = &device.name;
    if let Some(why) = device.lost_gpu_reason() {
        let what = format!("device {name} cannot be seen: {why}");
        return Err(Problem::new(what, LOST_GPU_REMEDY));
    }
    if device.is_gone() {
        return Err(not_settable(name, "the device no longer exists"));
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
    Problem::new(what, owner_hint("stop that daemon first, as its owner"))
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
        "you own none of the daemons here: {served} served by {daemons} of {}",
        first.run_dir.path().display()
    );
    Err(Problem::new(
        what,
        owner_hint("run the command as their owner"),
    ))
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
                format!("{why}, so it is unknown whether daemons run there"),
                hint.unwrap_or("run `mig-mps doctor` to check directories and records"),
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
        format!("{problem}; it is unknown who uses the device"),
        "run `mig-mps up` with its profile to take over a running daemon and write the record again, or `mig-mps down \
         --force` to end the daemon and its clients",
    ))
}

/// Refuses a device whose daemon somebody else started: only they can change it.
pub(super) fn check_ours(served: &Served, run_dir: &RunDir) -> Result<(), Problem> {
    if served.run_dir == *run_dir {
        return Ok(());
    }
    Err(Problem {
        hint: Some(owner_hint("run the command as its owner")),
        ..foreign_daemon(served)
    })
}

/// The problem of a daemon that may have clients that nobody can see: it is not touched.
pub(super) fn unknown_clients_problem(served: &Served) -> Option<Problem> {
    let name = &served.record.name;
    let (why, hint) = match &served.state {
        DaemonState::NotAsked(why) => (
            why.as_str(),
            "find out why it does not start, then run this command again".to_owned(),
        ),
        DaemonState::Orphan => ("its pipe directory was removed", replace_remedy(served)),
        DaemonState::Busy => (
            "another control session is open",
            "wait until no other mig-mps waits for clients, and close any open session of nvidia-cuda-mps-control"
                .to_owned(),
        ),
        DaemonState::Hung(_) if !served.clients.are_known() => (
            "it is hung, and the driver hides its clients",
            format!("run `mig-mps restart {name} --force` to end its server and all programs there"),
        ),
        DaemonState::NoAnswer(_) => ("it does not answer", replace_remedy(served)),
        DaemonState::Suspended => ("it is stopped by a signal", replace_remedy(served)),
        DaemonState::Hidden => (
            "it may not be asked",
            owner_hint("run this command as its owner"),
        ),
        _ => return None,
    };
    let what = format!("the daemon of device {name} cannot be asked for its clients: {why}");
    Some(Problem::new(what, hint))
}
