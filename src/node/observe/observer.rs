//! Takes snapshots with as much detail as is asked for, and remembers daemons that do not answer.
//!
//! Devices can be looked at without the driver: programs start often, and soon.

use std::time::Duration;

use thiserror::Error;

use super::daemon_session::{ANSWER_TIMEOUT, observe_daemons};
use super::hardware::{ProcessLists, finish_utilizations, read_hardware, start_utilizations};
use super::records::{node_from_records, read_records};
use super::{idle_pods, jobs, outside_mps, unmanaged};
use crate::failure::Failure;
use crate::host::{Environment, FileError, Fingerprint, Holder, Host, ProcessTable};
use crate::mps::read_mps_table;
use crate::node::access::find_access_faults;
use crate::node::{Device, Node, Unseen};
use crate::nvml::{Nvml, NvmlError, Processes, Watched};
use crate::state::{ProfileHistory, RunDir};

/// The parts of a snapshot that are read in addition to the records, the GPUs with their MIG devices, and the running daemons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is something that is read or not"
)]
pub struct Detail {
    /// GPU instances without MIG devices.
    pub all_instances: bool,
    /// The profiles that every GPU offers, whatever its MIG mode and instances; without it only those in use.
    pub offers: bool,
    /// The number of instances of each profile that would fit now.
    pub free: bool,
    /// The processes on each device, servers, clients, and MPS programs that mig-mps does not manage.
    pub ask: Ask,
    /// Programs that compute outside MPS, and the workloads of clients.
    pub outside_mps: bool,
    /// The utilization of whole GPUs.
    pub utilization: bool,
    /// The facts about GPUs that only `doctor` needs.
    pub facts: bool,
    /// The health of GPUs, from the driver and from the kernel's log.
    pub health: bool,
}

/// The daemons that are asked for their servers, clients and settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ask {
    /// None, and the processes on devices are not read.
    #[default]
    Nobody,
    /// Those whose state NVML and `/proc` do not tell, and that have changed since their last answer: a control session
    /// costs the daemon log lines and 1 to 2 ms.
    IfNeeded,
    /// Every daemon that the observer is to ask. A daemon that has answered this process shortly before is not asked again if no
    /// visible sign has changed since. Only an answer has the settings that are in force.
    Each,
}

impl Detail {
    /// Enough to find devices and the daemons that run.
    pub const GEOMETRY: Self = Self {
        all_instances: true,
        offers: false,
        free: false,
        ask: Ask::Nobody,
        outside_mps: false,
        utilization: false,
        facts: false,
        health: false,
    };
    /// Enough to list GPUs and what they offer.
    pub const OFFERS: Self = Self {
        offers: true,
        free: true,
        ..Self::GEOMETRY
    };
    /// Everything that people see, without the utilization: the driver takes 3 ms a GPU for that, one after another.
    pub const STATUS: Self = Self {
        all_instances: false,
        ask: Ask::IfNeeded,
        outside_mps: true,
        health: true,
        ..Self::GEOMETRY
    };
    /// Everything that can be wrong.
    pub const DOCTOR: Self = Self {
        ask: Ask::Each,
        facts: true,
        ..Self::STATUS
    };
    /// Enough to plan changes of daemons, with the clients that they would disrupt.
    pub const CLIENTS: Self = Self {
        ask: Ask::Each,
        ..Self::GEOMETRY
    };
    /// Enough to plan changes of instances.
    pub const PLAN: Self = Self {
        offers: true,
        ..Self::CLIENTS
    };

    /// True if the processes on each device are read, and with them servers and clients.
    pub fn reads_processes(self) -> bool {
        self.ask != Ask::Nobody
    }

    /// True if the job, pod or container of each client is read.
    pub(super) fn reads_workloads(self) -> bool {
        self.outside_mps || self.ask == Ask::Each
    }
}

/// Retries of a snapshot during which records changed. A change of one device writes them at most this often.
const RETRIES: u32 = 4;

/// The node cannot be read.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// NVML does not answer.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// `/proc` cannot be read: running daemons could not be distinguished from dead ones.
    #[error("cannot read /proc: {0}")]
    Proc(FileError),
}

impl ObserveError {
    /// True if there is no driver to ask here, as on a machine that builds or tests.
    pub fn has_no_driver(&self) -> bool {
        match self {
            Self::Nvml(error) => error.has_no_driver(),
            Self::Proc(_) => true,
        }
    }
}

impl Failure for ObserveError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Nvml(error) => error.hint(),
            Self::Proc(_) => Some("run `mount -t proc proc /proc` to mount it".to_owned()),
        }
    }
}

/// Takes one snapshot of the node.
pub fn observe(environment: &Environment, detail: Detail) -> Result<Node, ObserveError> {
    Observer::new(environment).observe(detail)
}

/// Takes one snapshot after another.
pub struct Observer<'a> {
    environment: &'a Environment,
    nvml: Option<Nvml>,
    /// True if a snapshot is of use even if the driver does not answer.
    does_without_driver: bool,
    /// The driver's failure, which is not waited for again.
    failure: Option<NvmlError>,
    /// The devices that [`Ask::Each`] means; all if there are none.
    asked: Option<&'a dyn SelectDevices>,
}

/// A selection of devices, as on a command line.
pub trait SelectDevices {
    /// Returns the names of the selected devices of a node; `None` for all, or if the selection does not fit the node.
    fn select(&self, node: &Node) -> Option<Vec<String>>;
}

impl<'a> Observer<'a> {
    /// Returns an observer that has not opened NVML yet.
    pub fn new(environment: &'a Environment) -> Self {
        Self {
            environment,
            nvml: None,
            does_without_driver: false,
            failure: None,
            asked: None,
        }
    }

    /// Asks only the daemons of the selected devices, and the others if needed: a change of one device depends on no settings of
    /// others.
    pub fn asking_only(self, devices: &'a dyn SelectDevices) -> Self {
        Self {
            asked: Some(devices),
            ..self
        }
    }

    /// Makes snapshots from records and `/proc` alone once the driver does not answer.
    pub fn without_driver(self) -> Self {
        Self {
            does_without_driver: true,
            ..self
        }
    }

    /// Takes a snapshot of the node.
    pub fn observe(&mut self, detail: Detail) -> Result<Node, ObserveError> {
        for _ in 0..RETRIES {
            let before = self.record_fingerprints();
            let node = self.observe_once(detail)?;
            if self.record_fingerprints() == before {
                return Ok(node);
            }
        }
        self.observe_once(detail)
    }

    /// Returns the fingerprints of every record and journal.
    fn record_fingerprints(&self) -> Vec<Fingerprint> {
        RunDir::all(self.environment)
            .into_iter()
            .flat_map(|run_dir| run_dir.record_fingerprints())
            .collect()
    }

    fn observe_once(&mut self, detail: Detail) -> Result<Node, ObserveError> {
        let environment = self.environment;
        // After an interrupted change, every instance may be one of its leftovers.
        let mut run_dirs = RunDir::all(environment).into_iter();
        let all_instances = detail.all_instances || run_dirs.any(|run_dir| run_dir.has_journal());
        // NVML is opened while the records are read, and the hardware is read after them: a device is made
        // before its record.
        let opening = match (self.nvml, &self.failure) {
            (None, None) => Some(Nvml::start_opening(environment.nvml_library.as_deref())?),
            _ => None,
        };
        let history = ProfileHistory::load_for_changes(environment).ok();
        let mut node = Node {
            host: Some(environment.host.clone()),
            boot_id: environment.host.boot_id().map_err(ObserveError::Proc)?,
            has_default_profile: detail.reads_processes()
                && history
                    .as_ref()
                    .is_some_and(|history| history.is_default(environment)),
            joint_before: history
                .map_or_else(Vec::new, |history| history.profiles_with_joint_devices()),
            detail,
            ..Node::default()
        };
        read_records(environment, &mut node);
        let read = Detail {
            all_instances,
            ..detail
        };
        let processes = self.read_driver(opening, read, &mut node)?;
        // The driver takes 3 ms for that of one GPU, one after another: daemons are asked meanwhile.
        let utilizations = match self.nvml {
            Some(nvml) if detail.utilization => start_utilizations(nvml, &node),
            _ => Vec::new(),
        };
        node.join();
        for device in &mut node.devices {
            device.processes = processes_on(&processes, device);
        }
        // Read last, so that it has every server that NVML lists.
        let table = read_mps_table(&environment.host).map_err(ObserveError::Proc)?;
        self.observe_processes(&table, detail, &mut node);
        node.mps_table = Some(table);
        if detail.health {
            node.xids = Some(environment.host.recent_xids());
        }
        finish_utilizations(utilizations, &mut node);
        Ok(node)
    }

    /// Finds out what daemons, servers, clients and others do.
    fn observe_processes(&self, table: &ProcessTable, detail: Detail, node: &mut Node) {
        let environment = self.environment;
        unmanaged::find_unrecorded(environment, table, node);
        let asked = self.asked.and_then(|devices| devices.select(node));
        let asked = asked.as_deref();
        observe_daemons(environment, table, detail, asked, ANSWER_TIMEOUT, node);
        find_access_faults(environment, node);
        if detail.reads_workloads() {
            idle_pods::find_idle(environment, node);
        }
        if detail.reads_processes() {
            if let Ok(directories) = environment.directories() {
                let run_dir = RunDir::at(&directories.run);
                outside_mps::find_strays(&environment.host, table, &run_dir, node);
            }
            unmanaged::find_daemons(environment, table, node);
            find_strangers(&environment.host, node);
        }
        if detail.outside_mps
            && let Some(nvml) = self.nvml
        {
            outside_mps::find_programs(&environment.host, table, nvml, node);
        }
        if detail.reads_workloads() {
            jobs::name_recorded(environment, node);
        }
    }

    /// Reads the hardware. Where a node without it is of use, a driver that does not answer is no error.
    fn read_driver(
        &mut self,
        opening: Option<Watched<Nvml>>,
        detail: Detail,
        node: &mut Node,
    ) -> Result<ProcessLists, NvmlError> {
        let opened = match (&self.failure, opening) {
            (Some(known), _) => Err(known.clone()),
            (None, Some(opening)) => opening.wait().map(Some),
            (None, None) => Ok(self.nvml),
        };
        let read = opened.and_then(|opened| {
            self.nvml = opened;
            opened.map_or(Ok(ProcessLists::new()), |nvml| {
                read_hardware(nvml, detail, node)
            })
        });
        let has_records = !node.devices.is_empty();
        let is_of_use = detail.facts
            || has_records && (self.does_without_driver || detail.ask == Ask::IfNeeded);
        let failure = match read {
            Err(failure) if is_of_use || self.failure.is_some() => failure,
            read => return read,
        };
        if self.does_without_driver {
            self.failure = Some(failure.clone());
        }
        self.nvml = None;
        node.unseen.push(Unseen::Driver(Some(failure)));
        Ok(ProcessLists::new())
    }

    /// Does `work` with NVML closed: a process that has NVML open keeps every GPU from being reset.
    pub fn with_nvml_closed<T>(&self, work: impl FnOnce() -> T) -> Result<T, ObserveError> {
        match self.nvml {
            Some(nvml) => Ok(nvml.while_shut_down(work)?),
            None => Ok(work()),
        }
    }
}

/// Reads the records alone, which says nothing about daemons.
pub fn observe_records(environment: &Environment) -> Result<Node, ObserveError> {
    let boot_id = environment.host.boot_id().map_err(ObserveError::Proc)?;
    Ok(node_from_records(environment, boot_id))
}

/// Finds out the states of a node's daemons without the driver, from their processes and control sessions, in each of which
/// a daemon may take up to `limit` to answer. Servers and clients are found, too.
pub fn observe_without_driver(environment: &Environment, node: &mut Node, limit: Duration) {
    node.driver = environment.host.driver_version().unwrap_or_default();
    node.fill_client_limits();
    let daemons = node.served().filter_map(|served| served.record.daemon);
    let table = environment
        .host
        .process_families(daemons.map(|daemon| daemon.pid));
    observe_daemons(environment, &table, node.detail, None, limit, node);
}

/// Takes the processes on a device from those that were read; `None` if they are hidden on one of its GPUs.
fn processes_on(read: &ProcessLists, device: &Device) -> Option<Processes> {
    if !device.key.is_joint() || !device.exists() {
        return read.get(&device.uuid).cloned();
    }
    let gpus = device.joint_gpus.iter().copied().zip(&device.key.joint);
    let each: Option<Vec<_>> = gpus
        .map(|(index, uuid)| Some((index, read.get(uuid)?.clone())))
        .collect();
    Some(Processes::of_several_gpus(each?.into_iter()))
}

/// Finds the processes on devices that are no clients.
fn find_strangers(host: &Host, node: &mut Node) {
    for device in &mut node.devices {
        let pids = device.processes_outside_mps();
        let processes = pids.iter().filter_map(|pid| host.find_process(*pid));
        device.strangers = processes
            .map(|process| Holder::from_process(&process))
            .collect();
    }
}
