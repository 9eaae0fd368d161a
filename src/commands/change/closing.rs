//! The way of a change with `--no-new`: it is carried out part by part. Devices of the next part admit no new programs, and
//! nobody holds the lock while those that run are waited for. The record says what follows, for `heal` if this process is killed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::agree::ChangeStep;
use super::{ChangeRun, Planned};
use crate::apply::{self, Closed};
use crate::client::HeldClient;
use crate::commands::args::IN_USE_HINT;
use crate::commands::drain::DEFAULT_FORCE_SECONDS;
use crate::commands::lock_node;
use crate::error::{CommandError, Result, declined_by_user};
use crate::failure::{ExitStatus, Failure as _, Problem};
use crate::host::{Environment, join_words, name_devices};
use crate::node::{Closer, Device, Node, Served};
use crate::plan::{Plan, Refusal, Step, Stop};
use crate::render::format::{format_count, format_time_limit};
use crate::render::{note, warn};
use crate::state::{ProcessId, RunDir};

/// The interval at which it is looked whether closing daemons have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The shortest and the longest pause between two tries to end a closing daemon. Each adds about 300 bytes to its log.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which a part is planned again that has to wait for more than closing daemons.
const PLAN_INTERVAL: Duration = Duration::from_secs(15);

/// What `--no-new` has done so far.
#[derive(Default)]
pub(super) struct ClosingProgress {
    /// The parts that were carried out.
    done: Vec<Plan>,
    /// The devices that were closed, by UUID.
    closed: BTreeMap<String, ClosedDevice>,
    /// True once the time is over, and `--force` ends those who are left.
    is_force_due: bool,
    /// True if this change ends and what it has closed stays so, for `heal` to go on.
    is_left_to_heal: bool,
}

/// The end of a wait for closing daemons.
enum Waited {
    /// They have no more programs, or the time is over.
    Enough,
    UntilInterrupt,
}

/// A device that this change has closed.
struct ClosedDevice {
    name: String,
    /// True if its programs have left.
    is_idle: bool,
}

/// An idle client that was started to keep the daemon of a device.
struct StartedClient {
    /// The UUID of the device.
    device: String,
    id: Option<ProcessId>,
    client: HeldClient,
}

impl StartedClient {
    /// Lets the client go on if the record of its device has it. Otherwise it ends.
    fn leave_if_recorded(self, run_dir: &RunDir) {
        let record = run_dir.load_record(&self.device).ok().flatten();
        let closing = record.and_then(|record| record.closing);
        if closing.is_some_and(|closing| closing.held == self.id) {
            self.client.leave();
        }
    }
}

impl ClosingProgress {
    /// Returns the number of seconds after which clients are ended, once that is due.
    pub(super) fn force_after_seconds(&self) -> Option<u32> {
        self.is_force_due.then_some(DEFAULT_FORCE_SECONDS)
    }

    /// True if nobody has to leave before this part is carried out.
    fn is_free(&self, part: &Plan, node: &Node) -> bool {
        part.is_free(node, |uuid| {
            self.closed.get(uuid).is_some_and(|closed| closed.is_idle)
        })
    }

    /// Returns a plan without the daemons that were started already.
    pub(super) fn without_done(&self, plan: Plan) -> Plan {
        let names: Vec<&str> = self
            .done
            .iter()
            .flat_map(Plan::starts)
            .map(|start| start.name.as_str())
            .collect();
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
        let until = self.drain.begin();
        let mut planned = agreed;
        loop {
            let parts = planned.plan.split_into_parts();
            let (free, busy): (Vec<Plan>, Vec<Plan>) = parts
                .into_iter()
                .partition(|part| self.closing.is_free(part, &planned.node));
            let Some(next) = busy.first() else {
                return Ok(ChangeStep::Lock(planned));
            };
            if self.drain.remaining_time().is_zero() {
                if !self.options.consent.force {
                    self.closing.is_left_to_heal = true;
                    return Err(self.time_over_error(next, busy.len()));
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
            self.closing.is_free(part, &node)
                && free.iter().any(|other| other.does_the_same_as(part))
        });
        let now = Plan::join_parts(&parts);
        now.permit(IN_USE_HINT)?;
        if let Some(error) = self.apply_plan(&Planned::new(node, now))? {
            return Err(error.into());
        }
        self.closing.done.extend(parts);
        Ok(())
    }

    /// Closes the devices of a part while one of them has clients, unless that was done before.
    fn close_devices(&mut self, part: &Plan) -> Result<()> {
        let environment = self.options.environment;
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
        let mut close = close;
        let mut started: Vec<StartedClient> = Vec::new();
        close.retain_closes(|close| {
            let served = node.served_named(&close.name);
            let client = served.and_then(|served| start_held_client(environment, served));
            let is_held = client.is_some()
                || served.is_some_and(|served| has_held_client(environment, served));
            if !is_held && served.is_some_and(|served| served.clients.are_none()) {
                // Its daemon would end at once, and programs would run outside MPS.
                return false;
            }
            let closed = ClosedDevice {
                name: close.name.clone(),
                is_idle: false,
            };
            self.closing.closed.insert(close.uuid.clone(), closed);
            if let Some(client) = client {
                close.held = client.process_id(&environment.host);
                started.push(StartedClient {
                    device: close.uuid.clone(),
                    id: close.held,
                    client,
                });
            }
            true
        });
        if close.is_empty() {
            return Ok(());
        }
        let applied = self.apply_plan(&Planned::new(node, close.clone()));
        for client in started {
            client.leave_if_recorded(&self.state);
        }
        if let Some(error) = applied? {
            return Err(error.into());
        }
        let names: Vec<&str> = close.device_names().collect();
        let clients = same.map_or(0, |part| part.clients_in_the_way().count());
        note(&format!(
            "closed {} to new programs; waiting up to {} for {} to exit",
            name_devices(&names),
            format_time_limit(remaining.max(Duration::from_secs(1))),
            format_count(clients, "client")
        ));
        Ok(())
    }

    /// Waits until the programs of the closing daemons of a part have left, or the time is over; where more is in the way, only
    /// a while.
    fn wait_for_part(&mut self, part: &Plan, until: Instant) -> Result<()> {
        let mut closed = std::mem::take(&mut self.closing.closed);
        let of_part = |uuid: &String| part.stops().any(|stop| stop.uuid == *uuid);
        let mut waited_for: Vec<(&String, &mut ClosedDevice)> = closed
            .iter_mut()
            .filter(|(uuid, _)| of_part(uuid))
            .collect();
        let waits_for_daemons = waited_for.iter().any(|(_, device)| !device.is_idle);
        let end = if waits_for_daemons && waited_for.len() == part.stops().count() {
            until
        } else {
            until.min(Instant::now() + PLAN_INTERVAL)
        };
        let _waiting = self.options.environment.interrupt.begin_waiting();
        let observer = &self.options.observer;
        let waited = observer.with_nvml_closed(|| self.wait_for_daemons(&mut waited_for, end));
        self.closing.closed = closed;
        self.closing.is_left_to_heal = self.options.environment.interrupt.is_interrupted();
        match waited?? {
            Waited::Enough => Ok(()),
            Waited::UntilInterrupt => Err(self.interrupted_error()),
        }
    }

    fn wait_for_daemons(
        &self,
        closed: &mut [(&String, &mut ClosedDevice)],
        end: Instant,
    ) -> Result<Waited> {
        let (environment, directories) = (self.options.environment, self.options.directories);
        let begun = Instant::now();
        let mut tried = begun;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let interrupt = &environment.interrupt;
            if !interrupt.sleep_uninterrupted(LOOK_INTERVAL.min(left)) {
                return Ok(Waited::UntilInterrupt);
            }
            let is_over = Instant::now() >= end;
            let pause = (begun.elapsed() / 4).clamp(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
            let mut has_news = false;
            for (uuid, device) in closed.iter_mut().filter(|(_, device)| !device.is_idle) {
                let is_idle = match apply::daemon_of_closing(environment, &self.state, uuid) {
                    Closed::Ended => Some(true),
                    Closed::TakenOver => return Err(taken_over_error()),
                    // Others want the lock, too: one device at a time. At the end, all are tried.
                    Closed::Runs if tried.elapsed() < pause && !is_over => None,
                    Closed::Runs => {
                        let lock = lock_node(environment, directories, Duration::ZERO);
                        let is_idle = lock
                            .ok()
                            .and_then(|_lock| apply::retry_end(environment, directories, uuid));
                        tried = Instant::now();
                        is_idle
                    }
                };
                device.is_idle = is_idle.unwrap_or_default();
                has_news |= device.is_idle;
            }
            // The next one is tried first.
            closed.rotate_left(usize::from(closed.len() > 1));
            if is_over || has_news && closed.iter().all(|(_, device)| device.is_idle) {
                return Ok(Waited::Enough);
            }
        }
    }

    /// Makes devices that this change has closed, and does not need any more, get the same daemons again.
    pub(super) fn reopen_closed(&self) {
        if self.closing.is_left_to_heal || self.closing.closed.is_empty() {
            return;
        }
        let (environment, directories) = (self.options.environment, self.options.directories);
        let Ok(_lock) = lock_node(environment, directories, self.options.lock_limit) else {
            return;
        };
        for uuid in self.closing.closed.keys() {
            if let Err(error) = apply::reopen(&environment.host, &self.state, uuid) {
                warn(&error.to_string());
            }
        }
    }

    /// The error of a change that was interrupted while it waited. What this change has closed stays closed.
    fn interrupted_error(&self) -> CommandError {
        let closed = self.still_closed();
        let names = sorted_names(closed.values().copied());
        let follows = self.what_heal_does(&closed);
        let stay = match names.as_slice() {
            [] => {
                let what = "Interrupted. No device is closed. To continue the change, run the same command again.";
                return declined_by_user(ExitStatus::Interrupted, what);
            }
            [only] => format!("Device {only} stays closed until its programs have exited."),
            several => format!(
                "Devices {} stay closed until their programs have exited.",
                join_words(several, "and")
            ),
        };
        let again = if self.change.is_verified() {
            " To complete the change and record its profile, run the same command again."
        } else {
            ""
        };
        let what = format!(
            "Interrupted. {stay} `mig-mps heal` then {follows}.{again} To cancel the change, run `mig-mps up`."
        );
        declined_by_user(ExitStatus::Interrupted, what)
    }

    /// Returns the devices that this change has closed and not opened again, by UUID.
    fn still_closed(&self) -> BTreeMap<&str, &ClosedDevice> {
        let is_open = |uuid: &str| match self.state.load_record(uuid) {
            Ok(record) => record.is_none_or(|record| record.closing.is_none()),
            // A record that cannot be read may be that of a closed device.
            Err(_) => false,
        };
        self.closing
            .closed
            .iter()
            .map(|(uuid, device)| (uuid.as_str(), device))
            .filter(|(uuid, _)| !is_open(uuid))
            .collect()
    }

    /// Says what `heal` does with closed devices when their programs have exited.
    fn what_heal_does(&self, closed: &BTreeMap<&str, &ClosedDevice>) -> String {
        let has_next = |uuid: &&str| {
            let record = self.state.load_record(uuid).ok().flatten();
            let closing = record.and_then(|record| record.closing);
            closing.is_some_and(|closing| closing.next.is_some())
        };
        let (replaced, stopped): (Vec<_>, Vec<_>) = closed.keys().copied().partition(has_next);
        let names = |uuids: &[&str]| {
            name_devices(&sorted_names(
                uuids.iter().filter_map(|uuid| closed.get(uuid).copied()),
            ))
        };
        match (replaced.as_slice(), stopped.as_slice()) {
            ([_], []) => "replaces the daemon".to_owned(),
            (_, []) => "replaces the daemons".to_owned(),
            ([], [_]) => "leaves the device stopped".to_owned(),
            ([], _) => "leaves the devices stopped".to_owned(),
            _ => format!(
                "leaves {} stopped and replaces the other daemons",
                names(&stopped)
            ),
        }
    }

    /// The error of a change whose time is over. The devices that it has closed stay closed.
    fn time_over_error(&self, part: &Plan, parts: usize) -> CommandError {
        let refusal = part.permit("").err();
        let who = if let Some(refusal) = &refusal {
            refusal.to_string()
        } else {
            let is_idle = |stop: &&Stop| {
                let closed = self.closing.closed.get(&stop.uuid);
                closed.is_some_and(|closed| closed.is_idle)
            };
            let names: Vec<&str> = part
                .stops()
                .filter(|stop| !is_idle(stop))
                .map(|stop| stop.name.as_str())
                .collect();
            format!(
                "a program that has initialized CUDA but has no context still uses {}",
                name_devices(&names)
            )
        };
        let rest = match parts {
            1 => String::new(),
            _ => format!(
                "; not begun: {} of the change",
                format_count(parts - 1, "other part")
            ),
        };
        let what = format!("timed out (--drain): {who}{rest}");
        let error = CommandError::new(ExitStatus::Refused, what);
        let closed = self.still_closed();
        if closed.is_empty() {
            let hint = refusal
                .and_then(|refusal| refusal.hint())
                .filter(|hint| !hint.is_empty());
            return error.with_hint(hint.unwrap_or_else(|| {
                "wait until the remaining programs have exited, and run the same command again; no device is closed"
                    .to_owned()
            }));
        }
        error.with_hint(self.hint_to_wait(&closed)).with_hint(
            "end the programs with kill(1), not with `mig-mps kill`, or run `mig-mps up` to cancel the change",
        )
    }

    /// Says which devices stay closed after the time limit, and what follows.
    fn hint_to_wait(&self, closed: &BTreeMap<&str, &ClosedDevice>) -> String {
        let names = sorted_names(closed.values().copied());
        let stay = if names.len() == 1 { "stays" } else { "stay" };
        let again = if self.change.is_verified() {
            "; run the same command again to complete the change and record its profile"
        } else {
            ""
        };
        format!(
            "wait until the remaining programs have exited; {} {stay} closed, and `mig-mps heal` then {}{again}",
            name_devices(&names),
            self.what_heal_does(closed)
        )
    }

    /// Names the changes that earlier commands have recorded for devices of a plan, which this change replaces.
    pub(super) fn remark_on_recorded_changes(shown: &Planned) {
        for served in shown.node.served() {
            let name = served.record.name.as_str();
            let is_concerned = shown.plan.device_names().any(|one| one == name);
            if let Some(closed) = served.describe_closed_device()
                && is_concerned
                && served.closer == Closer::Gone
            {
                note(&closed);
            }
        }
    }

    /// Refuses what another change is about to do with a device that it has closed, or with the instances of its GPU.
    pub(super) fn check_not_closed_by_another(
        &self,
        node: &Node,
        plan: &Plan,
    ) -> Result<(), Refusal> {
        if self.options.consent.force {
            return Ok(());
        }
        let changes_gpu_of = |device: &Device| {
            plan.gpus
                .iter()
                .filter(|gpu| gpu.steps.iter().any(Step::is_of_mig))
                .any(|gpu| device.key.has_gpu(&gpu.uuid))
        };
        let closed = node.devices.iter().find_map(|device| {
            let served = device.served.as_ref()?;
            let closing = served.record.closing.as_ref()?;
            let name = served.record.name.as_str();
            let is_of_another = served.closer == Closer::Another && served.run_dir == self.state;
            let is_concerned = plan.device_names().any(|one| one == name) || changes_gpu_of(device);
            (is_of_another && is_concerned).then_some((name, closing))
        });
        closed.map_or(Ok(()), |(name, closing)| {
            let what = format!("device {name} is closed for another change, by {closing}");
            let hint =
                "wait for that change to finish, or use --force to end the programs on the device now";
            Err(Problem::new(what, hint).into())
        })
    }
}

/// Starts a client that keeps the daemon of a device from ending before the change goes on: programs would run outside MPS.
/// `None` if there is one already, or none can be started, as on a device that is closed.
fn start_held_client(environment: &Environment, served: &Served) -> Option<HeldClient> {
    (!has_held_client(environment, served))
        .then(|| HeldClient::start(environment, served).ok())
        .flatten()
}

/// True if a client that an earlier command has left keeps the daemon of a device from ending.
fn has_held_client(environment: &Environment, served: &Served) -> bool {
    let closing = served.record.closing.as_ref();
    closing.is_some_and(|closing| closing.find_held_client(&environment.host).is_some())
}

/// The error of a change that waits for a device which somebody else has changed.
fn taken_over_error() -> CommandError {
    let what = "another command changed a device while this one was waiting for it";
    CommandError::new(ExitStatus::Refused, what)
        .with_hint("run `mig-mps status` to see the present state")
}

/// Returns the names of closed devices in order.
fn sorted_names<'d>(devices: impl IntoIterator<Item = &'d ClosedDevice>) -> Vec<&'d str> {
    let mut names: Vec<&str> = devices
        .into_iter()
        .map(|device| device.name.as_str())
        .collect();
    names.sort_unstable();
    names
}
