//! Switching a GPU's MIG mode.

use super::{Action, Obstacle, Step, standing};
use crate::node::{Gpu, Node};

/// The step that brings a GPU's MIG mode to what is wanted, if it is not there: neither what it is
/// nor what it will be after the next reset may differ.
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
    Some(Step {
        action: Action::SwitchMig { on },
        because: because.to_owned(),
    })
}

/// Whoever computes on the whole GPU outside MPS: the mode of an idle GPU alone can be switched.
pub(super) fn in_the_way(node: &Node, gpu: &Gpu) -> Option<Obstacle> {
    let busy = node.unaccounted_for(&gpu.uuid);
    if busy.is_empty() || gpu.in_mig_mode() {
        return None;
    }
    Some(Obstacle {
        what: format!(
            "GPU {} ({}) computes for pid {}: the MIG mode of an idle GPU alone can be switched",
            gpu.index,
            gpu.product,
            standing::list(&busy)
        ),
        hint: "let them end first".to_owned(),
    })
}

/// Which reset or reboot a change of the mode brings, as far as can be told beforehand.
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
