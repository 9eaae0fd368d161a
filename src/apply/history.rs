//! The changes that a run has made to one GPU so far, and the failed steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::effect::Effect;
use super::error::Failure;
use super::mutex::lock;
use crate::state::DeviceRecord;

/// The changes that a run has made to one GPU so far. Several threads write it.
#[derive(Debug, Default)]
pub(super) struct History {
    done: Mutex<Vec<Effect>>,
    /// The plan's steps that succeeded or failed.
    over: Mutex<BTreeSet<usize>>,
    /// The steps that failed.
    failures: Mutex<BTreeMap<usize, Failure>>,
}

impl History {
    /// Records a change.
    pub(super) fn did(&self, done: Effect) {
        lock(&self.done).push(done);
    }

    /// True if the MIG mode was switched, or its change is pending.
    pub(super) fn has_switched(&self) -> bool {
        let done = lock(&self.done);
        done.iter()
            .any(|done| matches!(done, Effect::MigMode { .. }))
    }

    /// Takes all changes, in order.
    pub(super) fn take(&self) -> Vec<Effect> {
        std::mem::take(&mut *lock(&self.done))
    }

    /// Takes the change of a daemon's settings: the record before and after it.
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

    /// Records the failure of the step with that number.
    pub(super) fn did_not(&self, step: usize, failure: Failure) {
        lock(&self.failures).insert(step, failure);
    }

    /// The number of steps that have failed so far.
    pub(super) fn failed(&self) -> usize {
        lock(&self.failures).len()
    }

    /// Takes the failures, in the plan's order.
    pub(super) fn take_failures(&self) -> Vec<Failure> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        failures.into_values().collect()
    }

    /// Records that the step with that number has succeeded or failed.
    pub(super) fn over(&self, step: usize) {
        lock(&self.over).insert(step);
    }

    /// True if the step has succeeded or failed.
    pub(super) fn is_over(&self, step: usize) -> bool {
        lock(&self.over).contains(&step)
    }
}
