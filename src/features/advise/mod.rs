//! `mig-mps advise`

mod advice;
mod figures;
pub mod init;
mod profile;
mod report;
mod request;
mod solver;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;

use crate::catalog::Model;
use crate::commands::args::similar_file_hint;
use crate::commands::{Context, empty_node};
use crate::error::{ErrorContext as _, Result, usage_error};
use crate::failure::ExitStatus;
use crate::host::{read_text_from, write_text_to};
use crate::plan::virtual_node::{EmptyNode, GpuArgument, plan_on};
use crate::profile::{Profile, WantedPrograms};
use crate::render::json::print_report;
use crate::render::{examples_and_statuses, report};
use crate::shared::DraftProfile;

pub use advice::Advice;
use advice::AdvisedGpus;
use request::{ANY_NUMBER, AdviceRequest, MOST_EFFORT};
use solver::Solution;

/// Find the fewest GPUs for a set of programs
///
/// From measurements, finds the layout with the fewest GPUs on which every program meets its requirements. Among these layouts, chooses the
/// one with the fewest slices, then the one with the largest free block. Changes nothing on the node.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("mig-mps advise wanted.toml --measured figures.toml", "For this node"),
    ("mig-mps advise wanted.toml --gpu h100-80gb-sxm", "How many H100s?"),
    ("mig-mps advise wanted.toml -o profile.toml", "Write a profile"),
], &[("5", "the programs need more than the GPUs offer")]))]
pub struct AdviseArgs {
    /// TOML file with the requirements, or - for standard input
    #[arg(value_hint = clap::ValueHint::FilePath)]
    wanted: PathBuf,
    /// Measurements from `compare --save`
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    measured: Vec<PathBuf>,
    /// GPUs, such as a100-80gb:8 [default: this node's]
    #[arg(long = "gpu", value_name = "MODEL[:COUNT]")]
    gpus: Vec<GpuNumber>,
    /// Estimate numbers of copies and instance profiles between two measured ones
    #[arg(long, hide_short_help = true)]
    interpolate: bool,
    /// Search up to N times as long for an answer that is proven best
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_EFFORT)))]
    effort: u32,
    /// Write the profile to FILE, overwriting it
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// GPUs of a model: so many, or as many as are needed.
#[derive(Clone, Debug)]
struct GpuNumber {
    model: &'static Model,
    count: Option<u32>,
}

impl FromStr for GpuNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let GpuArgument { model, count } = text.parse()?;
        let count = text.contains(':').then_some(count);
        Ok(Self { model, count })
    }
}

/// Finds the smallest hardware, and writes its profile.
pub fn run(args: &AdviseArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let wanted = load_wanted_and_figures(&args.wanted, &args.measured)?;
    let node = args.target_node(context)?;
    let counts = args.allowed_gpu_counts(&node);
    let request = AdviceRequest::new(&node, &counts, &wanted, args.interpolate, args.effort)?;
    let solution = request.smallest_solution()?;
    let needed = args.node_for_solution(&node, &solution);
    let needed = needed.as_ref().unwrap_or(&node);
    let advice = Advice::new(&request, &solution, &wanted, needed);
    // The planner of `up` has the last word.
    let profile = Profile::parse(Path::new("the new profile"), advice.profile.clone())?;
    plan_on(&needed.node, &profile)?;
    print_report(&advice, args.json)?;
    if let Some(path) = &args.output {
        let written = write_text_to(path, &advice.profile);
        written.context(format_args!("cannot write {}", path.display()))?;
        report(&format!("Wrote {}.", path.display()));
    }
    Ok(ExitStatus::Done)
}

/// Returns the profile of the smallest layout on a node.
pub fn smallest_layout(node: &EmptyNode, wanted: &WantedPrograms) -> Result<DraftProfile> {
    let request = AdviceRequest::new(node, &gpu_counts(node), wanted, false, 1)?;
    let gpus = AdvisedGpus::from_solution(&request, &request.smallest_solution()?, node);
    Ok(profile::draft_profile(&gpus, node))
}

/// Reads a file of what programs want, and of figures.
fn load_wanted(path: &Path) -> Result<WantedPrograms> {
    let (shown, text) = read_text_from(path);
    let is_missing = text
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let near = is_missing
        .then(|| similar_file_hint(path, &["toml"]))
        .flatten();
    let text = text
        .context(format_args!("cannot read {}", shown.display()))
        .map_err(|error| match near {
            Some(near) => error.with_hint(near),
            None => error,
        })?;
    Ok(WantedPrograms::parse(shown, text)?)
}

/// Returns the number of GPUs in each group.
fn gpu_counts(node: &EmptyNode) -> Vec<u32> {
    node.groups
        .iter()
        .map(|group| saturating_u32(group.indices.len()))
        .collect()
}

/// Returns a number of things in a list.
fn saturating_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Reads what is wanted, and all figures.
fn load_wanted_and_figures(wanted: &Path, measured: &[PathBuf]) -> Result<WantedPrograms> {
    let mut all = load_wanted(wanted)?;
    if all.programs.is_empty() {
        let error = usage_error("the file requests no program");
        return Err(error.with_hint(
            "add a [[program]] for each program; `mig-mps help sizing` has an example",
        ));
    }
    for path in measured {
        all.measured.extend(load_wanted(path)?.measured);
    }
    Ok(all)
}

impl AdviseArgs {
    /// Returns the node whose GPUs may be used.
    fn target_node(&self, context: &Context<'_>) -> Result<EmptyNode> {
        if self.gpus.is_empty() {
            return empty_node(context.environment);
        }
        let named = self.gpus.iter().map(|gpu| GpuArgument {
            model: gpu.model,
            count: gpu.count.unwrap_or(1),
        });
        Ok(EmptyNode::of_models(&named.collect::<Vec<_>>()))
    }

    /// Returns the number of GPUs that may be used of each group.
    fn allowed_gpu_counts(&self, node: &EmptyNode) -> Vec<u32> {
        if self.gpus.is_empty() {
            return gpu_counts(node);
        }
        let models = node.groups.iter().filter_map(|group| group.model);
        models
            .map(|model| self.count_of_model(model).unwrap_or(ANY_NUMBER))
            .collect()
    }

    /// Returns the number of GPUs of a model; `None` for as many as are needed.
    fn count_of_model(&self, model: &Model) -> Option<u32> {
        let named = self.gpus.iter().filter(|gpu| gpu.model.key == model.key);
        named.map(|gpu| gpu.count).sum()
    }

    /// Returns a node with as many GPUs of the named models as a solution needs; `None` if no models were named.
    fn node_for_solution(&self, node: &EmptyNode, solution: &Solution) -> Option<EmptyNode> {
        if self.gpus.is_empty() {
            return None;
        }
        let mut needed = Vec::new();
        for (nth, group) in node.groups.iter().enumerate() {
            let model = group.model?;
            let used = solution.gpus.iter().filter(|(group, _)| *group == nth);
            let count = self
                .count_of_model(model)
                .unwrap_or(saturating_u32(used.count()));
            needed.push(GpuArgument { model, count });
        }
        needed.retain(|gpus| gpus.count > 0);
        Some(EmptyNode::of_models(&needed))
    }
}
