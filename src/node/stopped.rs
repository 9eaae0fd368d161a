//! Devices that `down` has stopped, and that cannot start as they were.

use super::{Device, LOST_GPU_REMEDY, NoSuchDevice, Node};
use crate::failure::Problem;
use crate::state::{DeviceKey, RunDir, StoppedDevice};

impl Node {
    /// Gives devices that `down` has stopped the names that they had.
    pub(super) fn name_stopped_devices(&mut self) {
        let unserved = self
            .devices
            .iter_mut()
            .filter(|device| device.served.is_none());
        for device in unserved {
            let mut stopped = self.stopped.iter().map(|(_, stopped)| &stopped.record);
            if let Some(record) = stopped.find(|record| record.key == device.key) {
                device.name.clone_from(&record.name);
            }
        }
    }

    /// Returns the record of a device that `down` has stopped, with its run directory.
    pub fn find_stopped(&self, device: &Device) -> Option<&(RunDir, StoppedDevice)> {
        if device.served.is_some() || !device.exists() {
            return None;
        }
        let is_its = |(_, stopped): &&(RunDir, StoppedDevice)| stopped.record.key == device.key;
        self.stopped.iter().find(is_its)
    }

    /// Returns the error for the name of a device that `down` has stopped and no daemon serves.
    pub fn stopped_error(&self, name: &str) -> Option<NoSuchDevice> {
        let (_, stopped) = self.stopped_named(name)?;
        self.served_named(name).is_none().then(|| stopped.error())
    }

    /// Returns the device that `down` has stopped under this name, with its run directory.
    pub fn stopped_named(&self, name: &str) -> Option<&(RunDir, StoppedDevice)> {
        let is_its = |(_, stopped): &&(RunDir, StoppedDevice)| stopped.record.name == name;
        self.stopped.iter().find(is_its)
    }

    /// True for the name of a device that has a daemon, or had one until `down` stopped it.
    pub fn is_served_or_stopped(&self, name: &str) -> bool {
        self.served_named(name).is_some() || self.stopped_named(name).is_some()
    }

    /// Returns the stopped devices of whole GPUs that cannot start, with the reasons: a GPU is lost, not there, or in MIG mode.
    pub(super) fn unstartable_devices(&self) -> impl Iterator<Item = (&StoppedDevice, Problem)> {
        self.stopped.iter().filter_map(|(_, stopped)| {
            let key = &stopped.record.key;
            let is_replaced = |other: &DeviceKey| key.gpus().iter().any(|gpu| other.has_gpu(gpu));
            let mut served = self.served();
            let is_known = !self.has_no_driver() && key.instance.is_none();
            if !is_known || served.any(|served| is_replaced(&served.record.key)) {
                return None;
            }
            let mut gpus = stopped.record.gpus_with_indices();
            let problem = gpus.find_map(|(uuid, index)| self.problem_of_gpu(uuid, index))?;
            Some((stopped, problem))
        })
    }

    /// True for a stopped device that cannot start.
    pub fn is_unstartable(&self, name: &str) -> bool {
        let mut devices = self.unstartable_devices();
        devices.any(|(stopped, _)| stopped.record.name == name)
    }

    /// Returns the reason why a GPU, which had this index, is not there as a whole.
    fn problem_of_gpu(&self, uuid: &str, index: Option<u32>) -> Option<Problem> {
        match self.gpu_with_uuid(uuid) {
            Some(gpu) if gpu.in_mig_mode() => {
                let remedy = format!("run `{}` to disable MIG mode", self.up_command());
                let what = format!("GPU {} is in MIG mode", gpu.index);
                Some(Problem::new(what, remedy))
            }
            Some(_) => None,
            None => Some(self.absent_gpu_problem(uuid, index)),
        }
    }

    /// Returns the reason why a GPU, which had this index, cannot be seen: it is lost, or does not exist.
    pub fn absent_gpu_problem(&self, uuid: &str, index: Option<u32>) -> Problem {
        let mut lost = self.lost_gpus();
        match lost.find(|(lost, _)| Some(*lost) == index) {
            Some((gpu, why)) => Problem {
                gpu: Some(gpu),
                ..Problem::new(why, LOST_GPU_REMEDY)
            },
            None => Problem::new(
                format!("{} does not exist", describe_former_gpu(uuid, index)),
                "run `mig-mps list` to see the GPUs",
            ),
        }
    }

    /// Returns the error for the name of such a device.
    pub(super) fn unstartable_error(&self, name: &str) -> Option<NoSuchDevice> {
        let mut devices = self.unstartable_devices();
        let stopped = devices.find(|(stopped, _)| stopped.record.name == name);
        let problem = match stopped {
            Some((_, problem)) => problem,
            None => self.incomplete_joint_problem(name)?,
        };
        Some(NoSuchDevice::Unstartable {
            device: name.to_owned(),
            why: problem.what,
            hint: problem.hint.unwrap_or_default(),
        })
    }

    /// Returns the reason why a joint device of an applied profile, which no daemon serves, does not start.
    fn incomplete_joint_problem(&self, name: &str) -> Option<Problem> {
        if self.has_no_driver() || self.served_named(name).is_some() {
            return None;
        }
        let absent = self.absent_joint_gpus(name);
        let first = absent.first()?;
        Some(self.absent_gpu_problem(&first.uuid, first.index))
    }
}

impl StoppedDevice {
    /// Returns the error of a command that needs its daemon.
    pub fn error(&self) -> NoSuchDevice {
        NoSuchDevice::Stopped {
            device: self.record.name.clone(),
            origin: self.origin.describe("at"),
        }
    }
}

/// `GPU-UUID (formerly GPU 3)`: another GPU may have the index now.
pub fn describe_former_gpu(uuid: &str, index: Option<u32>) -> String {
    match index {
        Some(index) => format!("{uuid} (formerly GPU {index})"),
        None => uuid.to_owned(),
    }
}
