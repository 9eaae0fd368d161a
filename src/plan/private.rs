//! Plans the daemon that serves one device for programs of the caller alone.

use super::refusal::too_old;
use super::restart::place_on;
use super::{Action, Obstacle, Place, Plan, Reason, Refusal, Start, StartedBy, UnmanagedDaemon};
use crate::node::Node;
use crate::settings::{Serve, Settings};
use crate::state::RunDir;

/// Plans to start the daemon of the device with this UUID.
///
/// # Errors
/// The device is gone, or has a daemon that can be seen: programs of two daemons take turns.
pub fn private(node: &Node, run_dir: &RunDir, uuid: &str) -> Result<Plan, Refusal> {
    too_old(node)?;
    let device = node.device_with_uuid(uuid);
    let found = device.and_then(|device| {
        let gpu = node.gpu(&device.key.gpu)?;
        let place = match device.key.instance {
            Some(key) => place_on(gpu, key)?,
            None => Place::Whole,
        };
        Some((device, place))
    });
    let Some((device, place)) = found else {
        let what = format!("the device {uuid} is gone");
        return Err(Obstacle::new(what, "mig-mps list shows the devices").into());
    };
    if let Some(other) = UnmanagedDaemon::on_device(node, run_dir, device).first() {
        let user = other.user.as_deref().unwrap_or("?");
        let what = format!(
            "{} has an MPS daemon already: pid {} ({user})",
            device.name, other.pid
        );
        let hint = "programs of two daemons do not share a device, but take turns: run them in one job step, or end \
                    that daemon";
        return Err(Obstacle::new(what, hint).into());
    }
    let start = Action::Start(Start {
        name: device.name.clone(),
        place,
        settings: Settings {
            serve: Some(Serve::Own),
            ..Settings::default()
        },
        by_hand: Vec::new(),
        by: StartedBy::Up,
        beside: Vec::new(),
    });
    let mut plan = Plan::default();
    let steps = &mut plan.of_gpu(node, &device.key.gpu).steps;
    steps.push(start.because(Reason::ASKED_FOR));
    Ok(plan.complete(node, run_dir))
}
