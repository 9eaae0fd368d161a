//! `mig-mps check`

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use super::{Context, warn};
use crate::catalog;
use crate::error::{CommandError, ExitStatus, Result};
use crate::plan::Refusal;
use crate::plan::check::{BlockOnModel, GpuArgument, against, against_all};
use crate::profile::Profile;
use crate::render::{check, models, print, print_json, width};

/// Check whether a profile fits, without a GPU
///
/// Plans it as `up` would, for GPUs of the catalog: for the tests of a repository of profiles. Needs
/// no driver, no root and no run directory.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Profile to check (TOML)
    #[arg(value_hint = clap::ValueHint::FilePath, required_unless_present = "models")]
    profile: Option<PathBuf>,
    /// Check it on a node of these GPUs, in the order of their indices, such as a100-80gb:8
    /// [default: every model that its selectors can match]
    #[arg(long = "gpu", value_name = "MODEL[:COUNT]", conflicts_with = "models")]
    gpus: Vec<GpuArgument>,
    /// List the models, and how certain each entry is
    #[arg(long, conflicts_with = "profile")]
    models: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks whether a profile fits, without a GPU.
pub fn run(args: &CheckArgs, _context: &Context<'_>) -> Result<ExitStatus> {
    let Some(path) = &args.profile else {
        let (models, incomplete) = (catalog::models(), catalog::incomplete());
        if args.json {
            print_json(&models::json(models, incomplete))?;
        } else {
            print(&models::text(models, incomplete, width()))?;
        }
        return Ok(ExitStatus::Done);
    };
    let profile = Profile::load(path)?;
    warn(None, profile.memory_limits());
    if args.gpus.is_empty() {
        let judged = against_all(&profile)?;
        if args.json {
            print_json(&check::fleet_json(&profile, &judged))?;
        } else {
            print(&check::fleet(&profile, &judged))?;
        }
        return unfit(&judged).map_or(Ok(ExitStatus::Done), Err);
    }
    let judged = against(&profile, &args.gpus);
    if args.json {
        print_json(&check::node_json(&profile, &judged))?;
    }
    let on_node = judged?;
    if !args.json {
        print(&check::node(&profile, &on_node, width()))?;
    }
    Ok(ExitStatus::Done)
}

/// The error of a profile that does not fit every model it can meet; `None` if it fits all.
fn unfit(judged: &[BlockOnModel]) -> Option<CommandError> {
    let refused = || judged.iter().filter(|one| one.shape.is_err());
    let keys = |of: &mut dyn Iterator<Item = &BlockOnModel>| -> BTreeSet<String> {
        of.map(|one| one.model.key.clone()).collect()
    };
    let first = refused().next()?;
    let example = first.shape.as_ref().err()?;
    let models: Vec<String> = keys(&mut refused()).into_iter().collect();
    let mut text = format!(
        "the profile does not fit {} of {} models: {}\n{}: {example}",
        models.len(),
        keys(&mut judged.iter()).len(),
        models.join(", "),
        first.model.key,
    );
    if let Some(hint) = example.hint() {
        text = format!("{text}\n{hint}");
    }
    let is_infeasible = |one: &BlockOnModel| matches!(one.shape, Err(Refusal::Infeasible(_)));
    let kind = if refused().all(is_infeasible) {
        ExitStatus::Infeasible
    } else {
        ExitStatus::Usage
    };
    let hint = "name the models you have with --gpu MODEL, or keep others away from a block with \
                select = { product = \"…\" }";
    Some(CommandError::new(kind, text).with_hint(hint))
}
