//! `mig-mps cdi`

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use super::change::Ending;
use super::containers::{container_device, remark};
use super::{Context, LOCK_LIMIT, locked};
use crate::apply::CdiFile;
use crate::client::ClientLimits;
use crate::error::{Context as _, ExitStatus, Result};
use crate::host::{Directories, Environment, write_text_to};
use crate::integrate::{CDI_KIND, cdi_specification};
use crate::node::{Node, observe_records};
use crate::render::{note, print};

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
    let Some(text) = specification(context.environment, &node)? else {
        return Err(crate::commands::no_daemon(&node));
    };
    match &args.output {
        None => print(&text)?,
        Some(path) => {
            let written = write_text_to(path, &text);
            written.context(format_args!("cannot write {}", path.display()))?;
        }
    }
    Ok(ExitStatus::Done)
}

/// Makes the node's CDI file say what the records say after a change: if there is one, or the profile asks for one, unless
/// it asks for none. Fails only if the profile says anything: else nobody has asked for the file.
pub(super) fn keep_current(
    environment: &Environment,
    directories: &Directories,
    wanted: Option<bool>,
    ending: Ending,
) -> Result<()> {
    if !environment.is_root() {
        return Ok(());
    }
    match update(environment, directories, wanted, ending) {
        Err(error) if wanted.is_none() => {
            note(&error.to_string());
            Ok(())
        }
        updated => updated,
    }
}

fn update(
    environment: &Environment,
    directories: &Directories,
    wanted: Option<bool>,
    ending: Ending,
) -> Result<()> {
    let file = CdiFile::of(&environment.host, CDI_KIND);
    let before = file.read().context("cannot read the CDI file")?;
    // What a profile asks for that was not applied waits, but the file says what runs.
    let wanted = wanted.filter(|_| ending != Ending::Failed);
    let is_wanted = wanted.unwrap_or(before.is_some());
    let text = || {
        if is_wanted {
            specification(environment, &observe_records(environment)?)
        } else {
            Ok(None)
        }
    };
    if text()? == before {
        return Ok(());
    }
    let _lock = match ending {
        Ending::Unchanged => Some(locked(environment, directories, LOCK_LIMIT)?),
        Ending::Done | Ending::Failed => None,
    };
    let written = file.write(text()?.as_deref());
    written.context("cannot keep the CDI file current")
}

/// Returns the specification of all devices with records; `None` if there are none.
fn specification(environment: &Environment, node: &Node) -> Result<Option<String>> {
    let mut names = BTreeSet::new();
    let mut devices = Vec::new();
    for served in &node.served {
        // A user's own device may be called as one of root's.
        if names.insert(&served.record.name) {
            devices.push(container_device(
                environment,
                served,
                &ClientLimits::default(),
            )?);
        }
    }
    let Some(first) = devices.first() else {
        return Ok(None);
    };
    remark(first.memory);
    Ok(Some(format!("{:#}\n", cdi_specification(&devices))))
}
