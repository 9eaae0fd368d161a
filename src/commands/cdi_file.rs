//! The CDI file of this node, by which container engines find its devices: `up` and `down` keep it current.

use std::io;
use std::path::Path;

use serde_json::Value;

use super::cdi::render_specification;
use super::change::ChangeEnding;
use super::env::note_unknown_driver;
use super::{LOCK_LIMIT, lock_node};
use crate::client::CDI_KIND;
use crate::error::{ErrorContext as _, Result};
use crate::host::{
    Directories, Environment, FileError, OwnFile, Uid, caller, may_write, root_hint,
};
use crate::node::{Node, observe_records};
use crate::plan::{CdiChange, Plan};
use crate::profile::{Profile, ProfileError};
use crate::render::warn;
use crate::state::RunDir;

/// Refuses a profile of a plain user that asks for the file, which only root can write.
pub(super) fn check_allowed(
    profile: &Profile,
    environment: &Environment,
) -> Result<(), ProfileError> {
    match profile.cdi {
        Some((true, span)) if !environment.is_root() => {
            let error = profile.error_at(span, "only root can use cdi = true");
            let hint = format!(
                "{}; `mig-mps cdi` prints the file of your own devices",
                root_hint()
            );
            Err(error.with_hint(hint))
        }
        _ => Ok(()),
    }
}

/// Refuses a profile that asks for the file where mig-mps could not write it.
pub(super) fn check_writable(profile: &Profile, environment: &Environment) -> Result<()> {
    if !matches!(profile.cdi, Some((true, _))) {
        return Ok(());
    }
    // Others could replace it, it is not of mig-mps, or the directory takes none.
    let file = cdi_file(environment);
    let mut checked = file.check_place();
    if caller() == Uid::ROOT && file.directory.exists() && !may_write(&file.directory) {
        let error = FileError::from(io::ErrorKind::ReadOnlyFilesystem);
        checked = checked.and(Err(error.at(&file.directory)));
    }
    checked.context("cannot update the CDI file")
}

/// The file by which container engines find this node's devices.
fn cdi_file(environment: &Environment) -> OwnFile {
    OwnFile {
        directory: environment.host.under_root("/var/run/cdi"),
        name: "mig-mps.json",
        mode: 0o644,
        is_mounted: true,
        is_ours: |text| {
            serde_json::from_str::<Value>(text).is_ok_and(|found| found["kind"] == CDI_KIND)
        },
    }
}

/// Returns what a plan of root, for daemons in this run directory, makes of the file.
pub(super) fn plan_change(
    environment: &Environment,
    node: &Node,
    run_dir: &RunDir,
    request: CdiRequest,
    plan: &Plan,
) -> Option<CdiChange> {
    // A file that cannot be read is refused before, or is not asked for.
    let before = cdi_file(environment).read().ok()?;
    if request == CdiRequest::KeepCurrent && is_of_others(before.as_deref(), run_dir.path()) {
        return None;
    }
    let is_wanted = match request {
        CdiRequest::Ignore => return None,
        CdiRequest::KeepCurrent => before.is_some(),
        CdiRequest::Write => true,
        CdiRequest::Remove => false,
    };
    let starts = plan.starts().next().is_some();
    let stops_all = node
        .served()
        .all(|served| plan.stops().any(|stop| stop.uuid == served.record.uuid));
    if !is_wanted || (!starts && stops_all) {
        return before.map(|_| CdiChange::Remove);
    }
    if starts || plan.stops().next().is_some() {
        return Some(CdiChange::Write);
    }
    match render_specification(environment, node, before.as_deref()) {
        Ok(text) if text == before => None,
        // If it cannot be made, writing it tells why.
        _ => Some(CdiChange::Write),
    }
}

/// Says what was done to the file.
pub(super) fn change_message(change: CdiChange) -> &'static str {
    match change {
        CdiChange::Write => {
            "The CDI file was written. The rest of the node already matches the profile."
        }
        CdiChange::Remove => {
            "The CDI file was removed. The rest of the node already matches the profile."
        }
    }
}

/// What a change makes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CdiRequest {
    /// It stays as it is.
    Ignore,
    /// A file that exists is kept current.
    KeepCurrent,
    /// The profile asks for the file.
    Write,
    /// The profile asks for none.
    Remove,
}

impl CdiRequest {
    pub fn from_profile(profile: &Profile) -> Self {
        match profile.cdi {
            None => Self::KeepCurrent,
            Some((true, _)) => Self::Write,
            Some((false, _)) => Self::Remove,
        }
    }
}

/// Updates the file after a change. Fails only if the profile mentions the file: otherwise nobody has asked for it.
pub(super) fn update(
    environment: &Environment,
    directories: &Directories,
    request: CdiRequest,
    ending: ChangeEnding,
) -> Result<()> {
    if request == CdiRequest::Ignore || !environment.is_root() {
        return Ok(());
    }
    match write_if_changed(environment, directories, request, ending) {
        Err(error) if request == CdiRequest::KeepCurrent => {
            warn(&error.to_string());
            Ok(())
        }
        updated => updated,
    }
}

/// Writes or removes the file, unless it is as it should be.
fn write_if_changed(
    environment: &Environment,
    directories: &Directories,
    request: CdiRequest,
    ending: ChangeEnding,
) -> Result<()> {
    let file = cdi_file(environment);
    let before = file.read().context("cannot read the CDI file")?;
    if request == CdiRequest::KeepCurrent && is_of_others(before.as_deref(), &directories.run) {
        return Ok(());
    }
    // What a profile asks for that was not applied waits, but the file says what runs.
    let is_wanted = match request {
        CdiRequest::Write if ending != ChangeEnding::Failed => true,
        CdiRequest::Remove if ending != ChangeEnding::Failed => false,
        _ => before.is_some(),
    };
    let current = || {
        if !is_wanted {
            return Ok(None);
        }
        let node = observe_records(environment)?;
        render_specification(environment, &node, before.as_deref())
    };
    if current()? == before {
        return Ok(());
    }
    let _lock = match ending {
        ChangeEnding::Unchanged => Some(lock_node(environment, directories, LOCK_LIMIT)?),
        ChangeEnding::Done | ChangeEnding::Failed => None,
    };
    let text = current()?;
    if text.is_some() {
        note_unknown_driver(environment);
    }
    let kept = match text {
        Some(text) => file.write(&text),
        None => file.remove(),
    };
    kept.map(drop).context("cannot update the CDI file")
}

/// True if a CDI file mounts nothing of this run directory. It is about the devices of another one, such as the node's own
/// during a self-test.
fn is_of_others(file: Option<&str>, run: &Path) -> bool {
    let Some(Ok(file)) = file.map(serde_json::from_str::<Value>) else {
        return false;
    };
    let devices = file["devices"].as_array().into_iter().flatten();
    !devices
        .filter_map(|device| device["containerEdits"]["mounts"].as_array())
        .flatten()
        .filter_map(|mount| mount["hostPath"].as_str())
        .any(|path| Path::new(path).starts_with(run))
}
