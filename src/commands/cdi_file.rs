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
use crate::host::{Directories, Environment, FileError, OwnFile, Uid, caller, may_write};
use crate::node::{Node, observe_records};
use crate::plan::{CdiChange, Plan};
use crate::profile::Profile;
use crate::render::note;

/// Refuses a profile that asks for the file where mig-mps could not write it.
pub fn check_cdi_file(profile: &Profile, environment: &Environment) -> Result<()> {
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
    checked.context("cannot keep the CDI file current")
}

/// The file by which container engines find this node's devices.
pub(super) fn cdi_file(environment: &Environment) -> OwnFile {
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

/// Returns what the plan makes of the file with the text `before`.
pub(super) fn planned_cdi_change(
    environment: &Environment,
    node: &Node,
    profile: &Profile,
    plan: &Plan,
    before: Option<&String>,
) -> Option<CdiChange> {
    let is_wanted = profile.cdi.map_or(before.is_some(), |(wanted, _)| wanted);
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
    match render_specification(environment, node, before.map(String::as_str)) {
        Ok(text) if text.as_ref() == before => None,
        // If it cannot be made, writing it tells why.
        _ => Some(CdiChange::Write),
    }
}

/// Says what was done to the file.
pub fn cdi_change_message(change: CdiChange) -> &'static str {
    match change {
        CdiChange::Write => "The CDI file was written; otherwise the node is as the profile says.",
        CdiChange::Remove => "The CDI file was removed; otherwise the node is as the profile says.",
    }
}

/// Updates the node's CDI file after a change, if there is one or the profile wants one; `wanted = Some(false)` removes
/// it. Fails only if the profile mentions the file: otherwise nobody has asked for it.
pub fn keep_current(
    environment: &Environment,
    directories: &Directories,
    wanted: Option<bool>,
    ending: ChangeEnding,
) -> Result<()> {
    if !environment.is_root() {
        return Ok(());
    }
    match update_cdi_file(environment, directories, wanted, ending) {
        Err(error) if wanted.is_none() => {
            note(&error.to_string());
            Ok(())
        }
        updated => updated,
    }
}

fn update_cdi_file(
    environment: &Environment,
    directories: &Directories,
    wanted: Option<bool>,
    ending: ChangeEnding,
) -> Result<()> {
    let file = cdi_file(environment);
    let before = file.read().context("cannot read the CDI file")?;
    let is_of_others = |text: &str| !mounts_run_dir(text, &directories.run);
    if wanted.is_none() && before.as_deref().is_some_and(is_of_others) {
        return Ok(());
    }
    // What a profile asks for that was not applied waits, but the file says what runs.
    let is_wanted = wanted
        .filter(|_| ending != ChangeEnding::Failed)
        .unwrap_or(before.is_some());
    let current = || {
        if !is_wanted {
            return Ok(None);
        }
        render_specification(
            environment,
            &observe_records(environment)?,
            before.as_deref(),
        )
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
    kept.map(drop).context("cannot keep the CDI file current")
}

/// True if a CDI file mounts something of this run directory. One that does not is about the devices of another one, such as
/// the node's own during a self-test.
fn mounts_run_dir(text: &str, run: &Path) -> bool {
    let Ok(file) = serde_json::from_str::<Value>(text) else {
        return true;
    };
    let devices = file["devices"].as_array().into_iter().flatten();
    devices
        .filter_map(|device| device["containerEdits"]["mounts"].as_array())
        .flatten()
        .filter_map(|mount| mount["hostPath"].as_str())
        .any(|path| Path::new(path).starts_with(run))
}
