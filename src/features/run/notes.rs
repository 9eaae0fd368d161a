//! Notes about devices that a program or its ranks do not get, or cannot use together.

use std::path::Path;

use super::RunArgs;
use crate::client::{DeviceList, WantedInContainer, launch_warnings, pipe_directory};
use crate::commands::args::own_arguments;
use crate::host;
use crate::node::{Node, Served};
use crate::render::format::format_gib;
use crate::render::{note, warn};
use crate::shared::{LocalRank, Portion, RankMapping};
use crate::state::{DeviceKey, DeviceRecord};

/// Says which device was chosen, and what a program gets there.
pub(super) fn note_choice(name: &str, portion: Portion) {
    let sms = portion
        .multiprocessors
        .map(|sms| host::format_count(sms as usize, "SM"));
    let memory = portion
        .memory
        .map(|bytes| format!("{} GiB", format_gib(bytes)));
    let facts: Vec<String> = sms.into_iter().chain(memory).collect();
    note(&match facts.as_slice() {
        [] => format!("using device {name}"),
        _ if portion.is_of_each_gpu => {
            format!("using device {name} ({} on each GPU)", facts.join(" and "))
        }
        _ => format!("using device {name} ({})", facts.join(", ")),
    });
}

/// Says that a program of so many ranks gets fewer devices than it may use.
pub(super) fn note_others(first: &str, ranks: usize, count: usize, can_join: bool) {
    let joint = if can_join {
        "--joint for one program on all GPUs, or "
    } else {
        ""
    };
    match ranks {
        1 if count > 1 => note(&format!(
            "the program uses only device {first} of {count} devices; use {joint}-n {count} or an MPI launcher for a \
             program on each device (`mpirun -n {count} mig-mps run …`)"
        )),
        2.. if count > ranks => note(&format!(
            "the {ranks} ranks use one device each, of {count} devices; start {count} ranks to use all devices"
        )),
        _ => {}
    }
}

/// Warns of launchers and containers that would not have the programs as asked. A private daemon is below this directory.
pub(super) fn warn_of_launch(args: &RunArgs, served: &Served, private: Option<&Path>) {
    let (record, run_dir) = (&served.record, &served.run_dir);
    let (limits, limit_variables) = args.options.limits();
    let chosen = &args.choose;
    let is_only_rank = args.joint || chosen.copies.is_some();
    let is_rank = chosen.by_rank
        || (args.private
            && !is_only_rank
            && LocalRank::from_environment(host::environment_variable).is_ok());
    let mut words: Vec<String> = own_arguments()
        .iter()
        .map(|word| host::quote_for_shell(word))
        .collect();
    words.push("--".to_owned());
    let list = if args.private || record.key.is_joint() {
        DeviceList::of_caller(host::environment_variable)
    } else {
        None
    };
    let wanted = WantedInContainer {
        device: private.is_none().then_some(record.name.as_str()),
        is_chosen: chosen.any || is_rank || chosen.copies.is_some(),
        is_rank,
        uuid: &record.uuid,
        directory: private.unwrap_or(run_dir.path()),
        pipes: &[pipe_directory(served), run_dir.pipe_dir(&record.uuid)],
        limits: &limits,
        limit_variables: &limit_variables,
        choosing: &list.map_or_else(Vec::new, |list| vec![list.variable, "CUDA_DEVICE_ORDER"]),
        command: &words.join(" "),
        requires_mps: args.require_mps,
    };
    for warning in launch_warnings(&args.command, wanted, host::environment_variable) {
        warn(&warning);
    }
}

/// Says which GPUs a private joint device does not have, although the program may use all.
pub(super) fn note_lost(node: &Node) {
    if DeviceList::of_caller(host::environment_variable).is_some() {
        return;
    }
    for (_, why) in node.lost_gpus() {
        note(&format!("{why}: the program does not use this GPU"));
    }
}

/// Says that a program gets one device although its environment names several GPUs. A launcher may start others for these.
pub(super) fn note_visible(record: &DeviceRecord) {
    let name = &record.name;
    let visible = host::environment_variable("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let count = visible.split(',').count();
    let means_it = |word: &str| match word.trim().parse::<u32>() {
        Ok(number) => record.gpu == Some(number),
        Err(_) => [&record.uuid, &record.key.gpu]
            .iter()
            .any(|uuid| uuid.starts_with(word.trim())),
    };
    if !record.key.is_joint() && count > 1 && visible.split(',').any(means_it) && is_only_rank() {
        note(&format!(
            "the program uses only device {name} of the {count} devices in CUDA_VISIBLE_DEVICES; to use several \
             devices, see `mig-mps help joint`"
        ));
    }
}

/// Says that a program gets only some GPUs of a joint device, because its environment lists no others.
pub(super) fn note_listed(record: &DeviceRecord, count: usize) {
    let all = record.driver_uuids().len();
    if record.key.is_joint()
        && count < all
        && is_only_rank()
        && let Some(list) = DeviceList::of_caller(host::environment_variable)
    {
        let (name, variable) = (&record.name, list.variable);
        let why = match &list.end {
            Some(word) => format!("the list in {variable} ends at \"{word}\""),
            None => format!("{variable} does not list the other GPUs"),
        };
        note(&format!(
            "the program uses {count} of the {all} GPUs of device {name}, because {why}"
        ));
    }
}

/// True for a process without other ranks.
fn is_only_rank() -> bool {
    LocalRank::from_environment(host::environment_variable)
        .map_or(true, |rank| rank.ranks_if_first() == Some(1))
}

/// Says that `--map near` cannot go by the CPUs of a rank.
pub(super) fn note_not_bound(rank: LocalRank) {
    note(&format!(
        "rank {} is not bound to the CPUs near one device, so it uses the device of its local rank, as with --map cycle; \
         let the launcher bind the ranks, for example with srun --cpu-bind=cores or mpirun --bind-to core",
        rank.rank
    ));
}

/// The variable that lets NCCL take several ranks on a GPU.
const NCCL_RANKS: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// Warns of ranks that NCCL refuses: two on a device, and two on MIG devices of one GPU.
pub(super) fn warn_of_nccl(rank: LocalRank, devices: &[&DeviceKey], map: RankMapping) {
    let Some(ranks) = rank.ranks_if_first() else {
        return;
    };
    if ranks > devices.len() {
        let devices = host::format_count(devices.len(), "device");
        note(&format!(
            "{ranks} ranks share {devices}, but NCCL accepts one rank on each device and fails with \"Duplicate GPU \
             detected\"; start a rank for each device, or let the ranks communicate by gloo or MPI"
        ));
    } else if rank.uses_parts_of_one_gpu(devices, map)
        && host::environment_variable(NCCL_RANKS).is_none_or(|value| value != "1")
    {
        note(&format!(
            "several ranks use MIG devices of one GPU. Most versions of NCCL refuse this with \"Duplicate GPU \
             detected\", and versions that support MIG need {NCCL_RANKS}=1. Otherwise let the ranks communicate by \
             gloo or MPI."
        ));
    }
}
