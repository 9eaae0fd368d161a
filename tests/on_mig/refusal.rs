//! Before anything is touched: which GPU is meant, and whether anybody would be hurt.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use simnode::node::processes;

use crate::judge::Request;
use crate::node::Node;
use crate::partition::Instance;
use crate::process::{Notes, Running};
use crate::snapshot::Gpu;
use crate::walk::PATIENCE;

/// So long a program may take to end.
const ENDING: Duration = Duration::from_secs(1);

/// The GPU that is used, and how it was found.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) index: u32,
    pub(crate) uuid: String,
    pub(crate) was_in_mig_mode: bool,
    pub(crate) instances: Vec<Instance>,
}

/// The GPU that the request names, if it may be used; or why not.
pub(crate) fn subject(node: &Node, request: &Request, gpus: &[Gpu]) -> Result<Subject, String> {
    if node.is_real() && !rustix::process::geteuid().is_root() {
        return Err("only root can change MIG: run it with sudo".into());
    }
    let gpu = named(&request.gpu, gpus)?;
    let Gpu { index, uuid, .. } = gpu;
    let was_in_mig_mode = match gpu.mig {
        Ok((current, pending)) if current == pending => current == 1,
        Ok((current, pending)) => {
            return Err(format!(
                "GPU {index}: MIG mode is {current} and {pending} is pending: reset the GPU or reboot first"
            ));
        }
        Err(code) => return Err(format!("GPU {index} has no MIG: code {code}")),
    };
    // Under MIG it cannot be asked for, and what it does there was never measured.
    if let Ok(mode @ 1..) = gpu.compute_mode {
        return Err(format!(
            "GPU {index} has compute mode {mode}: set it to Default first, with nvidia-smi -c 0"
        ));
    }
    idle(gpu)?;
    no_recorded_daemon(node, *index)?;
    no_daemon(node, gpu)?;
    let instances = gpu
        .instances
        .clone()
        .map_err(|code| format!("GPU {index}: its instances cannot be listed: code {code}"))?;
    if !instances.is_empty() && !request.may_destroy {
        let listed: Vec<String> = instances.iter().map(ToString::to_string).collect();
        return Err(format!(
            "GPU {index} is partitioned:\n  {}\nThese would be destroyed, and made again at the end. \
             ON_MIG_DESTROY_INSTANCES=yes says that nobody needs them meanwhile",
            listed.join("\n  ")
        ));
    }
    Ok(Subject {
        index: *index,
        uuid: uuid.clone(),
        was_in_mig_mode,
        instances,
    })
}

fn named<'a>(name: &str, gpus: &'a [Gpu]) -> Result<&'a Gpu, String> {
    let all: Vec<String> = gpus
        .iter()
        .map(|gpu| format!("{} ({})", gpu.uuid, gpu.name))
        .collect();
    let all = all.join(", ");
    let mut matching = gpus.iter().filter(|gpu| gpu.uuid.starts_with(name));
    match (matching.next(), matching.next()) {
        (Some(gpu), None) => Ok(gpu),
        (Some(_), Some(_)) => Err(format!("{name} is the beginning of more than one: {all}")),
        _ => Err(format!("no GPU here is {name}: {all}")),
    }
}

fn idle(gpu: &Gpu) -> Result<(), String> {
    let index = gpu.index;
    match &gpu.processes {
        Err(code) => Err(format!(
            "what runs on GPU {index} cannot be seen: code {code}"
        )),
        Ok(pids) if !pids.is_empty() => Err(format!("GPU {index} is in use by pids {pids:?}")),
        Ok(_) => Ok(()),
    }
}

/// No daemon that mig-mps knows, dead or alive, where it usually keeps them.
fn no_recorded_daemon(node: &Node, index: u32) -> Result<(), String> {
    let mut status = node.command(&node.mig_mps);
    status.args(["status", "--json"]);
    let ended = Running::start(&mut status, &Notes::default()).wait_for(PATIENCE);
    let parsed = serde_json::from_str::<serde_json::Value>(&ended.stdout);
    let Some(devices) = parsed
        .as_ref()
        .ok()
        .and_then(|all| all["devices"].as_array())
    else {
        return Err(format!("mig-mps status --json says {ended:?}"));
    };
    let mut served = devices
        .iter()
        .filter(|device| device["gpu"] == index && device["state"] != "no daemon");
    match served.next() {
        None => Ok(()),
        Some(device) => Err(format!(
            "mig-mps serves {} on GPU {index}: take it down first",
            device["name"]
        )),
    }
}

/// No daemon of anybody else's that may have the GPU open: an idle one is in no list of NVML's.
fn no_daemon(node: &Node, gpu: &Gpu) -> Result<(), String> {
    let may_use = |pid: &u32| is_mps(*pid) && node.has(*pid) && may_have_open(*pid, gpu);
    let entries = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    let mut pids: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(may_use)
        .collect();
    // A control session that is just ending has lost its environment, and with it whose it was.
    let until = Instant::now() + ENDING;
    while !pids.is_empty() && Instant::now() < until {
        sleep(ENDING / 20);
        pids.retain(may_use);
    }
    match pids.first() {
        None => Ok(()),
        Some(pid) => Err(format!(
            "an MPS daemon or server, pid {pid}, may use GPU {}: end it first",
            gpu.index
        )),
    }
}

fn is_mps(pid: u32) -> bool {
    // The kernel cuts names at 15 bytes.
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim_end() == "nvidia-cuda-mps")
        && processes::start_time(pid).is_some()
}

/// True if its `CUDA_VISIBLE_DEVICES` names anything but UUIDs of other GPUs and their MIG devices.
fn may_have_open(pid: u32, gpu: &Gpu) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    let visible = variables.find_map(|text| text.strip_prefix(b"CUDA_VISIBLE_DEVICES="));
    let Some(visible) = visible.and_then(|text| std::str::from_utf8(text).ok()) else {
        return true;
    };
    let instances = gpu.instances.iter().flatten();
    let devices = instances.flat_map(|gi| gi.compute.iter().map(|ci| &*ci.uuid));
    let own: Vec<&str> = devices.chain([&*gpu.uuid]).collect();
    let is_elsewhere = |entry: &str| {
        (entry.starts_with("GPU-") || entry.starts_with("MIG-"))
            && !own.iter().any(|uuid| uuid.starts_with(entry))
    };
    !visible.split(',').map(str::trim).all(is_elsewhere)
}
