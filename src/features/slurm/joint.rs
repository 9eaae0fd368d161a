//! Jobs whose GPU belongs to a joint device, which Slurm cannot assign.

use super::conf::Gres;
use crate::error::{CommandError, command_error};
use crate::node::{Gpu, Node};

/// Returns the whole GPU that an entry of gres.conf lists.
pub(super) fn gpu_of_files<'n>(node: &'n Node, gres: &Gres) -> Option<&'n Gpu> {
    let is_listed = |gpu: &&Gpu| {
        gpu.minor
            .is_some_and(|minor| gres.files.contains(&format!("/dev/nvidia{minor}")))
    };
    node.gpus.iter().find(is_listed)
}

/// Returns the error of a job whose GPU belongs to a joint device, if it does.
pub(super) fn joint_error(node: &Node, gpu: &Gpu) -> Option<CommandError> {
    let device = node.whole_device_of(gpu)?;
    device.key.is_joint().then(|| {
        let (index, name) = (gpu.index, &device.name);
        command_error(format_args!(
            "GPU {index} is part of the joint device {name}, which Slurm cannot assign"
        ))
        .with_hint(format!(
            "remove the GPUs of device {name} from gres.conf and slurm.conf, or remove joint from the profile and \
             apply it"
        ))
    })
}
