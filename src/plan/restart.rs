//! Daemons that restart unchanged: asked for by hand, or because they have died or hang.

use super::daemons::{HAVE_LEFT, UNFINISHED, WAS_STOPPED, is_stuck};
use super::preconditions::{Verb, check_ours, check_own_daemon, find_device_for_command};
use super::refusal::{check_driver_version, check_visible};
use super::{Action, Close, Place, Plan, Reason, Refusal, Start, StartedBy, Stop, UnmanagedDaemon};
use crate::failure::Problem;
use crate::node::{
    Closer, DaemonState, Device, Gpu, LOST_GPU_REMEDY, Node, Presence, Served, Unseen,
    restore_remedy,
};
use crate::state::{Closing, DeviceRecord, InstanceKey, NextDaemon, RunDir};

/// Plans to restart the daemons of the devices with these names, with their present settings, including those set by
/// hand, and to start those of stopped devices.
///
/// # Errors
/// `run_dir` has no record of a device, or the device is gone. [`Plan::permit`] refuses for clients.
pub fn restart(node: &Node, run_dir: &RunDir, names: &[String]) -> Result<Plan, Refusal> {
    let plan = plan_restarts(node, run_dir, names, StartedBy::Restart)?;
    Ok(plan.complete(node, run_dir))
}

/// Plans the same for those of these devices whose daemons do not run.
///
/// # Errors
/// As of [`restart`].
pub fn start(node: &Node, run_dir: &RunDir, names: &[String]) -> Result<Plan, Refusal> {
    let closed = names.iter().find_map(|name| {
        let served = node.served_named(name)?;
        // What is left when its daemon has ended is served again.
        let is_left = served.is_left_to_heal() && !served.is_alive();
        if is_left {
            return None;
        }
        Some((served, served.closing()?))
    });
    if let Some((served, closing)) = closed {
        let what = served.describe_closed_device().unwrap_or_default();
        let hint = match (served.closer, &closing.next) {
            (_, None) => "run `mig-mps up` to start a daemon again when its programs have exited",
            (Closer::Gone, _) => {
                "run `mig-mps heal` to start its daemon again when its programs have exited"
            }
            _ => {
                "wait for that command, which starts the daemon again when its programs have exited"
            }
        };
        return Err(Problem::new(what, hint).into());
    }
    let runs = |name: &&String| node.served_named(name).is_some_and(Served::is_alive);
    let idle: Vec<String> = names.iter().filter(|name| !runs(name)).cloned().collect();
    restart(node, run_dir, &idle)
}

/// Plans to start the daemons that have died, to restart those that hang and have no clients, and to end servers without
/// clients that outlived their daemons. Of the devices with these names, or of all if none is named; the others stay as
/// they are, and so do all while a change is in progress.
///
/// # Errors
/// The daemon of a named device, or every daemon if none is named, is of another run directory and needs it.
pub fn heal(node: &Node, run_dir: &RunDir, names: &[String]) -> Result<Plan, Refusal> {
    if node.is_changing() {
        return Ok(Plan::default());
    }
    let (ours, foreign): (Vec<&Served>, Vec<&Served>) = node
        .devices
        .iter()
        .filter(|device| names.is_empty() || names.contains(&device.name))
        .filter(|device| needs_healing(device, node))
        .filter_map(|device| device.served.as_ref())
        .partition(|served| served.run_dir == *run_dir);
    if let Some(served) = foreign.first() {
        if !names.is_empty() {
            check_ours(served, run_dir)?;
        }
        check_own_daemon(node, run_dir)?;
    }
    let (closing, failed): (Vec<&Served>, Vec<&Served>) = ours
        .into_iter()
        .partition(|served| served.record.closing.is_some());
    let healed: Vec<String> = failed
        .iter()
        .map(|served| served.record.name.clone())
        .collect();
    let mut plan = plan_restarts(node, run_dir, &healed, StartedBy::Heal)?;
    for served in closing {
        plan.add_next_daemon(node, run_dir, served);
    }
    plan.end_idle_strays(node, |device| {
        names.is_empty() || names.contains(&device.name)
    });
    Ok(plan.complete(node, run_dir))
}

impl Plan {
    /// Adds what follows for a device that was closed to new programs: its daemon ends, and another one starts, or the device
    /// stays stopped. A device that is gone is left to `up`.
    fn add_next_daemon(&mut self, node: &Node, run_dir: &RunDir, served: &Served) {
        let (Some(closing), Some(device)) = (
            &served.record.closing,
            node.device_with_uuid(&served.record.uuid),
        ) else {
            return;
        };
        let Ok((gpu, place)) = place_of(node, device, Some(served)) else {
            return;
        };
        let (name, uuid) = (served.record.name.clone(), served.record.uuid.clone());
        let action = match &closing.next {
            next if served.is_alive() => Action::Close(Close {
                name,
                joint: device.joint_gpus.clone(),
                uuid,
                until: closing.until,
                next: next.clone(),
                is_waited_for: false,
                held: None,
            }),
            Some(next) => Action::Start(Start {
                name: next.name.clone(),
                place,
                joint: device.joint_gpus.clone(),
                uuid: Some(uuid),
                settings: next.settings.clone(),
                served_id: None,
                by_hand: next.by_hand.clone(),
                by: StartedBy::Restart,
                beside: UnmanagedDaemon::on_device(node, run_dir, device),
            }),
            None => Action::Stop(Stop {
                keeps_device: true,
                ..Stop::from_served(served)
            }),
        };
        let steps = &mut self.gpu_plan_mut(node, &gpu.uuid).steps;
        steps.push(action.with_reason(HAVE_LEFT));
    }
}

/// True if `heal` starts or restarts it.
pub fn needs_healing(device: &Device, node: &Node) -> bool {
    let Some(served) = &device.served else {
        return false;
    };
    let record = &served.record;
    if record.closing.is_some() && served.closer != Closer::Gone {
        return false;
    }
    let is_asked = record
        .closing
        .as_ref()
        .is_some_and(|closing| closing.is_asked);
    let is_down = match served.state {
        DaemonState::Dead if record.closing.is_some() => record.boot_id == node.boot_id,
        DaemonState::Dead => !record.leaving && record.boot_id == node.boot_id,
        DaemonState::Closing if !is_asked => true,
        DaemonState::Closing | DaemonState::Hung(_) => served.clients.are_none(),
        // Its settings may be missing.
        _ => served.is_abandoned && served.is_alive() && served.clients.are_none(),
    };
    let may_be_there =
        device.is_there() || matches!(device.presence, Presence::Unseen(Unseen::Driver(_)));
    is_down && !served.is_given_up && may_be_there
}

fn plan_restarts(
    node: &Node,
    run_dir: &RunDir,
    names: &[String],
    by: StartedBy,
) -> Result<Plan, Refusal> {
    check_driver_version(node)?;
    let mut plan = Plan::default();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            continue;
        }
        let stopped = stopped_device(node, run_dir, name);
        let (device, record, gpu, place, because) = if let Some((device, record)) = stopped {
            let (gpu, place) = place_of(node, device, None)?;
            (device, record, gpu, place, Reason::from(WAS_STOPPED))
        } else {
            let (device, served) = find_device_for_command(node, run_dir, name, Verb::Restart)?;
            let (gpu, place) = place_of(node, device, Some(served))?;
            let because = reason_to_restart(served);
            if served.is_alive() {
                // The next daemon has the same pipe directory.
                let stop = Action::Stop(Stop::from_served(served).with_successor());
                let steps = &mut plan.gpu_plan_mut(node, &gpu.uuid).steps;
                steps.push(stop.with_reason(because.clone()));
            }
            (device, &served.record, gpu, place, because)
        };
        // The daemon that was to follow one that has ended is not forgotten.
        let has_ended = device.served.as_ref().is_some_and(|it| !it.is_alive());
        let next = match &record.closing {
            Some(Closing {
                next: Some(next), ..
            }) if has_ended => next.clone(),
            _ => NextDaemon::same_as(record),
        };
        let by_hand = &next.by_hand;
        let start = Action::Start(Start {
            name: next.name.clone(),
            place,
            joint: device.joint_gpus.clone(),
            uuid: Some(device.uuid.clone()),
            settings: next.settings.clone(),
            served_id: None,
            by_hand: by_hand.clone(),
            by,
            beside: UnmanagedDaemon::on_device(node, run_dir, device),
        });
        let because = match by_hand.as_slice() {
            [] => because,
            keys => because.with_remark(&format!("{} as set by hand", keys.join(", "))),
        };
        let steps = &mut plan.gpu_plan_mut(node, &gpu.uuid).steps;
        steps.push(start.with_reason(because));
    }
    for gpu in &mut plan.gpus {
        // Every daemon ends before one starts.
        gpu.steps
            .sort_by_key(|step| step.action.as_start().is_some());
    }
    Ok(plan)
}

/// Returns a device that `down` has stopped, and the record of its last daemon.
fn stopped_device<'a>(
    node: &'a Node,
    run_dir: &RunDir,
    name: &str,
) -> Option<(&'a Device, &'a DeviceRecord)> {
    let device = node.device_named(name)?;
    let (its_run_dir, stopped) = node.find_stopped(device)?;
    (its_run_dir == run_dir).then_some((device, &stopped.record))
}

/// Returns the GPU and the place of a recorded device.
fn place_of<'a>(
    node: &'a Node,
    device: &Device,
    served: Option<&Served>,
) -> Result<(&'a Gpu, Place), Problem> {
    let key = &device.key;
    let Some(gpu) = node.gpu_with_uuid(&key.gpu) else {
        return Err(absent_device_problem(node, device, served));
    };
    if key.instance.is_some() {
        check_visible(gpu)?;
    }
    let place = match key.instance {
        _ if !device.is_there() => None,
        Some(key) => place_on(gpu, key),
        None => Some(Place::Whole),
    };
    place
        .map(|place| (gpu, place))
        .ok_or_else(|| absent_device_problem(node, device, served))
}

/// Returns the place of a MIG device, if the GPU has it.
pub(super) fn place_on(gpu: &Gpu, key: InstanceKey) -> Option<Place> {
    let placement = key.placement;
    let instance = gpu
        .instances
        .iter()
        .find(|instance| instance.placement == placement && instance.profile == key.profile)?;
    let nth = instance
        .compute
        .iter()
        .position(|compute| compute.placement == key.compute)?;
    Some(Place::Mig { placement, nth })
}

/// The problem of a device that is gone or cannot be seen.
fn absent_device_problem(node: &Node, device: &Device, served: Option<&Served>) -> Problem {
    let name = &device.name;
    match &device.presence {
        Presence::Unseen(unseen) => Problem::new(
            format!("device {name} cannot be seen: {}", unseen.reason()),
            match unseen {
                Unseen::Gpu { .. } => LOST_GPU_REMEDY.to_owned(),
                Unseen::Instances { .. } => "run the command as root".to_owned(),
                _ => "run `mig-mps doctor` to find the cause".to_owned(),
            },
        ),
        Presence::There | Presence::MadeAgain | Presence::Gone => Problem::new(
            format!("device {name} no longer exists"),
            match served {
                Some(served) => restore_remedy(node, served),
                None => format!("run `{}` to create it again", node.up_command()),
            },
        ),
    }
}

fn reason_to_restart(served: &Served) -> Reason {
    match &served.state {
        DaemonState::Dead if served.record.closing.is_some() => HAVE_LEFT.into(),
        DaemonState::Dead if served.record.daemon.is_none() => UNFINISHED.into(),
        DaemonState::Fault if is_stuck(served) => "a GPU fault that has not cleared".into(),
        DaemonState::Fault => "a GPU fault".into(),
        _ if served.is_abandoned => UNFINISHED.into(),
        state => {
            let fault = served.access.iter().find(|fault| fault.needs_restart());
            state
                .outage_reason()
                .map(str::to_owned)
                .or_else(|| fault.map(ToString::to_string))
                .map_or(Reason::ASKED_FOR, Reason::from)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::example::{client, names, node, nth_served, run_dir};
    use super::*;
    use crate::failure::Failure as _;
    use crate::mps::ClientPolicy;
    use crate::node::Clients;
    use crate::plan::Step;

    /// `stop NAME, start NAME` of every GPU.
    fn steps(plan: &Plan) -> Vec<String> {
        let name = |step: &Step| match &step.action {
            Action::Stop(stop) => format!("stop {}", stop.name),
            Action::Start(start) => format!("start {}", start.name),
            other => panic!("{other}"),
        };
        plan.gpus
            .iter()
            .map(|gpu| gpu.steps.iter().map(name).collect::<Vec<_>>().join(", "))
            .collect()
    }

    fn starts(plan: &Plan) -> Vec<&Start> {
        let start = |step| match step {
            &Step {
                action: Action::Start(ref start),
                ..
            } => Some(start),
            _ => None,
        };
        plan.steps().filter_map(start).collect()
    }

    fn refused(node: &Node, name: &str) -> String {
        let error = restart(node, &run_dir(), &names(&[name])).unwrap_err();
        format!("{error}; {}", error.hint().unwrap())
    }

    #[test]
    fn every_daemon_of_a_gpu_ends_before_one_starts() {
        let plan = restart(
            &node(),
            &run_dir(),
            &names(&["1", "0.0.c1", "0.0.c0", "0.0.c1"]),
        )
        .unwrap();
        assert_eq!(
            steps(&plan),
            [
                "stop 0.0.c1, stop 0.0.c0, start 0.0.c1, start 0.0.c0",
                "stop 1, start 1"
            ]
        );
        assert_eq!(
            (plan.count_restarted(), plan.destroyed_instances().len()),
            (3, 0)
        );
        let placement = crate::geometry::Placement::new(0, 2);
        let places: Vec<Place> = starts(&plan).iter().map(|start| start.place).collect();
        let part = |nth| Place::Mig { placement, nth };
        assert_eq!(places, [part(1), part(0), Place::Whole]);
    }

    #[test]
    fn settings_stay_and_it_stays_known_which_were_set_by_hand() {
        let mut node = node();
        nth_served(&mut node, 2).record.by_hand = names(&["max-clients"]);
        nth_served(&mut node, 2).record.settings.max_clients = Some(4);
        let plan = restart(&node, &run_dir(), &names(&["1"])).unwrap();
        let start = starts(&plan)[0];
        assert_eq!(start.settings, nth_served(&mut node, 2).record.settings);
        assert!(start.by == StartedBy::Restart && start.by_hand == ["max-clients"]);
        let because: Vec<String> = plan.steps().map(|step| step.because.to_string()).collect();
        assert_eq!(
            because,
            ["asked for", "asked for; max-clients as set by hand"]
        );
    }

    #[test]
    fn clients_are_in_the_way_unless_forced() {
        let mut node = node();
        let one = client(nth_served(&mut node, 2), 4711);
        for (state, is_known) in [
            (DaemonState::Ready, true),
            (DaemonState::Starting, true),
            (DaemonState::Fault, true),
            (DaemonState::Busy, false),
            (DaemonState::Hidden, false),
            (DaemonState::NoAnswer(String::new()), false),
            (DaemonState::Orphan, false),
        ] {
            nth_served(&mut node, 2).state = state.clone();
            nth_served(&mut node, 2).clients = if is_known {
                Clients::Known(vec![one.clone()])
            } else {
                Clients::Partial(vec![one.clone()])
            };
            let plan = restart(&node, &run_dir(), &names(&["1"])).unwrap();
            let hint = plan.permit("").unwrap_err().hint().unwrap();
            let names_force = hint.contains("mig-mps restart 1 --force");
            let is_out_of_reach = matches!(state, DaemonState::NoAnswer(_) | DaemonState::Orphan);
            assert_eq!(names_force, is_out_of_reach, "{state:?}: {hint}");
            assert!(plan.by_force(1).permit("").is_ok(), "{state:?}");
        }
    }

    #[test]
    fn the_dead_and_the_stuck_need_no_force() {
        let mut node = node();
        nth_served(&mut node, 2).state = DaemonState::Dead;
        let plan = restart(&node, &run_dir(), &names(&["1"])).unwrap();
        assert_eq!(steps(&plan), ["start 1"]);
        assert!(plan.stopped_daemons().is_empty() && plan.count_restarted() == 0);
        nth_served(&mut node, 2).state = DaemonState::Fault;
        let plan = restart(&node, &run_dir(), &names(&["1"])).unwrap();
        // It may not end when it is only asked to.
        assert!(
            plan.stops()
                .all(|stop| stop.patience == ClientPolicy::AT_ONCE)
        );
        plan.permit("").unwrap();
    }

    #[test]
    fn what_has_no_place_or_is_somebody_elses_is_refused() {
        let mut node = node();
        node.devices[0].presence = Presence::Gone;
        assert!(refused(&node, "0.0.c0").contains("no longer exists"));
        node.gpus[0].hidden = Some("Insufficient Permissions".to_owned());
        assert!(refused(&node, "0.0.c1").contains("its instances cannot be seen"));
        assert!(refused(&node, "5").contains("no mig-mps daemon"));
        nth_served(&mut node, 2).run_dir = RunDir::at(Path::new("/run/user/7/mig-mps"));
        let elsewhere = refused(&node, "1");
        assert!(
            elsewhere.starts_with("device 1 is served by a daemon of /run/user/7/mig-mps"),
            "{elsewhere}"
        );
        node.unseen.push(Unseen::Record {
            run_dir: run_dir(),
            why: "device.json: nonsense".to_owned(),
        });
        assert!(refused(&node, "5").starts_with("device.json: nonsense"));
    }
}
