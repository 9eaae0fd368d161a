use thiserror::Error;

use super::detail::Detail;
use super::hardware::read_hardware;
use super::records::{has_journal, marks, read_records};
use super::remembered::Answers;
use super::{daemons, outside_mps, strays, unmanaged};
use crate::host::Environment;
use crate::node::snapshot::Node;
use crate::nvml::{Nvml, NvmlError, Watched};
use crate::state::RunDir;

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
    Proc(std::io::Error),
}

/// Takes one snapshot of the node.
pub fn observe(environment: &Environment, detail: Detail) -> Result<Node, ObserveError> {
    Observer::new(environment).observe(detail)
}

/// Takes one snapshot after another, and asks only daemons that have changed.
pub struct Observer<'a> {
    environment: &'a Environment,
    nvml: Option<Nvml>,
    answers: Answers,
}

impl<'a> Observer<'a> {
    /// Returns an observer that has asked no daemon yet.
    pub fn new(environment: &'a Environment) -> Self {
        Self {
            environment,
            nvml: None,
            answers: Answers::default(),
        }
    }

    /// Takes a snapshot of the node.
    pub fn observe(&mut self, detail: Detail) -> Result<Node, ObserveError> {
        let mut retries = if detail.is_retried() { RETRIES } else { 0 };
        loop {
            let before = marks(self.environment);
            let node = self.observe_once(detail)?;
            if retries == 0 || marks(self.environment) == before {
                return Ok(node);
            }
            retries -= 1;
        }
    }

    fn observe_once(&mut self, detail: Detail) -> Result<Node, ObserveError> {
        let environment = self.environment;
        let (known, library) = (self.nvml, environment.nvml_library.clone());
        // After an interrupted change, every instance may be one of its leftovers.
        let all_instances = detail.reads_all_instances() || has_journal(environment);
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
        read_records(environment, &mut node);
        let nvml = nvml.or_else(Watched::wait)?;
        self.nvml = Some(nvml);
        let hardware = read_hardware(nvml, detail, all_instances)?;
        node.driver = hardware.driver;
        node.gpus = hardware.gpus;
        node.hidden.extend(hardware.hidden);
        node.lost = hardware.lost;
        node.processes = hardware.processes;
        // Read last, so that it has every server that NVML lists.
        let table = environment.host.processes().map_err(ObserveError::Proc)?;
        daemons::observe(environment, &table, detail, &mut node, &mut self.answers);
        if detail.reads_processes() {
            if let Ok(directories) = environment.directories() {
                let run_dir = RunDir::at(&directories.run);
                strays::find(&environment.host, &table, &run_dir, &mut node);
            }
            unmanaged::find(environment, &table, &mut node);
        }
        if detail.finds_outside_mps() {
            outside_mps::find(&environment.host, &table, nvml, &mut node);
        }
        Ok(node)
    }

    /// Does `work` with NVML closed: a process that has NVML open keeps every GPU from being reset.
    pub fn aside<T>(&self, work: impl FnOnce() -> T) -> Result<T, ObserveError> {
        match self.nvml {
            Some(nvml) => Ok(nvml.while_shut_down(work)?),
            None => Ok(work()),
        }
    }
}
