//! A device as a plan makes or keeps it, and its daemon.

use super::daemons::{NO_DAEMON, render_serve};
use super::gpu_steps::served_here;
use super::setting_change::change_needing_restart;
use super::up::Planner;
use super::{Place, Reason, UnmanagedDaemon};
use crate::host::{format_gpus, user_name};
use crate::node::{Device, Gpu, Node, Served};
use crate::profile::{NameTemplate, Span};
use crate::settings::Settings;

/// A device as a plan makes or keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePlan {
    pub place: Place,
    /// The indices of the GPUs of a joint device; empty for another device.
    pub joint: Vec<u32>,
    /// `3g.40gb`, or `1c.3g.40gb` for a compute instance with a part of the SMs; `None` for a whole GPU.
    pub profile: Option<String>,
    /// Its SMs; `None` if they are not known. The planner leaves out those of a whole GPU.
    pub multiprocessors: Option<u32>,
    /// Its memory in MiB; `None` if it is not known.
    pub memory_mib: Option<u64>,
    /// The most clients that its daemon takes; `None` if that is not known.
    pub client_limit: Option<u32>,
    /// The name that the profile gives, or the default one. A template until the devices are named.
    pub name: String,
    /// The settings of its daemon, with `serve` always set; `None` for no daemon.
    pub settings: Option<Settings>,
    /// Its GPU's index; that of the first GPU of a joint device.
    pub(super) gpu: u32,
    /// Its entry in the block: `{n}` counts entry by entry.
    pub(super) entry: usize,
    /// Where its name, or else the block, stands in the profile.
    pub(super) span: Span,
    /// Its UUID, if it is there and stays. That of a joint device follows from its GPUs.
    pub(super) uuid: Option<String>,
}

impl DevicePlan {
    /// Returns a copy without name, GPU and UUID, to compare what is asked for.
    #[must_use]
    pub fn without_origin(&self) -> Self {
        Self {
            name: String::new(),
            gpu: 0,
            entry: 0,
            span: Span::default(),
            uuid: None,
            ..self.clone()
        }
    }

    /// Returns its profile name, or what it is otherwise.
    pub fn title(&self) -> &str {
        let of_gpus = if self.joint.is_empty() {
            "whole GPU"
        } else {
            "joint GPUs"
        };
        self.profile.as_deref().unwrap_or(of_gpus)
    }

    /// Returns the device, if it is there and stays.
    pub(super) fn find_existing<'a>(&self, planner: Planner<'a>) -> Option<&'a Device> {
        planner.node.device_with_uuid(self.uuid.as_ref()?)
    }

    /// True if `down` has stopped it.
    pub(super) fn is_stopped(&self, node: &Node) -> bool {
        node.devices.iter().any(|device| {
            self.uuid.as_ref() == Some(&device.uuid) && node.find_stopped(device).is_some()
        })
    }

    /// Returns its record, if this run directory has one or a daemon of another one is alive.
    pub(super) fn find_served<'a>(&self, planner: Planner<'a>) -> Option<&'a Served> {
        served_here(self.find_existing(planner)?, planner.run_dir)
    }

    /// Returns the unmanaged daemons that serve it, or if it is not there yet, a device that has its GPUs now.
    pub(super) fn find_unmanaged(&self, planner: Planner<'_>) -> Vec<UnmanagedDaemon> {
        let node = planner.node;
        let present: Vec<&Device> = match self.find_existing(planner) {
            Some(device) => vec![device],
            None => node
                .gpus
                .iter()
                .filter(|gpu| self.joint.contains(&gpu.index) || self.is_whole_gpu(gpu))
                .filter_map(|gpu| node.whole_device_of(gpu))
                .collect(),
        };
        let uuid = self.uuid.as_deref().unwrap_or_default();
        let mut found = UnmanagedDaemon::on_devices(node, planner.run_dir, uuid, &present);
        // A daemon that serves a GPU of a joint device may not serve this one.
        let own = node.gpus.iter().find(|gpu| self.is_whole_gpu(gpu));
        let is_of_joint = present.iter().any(|one| one.key.is_joint());
        if let (Some(gpu), true) = (own, is_of_joint) {
            let sees = |pid| {
                node.unmanaged
                    .iter()
                    .any(|daemon| daemon.pid == pid && daemon.may_see(gpu))
            };
            found.retain(|daemon| sees(daemon.pid));
        }
        found
    }

    /// True for a device that is this GPU as a whole.
    fn is_whole_gpu(&self, gpu: &Gpu) -> bool {
        self.place == Place::Whole && self.joint.is_empty() && self.gpu == gpu.index
    }

    pub(super) fn name_template(&self) -> NameTemplate<'_> {
        NameTemplate(&self.name)
    }

    /// Describes it as the holder of a name.
    pub(super) fn describe_as_holder(&self) -> String {
        match self.joint.as_slice() {
            [] => format!("a device of GPU {}", self.gpu),
            gpus => format!("the device of {}", format_gpus(gpus)),
        }
    }

    /// True if its instance is to be made.
    pub(super) fn is_new_instance(&self) -> bool {
        self.uuid.is_none() && self.place.placement().is_some()
    }

    /// True if the record has its name.
    pub(super) fn is_called(&self, served: &Served) -> bool {
        self.name_template()
            .can_yield(self.gpu, &served.record.name)
    }

    /// Returns the change of the name.
    pub(super) fn reason_to_rename(&self, served: &Served) -> Reason {
        let wanted = self.name_template().fill(self.gpu, 0);
        Reason::rename(&served.record.name, &wanted)
    }

    /// Returns a difference that needs a restart, in words.
    pub(super) fn difference_needing_restart(&self, served: &Served) -> Option<Reason> {
        let record = &served.record;
        let Some(settings) = &self.settings else {
            return Some(NO_DAEMON.into());
        };
        if !self.is_called(served) {
            return Some(self.reason_to_rename(served));
        }
        if record.settings.serve != settings.serve {
            let (is, wanted) = (render_serve(&record.settings), render_serve(settings));
            return Some(format!("serve is \"{is}\", not \"{wanted}\"").into());
        }
        if let Some(user) = record.runs_as_its_user() {
            let user = user_name(user);
            return Some(format!("its daemon runs as {user}, not as root").into());
        }
        if let Some(fault) = served.access.iter().find(|fault| fault.needs_restart()) {
            return Some(fault.to_string().into());
        }
        change_needing_restart(served, settings)
            .map(Reason::from)
            .or_else(|| {
                let because = "the GPU's compute mode is no longer exclusive-process";
                served.has_lost_compute_mode().then(|| because.into())
            })
    }
}
