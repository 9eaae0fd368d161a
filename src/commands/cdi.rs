//! `mig-mps cdi`

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::change::ChangeEnding;
use super::env::{container_device, note_unknown_driver};
use super::{Context, LOCK_LIMIT, lock_node, print_or_write};
use crate::client::{AdmissionHook, CDI_KIND, CdiFiles, ClientOptions, cdi_specification};
use crate::config::ROOT;
use crate::error::{ErrorContext as _, Result};
use crate::failure::ExitStatus;
use crate::host::{
    Directories, Environment, FileError, OwnFile, Uid, caller, check_trusted_program, format_count,
    may_write, strip_needless_sudo,
};
use crate::node::{Node, observe_records};
use crate::plan::{self, CdiChange, LeftOut, Plan, Refusal};
use crate::profile::Profile;
use crate::render::note;
use crate::state::RunDir;

/// Print a CDI specification of the devices, for container engines
///
/// With this file in /etc/cdi, `podman run --device mig-mps/device=NAME` makes the container's programs clients
/// of the device. The GPU itself comes from NVIDIA's own nvidia.com/gpu. With cdi = true in the profile, `up`
/// and `down` keep such a file current.
#[derive(Args, Debug)]
pub struct CdiArgs {
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Prints or writes the specification of all devices.
pub fn run(args: &CdiArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let node = observe_records(context.environment)?;
    let Some(text) = render_specification(context.environment, &node, None)? else {
        return Err(crate::commands::no_daemon_error(&node));
    };
    note_unknown_driver(context.environment);
    let served = node.served().map(|served| served.record.uuid.as_str());
    remark_on_nvidias_file(context.environment, served);
    print_or_write(&text, args.output.as_deref())?;
    Ok(ExitStatus::Done)
}

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

/// Plans to apply a profile, with what becomes of daemons in no block, and of the CDI file; with `left_out` the part of it
/// that can be applied.
pub fn plan_up(
    environment: &Environment,
    node: &Node,
    profile: &Profile,
    run_dir: &RunDir,
    caller: Uid,
    prune: bool,
    mut left_out: Option<&mut LeftOut>,
) -> Result<Plan, Refusal> {
    let plan = match left_out.as_deref_mut() {
        None => plan::up(node, profile, run_dir, caller)?,
        Some(left_out) => plan::up_in_part(node, profile, run_dir, caller, left_out)?,
    };
    let plan = plan.prune_or_remark(node, profile, run_dir, prune, left_out.as_deref());
    if caller != Uid::ROOT {
        return Ok(plan);
    }
    // A file that cannot be read is refused before, or is not asked for.
    let before = cdi_file(environment).read().ok();
    let cdi = before
        .and_then(|before| planned_cdi_change(environment, node, profile, &plan, before.as_ref()));
    Ok(Plan { cdi, ..plan })
}

/// Returns what the plan makes of the file with the text `before`.
fn planned_cdi_change(
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

/// Says that the file of NVIDIA's toolkit lacks these devices: containers that ask for one by its UUID do not start.
pub fn remark_on_nvidias_file<'d>(
    environment: &Environment,
    uuids: impl IntoIterator<Item = &'d str>,
) {
    let host = &environment.host;
    if let Some(stale) = CdiFiles::load(host).find_stale(uuids) {
        note(&format!(
            "{} lacks {} of this node, so containers cannot get {} as nvidia.com/gpu. `{}` writes the file again.",
            stale.path.display(),
            format_count(stale.devices, "device"),
            if stale.devices == 1 { "it" } else { "them" },
            strip_needless_sudo(&stale.refresh_command(host))
        ));
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

/// Returns the specification of all devices with records, to replace the file with the text `before`; `None` if there are
/// none.
fn render_specification(
    environment: &Environment,
    node: &Node,
    before: Option<&str>,
) -> Result<Option<String>> {
    let mut names = BTreeSet::new();
    let mut devices = Vec::new();
    for served in node.served() {
        // A user's own device may be called as one of root's.
        if names.insert(&served.record.name) {
            devices.push(container_device(
                environment,
                served,
                &ClientOptions::default(),
            )?);
        }
    }
    if devices.is_empty() {
        return Ok(None);
    }
    let hook = admission_hook(environment, before);
    let specification = cdi_specification(&devices, hook.as_ref());
    Ok(Some(format!("{specification:#}\n")))
}

/// Returns the hook by which engines have a device checked. Its program is that of the file with the text `before`: several
/// copies of mig-mps do the same. `None` if other users could replace the program, which engines may run as root.
fn admission_hook(environment: &Environment, before: Option<&str>) -> Option<AdmissionHook> {
    let before = before.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let known = before.and_then(|file| {
        let path = file["devices"][0]["containerEdits"]["hooks"][0]["path"].as_str();
        path.map(PathBuf::from)
    });
    let program = known
        .into_iter()
        .chain(std::env::current_exe().ok())
        .find(|program| check_trusted_program(program).is_ok())?;
    Some(AdmissionHook {
        program,
        root: environment.named_paths().get(ROOT).cloned(),
    })
}
