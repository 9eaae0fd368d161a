//! The plan, its part for one GPU, and the permission to apply it.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::action::{Action, CdiChange, EndStray, PlanInstance, Purge, Set, Start, Step, Stop};
use super::device::DevicePlan;
use super::disrupted::{ClientOf, IdlePod};
use super::kill::Kill;
use super::mode_change::{ModeChange, set_mode_changes};
use super::reason::Reason;
use super::refusal::Refusal;
use crate::failure::Problem;
use crate::geometry::{Placement, SliceMap};
use crate::host::{Pid, caller, user_name};
use crate::mps::{ClientPolicy, ControlProgram, StopMethod};
use crate::node::{DaemonEnding, Device, Gpu, Node, Stray, Variable};
use crate::settings::{MemoryLimit, Settings};
use crate::state::RunDir;

/// The steps that meet a request, by GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The GPUs that change, by index.
    pub gpus: Vec<GpuPlan>,
    /// Files to remove after everything else.
    pub purge: Option<Purge>,
    /// Clients to terminate; nothing else is done then.
    pub kill: Option<Kill>,
    /// The change of the CDI file, which follows everything else.
    pub cdi: Option<CdiChange>,
    /// Remarks on the profile: probable mistakes, and GPUs that are lost.
    pub remarks: Vec<String>,
    /// The lost GPUs that the profile may select, by index.
    pub lost_gpus: Vec<u32>,
    /// The parts of the profile that are left out.
    pub missing: Vec<Problem>,
    /// The devices with clients that go on and keep everything that they have.
    pub undisturbed: Vec<Undisturbed>,
}

/// The steps for one GPU, in order.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GpuPlan {
    /// NVML's index; null if the GPU cannot be seen.
    pub index: Option<u32>,
    /// The UUID, `GPU-…`.
    pub uuid: String,
    /// The product name; empty if the GPU cannot be seen.
    pub product: String,
    /// Its instances now.
    pub before: SliceMap,
    /// Its instances afterwards.
    pub after: SliceMap,
    /// Its devices afterwards, from left to right; none if no profile says which.
    #[serde(skip)]
    pub devices: Vec<DevicePlan>,
    /// The actions, in their order.
    pub steps: Vec<Step>,
    /// True if the rest is planned once MIG is on.
    // Old drivers list profiles only then.
    pub to_be_continued: bool,
    /// The obstacles that keep the plan from being applied.
    #[serde(skip)]
    pub obstacles: Vec<Problem>,
    /// The reset or reboot that is due, or may be; null if none is.
    pub due: Option<String>,
    /// The changes of compute modes by the daemons that start and stop: of this GPU, and of the GPUs of its joint devices.
    #[serde(skip)]
    pub compute_modes: Vec<ModeChange>,
}

/// A device whose programs a plan leaves alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Undisturbed {
    /// The device's name.
    pub device: String,
    /// The number of its clients.
    #[serde(rename = "client_count")]
    pub clients: usize,
}

impl Plan {
    /// True if there is nothing to do but for the CDI file.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty() && self.purge.is_none() && self.kill.is_none()
    }

    /// True if there is anything to do.
    pub fn has_changes(&self) -> bool {
        !self.is_empty() || self.cdi.is_some()
    }

    /// True if it concerns daemons, so that the MPS programs are needed.
    pub fn concerns_daemons(&self) -> bool {
        self.kill.is_some() || !self.steps().all(Step::is_of_mig)
    }

    /// Every step.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.gpus.iter().flat_map(|gpu| &gpu.steps)
    }

    /// The daemons that start.
    pub fn starts(&self) -> impl Iterator<Item = &Start> {
        self.steps().filter_map(|step| step.action.as_start())
    }

    /// True if a daemon may start: one of the plan, or one that it stops if it is undone.
    pub fn may_start_daemons(&self, may_be_undone: bool) -> bool {
        self.starts().next().is_some() || (may_be_undone && self.stops().next().is_some())
    }

    /// The daemons that stop.
    pub fn stops(&self) -> impl Iterator<Item = &Stop> {
        self.steps().filter_map(|step| step.action.as_stop())
    }

    /// True if a daemon or an instance of the GPU with this index goes.
    pub fn stops_on(&self, gpu: Option<u32>) -> bool {
        self.gpus
            .iter()
            .filter(|plan| plan.index == gpu)
            .any(|plan| {
                let mut actions = plan.actions();
                !plan.destroyed_instances().is_empty()
                    || actions.any(|action| action.as_stop().is_some_and(|stop| stop.alive))
            })
    }

    /// The daemons whose settings change while they run.
    pub fn sets(&self) -> impl Iterator<Item = &Set> {
        self.steps().filter_map(|step| match &step.action {
            Action::Set(set) => Some(set),
            _ => None,
        })
    }

    /// The names of the devices whose daemons start, stop or change.
    pub fn device_names(&self) -> impl Iterator<Item = &str> {
        let starts = self.starts().map(|start| start.name.as_str());
        let stops = self.stops().map(|stop| stop.name.as_str());
        let sets = self.sets().map(|set| set.name.as_str());
        let closes = self.closes().map(|close| close.name.as_str());
        starts.chain(stops).chain(sets).chain(closes)
    }

    /// The memory limits that it gives to clients, each once.
    pub fn memory_limits(&self) -> BTreeSet<MemoryLimit> {
        self.starts()
            .map(|start| &start.settings)
            .chain(self.sets().map(|set| &set.settings))
            .filter_map(Settings::given_memory_limit)
            .collect()
    }

    /// The daemons that start or change with limits that every user of their device can lift, with this control program.
    pub fn with_open_limits(&self, program: ControlProgram) -> Vec<&str> {
        let starts = self.starts().map(|start| (&start.name, &start.settings));
        let sets = self.sets().map(|set| (&set.name, &set.settings));
        starts
            .chain(sets)
            .filter(|(_, settings)| {
                program.has_open_settings
                    && settings.has_client_limits()
                    && settings.is_open_to_others()
            })
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The clients that keep their old settings.
    pub fn clients_keeping_settings(&self) -> impl Iterator<Item = &ClientOf> {
        self.sets().flat_map(|set| &set.keep)
    }

    /// Returns the plan without the daemons of these devices.
    #[must_use]
    pub fn without_devices(mut self, names: &[&str]) -> Self {
        for gpu in &mut self.gpus {
            gpu.steps.retain(|step| {
                let start = step.action.as_start().map(|start| start.name.as_str());
                let stop = step.action.as_stop().map(|stop| stop.name.as_str());
                start.or(stop).is_none_or(|name| !names.contains(&name))
            });
        }
        self.gpus.retain(|gpu| !gpu.steps.is_empty());
        self
    }

    /// True if the node differs from the profile or the devices that were planned.
    pub fn differs_from_node(&self) -> bool {
        self.clone().without_closes().has_changes()
    }

    /// Returns the plan without what follows closed devices: another command or `heal` sees to them, so that they are no drift.
    #[must_use]
    pub fn without_closes(mut self) -> Self {
        let is_close = |step: &Step| matches!(step.action, Action::Close(_));
        self.gpus
            .retain(|gpu| gpu.steps.is_empty() || !gpu.steps.iter().all(is_close));
        for gpu in &mut self.gpus {
            gpu.steps.retain(|step| !is_close(step));
        }
        self
    }

    /// Appends a plan that continues this one.
    pub fn append_continuation(&mut self, rest: &Self) {
        self.missing.clone_from(&rest.missing);
        for gpu in &rest.gpus {
            if let Some(own) = self.gpus.iter_mut().find(|own| own.uuid == gpu.uuid) {
                own.after = gpu.after.clone();
                own.devices.clone_from(&gpu.devices);
                own.steps.extend(gpu.steps.iter().cloned());
                own.to_be_continued = gpu.to_be_continued;
                let newer = &gpu.compute_modes;
                let index = |change: &ModeChange| change.joint_gpu.or(gpu.index);
                own.compute_modes
                    .retain(|old| newer.iter().all(|new| index(new) != index(old)));
                own.compute_modes.extend(newer.iter().cloned());
            } else {
                self.gpus.push(gpu.clone());
            }
        }
    }

    /// The names of the devices whose running daemons stop.
    pub fn stopped_daemons(&self) -> Vec<&str> {
        self.noticed_stops()
            .map(|stop| stop.name.as_str())
            .collect()
    }

    /// The stops of running daemons.
    pub(super) fn noticed_stops(&self) -> impl Iterator<Item = &Stop> {
        // Nobody notices the end of a hung server without clients.
        self.stops().filter(|stop| {
            stop.alive && (stop.means != StopMethod::Heal || !stop.clients.is_empty())
        })
    }

    /// The number of running daemons that restart unchanged.
    pub fn count_restarted(&self) -> usize {
        let mut stopped = self.stopped_daemons();
        stopped.retain(|name| {
            self.starts()
                .any(|start| start.by.keeps_settings() && start.name == *name)
        });
        stopped.len()
    }

    /// The instances that are destroyed, as `GPU 0 3g.40gb at 4:4`; compute instances only where
    /// their GPU instance stays.
    pub fn destroyed_instances(&self) -> Vec<String> {
        let mut destroyed = Vec::new();
        for gpu in &self.gpus {
            for (_, what) in gpu.destroyed_instances() {
                destroyed.push(format!("{} {what}", gpu.name()));
            }
        }
        destroyed
    }

    /// The indices of the GPUs whose MIG mode is switched.
    pub fn mig_switched(&self) -> Vec<u32> {
        self.gpus_with_action(|action| matches!(action, Action::SwitchMig { .. }))
    }

    /// The indices of the GPUs whose MIG mode is switched off.
    pub fn mig_switched_off(&self) -> Vec<u32> {
        self.gpus_with_action(|action| matches!(action, Action::SwitchMig { on: false }))
    }

    /// True if a MIG mode or an instance changes.
    pub fn changes_mig(&self) -> bool {
        let of_mig = |action: &Action| {
            matches!(
                action,
                Action::SwitchMig { .. }
                    | Action::CreateGpuInstance(_)
                    | Action::CreateComputeInstance { .. }
                    | Action::DestroyGpuInstance { .. }
                    | Action::DestroyComputeInstance { .. }
            )
        };
        !self.gpus_with_action(of_mig).is_empty()
    }

    /// The indices of the GPUs that have such an action.
    fn gpus_with_action(&self, have: impl Fn(&Action) -> bool) -> Vec<u32> {
        self.gpus
            .iter()
            .filter(|gpu| gpu.actions().any(&have))
            .filter_map(|gpu| gpu.index)
            .collect()
    }

    /// Returns the plan of one GPU, and adds it if there is none. A record may name a GPU that is gone.
    pub(super) fn gpu_plan_mut(&mut self, node: &Node, uuid: &str) -> &mut GpuPlan {
        let position = self
            .gpus
            .iter()
            .position(|gpu| gpu.uuid == uuid)
            .unwrap_or_else(|| {
                self.gpus.push(match node.gpu_with_uuid(uuid) {
                    Some(gpu) => GpuPlan::new(gpu),
                    None => GpuPlan {
                        index: None,
                        uuid: uuid.to_owned(),
                        ..GpuPlan::new(&Gpu::default())
                    },
                });
                self.gpus.len() - 1
            });
        &mut self.gpus[position]
    }

    /// Adds the end of every idle stray on the devices that `is_meant` selects, before everything else.
    pub(super) fn end_idle_strays(&mut self, node: &Node, is_meant: impl Fn(&Device) -> bool) {
        for device in node.devices.iter().filter(|device| is_meant(device)) {
            for stray in device.strays.iter().filter(|stray| stray.is_idle()) {
                self.end_stray(node, device, stray);
            }
        }
    }

    pub(super) fn end_stray(&mut self, node: &Node, device: &Device, stray: &Stray) {
        let end = Action::EndStray(EndStray {
            name: device.name.clone(),
            joint: device.joint_gpus.clone(),
            uuid: device.uuid.clone(),
            pid: stray.server.pid,
            started: stray.started,
        });
        let steps = &mut self.gpu_plan_mut(node, &device.key.gpu).steps;
        steps.insert(0, end.with_reason("it keeps its GPU memory"));
    }
}

impl GpuPlan {
    /// The plan that changes nothing.
    pub(super) fn new(gpu: &Gpu) -> Self {
        Self {
            index: Some(gpu.index),
            uuid: gpu.uuid.clone(),
            product: gpu.product.clone(),
            before: gpu.slice_map(),
            after: gpu.slice_map(),
            devices: Vec::new(),
            steps: Vec::new(),
            to_be_continued: false,
            obstacles: Vec::new(),
            due: None,
            compute_modes: Vec::new(),
        }
    }

    /// The actions, in order.
    pub(super) fn actions(&self) -> impl Iterator<Item = &Action> {
        self.steps.iter().map(|step| &step.action)
    }

    /// Names the GPU, by its index if it has one.
    pub fn name(&self) -> String {
        match self.index {
            Some(index) => format!("GPU {index}"),
            None => format!("{}, which cannot be seen", self.uuid),
        }
    }

    /// `GPU 0 (GPU-5f1c…)`
    pub fn title(&self) -> String {
        match self.index {
            Some(_) => format!("{} ({})", self.name(), self.uuid),
            None => self.name(),
        }
    }

    /// Returns the instances that are destroyed, each with its reason; compute instances only if their GPU instance stays.
    pub fn destroyed_instances(&self) -> Vec<(&Reason, PlanInstance<'_>)> {
        let mut destroyed = Vec::new();
        for step in &self.steps {
            let part = match &step.action {
                Action::DestroyGpuInstance { instance, .. } => PlanInstance::Gpu(instance),
                Action::DestroyComputeInstance {
                    instance, compute, ..
                } if !self.destroys_instance_at(*instance) => {
                    PlanInstance::compute_instance(*compute, *instance)
                }
                _ => continue,
            };
            destroyed.push((&step.because, part));
        }
        destroyed
    }

    /// True if the GPU instance with this placement is destroyed.
    pub fn destroys_instance_at(&self, placement: Placement) -> bool {
        self.actions().any(|action| {
            matches!(action, Action::DestroyGpuInstance { instance, .. } if instance.placement == placement)
        })
    }
}

impl Plan {
    /// Checks that the plan may be applied: it has no obstacles, and terminates only clients that it may.
    ///
    /// # Errors
    /// [`Refusal::InTheWay`] or [`Refusal::InUse`], the latter with `hint` as the remedy.
    pub fn permit(&self, hint: &str) -> Result<(), Refusal> {
        let obstacles = self.gpus.iter().flat_map(|gpu| &gpu.obstacles);
        let unasked = self
            .stops()
            .filter(|stop| stop.patience == ClientPolicy::Idle)
            .filter_map(|stop| stop.unasked.as_ref());
        if let Some(problem) = obstacles.chain(unasked).next() {
            return Err(problem.clone().into());
        }
        let clients: Vec<ClientOf> = self.clients_in_the_way().cloned().collect();
        let pods: Vec<IdlePod> = self.pods_in_the_way().cloned().collect();
        if clients.is_empty() && pods.is_empty() {
            return Ok(());
        }
        Err(Refusal::InUse {
            clients,
            pods,
            hint: hint.to_owned(),
        })
    }

    /// The clients that must exit before the plan may be applied.
    pub fn clients_in_the_way(&self) -> impl Iterator<Item = &ClientOf> {
        self.clients_with_patience(|patience| patience == ClientPolicy::Idle)
    }

    /// The pods that must give up their shares before the plan may be applied.
    pub fn pods_in_the_way(&self) -> impl Iterator<Item = &IdlePod> {
        self.stops()
            .filter(|stop| stop.patience == ClientPolicy::Idle)
            .flat_map(|stop| &stop.pods)
    }

    /// True if it takes a device from pods that may hold it.
    pub fn takes_devices_from_pods(&self) -> bool {
        self.stops().any(|stop| !stop.is_followed)
    }

    /// The clients that are terminated, not waited for.
    pub fn ended_clients(&self) -> impl Iterator<Item = &ClientOf> {
        self.clients_with_patience(|patience| patience != ClientPolicy::Idle)
    }

    fn clients_with_patience(
        &self,
        is_meant: fn(ClientPolicy) -> bool,
    ) -> impl Iterator<Item = &ClientOf> {
        let stops = self.stops().filter(move |stop| is_meant(stop.patience));
        let kill = self.kill.iter().filter(move |kill| is_meant(kill.patience));
        stops
            .flat_map(|stop| &stop.clients)
            .chain(kill.flat_map(Kill::clients))
    }

    /// Returns the plan with clients terminated after so many seconds, in which no new one is admitted.
    #[must_use]
    pub fn by_force(mut self, seconds: u32) -> Self {
        for step in self.gpus.iter_mut().flat_map(|gpu| &mut gpu.steps) {
            if let Action::Stop(stop) = &mut step.action
                && stop.may_have_clients()
            {
                stop.patience = ClientPolicy::Force(seconds);
            }
        }
        self
    }

    /// Sorts the GPUs by index, those that are gone last, and adds what follows from the steps: the changes of
    /// compute modes, and the clients that go on.
    pub(super) fn complete(mut self, node: &Node, run_dir: &RunDir) -> Self {
        self.gpus
            .sort_by_key(|gpu| (gpu.index.is_none(), gpu.index));
        set_mode_changes(&mut self.gpus, node, run_dir);
        if !self.gpus.is_empty() {
            let uuids = self.stops().map(|stop| &stop.uuid);
            let touched: BTreeSet<&String> =
                uuids.chain(self.sets().map(|set| &set.uuid)).collect();
            let untouched = node
                .served()
                .filter(|served| !touched.contains(&served.record.uuid));
            self.undisturbed = untouched
                .map(|served| Undisturbed {
                    device: served.record.name.clone(),
                    clients: served.clients.as_slice().len(),
                })
                .filter(|device| device.clients > 0)
                .collect();
        }
        self
    }
}

/// A daemon that mig-mps did not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UnmanagedDaemon {
    /// The process id.
    pub pid: Pid,
    /// The user's name; null if hidden.
    pub user: Option<String>,
    /// The value of its `CUDA_MPS_PIPE_DIRECTORY`; null if unset or hidden.
    #[schemars(with = "Option<String>")]
    pub pipe_directory: Variable,
    /// The way in which the caller ends it.
    #[serde(skip)]
    pub ending: DaemonEnding,
}

impl UnmanagedDaemon {
    /// Returns the unmanaged daemons of a device. One in our own pipe directory is taken over instead.
    pub(super) fn on_device(node: &Node, run_dir: &RunDir, device: &Device) -> Vec<Self> {
        Self::on_devices(node, run_dir, &device.uuid, &[device])
    }

    /// Returns the unmanaged daemons of the devices that are to be one with this UUID.
    pub(super) fn on_devices(
        node: &Node,
        run_dir: &RunDir,
        uuid: &str,
        devices: &[&Device],
    ) -> Vec<Self> {
        let pipe = run_dir.pipe_dir(uuid).display().to_string();
        node.unmanaged
            .iter()
            .filter(|unmanaged| {
                unmanaged.is_daemon()
                    && devices
                        .iter()
                        .any(|device| unmanaged.serves_device(&device.name))
                    && unmanaged.pipe_directory.value() != Some(&pipe)
            })
            .map(|unmanaged| Self {
                pid: unmanaged.pid,
                user: unmanaged.user.map(user_name),
                pipe_directory: unmanaged.pipe_directory.clone(),
                ending: unmanaged.ending_for(caller()),
            })
            .collect()
    }
}

/// The reason to start a daemon for a device without a record.
pub(super) fn reason_to_start(beside: &[UnmanagedDaemon]) -> String {
    let pids: Vec<String> = beside.iter().map(|daemon| daemon.pid.to_string()).collect();
    match pids.as_slice() {
        [] => "no daemon yet".to_owned(),
        [pid] => format!("only an unmanaged daemon, pid {pid}, serves it"),
        _ => format!("only unmanaged daemons, pids {}, serve it", pids.join(", ")),
    }
}
