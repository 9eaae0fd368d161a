//! The daemons that must start, change and stop on a GPU to serve its wanted devices, and the settings that `mig-mps set`
//! changes.

use super::action::SettingChange;
use super::device::DevicePlan;
use super::gpu_plan::{self, GpuPlan};
use super::gpu_steps::concerns_us;
use super::lost_daemons::{LOST_RECORD, UP_AGAIN};
use super::preconditions::{
    Verb, find_device_for_command, foreign_daemon, unknown_clients_problem,
};
use super::refusal::{check_driver_version, no_program_starts};
use super::setting_change::live_changes;
use super::up::Planner;
use super::{
    Action, ClientOf, Close, IdlePod, Plan, Reason, Refusal, Set, Start, StartServer, StartedBy,
    Step, Stop, serve_setting,
};
use crate::failure::Problem;
use crate::mps::{ClientPolicy, StopMethod};
use crate::node::{Closer, DaemonState, Device, Node, Served};
use crate::profile::SettingAssignment;
use crate::settings::{KEYS, Oversubscription, Server, SettingKey, Settings};
use crate::state::{NextDaemon, RunDir};

/// The reason to start the daemon of a device that takes the place of others.
const NEW_INSTANCE: &str = "new instance";

/// The reason to start a daemon in the place of one that was closed to new programs.
pub(super) const HAVE_LEFT: &str = "its programs have exited";

/// The reason to start the daemon of a device that `down` has stopped.
pub(super) const WAS_STOPPED: &str = "it was stopped";

/// The reason to start or restart a daemon whose start another command has begun.
pub(super) const UNFINISHED: &str = "an interrupted change was not finished";

/// The reason to replace the daemon of a joint device that gets other GPUs.
const GPUS_CHANGE: &str = "its GPUs change";

/// The reason to stop the daemon of a device that stays.
pub(super) const NO_DAEMON: &str = "the profile wants no daemon for it";

pub(super) fn render_serve(settings: &Settings) -> String {
    match &settings.serve {
        Some(serve) => serve.to_string(),
        None => "?".to_owned(),
    }
}

impl GpuPlan {
    /// Adds the daemons of the GPU's devices, which have their names.
    pub(super) fn add_daemons(&mut self, planner: Planner<'_>, wanted: &[DevicePlan]) {
        let uuid = self.uuid.clone();
        let present = planner.node.devices.iter().filter_map(|device| {
            let served = device.served.as_ref()?;
            let is_here = device.key.gpu == uuid && concerns_us(served, planner.run_dir);
            // A run directory has one record for each UUID.
            let stays = wanted.iter().find(|wanted| {
                wanted.find_served(planner).is_some_and(|own| {
                    own.record.uuid == served.record.uuid && own.run_dir == served.run_dir
                })
            });
            is_here.then_some((device, served, stays))
        });
        for lost in planner.lost_daemons_beside(&uuid, wanted) {
            let stop = Stop::from_lost(
                lost,
                "run `mig-mps up --force` to end the daemon with its clients",
            );
            self.steps.push(Action::Stop(stop).with_reason(LOST_RECORD));
        }
        let replaces = present
            .clone()
            .any(|(device, _, stays)| stays.is_none() && device.is_there() && !device.is_whole());
        for device in wanted {
            if let Some(settings) = &device.settings {
                self.add_daemon(planner, device, settings, replaces);
            }
        }
        for (device, served, stays) in present {
            let because = match stays {
                Some(wanted) if wanted.settings.is_some() => continue,
                // A user may serve a device that the profile leaves without a daemon.
                Some(_) if served.run_dir != *planner.run_dir => continue,
                Some(_) => NO_DAEMON,
                None if device.is_gone() => "its device is gone",
                None if planner.wants_joint(served) => GPUS_CHANGE,
                None if device.is_whole() => "not in the profile",
                None => "its instance is destroyed",
            };
            self.add_stop(planner.run_dir, served, because);
        }
    }

    /// Plans the daemon of one device. `replaces` tells if other devices of the GPU make room.
    fn add_daemon(
        &mut self,
        planner: Planner<'_>,
        wanted: &DevicePlan,
        settings: &Settings,
        replaces: bool,
    ) {
        let run_dir = planner.run_dir;
        let device = wanted.find_existing(planner);
        let present = wanted.find_served(planner);
        if planner.problem_with_users(settings).is_some() {
            // Its present daemon goes on, unless another device may get its name.
            let ours = present.filter(|served| served.run_dir == *run_dir);
            if let Some(served) = ours.filter(|served| !wanted.is_called(served)) {
                self.add_stop(run_dir, served, wanted.reason_to_rename(served));
            }
            return;
        }
        let mut beside = wanted.find_unmanaged(planner);
        // Those in pipe directories of this run directory are stopped.
        beside.retain(|other| !planner.is_lost_daemon(other.pid));
        let because: Reason = match present {
            None => match planner.lost_daemon_of(wanted) {
                Some(lost) => self.add_stop_of_lost(lost).into(),
                None if replaces && wanted.is_new_instance() => NEW_INSTANCE.into(),
                None if wanted.is_stopped(planner.node) => WAS_STOPPED.into(),
                None if planner.has_joint(wanted) => GPUS_CHANGE.into(),
                None => gpu_plan::reason_to_start(&beside).into(),
            },
            Some(served) if served.run_dir != *run_dir => {
                self.obstacles.push(foreign_daemon(served));
                return;
            }
            Some(served) if is_closed_for_clients(served) => {
                self.add_reopening(settings, served, wanted);
                return;
            }
            Some(served) => {
                let Some(because) = restart_reason(served, wanted) else {
                    self.add_settings_change(settings, served, device);
                    self.add_server_start(settings, served);
                    return;
                };
                if served.is_alive() && !is_unfinished_only(served, wanted) {
                    let stop = Action::Stop(stop_before(served, settings));
                    self.steps.push(stop.with_reason(because.clone()));
                }
                because
            }
        };
        let start = Start {
            name: wanted.name.clone(),
            place: wanted.place,
            joint: wanted.joint.clone(),
            uuid: wanted.uuid.clone(),
            settings: settings.clone(),
            served_id: None,
            by_hand: Vec::new(),
            by: StartedBy::Up,
            beside,
        };
        let because = because.with_share(settings);
        self.steps.push(Action::Start(start).with_reason(because));
    }

    /// Plans which daemon follows that of a device which admits no new programs. Nobody is disrupted: `heal` starts it.
    fn add_reopening(&mut self, settings: &Settings, served: &Served, wanted: &DevicePlan) {
        let Some(closing) = &served.record.closing else {
            return;
        };
        let next = closing.next.as_ref();
        let is_as_wanted =
            next.is_some_and(|next| next.name == wanted.name && next.settings == *settings);
        // If another command waits for the device, its record is replaced even if the next daemon is as wanted.
        if !is_as_wanted || served.closer == Closer::Another {
            let close = Action::Close(Close {
                name: served.record.name.clone(),
                joint: served.record.joint_gpus.clone(),
                uuid: served.record.uuid.clone(),
                until: closing.until,
                next: Some(NextDaemon {
                    name: wanted.name.clone(),
                    settings: settings.clone(),
                    by_hand: Vec::new(),
                }),
                is_waited_for: false,
                held: None,
            });
            let because = "when its programs have exited";
            self.steps.push(close.with_reason(because));
        }
    }

    /// Plans to stop the daemon of a device that has lost its record; returns the reason.
    fn add_stop_of_lost<'a>(&mut self, lost: &'a Served) -> &'a str {
        let because = lost.state.outage_reason().unwrap_or_default();
        let stop = Stop::from_lost(lost, UP_AGAIN);
        self.steps.push(Action::Stop(stop).with_reason(because));
        because
    }

    /// Plans the settings that can change while the daemon runs.
    fn add_settings_change(
        &mut self,
        settings: &Settings,
        served: &Served,
        device: Option<&Device>,
    ) {
        let changes = live_changes(served, settings);
        if !changes.is_empty() {
            let settings = running_settings(settings, served);
            let step = Set::build_step(served, settings, changes, Vec::new(), device);
            self.steps.push(step);
        }
    }

    /// Plans to start an eager server that has exited. A waiting client gets one from the daemon.
    fn add_server_start(&mut self, settings: &Settings, served: &Served) {
        let is_wanted = settings.server == Server::Eager && served.has_lost_server();
        let is_idle = served.clients.are_none() && served.waiting.is_empty();
        if is_wanted && is_idle {
            let start = Action::StartServer(StartServer {
                name: served.record.name.clone(),
                joint: served.record.joint_gpus.clone(),
                uuid: served.record.uuid.clone(),
                settings: running_settings(settings, served),
            });
            self.steps.push(start.with_reason("it has exited"));
        }
    }

    fn add_stop(&mut self, run_dir: &RunDir, served: &Served, because: impl Into<Reason>) {
        if served.run_dir == *run_dir {
            let stop = Action::Stop(Stop::from_served(served));
            self.steps.push(stop.with_reason(because));
        } else {
            self.obstacles.push(foreign_daemon(served));
        }
    }
}

impl Stop {
    /// Stops a device's daemon if it is idle.
    pub(super) fn from_served(served: &Served) -> Self {
        Self {
            name: served.record.name.clone(),
            uuid: served.record.uuid.clone(),
            joint: served.record.joint_gpus.clone(),
            patience: if is_stuck(served) {
                ClientPolicy::AT_ONCE
            } else {
                ClientPolicy::Idle
            },
            means: stop_method(served),
            alive: served.is_alive(),
            clients: ClientOf::all_of_device(served),
            pods: IdlePod::all_of_device(served),
            keeps_device: false,
            is_followed: false,
            unasked: unknown_clients_problem(served),
        }
    }
}

/// True for a daemon that admits no new clients, and that another command or `heal` sees to.
fn is_closed_for_clients(served: &Served) -> bool {
    match served.closer {
        Closer::ThisProcess => false,
        Closer::Another => served.closing().is_some(),
        Closer::Gone => served.state == DaemonState::Closing && !served.clients.are_none(),
    }
}

/// Stops a device's daemon before one with these settings.
fn stop_before(served: &Served, settings: &Settings) -> Stop {
    let stop = Stop::from_served(served);
    let before = serve_setting(&served.record.settings);
    let is_kept = served.record.runs_as_its_user().is_none()
        && serve_setting(settings).keeps_users_of(before);
    if is_kept { stop.with_successor() } else { stop }
}

/// True for a daemon that may not quit when asked, and whose end disturbs nobody: its server is stuck in a fault although
/// all clients have left, or an interrupted change left it starting.
pub(super) fn is_stuck(served: &Served) -> bool {
    let is_left_starting = served.state == DaemonState::Starting
        && served.is_abandoned
        && !served.servers.is_empty()
        && served.waiting.is_empty();
    served.clients.are_none() && (served.state == DaemonState::Fault || is_left_starting)
}

/// The means to stop a daemon.
fn stop_method(served: &Served) -> StopMethod {
    match served.state {
        // It may answer anything.
        _ if served.record.runs_as_its_user().is_some() => StopMethod::Signals,
        DaemonState::Hung(_) => StopMethod::Heal,
        // No session reaches it.
        DaemonState::Orphan | DaemonState::NoAnswer(_) | DaemonState::Suspended => {
            StopMethod::Signals
        }
        _ => StopMethod::Session,
    }
}

/// The reason to start or restart the daemon of a device.
fn restart_reason(served: &Served, wanted: &DevicePlan) -> Option<Reason> {
    if served.state == DaemonState::Dead && served.record.closing.is_some() {
        return Some(HAVE_LEFT.into());
    }
    if let Some(ailment) = served.state.outage_reason() {
        return Some(ailment.into());
    }
    wanted
        .difference_needing_restart(served)
        .or_else(|| (!served.record.finished).then(|| UNFINISHED.into()))
}

/// An interrupted start is finished where it stands.
fn is_unfinished_only(served: &Served, wanted: &DevicePlan) -> bool {
    stop_method(served) == StopMethod::Session
        && !served.record.finished
        && wanted.difference_needing_restart(served).is_none()
}

/// The settings of a daemon that goes on running: when its server starts does not change.
fn running_settings(settings: &Settings, served: &Served) -> Settings {
    Settings {
        server: served.record.settings.server,
        ..settings.clone()
    }
}

impl Set {
    /// The step that makes these changes to the running daemon of a device.
    pub(super) fn build_step(
        served: &Served,
        settings: Settings,
        changes: Vec<SettingChange>,
        by_hand: Vec<String>,
        device: Option<&Device>,
    ) -> Step {
        let mut because = Reason::settings(&changes).with_share(&settings);
        let new_limit = settings
            .pinned_memory_limit
            .filter(|limit| served.record.settings.pinned_memory_limit != Some(*limit));
        if let (Some(limit), Some(memory)) =
            (new_limit, device.and_then(Device::memory_of_each_gpu))
            && limit.bytes() > memory.total
        {
            let mib = memory.total >> 20;
            let whose = if served.record.key.is_joint() {
                "each GPU"
            } else {
                "the device"
            };
            because = because.with_remark(&format!(
                "{whose} has {mib} MiB, so this limit has no effect"
            ));
        }
        if let Some(limit) = served.hardware_limit
            && settings.intended_clients() > Some(limit)
        {
            let clients = if served.record.key.is_joint() {
                format!("{} clients on each GPU", served.part_of_one_gpu(limit))
            } else {
                format!("{limit} clients")
            };
            because = because.with_remark(&format!("its daemon accepts only {clients}"));
        }
        let set = Self {
            name: served.record.name.clone(),
            joint: served.record.joint_gpus.clone(),
            uuid: served.record.uuid.clone(),
            keep: clients_keeping_settings(&changes, served, &settings),
            settings,
            changes,
            by_hand,
        };
        Action::Set(set).with_reason(because)
    }
}

/// The clients that keep other settings than these; none where only settings change that MPS does not know.
fn clients_keeping_settings(
    changes: &[SettingChange],
    served: &Served,
    wanted: &Settings,
) -> Vec<ClientOf> {
    let controlled: Vec<&SettingKey> = KEYS
        .iter()
        .filter(|key| key.control_commands().is_some())
        .filter(|key| changes.iter().any(|change| change.key == key.name))
        .collect();
    if controlled.is_empty() {
        return Vec::new();
    }
    // Nobody knows which clients started after somebody else had changed the daemon.
    let is = &served.record.settings;
    let may_be_any = controlled
        .iter()
        .any(|key| (key.show)(is) == (key.show)(wanted));
    served
        .clients
        .as_slice()
        .iter()
        .filter(|client| may_be_any || !served.other_values(client, wanted).is_empty())
        .map(|client| ClientOf::from_client(served, client))
        .collect()
}

/// Plans new settings for the running daemons of devices; an empty plan if they have them.
///
/// # Errors
/// No daemon of `run_dir` serves one, or its daemon takes no settings.
pub fn set(
    node: &Node,
    run_dir: &RunDir,
    names: &[String],
    assignments: &[SettingAssignment],
) -> Result<Plan, Refusal> {
    check_driver_version(node)?;
    let mut plan = Plan::default();
    for name in names {
        let (device, served) = find_device_for_command(node, run_dir, name, Verb::Set)?;
        if let Some(step) = step_to_set(node, device, served, assignments)? {
            plan.gpu_plan_mut(node, &served.record.key.gpu)
                .steps
                .push(step);
        }
    }
    Ok(plan.complete(node, run_dir))
}

fn step_to_set(
    node: &Node,
    device: &Device,
    served: &Served,
    assignments: &[SettingAssignment],
) -> Result<Option<Step>, Refusal> {
    let record = &served.record;
    let mut settings = record.settings.clone();
    SettingAssignment::apply_all(assignments, &mut settings);
    if settings.share.is_none() && settings.oversubscribe > Oversubscription::NONE {
        let what = format!("device {} has no share to oversubscribe", record.name);
        let hint = format!(
            "run `mig-mps set {} share=N oversubscribe={}`, where N is the number of clients",
            record.name, settings.oversubscribe
        );
        return Err(Refusal::NotMeant(Problem::new(what, hint)));
    }
    // As `up` has found it, if it has.
    let was = record.settings.share.map(|share| share.device);
    let size = || was.or_else(|| node.size_of(device)).unwrap_or_default();
    let settings = settings.for_device_size(size).into_owned();
    let present = record.settings.pinned_memory_limit;
    let new_limit = settings
        .given_memory_limit()
        .filter(|limit| present != Some(*limit));
    if let Some(limit) = new_limit
        && record.key.instance.is_none()
        && let Some(whole_gpu) = node.gpu_with_uuid(&record.key.gpu)
        && let Some(what) = no_program_starts(node, whole_gpu, limit)
    {
        let problem = Problem::new(what, "raise the limit, or set it to \"none\"");
        return Err(Refusal::NotMeant(problem));
    }
    let changes = live_changes(served, &settings);
    if changes.is_empty() {
        return Ok(None);
    }
    let mut by_hand = record.by_hand.clone();
    let set = changes
        .iter()
        .filter(|change| assignments.iter().any(|one| one.sets_key(change.key)));
    by_hand.extend(set.map(|change| change.key.to_owned()));
    by_hand.sort_unstable();
    by_hand.dedup();
    Ok(Some(Set::build_step(
        served,
        settings,
        changes,
        by_hand,
        Some(device),
    )))
}
