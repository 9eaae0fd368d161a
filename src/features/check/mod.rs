//! `mig-mps check`, on this node, on a node of imaginary GPUs or on every model of the catalog.

mod models;
mod report;

use std::collections::BTreeSet;

use clap::Args;
use console::style;

use crate::catalog::{self, Model};
use crate::commands::args::ProfileSource;
use crate::commands::built_in::suggest_fitting_profiles;
use crate::commands::{Context, accounts, warn_of_small_limits};
use crate::error::{CommandError, Result};
use crate::failure::{ExitStatus, Failure};
use crate::host::{Environment, Uid};
use crate::node::{Detail, observe};
use crate::plan::Refusal;
use crate::plan::virtual_node::{
    EmptyNode, GpuArgument, Shape, check_on_model, check_on_node, may_reach, no_model_error,
};
use crate::profile::{Profile, ProfileError, Want};
use crate::render::format::group_by;
use crate::render::json::print_report;
use crate::render::{self, examples_and_statuses, note, output_width, print, print_json};
use crate::settings::Serve;

pub use models::ModelsDocument;
pub use report::CheckDocument;

/// Test whether a profile fits this node, or other GPUs
///
/// Plans each profile as `up` would, but on empty GPUs: those of this node, or the models given with --gpu. Needs no
/// root and, with --gpu or --models, no driver. With several profiles, the exit status is the highest one.
#[derive(Args, Debug)]
#[command(
    override_usage = "mig-mps check [OPTIONS] <PROFILE>...\n       mig-mps check [OPTIONS] --models",
    after_help = examples_and_statuses(&[
        ("mig-mps check profile.toml", "Test on this node"),
        ("mig-mps check profile.toml --gpu h100-80gb-sxm:8", "Test on eight H100s"),
        ("mig-mps check --models", "List the models"),
    ], &[("5", "a profile does not fit")])
)]
pub struct CheckArgs {
    /// TOML files, built-in profiles, or - for standard input
    #[arg(value_name = "PROFILE", value_hint = clap::ValueHint::FilePath, required_unless_present = "models")]
    profiles: Vec<ProfileSource>,
    /// Test on GPUs such as a100-80gb:8; several are GPUs of one node
    #[arg(long = "gpu", value_name = "MODEL[:COUNT]", conflicts_with = "models")]
    gpus: Vec<GpuArgument>,
    /// Test on all models; without PROFILE, list them
    #[arg(long)]
    models: bool,
    /// Print a JSON document for each profile
    #[arg(long)]
    json: bool,
}

/// Checks whether profiles fit.
pub fn run(args: &CheckArgs, context: &Context<'_>) -> Result<ExitStatus> {
    if args.profiles.is_empty() {
        let models = ModelsDocument::new(catalog::incomplete());
        print_report(&models, args.json)?;
        return Ok(ExitStatus::Done);
    }
    let environment = context.environment;
    if let [source] = args.profiles.as_slice() {
        let profile = source.load()?;
        let gpus = GpusToCheck::from_args(args, environment)?;
        check_profile(source, &profile, &gpus, environment, args.json)?;
        return Ok(ExitStatus::Done);
    }
    let gpus = GpusToCheck::from_args(args, environment)?;
    let mut worst = ExitStatus::Done;
    for source in &args.profiles {
        if !args.json && !render::is_quiet() {
            print(&format!("{}\n", style(format!("{source}:")).bold()))?;
        }
        let loaded = source.load();
        let checked = loaded
            .and_then(|profile| check_profile(source, &profile, &gpus, environment, args.json));
        let Err(error) = checked else {
            continue;
        };
        if args.json && !error.is_in_document {
            let document = CheckDocument::new(source, &gpus, Some(error.message()));
            print_json(&document)?;
        }
        render::print_error(&error.to_string(), &error.hints);
        if error.status as u8 > worst as u8 {
            worst = error.status;
        }
    }
    Ok(worst)
}

/// The GPUs that profiles are judged on.
enum GpusToCheck {
    /// Those of this machine, or of an imaginary one.
    OfNode(Box<EmptyNode>),
    /// Every model of the catalog that a profile is for.
    OfCatalog,
}

impl GpusToCheck {
    /// Returns those that the user named, or else those of this machine. Without any it says so, and returns those of the
    /// catalog.
    fn from_args(args: &CheckArgs, environment: &Environment) -> Result<Self> {
        if args.models {
            return Ok(Self::OfCatalog);
        }
        if !args.gpus.is_empty() {
            return Ok(Self::OfNode(Box::new(EmptyNode::of_models(&args.gpus))));
        }
        let why = match observe(environment, Detail::OFFERS) {
            Ok(node) if node.gpus.is_empty() && node.lost_gpus().next().is_none() => {
                format!("the driver ({}) shows none", node.driver)
            }
            Ok(node) => {
                for (_, why) in node.lost_gpus() {
                    note(&format!("not checked: {why}"));
                }
                return Ok(Self::OfNode(Box::new(EmptyNode::from_node(&node))));
            }
            Err(error) if error.has_no_driver() => error.to_string(),
            Err(error) => {
                let hint =
                    "use --models, or --gpu MODEL:COUNT, to check without the GPUs of this machine";
                return Err(CommandError::from(error).with_hint(hint));
            }
        };
        note(&format!(
            "no GPU is visible here, so the models of the catalog are checked: {why}"
        ));
        Ok(Self::OfCatalog)
    }
}

/// Checks whether one profile fits, and shows how.
fn check_profile(
    source: &ProfileSource,
    profile: &Profile,
    gpus: &GpusToCheck,
    environment: &Environment,
    as_json: bool,
) -> Result<()> {
    let models = models_of(profile)?;
    warn_of_small_limits(profile.memory_limits());
    let checked = match gpus {
        GpusToCheck::OfCatalog => {
            let judged = check_on_models(profile, &models)?;
            let error = unfit_error(&judged);
            let remarks = remarks_on_models(judged.iter());
            CheckedProfile {
                text: report::render_models(profile, &judged, output_width()),
                document: CheckDocument::new(
                    source,
                    gpus,
                    error.as_ref().map(CommandError::message),
                )
                .with_models(profile, &judged, &remarks),
                remarks: short_remarks(profile, &judged),
                error,
            }
        }
        GpusToCheck::OfNode(empty) => {
            let judged = check_accounts(profile, empty, environment)
                .and_then(|()| Ok(check_on_node(profile, empty)?));
            match judged {
                Ok(on_node) => CheckedProfile {
                    text: report::render_node(profile, &on_node, output_width()),
                    document: CheckDocument::new(source, gpus, None).with_node(profile, &on_node),
                    remarks: on_node.remarks,
                    error: None,
                },
                Err(error) => {
                    let gpus_of_node = || Some(empty.as_ref().clone());
                    let error = suggest_fitting_profiles(profile, error, gpus_of_node);
                    CheckedProfile {
                        text: String::new(),
                        document: CheckDocument::new(source, gpus, Some(error.message())),
                        remarks: Vec::new(),
                        error: Some(error),
                    }
                }
            }
        }
    };
    checked.show(as_json)
}

/// A profile that was checked.
struct CheckedProfile {
    text: String,
    document: CheckDocument,
    remarks: Vec<String>,
    /// The reason why it does not fit.
    error: Option<CommandError>,
}

impl CheckedProfile {
    fn show(self, as_json: bool) -> Result<()> {
        if as_json {
            print_json(&self.document)?;
        } else if !render::is_quiet() {
            print(&self.text)?;
            for remark in &self.remarks {
                note(remark);
            }
        }
        self.error
            .map_or(Ok(()), |error| Err(error.already_in_json()))
    }
}

/// Refuses a profile for this machine that serves users or groups that it does not know.
fn check_accounts(profile: &Profile, empty: &EmptyNode, environment: &Environment) -> Result<()> {
    if !empty.is_real {
        return Ok(());
    }
    let is_own = profile.serves.iter().any(|(serve, _)| *serve == Serve::Own);
    let caller = if is_own {
        environment.caller
    } else {
        Uid::ROOT
    };
    accounts::check_accounts(profile, environment, caller)
}

/// Returns the remarks on a profile, each once with the models that it is about.
fn remarks_on_models<'a>(judged: impl Iterator<Item = &'a BlockOnModel>) -> Vec<String> {
    let all = judged.flat_map(|one| {
        one.remarks
            .iter()
            .map(|remark| (remark, one.model.key.as_str()))
    });
    group_by(all, |(one, _), (other, _)| one == other)
        .into_iter()
        .map(|alike| {
            let remark = alike[0].0;
            let models: BTreeSet<&str> = alike.into_iter().map(|(_, model)| model).collect();
            let models: Vec<&str> = models.into_iter().collect();
            format!("{}: {remark}", models.join(", "))
        })
        .collect()
}

/// Returns the remarks for people: where almost every model has its own on a block, the first and the number of the others.
fn short_remarks(profile: &Profile, judged: &[BlockOnModel]) -> Vec<String> {
    let mut shown = Vec::new();
    for (block, _) in profile.blocks.iter().enumerate() {
        let of_block = judged.iter().filter(|one| one.block == block);
        let mut remarks = remarks_on_models(of_block);
        let others = remarks.len().saturating_sub(1);
        if others > 2 {
            remarks.truncate(1);
            remarks.push(format!(
                "{}: {others} more remarks for other models; --gpu MODEL shows those of one model, --json all",
                profile.block_heading(block)
            ));
        }
        shown.extend(remarks);
    }
    shown
}

fn model_keys<'a>(judged: impl Iterator<Item = &'a BlockOnModel>) -> BTreeSet<&'a str> {
    judged.map(|one| one.model.key.as_str()).collect()
}

/// The error of a profile that does not fit every model it can meet; `None` if it fits all.
fn unfit_error(judged: &[BlockOnModel]) -> Option<CommandError> {
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
    // A profile that some model can have is no bad one.
    let fits_some = judged
        .iter()
        .any(|one| matches!(one.shape, Ok(_) | Err(Refusal::Infeasible(_))));
    let kind = if fits_some {
        ExitStatus::Infeasible
    } else {
        ExitStatus::Usage
    };
    let hint = "select your models with --gpu MODEL, or restrict a block with select = { product = \"…\" }";
    Some(CommandError::new(kind, text).with_hint(hint))
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
    /// Remarks on its devices.
    pub remarks: Vec<String>,
}

/// Judges each block on those of the models that it can meet.
///
/// # Errors
/// A [`ProfileError`] for a block that partitions and can meet no model, and for a model that no block can meet.
fn check_on_models(
    profile: &Profile,
    models: &[&'static Model],
) -> Result<Vec<BlockOnModel>, ProfileError> {
    let mut judged = Vec::new();
    for (position, block) in profile.blocks.iter().enumerate() {
        let earlier = &profile.blocks[..position];
        let before = judged.len();
        for &model in models {
            if may_reach(block, earlier, model) {
                let (shape, remarks) = match check_on_model(profile, block, model) {
                    Ok((shape, remarks)) => (Ok(shape), remarks),
                    Err(refusal) => (Err(refusal), Vec::new()),
                };
                judged.push(BlockOnModel {
                    block: position,
                    model,
                    shape,
                    remarks,
                });
            }
        }
        // Any GPU can be a whole one, also of a model without MIG, which the catalog does not have.
        if judged.len() == before && matches!(block.want, Want::Parts(_)) {
            return Err(no_model_error(profile, block, earlier));
        }
    }
    for ((_, span), model) in profile.models.iter().zip(models) {
        if !judged.iter().any(|one| one.model.key == model.key) {
            let message = format!(
                "no block selects {} ({})",
                model.key,
                model.product_or_default()
            );
            return Err(profile.error_at(*span, message));
        }
    }
    Ok(judged)
}

/// The models that the profile is for.
fn models_of(profile: &Profile) -> Result<Vec<&'static Model>, ProfileError> {
    if profile.models.is_empty() {
        return Ok(catalog::models().collect());
    }
    // All mistakes at once.
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for (word, span) in &profile.models {
        match catalog::find_model(word) {
            Ok(model) => found.push(model),
            Err(unknown) => wrong.push(profile.error_at(*span, unknown.to_string())),
        }
    }
    ProfileError::from_errors(wrong).map_or(Ok(found), Err)
}
