//! The parts of a profile that are left out so that the rest can be applied.

use std::collections::BTreeMap;

use super::{HeldGpus, Plan, Refusal};
use crate::failure::Problem;
use crate::settings::Serve;

/// The GPUs that a plan leaves as they are, and the users for whose devices it starts no daemon.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// By the index of the GPU.
    gpus: BTreeMap<u32, Problem>,
    /// Values of `serve` that are not possible on this machine.
    unserved: Vec<(Serve, Problem)>,
    /// True once the rest is being applied. Before that, a GPU must be left.
    has_begun: bool,
}

impl LeftOut {
    /// Leaves out daemons alone: those with these values of `serve`, for these reasons.
    pub fn with_unserved(unserved: Vec<(Serve, Problem)>) -> Self {
        Self {
            unserved,
            ..Self::default()
        }
    }

    /// Notes that the rest is being applied: from here on no GPU needs to be left.
    pub fn mark_begun(&mut self) {
        self.has_begun = true;
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub(super) fn has_gpu(&self, gpu: u32) -> bool {
        self.gpus.contains_key(&gpu)
    }

    pub(super) fn has_no_gpu(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Returns the refusal of a profile of which no GPU is left: each reason once.
    pub(super) fn nothing_left_refusal(&self) -> Refusal {
        let (mut reasons, mut hints): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for missing in self.gpus() {
            let hint = missing.hint.as_deref();
            reasons.push(&missing.what);
            hints.extend(hint.filter(|hint| !hints.contains(hint)));
        }
        // GPUs that the same processes hold have the same reason.
        reasons.dedup();
        Problem::new(reasons.join("\n  "), hints.join("; ")).into()
    }

    /// The GPUs, by index.
    pub(super) fn gpus(&self) -> impl Iterator<Item = &Problem> {
        self.gpus.values()
    }

    /// Returns the reason why there are no daemons for these users.
    pub(super) fn problem_with_users(&self, serve: &Serve) -> Option<Problem> {
        let (_, problem) = self.unserved.iter().find(|(one, _)| one == serve)?;
        Some(problem.clone())
    }

    /// Leaves a GPU out; returns false if it is left out already.
    pub(super) fn add_gpu(&mut self, gpu: u32, refusal: &Refusal) -> bool {
        self.insert(gpu, refusal.to_problem())
    }

    fn insert(&mut self, gpu: u32, problem: Problem) -> bool {
        let is_new = !self.has_gpu(gpu);
        self.gpus.entry(gpu).or_insert(Problem {
            gpu: Some(gpu),
            ..problem
        });
        is_new
    }

    /// Leaves out the GPUs of a plan whose part may not be applied; returns false if there is none. The remedy for clients
    /// in the way is `hint`.
    pub fn add_refused(&mut self, plan: &Plan, hint: &str) -> bool {
        let mut is_one_new = false;
        for gpu in &plan.gpus {
            let alone = Plan {
                gpus: vec![gpu.clone()],
                ..Plan::default()
            };
            if let (Some(index), Err(refusal)) = (gpu.index, alone.permit(hint)) {
                is_one_new |= self.add_gpu(index, &refusal);
            }
        }
        is_one_new
    }

    /// Leaves out the GPUs that others hold; returns false if there is none.
    pub fn add_held(&mut self, held: &[HeldGpus]) -> bool {
        let mut is_one_new = false;
        for held in held {
            if let Err(problem) = held.check_not_held() {
                for gpu in &held.gpus {
                    is_one_new |= self.insert(*gpu, problem.clone());
                }
            }
        }
        is_one_new
    }

    /// Leaves out the GPUs on which something failed; returns false if there is none.
    pub fn add_failed(&mut self, failed: &[Problem]) -> bool {
        let mut is_one_new = false;
        for missing in failed {
            if let Some(gpu) = missing.gpu {
                is_one_new |= self.insert(gpu, missing.clone());
            }
        }
        is_one_new
    }
}
