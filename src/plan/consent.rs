//! The consent to a plan: to the end of instances that others may have made, and to more than was agreed to before.

use super::action::{Action, PlanInstance};
use super::disrupted::{ClientOf, IdlePod};
use super::reason::Reason;
use super::{GpuPlan, Plan, Refusal};
use crate::failure::Problem;
use crate::geometry::SliceMap;
use crate::host::{Pid, join_words};

/// The ways to agree to the end of instances that others may have made.
const CONSENT_TO_UNMANAGED: &str =
    "run `mig-mps up` in a terminal without --yes and confirm, or use --destroy-unmanaged";

impl Plan {
    /// The instances that are destroyed and that mig-mps is not known to have made, as `GPU 0 3g.40gb at 4:4`.
    pub fn unmanaged_instances(&self) -> Vec<String> {
        let mut unmanaged = Vec::new();
        for gpu in &self.gpus {
            for part in gpu.unmanaged_instances() {
                unmanaged.push(format!("{} {part}", gpu.name()));
            }
        }
        unmanaged
    }

    /// Returns the plan with a problem on each GPU on which it destroys instances that mig-mps is not known to have made.
    #[must_use]
    pub fn sparing_unmanaged(mut self) -> Self {
        for gpu in &mut self.gpus {
            let parts = gpu.unmanaged_instances();
            let named: Vec<String> = parts.iter().map(PlanInstance::to_string).collect();
            if named.is_empty() {
                continue;
            }
            let what = format!(
                "{}: {} would be destroyed, but mig-mps has no record of creating {}",
                gpu.name(),
                join_words(&named, "and"),
                if named.len() == 1 { "it" } else { "them" },
            );
            gpu.obstacles.push(Problem::new(what, CONSENT_TO_UNMANAGED));
        }
        self
    }

    /// True if both do the same, whatever else they show: reasons, layouts, and clients that a plan leaves alone.
    pub fn does_the_same_as(&self, other: &Self) -> bool {
        self.without_remarks() == other.without_remarks()
    }

    /// The plan without all that is only shown.
    fn without_remarks(&self) -> Self {
        let mut plan = self.clone();
        plan.remarks.clear();
        plan.undisturbed.clear();
        if let Some(kill) = &mut plan.kill {
            kill.others = 0;
            kill.victims
                .iter_mut()
                .map(|victim| &mut victim.client)
                .for_each(ClientOf::forget_description);
        }
        for gpu in &mut plan.gpus {
            let empty = SliceMap::new(0, Vec::new());
            (gpu.before, gpu.after) = (empty.clone(), empty);
        }
        for step in plan.gpus.iter_mut().flat_map(|gpu| &mut gpu.steps) {
            step.because = Reason::from("");
            match &mut step.action {
                Action::Stop(stop) => stop
                    .clients
                    .iter_mut()
                    .for_each(ClientOf::forget_description),
                Action::Start(start) => start.beside.clear(),
                Action::Set(set) => set.keep.clear(),
                _ => {}
            }
        }
        plan
    }

    /// True if this plan stops, destroys or switches off something that `shown` does not.
    pub fn disrupts_more_than(&self, shown: &Self) -> bool {
        fn has_new<T: PartialEq>(now: impl IntoIterator<Item = T>, shown: &[T]) -> bool {
            now.into_iter().any(|one| !shown.contains(&one))
        }
        // One that waited may have become a client.
        let ended = shown.ended_clients();
        let ended: Vec<(&str, Option<Pid>)> = ended.map(ClientOf::identity).collect();
        has_new(self.noticed_ends(), &shown.noticed_ends())
            || has_new(self.ended_clients().map(ClientOf::identity), &ended)
            || has_new(self.unseen_clients(), &shown.unseen_clients())
            || has_new(self.pods_losing_shares(), &shown.pods_losing_shares().collect::<Vec<_>>())
            || has_new(self.destroyed_instances(), &shown.destroyed_instances())
            // Others may have made one within an instance that was shown, or in its place.
            || has_new(self.unmanaged_instances(), &shown.unmanaged_instances())
            || has_new(self.mig_switched_off(), &shown.mig_switched_off())
    }

    /// Refuses a plan that disrupts more than `agreed`, where nobody can be asked any more.
    pub fn check_agreed_disruption(&self, agreed: &Self) -> Result<(), Refusal> {
        if !self.disrupts_more_than(agreed) {
            return Ok(());
        }
        let what = "the node has changed, and this plan disrupts more than you confirmed";
        Err(Problem::new(what, "run the same command again").into())
    }

    /// The names and UUIDs of the devices whose running daemons stop: a name may have moved to another device.
    fn noticed_ends(&self) -> Vec<(&str, &str)> {
        let stops = self.noticed_stops();
        stops
            .map(|stop| (stop.name.as_str(), stop.uuid.as_str()))
            .collect()
    }

    /// The devices whose daemons stop with clients that nobody can see.
    fn unseen_clients(&self) -> Vec<&str> {
        self.stops()
            .filter(|stop| stop.unasked.is_some())
            .map(|stop| stop.uuid.as_str())
            .collect()
    }

    /// The pods that lose their share.
    fn pods_losing_shares(&self) -> impl Iterator<Item = &IdlePod> {
        self.stops().flat_map(|stop| &stop.pods)
    }
}

impl GpuPlan {
    /// Returns the instances that are destroyed and that mig-mps is not known to have made, without those in one another.
    fn unmanaged_instances(&self) -> Vec<PlanInstance<'_>> {
        let mut parts = Vec::new();
        let mut within = Vec::new();
        for action in self.actions() {
            match action {
                Action::DestroyGpuInstance {
                    instance,
                    unmanaged: true,
                } => parts.push((instance.placement, PlanInstance::Gpu(instance))),
                Action::DestroyComputeInstance {
                    instance,
                    compute,
                    unmanaged: true,
                } => within.push((
                    *instance,
                    PlanInstance::compute_instance(*compute, *instance),
                )),
                _ => {}
            }
        }
        within.retain(|(parent, _)| parts.iter().all(|(whole, _)| whole != parent));
        let all = parts.into_iter().chain(within);
        all.map(|(_, part)| part).collect()
    }
}
