//! The devices that a program of the caller would see without mig-mps: those in `CUDA_VISIBLE_DEVICES`, or those that Slurm
//! has given to the job.

use std::collections::BTreeSet;
use std::path::Path;

use thiserror::Error;

use crate::failure::{ExitStatus, Failure, Problem};
use crate::host::shorten_command;
use crate::node::{Device, Gpu, LOST_GPU_REMEDY, Node};
use crate::state::{DeviceRecord, RunDir};

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The variables that name the devices; the first one that is set counts. Slurm's variables contain the numbers of device files.
const VARIABLES: [&str; 3] = [VISIBLE, "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];

/// The words for no device: CUDA's, and Slurm's for a job without GPUs.
const NO_DEVICE_WORDS: [&str; 3] = ["", "-1", "NoDevFiles"];

/// The reason why it is unknown which devices the caller may use.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NotVisible {
    #[error("the driver shows no device")]
    NoDevice,
    #[error("{variable} is \"{value}\", which selects no device")]
    Empty {
        variable: &'static str,
        value: String,
    },
    #[error("{variable} is \"{value}\", which selects no GPU of device {device}")]
    NoGpuOf {
        variable: &'static str,
        value: String,
        device: String,
    },
    #[error("{variable} contains \"{word}\", but {}", problem.what)]
    Unknown {
        variable: &'static str,
        word: String,
        problem: Box<Problem>,
    },
    #[error(
        "{variable} contains the number {number}, which selects no device while a GPU is in MIG mode"
    )]
    Mig {
        variable: &'static str,
        number: usize,
    },
    #[error(
        "{VISIBLE} contains the number {0}, which is ambiguous: the GPUs differ, and CUDA numbers the fastest first"
    )]
    Order(usize),
}

impl Failure for NotVisible {
    fn status(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoGpuOf { variable, .. } => {
                return Some(if *variable == VISIBLE {
                    format!("set {variable} to GPUs of the device, or unset it")
                } else {
                    "use a device on a GPU of the job: `mig-mps status` shows the GPUs of each device".to_owned()
                });
            }
            Self::NoDevice => "run `mig-mps doctor` to find out why a GPU is not visible",
            Self::Empty { .. } => "request a GPU from Slurm, or set CUDA_VISIBLE_DEVICES to one",
            Self::Unknown { problem, .. } => return problem.hint.clone(),
            Self::Mig { .. } => "set CUDA_VISIBLE_DEVICES to UUIDs, which `mig-mps list` shows",
            Self::Order(_) => "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to UUIDs",
        };
        Some(hint.to_owned())
    }
}

/// The list of devices in a variable of the caller, as far as CUDA reads it.
#[derive(Debug)]
pub struct DeviceList {
    pub variable: &'static str,
    value: String,
    words: Vec<String>,
    /// The word at which CUDA ends the list.
    pub end: Option<String>,
    is_in_order: bool,
}

impl DeviceList {
    /// Reads the first variable that is set. In the environment of an MPS client, numbers are ordinals of its daemon.
    pub fn of_caller(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let (name, value) = VARIABLES
            .iter()
            .find_map(|name| Some((*name, variable(name)?)))?;
        let is_number = |word: &str| word.parse::<usize>().is_ok();
        let mut all = value.split(',').map(|word| word.trim().to_owned());
        let mut words: Vec<String> = all
            .clone()
            .take_while(|word| !NO_DEVICE_WORDS.contains(&word.as_str()))
            .collect();
        // A list has numbers or names: CUDA ends a list at a word of the other kind (measured on driver 580).
        let has_numbers = words.first().is_some_and(|word| is_number(word));
        let end = words.iter().position(|word| is_number(word) != has_numbers);
        words.truncate(end.unwrap_or(words.len()));
        if has_numbers
            && name == VISIBLE
            && let Some(pipe) = variable("CUDA_MPS_PIPE_DIRECTORY")
            && let Some(served) = devices_of_daemon(Path::new(&pipe))
        {
            let uuid = |ordinal: &String| served.get(ordinal.parse::<usize>().ok()?).cloned();
            words = words.iter().map_while(uuid).collect();
        }
        Some(Self {
            variable: name,
            value: shorten_command(&value).into_owned(),
            end: all.nth(words.len()),
            words,
            is_in_order: variable("CUDA_DEVICE_ORDER").as_deref() == Some("PCI_BUS_ID"),
        })
    }

    /// Returns the UUID of the GPU with a number, which may be a lost GPU of a joint device.
    fn uuid_with_number<'n>(
        &self,
        node: &'n Node,
        record: &'n DeviceRecord,
        number: usize,
    ) -> Result<Option<&'n String>, NotVisible> {
        if let Some(gpu) = self.gpu_with_number(node, number)? {
            return Ok(Some(&gpu.uuid));
        }
        // The driver reports no UUID of a lost GPU.
        let position = self
            .lost_gpus_with_number(node, number)
            .find_map(|(lost, _)| record.joint_gpus.iter().position(|own| *own == lost));
        Ok(position.and_then(|at| record.key.joint.get(at)))
    }

    /// Returns the positions of the GPUs of a joint device that are in the list, in order.
    fn gpus_of(&self, node: &Node, record: &DeviceRecord) -> Result<Vec<usize>, NotVisible> {
        let members = &record.key.joint;
        let mut found = BTreeSet::new();
        for word in &self.words {
            let uuid = match word.parse() {
                Ok(number) => self.uuid_with_number(node, record, number)?,
                Err(_) => uuid_that_begins(node, members, word),
            };
            let Some(uuid) = uuid else {
                self.check_exists(node, word)?;
                continue;
            };
            let Some(position) = members.iter().position(|own| own == uuid) else {
                continue;
            };
            if node.gpu_with_uuid(uuid).is_none() {
                let index = record.joint_gpus.get(position).copied();
                return Err(self.unknown(word, node.absent_gpu_problem(uuid, index)));
            }
            found.insert(position);
        }
        if found.is_empty() {
            return Err(NotVisible::NoGpuOf {
                variable: self.variable,
                value: self.value.clone(),
                device: record.name.clone(),
            });
        }
        Ok(found.into_iter().collect())
    }

    /// Returns the devices in the list, each once and in their order.
    fn devices<'n>(&self, node: &'n Node) -> Result<Vec<&'n Device>, NotVisible> {
        let variable = self.variable;
        let mut found: Vec<&Device> = Vec::new();
        for word in &self.words {
            for device in self.devices_for_word(node, word)? {
                if !found.iter().any(|known| known.uuid == device.uuid) {
                    found.push(device);
                }
            }
        }
        if found.is_empty() {
            let value = self.value.clone();
            return Err(NotVisible::Empty { variable, value });
        }
        Ok(found)
    }

    /// Returns the devices that a word of the list names.
    fn devices_for_word<'n>(
        &self,
        node: &'n Node,
        word: &str,
    ) -> Result<Vec<&'n Device>, NotVisible> {
        let (named, lost) = match word.parse() {
            Ok(number) => {
                let gpu = self.gpu_with_number(node, number)?;
                let of_gpu = |gpu: &Gpu| {
                    present_devices(node)
                        .filter(|device| device.key.has_gpu(&gpu.uuid))
                        .collect()
                };
                let lost = self.lost_gpus_with_number(node, number).next();
                (gpu.map_or_else(Vec::new, of_gpu), lost)
            }
            Err(_) => (devices_by_name(node, word), None),
        };
        if !named.is_empty() {
            return Ok(named);
        }
        Err(self.unknown(
            word,
            match lost {
                Some((_, why)) => Problem::new(why, LOST_GPU_REMEDY),
                None => Problem::new(
                    "there is no such device",
                    "run `mig-mps list` to see the devices",
                ),
            },
        ))
    }

    /// Refuses a word that names neither a device nor a lost GPU.
    fn check_exists(&self, node: &Node, word: &str) -> Result<(), NotVisible> {
        let number = word.parse().ok();
        if number.is_some_and(|number| self.lost_gpus_with_number(node, number).next().is_some()) {
            return Ok(());
        }
        self.devices_for_word(node, word).map(|_| ())
    }

    fn unknown(&self, word: &str, problem: Problem) -> NotVisible {
        NotVisible::Unknown {
            variable: self.variable,
            word: shorten_command(word).into_owned(),
            problem: Box::new(problem),
        }
    }

    /// Returns the lost GPUs that may have a number, with the driver's errors. The driver tells no file of a lost GPU.
    fn lost_gpus_with_number<'n>(
        &self,
        node: &'n Node,
        number: usize,
    ) -> impl Iterator<Item = (u32, &'n str)> {
        let has_files = self.has_file_numbers(node);
        let is_taken = node
            .gpus
            .iter()
            .any(|gpu| gpu.minor.is_some_and(|minor| minor as usize == number));
        let may_be = move |index: u32| {
            if has_files {
                !is_taken
            } else {
                index as usize == number
            }
        };
        node.lost_gpus().filter(move |(index, _)| may_be(*index))
    }

    /// True if the numbers are those of device files, and the driver reports these.
    fn has_file_numbers(&self, node: &Node) -> bool {
        self.variable != VISIBLE && node.gpus.iter().all(|gpu| gpu.minor.is_some())
    }

    /// Returns the GPU with a number: in CUDA's order, or with this number in the name of its file.
    fn gpu_with_number<'n>(
        &self,
        node: &'n Node,
        number: usize,
    ) -> Result<Option<&'n Gpu>, NotVisible> {
        let variable = self.variable;
        let is_of_cuda = variable == VISIBLE;
        if is_of_cuda && node.gpus.iter().any(Gpu::in_mig_mode) {
            return Err(NotVisible::Mig { variable, number });
        }
        let first = node.gpus.first().map(|gpu| &gpu.product);
        let is_other = |gpu: &Gpu| Some(&gpu.product) != first;
        if is_of_cuda && !self.is_in_order && node.gpus.iter().any(is_other) {
            return Err(NotVisible::Order(number));
        }
        let has_files = self.has_file_numbers(node);
        let has_number = |gpu: &&Gpu| {
            let own = if has_files {
                gpu.minor
            } else {
                Some(gpu.index)
            };
            own.is_some_and(|own| own as usize == number)
        };
        let found = node.gpus.iter().find(has_number);
        // Slurm may have counted its instances.
        if found.is_some_and(Gpu::in_mig_mode) {
            return Err(NotVisible::Mig { variable, number });
        }
        Ok(found)
    }
}

/// Returns the devices that a program of the caller may use, each once and in their order; all if no variable names some.
pub fn visible_devices(
    node: &Node,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<&Device>, NotVisible> {
    if let Some(list) = DeviceList::of_caller(variable) {
        return list.devices(node);
    }
    let all: Vec<&Device> = present_devices(node).collect();
    if all.is_empty() {
        return Err(NotVisible::NoDevice);
    }
    Ok(all)
}

/// Returns the positions of the GPUs of a device that a program of the caller may use: of a joint device, those that a
/// variable lists.
pub fn usable_gpus(
    node: &Node,
    record: &DeviceRecord,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<usize>, NotVisible> {
    if !record.key.is_joint() {
        return Ok(record.gpu_positions());
    }
    match DeviceList::of_caller(variable) {
        Some(list) => list.gpus_of(node, record),
        None => Ok(record.gpu_positions()),
    }
}

/// Returns the devices of the daemon with this pipe directory, by their ordinals, if mig-mps has started the daemon.
fn devices_of_daemon(pipe: &Path) -> Option<Vec<String>> {
    let pipe = pipe.canonicalize().ok()?;
    let directory = pipe.parent()?;
    let uuid = directory.file_name()?.to_str()?;
    let run_dir = RunDir::at(directory.parent()?);
    let record = run_dir.load_record(uuid).ok()??;
    (run_dir.pipe_dir(uuid) == pipe).then(|| record.driver_uuids().to_vec())
}

/// Returns the devices that exist, and joint devices that are served although one of their GPUs is lost.
fn present_devices(node: &Node) -> impl Iterator<Item = &Device> {
    let is_served = |device: &&Device| {
        device.key.is_joint() && !device.exists() && device.live_daemon().is_some()
    };
    node.existing_devices()
        .chain(node.devices.iter().filter(is_served))
}

/// Returns the UUID of a GPU of the node or a member of a joint device that begins so. A beginning of several names none.
fn uuid_that_begins<'n>(node: &'n Node, members: &'n [String], word: &str) -> Option<&'n String> {
    let begins_so = |uuid: &&String| word.starts_with("GPU-") && uuid.starts_with(word);
    let all: BTreeSet<&String> = node
        .gpus
        .iter()
        .map(|gpu| &gpu.uuid)
        .chain(members)
        .filter(begins_so)
        .collect();
    if all.len() == 1 {
        all.first().copied()
    } else {
        None
    }
}

/// Returns the devices that a UUID or its beginning names; also `MIG-GPU-…/7/0`, as older drivers call MIG devices.
fn devices_by_name<'n>(node: &'n Node, word: &str) -> Vec<&'n Device> {
    let devices = devices_by_uuid(node, word);
    if !devices.is_empty() || !word.contains('/') {
        return devices;
    }
    node.find_device_by_spelling(word)
        .and_then(Result::ok)
        .into_iter()
        .collect()
}

/// Returns the device whose UUID begins so, or the MIG devices of that GPU. A beginning of several names none.
fn devices_by_uuid<'n>(node: &'n Node, word: &str) -> Vec<&'n Device> {
    let is_uuid = ["GPU-", "MIG-"].iter().any(|kind| word.starts_with(kind));
    let begin_so: Vec<&Device> = present_devices(node)
        .filter(|device| {
            let mut gpus = device.key.gpus().iter();
            is_uuid && (device.uuid.starts_with(word) || gpus.any(|gpu| gpu.starts_with(word)))
        })
        .collect();
    let mut gpus: Vec<&str> = begin_so
        .iter()
        .map(|device| device.key.gpu.as_str())
        .collect();
    gpus.dedup();
    let is_of_one_gpu = word.starts_with("GPU-") && gpus.len() == 1;
    if begin_so.len() == 1 || is_of_one_gpu {
        begin_so
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    fn node(models: &[&str]) -> Node {
        let models = models.iter().map(|key| catalog::named(key).unwrap());
        let mut node = Node::from_models((0..).zip(models));
        for (gpu, minor) in node.gpus.iter_mut().zip([1, 0]) {
            gpu.uuid = format!("GPU-{}{}", gpu.index, gpu.index);
            gpu.minor = Some(minor);
        }
        node.devices.clear();
        node.join();
        node
    }

    fn seen(node: &Node, variables: &[(&str, &str)]) -> Result<String, NotVisible> {
        let devices = visible_devices(node, |name| {
            let mut found = variables.iter().filter(|(known, _)| *known == name);
            found.next().map(|(_, value)| (*value).to_owned())
        })?;
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        Ok(names.join(" "))
    }

    #[test]
    fn devices_are_seen_as_cuda_and_slurm_name_them() {
        let two = node(&["h200-141gb-sxm", "h200-141gb-sxm"]);
        let seen = |variables: &[_]| seen(&two, variables);
        assert_eq!(seen(&[]).unwrap(), "0 1");
        for (value, names) in [
            ("1", "1"),
            ("1,0", "1 0"),
            ("GPU-1", "1"),
            ("GPU-11, GPU-0,1", "1 0"),
            ("0,-1,1", "0"),
        ] {
            let visible = [("CUDA_VISIBLE_DEVICES", value), ("SLURM_JOB_GPUS", "0")];
            assert_eq!(seen(&visible).unwrap(), names, "{value}");
        }
        let slurm = [("SLURM_JOB_GPUS", "0,1"), ("SLURM_STEP_GPUS", "0")];
        assert_eq!(seen(&slurm).unwrap(), "1");
        for wrong in ["2", "GPU-", "gpu", "1.5", "GPU-7"] {
            let error = seen(&[("CUDA_VISIBLE_DEVICES", wrong)]).unwrap_err();
            assert!(matches!(error, NotVisible::Unknown { .. }), "{wrong}");
        }
        for none in ["", "-1", "NoDevFiles"] {
            let error = seen(&[("CUDA_VISIBLE_DEVICES", none)]).unwrap_err();
            assert!(matches!(error, NotVisible::Empty { .. }), "{none}");
        }
    }

    #[test]
    fn a_number_of_slurm_that_no_file_has_is_no_other_gpu() {
        let mut two = node(&["h200-141gb-sxm", "h200-141gb-sxm"]);
        two.gpus[0].minor = Some(4);
        assert_eq!(seen(&two, &[("SLURM_JOB_GPUS", "4")]).unwrap(), "0");
        let error = seen(&two, &[("SLURM_JOB_GPUS", "1")]).unwrap_err();
        assert!(matches!(error, NotVisible::Unknown { .. }), "{error}");
        // The driver does not report the device files.
        two.gpus[0].minor = None;
        assert_eq!(seen(&two, &[("SLURM_JOB_GPUS", "1")]).unwrap(), "1");
    }

    #[test]
    fn numbers_mean_nothing_where_gpus_differ() {
        let two = node(&["h200-141gb-sxm", "a100-80gb"]);
        let visible = ("CUDA_VISIBLE_DEVICES", "1");
        assert_eq!(seen(&two, &[visible]), Err(NotVisible::Order(1)));
        let in_order = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        assert_eq!(seen(&two, &[visible, in_order]).unwrap(), "1");
        assert_eq!(seen(&node(&[]), &[]), Err(NotVisible::NoDevice));
    }
}
