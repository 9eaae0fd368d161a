//! Rotation of large logs after `up`.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::host::{Directories, Environment};
use crate::logs::{needs_rotation, rotate};
use crate::mps::LogDir;
use crate::node::Node;
use crate::state::RunDir;

/// True if a daemon of these directories has a log that is large enough to rotate.
pub fn has_large_logs(node: &Node, directories: &Directories) -> bool {
    let logs = logs(node, directories);
    logs.iter()
        .any(|path| LogDir::open(path).is_ok_and(|dir| needs_rotation(&dir)))
}

/// Rotates the large logs of the daemons of these directories; returns messages about failures and about what was not
/// kept. The caller holds the node's lock.
pub fn put_logs_aside(
    environment: &Environment,
    node: &Node,
    directories: &Directories,
) -> Vec<String> {
    // The next call would finish an interrupted rotation, but an interrupt can wait.
    let _change = environment.interrupt.begin();
    let logs = logs(node, directories).into_iter();
    logs.flat_map(|path| match LogDir::open(&path) {
        Ok(dir) => rotate(&dir),
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => vec![Err(error)],
    })
    .filter_map(|put| match put {
        Ok(put) if put.kept == put.length => None,
        Ok(put) => Some(format!(
            "{} held {} MiB: only its last {} MiB were kept, in {}",
            put.log.display(),
            mebibytes(put.length),
            mebibytes(put.kept),
            put.older
        )),
        Err(error) => Some(format!("a log could not be put aside: {error}")),
    })
    .collect()
}

/// The nearest whole number of MiB.
const fn mebibytes(bytes: u64) -> u64 {
    (bytes + (1 << 19)) >> 20
}

/// The log directories of the daemons of these directories.
fn logs(node: &Node, directories: &Directories) -> Vec<PathBuf> {
    let run_dir = RunDir::at(&directories.run);
    let ours = node
        .served
        .iter()
        .filter(|served| served.run_dir == run_dir);
    ours.map(|served| directories.log.join(&served.record.uuid))
        .collect()
}
