//! The daemons that must start, change and stop on a GPU to serve its wanted devices.

use super::action::SettingChange;
use super::gate::{foreign_daemon, is_unknowable, unknowable};
use super::gpu_plan::DeviceAfter;
use super::layout::concerns_us;
use super::up::Planner;
use super::{
    Action, ClientOf, Obstacle, Place, Set, Start, StartServer, StartedBy, Step, Stop,
    UnmanagedDaemon, gpu_plan,
};
use crate::host::user_name;
use crate::mps::{Means, Patience};
use crate::node::{DaemonState, Gpu, Served};
use crate::profile::{NameTemplate, Span};
use crate::settings::{KEYS, Server, SettingKey, Settings, Update};
use crate::state::RunDir;

/// The reason to stop the daemon of a device that stays.
pub(super) const NO_DAEMON: &str = "the profile wants no daemon for it";

/// A device that the profile asks for.
pub(super) struct Slot<'a> {
    /// Its GPU's index.
    pub(super) gpu: u32,

    /// Its entry in the block: `{n}` counts entry by entry.
    pub(super) entry: usize,

    pub(super) place: Place,

    /// `3g.40gb`, or `1c.3g.40gb` for a compute instance with a part of the SMs; `None` for a whole GPU.
    pub(super) profile: Option<String>,

    /// The name that the profile gives, or the default one. A template until the names are given.
    pub(super) name: String,

    /// Where that name, or else the block, stands in the profile.
    pub(super) span: Span,

    /// The settings of its daemon, with `serve` always set; `None` for no daemon.
    pub(super) settings: Option<&'a Settings>,

    /// Its UUID, if the device is there and stays.
    pub(super) device: Option<&'a str>,

    /// Who serves it now, if the device is there and stays.
    pub(super) served: Option<&'a Served>,
}

impl Slot<'_> {
    /// The device as it is afterwards.
    pub(super) fn afterwards(&self) -> DeviceAfter {
        DeviceAfter {
            place: self.place,
            profile: self.profile.clone(),
            daemon: self
                .settings
                .map(|settings| (self.name.clone(), settings.clone())),
        }
    }

    pub(super) fn template(&self) -> NameTemplate<'_> {
        NameTemplate(&self.name)
    }

    /// Describes it as the holder of a name.
    pub(super) fn title(&self) -> String {
        format!("a device of GPU {}", self.gpu)
    }

    /// True if its device has that record: a run directory has one for each UUID.
    fn is_served_by(&self, served: &Served) -> bool {
        self.served.is_some_and(|own| {
            own.record.uuid == served.record.uuid && own.run_dir == served.run_dir
        })
    }

    /// Returns the settings that can change while its daemon runs, and must.
    pub(super) fn changes(&self, served: &Served) -> Vec<SettingChange> {
        match self.settings {
            Some(settings) => live_changes(served, settings),
            None => Vec::new(),
        }
    }

    /// Returns a difference that needs a restart, in words.
    pub(super) fn difference(&self, served: &Served) -> Option<String> {
        let record = &served.record;
        let Some(settings) = self.settings else {
            return Some(NO_DAEMON.to_owned());
        };
        if !self.template().makes(self.gpu, &record.name) {
            let wanted = self.template().fill(self.gpu, 0);
            return Some(format!("it is renamed from {} to {wanted}", record.name));
        }
        if record.settings.serve != settings.serve {
            let (is, wanted) = (serve_of(&record.settings), serve_of(settings));
            return Some(format!("serve is \"{is}\", not \"{wanted}\""));
        }
        if let Some(user) = record.runs_as_its_user() {
            return Some(format!(
                "its daemon runs as {}, not as root",
                user_name(user)
            ));
        }
        needs_restart(served, settings).or_else(|| {
            let because = "the GPU's compute mode is no longer exclusive-process";
            served.mode_is_lost().then(|| because.to_owned())
        })
    }
}

fn serve_of(settings: &Settings) -> String {
    match &settings.serve {
        Some(serve) => serve.to_string(),
        None => "?".to_owned(),
    }
}

/// The steps for the daemons of one GPU.
#[derive(Default)]
pub(super) struct Daemons {
    pub(super) stops: Vec<Step>,
    pub(super) sets: Vec<Step>,
    /// Servers of running daemons.
    pub(super) servers: Vec<Step>,
    /// From left to right.
    pub(super) starts: Vec<(Place, Step)>,
    pub(super) obstacles: Vec<Obstacle>,
}

impl Daemons {
    /// Plans the daemons of a GPU's slots, which have their names.
    pub(super) fn of(planner: Planner<'_>, gpu: &Gpu, slots: &[Slot<'_>]) -> Self {
        let mut daemons = Self::default();
        for slot in slots {
            if let Some(settings) = slot.settings {
                daemons.serve(planner, slot, settings);
            }
        }
        daemons.starts.sort_by_key(|(place, _)| *place);
        for device in &planner.node.devices {
            let Some(served) = &device.served else {
                continue;
            };
            if device.key.gpu != gpu.uuid || !concerns_us(served, planner.run_dir) {
                continue;
            }
            let because = match slots.iter().find(|slot| slot.is_served_by(served)) {
                Some(slot) if slot.settings.is_some() => continue,
                // A user may serve a device that the profile leaves without a daemon.
                Some(_) if served.run_dir != *planner.run_dir => continue,
                Some(_) => NO_DAEMON,
                None if device.is_gone() => "its device is gone",
                None => "not in the profile",
            };
            daemons.stop(planner.run_dir, served, because);
        }
        daemons
    }

    /// Plans the daemon of one slot.
    fn serve(&mut self, planner: Planner<'_>, slot: &Slot<'_>, settings: &Settings) {
        let run_dir = planner.run_dir;
        let beside = slot
            .device
            .and_then(|uuid| planner.node.device_with_uuid(uuid))
            .map(|device| UnmanagedDaemon::on_device(planner.node, run_dir, device))
            .unwrap_or_default();
        let because = match slot.served {
            None => match slot.device.and_then(|uuid| lost_on(planner, uuid)) {
                Some(lost) => {
                    let because = lost.state.ailment().unwrap_or_default();
                    self.stop(run_dir, lost, because);
                    because.to_owned()
                }
                None => gpu_plan::reason_to_start(&beside),
            },
            Some(served) if served.run_dir != *run_dir => {
                self.obstacles.push(foreign_daemon(served));
                return;
            }
            Some(served) => {
                let Some(because) = reason(served, slot) else {
                    self.set(slot, settings, served);
                    self.start_server(settings, served);
                    return;
                };
                if served.is_alive() && !is_unfinished_only(served, slot) {
                    self.stop(run_dir, served, &because);
                }
                because
            }
        };
        let start = Start {
            name: slot.name.clone(),
            place: slot.place,
            settings: settings.clone(),
            by_hand: Vec::new(),
            by: StartedBy::Up,
            beside,
        };
        let step = Action::Start(start).because(because);
        self.starts.push((slot.place, step));
    }

    /// Plans the settings that can change while the daemon runs.
    fn set(&mut self, slot: &Slot<'_>, settings: &Settings, served: &Served) {
        let changes = slot.changes(served);
        if !changes.is_empty() {
            let settings = settings_of(settings, served);
            let step = Set::step(served, settings, changes, Vec::new());
            self.sets.push(step);
        }
    }

    /// Plans to start an eager server that has exited. A waiting client gets one from the daemon.
    fn start_server(&mut self, settings: &Settings, served: &Served) {
        let is_wanted = settings.server == Server::Eager && served.has_lost_its_server();
        let is_idle = served.clients.are_none() && served.waiting.is_empty();
        if is_wanted && is_idle {
            let start = Action::StartServer(StartServer {
                name: served.record.name.clone(),
                uuid: served.record.uuid.clone(),
                settings: settings_of(settings, served),
            });
            self.servers.push(start.because("it has ended"));
        }
    }

    fn stop(&mut self, run_dir: &RunDir, served: &Served, because: &str) {
        if served.run_dir == *run_dir {
            let stop = Action::Stop(Stop::of(served));
            self.stops.push(stop.because(because));
        } else {
            self.obstacles.push(foreign_daemon(served));
        }
    }
}

/// Returns the daemon of a device that has lost its record and its pipe directory. One that lost the record alone is taken
/// over.
fn lost_on<'a>(planner: Planner<'a>, uuid: &str) -> Option<&'a Served> {
    let mut lost = planner.node.lost_records.iter();
    lost.find(|lost| {
        let is_its = lost.record.uuid == uuid && lost.run_dir == *planner.run_dir;
        is_its && lost.state == DaemonState::Orphan
    })
}

impl Stop {
    /// Stops a device's daemon if it is idle.
    pub(super) fn of(served: &Served) -> Self {
        Self {
            name: served.record.name.clone(),
            uuid: served.record.uuid.clone(),
            patience: if is_stuck(served) {
                Patience::AT_ONCE
            } else {
                Patience::Idle
            },
            means: means(served),
            alive: served.is_alive(),
            clients: ClientOf::all(served),
            unasked: is_unknowable(served).then(|| unknowable(served)),
        }
    }
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
fn means(served: &Served) -> Means {
    match served.state {
        // It may answer anything.
        _ if served.record.runs_as_its_user().is_some() => Means::Signals,
        DaemonState::Hung(_) => Means::Heal,
        // No session reaches it.
        DaemonState::Orphan | DaemonState::NoAnswer(_) | DaemonState::Stopped => Means::Signals,
        _ => Means::Session,
    }
}

/// The reason to start or restart the daemon of a slot.
fn reason(served: &Served, slot: &Slot<'_>) -> Option<String> {
    if let Some(ailment) = served.state.ailment() {
        return Some(ailment.to_owned());
    }
    slot.difference(served).or_else(|| {
        let because = "an interrupted change did not finish it";
        (!served.record.finished).then(|| because.to_owned())
    })
}

/// An interrupted start is finished where it stands.
fn is_unfinished_only(served: &Served, slot: &Slot<'_>) -> bool {
    let is_reachable = !matches!(
        served.state,
        DaemonState::Orphan
            | DaemonState::NoAnswer(_)
            | DaemonState::Stopped
            | DaemonState::Hung(_)
    );
    is_reachable && !served.record.finished && slot.difference(served).is_none()
}

/// The settings of a daemon that goes on running: when its server starts does not change.
fn settings_of(settings: &Settings, served: &Served) -> Settings {
    Settings {
        server: served.record.settings.server,
        ..settings.clone()
    }
}

impl SettingChange {
    fn of(key: &SettingKey, is: &Settings, wanted: &Settings) -> Self {
        Self {
            key: key.name,
            is: (key.show)(is),
            wanted: (key.show)(wanted),
        }
    }
}

impl Set {
    /// The step that makes these changes to a running daemon.
    pub(super) fn step(
        served: &Served,
        settings: Settings,
        changes: Vec<SettingChange>,
        by_hand: Vec<String>,
    ) -> Step {
        let because: Vec<String> = changes
            .iter()
            .map(|change| format!("{} from {} to {}", change.key, change.is, change.wanted))
            .collect();
        let set = Self {
            name: served.record.name.clone(),
            uuid: served.record.uuid.clone(),
            settings,
            keep: keep(&changes, served),
            changes,
            by_hand,
        };
        Action::Set(set).because(because.join("; "))
    }
}

/// The clients that keep their old settings; none for settings that MPS does not know.
fn keep(changes: &[SettingChange], served: &Served) -> Vec<ClientOf> {
    let mut controlled = KEYS.iter().filter(|key| key.control().is_some());
    if controlled.any(|key| changes.iter().any(|change| change.key == key.name)) {
        ClientOf::all(served)
    } else {
        Vec::new()
    }
}

/// The settings of a daemon that differ from what they should be and can be changed while it runs: those recorded, or
/// those that the daemon itself reports.
pub(super) fn live_changes(served: &Served, wanted: &Settings) -> Vec<SettingChange> {
    KEYS.iter()
        .filter(|key| key.is_live())
        .filter_map(|key| live_change(key, served, wanted))
        .collect()
}

fn live_change(key: &SettingKey, served: &Served, wanted: &Settings) -> Option<SettingChange> {
    let record = &served.record;
    let mut change = SettingChange::of(key, &record.settings, wanted);
    if change.is == change.wanted {
        // Somebody else may have set another value in the daemon.
        let reported = served.answered.as_ref()?;
        change.is = format!("{} in the daemon", reported.difference(key, wanted)?);
    }
    if record.by_hand.iter().any(|by_hand| by_hand == key.name) {
        change.is.push_str(" (set by hand)");
    }
    Some(change)
}

/// Returns a setting that differs from the wanted one and needs a restart, in words.
pub(super) fn needs_restart(served: &Served, wanted: &Settings) -> Option<String> {
    KEYS.iter()
        .filter(|key| matches!(key.update, Update::Restart))
        .map(|key| SettingChange::of(key, &served.record.settings, wanted))
        .find(|change| change.is != change.wanted)
        .map(|change| change.to_string())
}
