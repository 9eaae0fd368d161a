use std::io::ErrorKind;
use std::path::PathBuf;

use crate::host::{Environment, Home};
use crate::logs::{needs_rotation, rotate};
use crate::mps::LogDir;
use crate::node::Node;
use crate::state::RunDir;

/// Whether a daemon of this home has a log that [`put_logs_aside`] would have to look at.
pub fn has_large_logs(node: &Node, home: &Home) -> bool {
    let logs = logs(node, home);
    logs.iter()
        .any(|path| LogDir::open(path).is_ok_and(|dir| needs_rotation(&dir)))
}

/// Puts aside what the logs of this home's daemons hold over the limit; returns, in words, what could not be, and what
/// was not kept. Nothing depends on it: a log that stays only goes on growing. The caller holds the node's lock.
pub fn put_logs_aside(environment: &Environment, node: &Node, home: &Home) -> Vec<String> {
    // Half of it is done over again by the next one; but there is no need.
    let _change = environment.interrupt.begin();
    let logs = logs(node, home).into_iter();
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

/// The log directories of the daemons that are this home's.
fn logs(node: &Node, home: &Home) -> Vec<PathBuf> {
    let run_dir = RunDir::at(&home.run);
    let ours = node
        .served
        .iter()
        .filter(|served| served.run_dir == run_dir);
    ours.map(|served| home.log.join(&served.record.uuid))
        .collect()
}
