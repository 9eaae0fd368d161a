use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::effect::Effect;
use super::error::Failure;
use super::lock::lock;
use crate::state::DeviceRecord;

/// What a run has done to one GPU so far, written by several threads.
#[derive(Debug, Default)]
pub(super) struct History {
    done: Mutex<Vec<Effect>>,
    /// The plan's steps that are over, one way or the other.
    over: Mutex<BTreeSet<usize>>,
    /// The steps that failed.
    failures: Mutex<BTreeMap<usize, Failure>>,
}

impl History {
    /// Remembers something that was done.
    pub(super) fn did(&self, done: Effect) {
        lock(&self.done).push(done);
    }

    /// Whether the MIG mode was switched, or its change noted.
    pub(super) fn has_switched(&self) -> bool {
        let done = lock(&self.done);
        done.iter()
            .any(|done| matches!(done, Effect::MigMode { .. }))
    }

    /// Takes everything that was done, in order.
    pub(super) fn take(&self) -> Vec<Effect> {
        std::mem::take(&mut *lock(&self.done))
    }

    /// Takes the change of a daemon's settings, with what they were and are.
    pub(super) fn take_change(&self, uuid: &str) -> Option<(Box<DeviceRecord>, Box<DeviceRecord>)> {
        let mut done = lock(&self.done);
        let is_it =
            |done: &Effect| matches!(done, Effect::Set { before, .. } if before.uuid == uuid);
        let place = done.iter().rposition(is_it)?;
        match done.remove(place) {
            Effect::Set { before, after } => Some((before, after)),
            _ => None,
        }
    }

    /// Remembers that the step with that number failed.
    pub(super) fn did_not(&self, step: usize, failure: Failure) {
        lock(&self.failures).insert(step, failure);
    }

    /// How many steps have failed so far.
    pub(super) fn failed(&self) -> usize {
        lock(&self.failures).len()
    }

    /// Takes the failures, in the plan's order.
    pub(super) fn take_failures(&self) -> Vec<Failure> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        failures.into_values().collect()
    }

    /// Notes that the plan's step with that number needs nothing more.
    pub(super) fn over(&self, step: usize) {
        lock(&self.over).insert(step);
    }

    /// Whether it is over.
    pub(super) fn is_over(&self, step: usize) -> bool {
        lock(&self.over).contains(&step)
    }
}
