//! GPUs that are in use: retries calls while the driver reports a GPU in use, finds the processes that hold GPUs, and stops the
//! monitoring units among these processes.

use std::time::{Duration, Instant};

use super::cause::Cause;
use super::context::{Allowed, OnFailure};
use super::gpu_state::ChangingGpu;
use crate::failure::Problem;
use crate::host::{Environment, Holder, Holders, Interrupt};
use crate::node::Node;
use crate::nvml::{Code, GpuHandle, NvmlError};
use crate::plan::{HeldGpus, Plan, pids_accounted_for};

/// The time for which a call is retried while it returns `IN_USE`. The driver releases an instance a moment after the server
/// that held the instance has exited.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(4);

/// The first pause before a retry. Each further pause is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(640);

/// Pauses between retries, each longer than the last, up to the time limit.
pub(super) struct Backoff<'a> {
    /// Ends the wait; `None` during a rollback, which no interrupt ends.
    interrupt: Option<&'a Interrupt>,
    begun: Instant,
    pause: Duration,
}

impl<'a> Backoff<'a> {
    pub(super) fn new(interrupt: Option<&'a Interrupt>) -> Self {
        Self {
            interrupt,
            begun: Instant::now(),
            pause: FIRST_PAUSE,
        }
    }

    /// Waits before a retry; returns false after the time limit or on an interrupt.
    pub(super) fn wait(&mut self) -> bool {
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        if self.begun.elapsed() + pause > IN_USE_TIMEOUT {
            return false;
        }
        if let Some(interrupt) = self.interrupt {
            return interrupt.sleep_uninterrupted(pause);
        }
        // The driver does not announce the release.
        std::thread::sleep(pause);
        true
    }
}

/// Makes a call, and retries it while the driver returns `IN_USE`.
pub(super) fn retry_while_in_use<T>(
    interrupt: Option<&Interrupt>,
    mut call: impl FnMut() -> Result<T, NvmlError>,
) -> Result<T, NvmlError> {
    let mut backoff = Backoff::new(interrupt);
    loop {
        match call() {
            Err(error) if error.code() == Some(Code::IN_USE) && backoff.wait() => {}
            answer => return answer,
        }
    }
}

/// Finds the processes that use a GPU or one of its MIG devices, for an error message: first the processes that NVML lists, then
/// the holders of the GPU. Omits processes that cannot be read, and the daemons of other devices.
pub(super) fn find_processes_in_the_way(gpu: &ChangingGpu<'_>, device: &str) -> Vec<Holder> {
    let context = gpu.run.context;
    let processes = gpu.run.nvml_on(device, GpuHandle::query_processes);
    let mut found: Vec<Holder> = processes
        .map(|processes| processes.compute)
        .unwrap_or_default()
        .iter()
        .filter_map(|usage| context.environment.host.find_process(usage.pid))
        .map(|process| Holder::from_process(&process))
        .collect();
    let accounted_for = pids_accounted_for(context.node);
    for holder in find_holders(gpu).seen {
        let is_known = found.iter().any(|other| other.pid == holder.pid);
        if !is_known && !accounted_for.contains(&holder.pid) {
            found.push(holder);
        }
    }
    found
}

/// Finds the processes that have the GPU's device node open. The node's number may have changed with the MIG mode.
pub(super) fn find_holders(gpu: &ChangingGpu<'_>) -> Holders {
    let host = &gpu.run.context.environment.host;
    gpu.snapshot
        .and_then(|_| gpu.call(GpuHandle::minor_number).ok())
        .and_then(|minor| host.holders(minor).ok())
        .unwrap_or_default()
}

/// Stops the known monitoring units among the holders of a GPU; returns false if there are none. The journal lists the units
/// before the first one is stopped, and the run starts them again at its end.
pub(super) fn stop_units(gpu: &ChangingGpu<'_>, holders: &Holders) -> Result<bool, Cause> {
    let units = gpu.run.context.environment.find_systemctl()?;
    let holding = units.holding(holders)?;
    gpu.run.journal.record_unit_stops(&holding)?;
    for unit in &holding {
        let stopped = units.stop(*unit);
        stopped.inspect_err(|_| gpu.run.journal.record_failed_stop(*unit))?;
        let note = format!("{}: stopped {unit}, which kept it open", gpu.plan.name());
        gpu.run.progress.note(&note);
    }
    Ok(!holding.is_empty())
}

/// Finds the processes that hold GPUs whose MIG mode the plan switches or whose instances the plan destroys. A GPU whose
/// processes cannot be read counts as free, and the switch then fails if the GPU is held. Unless the change goes on after a
/// failure, clients are spared: a rollback restores daemons, but not the clients that the change has ended.
pub fn find_held_gpus(
    environment: &Environment,
    node: &Node,
    plan: &Plan,
    allowed: Allowed,
    on_failure: OnFailure,
) -> Vec<HeldGpus> {
    let (gpus, minors): (Vec<_>, Vec<u32>) = plan
        .gpus_affected_by_holders(node)
        .into_iter()
        .filter_map(|gpu| Some((gpu, gpu.minor?)))
        .unzip();
    if minors.is_empty() {
        return Vec::new();
    }
    let holders = environment.host.holders_of(&minors).unwrap_or_default();
    let holders = gpus.into_iter().zip(holders);
    let mut held = plan.held_gpus(node, holders, allowed.stop_holders);
    if on_failure != OnFailure::GoOn {
        held.iter_mut().for_each(HeldGpus::spare_clients);
    }
    held
}

/// Waits until no holder is in the way, as an `nvidia-smi` that soon exits. `find` returns the GPUs that are held now, and `waits`
/// is called before the first wait.
///
/// # Errors
/// Names the holders that remain.
pub fn wait_for_holders(
    environment: &Environment,
    find: impl Fn() -> Vec<HeldGpus>,
    waits: impl FnOnce(&HeldGpus),
) -> Result<(), Problem> {
    let mut backoff = Backoff::new(Some(&environment.interrupt));
    let mut waits = Some(waits);
    loop {
        let held = find();
        let Some(first) = held.iter().find(|held| held.is_in_the_way) else {
            return Ok(());
        };
        if let Some(waits) = waits.take() {
            waits(first);
        }
        if !backoff.wait() {
            return first.check_not_held();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: Code) -> NvmlError {
        NvmlError::Refused {
            call: "nvmlGpuInstanceDestroy",
            subject: "GPU-1".to_owned(),
            code,
        }
    }

    #[test]
    fn only_in_use_is_tried_again() {
        let tries = |answers: &[Option<Code>]| {
            let mut answers = answers.iter();
            let mut count = 0;
            let result = retry_while_in_use(None, || {
                count += 1;
                match answers.next().expect("no more tries") {
                    Some(code) => Err(refused(*code)),
                    None => Ok(()),
                }
            });
            (count, result.is_ok())
        };
        assert_eq!(tries(&[None]), (1, true));
        assert_eq!(
            tries(&[Some(Code::IN_USE), Some(Code::IN_USE), None]),
            (3, true)
        );
        assert_eq!(tries(&[Some(Code::NO_PERMISSION)]), (1, false));
        assert_eq!(
            tries(&[Some(Code::IN_USE), Some(Code::INSUFFICIENT_RESOURCES)]),
            (2, false)
        );
    }

    #[test]
    fn it_ends() {
        let mut backoff = Backoff::new(None);
        backoff.begun = Instant::now().checked_sub(IN_USE_TIMEOUT).unwrap();
        assert!(!backoff.wait());
    }
}
