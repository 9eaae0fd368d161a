use anyhow::Result;

use super::output::{self, error, note};
use crate::client::Verified;
use crate::host::user_name;

/// Prints what became of devices that were checked: those that are well to standard output, the others as errors.
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
            Err(cause) if cause.is_passing() => note(&format!("not checked: {cause}")),
            Err(cause) => error(&cause.to_string(), &Vec::from_iter(cause.hint())),
        }
    }
    Ok(())
}
