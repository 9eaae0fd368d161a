//! `mig-mps slurm health`: checks devices, and heals those that take no programs.

use std::time::{Duration, Instant};

use clap::Args;

use super::conf::{SlurmFiles, counts_of, node_name, numbered};
use super::numbering::{device_of, gres_devices};
use crate::apply::OnFailure;
use crate::client::{NoAccess, NotReady, Verified, verify_devices};
use crate::commands::args::ConsentArgs;
use crate::commands::change::ChangeOptions;
use crate::commands::change_report::Outcome;
use crate::commands::{Context, verify as verification};
use crate::error::{Result, command_error};
use crate::failure::ExitStatus;
use crate::host::{Uid, shorten_command, to_printable};
use crate::node::{Detail, Node, observe, observe_records};
use crate::plan;
use crate::render::{note, print};

/// Drain this node in Slurm if a device is broken: for Slurm's health check
///
/// Heals what can be healed without disrupting anybody. If something is still wrong, drains the node with the reason
/// `mig-mps: …`. A node that somebody else has drained keeps its reason, except those that Slurm gives itself, such as
/// "Prolog error".
#[derive(Args, Debug)]
pub(super) struct HealthArgs {
    /// If mig-mps has drained the node and nothing is wrong now, let it take jobs again
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
            command_error("only root can check this node's devices for Slurm")
                .with_hint("run it with sudo; mig-mps doctor shows what you can see"),
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
            note(&format!("{name} takes jobs again"));
        }
        return Ok(ExitStatus::Done);
    }
    let reason = format!("{OUR_PREFIX}{}", problems.join("; "));
    let reason = shorten_command(&to_printable(&reason)).to_string();
    match before {
        Some(of_others) if !may_replace(&of_others) => {
            note(&format!("{name} is drained already: {of_others}"));
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
            problems.push(format!("{}: its device is gone", device.name));
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
        let file = gres.files.last().map_or("", String::as_str);
        format!("gres.conf has {file}, and no device of mig-mps is there")
    }))
}

/// The time in which devices are to take programs.
const HEAL_TIMEOUT: Duration = Duration::from_secs(30);

/// The time between two attempts.
const HEAL_INTERVAL: Duration = Duration::from_millis(200);

/// The most times that devices are healed in one call.
const MAX_HEALS: u32 = 3;

/// The consent of an administrator who has named mig-mps in slurm.conf: changes that disrupt nobody.
pub(super) const CONSENT: ConsentArgs = ConsentArgs::UNATTENDED;

/// Checks the devices with these names as this user, or as users that disturb nobody. Heals those that can be
/// healed without disrupting anybody, and returns the others, each with the reason why it accepts no programs. A device that
/// is only in use is ready.
pub(super) fn heal_devices(
    context: &Context<'_>,
    names: &[String],
    user: Option<Uid>,
) -> Result<Vec<(String, NotReady)>> {
    let until = Instant::now() + HEAL_TIMEOUT;
    let mut heals = 0;
    let mut nothing_to_heal = false;
    loop {
        let not_ready = not_ready_devices(context, names, user)?;
        let is_over = heals == MAX_HEALS || Instant::now() >= until;
        if not_ready.is_empty() || nothing_to_heal || is_over {
            return Ok(not_ready);
        }
        let names: Vec<String> = not_ready.iter().map(|(name, _)| name.clone()).collect();
        match heal_once(context, &names) {
            Ok(Some(outcome)) if !outcome.is_unchanged => heals += 1,
            // Nothing can be healed, unless the prolog of another job has just done so.
            Ok(Some(outcome)) if !outcome.node.is_changing() => nothing_to_heal = true,
            // Another change is under way: it may be healing the same device.
            Ok(_) => std::thread::sleep(HEAL_INTERVAL),
            Err(error) if error.status == ExitStatus::Refused => std::thread::sleep(HEAL_INTERVAL),
            Err(error) => {
                note(&error.message().what);
                return Ok(not_ready);
            }
        }
    }
}

fn heal_once(context: &Context<'_>, names: &[String]) -> Result<Option<Outcome>> {
    let directories = context.environment.directories()?;
    let outcome = ChangeOptions {
        on_failure: OnFailure::GoOn,
        ..ChangeOptions::new(context.environment, &directories, &CONSENT)
    }
    .run_plan(|node, run_dir| plan::heal(node, run_dir, names))?;
    if let Some(failed) = outcome.as_ref().and_then(|outcome| outcome.failed.as_ref()) {
        note(&failed.to_string());
    }
    Ok(outcome)
}

fn not_ready_devices(
    context: &Context<'_>,
    names: &[String],
    user: Option<Uid>,
) -> Result<Vec<(String, NotReady)>> {
    let node = observe_records(context.environment)?;
    let (mut devices, mut not_ready) = (Vec::new(), Vec::new());
    for name in names {
        match node.served_named(name) {
            Some(served) => devices.push(served),
            // What was closed to new programs may be stopped now.
            None => not_ready.push((
                name.clone(),
                NotReady::from(NoAccess::NotServed {
                    name: name.clone(),
                    state: "it was stopped",
                }),
            )),
        }
    }
    for Verified { name, result, .. } in verify_devices(context.environment, &node, devices, user) {
        if let Err(cause) = result
            && (!cause.is_temporary() || cause.is_closing())
        {
            not_ready.push((name, cause));
        }
    }
    Ok(not_ready)
}

/// Returns a variable of this process if it is set, and text.
pub(super) fn nonempty_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
