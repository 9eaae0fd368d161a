//! The steps that undo a run on a GPU: the difference between the GPU before the run and now. What others have changed meanwhile
//! stays.

use std::fmt;

use super::gpu_state::{GpuState, describe_compute_instance};
use crate::geometry::{ComputeChoice, GpuInstanceProfile};
use crate::nvml::GpuInstanceReading;
use crate::plan::{Action, GpuInstance};
use crate::state::DeviceRecord;

/// Returns the steps from the present state of a GPU that offers these profiles back to an earlier one: daemons stop first and
/// start last.
pub(super) fn steps_back(
    present: &GpuState,
    before: &GpuState,
    offered: &[GpuInstanceProfile],
) -> Vec<StepBack> {
    let mut steps = Vec::new();
    for (uuid, now) in &present.daemons {
        match before.daemons.get(uuid) {
            Some(earlier) if earlier == now => {}
            Some(earlier) if earlier.daemon == now.daemon => steps.push(StepBack::Set {
                earlier: Box::new(earlier.clone()),
                now: Box::new(now.clone()),
            }),
            _ => steps.push(StepBack::Stop(now.clone())),
        }
    }
    let made = creations_beyond(present, before, offered).into_iter().rev();
    let switch = (present.mig != before.mig).then_some(Action::SwitchMig { on: before.mig });
    steps.extend(
        made.map(destroy_created)
            .chain(switch)
            .chain(creations_beyond(before, present, offered))
            .map(StepBack::Change),
    );
    for (uuid, earlier) in &before.daemons {
        let now = present.daemons.get(uuid);
        if earlier.finished && now.is_none_or(|now| now.daemon != earlier.daemon) {
            steps.push(StepBack::Start(earlier.clone()));
        }
    }
    steps
}

/// The actions that make the instances of one state which another state lacks: a GPU instance before what is in it. No plan
/// makes one of an unknown profile.
fn creations_beyond(
    state: &GpuState,
    other: &GpuState,
    offered: &[GpuInstanceProfile],
) -> Vec<Action> {
    let mut creations = Vec::new();
    for (&placement, instance) in &state.instances {
        let twin = other
            .instances
            .get(&placement)
            .filter(|twin| twin.profile == instance.profile);
        if twin.is_none() {
            let whole = GpuInstance::from_profiles(offered, instance.profile, placement);
            creations.extend(whole.map(Action::CreateGpuInstance));
        }
        let present = twin.map(compute_choices).unwrap_or_default();
        creations.extend(
            compute_choices(instance)
                .into_iter()
                .filter(|choice| !present.contains(choice))
                .map(|compute| Action::CreateComputeInstance {
                    instance: placement,
                    compute,
                }),
        );
    }
    creations
}

/// The compute instances of a GPU instance, in the order in which they are made again.
fn compute_choices(instance: &GpuInstanceReading) -> Vec<ComputeChoice> {
    instance
        .compute
        .iter()
        .rev()
        .map(|part| ComputeChoice::Exactly {
            profile: part.profile,
            placement: part.placement,
        })
        .collect()
}

/// Returns the action that destroys what another action makes.
fn destroy_created(creation: Action) -> Action {
    let unmanaged = false;
    match creation {
        Action::CreateGpuInstance(instance) => Action::DestroyGpuInstance {
            instance,
            unmanaged,
        },
        Action::CreateComputeInstance {
            instance,
            compute: ComputeChoice::Exactly { placement, .. },
        } => Action::DestroyComputeInstance {
            instance,
            compute: placement,
            unmanaged,
        },
        Action::CreateComputeInstance {
            compute: ComputeChoice::Full | ComputeChoice::Slices { .. },
            ..
        }
        | Action::DestroyComputeInstance { .. }
        | Action::DestroyGpuInstance { .. }
        | Action::SwitchMig { .. }
        | Action::Stop(_)
        | Action::Start(_)
        | Action::Set(_)
        | Action::StartServer(_)
        | Action::EndStray(_)
        | Action::Close(_) => creation,
    }
}

/// A step that undoes a part of a run.
#[derive(Clone, Debug)]
pub(super) enum StepBack {
    /// Changes the MIG mode or an instance.
    Change(Action),
    Stop(DeviceRecord),
    Set {
        earlier: Box<DeviceRecord>,
        now: Box<DeviceRecord>,
    },
    Start(DeviceRecord),
}

impl StepBack {
    /// True if the run has removed what the step makes again.
    pub(super) fn makes_again(&self) -> bool {
        matches!(
            self,
            Self::Start(_)
                | Self::Change(
                    Action::SwitchMig { on: true }
                        | Action::CreateGpuInstance(_)
                        | Action::CreateComputeInstance { .. }
                )
        )
    }
}

/// Names what the run has made, changed or removed.
impl fmt::Display for StepBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop(record) | Self::Start(record) => write!(f, "daemon of {}", record.name),
            Self::Set { now, .. } => write!(f, "changed settings of {}", now.name),
            Self::Change(Action::SwitchMig { .. }) => f.write_str("MIG mode on"),
            Self::Change(
                Action::CreateGpuInstance(instance) | Action::DestroyGpuInstance { instance, .. },
            ) => instance.fmt(f),
            Self::Change(
                Action::DestroyComputeInstance {
                    instance,
                    compute: placement,
                    ..
                }
                | Action::CreateComputeInstance {
                    instance,
                    compute: ComputeChoice::Exactly { placement, .. },
                },
            ) => f.write_str(&describe_compute_instance(*placement, *instance)),
            Self::Change(action) => action.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::collection::vec;
    use proptest::prelude::{ProptestConfig, any};
    use proptest::proptest;

    use super::*;
    use crate::geometry::{
        ComputeInstanceId, ComputeProfileId, GpuInstanceId, Placement, ProfileEnum, ProfileId,
    };
    use crate::host::{Pid, StartTime};
    use crate::nvml::ComputeInstanceReading;
    use crate::settings::Settings;
    use crate::state::{DeviceKey, InstanceKey, ProcessId};

    const UNITS: u32 = 4;

    /// Profiles of one unit and of two.
    fn profiles() -> Vec<GpuInstanceProfile> {
        [(1, "1g.10gb"), (2, "2g.20gb")]
            .map(|(size, name)| GpuInstanceProfile {
                id: ProfileId(size),
                query: ProfileEnum(size),
                name: name.parse().unwrap(),
                slices: size,
                multiprocessors: Some(14 * size),
                memory_mib: 10_000,
                engines: None,
                most: UNITS / size,
                free: None,
                placements: vec![Placement::new(0, size)],
            })
            .into()
    }

    fn record(key: DeviceKey) -> DeviceRecord {
        DeviceRecord {
            name: "a".to_owned(),
            uuid: format!("{key:?}"),
            key,
            gpu: Some(0),
            joint_gpus: Vec::new(),
            profile: None,
            served_id: None,
            settings: Settings::default(),
            by_hand: Vec::new(),
            older_clients: Vec::new(),
            compute_mode_before: None,
            daemon: None,
            finished: true,
            boot_id: "boot".to_owned(),
            machine: None,
            since: Timestamp::UNIX_EPOCH,
            restarts: 0,
            healed: Vec::new(),
            closing: None,
            leaving: false,
        }
    }

    fn daemon(number: u32) -> ProcessId {
        ProcessId {
            pid: Pid(number),
            start_time: StartTime(1),
            user: None,
            pid_namespace: None,
        }
    }

    fn nth<T>(items: Vec<T>, number: u8) -> Option<T> {
        let count = items.len().max(1);
        items.into_iter().nth(usize::from(number) % count)
    }

    /// A simulated GPU, which refuses what a real one refuses.
    #[derive(Clone, Default)]
    struct Simulated {
        state: GpuState,
        /// The number of daemons that it has had.
        starts: u32,
    }

    impl Simulated {
        fn devices(&self) -> Vec<DeviceKey> {
            if !self.state.mig {
                return vec![DeviceKey::for_whole_gpu("GPU-1")];
            }
            let key = |instance: &GpuInstanceReading, compute| DeviceKey {
                joint: Vec::new(),
                gpu: "GPU-1".to_owned(),
                instance: Some(InstanceKey {
                    profile: instance.profile,
                    placement: instance.placement,
                    compute,
                }),
            };
            self.state
                .instances
                .values()
                .flat_map(|instance| {
                    instance
                        .compute
                        .iter()
                        .map(move |part| key(instance, part.placement))
                })
                .collect()
        }

        fn is_served(&self, instance: Placement, compute: Placement) -> bool {
            self.state.daemons.values().any(|record| {
                let key = record.key.instance;
                key.is_some_and(|key| (key.placement, key.compute) == (instance, compute))
            })
        }

        fn is_free(&self, at: Placement) -> bool {
            !self.state.instances.keys().any(|other| other.overlaps(at))
        }

        fn carry_out(&mut self, step: &StepBack) {
            let state = &mut self.state;
            match step {
                StepBack::Stop(record) => assert!(state.daemons.remove(&record.uuid).is_some()),
                StepBack::Start(record) => {
                    assert!(self.devices().contains(&record.key));
                    self.starts += 1;
                    let record = DeviceRecord {
                        daemon: Some(daemon(self.starts)),
                        ..record.clone()
                    };
                    let other = self.state.daemons.insert(record.uuid.clone(), record);
                    assert!(other.is_none());
                }
                StepBack::Set { earlier, now } => {
                    assert_eq!(state.daemons.get(&now.uuid), Some(&**now));
                    state.daemons.insert(now.uuid.clone(), *earlier.clone());
                }
                StepBack::Change(action) => self.change(action),
            }
        }

        fn change(&mut self, action: &Action) {
            let state = &mut self.state;
            match action {
                Action::SwitchMig { on } => {
                    assert!(state.instances.is_empty() && state.daemons.is_empty());
                    state.mig = *on;
                }
                Action::CreateGpuInstance(instance) => {
                    assert!(state.mig && self.is_free(instance.placement));
                    let reading = GpuInstanceReading {
                        id: GpuInstanceId(0),
                        profile: instance.profile,
                        placement: instance.placement,
                        compute: Vec::new(),
                        offered: Vec::new(),
                    };
                    self.state.instances.insert(instance.placement, reading);
                }
                Action::DestroyGpuInstance { instance, .. } => {
                    let gone = state.instances.remove(&instance.placement).unwrap();
                    assert!(gone.compute.is_empty());
                }
                Action::CreateComputeInstance {
                    instance,
                    compute: ComputeChoice::Exactly { profile, placement },
                } => {
                    let parts = &mut state.instances.get_mut(instance).unwrap().compute;
                    assert!(parts.iter().all(|part| part.placement != *placement));
                    parts.push(ComputeInstanceReading {
                        id: ComputeInstanceId(0),
                        profile: *profile,
                        uuid: String::new(),
                        placement: *placement,
                        slices: 1,
                        multiprocessors: 14,
                    });
                    parts.sort_by_key(|part| part.placement);
                }
                Action::DestroyComputeInstance {
                    instance, compute, ..
                } => {
                    assert!(!self.is_served(*instance, *compute));
                    let parent = self.state.instances.get_mut(instance).unwrap();
                    let count = parent.compute.len();
                    parent.compute.retain(|part| part.placement != *compute);
                    assert_eq!(parent.compute.len(), count - 1);
                }
                other => panic!("{other}"),
            }
        }

        /// Takes the step that the numbers mean, if it is one.
        fn go_on(&mut self, numbers: [u8; 3]) {
            let step = self
                .step_of_daemon(numbers)
                .or_else(|| self.action(numbers).map(StepBack::Change));
            if let Some(step) = step {
                self.carry_out(&step);
            }
        }

        fn step_of_daemon(&self, [kind, which, at]: [u8; 3]) -> Option<StepBack> {
            let running = nth(self.state.daemons.values().cloned().collect(), which);
            match kind % 8 {
                0 => running.map(StepBack::Stop),
                1 => nth(self.devices(), which)
                    .map(record)
                    .filter(|record| !self.state.daemons.contains_key(&record.uuid))
                    .map(StepBack::Start),
                2 => running.map(|now| StepBack::Set {
                    earlier: Box::new(DeviceRecord {
                        by_hand: vec![at.to_string()],
                        ..now.clone()
                    }),
                    now: Box::new(now),
                }),
                _ => None,
            }
        }

        fn action(&self, [kind, which, at]: [u8; 3]) -> Option<Action> {
            let state = &self.state;
            let instance = nth(state.instances.values().cloned().collect(), which);
            let part = instance
                .clone()
                .and_then(|instance| nth(instance.compute, at));
            match kind % 8 {
                3 => nth(profiles(), which)
                    .map(|profile| GpuInstance {
                        profile: profile.id,
                        name: profile.name,
                        placement: Placement::new(u32::from(at) % UNITS, profile.slices),
                    })
                    .filter(|made| state.mig && self.is_free(made.placement))
                    .map(Action::CreateGpuInstance),
                4 => instance
                    .map(|parent| {
                        let start = u32::from(at) % parent.placement.size;
                        (parent, Placement::new(start, 1))
                    })
                    .filter(|(parent, at)| parent.compute.iter().all(|part| part.placement != *at))
                    .map(|(parent, placement)| Action::CreateComputeInstance {
                        instance: parent.placement,
                        compute: ComputeChoice::Exactly {
                            profile: ComputeProfileId(0),
                            placement,
                        },
                    }),
                5 => instance
                    .zip(part)
                    .map(|(parent, part)| (parent.placement, part.placement))
                    .filter(|(parent, part)| !self.is_served(*parent, *part))
                    .map(|(instance, compute)| Action::DestroyComputeInstance {
                        instance,
                        compute,
                        unmanaged: false,
                    }),
                6 => {
                    let whole = instance.filter(|instance| instance.compute.is_empty())?;
                    let made =
                        GpuInstance::from_profiles(&profiles(), whole.profile, whole.placement);
                    made.map(|instance| Action::DestroyGpuInstance {
                        instance,
                        unmanaged: false,
                    })
                }
                7 if state.instances.is_empty() && state.daemons.is_empty() => {
                    Some(Action::SwitchMig { on: !state.mig })
                }
                _ => None,
            }
        }

        /// Everything but the processes of daemons and the numbers of instances.
        fn shown(&self) -> String {
            let daemons: Vec<_> = self
                .state
                .daemons
                .iter()
                .map(|(uuid, record)| (uuid, &record.by_hand))
                .collect();
            let instances: Vec<_> = self
                .state
                .instances
                .values()
                .map(|instance| {
                    let parts = instance.compute.iter().map(|part| part.placement);
                    (
                        instance.profile,
                        instance.placement,
                        parts.collect::<Vec<_>>(),
                    )
                })
                .collect();
            format!("{} {instances:?} {daemons:?}", self.state.mig)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn from_any_prefix_of_a_run_the_steps_back_lead_to_the_state_before(
            history in vec(any::<[u8; 3]>(), 0..60),
            run in vec(any::<[u8; 3]>(), 0..30),
        ) {
            let mut simulated = Simulated::default();
            for step in history {
                simulated.go_on(step);
            }
            let before = simulated.clone();
            for step in run {
                simulated.go_on(step);
                let mut undone = simulated.clone();
                for step in steps_back(&simulated.state, &before.state, &profiles()) {
                    undone.carry_out(&step);
                }
                assert_eq!(undone.shown(), before.shown());
            }
        }
    }
}
