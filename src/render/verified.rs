use anyhow::Result;

use super::output::{self, error, note};
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
                output::print(&format!(
                    "{name}: attached in {time} ms as {user}, {} SMs{}\n",
                    attached.sm_count,
                    server.unwrap_or_default()
                ))?;
            }
            Err(cause) => print_failure(cause),
        }
    }
    Ok(())
}

/// Prints those that are not well.
pub fn print_failures(all: &[Verified]) {
    let failures = all.iter().filter_map(|one| one.result.as_ref().err());
    failures.for_each(print_failure);
}

fn print_failure(cause: &NotReady) {
    if cause.is_passing() {
        note(&format!("not checked: {cause}"));
    } else {
        error(&cause.to_string(), &[cause.hint()]);
    }
}
