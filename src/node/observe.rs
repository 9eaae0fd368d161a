use std::collections::BTreeMap;
use std::path::Path;

use thiserror::Error;

use super::{Gpu, Node, daemons};
use crate::environment::Environment;
use crate::nvml::{Code, Nvml, NvmlError, Processes};

/// Why nothing can be seen.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// NVML does not answer.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// `/proc` cannot be read: a daemon that lives could not be told from a dead one.
    #[error("cannot read /proc: {0}")]
    Proc(std::io::Error),
}

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// At GPUs, instances, and whether daemons live.
    Geometry,
    /// Also at servers, clients and who computes on each device. A control session costs the daemon
    /// log lines and 1 to 2 ms: one is opened only where NVML and `/proc` leave a question.
    Status,
    /// The same, with every daemon asked: for deciding whom a change would disturb.
    Close,
}

/// Looks at the node.
///
/// # Errors
/// [`ObserveError`]: without NVML or `/proc` nothing true can be said.
pub fn observe(environment: &Environment, look: Look) -> Result<Node, ObserveError> {
    let library = environment.nvml_library.clone();
    // The hardware answers while the records are read. The thread ends by NVML's own limits.
    let hardware = std::thread::spawn(move || read_hardware(library.as_deref(), look));
    let mut node = Node {
        boot_id: environment.host.boot_id().map_err(ObserveError::Proc)?,
        ..Node::default()
    };
    daemons::read_records(environment, &mut node);
    let hardware = hardware
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    node.driver = hardware.driver;
    node.gpus = hardware.gpus;
    node.hidden.extend(hardware.hidden);
    node.processes = hardware.processes;
    // Read last: a server that NVML lists is then seen, and asked for its clients.
    let table = environment.host.processes().map_err(ObserveError::Proc)?;
    daemons::look(environment, &table, look, &mut node);
    Ok(node)
}

#[derive(Default)]
struct Hardware {
    driver: String,
    gpus: Vec<Gpu>,
    processes: BTreeMap<String, Processes>,
    hidden: Vec<String>,
}

fn read_hardware(library: Option<&Path>, look: Look) -> Result<Hardware, NvmlError> {
    let nvml = Nvml::open(library)?;
    let (driver, count) =
        nvml.supervise(|session| Ok((session.driver_version()?, session.gpu_count()?)))?;
    let mut hardware = Hardware {
        driver,
        ..Hardware::default()
    };
    for index in 0..count {
        let read = nvml.supervise(move |session| {
            let mut hidden = Vec::new();
            let mut gpu = Gpu::new(session.read_gpu(index)?);
            if look != Look::Status && gpu.mig.is_some() {
                gpu.resetless = session.changes_without_reset(&gpu.uuid).ok();
            }
            if gpu.in_mig_mode() {
                match session.read_instances(&gpu.uuid, &gpu.profiles) {
                    Ok(instances) => gpu.instances = instances,
                    Err(error) if error.code() == Some(Code::NO_PERMISSION) => {
                        gpu.hidden = Some(error.to_string());
                    }
                    Err(error) => return Err(error),
                }
            }
            let mut processes = BTreeMap::new();
            if look != Look::Geometry {
                for device in gpu.devices() {
                    match session.read_processes(&device.uuid) {
                        Ok(read) => drop(processes.insert(device.uuid, read)),
                        Err(error) => hidden.push(format!("processes of {}: {error}", device.uuid)),
                    }
                }
            }
            Ok((gpu, processes, hidden))
        });
        let (gpu, processes, hidden) = match read {
            Ok(read) => read,
            // A GPU that is lost must not hide the others.
            Err(error) if error.code().is_some() => {
                hardware.hidden.push(error.to_string());
                continue;
            }
            Err(error) => return Err(error),
        };
        hardware.gpus.push(gpu);
        hardware.processes.extend(processes);
        hardware.hidden.extend(hidden);
    }
    Ok(hardware)
}
