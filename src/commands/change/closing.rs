//! The way of a change with `--no-new`: it is carried out part by part. Devices of the next part admit no new programs, and
//! nobody holds the lock while those that run are waited for. The record says what follows, for `heal` if this process is killed.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::agree::ChangeStep;
use super::{ChangeRun, Planned};
use crate::apply;
use crate::commands::drain::DEFAULT_FORCE_SECONDS;
use crate::commands::lock_node;
use crate::error::{CommandError, Result, declined_by_user};
use crate::failure::{ExitStatus, Problem};
use crate::node::{Closer, Node};
use crate::plan::{Plan, Refusal};
use crate::render::format::{format_count, format_time_limit};
use crate::render::note;

/// The interval at which the processes of closing daemons are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The interval at which closing daemons are made to try again. Each try adds about 300 bytes to their logs.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which a part is planned again that has to wait for more than closing daemons.
const PLAN_INTERVAL: Duration = Duration::from_secs(15);

/// The message after Ctrl-C.
const INTERRUPTED: &str = "Interrupted: closed devices admit no new programs until those that run have left, and mig-mps heal then goes on; \
                           mig-mps up makes them as the applied profile says instead";

/// What `--no-new` has done so far.
#[derive(Default)]
pub(super) struct ClosingProgress {
    /// The parts that were carried out.
    done: Vec<Plan>,
    /// The UUIDs of the devices that were closed.
    closed: Vec<String>,
    /// True once the time is over, and `--force` ends those who are left.
    is_force_due: bool,
}

impl ClosingProgress {
    /// Returns the number of seconds after which clients are ended, once that is due.
    pub(super) fn force_after_seconds(&self) -> Option<u32> {
        self.is_force_due.then_some(DEFAULT_FORCE_SECONDS)
    }

    /// Returns a plan without the daemons that were started already.
    pub(super) fn without_done(&self, plan: Plan) -> Plan {
        let starts = self.done.iter().flat_map(Plan::starts);
        let names: Vec<&str> = starts.map(|start| start.name.as_str()).collect();
        plan.without_devices(&names)
    }

    /// Returns everything that was carried out, with the last plan.
    pub(super) fn with_done(&self, last: Plan) -> Plan {
        if self.done.is_empty() {
            return last;
        }
        let mut all = Plan {
            gpus: Plan::join_parts(&self.done).gpus,
            ..last.clone()
        };
        all.append_continuation(&last);
        all
    }
}

impl ChangeRun<'_> {
    /// Carries out the parts of a plan that nobody uses, closes the devices of the next one, and waits for it, until no part has
    /// to be waited for.
    pub(super) fn close_and_wait(&mut self, agreed: Planned) -> Result<ChangeStep> {
        self.work_off_parts(agreed).inspect_err(|error| {
            // What was refused or has failed is not done when the programs have left.
            if ![ExitStatus::Refused, ExitStatus::Interrupted].contains(&error.status) {
                self.reopen_closed();
            }
        })
    }

    fn work_off_parts(&mut self, agreed: Planned) -> Result<ChangeStep> {
        let until = self.drain.begin();
        let mut planned = agreed;
        loop {
            let parts = planned.plan.split_into_parts();
            let (free, busy): (Vec<Plan>, Vec<Plan>) = parts
                .into_iter()
                .partition(|part| part.is_free(&planned.node));
            let Some(next) = busy.first() else {
                return Ok(ChangeStep::Lock(planned));
            };
            if self.drain.remaining_time().is_zero() {
                if !self.options.consent.force {
                    return Err(time_over_error(next, busy.len()));
                }
                self.closing.is_force_due = true;
                return Ok(ChangeStep::Lock(self.plan_again()?));
            }
            if !free.is_empty() {
                self.carry_out_parts(&free)?;
            }
            self.close_devices(next)?;
            self.wait_for_part(next, until)?;
            planned = self.plan_again()?;
            if self.consent_needed(&planned.plan).is_some() {
                return Ok(ChangeStep::Agree(planned));
            }
        }
    }

    fn plan_again(&mut self) -> Result<Planned> {
        let node = self.observe_node()?;
        let plan = self.make_plan(&node)?;
        Ok(Planned::new(node, plan))
    }

    /// Carries out those of these parts that are still free and the same under the lock.
    fn carry_out_parts(&mut self, free: &[Plan]) -> Result<()> {
        let _lock = self.take_lock(&Plan::join_parts(free))?;
        let Planned { node, plan, .. } = self.plan_again()?;
        let mut parts = plan.split_into_parts();
        parts.retain(|part| {
            part.is_free(&node) && free.iter().any(|other| other.does_the_same_as(part))
        });
        if let Some(error) = self.apply_plan(&Planned::new(node, Plan::join_parts(&parts)))? {
            return Err(error.into());
        }
        self.closing.done.extend(parts);
        Ok(())
    }

    /// Closes the devices of a part that have clients, unless that was done before.
    fn close_devices(&mut self, part: &Plan) -> Result<()> {
        let _lock = self.take_lock(part)?;
        let Planned { node, plan, .. } = self.plan_again()?;
        let remaining = self.drain.remaining_time();
        let until = Timestamp::now().saturating_add(remaining);
        let until = until.unwrap_or(Timestamp::MAX);
        let parts = plan.split_into_parts();
        let same = parts.iter().find(|other| other.has_a_device_of(part));
        let Some(close) = same
            .map(|part| part.close_daemons(&node, until))
            .filter(|close| !close.is_empty())
        else {
            return Ok(());
        };
        if let Some(error) = self.apply_plan(&Planned::new(node, close.clone()))? {
            return Err(error.into());
        }
        let names: Vec<&str> = close.device_names().collect();
        let clients = same.map_or(0, |part| part.clients_in_the_way().count());
        note(&format!(
            "No new program gets onto {}. Waiting up to {} for {} to leave.",
            names.join(", "),
            format_time_limit(remaining),
            format_count(clients, "client")
        ));
        let uuids = close.closes().map(|close| close.uuid.clone());
        self.closing.closed.extend(uuids);
        Ok(())
    }

    /// Waits until the closing daemons of a part have ended, or the time is over; where more is in the way, only a while.
    fn wait_for_part(&mut self, part: &Plan, until: Instant) -> Result<()> {
        let closed = std::mem::take(&mut self.closing.closed);
        let (of_part, rest): (Vec<&str>, Vec<&str>) = part
            .stops()
            .map(|stop| stop.uuid.as_str())
            .partition(|uuid| closed.iter().any(|other| other == uuid));
        let end = if rest.is_empty() {
            until
        } else {
            until.min(Instant::now() + PLAN_INTERVAL)
        };
        let waited = self
            .options
            .observer
            .with_nvml_closed(|| self.wait_for_daemons(&of_part, end));
        self.closing.closed = closed;
        waited?
    }

    fn wait_for_daemons(&self, uuids: &[&str], end: Instant) -> Result<()> {
        let (environment, directories) = (self.options.environment, self.options.directories);
        let mut tried = Instant::now();
        loop {
            let has_ended = |uuid: &&str| apply::has_ended(environment, &self.state, uuid);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !uuids.is_empty() && uuids.iter().all(has_ended) {
                return Ok(());
            }
            if !environment
                .interrupt
                .sleep_uninterrupted(LOOK_INTERVAL.min(left))
            {
                return Err(declined_by_user(ExitStatus::Interrupted, INTERRUPTED));
            }
            if tried.elapsed() < RETRY_INTERVAL {
                continue;
            }
            tried = Instant::now();
            // Another change may have the lock: the daemon tries of itself, too.
            if let Ok(_lock) = lock_node(environment, directories, Duration::ZERO) {
                for uuid in uuids {
                    apply::retry_end(environment, directories, uuid);
                }
            }
        }
    }

    /// Makes devices that this change has closed, and does not need any more, get the same daemons again.
    fn reopen_closed(&self) {
        let (environment, directories) = (self.options.environment, self.options.directories);
        let Ok(_lock) = lock_node(environment, directories, self.options.lock_limit) else {
            return;
        };
        for uuid in &self.closing.closed {
            if let Err(error) = apply::reopen(&self.state, uuid) {
                note(&error.to_string());
            }
        }
    }

    /// Refuses what another change is about to do with a device that it has closed.
    pub(super) fn check_not_closed_by_another(
        &self,
        node: &Node,
        plan: &Plan,
    ) -> Result<(), Refusal> {
        if self.options.consent.force {
            return Ok(());
        }
        let mut names = plan.device_names();
        let closed = names.find_map(|name| {
            let served = node.served_named(name)?;
            let closing = served.record.closing.as_ref()?;
            (served.closer == Closer::Another && served.run_dir == self.state)
                .then_some((name, closing))
        });
        closed.map_or(Ok(()), |(name, closing)| {
            let what = format!("{name} admits no new programs for another change, by {closing}");
            let hint = "wait until that has ended, or end its programs now with --force";
            Err(Problem::new(what, hint).into())
        })
    }
}

/// The error of a change whose time is over. What was recorded stays.
fn time_over_error(part: &Plan, parts: usize) -> CommandError {
    let names: Vec<&str> = part.stops().map(|stop| stop.name.as_str()).collect();
    let who = match part.permit("") {
        Err(refusal) => refusal.to_string(),
        Ok(()) => format!(
            "a program that has initialized CUDA and has no context keeps {} in use",
            names.join(", ")
        ),
    };
    let rest = match parts {
        1 => String::new(),
        _ => format!("; {} more parts were not begun", parts - 1),
    };
    let what = format!("the time of --drain is over: {who}{rest}");
    CommandError::new(ExitStatus::Refused, what).with_hint(format!(
        "{} admits no new programs until they have left, and mig-mps heal then goes on; run the same command again to wait \
         longer, or end them with --force",
        names.join(", ")
    ))
}
