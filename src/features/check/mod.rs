//! `mig-mps check`, on a node of imaginary GPUs or on every model of the catalog.

mod models;
mod report;

use std::collections::BTreeSet;

use clap::Args;

use crate::catalog::{self, Model};
use crate::commands::args::ProfileSource;
use crate::commands::{Context, warn_of_loose_limits, warn_of_small_limits};
use crate::error::{CommandError, Result};
use crate::failure::{ExitStatus, Failure};
use crate::plan::Refusal;
use crate::plan::virtual_node::{
    GpuArgument, Shape, check_on_gpus, check_on_model, may_reach, reaches_no_model,
};
use crate::profile::{Profile, ProfileError, Want};
use crate::render::json::show;
use crate::render::{print, print_json, width};

pub use models::ModelsDocument;
pub use report::CheckDocument;

/// Check whether a profile fits, without a GPU
///
/// Plans it as `up` would, on GPUs of the catalog; made for the tests of a repository of profiles. Needs
/// no driver, no root and no run directory.
#[derive(Args, Debug)]
#[command(
    override_usage = "mig-mps check [OPTIONS] <PROFILE>\n       mig-mps check [OPTIONS] --models"
)]
pub struct CheckArgs {
    /// Profile to check: a TOML file, - for standard input, or a built-in profile
    #[arg(value_hint = clap::ValueHint::FilePath, required_unless_present = "models")]
    profile: Option<ProfileSource>,
    /// Check it on a node of these GPUs, in the order of their indices, such as a100-80gb:8
    /// [default: the models that the profile is for]
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
    let Some(source) = &args.profile else {
        let models = ModelsDocument::of(catalog::models(), catalog::incomplete());
        show(&models, args.json)?;
        return Ok(ExitStatus::Done);
    };
    let profile = source.load()?;
    warn_of_small_limits(profile.memory_limits());
    if args.gpus.is_empty() {
        let judged = check_on_models(&profile)?;
        let error = unfit(&judged);
        if args.json {
            let error = error.as_ref().map(CommandError::message);
            print_json(&CheckDocument::on_models(&profile, &judged, error))?;
        } else {
            print(&report::fleet(&profile, &judged, width()))?;
        }
        return error.map_or(Ok(ExitStatus::Done), |error| Err(error.in_document()));
    }
    let on_node = match check_on_gpus(&profile, &args.gpus) {
        Ok(on_node) => on_node,
        Err(refusal) => {
            let mut error = CommandError::from(refusal);
            if args.json {
                print_json(&CheckDocument::judged(Some(error.message())))?;
                error = error.in_document();
            }
            return Err(error);
        }
    };
    warn_of_loose_limits(&on_node.loose_limits);
    if args.json {
        print_json(&CheckDocument::on_node(&profile, &on_node))?;
    } else {
        print(&report::node(&profile, &on_node, width()))?;
    }
    Ok(ExitStatus::Done)
}

fn model_keys<'a>(judged: impl Iterator<Item = &'a BlockOnModel>) -> BTreeSet<&'a str> {
    judged.map(|one| one.model.key.as_str()).collect()
}

/// The error of a profile that does not fit every model it can meet; `None` if it fits all.
fn unfit(judged: &[BlockOnModel]) -> Option<CommandError> {
    let refused: Vec<&BlockOnModel> = judged.iter().filter(|one| one.shape.is_err()).collect();
    let first = refused.first()?;
    let example = first.shape.as_ref().err()?;
    let models: Vec<&str> = model_keys(refused.iter().copied()).into_iter().collect();
    let mut text = format!(
        "the profile does not fit {} of {} models: {}\n{}: {example}",
        models.len(),
        model_keys(judged.iter()).len(),
        models.join(", "),
        first.model.key,
    );
    if let Some(hint) = example.hint() {
        text = format!("{text}\n{hint}");
    }
    let is_infeasible = refused
        .iter()
        .all(|one| matches!(one.shape, Err(Refusal::Infeasible(_))));
    let kind = if is_infeasible {
        ExitStatus::Infeasible
    } else {
        ExitStatus::Usage
    };
    let hint = "name the models you have with --gpu MODEL, or keep others away from a block with \
                select = { product = \"…\" }";
    Some(CommandError::new(kind, text).hint(hint))
}

/// One block of a profile judged on one model.
#[derive(Debug)]
pub struct BlockOnModel {
    /// Which block, from 0.
    pub block: usize,
    /// Which model.
    pub model: &'static Model,
    /// The result for such a GPU, or the reason for none.
    pub shape: Result<Shape, Refusal>,
}

/// Judges each block on every model that the profile is for and the block can meet.
///
/// # Errors
/// A [`ProfileError`] for a block that partitions and can meet no model, and for a model that no block can meet.
pub fn check_on_models(profile: &Profile) -> Result<Vec<BlockOnModel>, ProfileError> {
    let models = models_of(profile)?;
    let mut judged = Vec::new();
    for (position, block) in profile.blocks.iter().enumerate() {
        let earlier = &profile.blocks[..position];
        let before = judged.len();
        for &model in &models {
            if may_reach(block, earlier, model) {
                judged.push(BlockOnModel {
                    block: position,
                    model,
                    shape: check_on_model(profile, block, model),
                });
            }
        }
        // Any GPU can be a whole one, also of a model without MIG, which the catalog does not have.
        if judged.len() == before && matches!(block.want, Want::Parts(_)) {
            return Err(reaches_no_model(profile, block, earlier));
        }
    }
    for ((_, span), model) in profile.models.iter().zip(models) {
        if !judged.iter().any(|one| one.model.key == model.key) {
            let message = format!("no block selects {} ({})", model.key, model.product());
            return Err(profile.error(*span, message));
        }
    }
    Ok(judged)
}

/// The models that the profile is for.
fn models_of(profile: &Profile) -> Result<Vec<&'static Model>, ProfileError> {
    if profile.models.is_empty() {
        return Ok(catalog::models().iter().collect());
    }
    // All mistakes at once.
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for (word, span) in &profile.models {
        match catalog::find(word) {
            Ok(model) => found.push(model),
            Err(unknown) => wrong.push(profile.error(*span, unknown.to_string())),
        }
    }
    ProfileError::all(wrong).map_or(Ok(found), Err)
}
