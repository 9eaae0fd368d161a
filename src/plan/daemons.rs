//! The daemons that must start and stop on a GPU to serve its wanted devices.

use super::instance_use::{concerns_us, is_unknowable};
use super::slot::{DaemonSpec, Slot};
use super::{
    Action, Beside, ClientOf, Obstacle, Place, Set, Start, StartServer, Step, Stop, beside,
    setting_change,
};
use crate::mps::{Means, Patience};
use crate::node::{DaemonState, Gpu, Node, Served};
use crate::profile::NameTemplate;
use crate::settings::{Server, Settings};
use crate::state::RunDir;

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
    pub(super) fn of(node: &Node, run_dir: &RunDir, gpu: &Gpu, slots: &[Slot<'_>]) -> Self {
        let mut daemons = Self::default();
        let mut kept: Vec<&Served> = Vec::new();
        for slot in slots {
            kept.extend(slot.served);
            daemons.serve(node, run_dir, slot);
        }
        daemons.starts.sort_by_key(|(place, _)| *place);
        let theirs = |served: &&Served| served.record.key.gpu == gpu.uuid;
        for served in node.served.iter().filter(theirs) {
            let stays = kept.iter().any(|kept| std::ptr::eq(*kept, served));
            if stays || !concerns_us(served, run_dir) {
                continue;
            }
            let because = if served.device_is_there {
                "the profile does not ask for it"
            } else {
                "its device is gone"
            };
            daemons.stop(run_dir, served, because.to_owned());
        }
        daemons
    }

    /// Plans the daemon of one slot.
    fn serve(&mut self, node: &Node, run_dir: &RunDir, slot: &Slot<'_>) {
        let beside = slot.device.map(|uuid| Beside::all(node, run_dir, uuid));
        let beside = beside.unwrap_or_default();
        let because = match slot.served {
            None => beside::because(&beside),
            Some(served) if served.run_dir != *run_dir => {
                self.obstacles.push(elsewhere(served));
                return;
            }
            Some(served) => {
                let Some(because) = reason(served, slot) else {
                    self.set(slot, served);
                    self.start_server(slot, served);
                    return;
                };
                if served.is_alive() && !is_unfinished_only(served, slot) {
                    self.stop(run_dir, served, because.clone());
                }
                because
            }
        };
        let start = Start {
            name: slot.name.clone(),
            place: slot.place,
            settings: settings(slot),
            by_hand: Vec::new(),
            again: false,
            beside,
        };
        let step = Step {
            action: Action::Start(start),
            because,
        };
        self.starts.push((slot.place, step));
    }

    /// Plans the settings that can change while the daemon runs.
    fn set(&mut self, slot: &Slot<'_>, served: &Served) {
        let changes = spec(slot).changes(served);
        if changes.is_empty() {
            return;
        }
        let because = setting_change::in_words(&changes);
        let set = Set {
            name: served.record.name.clone(),
            uuid: served.record.uuid.clone(),
            settings: settings_of(slot, served),
            keep: setting_change::keep(&changes, served),
            changes,
            by_hand: Vec::new(),
        };
        self.sets.push(Step {
            action: Action::Set(set),
            because,
        });
    }

    /// Plans to start an eager server that has exited. A waiting client gets one from the daemon.
    fn start_server(&mut self, slot: &Slot<'_>, served: &Served) {
        let is_wanted = slot.settings.server == Server::Eager && served.has_lost_its_server();
        let is_idle = served.clients.are_none() && served.waiting.is_empty();
        if !is_wanted || !is_idle {
            return;
        }
        let start = StartServer {
            name: served.record.name.clone(),
            uuid: served.record.uuid.clone(),
            settings: settings_of(slot, served),
        };
        self.servers.push(Step {
            action: Action::StartServer(start),
            because: "it has ended".to_owned(),
        });
    }

    fn stop(&mut self, run_dir: &RunDir, served: &Served, because: String) {
        if served.run_dir == *run_dir {
            self.stops.push(Step {
                action: Action::Stop(Stop::of(served)),
                because,
            });
        } else {
            self.obstacles.push(elsewhere(served));
        }
    }
}

impl Stop {
    /// Stops a device's daemon if it is idle.
    pub(super) fn of(served: &Served) -> Self {
        Self {
            name: served.record.name.clone(),
            uuid: served.record.uuid.clone(),
            patience: Patience::Idle,
            means: means(served),
            alive: served.is_alive(),
            clients: ClientOf::all(served),
            unasked: is_unknowable(served).then(|| unknowable(served)),
        }
    }
}

/// The means to stop a daemon.
fn means(served: &Served) -> Means {
    match served.state {
        DaemonState::Hung => Means::Heal,
        // No session reaches it.
        DaemonState::Orphan | DaemonState::NoAnswer => Means::Signals,
        // A user's daemon may answer anything.
        _ if served.is_a_users() => Means::Signals,
        _ => Means::Session,
    }
}

/// The reason to restart the server of a hung daemon.
pub(super) const HUNG: &str = "it hangs: every new client waits for ever";

/// The reason to start or restart the daemon of a slot.
fn reason(served: &Served, slot: &Slot<'_>) -> Option<String> {
    match served.state {
        DaemonState::Dead => return Some("its daemon has died".to_owned()),
        DaemonState::Orphan => return Some("its pipe directory was removed".to_owned()),
        DaemonState::NoAnswer => return Some("its daemon does not answer".to_owned()),
        DaemonState::Hung => return Some(HUNG.to_owned()),
        _ => {}
    }
    difference(served, slot).or_else(|| {
        let because = "an interrupted change did not finish it";
        (!served.record.finished).then(|| because.to_owned())
    })
}

/// An interrupted start is finished where it stands.
fn is_unfinished_only(served: &Served, slot: &Slot<'_>) -> bool {
    let is_reachable = !matches!(
        served.state,
        DaemonState::Orphan | DaemonState::NoAnswer | DaemonState::Hung
    );
    is_reachable && !served.record.finished && difference(served, slot).is_none()
}

fn difference(served: &Served, slot: &Slot<'_>) -> Option<String> {
    spec(slot).difference(served)
}

fn spec<'a>(slot: &'a Slot<'_>) -> DaemonSpec<'a> {
    DaemonSpec {
        gpu: slot.gpu,
        // The name was given: another one of the same template will not do.
        template: NameTemplate(&slot.name),
        serve: slot.serve.clone(),
        settings: slot.settings,
    }
}

/// A slot's settings, with whose clients it serves.
fn settings(slot: &Slot<'_>) -> Settings {
    Settings {
        serve: Some(slot.serve.clone()),
        ..slot.settings.clone()
    }
}

/// The settings of a daemon that goes on running: when its server starts does not change.
fn settings_of(slot: &Slot<'_>, served: &Served) -> Settings {
    Settings {
        server: served.record.settings.server,
        ..settings(slot)
    }
}

/// A device served from another run directory is not ours to change.
pub(super) fn elsewhere(served: &Served) -> Obstacle {
    Obstacle {
        what: format!(
            "device {} is served by a daemon of {}",
            served.record.name,
            served.run_dir.path().display()
        ),
        hint: "take that one down first, as its owner".to_owned(),
    }
}

/// A record that cannot be read may be that of a daemon that lives.
pub(super) fn unreadable(node: &Node, run_dir: &RunDir) -> Option<Obstacle> {
    let mut unreadable = node.unreadable.iter();
    let (_, problem) = unreadable.find(|(other, _)| other == run_dir)?;
    Some(Obstacle {
        what: format!("{problem}: whether a daemon lives there is unknown"),
        hint: "mig-mps up with its profile takes a living daemon over and writes the record anew"
            .to_owned(),
    })
}

/// A device of which there is no record here: another user's daemon may serve it.
pub(super) fn unserved(node: &Node, name: &str, verb: &str, obstacle: Obstacle) -> Obstacle {
    match node.managed_by(name, verb) {
        Some(command) => Obstacle {
            hint: command,
            ..obstacle
        },
        None => obstacle,
    }
}

/// A daemon that hangs takes no commands.
pub(super) fn hangs(served: &Served) -> Obstacle {
    let name = &served.record.name;
    Obstacle {
        what: format!("the daemon of {name} hangs: it takes no commands and no new clients"),
        hint: format!("mig-mps restart {name} ends that"),
    }
}

/// The obstacle of a daemon with unknown clients: it is not touched.
pub(super) fn unknowable(served: &Served) -> Obstacle {
    let name = &served.record.name;
    let (why, hint) = match served.state {
        DaemonState::Hidden if served.problem.is_some() => (
            served.problem.as_deref().unwrap_or_default(),
            "see why it does not start, and run this again".to_owned(),
        ),
        DaemonState::Orphan => (
            "its pipe directory was removed",
            format!("end it with mig-mps down {name} --force"),
        ),
        DaemonState::Busy => (
            "another control session is open",
            "either another mig-mps is waiting for clients to exit, or somebody left nvidia-cuda-mps-control open: \
             wait, or close it"
                .to_owned(),
        ),
        DaemonState::Hung => (
            "it hangs, and the driver hides its clients",
            format!("mig-mps restart {name} --force ends its server, with whatever computes there"),
        ),
        DaemonState::NoAnswer => (
            "it does not answer",
            "check whether it is stopped or hangs; the kernel log may say".to_owned(),
        ),
        _ => (
            "it may not be asked",
            "run this as its owner, or as root for root's".to_owned(),
        ),
    };
    Obstacle {
        what: format!("the daemon of {name} cannot be asked for its clients: {why}"),
        hint,
    }
}
