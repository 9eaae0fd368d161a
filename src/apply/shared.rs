//! The state that the threads of a run share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::context::{ApplyContext, OnFailure, Progress};
use super::journal::OpenJournal;
use super::names::NamesInUse;
use super::node_record::NodeRecord;
use crate::host::{Holder, Holders, Pid};
use crate::mps::Daemon;
use crate::node::{Gpu, Served};
use crate::nvml::{Nvml, NvmlError, Session};
use crate::state::{DeviceRecord, RunDir};

/// The state that the threads of one run share.
pub(super) struct Shared<'a> {
    pub(super) context: &'a ApplyContext<'a>,
    pub(super) run_dir: RunDir,
    pub(super) node_record: NodeRecord,
    pub(super) journal: OpenJournal,
    /// `None` if the driver did not answer when the plan was made.
    pub(super) nvml: Option<Nvml>,
    pub(super) progress: &'a dyn Progress,
    pub(super) stop_here: AtomicBool,
    /// Held while a daemon is stopped: 8 stopped at once take 3.5 times as long as one after another.
    pub(super) stopping: Mutex<()>,
    pub(super) names_in_use: NamesInUse,
    pub(super) on_failure: OnFailure,
}

impl<'a> Shared<'a> {
    pub(super) fn nvml(&self) -> Result<Nvml, NvmlError> {
        self.nvml.ok_or(NvmlError::NotAsked)
    }

    /// Asks NVML about a device.
    pub(super) fn nvml_on<T: Send + 'static>(
        &self,
        device: &str,
        call: impl FnOnce(&Session, &str) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<T, NvmlError> {
        let device = device.to_owned();
        self.nvml()?.supervise(move |nvml| call(nvml, &device))
    }

    /// The device with that UUID, if this run directory has its record.
    pub(super) fn served(&self, uuid: &str) -> Option<&'a Served> {
        let mut served = self.context.node.served.iter();
        served.find(|served| served.record.uuid == uuid && served.run_dir == self.run_dir)
    }

    /// The device with that UUID, if its record cannot be read.
    pub(super) fn lost(&self, uuid: &str) -> Option<&'a Served> {
        let mut lost = self.context.node.lost_records.iter();
        lost.find(|served| served.record.uuid == uuid && served.run_dir == self.run_dir)
    }

    /// True if another GPU's failure, or the user, makes going on pointless.
    pub(super) fn is_over(&self) -> bool {
        self.stop_here.load(Ordering::Relaxed) || self.context.environment.interrupt.is_asked()
    }

    /// Ends the run on every GPU, if a failure is to undo it.
    pub(super) fn fail(&self) {
        if self.on_failure == OnFailure::RollBack {
            self.stop_here.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn daemon(&self, record: &DeviceRecord) -> Daemon {
        self.daemon_of(&record.uuid)
            .serving(record.settings.serve.as_ref())
    }

    pub(super) fn daemon_of(&self, uuid: &str) -> Daemon {
        Daemon::new(
            self.context.programs.clone(),
            self.context.node.control_program(),
            self.run_dir.pipe_dir(uuid),
            self.context.directories.log.join(uuid),
        )
    }

    /// The processes that use a GPU or MIG device, for an error message: those that NVML lists, then those that have
    /// the GPU's device node open. Omits what cannot be determined.
    pub(super) fn holders_of(&self, gpu: Option<&Gpu>, device: &str) -> Vec<Holder> {
        let processes = self.nvml_on(device, Session::read_processes);
        let mut holders: Vec<Holder> = processes
            .map(|processes| processes.compute)
            .unwrap_or_default()
            .iter()
            .filter_map(|usage| self.context.environment.host.holder(Pid(usage.pid)))
            .collect();
        for holder in self.open_by(gpu).unwrap_or_default().seen {
            if holders.iter().all(|other| other.pid != holder.pid) {
                holders.push(holder);
            }
        }
        holders
    }

    /// The processes that have the GPU's device node open. The node's number may have changed with the
    /// MIG mode.
    pub(super) fn open_by(&self, gpu: Option<&Gpu>) -> Option<Holders> {
        let minor = self.nvml_on(&gpu?.uuid, Session::minor_number);
        self.context.environment.host.holders(minor.ok()?).ok()
    }
}
