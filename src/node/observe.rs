use std::collections::BTreeMap;

use thiserror::Error;

use super::answers::Answers;
use super::{Gpu, Node, daemons, foreign, outside, strays};
use crate::host::Environment;
use crate::nvml::{Code, Nvml, NvmlError, Opening, Processes, Session};
use crate::state::RunDir;

/// How often `status` looks again when records have changed while it looked: a change of one device writes
/// them at most so often.
const TRIES: u32 = 4;

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
    /// At GPUs, instances, and whether daemons live. What a GPU offers whose MIG mode is off is not asked.
    Geometry,
    /// At geometry, and at what every GPU offers and how much of it would fit now.
    Offers,
    /// Also at servers, clients, who computes on each device, and foreign daemons; but not at what GPUs offer
    /// beyond their MIG devices. A control session costs the daemon log lines and 1 to 2 ms: one is
    /// opened only where NVML and `/proc` leave a question.
    Status,
    /// At geometry, servers and clients, with every daemon asked: for deciding whom a change would disturb.
    Clients,
    /// As closely, and at what daemons give to their servers, and at foreign daemons: for deciding what is to be
    /// changed.
    Close,
    /// As closely, and at what every GPU offers: for deciding where instances may lie.
    Plan,
}

impl Look {
    /// Whether at what GPUs offer outside MIG mode.
    fn at_offers(self) -> bool {
        matches!(self, Self::Offers | Self::Plan)
    }

    /// Whether at who computes.
    pub(super) fn at_processes(self) -> bool {
        !matches!(self, Self::Geometry | Self::Offers)
    }
}

/// Looks at the node once.
///
/// # Errors
/// [`ObserveError`]: without NVML or `/proc` nothing true can be said.
pub fn observe(environment: &Environment, look: Look) -> Result<Node, ObserveError> {
    Observer::new(environment).look(look)
}

/// Somebody who looks at the node again and again, and asks daemons only where something has changed.
pub struct Observer<'a> {
    environment: &'a Environment,
    nvml: Option<Nvml>,
    answers: Answers,
}

impl<'a> Observer<'a> {
    /// One who has seen nothing yet.
    pub fn new(environment: &'a Environment) -> Self {
        Self {
            environment,
            nvml: None,
            answers: Answers::default(),
        }
    }

    /// Looks at the node.
    ///
    /// # Errors
    /// [`ObserveError`]: without NVML or `/proc` nothing true can be said.
    pub fn look(&mut self, look: Look) -> Result<Node, ObserveError> {
        // Whoever plans holds the lock; who only reads takes none, and another's change may come in between.
        let mut again = if look == Look::Status { TRIES } else { 0 };
        loop {
            let before = daemons::marks(self.environment);
            let node = self.look_once(look)?;
            if again == 0 || daemons::marks(self.environment) == before {
                return Ok(node);
            }
            again -= 1;
        }
    }

    fn look_once(&mut self, look: Look) -> Result<Node, ObserveError> {
        let environment = self.environment;
        let (known, library) = (self.nvml, environment.nvml_library.clone());
        // What an interrupted change has left is told by everything that is there.
        let instances_too = look != Look::Status || daemons::has_journal(environment);
        // NVML is opened while the records are read, and the hardware is read after them: a device is made
        // before its record.
        let nvml = match known {
            Some(nvml) => Ok(nvml),
            None => Err(Nvml::start_opening(library.as_deref())?),
        };
        let mut node = Node {
            boot_id: environment.host.boot_id().map_err(ObserveError::Proc)?,
            ..Node::default()
        };
        daemons::read_records(environment, &mut node);
        let nvml = nvml.or_else(Opening::wait)?;
        self.nvml = Some(nvml);
        let hardware = read_hardware(nvml, look, instances_too)?;
        node.driver = hardware.driver;
        node.gpus = hardware.gpus;
        node.hidden.extend(hardware.hidden);
        node.lost = hardware.lost;
        node.processes = hardware.processes;
        // Read last: a server that NVML lists is then seen, and asked for its clients.
        let table = environment.host.processes().map_err(ObserveError::Proc)?;
        daemons::look(environment, &table, look, &mut node, &mut self.answers);
        if look.at_processes()
            && let Ok(home) = environment.home()
        {
            strays::find(&environment.host, &table, &RunDir::at(&home.run), &mut node);
        }
        if look.at_processes() {
            foreign::find(environment, &table, &mut node);
        }
        if look == Look::Status {
            outside::find(&environment.host, &table, nvml, &mut node);
        }
        Ok(node)
    }

    /// Does something while this process holds no GPU: whoever has NVML open keeps every GPU from being reset.
    ///
    /// # Errors
    /// Where NVML does not close, or not open again.
    pub fn aside<T>(&self, work: impl FnOnce() -> T) -> Result<T, ObserveError> {
        match self.nvml {
            Some(nvml) => Ok(nvml.while_shut_down(work)?),
            None => Ok(work()),
        }
    }
}

#[derive(Default)]
struct Hardware {
    driver: String,
    gpus: Vec<Gpu>,
    processes: BTreeMap<String, Processes>,
    hidden: Vec<String>,
    lost: Vec<String>,
}

fn read_hardware(nvml: Nvml, look: Look, instances_too: bool) -> Result<Hardware, NvmlError> {
    let (driver, count) =
        nvml.supervise(|session| Ok((session.driver_version()?, session.gpu_count()?)))?;
    let mut hardware = Hardware {
        driver,
        ..Hardware::default()
    };
    nvml.find(count)?;
    for index in 0..count {
        let read = nvml.supervise(move |session| read_all(session, index, look, instances_too));
        let read = match read {
            Ok(read) => read,
            // A GPU that is lost must not hide the others.
            Err(error) if error.code().is_some() => {
                hardware.lost.push(error.to_string());
                hardware.hidden.push(error.to_string());
                continue;
            }
            Err(error) => return Err(error),
        };
        hardware.gpus.push(read.gpu);
        hardware.processes.extend(read.processes);
        hardware.hidden.extend(read.hidden);
    }
    Ok(hardware)
}

/// A GPU, who computes on each of its devices, and what of that is hidden.
struct GpuReading {
    gpu: Gpu,
    processes: BTreeMap<String, Processes>,
    hidden: Vec<String>,
}

/// Reads a GPU, and reads it again if a device goes away in between: another command may be destroying it.
fn read_all(
    session: &Session,
    index: u32,
    look: Look,
    instances_too: bool,
) -> Result<GpuReading, NvmlError> {
    let is_gone = |error: &NvmlError| error.code() == Some(Code::NOT_FOUND);
    for _ in 1..TRIES {
        match read_once(session, index, look, instances_too) {
            Err(error) if is_gone(&error) => {}
            read => return read,
        }
    }
    read_once(session, index, look, instances_too)
}

fn read_once(
    session: &Session,
    index: u32,
    look: Look,
    instances_too: bool,
) -> Result<GpuReading, NvmlError> {
    let mut gpu = read_gpu(session, index, look, instances_too)?;
    if look != Look::Status && gpu.mig.is_some() {
        gpu.resetless = session.changes_without_reset(&gpu.uuid).ok();
    }
    let mut processes = BTreeMap::new();
    let mut hidden = Vec::new();
    if look.at_processes() {
        for device in gpu.devices() {
            match session.read_processes(&device.uuid) {
                Ok(read) => drop(processes.insert(device.uuid, read)),
                Err(error) if error.code() == Some(Code::NO_PERMISSION) => {
                    hidden.push(format!(
                        "who computes on {}, which the driver shows to root alone",
                        device.default_name
                    ));
                }
                Err(error) if error.code() == Some(Code::NOT_FOUND) => return Err(error),
                Err(error) => hidden.push(format!("processes of {}: {error}", device.uuid)),
            }
        }
    }
    if look.at_processes() && !gpu.in_mig_mode() {
        gpu.compute_mode = session.compute_mode(&gpu.uuid).ok();
    }
    if look == Look::Status && !gpu.in_mig_mode() {
        gpu.utilization = session.utilization(&gpu.uuid);
    }
    Ok(GpuReading {
        gpu,
        processes,
        hidden,
    })
}

/// A GPU with all its instances and what it offers, or with its MIG devices alone.
fn read_gpu(
    session: &Session,
    index: u32,
    look: Look,
    instances_too: bool,
) -> Result<Gpu, NvmlError> {
    let reading = if instances_too {
        session.read_gpu(index)?
    } else {
        session.read_gpu_briefly(index)?
    };
    let in_mig_mode = reading.mig.is_some_and(|mode| mode.current);
    let offers = if look.at_offers() || (instances_too && in_mig_mode) {
        session.offers(&reading)?
    } else {
        Vec::new()
    };
    let mut gpu = Gpu::new(reading, offers);
    if look == Look::Offers {
        for profile in &mut gpu.profiles {
            profile.free = session.free(&gpu.uuid, profile.id);
        }
    }
    if !in_mig_mode {
        return Ok(gpu);
    }
    let instances = if instances_too {
        session.read_instances(&gpu.uuid, &gpu.profiles)
    } else {
        session.read_mig_devices(&gpu.uuid)
    };
    match instances {
        Ok(instances) => gpu.instances = instances,
        Err(error) if error.code() == Some(Code::NO_PERMISSION) => {
            gpu.hidden = Some(error.to_string());
        }
        Err(error) => return Err(error),
    }
    if !instances_too {
        let ids = gpu.instances.iter().map(|instance| instance.profile);
        gpu.profiles = session.profiles_in_use(&gpu.uuid, &ids.collect())?;
    }
    Ok(gpu)
}
