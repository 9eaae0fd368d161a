//! What this node has: its GPUs and MIG devices joined with the daemons that serve them.
//!
//! A [`Node`] is a snapshot. Nothing here changes anything, and reading takes no lock.

mod answers;
mod daemons;
mod device;
mod foreign;
mod gpu;
mod log_growth;
mod logs;
mod models;
mod natural;
mod observe;
mod outside;
mod problem;
mod served;
mod strays;
mod unaccounted;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::mps::ControlProgram;
use crate::nvml::Processes;
use crate::state::{Created, DeviceKey, Journal, RunDir};

pub use crate::mps::MpsProgram;
pub use device::{Device, DevicePart};
pub use foreign::{Foreign, Variable};
pub use gpu::Gpu;
pub use log_growth::LogGrowth;
pub use logs::{DeviceLogs, Logs};
pub use observe::{Look, ObserveError, Observer, observe};
pub use outside::Outside;
pub use problem::Problem;
pub use served::{Client, Life, Served, ServerProcess};
pub use strays::Stray;

/// A snapshot of the node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The driver's version.
    pub driver: String,
    /// This boot's id.
    pub boot_id: String,
    /// Every GPU the driver shows, by index.
    pub gpus: Vec<Gpu>,
    /// Every device that some run directory has a record of, by name.
    pub served: Vec<Served>,
    /// Who computes on each device, by its UUID. Devices whose lists are hidden are left out.
    pub processes: BTreeMap<String, Processes>,
    /// The GPU and compute instances that mig-mps made.
    pub created: Vec<Created>,
    /// Changes that somebody is carrying out now.
    pub under_way: Vec<Journal>,
    /// True if there is a journal that the caller may not read: a change is under way, or was killed half-way.
    pub may_be_changing: bool,
    /// Changes that were killed half-way, and the run directory each left its journal in.
    pub interrupted: Vec<(RunDir, Journal)>,
    /// The UUIDs of the GPUs whose MIG mode mig-mps switched on.
    pub switched_on: Vec<String>,
    /// Device directories whose record cannot be read, with the reason: a daemon may live there.
    pub unreadable: Vec<(RunDir, String)>,
    /// What could not be seen, in words.
    pub hidden: Vec<String>,
    /// The GPUs among that, in words: they are lost, or not to be read.
    pub lost: Vec<String>,
    /// MPS programs that mig-mps has not started. Looked for with [`Look::Status`], [`Look::Close`] and [`Look::Plan`].
    pub foreign: Vec<Foreign>,
    /// Servers that outlived their daemons in the caller's run directory. Looked for wherever processes are.
    pub strays: Vec<Stray>,
    /// Programs that compute outside MPS. Looked for with [`Look::Status`] alone.
    pub outside: Vec<Outside>,
}

/// Why no device, or not one alone, was meant.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoSuchDevice {
    /// None has this name or UUID.
    #[error("no device is called \"{wanted}\"; there {}", there_are(known))]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// It fits several.
    #[error("\"{wanted}\" can mean {}", uuids.join(" and "))]
    Ambiguous {
        /// What was asked for.
        wanted: String,
        /// The devices it fits.
        uuids: Vec<String>,
    },
}

fn there_are(known: &[String]) -> String {
    if known.is_empty() {
        return "is none".to_owned();
    }
    format!("are {}", known.join(", "))
}

impl Node {
    /// The GPU instances that a change took away and that are not there, in words.
    pub fn missing_after(&self, journal: &Journal) -> Vec<String> {
        journal
            .taken
            .iter()
            .filter_map(|taken| {
                let gpu = self.gpus.iter().find(|gpu| gpu.uuid == taken.gpu)?;
                let is_there = gpu.instances.iter().any(|instance| {
                    instance.placement == taken.placement && instance.profile == taken.profile
                });
                (!is_there)
                    .then(|| format!("GPU {} {} at {}", gpu.index, taken.name, taken.placement))
            })
            .collect()
    }

    /// What its driver's control program has and does.
    pub fn control_program(&self) -> ControlProgram {
        ControlProgram::of(&self.driver)
    }

    /// Every device of every GPU.
    pub fn devices(&self) -> impl Iterator<Item = Device> {
        self.gpus.iter().flat_map(Gpu::devices)
    }

    /// The record of who serves a device, if mig-mps does.
    pub fn served_on(&self, key: &DeviceKey) -> Option<&Served> {
        self.served.iter().find(|served| served.record.key == *key)
    }

    /// The command by which root has the mig-mps of a user whose daemon serves a device do something.
    pub fn managed_by(&self, name: &str, verb: &str) -> Option<String> {
        let mut devices = self.devices();
        let device = devices.find(|device| self.name_of(device) == name)?;
        let mut foreign = self.foreign.iter();
        foreign.find_map(|foreign| {
            let serves = foreign.devices.contains(&device.uuid);
            serves
                .then(|| foreign.managed_by(&format!("{verb} {name}")))
                .flatten()
        })
    }

    /// A device's name: the one its record gives, or the default one.
    pub fn name_of(&self, device: &Device) -> String {
        self.served_on(&device.key).map_or_else(
            || device.default_name.clone(),
            |served| served.record.name.clone(),
        )
    }

    /// The names of the devices that words on the command line mean: a name, a UUID, or a unique
    /// prefix of one.
    ///
    /// # Errors
    /// [`NoSuchDevice`]
    pub fn resolve(&self, words: &[String]) -> Result<Vec<String>, NoSuchDevice> {
        let mut named: BTreeSet<(String, String)> = self
            .devices()
            .map(|device| (self.name_of(&device), device.uuid))
            .collect();
        let recorded = self.served.iter().map(|served| &served.record);
        named.extend(recorded.map(|record| (record.name.clone(), record.uuid.clone())));
        let resolve = |word: &String| {
            // A prefix must say more than what every UUID begins with.
            let is_prefix = word.len() > "MIG-".len();
            let called = named.iter().filter(|(name, _)| name == word);
            let begins = named
                .iter()
                .filter(|(_, uuid)| is_prefix && uuid.starts_with(word));
            let fits: Vec<&(String, String)> = called.chain(begins).collect();
            match fits.as_slice() {
                [(name, _)] => Ok(name.clone()),
                [] => Err(NoSuchDevice::Unknown {
                    wanted: word.clone(),
                    known: named.iter().map(|(name, _)| name.clone()).collect(),
                }),
                _ => Err(NoSuchDevice::Ambiguous {
                    wanted: word.clone(),
                    uuids: fits.iter().map(|(_, uuid)| uuid.clone()).collect(),
                }),
            }
        };
        words.iter().map(resolve).collect()
    }
}
