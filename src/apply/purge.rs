//! Removes logs, rotates large ones after `up`, and removes what users left in pipe directories.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Instant;

use super::context::Run;
use super::error::FailedStep;
use crate::config::begins_as_uuid;
use crate::host::{Directories, Directory, Environment, FileResult};
use crate::mps::{LogDir, needs_rotation, rotate_logs};
use crate::node::Node;
use crate::plan::Purge;
use crate::state::RunDir;

/// Removes files. A failure in one directory saves none of the others.
pub(super) fn purge_files(run: &Run<'_>, purge: &Purge) -> impl Iterator<Item = FailedStep> {
    let until = Instant::now() + run.context.environment.purge_limit;
    let devices = match purge {
        Purge::All => None,
        Purge::Devices(uuids) => Some(uuids.as_slice()),
    };
    let set_aside = run.run_dir.remove_quarantined(devices, until);
    let logs = remove_logs(run, devices, until);
    [
        (
            "cannot remove the files that users left in pipe directories",
            set_aside,
        ),
        ("cannot remove the logs", logs),
    ]
    .into_iter()
    .filter_map(|(attempt, removed)| Some(FailedStep::new(attempt, removed.err()?)))
}

fn remove_logs(run: &Run<'_>, devices: Option<&[String]>, until: Instant) -> FileResult<()> {
    let logs = Directory::open(&run.context.directories.log)?;
    let mut removed = Ok(());
    for name in logs.entry_names()?.iter().filter_map(|name| name.to_str()) {
        // `UUID.of-1001.1` is what a user owned.
        let device = name.split('.').next().unwrap_or_default();
        let is_wanted = match devices {
            Some(devices) => devices.iter().any(|wanted| wanted == device),
            None => begins_as_uuid(name),
        };
        if is_wanted && !run.run_dir.has_record(name) {
            removed = removed.and(logs.remove_all(name, until));
        }
    }
    removed
}

/// True if a daemon of these directories has a log that is large enough to rotate.
pub fn has_large_logs(node: &Node, directories: &Directories) -> bool {
    let logs = log_directories(node, directories);
    logs.iter()
        .any(|path| LogDir::open(path).is_ok_and(|dir| needs_rotation(&dir)))
}

/// Rotates the large logs of the daemons of these directories; returns messages about failures and about what was not
/// kept. The caller holds the node's lock.
pub fn rotate_daemon_logs(
    environment: &Environment,
    node: &Node,
    directories: &Directories,
) -> Vec<String> {
    // The next call would finish an interrupted rotation, but an interrupt can wait.
    let _change = environment.interrupt.begin_change();
    log_directories(node, directories)
        .into_iter()
        .flat_map(|path| match LogDir::open(&path) {
            Ok(dir) => rotate_logs(&dir),
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => vec![Err(error)],
        })
        .filter_map(|put| match put {
            Ok(put) if put.kept == put.length => None,
            Ok(put) => Some(format!(
                "{} had {} MiB; only its last {} MiB were kept, in {}",
                put.log.display(),
                to_mebibytes(put.length),
                to_mebibytes(put.kept),
                put.older
            )),
            Err(error) => Some(format!("a log could not be moved: {error}")),
        })
        .collect()
}

/// The nearest whole number of MiB.
const fn to_mebibytes(bytes: u64) -> u64 {
    (bytes + (1 << 19)) >> 20
}

/// The log directories of the daemons of these directories.
fn log_directories(node: &Node, directories: &Directories) -> Vec<PathBuf> {
    let run_dir = RunDir::at(&directories.run);
    node.served()
        .filter(|served| served.run_dir == run_dir)
        .map(|served| directories.log.join(&served.record.uuid))
        .collect()
}
