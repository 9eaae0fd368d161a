//! A device by its record alone: programs start often, and soon.

use crate::client::{ClientLimits, Variables};
use crate::error::{CommandError, ExitStatus, Result};
use crate::host::Environment;
use crate::node::{Node, Served, observe_records};

/// A device that a command line names, and the node's records.
pub(super) struct Recorded {
    pub(super) node: Node,
    served: Served,
}

impl Recorded {
    /// Finds the one device that a word means.
    pub(super) fn find(environment: &Environment, word: &str) -> Result<Self> {
        let node = observe_records(environment)?;
        let names = node.resolve(&[word.to_owned()])?;
        let [name] = names.as_slice() else {
            let what = format!("{word} means several devices: {}", names.join(", "));
            return Err(CommandError::new(ExitStatus::Usage, what));
        };
        let served = node.served_as(name).cloned();
        let served =
            served.ok_or_else(|| CommandError::failed(format_args!("no daemon serves {name}")))?;
        Ok(Self { node, served })
    }

    pub(super) fn name(&self) -> &str {
        &self.served.record.name
    }

    /// Returns the environment of its clients. Refuses limits above those of the device.
    pub(super) fn variables(
        &self,
        environment: &Environment,
        limits: &ClientLimits,
    ) -> Result<Variables> {
        variables(environment, &self.served, limits)
    }
}

/// Returns the environment of a device's clients.
pub(super) fn variables(
    environment: &Environment,
    served: &Served,
    limits: &ClientLimits,
) -> Result<Variables> {
    let record = &served.record;
    limits.check(&record.settings)?;
    let logs = environment.logs_of(served.run_dir.path());
    Ok(Variables::of(record, &served.run_dir, logs, limits))
}
