use crate::client::{ClientLimits, Variables, own_memory};
use crate::error::{CommandError, ExitStatus, Result};
use crate::host::Environment;
use crate::node::{Node, Served};

/// Refuses paths that text for other programs cannot name.
pub(super) fn refuse_bytes(variables: &Variables) -> Result<()> {
    let mut set = variables.set.iter();
    let Some((name, value)) = set.find(|(_, value)| value.to_str().is_none()) else {
        return Ok(());
    };
    let setting = match *name {
        "CUDA_MPS_LOG_DIRECTORY" => "MIG_MPS_LOG_DIR",
        _ => "MIG_MPS_RUN_DIR",
    };
    let value = value.display();
    Err(CommandError::failed(format_args!(
        "{value} is not UTF-8 text, as other programs need it"
    ))
    .with_hint(format!(
        "set {setting} to a directory whose name is UTF-8 text, and apply the profile again"
    )))
}

/// A device with a record.
pub(super) struct Recorded<'n> {
    pub(super) served: &'n Served,
}

impl<'n> Recorded<'n> {
    pub(super) fn of(served: &'n Served) -> Self {
        Self { served }
    }

    /// Finds the one device that a word means.
    pub(super) fn find(node: &'n Node, word: &str) -> Result<Self> {
        let names = node.resolve(&[word.to_owned()])?;
        let [name] = names.as_slice() else {
            let what = format!("{word} means several devices: {}", names.join(", "));
            let error = CommandError::new(ExitStatus::Usage, what);
            return Err(
                error.with_hint("name one device; mig-mps run --any takes one that is free")
            );
        };
        let served = node.served_as(name);
        let missing = || {
            CommandError::failed(format_args!("no daemon serves {name}"))
                .with_hint("mig-mps up PROFILE starts daemons")
        };
        Ok(Self::of(served.ok_or_else(missing)?))
    }

    pub(super) fn name(&self) -> &'n str {
        &self.served.record.name
    }

    /// Returns the environment of a client that inherits the caller's. The caller's own memory limit holds, unless there is
    /// another one; refuses one that cannot be read.
    pub(super) fn variables_over_own(
        &self,
        environment: &Environment,
        limits: &ClientLimits,
    ) -> Result<Variables> {
        let record = &self.served.record;
        let memory = match limits.memory {
            None => {
                // CUDA takes the tighter one.
                let device = record.settings.pinned_memory_limit;
                own_memory(record)?.map(|own| device.map_or(own, |device| device.min(own)))
            }
            asked_for => asked_for,
        };
        self.variables(environment, &ClientLimits { memory, ..*limits })
    }

    /// Returns the environment of its clients. Refuses limits above those of the device.
    pub(super) fn variables(
        &self,
        environment: &Environment,
        limits: &ClientLimits,
    ) -> Result<Variables> {
        let record = &self.served.record;
        limits.check(&record.settings)?;
        let logs = environment.logs_of(self.served.run_dir.path());
        Ok(Variables::of(record, &self.served.run_dir, logs, limits))
    }
}
