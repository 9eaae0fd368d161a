use anyhow::Result;

use super::format::count;
use super::output::{error, note, print_lines};
use crate::client::{NotReady, Verified};
use crate::host::user_name;

/// Prints the outcome for each device: those that are well to standard output, the others as errors.
pub fn print(all: &[Verified]) -> Result<()> {
    for one in all {
        let name = &one.name;
        match &one.result {
            Ok(ready) => {
                let attached = &ready.attached;
                let (time, user) = (attached.time.as_millis(), user_name(attached.user));
                let server = ready.server.map(|pid| format!(", server {pid}"));
                print_lines(&format!(
                    "{name}: attached in {time} ms as {user}, {} SMs{}",
                    attached.sm_count,
                    server.unwrap_or_default()
                ))?;
            }
            Err(cause) => print_failure(cause),
        }
    }
    Ok(())
}

/// Notes how many devices are well: `32 devices verified`, `2 of 32 devices failed`.
pub fn note_total(all: &[Verified]) {
    let errors = || all.iter().filter_map(|one| one.result.as_ref().err());
    let unchecked = errors().filter(|error| error.is_unchecked()).count();
    let failed = errors().count() - unchecked;
    let devices = count(all.len(), "device");
    note(&match (failed, unchecked) {
        (0, 0) => format!("{devices} verified"),
        (0, _) => format!("{} of {devices} verified", all.len() - unchecked),
        (_, 0) => format!("{failed} of {devices} failed"),
        _ => format!("{failed} of {devices} failed, {unchecked} not checked"),
    });
}

/// Prints those that are not well.
pub fn print_failures(all: &[Verified]) {
    let failures = all.iter().filter_map(|one| one.result.as_ref().err());
    failures.for_each(print_failure);
}

fn print_failure(cause: &NotReady) {
    if cause.is_unchecked() {
        note(&format!("not checked: {cause}"));
    } else {
        error(&cause.to_string(), &[cause.hint()]);
    }
}
