//! The device of `run --private --joint`: all GPUs that the caller may use as one.

use super::check_not_served;
use crate::error::{CommandError, Result, usage_error};
use crate::host::{format_gpus, join_words};
use crate::node::{Device, Node};

/// Returns several whole GPUs as one device, in the order of their indices; a single one as it is.
pub fn joint_device(node: &Node, devices: &[&Device]) -> Result<Device> {
    devices
        .iter()
        .try_for_each(|device| check_not_served(device, None))?;
    if let [only] = devices {
        return Ok((*only).clone());
    }
    let mut gpus = Vec::new();
    for device in devices {
        let gpu = node.gpu_with_uuid(&device.uuid);
        gpus.push(gpu.ok_or_else(|| no_whole_gpu_error(device))?);
    }
    gpus.sort_by_key(|gpu| gpu.index);
    let mut products: Vec<&str> = gpus.iter().map(|gpu| gpu.product.as_str()).collect();
    products.sort_unstable();
    products.dedup();
    if products.len() > 1 {
        let indices: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
        let error = usage_error(format_args!(
            "--joint needs GPUs of one product, but {} are {}",
            format_gpus(&indices),
            join_words(&products, "and")
        ));
        return Err(error.with_hint("set CUDA_VISIBLE_DEVICES to GPUs of one product"));
    }
    Ok(Device::from_gpus(&gpus))
}

fn no_whole_gpu_error(device: &Device) -> CommandError {
    let name = &device.name;
    usage_error(format_args!(
        "--joint needs whole GPUs, but {name} is a MIG device: CUDA gives a program only one MIG device"
    ))
    .with_hint("set CUDA_VISIBLE_DEVICES to whole GPUs, or omit --joint")
}
