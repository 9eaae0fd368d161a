//! The parts of a plan that are carried out one after the other, each when its clients have left.

use jiff::Timestamp;

use super::action::{Action, Close, Step};
use super::{GpuPlan, Plan, Start, Stop};
use crate::mps::StopMethod;
use crate::node::{Closer, DaemonState, Node};

/// Steps of a plan that are never apart: those of the nth GPU for one device, or all of a GPU whose instances change.
type StepsOf<'a> = (usize, Option<&'a str>);

/// Returns the device to whose part a step of a GPU belongs; `None` if all steps of the GPU are one part.
fn device_of_part<'a>(gpu: &GpuPlan, step: &'a Step) -> Option<&'a str> {
    let is_one = gpu.to_be_continued || gpu.steps.iter().any(Step::is_of_mig);
    if is_one {
        None
    } else {
        step.action.device_uuid()
    }
}

impl Plan {
    /// Splits the plan: a GPU whose instances change is a part, and on the others each device is. Parts are one if a device gets
    /// the name of one of the other, or if GPUs of both become a joint device, or cease to be one.
    pub fn split_into_parts(&self) -> Vec<Self> {
        let smallest = self.list_smallest_parts();
        // By their numbers among the smallest ones.
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let plan_of = |part: &[usize]| {
            let steps: Vec<StepsOf<'_>> = part.iter().map(|nth| smallest[*nth]).collect();
            self.only(&steps)
        };
        for nth in 0..smallest.len() {
            let own = plan_of(&[nth]);
            let (mut entangled, mut others): (Vec<_>, Vec<_>) = parts
                .into_iter()
                .partition(|part| plan_of(part).is_entangled_with(&own));
            entangled.push(vec![nth]);
            others.push(entangled.concat());
            parts = others;
        }
        // The order of the plan, by the first step of each.
        parts.sort_by_key(|part| part.iter().min().copied());
        parts.iter().map(|part| plan_of(part)).collect()
    }

    fn list_smallest_parts(&self) -> Vec<StepsOf<'_>> {
        let mut parts = Vec::new();
        for (nth, gpu) in self.gpus.iter().enumerate() {
            for step in &gpu.steps {
                let steps = (nth, device_of_part(gpu, step));
                if !parts.contains(&steps) {
                    parts.push(steps);
                }
            }
        }
        parts
    }

    /// Returns the plan of these steps, in the order of this plan.
    fn only(&self, part: &[StepsOf<'_>]) -> Self {
        let gpus = self.gpus.iter().enumerate().filter_map(|(nth, gpu)| {
            let is_in_part = |step: &&Step| part.contains(&(nth, device_of_part(gpu, step)));
            let steps: Vec<Step> = gpu.steps.iter().filter(is_in_part).cloned().collect();
            (!steps.is_empty()).then(|| GpuPlan {
                steps,
                ..gpu.clone()
            })
        });
        Self {
            gpus: gpus.collect(),
            ..Self::default()
        }
    }

    /// True if neither of two parts can be carried out without the other.
    fn is_entangled_with(&self, other: &Self) -> bool {
        self.takes_name_from(other)
            || other.takes_name_from(self)
            || self.shares_joint_device_with(other)
    }

    fn takes_name_from(&self, other: &Self) -> bool {
        let mut starts = self.starts();
        starts.any(|start| other.stops().any(|stop| stop.name == start.name))
    }

    /// True if one of two parts concerns a joint device, and the other one of its GPUs.
    fn shares_joint_device_with(&self, other: &Self) -> bool {
        let joint_gpus = |part: &Self| -> Vec<u32> {
            part.steps()
                .flat_map(|step| step.action.joint_gpus().to_vec())
                .collect()
        };
        let concerns = |part: &Self, gpu: &u32| {
            let mut own = part.gpus.iter().filter_map(|gpu| gpu.index);
            own.any(|own| own == *gpu) || joint_gpus(part).contains(gpu)
        };
        joint_gpus(self).iter().any(|gpu| concerns(other, gpu))
            || joint_gpus(other).iter().any(|gpu| concerns(self, gpu))
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
