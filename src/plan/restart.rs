//! Daemons that are ended and started again as they were.

use super::daemons::{elsewhere, unreadable};
use super::down::gpu_plan;
use super::up::visible;
use super::{Action, Obstacle, Place, Plan, Refusal, Start, Step, Stop};
use crate::mps::Patience;
use crate::node::{Gpu, Life, Node, RunDir, Served};

/// What starts the daemons of the devices with these names again, with the settings they have now, those that were set
/// by hand among them.
///
/// # Errors
/// A [`Refusal`]: where `home` has no record of one, or its device is gone. Clients are for [`Plan::permit`].
pub fn restart(node: &Node, home: &RunDir, names: &[String]) -> Result<Plan, Refusal> {
    let mut plan = Plan::default();
    let mut starts = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            continue;
        }
        let served = served(node, home, name)?;
        let (gpu, place) = place(node, served)?;
        let because = because(served);
        if served.is_alive() {
            gpu_plan(node, &mut plan, &gpu.uuid).steps.push(Step {
                action: Action::Stop(stop(served)),
                because: because.to_owned(),
            });
        }
        let by_hand = &served.record.by_hand;
        let step = Step {
            because: match by_hand.as_slice() {
                [] => because.to_owned(),
                keys => format!("{because}; {} as set by hand", keys.join(", ")),
            },
            action: Action::Start(Start {
                name: name.clone(),
                place,
                settings: served.record.settings.clone(),
                by_hand: by_hand.clone(),
                again: true,
            }),
        };
        starts.push((&gpu.uuid, step));
    }
    for (gpu, step) in starts {
        gpu_plan(node, &mut plan, gpu).steps.push(step);
    }
    plan.gpus.sort_by_key(|gpu| gpu.index);
    Ok(plan)
}

/// The record that says how a device shall be served.
fn served<'a>(node: &'a Node, home: &RunDir, name: &str) -> Result<&'a Served, Refusal> {
    let mut named = node.served.iter();
    let Some(served) = named.find(|served| served.record.name == name) else {
        return Err(unreadable(node, home)
            .unwrap_or_else(|| Obstacle {
                what: format!("{name} has no daemon to be started again: nobody serves it"),
                hint: "start it with mig-mps up and its profile".to_owned(),
            })
            .into());
    };
    if served.run_dir != *home {
        return Err(Obstacle {
            hint: "run this as its owner".to_owned(),
            ..elsewhere(served)
        }
        .into());
    }
    Ok(served)
}

/// Where the device lies.
fn place<'a>(node: &'a Node, served: &Served) -> Result<(&'a Gpu, Place), Refusal> {
    let record = &served.record;
    let gone = || Obstacle {
        what: format!(
            "the device of {} is gone: no daemon could serve it",
            record.name
        ),
        hint: format!(
            "mig-mps up with its profile makes it again; mig-mps down {} removes what is left",
            record.name
        ),
    };
    let mut gpus = node.gpus.iter();
    let gpu = gpus.find(|gpu| gpu.uuid == record.key.gpu);
    let gpu = gpu.ok_or_else(gone)?;
    let Some(key) = record.key.instance else {
        return if served.device_is_there {
            Ok((gpu, Place::Whole))
        } else {
            Err(gone().into())
        };
    };
    visible(gpu)?;
    let mut instances = gpu.instances.iter();
    let instance = instances.find(|instance| {
        instance.placement == key.placement
            && instance.profile == key.profile
            && served.device_is_there
    });
    let nth = instance.and_then(|instance| {
        let mut compute = instance.compute.iter();
        compute.position(|compute| compute.placement == key.compute)
    });
    let placement = key.placement;
    let nth = nth.ok_or_else(gone)?;
    Ok((gpu, Place::Part { placement, nth }))
}

fn stop(served: &Served) -> Stop {
    let mut stop = Stop::of(served);
    let name = &stop.name;
    if let Some(obstacle) = &mut stop.unasked
        && served.life == Life::Orphan
    {
        obstacle.hint = format!(
            "no program reaches it any more: mig-mps restart {name} --force ends it, with what may still compute there"
        );
    }
    // A server that is stuck in a fault may not end when it is asked to, and admits nobody.
    if is_stuck(served) {
        stop.patience = Patience::AT_ONCE;
    }
    stop
}

/// Whether it has met a fault that its clients' end has not cleared.
fn is_stuck(served: &Served) -> bool {
    served.life == Life::Fault && served.is_known && served.clients.is_empty()
}

fn because(served: &Served) -> &'static str {
    match served.life {
        Life::Dead if served.record.daemon.is_none() => "an interrupted change has not started it",
        Life::Dead => "its daemon has died",
        Life::Orphan => "its pipe directory was removed",
        Life::NoAnswer => "its daemon does not answer",
        Life::Fault if is_stuck(served) => "its fault does not clear",
        Life::Fault => "a GPU fault",
        _ => "asked for",
    }
}
