//! Switches of a GPU's MIG mode.

use super::{Action, Obstacle, Step, instance_use};
use crate::node::{Gpu, Node};

/// Returns the step that switches a GPU's MIG mode, if its current or its pending mode differs.
pub(super) fn switch(gpu: &Gpu, on: bool) -> Option<Step> {
    let mode = gpu.mig?;
    if mode.current == on && mode.pending == on {
        return None;
    }
    let because = match (mode.current == on, on) {
        (true, _) => "an earlier change is pending, and a reset would carry it out",
        (false, true) if mode.pending => "an earlier change is pending",
        (false, true) => "the profile partitions this GPU",
        (false, false) => "the profile wants this GPU whole",
    };
    Some(Action::SwitchMig { on }.because(because))
}

/// The programs outside MPS on a whole GPU: the mode switches only on an idle GPU.
pub(super) fn in_the_way(node: &Node, gpu: &Gpu) -> Option<Obstacle> {
    let busy = instance_use::list(&node.unaccounted_for(&gpu.uuid))?;
    let what = format!(
        "GPU {} ({}) computes for pid {busy}: the MIG mode of an idle GPU alone can be switched",
        gpu.index, gpu.product
    );
    (!gpu.in_mig_mode()).then(|| Obstacle::new(what, "let them end first"))
}

/// The reset or reboot that a change of the mode needs, as far as it is known beforehand.
pub(super) fn due(gpu: &Gpu, on: bool) -> Option<String> {
    let mode = gpu.mig?;
    if mode.current != on && mode.pending == on {
        let pending =
            "an earlier change of MIG mode is not active: a reset (up --reset) or a reboot is due";
        return Some(pending.to_owned());
    }
    let resets = "MIG mode changes with a reset: the driver makes it by itself on an idle GPU; else up --reset \
         does, and in a virtual machine a reboot";
    (gpu.resetless == Some(false)).then(|| resets.to_owned())
}
