//! The way back for a device of the applied profile that was taken down: no record has its name any more.

use super::detail_for;
use crate::apply::ApplyError;
use crate::client::NoAccess;
use crate::error::CommandError;
use crate::host::Environment;
use crate::node::{NoSuchDevice, observe};
use crate::plan::{self, Refusal};
use crate::state::{ProfileHistory, RunDir};

/// Devices that the applied profile has, and that no daemon serves.
pub struct WayBack {
    pub names: Vec<String>,
    /// The command that starts them again.
    pub command: String,
    /// The title of the profile.
    profile: String,
}

impl WayBack {
    /// Returns those of this node; `None` if there are none, or they cannot be seen.
    pub fn find(environment: &Environment) -> Option<Self> {
        let history = ProfileHistory::load_for_changes(environment).ok()?;
        let applied = history.last_applied()?;
        let profile = applied.parse_profile().ok()?;
        let node = observe(environment, detail_for(&profile)).ok()?;
        // A device may be served where its record cannot be read.
        if node.unseen_daemons().is_some() || node.unreadable_records().next().is_some() {
            return None;
        }
        let run_dir = RunDir::at(&environment.directories().ok()?.run);
        let plan = plan::up(&node, &profile, &run_dir, environment.caller).ok()?;
        let is_served = |name: &str| node.served().any(|served| served.record.name == name);
        let names: Vec<String> = plan
            .starts()
            .map(|start| start.name.clone())
            .filter(|name| !is_served(name))
            .collect();
        let is_own = history.belongs_to_caller(environment) || environment.is_root();
        let sudo = if is_own { "" } else { "sudo " };
        let command = if ProfileHistory::is_default(environment) {
            format!("{sudo}mig-mps up")
        } else {
            format!("mig-mps profiles --applied | {sudo}mig-mps up -")
        };
        (!names.is_empty()).then(|| Self {
            names,
            command,
            profile: applied.title().to_owned(),
        })
    }
}

/// The commands that say in their own words that a device has no daemon, or that there is no such profile.
const COMMANDS_WITH_OWN_HINT: [&str; 9] = [
    "check", "compare", "env", "heal", "plan", "restart", "run", "set", "up",
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
            NoSuchDevice::Unknown { .. } | NoSuchDevice::NotServed { .. }
        );
    }
    // A device that is busy, or that a change is about to end, has its own hint, and so has a change that failed.
    let is_passing = error
        .downcast_ref::<NoAccess>()
        .is_some_and(NoAccess::is_temporary);
    !is_passing && !error.is::<ApplyError>() && COMMANDS_WITH_OWN_HINT.contains(&command)
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
    let Some(way_back) = WayBack::find(environment) else {
        return error;
    };
    let Some(name) = words.iter().find(|word| way_back.names.contains(word)) else {
        return error;
    };
    let WayBack {
        command, profile, ..
    } = &way_back;
    // The hints are about devices that are served, and profiles in files.
    error.hints = vec![format!(
        "{name} is a device of the applied profile {profile}, but no daemon serves it now: {command} starts one"
    )];
    error
}
