//! `mig-mps slurm health`: checks devices, and heals those that take no programs.

use clap::Args;

use super::conf::{SlurmFiles, counts_of, node_name, numbered};
use super::joint::{gpu_of_files, joint_error};
use super::numbering::{device_of, gres_devices};
use crate::commands::{Context, verify as verification};
use crate::error::{Result, command_error};
use crate::failure::ExitStatus;
use crate::host::{shorten_command, to_printable};
use crate::node::{Detail, Node, observe};
use crate::render::{examples_and_statuses, note, print, report};
use crate::shared::jobs::heal_devices;

/// Drain this node if a device is broken (called by Slurm)
///
/// First heals the devices that can be healed without disrupting a program. The reason of the drain begins with
/// `mig-mps:`. If the node is already drained for a reason that Slurm itself did not set, the reason stays.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("exec mig-mps slurm health", "In the script for HealthCheckProgram="),
    ("exec mig-mps slurm health --resume", "Also resume the node later"),
], &[("3", "a device is broken")]))]
pub(super) struct HealthArgs {
    /// Resume the node if mig-mps drained it and no problem remains
    #[arg(long)]
    resume: bool,
}

/// The start of reasons by which mig-mps drains a node.
const OUR_PREFIX: &str = "mig-mps: ";

/// Reasons that Slurm gives when one of its scripts fails, and that say less than ours.
const SLURM_REASONS: [&str; 3] = ["Prolog error", "Epilog error", "batch job complete failure"];

pub(super) fn run(args: &HealthArgs, context: &Context<'_>) -> Result<ExitStatus> {
    // To anybody else, devices that are not theirs seem broken.
    if !context.environment.is_root() {
        return Err(
            command_error("only root can check the devices of this node for Slurm")
                .with_hint("run the command with sudo; `mig-mps doctor` shows what you can see"),
        );
    }
    let problems = node_problems(context)?;
    for problem in &problems {
        print(&format!("{}\n", to_printable(problem)))?;
    }
    if problems.is_empty() && !args.resume {
        return Ok(ExitStatus::Done);
    }
    let (name, slurm) = (node_name()?, context.environment.find_slurm()?);
    let before = slurm.drain_reason(&name)?;
    if problems.is_empty() {
        if before.is_some_and(|reason| reason.starts_with(OUR_PREFIX)) {
            slurm.resume_node(&name)?;
            report(&format!("node {name} takes jobs again"));
        }
        return Ok(ExitStatus::Done);
    }
    let reason = format!("{OUR_PREFIX}{}", problems.join("; "));
    let reason = shorten_command(&to_printable(&reason)).to_string();
    match before {
        Some(of_others) if !may_replace(&of_others) => {
            note(&format!("node {name} is already drained: {of_others}"));
        }
        Some(same) if same == reason => {}
        _ => slurm.drain_node(&name, &reason)?,
    }
    Ok(ExitStatus::Drift)
}

fn may_replace(reason: &str) -> bool {
    reason.starts_with(OUR_PREFIX)
        || SLURM_REASONS
            .iter()
            .any(|slurms| reason.starts_with(slurms))
}

/// Describes what keeps jobs from their devices.
fn node_problems(context: &Context<'_>) -> Result<Vec<String>> {
    let environment = context.environment;
    verification::prepare_check(environment)?;
    let detail = Detail {
        health: true,
        ..Detail::GEOMETRY
    };
    let node = match observe(environment, detail) {
        Ok(node) => node,
        // slurm.conf names one health check for all nodes, also for those without GPUs.
        Err(_) if !has_gpus(context)? => return Ok(Vec::new()),
        Err(error) => return Ok(vec![error.to_string()]),
    };
    let mut problems: Vec<String> = node.lost_gpus().map(|(_, why)| why.to_owned()).collect();
    problems.extend(node.reasons_against_jobs());
    let own = environment.roots_run_dir();
    let mut names: Vec<String> = Vec::new();
    for device in &node.devices {
        let served = device.served.as_ref();
        if served.is_none_or(|served| served.run_dir.path() != own) {
            continue;
        }
        if device.is_there() {
            names.push(device.name.clone());
        } else if device.is_gone() {
            problems.push(format!(
                "device {}: its MIG device no longer exists",
                device.name
            ));
        }
    }
    let not_ready = heal_devices(context, &names, None)?;
    problems.extend(not_ready.iter().map(|(_, cause)| cause.to_string()));
    problems.extend(unknown_to_node(context, &node)?);
    Ok(problems)
}

/// True if Slurm gives jobs GPUs of this node, or if that is not known, since there is no slurm.conf where it is looked for.
fn has_gpus(context: &Context<'_>) -> Result<bool> {
    let files = SlurmFiles::find(&context.environment.host);
    if !files.slurm_conf.exists() {
        return Ok(true);
    }
    let name = node_name()?;
    if !files.gres_conf.exists() {
        return Ok(files
            .node_gres(&name)?
            .is_some_and(|gres| !counts_of(&gres, "gpu").is_empty()));
    }
    let conf = files.gres_of(&name)?;
    Ok(conf.detects || !conf.gpus.is_empty())
}

/// Describes the first GPU without a device that Slurm gives to jobs.
fn unknown_to_node(context: &Context<'_>, node: &Node) -> Result<Option<String>> {
    let files = SlurmFiles::find(&context.environment.host);
    if !files.gres_conf.exists() {
        return Ok(None);
    }
    let name = node_name()?;
    let listed = files.gres_of(&name)?.gpus;
    let node_gres = files.node_gres(&name).unwrap_or_default();
    let gpus = numbered(listed.clone(), node_gres.as_deref()).unwrap_or(listed);
    let devices = gres_devices(context.environment, node)?;
    let unknown = gpus.iter().find(|gres| device_of(gres, &devices).is_none());
    Ok(unknown.map(|gres| {
        let joint = gpu_of_files(node, gres).and_then(|gpu| joint_error(node, gpu));
        if let Some(error) = joint {
            return error.to_string();
        }
        let file = gres.files.last().map_or("", String::as_str);
        format!("gres.conf has {file}, but no device of mig-mps has this file")
    }))
}

/// Returns a variable of this process if it is set, and text.
pub(super) fn nonempty_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
