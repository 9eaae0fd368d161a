//! Permission to apply a plan: which clients it may terminate.

use super::action::{Action, Stop};
use super::gpu_plan::Plan;
use super::refusal::{ClientOf, Refusal};
use super::victim::Kill;
use crate::mps::Patience;

impl Plan {
    /// Checks that the plan may be applied: it has no obstacles, and terminates only clients that it may.
    ///
    /// # Errors
    /// [`Refusal::InTheWay`] or [`Refusal::InUse`], the latter with `hint` as the remedy.
    pub fn permit(&self, hint: &str) -> Result<(), Refusal> {
        if let Some(obstacle) = self.gpus.iter().flat_map(|gpu| &gpu.obstacles).next() {
            return Err(obstacle.clone().into());
        }
        let gently = |stop: &&Stop| stop.patience == Patience::Idle;
        if let Some(obstacle) = self.stops().filter(gently).find_map(|s| s.unasked.as_ref()) {
            return Err(obstacle.clone().into());
        }
        let clients: Vec<ClientOf> = self.clients_in_the_way().cloned().collect();
        if clients.is_empty() {
            return Ok(());
        }
        Err(Refusal::InUse {
            clients,
            hint: hint.to_owned(),
        })
    }

    /// The clients that must exit before the plan may be applied.
    pub fn clients_in_the_way(&self) -> impl Iterator<Item = &ClientOf> {
        self.clients(|patience| patience == Patience::Idle)
    }

    /// The clients that are terminated, not waited for.
    pub fn ended_clients(&self) -> impl Iterator<Item = &ClientOf> {
        self.clients(|patience| patience != Patience::Idle)
    }

    fn clients(&self, is_meant: fn(Patience) -> bool) -> impl Iterator<Item = &ClientOf> {
        let stops = self.stops().filter(move |stop| is_meant(stop.patience));
        let kill = self.kill.iter().filter(move |kill| is_meant(kill.patience));
        let stopped = stops.flat_map(|stop| &stop.clients);
        stopped.chain(kill.flat_map(Kill::clients))
    }

    /// Returns the plan with clients terminated after so many seconds, in which no new one is admitted.
    #[must_use]
    pub fn by_force(mut self, seconds: u32) -> Self {
        for step in self.gpus.iter_mut().flat_map(|gpu| &mut gpu.steps) {
            if let Action::Stop(stop) = &mut step.action
                && (!stop.clients.is_empty() || stop.unasked.is_some())
            {
                stop.patience = Patience::Force(seconds);
            }
        }
        self
    }
}
