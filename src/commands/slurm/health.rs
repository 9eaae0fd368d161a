//! `mig-mps slurm health`

use clap::Args;

use super::super::{Context, verify as verification};
use super::cure::heal;
use super::files::{SlurmFiles, node_name};
use super::numbering::{device_of, devices};
use crate::client::verify;
use crate::error::{CommandError, ExitStatus, Result};
use crate::host::{SlurmNode, bounded, printable};
use crate::node::{Detail, Node, observe};
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
const OURS: &str = "mig-mps: ";

/// Reasons that Slurm gives when one of its scripts fails, and that say less than ours.
const SLURMS: [&str; 3] = ["Prolog error", "Epilog error", "batch job complete failure"];

pub(super) fn run(args: &HealthArgs, context: &Context<'_>) -> Result<ExitStatus> {
    // To anybody else, devices that are not theirs seem broken.
    if !context.environment.is_root() {
        return Err(
            CommandError::failed("only root can check this node's devices for Slurm")
                .with_hint("run it with sudo; mig-mps doctor shows what you can see"),
        );
    }
    let problems = problems(context)?;
    for problem in &problems {
        print(&format!("{}\n", printable(problem)))?;
    }
    let (name, slurm) = (node_name()?, context.environment.slurm()?);
    let node = slurm.node(&name)?;
    if problems.is_empty() {
        if args.resume && is_ours(&node) {
            slurm.resume(&name)?;
            note(&format!("{name} takes jobs again"));
        }
        return Ok(ExitStatus::Done);
    }
    let reason = format!("{OURS}{}", problems.join("; "));
    let reason = bounded(&printable(&reason)).to_string();
    match node.reason {
        Some(of_others) if node.is_drained && !is_replaced(&of_others) => {
            note(&format!("{name} is drained already: {of_others}"));
        }
        Some(same) if node.is_drained && same == reason => {}
        _ => slurm.drain(&name, &reason)?,
    }
    Ok(ExitStatus::Drift)
}

fn is_ours(node: &SlurmNode) -> bool {
    let reason = node.reason.as_deref().unwrap_or_default();
    node.is_drained && reason.starts_with(OURS)
}

fn is_replaced(reason: &str) -> bool {
    reason.starts_with(OURS) || SLURMS.iter().any(|slurms| reason.starts_with(slurms))
}

/// Describes what keeps jobs from their devices.
fn problems(context: &Context<'_>) -> Result<Vec<String>> {
    let environment = context.environment;
    verification::prepare(environment)?;
    let node = match observe(environment, Detail::Geometry) {
        Ok(node) => node,
        Err(error) => return Ok(vec![error.to_string()]),
    };
    let lost = node.lost.iter().map(|lost| lost.why.clone());
    let mut problems: Vec<String> = lost.collect();
    let own = environment.roots_run_dir();
    let served = node.served.iter();
    let served = served.filter(|served| served.run_dir.path() == own);
    let (there, absent): (Vec<_>, Vec<_>) = served.partition(|served| served.is_there());
    let gone = absent.into_iter().filter(|served| served.is_gone());
    problems.extend(gone.map(|served| format!("{}: its device is gone", served.record.name)));
    let names: Vec<String> = there
        .iter()
        .map(|served| served.record.name.clone())
        .collect();
    let unwell = heal(context, &names, &|node, served| {
        verify(environment, node, served).result.err()
    })?;
    problems.extend(unwell.iter().map(|one| one.cause.to_string()));
    problems.extend(unknown_to_node(context, &node)?);
    Ok(problems)
}

/// Describes the first entry of gres.conf without a device: a job could be given it.
fn unknown_to_node(context: &Context<'_>, node: &Node) -> Result<Option<String>> {
    let files = SlurmFiles::find();
    if !files.gres_conf.exists() {
        return Ok(None);
    }
    let conf = files.gres_of(&node_name()?)?;
    let devices = devices(context.environment, node)?;
    let mut listed = conf.gpus.iter().filter(|gres| !gres.files.is_empty());
    let unknown = listed.find(|gres| device_of(gres, &devices).is_none());
    Ok(unknown.map(|gres| {
        let file = gres.files.last().map_or("", String::as_str);
        format!("gres.conf has {file}, and no device of mig-mps is there")
    }))
}
