//! Servers that have outlived their daemons.

use super::{Action, EndStray, Obstacle, Plan};
use crate::node::{Node, Stray};

/// Adds the end of every idle stray on the devices that `is_meant` selects, before everything else.
pub(super) fn end_idle(node: &Node, plan: &mut Plan, is_meant: impl Fn(&Stray) -> bool) {
    let idle = node.strays.iter().filter(|stray| stray.is_idle());
    for stray in idle.filter(|stray| is_meant(stray)) {
        end(node, plan, stray);
    }
}

/// Adds the end of every stray on these devices. One that may have clients is refused unless `force` is given.
pub(super) fn end_all(
    node: &Node,
    plan: &mut Plan,
    force: bool,
    is_meant: impl Fn(&Stray) -> bool,
) -> Result<(), Obstacle> {
    for stray in node.strays.iter().filter(|stray| is_meant(stray)) {
        if !force && !stray.is_idle() {
            let (name, pid) = (node.name_of_uuid(&stray.uuid), stray.server.pid);
            return Err(Obstacle::new(
                format!("server {pid} of {name} outlived its daemon and may have clients"),
                format!("let them end first, or mig-mps down {name} --force"),
            ));
        }
        end(node, plan, stray);
    }
    Ok(())
}

fn end(node: &Node, plan: &mut Plan, stray: &Stray) {
    let mut devices = node.devices();
    let Some(device) = devices.find(|device| device.uuid == stray.uuid) else {
        return;
    };
    let end = Action::EndStray(EndStray {
        name: node.name_of(&device),
        uuid: stray.uuid.clone(),
        server: (stray.server.pid, stray.started),
    });
    let steps = &mut plan.of_gpu(node, &device.key.gpu).steps;
    steps.insert(0, end.because("it keeps its GPU memory"));
}
