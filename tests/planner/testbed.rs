//! A node in memory on which plans are carried out, each step checked.

use std::path::Path;

use jiff::Timestamp;
use mig_mps::internals::geometry::{
    ComputeChoice, ComputeInstanceId, ComputeProfileId, GpuInstanceId, Placement, ProfileId,
};
use mig_mps::internals::host::{Pid, StartTime, Uid};
use mig_mps::internals::node::{Client, Clients, DaemonState, Device, Node, Served};
use mig_mps::internals::nvml::{ComputeInstanceReading, GpuInstanceReading, MigMode};
use mig_mps::internals::plan::{self, Action, Place, Plan, Refusal, Start, Step};
use mig_mps::internals::profile::Profile;
use mig_mps::internals::settings::Settings;
use mig_mps::internals::state::{DeviceKey, DeviceRecord, ProcessId, RunDir};
use simnode::catalog::Model;

use super::brute::Body;
use super::model;

/// A node with GPUs of these models.
#[derive(Clone)]
pub(crate) struct Testbed {
    pub(crate) node: Node,
    pub(crate) models: Vec<&'static Model>,
    next: u32,
}

pub(crate) fn directories() -> RunDir {
    RunDir::at(Path::new("/run/mig-mps"))
}

impl Testbed {
    /// So many GPUs of one model, in MIG mode and empty.
    pub(crate) fn new(model: &'static Model, gpus: usize) -> Self {
        Self::of(vec![model; gpus])
    }

    /// GPUs of these models, in MIG mode and empty.
    pub(crate) fn of(models: Vec<&'static Model>) -> Self {
        Self {
            node: model::node(&models),
            models,
            next: 1,
        }
    }

    /// The plan that the profile asks for.
    pub(crate) fn plan(&self, profile: &Profile) -> Result<Plan, Refusal> {
        plan::up(&self.node, profile, &directories(), Uid::ROOT)
    }

    /// Puts instances on the first GPU, each with its full compute instance and nobody on it.
    pub(crate) fn lay(&mut self, layout: &[Body]) {
        for &(number, start, size) in layout {
            let id = ProfileId(self.models[0].profiles[number].id);
            let placement = Placement::new(start, size);
            self.create(0, id, placement);
            self.create_compute(0, placement, ComputeChoice::Full);
        }
        self.node.join();
    }

    /// The instances on the first GPU.
    pub(crate) fn layout(&self) -> Vec<Body> {
        let number = |id: ProfileId| {
            let profiles = &self.models[0].profiles;
            profiles
                .iter()
                .position(|p| p.id == id.0)
                .expect("a profile")
        };
        let instances = self.node.gpus[0].instances.iter();
        instances
            .map(|instance| {
                let place = instance.placement;
                (number(instance.profile), place.start, place.size)
            })
            .collect()
    }

    /// A daemon for a device that has none, with so many clients.
    pub(crate) fn serve(&mut self, device: &Device, clients: u32) {
        self.record(
            device,
            &device.name,
            Settings {
                serve: Some(mig_mps::internals::settings::Serve::OneAtATime),
                ..Settings::default()
            },
        );
        self.node.join();
        let served = self.served(&device.uuid).expect("just recorded");
        let clients = (0..clients)
            .map(|number| Client {
                gpus: Vec::new(),
                pid: Some(Pid(1000 + number)),
                started: None,
                server: None,
                user: None,
                command: None,
                workload: None,
                memory: None,
                age: None,
            })
            .collect();
        served.clients = Clients::Known(clients);
    }

    /// Carries a plan out.
    ///
    /// # Panics
    ///
    /// Where a step is not possible.
    pub(crate) fn carry_out(&mut self, plan: &Plan) {
        // Every daemon that ends has ended before another gets its name.
        for stop in plan.stops() {
            self.stop(&stop.uuid);
        }
        for gpu in &plan.gpus {
            assert!(gpu.obstacles.is_empty(), "{:?}", gpu.obstacles);
            let index = self.node.gpus.iter().position(|g| g.uuid == gpu.uuid);
            let index = index.expect("a GPU of the node");
            for step in gpu.steps.iter().filter(|step| !starts_joint(step)) {
                self.step(index, &step.action);
            }
            assert_eq!(self.node.gpus[index].slice_map(), gpu.after, "{plan:#?}");
        }
        // All GPUs of a joint device are ready before its daemon starts.
        for gpu in &plan.gpus {
            let index = self.node.gpus.iter().position(|g| g.uuid == gpu.uuid);
            for step in gpu.steps.iter().filter(|step| starts_joint(step)) {
                self.step(index.expect("a GPU of the node"), &step.action);
            }
        }
        self.node.join();
    }

    fn step(&mut self, gpu: usize, action: &Action) {
        match action {
            Action::Stop(_) | Action::EndStray(_) | Action::Close(_) => {}
            Action::DestroyComputeInstance {
                instance, compute, ..
            } => {
                let instance = self.at(gpu, *instance);
                let found = instance
                    .compute
                    .iter()
                    .position(|c| c.placement == *compute);
                let gone = instance.compute.remove(found.expect("it is there"));
                assert!(self.served(&gone.uuid).is_none(), "{gone:?} is served");
            }
            Action::DestroyGpuInstance { instance: gone, .. } => {
                let instance = self.at(gpu, gone.placement);
                assert!(instance.compute.is_empty() && instance.profile == gone.profile);
                let instances = &mut self.node.gpus[gpu].instances;
                instances.retain(|instance| instance.placement != gone.placement);
            }
            Action::SwitchMig { on } => {
                assert!(self.node.gpus[gpu].instances.is_empty());
                self.node.gpus[gpu].mig = Some(MigMode {
                    current: *on,
                    pending: *on,
                });
            }
            Action::CreateGpuInstance(new) => self.create(gpu, new.profile, new.placement),
            Action::CreateComputeInstance { instance, compute } => {
                self.create_compute(gpu, *instance, *compute);
            }
            Action::Start(start) => self.start(gpu, start),
            Action::Set(set) => {
                let served = self.served(&set.uuid).expect("it is served");
                served.record.settings = set.settings.clone();
            }
            Action::StartServer(start) => {
                let served = self.served(&start.uuid).expect("it is served");
                assert_eq!(served.state, DaemonState::NoServerYet);
                served.state = DaemonState::Ready;
            }
        }
    }

    fn stop(&mut self, uuid: &str) {
        let mut devices = self.node.devices.iter_mut();
        let is_it = |served: &Served| served.record.uuid == uuid;
        let device = devices.find(|device| device.served.as_ref().is_some_and(is_it));
        device.expect("it is served").served = None;
    }

    /// The record of the device with that UUID.
    fn served(&mut self, uuid: &str) -> Option<&mut Served> {
        let served = self
            .node
            .devices
            .iter_mut()
            .filter_map(|device| device.served.as_mut());
        served.into_iter().find(|served| served.record.uuid == uuid)
    }

    fn at(&mut self, gpu: usize, placement: Placement) -> &mut GpuInstanceReading {
        let mut instances = self.node.gpus[gpu].instances.iter_mut();
        let found = instances.find(|instance| instance.placement == placement);
        found.unwrap_or_else(|| panic!("nothing stands at {placement}"))
    }

    fn create(&mut self, gpu: usize, profile: ProfileId, placement: Placement) {
        let reported = &mut self.node.gpus[gpu];
        assert!(reported.in_mig_mode());
        let offer = reported.profile(profile).expect("a profile it offers");
        assert!(offer.placements.contains(&placement), "{placement}");
        for other in &reported.instances {
            assert!(!other.placement.overlaps(placement), "{placement} is taken");
        }
        let known = self.models[gpu]
            .profile(profile.0)
            .expect("a profile of the model");
        self.next += 1;
        reported.instances.push(GpuInstanceReading {
            id: GpuInstanceId(self.next),
            profile,
            placement,
            compute: Vec::new(),
            offered: model::compute(known),
        });
        reported
            .instances
            .sort_by_key(|instance| instance.placement);
    }

    fn create_compute(&mut self, gpu: usize, placement: Placement, choice: ComputeChoice) {
        self.next += 1;
        let number = self.next;
        let instance = self.at(gpu, placement);
        let is_free = |place: &Placement| {
            let mut others = instance.compute.iter();
            others.all(|other| !other.placement.overlaps(*place))
        };
        let offered = instance.offered.iter();
        let (profile, wanted) = match choice {
            ComputeChoice::Full => {
                let full = offered.max_by_key(|p| (p.multiprocessors, std::cmp::Reverse(p.id)));
                (full, None)
            }
            ComputeChoice::Slices { count, at } => (
                offered.filter(|p| p.slices == count).min_by_key(|p| p.id),
                at,
            ),
            ComputeChoice::Exactly { .. } => panic!("for undoing alone"),
        };
        let profile = profile.expect("a compute instance it offers").clone();
        let mut places = profile.placements.iter();
        let place = match wanted {
            Some(at) => places.find(|place| place.start == at),
            None => places.find(|place| is_free(place)),
        };
        let place = *place.expect("a place for it");
        assert!(is_free(&place), "{choice:?} in {placement}");
        instance.compute.push(ComputeInstanceReading {
            id: ComputeInstanceId(number),
            profile: ComputeProfileId(profile.id.0),
            uuid: format!("MIG-{number}"),
            placement: place,
            slices: profile.slices,
            multiprocessors: profile.multiprocessors,
        });
        instance.compute.sort_by_key(|compute| compute.placement);
    }

    fn start(&mut self, gpu: usize, start: &Start) {
        let devices = self.node.gpus[gpu].devices();
        let settings = start.settings.clone();
        if !start.joint.is_empty() {
            for index in &start.joint {
                let mut gpus = self.node.gpus.iter();
                let own = gpus.find(|gpu| gpu.index == *index);
                assert!(!own.expect("a GPU of the node").in_mig_mode());
            }
            let key = start.whole_device_key(&self.node, &self.node.gpus[gpu].uuid);
            let device = Device {
                uuid: key.joint_uuid(),
                joint_gpus: start.joint.clone(),
                key,
                ..devices[0].clone()
            };
            return self.record(&device, &start.name, settings);
        }
        let device = match start.place {
            Place::Whole => devices.into_iter().find(|device| device.part.is_none()),
            Place::Mig { placement, nth } => devices
                .into_iter()
                .filter(|device| {
                    let part = device.part.as_ref();
                    part.is_some_and(|part| part.placement == placement)
                })
                .nth(nth),
        };
        let device = device.unwrap_or_else(|| panic!("no device for {start:?}"));
        self.record(&device, &start.name, settings);
    }

    fn record(&mut self, device: &Device, name: &str, settings: Settings) {
        for other in self.node.served() {
            assert_ne!(other.record.name, name);
            assert_ne!(other.record.uuid, device.uuid);
            assert!(!other.record.key.excludes(&device.key), "{device:?}");
        }
        let key: DeviceKey = device.key.clone();
        let record = DeviceRecord {
            joint_gpus: device.joint_gpus.clone(),
            name: name.to_owned(),
            key,
            uuid: device.uuid.clone(),
            gpu: device.gpu,
            profile: None,
            served_id: None,
            settings,
            by_hand: Vec::new(),
            older_clients: Vec::new(),
            compute_mode_before: None,
            daemon: Some(ProcessId {
                pid: Pid(1),
                start_time: StartTime(1),
                user: None,
                pid_namespace: None,
            }),
            finished: true,
            boot_id: "boot".to_owned(),
            machine: None,
            since: Timestamp::UNIX_EPOCH,
            restarts: 0,
            healed: Vec::new(),
            closing: None,
            leaving: false,
        };
        self.node.devices.push(Device::recorded(Served {
            state: DaemonState::Ready,
            clients: Clients::Known(Vec::new()),
            ..Served::new(record, &directories())
        }));
    }
}

fn starts_joint(step: &Step) -> bool {
    matches!(&step.action, Action::Start(start) if !start.joint.is_empty())
}

/// A profile that asks for so many of each of the model's profiles on every GPU.
pub(crate) fn asking_for(model: &Model, counts: &[u32]) -> Profile {
    let wanted = model.profiles.iter().zip(counts);
    let devices: Vec<String> = wanted
        .filter(|(_, count)| **count > 0)
        .map(|(profile, count)| format!("{{ profile = \"{}\", count = {count} }}", profile.name))
        .collect();
    parse(&format!(
        "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {} ]\n",
        devices.join(", ")
    ))
}

pub(crate) fn parse(text: &str) -> Profile {
    Profile::parse(Path::new("profile.toml"), text.to_owned())
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}
