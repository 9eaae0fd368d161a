//! Which daemons must start and end on a GPU, given which devices it shall have.

use super::{Action, ClientOf, GpuPlan, Place, Refusal, Start, Step, Stop};
use crate::mps::Patience;
use crate::node::{Device, Gpu, Life, Node, RunDir, Served};
use crate::profile::{Serve, Settings};

/// A device as the profile wants it.
pub(super) struct Aim {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) serve: Serve,
    pub(super) settings: Settings,
}

/// Adds to a GPU's plan what its daemons need: ends before everything else, starts behind it.
pub(super) fn plan(
    node: &Node,
    home: &RunDir,
    gpu: &Gpu,
    aims: &[Aim],
    plan: &mut GpuPlan,
) -> Result<(), Refusal> {
    Daemons { node, home }.plan(gpu, aims, plan)
}

struct Daemons<'a> {
    node: &'a Node,
    home: &'a RunDir,
}

impl Daemons<'_> {
    fn plan(&self, gpu: &Gpu, aims: &[Aim], plan: &mut GpuPlan) -> Result<(), Refusal> {
        let devices = gpu.devices();
        let mut kept: Vec<&Served> = Vec::new();
        let mut starts = Vec::new();
        let mut stops = Vec::new();
        for aim in aims {
            let device = find(&devices, aim.place);
            let served = device.and_then(|device| self.node.served_on(&device.key));
            let present =
                served.filter(|served| served.device_is_there && self.concerns_us(served));
            kept.extend(present);
            if let Some(served) = present {
                self.check_home(served)?;
            }
            let because = match present {
                None => "no daemon serves it".to_owned(),
                Some(served) if matches!(served.life, Life::Orphan | Life::NoAnswer) => {
                    return Err(unknowable(served));
                }
                Some(served) => match difference(served, aim) {
                    _ if served.life == Life::Dead => "its daemon has died".to_owned(),
                    Some(difference) => {
                        stops.push(stop(served, difference.clone())?);
                        difference
                    }
                    None if !served.record.finished => {
                        "an interrupted up did not finish it".to_owned()
                    }
                    None => continue,
                },
            };
            starts.push(Step {
                action: Action::Start(Start {
                    name: aim.name.clone(),
                    place: aim.place,
                    serve: aim.serve,
                    server: aim.settings.server,
                    active_thread_percentage: aim.settings.active_thread_percentage,
                }),
                because,
            });
        }
        for served in self
            .node
            .served
            .iter()
            .filter(|served| served.record.key.gpu == gpu.uuid)
        {
            if kept.iter().any(|kept| std::ptr::eq(*kept, served)) || !self.concerns_us(served) {
                continue;
            }
            self.check_home(served)?;
            let because = if served.device_is_there {
                "the profile does not ask for it"
            } else {
                "its device is gone"
            };
            stops.push(stop(served, because.to_owned())?);
        }
        plan.steps.splice(0..0, stops);
        plan.steps.extend(starts);
        Ok(())
    }

    /// What another user's dead daemon left is neither in the way nor ours to clear away.
    fn concerns_us(&self, served: &Served) -> bool {
        served.run_dir == *self.home || served.is_alive()
    }

    /// A device served from another run directory is not ours to change.
    fn check_home(&self, served: &Served) -> Result<(), Refusal> {
        if served.run_dir == *self.home {
            return Ok(());
        }
        Err(Refusal::InTheWay {
            what: format!(
                "device {} is served by a daemon of {}",
                served.record.name,
                served.run_dir.path().display()
            ),
            hint: "take that one down first, as its owner".to_owned(),
        })
    }
}

/// Ends a daemon that has no clients.
fn stop(served: &Served, because: String) -> Result<Step, Refusal> {
    if matches!(
        served.life,
        Life::Busy | Life::Hidden | Life::NoAnswer | Life::Orphan
    ) {
        return Err(unknowable(served));
    }
    if !served.clients.is_empty() {
        return Err(Refusal::InUse {
            clients: ClientOf::all(served),
            hint: format!(
                "let them end, or take the device down first: mig-mps down {} --drain SECONDS",
                served.record.name
            ),
        });
    }
    Ok(Step {
        action: Action::Stop(Stop {
            name: served.record.name.clone(),
            uuid: served.record.uuid.clone(),
            patience: Patience::Idle,
            alive: served.is_alive(),
        }),
        because,
    })
}

/// Whether a daemon has clients cannot be told: it is not touched.
pub(super) fn unknowable(served: &Served) -> Refusal {
    let name = &served.record.name;
    let (why, hint) = match served.life {
        Life::Orphan => (
            "its pipe directory was removed",
            format!("end it with mig-mps down {name} --now"),
        ),
        Life::Busy => (
            "somebody else's control session is open",
            "close it (a forgotten nvidia-cuda-mps-control?) and try again".to_owned(),
        ),
        Life::NoAnswer => (
            "it does not answer",
            "look whether it is stopped or hangs; the kernel log may tell".to_owned(),
        ),
        _ => (
            "it may not be asked",
            "run this as its owner, or as root for root's".to_owned(),
        ),
    };
    Refusal::InTheWay {
        what: format!("the daemon of {name} cannot be asked for its clients: {why}"),
        hint,
    }
}

/// What of a running daemon is not as the profile says.
fn difference(served: &Served, aim: &Aim) -> Option<String> {
    let record = &served.record;
    let has = &record.settings;
    let text = |serve: Option<Serve>| serve.map_or_else(|| "?".to_owned(), |s| s.to_string());
    if record.name != aim.name {
        return Some(format!("it is called {}, not {}", record.name, aim.name));
    }
    if has.serve != Some(aim.serve) {
        return Some(format!(
            "serve is \"{}\", not \"{}\"",
            text(has.serve),
            aim.serve
        ));
    }
    let (is, shall) = (
        has.active_thread_percentage,
        aim.settings.active_thread_percentage,
    );
    if is != shall {
        return Some(format!("active-thread-percentage is {is}, not {shall}"));
    }
    if let Some(answered) = served
        .percentage
        .filter(|answered| shall.differs_from(*answered))
    {
        return Some(format!(
            "active-thread-percentage answers {answered}, not {shall}"
        ));
    }
    None
}

fn find(devices: &[Device], place: Place) -> Option<&Device> {
    match place {
        Place::Whole => devices.iter().find(|device| device.part.is_none()),
        Place::Part { placement, nth } => devices
            .iter()
            .filter(|device| {
                device
                    .part
                    .as_ref()
                    .is_some_and(|part| part.placement == placement)
            })
            .nth(nth),
    }
}
