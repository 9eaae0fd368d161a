//! Removes logs, and what users left in pipe directories.

use std::io;
use std::time::Instant;

use super::cause::Cause;
use super::context::ApplyContext;
use super::error::Failure;
use crate::host::Directory;
use crate::plan::Purge;
use crate::state::RunDir;

/// Carries out a purge. A failure in one directory saves none of the others.
pub(super) fn purge(
    purge: &Purge,
    context: &ApplyContext<'_>,
    run_dir: &RunDir,
) -> impl Iterator<Item = Failure> {
    let until = Instant::now() + context.environment.purge_limit;
    let devices = match purge {
        Purge::All => None,
        Purge::Devices(uuids) => Some(uuids.as_slice()),
    };
    let left = run_dir.remove_left(devices, until);
    let logs = remove_logs(devices, context, run_dir, until);
    let failed = |what: &str, removed: io::Result<()>| {
        let error = removed.err()?;
        Some(Failure::new(what.to_owned(), Cause::from(error)))
    };
    let failures = [
        failed("removing what users left in pipe directories", left),
        failed("removing logs", logs),
    ];
    failures.into_iter().flatten()
}

fn remove_logs(
    devices: Option<&[String]>,
    context: &ApplyContext<'_>,
    run_dir: &RunDir,
    until: Instant,
) -> io::Result<()> {
    let logs = Directory::open(&context.directories.log)?;
    let names = logs.names()?.into_iter();
    let names = names.filter_map(|name| name.into_string().ok());
    let is_meant = |name: &String| match devices {
        Some(devices) => devices.contains(name),
        None => name.starts_with("GPU-") || name.starts_with("MIG-"),
    };
    let names = names.filter(|name| is_meant(name) && !run_dir.has_record(name));
    let removed = names.map(|name| logs.remove_all(&name, until));
    removed.fold(Ok(()), io::Result::and)
}
