//! `mig-mps check`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use thiserror::Error;

use super::warn;
use crate::catalog;
use crate::check::{BlockOnModel, GpuArgument, against, against_all};
use crate::failure::Status;
use crate::plan::Refusal;
use crate::profile::Profile;
use crate::render::Ui;

/// The flags of `check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// What is wanted (TOML)
    #[arg(value_hint = clap::ValueHint::FilePath, required_unless_present = "models")]
    profile: Option<PathBuf>,
    /// Judge it on a node of these GPUs, in the order of their indices, such as a100-80gb:8;
    /// without this, on every model that its selectors can mean
    #[arg(long = "gpu", value_name = "MODEL[:COUNT]", conflicts_with = "models")]
    gpus: Vec<GpuArgument>,
    /// List the models instead, and how sure each entry is
    #[arg(long, conflicts_with = "profile")]
    models: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A profile that does not suit every model it can meet.
#[derive(Debug, Error)]
#[error("{text}")]
pub struct Unfit {
    text: String,
    infeasible: bool,
}

impl Unfit {
    /// What it ends the program with.
    pub fn status(&self) -> Status {
        if self.infeasible {
            Status::Infeasible
        } else {
            Status::Usage
        }
    }

    /// What to do about it.
    pub fn hint() -> &'static str {
        "name the models you have with --gpu MODEL, or keep others away from a block with \
         select = { product = \"…\" }"
    }

    /// What is wrong where; `None` where nothing is.
    fn of(judged: &[BlockOnModel]) -> Option<Self> {
        let refusals = judged.iter().filter_map(|one| one.shape.as_ref().err());
        let refused = judged.iter().filter(|one| one.shape.is_err());
        let mut keys: Vec<&str> = refused.clone().map(|one| one.model.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        let first = refused.clone().next()?;
        let example = refusals.clone().next()?;
        let mut all: Vec<&str> = judged.iter().map(|one| one.model.key.as_str()).collect();
        all.sort_unstable();
        all.dedup();
        let mut text = format!(
            "the profile does not suit {} of {} models: {}\n{}: {example}",
            keys.len(),
            all.len(),
            keys.join(", "),
            first.model.key,
        );
        if let Some(hint) = example.hint() {
            text = format!("{text}\n{hint}");
        }
        let infeasible = |refusal: &Refusal| matches!(refusal, Refusal::Infeasible { .. });
        Some(Self {
            text,
            infeasible: refusals.clone().all(infeasible),
        })
    }
}

/// Says whether a profile fits, without a GPU.
///
/// # Errors
/// A bad profile, and one that does not fit.
pub fn run(args: &CheckArgs, ui: &Ui) -> Result<()> {
    let Some(path) = &args.profile else {
        return ui.models(catalog::models(), catalog::incomplete(), args.json);
    };
    let profile = Profile::load(path)?;
    warn(None, profile.memory_limits(), ui);
    if args.gpus.is_empty() {
        let judged = against_all(&profile)?;
        ui.check_fleet(&profile, &judged, args.json)?;
        return Unfit::of(&judged).map_or(Ok(()), |unfit| Err(unfit.into()));
    }
    let judged = against(&profile, &args.gpus);
    ui.check_node(&profile, &judged, args.json)?;
    judged?;
    Ok(())
}
