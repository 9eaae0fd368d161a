//! The profile of `up` and `plan`: one that is named, the one of the boot, or one that was applied before. What was applied
//! is recorded for the next time.

use std::path::Path;

use clap::Args;
use jiff::Timestamp;

use super::args::ProfileSource;
use super::change_report::Outcome;
use super::{LOCK_LIMIT, lock_node};
use crate::apply;
use crate::error::{CommandError, ErrorContext as _, Result, command_error, usage_error};
use crate::failure::{Failure as _, Problem};
use crate::host::{Directories, Environment, FileResult};
use crate::node::Node;
use crate::plan::block_selects;
use crate::profile::Profile;
use crate::render::format::format_ago;
use crate::render::{note, warn};
use crate::state::{AppliedProfile, JointDevices, ProfileHistory, RunDir};

/// The profile of a command line, which may leave it out.
#[derive(Args, Debug)]
pub struct ProfileArgs {
    /// TOML file, built-in profile, or - for standard input [default: /etc/mig-mps/profile.toml,
    /// or the last applied profile]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    profile: Option<ProfileSource>,
    /// Use the profile that was applied before the current one
    #[arg(long, conflicts_with = "profile", help_heading = "Plan")]
    previous: bool,
}

/// A profile, and where its text is from.
pub struct ChosenProfile {
    pub profile: Profile,
    /// The path of its file, the name of a built-in profile, or `standard input`.
    path: String,
}

impl ProfileArgs {
    /// Reads and checks the profile. Says which it is if the command line does not.
    pub fn load(&self, environment: &Environment) -> Result<ChosenProfile> {
        if let Some(source) = &self.profile {
            return Ok(ChosenProfile {
                profile: source.load()?,
                path: source.origin(),
            });
        }
        let history = ProfileHistory::load_for_changes(environment);
        if self.previous {
            let history = require_history(history)?;
            let Some(applied) = history.numbered_profiles().nth(1) else {
                let error = command_error("no earlier profile was applied");
                return Err(error.with_hint(HISTORY_HINT));
            };
            return load_applied(applied);
        }
        let at_boot = ProfileHistory::boot_profile(history.as_ref().ok(), environment);
        let at_boot = at_boot.context("cannot read the profile that is applied at boot")?;
        if let Some(text) = at_boot {
            let path = environment.host.boot_profile().path();
            note(&format!("using profile {}", path.display()));
            return Ok(ChosenProfile {
                profile: Profile::parse(&path, text)?,
                path: path.display().to_string(),
            });
        }
        require_history(history)?
            .numbered_profiles()
            .next()
            .map_or_else(|| Err(no_profile_error()), load_applied)
    }

    /// Returns the profile of the command line as a word of another one; `None` if there is none, or it was standard input.
    pub fn as_word(&self) -> Option<String> {
        self.profile.as_ref()?.as_word()
    }

    /// Returns the arguments of the `up` that applies this profile; `None` if it was read from standard input, or if the
    /// caller is another user than the one who applies it and no profile is named.
    pub fn up_arguments(&self, is_callers: bool) -> Option<String> {
        match &self.profile {
            Some(source) => Some(format!("up {}", source.as_word()?)),
            // Another user has another history.
            None if !is_callers => None,
            None if self.previous => Some("up --previous".to_owned()),
            None => Some("up".to_owned()),
        }
    }
}

/// Fails for a command that needs the history if that cannot be read.
pub fn require_history(history: FileResult<ProfileHistory>) -> Result<ProfileHistory> {
    history.map_err(|error| {
        let hints = match ProfileHistory::hint_for(&error) {
            Some(hint) => vec![format!(
                "{hint}, then select the profile: `mig-mps up PROFILE`"
            )],
            None => error.hints(),
        };
        let error = command_error(format_args!(
            "cannot read the list of applied profiles: {error}"
        ));
        CommandError { hints, ..error }
    })
}

/// The hint where a profile is not in the history.
pub const HISTORY_HINT: &str = "run `mig-mps profiles --history` to list the applied profiles";

/// Takes a profile that was applied, as it was then.
fn load_applied((number, applied): (u64, &AppliedProfile)) -> Result<ChosenProfile> {
    let (path, at, by) = (&applied.path, format_ago(applied.at), &applied.by);
    let what = match &applied.name {
        // Profiles that are copied from each other have one name.
        Some(name) => format!("{name} ({path})"),
        None => path.clone(),
    };
    note(&format!(
        "using profile {number}, {what}, applied {at} by {by}"
    ));
    Ok(ChosenProfile {
        profile: applied.parse_profile()?,
        path: applied.path.clone(),
    })
}

fn no_profile_error() -> CommandError {
    usage_error("no profile is selected, none was applied before, and /etc/mig-mps/profile.toml does not exist").with_hint(
        "give a file or a built-in profile; `mig-mps profiles` lists these, `mig-mps init` writes a file",
    )
}

impl ChosenProfile {
    /// Records the profile as applied, and what of it is missing, under the lock of the change, or under one of its own if
    /// nothing has changed. Where it was applied already, the record then stays. A change that has succeeded does not fail
    /// here.
    pub fn record(&self, environment: &Environment, directories: &Directories, outcome: &Outcome) {
        let (node, has_changed) = (&outcome.node, !outcome.is_unchanged);
        let missing: Vec<Problem> = outcome
            .plan
            .missing
            .iter()
            .map(Problem::for_everybody)
            .collect();
        let recorded = environment
            .state_dir()
            .map_err(CommandError::from)
            .and_then(|state_dir| {
                let run_dir = RunDir::at(&directories.run);
                let joint = node.joint_devices_of(&self.profile, &run_dir);
                let is_recorded = !has_changed
                    && self.is_applied(&state_dir, &joint)
                    && is_recorded_as_missing(&missing, &run_dir, node);
                if is_recorded {
                    return Ok(());
                }
                let _lock = (!has_changed)
                    .then(|| lock_node(environment, directories, LOCK_LIMIT))
                    .transpose()?;
                let is_applied_to = |uuid: &str| {
                    let gpu = node.gpu_with_uuid(uuid);
                    let mut blocks = self.profile.blocks.iter();
                    gpu.is_some_and(|gpu| blocks.any(|block| block_selects(block, gpu)))
                };
                apply::record_missing(&run_dir, &node.boot_id, &missing, is_applied_to)?;
                let applied = AppliedProfile {
                    joint,
                    ..self.to_applied_profile(environment, &run_dir, node)
                };
                Ok(ProfileHistory::record_profile(&state_dir, applied)?)
            });
        if let Err(error) = recorded {
            warn(&format!(
                "the profile was applied but could not be recorded, so status and up --previous do not know it: {error}"
            ));
        }
    }

    fn is_applied(&self, directory: &Path, joint: &JointDevices) -> bool {
        ProfileHistory::load(directory).is_ok_and(|history| {
            let is_this = |applied: &AppliedProfile| {
                applied.text == self.profile.source.text() && applied.joint == *joint
            };
            history.is_in_force() && history.last_applied().is_some_and(is_this)
        })
    }

    fn to_applied_profile(
        &self,
        environment: &Environment,
        run_dir: &RunDir,
        node: &Node,
    ) -> AppliedProfile {
        let own = node.served().filter(|served| served.run_dir == *run_dir);
        AppliedProfile {
            name: self.profile.name.clone(),
            path: self.path.clone(),
            at: Timestamp::now(),
            by: environment.caller_name(),
            devices: own.count(),
            boot_id: Some(node.boot_id.clone()),
            joint: JointDevices::new(),
            text: self.profile.source.text().to_owned(),
        }
    }
}

/// True if this is what is recorded as missing since this boot.
fn is_recorded_as_missing(missing: &[Problem], run_dir: &RunDir, node: &Node) -> bool {
    let file = run_dir.load_node().unwrap_or_default();
    if file.boot_id != node.boot_id {
        return missing.is_empty();
    }
    missing == file.missing.as_slice()
}
