//! Devices in containers, for `env` and `cdi`.

use super::env::{Recorded, refuse_bytes};
use crate::client::ClientLimits;
use crate::error::{Result, failed};
use crate::host::{Account, Environment, group_named};
use crate::integrate::{ContainerDevice, SharedMemory};
use crate::node::Served;
use crate::render::note;
use crate::settings::Serve;
use crate::state::DeviceRecord;

/// Returns a device as containers use it, with these limits for their programs.
pub(super) fn container_device(
    environment: &Environment,
    served: &Served,
    limits: &ClientLimits,
) -> Result<ContainerDevice> {
    let record = &served.record;
    let variables = Recorded::of(served).variables(environment, limits)?;
    refuse_bytes(&variables)?;
    let mut pipe = None;
    let mut set = Vec::new();
    for (name, value) in variables.set_alone() {
        let value = value.to_string_lossy().into_owned();
        match name {
            // A container has no use for the logs.
            "CUDA_MPS_LOG_DIRECTORY" => continue,
            "CUDA_MPS_PIPE_DIRECTORY" => pipe = Some(value.clone()),
            _ => {}
        }
        set.push((name, value));
    }
    let (mut user, mut group) = (None, None);
    match &record.settings.serve {
        Some(Serve::User(name)) => user = Account::named(name)?.map(|account| account.uid.0),
        Some(Serve::Group(name)) => group = Some(group_of(record, name)?),
        _ => {}
    }
    let driver = environment.host.driver_version();
    Ok(ContainerDevice {
        name: record.name.clone(),
        uuid: record.uuid.clone(),
        pipe: pipe.unwrap_or_default(),
        variables: set,
        user,
        group,
        memory: SharedMemory::of_driver(driver.as_deref()),
    })
}

/// Returns the id of the group that a device serves. Without it a container's programs would run outside MPS.
fn group_of(record: &DeviceRecord, name: &str) -> Result<u32> {
    let missing = || {
        failed(format_args!(
            "{} serves the group {name}, and this machine has no group of that name",
            record.name
        ))
        .hint("make the group again, or name another one in the profile, and apply it")
    };
    group_named(name)?.ok_or_else(missing)
}

/// Says what the text for containers cannot know.
pub(super) fn remark(memory: SharedMemory) {
    if memory == SharedMemory::Unknown {
        note(
            "The driver's version cannot be read. Before driver 580 a container must share /dev/shm with the host (--ipc host).",
        );
    }
}
