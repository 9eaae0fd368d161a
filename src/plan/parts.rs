//! The parts of a plan that are carried out one after the other, each when its clients have left.

use jiff::Timestamp;

use super::action::{Action, Close, Step};
use super::{GpuPlan, Plan, Start, Stop};
use crate::mps::StopMethod;
use crate::node::{Closer, DaemonState, Node};

impl Plan {
    /// Splits the plan: a GPU whose instances change is a part, and on the others each device is. If a device gets the name of
    /// one of another part, there is one part.
    pub fn split_into_parts(&self) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        for gpu in &self.gpus {
            let is_whole = gpu.to_be_continued || gpu.steps.iter().any(Step::is_of_mig);
            let mut devices: Vec<Option<&str>> = Vec::new();
            for step in &gpu.steps {
                let device = if is_whole {
                    None
                } else {
                    step.action.device_uuid()
                };
                if !devices.contains(&device) {
                    devices.push(device);
                }
            }
            parts.extend(devices.into_iter().map(|device| {
                let mut gpu = gpu.clone();
                gpu.steps
                    .retain(|step| is_whole || step.action.device_uuid() == device);
                Self {
                    gpus: vec![gpu],
                    ..Self::default()
                }
            }));
        }
        let takes_name = |part: &Self, other: &Self| {
            let mut starts = part.starts();
            starts.any(|start| other.stops().any(|stop| stop.name == start.name))
        };
        let is_entangled = parts.iter().enumerate().any(|(nth, part)| {
            parts
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != nth)
                .map(|(_, other)| other)
                .any(|other| takes_name(part, other))
        });
        if is_entangled || self.makes_or_ends_joint_device() {
            vec![self.clone()]
        } else {
            parts
        }
    }

    /// True if GPUs become a joint device, or cease to be one and become something else.
    fn makes_or_ends_joint_device(&self) -> bool {
        let mut starts = self.starts().filter(|start| !start.joint.is_empty());
        let is_new = |start: &Start| {
            self.stops()
                .all(|stop| Some(&stop.uuid) != start.uuid.as_ref())
        };
        let ends = |stop: &Stop| {
            let follows = |start: &Start| start.uuid.as_ref() == Some(&stop.uuid);
            stop.is_of_joint_device() && !self.starts().any(follows)
        };
        let is_one_ended = self.stops().any(ends);
        starts.any(is_new) || is_one_ended && (self.starts().next().is_some() || self.changes_mig())
    }

    /// Returns the parts as one plan.
    pub fn join_parts(parts: &[Self]) -> Self {
        let mut joined = Self::default();
        for part in parts {
            joined.append_continuation(part);
        }
        joined
    }

    /// True if both concern the daemon of a device.
    pub fn has_a_device_of(&self, other: &Self) -> bool {
        let uuids: Vec<&str> = other.stops().map(|stop| stop.uuid.as_str()).collect();
        self.stops().any(|stop| uuids.contains(&stop.uuid.as_str()))
    }

    /// The daemons that are to admit no new clients.
    pub fn closes(&self) -> impl Iterator<Item = &Close> {
        self.steps().filter_map(|step| match &step.action {
            Action::Close(close) => Some(close),
            _ => None,
        })
    }

    /// True if the plan only closes devices, and the other plan does the same.
    pub fn only_repeats_closes_of(&self, other: &Self) -> bool {
        self.clone().without_closes().is_empty() && self.does_the_same_as(other)
    }

    /// Keeps those of them for which `is_kept` is true, which adds what is known only when they are carried out.
    pub fn retain_closes(&mut self, mut is_kept: impl FnMut(&mut Close) -> bool) {
        for gpu in &mut self.gpus {
            gpu.steps.retain_mut(|step| match &mut step.action {
                Action::Close(close) => is_kept(close),
                _ => true,
            });
        }
        self.gpus.retain(|gpu| !gpu.steps.is_empty());
    }

    /// True if nobody has to leave before this part is carried out. `is_idle` tells of a device that this process has closed,
    /// by its UUID, whether its programs have left.
    pub fn is_free(&self, node: &Node, is_idle: impl Fn(&str) -> bool) -> bool {
        let has_obstacle = self.gpus.iter().any(|gpu| !gpu.obstacles.is_empty());
        let mut stops = self.stops();
        !has_obstacle
            && !stops.any(|stop| {
                stop.may_have_clients() || is_closing(stop, node) && !is_idle(&stop.uuid)
            })
    }

    /// Plans that the daemons of this part admit no new clients while one of them has clients. Daemons without clients are closed
    /// too, because the change would wait for a program that starts there.
    ///
    /// A device that gets no new daemon stays without one: a daemon that was to stop is not started again.
    #[must_use]
    pub fn close_daemons(&self, node: &Node, until: Timestamp) -> Self {
        let mut plan = Self::default();
        let is_waited_for = |stop: &Stop| is_closing(stop, node) || !stop.clients.is_empty();
        if !self.stops().any(is_waited_for) {
            return plan;
        }
        for gpu in &self.gpus {
            // What a command that has exited has closed is taken over.
            let is_open = |stop: &&Stop| {
                stop.means == StopMethod::Session
                    && closer_of(stop, node) != Some(Closer::ThisProcess)
            };
            let steps: Vec<Step> = gpu
                .actions()
                .filter_map(Action::as_stop)
                .filter(is_open)
                .map(|stop| {
                    let next = gpu
                        .actions()
                        .filter_map(Action::as_start)
                        .find(|start| start.uuid.as_ref() == Some(&stop.uuid));
                    Action::Close(Close {
                        name: stop.name.clone(),
                        joint: stop.joint.clone(),
                        uuid: stop.uuid.clone(),
                        until,
                        next: next.map(Start::as_next_daemon),
                        is_waited_for: true,
                        held: None,
                    })
                    .with_reason(if stop.clients.is_empty() {
                        "the change waits for clients of other devices"
                    } else {
                        "it waits for its clients"
                    })
                })
                .collect();
            if !steps.is_empty() {
                plan.gpus.push(GpuPlan {
                    steps,
                    ..gpu.clone()
                });
            }
        }
        plan
    }
}

/// True if the device admits no new programs, and its daemon has not ended.
fn is_closing(stop: &Stop, node: &Node) -> bool {
    closer_of(stop, node).is_some()
}

/// Returns who has closed the device, if its daemon has not ended.
fn closer_of(stop: &Stop, node: &Node) -> Option<Closer> {
    let mut served = node.served();
    let served = served.find(|served| served.record.uuid == stop.uuid)?;
    (served.state == DaemonState::Closing).then_some(served.closer)
}
