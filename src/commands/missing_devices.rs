//! The devices of the applied profile that no daemon serves, and how they come back.

use super::detail_for;
use crate::apply::ApplyError;
use crate::client::{NoAccess, another_device};
use crate::error::CommandError;
use crate::failure::Failure as _;
use crate::host::Environment;
use crate::node::{Detail, NoSuchDevice, Node, observe, observe_records, start_again_hint};
use crate::plan::{self, Place, Refusal, Start};
use crate::profile::ProfileError;
use crate::state::{DeviceRecord, Origin, ProfileHistory, RunDir, StoppedDevice};

/// The starts of the devices that the applied profile has and no daemon serves.
struct UnservedDevices {
    run_dir: RunDir,
    starts: Vec<Start>,
    /// The command that applied the profile.
    origin: Origin,
    /// The title of the profile.
    title: String,
    /// True if the caller may change them.
    is_own: bool,
}

impl UnservedDevices {
    /// Finds those of this node; `None` if there are none, or they cannot be seen.
    fn find(environment: &Environment, seen: Option<&Node>) -> Option<Self> {
        let history = ProfileHistory::load_for_changes(environment).ok()?;
        if !history.is_in_force() {
            return None;
        }
        let applied = history.last_applied()?;
        let profile = applied.parse_profile().ok()?;
        let observed = match seen {
            Some(_) => None,
            None => Some(observe(environment, detail_for(&profile)).ok()?),
        };
        let node = seen.or(observed.as_ref())?;
        // A device may be served where its record cannot be read.
        if node.unseen_daemons().is_some() || node.unreadable_records().next().is_some() {
            return None;
        }
        let run_dir = RunDir::at(&environment.directories().ok()?.run);
        let plan = plan::up(node, &profile, &run_dir, environment.caller).ok()?;
        let is_served = |name: &str| node.served().any(|served| served.record.name == name);
        let starts: Vec<Start> = plan
            .starts()
            .filter(|start| !is_served(&start.name))
            .map(|start| Start {
                // A joint device always has a UUID.
                uuid: if has_whole_gpus(node, start) {
                    start.uuid.clone()
                } else {
                    None
                },
                ..start.clone()
            })
            .collect();
        (!starts.is_empty()).then(|| Self {
            run_dir,
            starts,
            origin: Origin {
                command: "mig-mps up".to_owned(),
                by: applied.by.clone(),
                since: applied.at,
            },
            title: applied.title().to_owned(),
            is_own: history.belongs_to_caller(environment) || environment.is_root(),
        })
    }
}

/// True but for a joint device that lacks a GPU, or has one in MIG mode.
fn has_whole_gpus(node: &Node, start: &Start) -> bool {
    start.joint.iter().all(|index| {
        node.gpus
            .iter()
            .any(|gpu| gpu.index == *index && !gpu.in_mig_mode())
    })
}

/// Returns the node with the devices that the applied profile has and no daemon serves as stopped devices; `None` if there
/// are none.
pub(super) fn with_unserved_devices(node: &Node, environment: &Environment) -> Option<Node> {
    let unserved = UnservedDevices::find(environment, Some(node))?;
    let mut named = node.clone();
    for start in unserved.starts {
        let Some(uuid) = &start.uuid else {
            continue;
        };
        let device = node.devices.iter().find(|one| one.uuid == *uuid);
        if device.is_some_and(|device| node.find_stopped(device).is_some()) {
            continue;
        }
        // A joint device is there once it is known as stopped.
        let joint = (!start.joint.is_empty()).then(|| start.whole_device_key(node, ""));
        let Some(key) = device.map(|device| device.key.clone()).or(joint) else {
            continue;
        };
        let stopped = StoppedDevice {
            record: DeviceRecord {
                name: start.name,
                key,
                uuid: uuid.clone(),
                joint_gpus: start.joint,
                settings: start.settings,
                ..DeviceRecord::default()
            },
            origin: unserved.origin.clone(),
        };
        named.stopped.push((unserved.run_dir.clone(), stopped));
    }
    named.join();
    Some(named)
}

/// Returns why a device that `down` has stopped, which one of these words names, cannot start; `None` if there is none.
fn hint_for_stopped(environment: &Environment, words: &[String]) -> Option<String> {
    let recorded = observe_records(environment).ok()?;
    let name = recorded
        .stopped
        .iter()
        .map(|(_, stopped)| &stopped.record.name)
        .find(|name| words.contains(name))?;
    let node = observe(environment, Detail::GEOMETRY).ok()?;
    match node.resolve_words(std::slice::from_ref(name)) {
        Err(error @ NoSuchDevice::Unstartable { .. }) => {
            Some(format!("{error}; {}", error.hint().unwrap_or_default()))
        }
        _ => None,
    }
}

/// Returns how a device that `down` has stopped comes back; for others than its owner also the name of a device to use instead.
/// `None` if it was not stopped.
fn hint_to_start(environment: &Environment, name: &str) -> Option<String> {
    let node = observe_records(environment).ok()?;
    let (run_dir, stopped) = node.stopped_named(name)?;
    if environment.is_root() || run_dir.owner() == Some(environment.caller) {
        return Some(start_again_hint(name));
    }
    let hint = format!("ask root to start it (`sudo mig-mps start {name}`)");
    Some(
        match another_device(environment, &node, &stopped.record, environment.caller) {
            Some(other) => format!("{hint}, or use device {other}, which is free"),
            None => hint,
        },
    )
}

/// Returns how the devices come back after `down` of everything; `None` if a profile is in force, or the command starts no
/// daemons.
fn hint_after_down(environment: &Environment, command: &str) -> Option<String> {
    let history = ProfileHistory::load_for_changes(environment).ok()?;
    let is_taken_down = !history.is_in_force() && matches!(command, "restart" | "start");
    if !is_taken_down {
        return None;
    }
    let title = history.last_applied()?.title();
    Some(format!(
        "run `mig-mps up` to start the devices of profile {title}, which `mig-mps down` stopped"
    ))
}

/// The commands that say in their own words that a device has no daemon, or that there is no such profile.
const COMMANDS_WITH_OWN_HINT: [&str; 10] = [
    "check", "compare", "env", "heal", "plan", "restart", "run", "set", "start", "up",
];

/// True if a command failed because no daemon serves a device, or because a word names no device.
fn has_no_daemon_or_device(error: &CommandError, command: &str) -> bool {
    let error = &error.error;
    let unknown = match error.downcast_ref::<Refusal>() {
        Some(Refusal::Device(unknown)) => Some(unknown),
        _ => error.downcast_ref::<NoSuchDevice>(),
    };
    if let Some(error) = unknown {
        return matches!(
            error,
            NoSuchDevice::Unknown { .. }
                | NoSuchDevice::NotServed { .. }
                | NoSuchDevice::Stopped { .. }
        );
    }
    // A device that is busy, or that a change is about to end, has its own hint, and so has a change that failed.
    let is_passing = error
        .downcast_ref::<NoAccess>()
        .is_some_and(NoAccess::is_temporary);
    !is_passing && !error.is::<ApplyError>() && COMMANDS_WITH_OWN_HINT.contains(&command)
}

/// Adds to the error of a profile that does not exist that its name is that of a device.
fn with_device_for_profile(
    mut error: CommandError,
    environment: &Environment,
    command: &str,
    words: &[String],
) -> CommandError {
    if !matches!(
        error.error.downcast_ref(),
        Some(ProfileError::Unreadable { .. })
    ) {
        return error;
    }
    let Ok(node) = observe_records(environment) else {
        return error;
    };
    let mut names = node.served().map(|served| &served.record.name);
    if let Some(name) = names.find(|name| words.contains(name)) {
        error.hints = vec![format!(
            "give {command} a profile (a TOML file or a built-in profile); {name} is a device with a daemon"
        )];
    }
    error
}

/// Adds to the error of a command that names such a device how it comes back. `words` are those of the command line.
pub fn add_way_back_hint(
    mut error: CommandError,
    environment: &Environment,
    words: &[String],
) -> CommandError {
    let [command, words @ ..] = words else {
        return error;
    };
    if error.is_chosen || words.is_empty() || !has_no_daemon_or_device(&error, command) {
        return error;
    }
    let unserved = UnservedDevices::find(environment, None);
    let is_named = |start: &&Start| words.contains(&start.name);
    let named = unserved.as_ref().and_then(|unserved| {
        let start = unserved.starts.iter().find(is_named)?;
        Some((unserved, start))
    });
    let Some((unserved, start)) = named else {
        if let Some(hint) = hint_for_stopped(environment, words) {
            error.hints = vec![hint];
            return error;
        }
        if let Some(NoSuchDevice::Stopped { device, .. }) = error.error.downcast_ref()
            && let Some(hint) = hint_to_start(environment, device)
        {
            error.hints = vec![hint];
            return error;
        }
        let mut error = with_device_for_profile(error, environment, command, words);
        error.hints.extend(hint_after_down(environment, command));
        return error;
    };
    let is_about_device = !matches!(command.as_str(), "check" | "plan" | "up");
    if start.uuid.is_some()
        && is_about_device
        && let Some(hint) = hint_to_start(environment, &start.name)
    {
        error.hints = vec![hint];
        return error;
    }
    let (name, profile) = (&start.name, &unserved.title);
    let sudo = if unserved.is_own { "" } else { "sudo " };
    let purpose = match start.place {
        Place::Mig { .. } => "to create its instance again and start a daemon",
        Place::Whole => "to disable MIG mode and start a daemon",
    };
    let waiting = observe_records(environment).ok().and_then(|node| {
        node.served()
            .find_map(|served| Some(served.record.closing.as_ref()?.to_string()))
    });
    let way_back = if let Some(change) = waiting {
        // The applied profile is the one from before this change.
        format!("run `mig-mps status` to see the change by {change}, and which devices are ready")
    } else if start.uuid.is_some() {
        format!("run `{sudo}mig-mps start {name}` to start a daemon")
    } else if ProfileHistory::load_for_changes(environment)
        .is_ok_and(|history| history.is_default(environment))
    {
        format!("run `{sudo}mig-mps up` {purpose}")
    } else {
        format!("run `mig-mps profiles --applied | {sudo}mig-mps up -` {purpose}")
    };
    // The hints are about devices that are served, and profiles in files.
    error.hints = vec![format!(
        "{way_back}; device {name} is in the applied profile {profile}, but no daemon serves it"
    )];
    error
}
