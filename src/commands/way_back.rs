//! The way back for a device of the applied profile that was taken down: no record has its name any more.

use super::detail_for;
use crate::error::CommandError;
use crate::host::Environment;
use crate::node::observe;
use crate::plan;
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
        let history = ProfileHistory::of_changes(environment).ok()?;
        let applied = history.applied()?;
        let profile = applied.profile().ok()?;
        let node = observe(environment, detail_for(&profile)).ok()?;
        // A device may be served where its record cannot be read.
        if node.unseen_daemons().is_some() || node.unreadable().next().is_some() {
            return None;
        }
        let run_dir = RunDir::at(&environment.directories().ok()?.run);
        let plan = plan::up(&node, &profile, &run_dir, environment.caller).ok()?;
        let is_served = |name: &str| node.served().any(|served| served.record.name == name);
        let starts = plan.starts().map(|start| start.name.clone());
        let names: Vec<String> = starts.filter(|name| !is_served(name)).collect();
        let is_own = history.is_callers(environment) || environment.is_root();
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

/// The commands that are about devices or profiles by name.
const COMMANDS: [&str; 7] = ["compare", "env", "heal", "plan", "restart", "run", "set"];

/// Adds to the error of a command that names such a device how it comes back. `words` are those of the command line.
pub fn name_way_back(
    mut error: CommandError,
    environment: &Environment,
    words: &[String],
) -> CommandError {
    let [command, words @ ..] = words else {
        return error;
    };
    let is_up = command == "up";
    if error.is_chosen || !(is_up || COMMANDS.contains(&command.as_str())) || words.is_empty() {
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
