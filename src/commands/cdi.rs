//! `mig-mps cdi`

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::env::{container_device, note_unknown_driver};
use super::{Context, print_or_write};
use crate::client::{AdmissionHook, CdiFiles, ClientOptions, cdi_specification};
use crate::config::ROOT;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::host::{Environment, check_trusted_program, format_count, strip_needless_sudo};
use crate::node::{Node, observe_records};
use crate::render::{examples, warn};

/// Print a CDI specification for container engines
///
/// With this file in /etc/cdi, `podman run --device mig-mps/device=NAME` makes the programs in the container clients of
/// the device. The container gets the GPU itself from NVIDIA's entry, nvidia.com/gpu. If the profile has `cdi = true`,
/// `up` and `down` keep such a file current.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sudo mig-mps cdi -o /etc/cdi/mig-mps.json", "Write the file"),
]))]
pub struct CdiArgs {
    /// Write to FILE instead of standard output
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
    let served = node
        .served()
        .flat_map(|served| served.record.driver_uuids())
        .map(String::as_str);
    remark_on_nvidias_file(context.environment, served);
    print_or_write(&text, args.output.as_deref())?;
    Ok(ExitStatus::Done)
}

/// Says that the file of NVIDIA's toolkit lacks these devices: containers that ask for one by its UUID do not start.
pub fn remark_on_nvidias_file<'d>(
    environment: &Environment,
    uuids: impl IntoIterator<Item = &'d str>,
) {
    let host = &environment.host;
    if let Some(stale) = CdiFiles::load(host).find_stale(uuids) {
        warn(&format!(
            "{} lacks {} of this node, so containers cannot get {} as nvidia.com/gpu; run `{}` to write the file again",
            stale.path.display(),
            format_count(stale.devices, "device"),
            if stale.devices == 1 { "it" } else { "them" },
            strip_needless_sudo(&stale.refresh_command(host))
        ));
    }
}

/// Returns the specification of all devices with records, to replace the file with the text `before`; `None` if there are
/// none.
pub(super) fn render_specification(
    environment: &Environment,
    node: &Node,
    before: Option<&str>,
) -> Result<Option<String>> {
    let mut names = BTreeSet::new();
    let mut devices = Vec::new();
    let options = ClientOptions::default();
    for served in node.served() {
        // A user's own device may be called as one of root's.
        if names.insert(&served.record.name) {
            let gpus = served.record.gpu_positions();
            devices.push(container_device(environment, served, &options, &gpus)?);
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
