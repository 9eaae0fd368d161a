//! The GPUs of a joint device that a program of the caller may use: in a batch job, those of the job.

use thiserror::Error;

use crate::failure::{ExitStatus, Failure};
use crate::host::{Host, shorten_command};
use crate::state::DeviceRecord;

/// The variables that name the GPUs of a job, the first one that is set: Slurm's have the numbers of device files.
const VARIABLES: [&str; 3] = ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"];

/// The words for no GPU: CUDA's, and Slurm's for a job without GPUs.
const NO_GPU_WORDS: [&str; 3] = ["", "-1", "NoDevFiles"];

/// The caller may use no GPU of a joint device.
#[derive(Debug, Error)]
#[error("{variable} is \"{value}\", which names no GPU of {name}")]
pub struct NoGpuOfDevice {
    name: String,
    variable: &'static str,
    value: String,
}

impl Failure for NoGpuOfDevice {
    fn status(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hint(&self) -> Option<String> {
        Some(format!(
            "run it where {} names GPUs of the device, or is unset",
            self.variable
        ))
    }
}

/// Returns the positions of the GPUs of a device that the caller may use, in order: all of them, unless a variable names some.
pub fn gpus_of_caller(
    host: &Host,
    record: &DeviceRecord,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<usize>, NoGpuOfDevice> {
    let all: Vec<usize> = (0..record.driver_uuids().len()).collect();
    if !record.key.is_joint() {
        return Ok(all);
    }
    let Some((name, value)) = VARIABLES
        .iter()
        .find_map(|name| Some((*name, variable(name)?)))
    else {
        return Ok(all);
    };
    let is_slurms = name != "CUDA_VISIBLE_DEVICES";
    let words: Vec<&str> = value
        .split(',')
        .map(str::trim)
        // CUDA reads no further, either.
        .take_while(|word| !NO_GPU_WORDS.contains(word))
        .collect();
    let is_named = |position: &usize| {
        let uuid = &record.key.joint[*position];
        let minor = is_slurms.then(|| host.minor_of(uuid)).flatten();
        let number = minor.or_else(|| record.joint_gpus.get(*position).copied());
        words.iter().any(|word| match word.parse::<u32>() {
            Ok(word) => Some(word) == number,
            Err(_) => word.starts_with("GPU-") && uuid.starts_with(word),
        })
    };
    let own: Vec<usize> = all.into_iter().filter(is_named).collect();
    if own.is_empty() {
        return Err(NoGpuOfDevice {
            name: record.name.clone(),
            variable: name,
            value: shorten_command(&value).into_owned(),
        });
    }
    Ok(own)
}
