//! `mig-mps advise`

mod advice;
mod figures;
mod profile;
mod report;
mod solver;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;

use crate::catalog::Model;
use crate::commands::Context;
use crate::commands::args::read_wanted;
use crate::error::{CommandError, Context as _, Result, failed, usage};
use crate::failure::ExitStatus;
use crate::host::write_text_to;
use crate::node::{Detail, observe};
use crate::plan::virtual_node::{EmptyNode, GpuArgument, plan_on};
use crate::profile::{DraftProfile, Profile, Sharing, Wanted};
use crate::render::json::show;
use crate::render::note;

use advice::{ANY_NUMBER, Advice, advise, number};
pub use report::AdviceDocument;

/// Find the smallest hardware that runs programs, by figures measured with compare
///
/// Finds the layout with the fewest GPUs on which each program has what it wants, then the one with the fewest
/// slices, then the one with the largest free block, and writes it as a profile. Uses only figures that were
/// measured. Changes nothing on the node.
#[derive(Args, Debug)]
pub struct AdviseArgs {
    /// File that says what programs want, or - for standard input
    #[arg(value_hint = clap::ValueHint::FilePath)]
    wanted: PathBuf,
    /// Figures, as compare --save writes them; those in WANTED count, too
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    measured: Vec<PathBuf>,
    /// GPUs to use, such as a100-80gb:8; without a number, as many as are needed [default: this node's]
    #[arg(long = "gpu", value_name = "MODEL[:COUNT]")]
    gpus: Vec<GpuNumber>,
    /// Compute figures between two that were measured: for numbers of copies and for instance profiles
    #[arg(long)]
    interpolate: bool,
    /// Write the profile to FILE, and replace it if it exists
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
    let wanted = read(&args.wanted, &args.measured)?;
    let (node, counts) = args.gpus(context)?;
    let mut advice = advise(&node, &counts, &wanted, args.interpolate)?;
    let node = args.needed(&mut advice).unwrap_or(node);
    let text = advice.profile(&node).to_string();
    // The planner of `up` has the last word.
    let profile = Profile::parse(Path::new("the new profile"), text.clone())?;
    plan_on(&node.node, &profile)?;
    if let Some(path) = &args.output {
        write_text_to(path, &text).context(format_args!("cannot write {}", path.display()))?;
    }
    show(
        &AdviceDocument::of(&advice, &node, &wanted, text),
        args.json,
    )?;
    if let Some(path) = &args.output {
        note(&format!("Wrote {}.", path.display()));
    }
    Ok(ExitStatus::Done)
}

/// Returns the profile of the smallest layout on a node.
pub fn smallest_layout(node: &EmptyNode, wanted: &Wanted) -> Result<DraftProfile> {
    Ok(advise(node, &counts(node), wanted, false)?.profile(node))
}

/// Returns the number of GPUs in each group.
fn counts(node: &EmptyNode) -> Vec<u32> {
    let groups = node.groups.iter();
    groups.map(|group| number(group.indices.len())).collect()
}

/// Reads what is wanted, and all figures.
fn read(wanted: &Path, measured: &[PathBuf]) -> Result<Wanted> {
    let mut all = read_wanted(wanted)?;
    if all.programs.is_empty() {
        let error = usage(format_args!("{} wants no program", wanted.display()));
        return Err(error.hint("it needs a [[program]] for each: mig-mps help advise"));
    }
    for path in measured {
        all.measured.extend(read_wanted(path)?.measured);
    }
    for program in &all.programs {
        if let Sharing::With(names) = &program.sharing
            && let Some(name) = names
                .iter()
                .find(|name| all.programs.iter().all(|other| other.name != **name))
        {
            let what = format!(
                "{} is to share devices with {name}, which is not wanted",
                program.name
            );
            return Err(usage(what).hint("share has the names of other programs of the file"));
        }
    }
    Ok(all)
}

impl AdviseArgs {
    /// Returns the GPUs that may be used, and their number in each group.
    fn gpus(&self, context: &Context<'_>) -> Result<(EmptyNode, Vec<u32>)> {
        if !self.gpus.is_empty() {
            let models = self.models();
            let counts = models
                .iter()
                .map(|gpu| gpu.count.unwrap_or(ANY_NUMBER))
                .collect();
            return Ok((node_of(&models, |gpu| gpu.count.unwrap_or(1)), counts));
        }
        let hint = "for GPUs of another machine name them: --gpu a100-80gb:8";
        let node = observe(context.environment, Detail::OFFERS)
            .map_err(|error| CommandError::from(error).hint(hint))?;
        for hidden in node.hidden() {
            note(&format!("not seen: {hidden}"));
        }
        if node.gpus.is_empty() {
            let message = format!("the driver ({}) shows no GPU", node.driver);
            return Err(failed(message).hint(hint));
        }
        let node = EmptyNode::of(&node);
        let counts = counts(&node);
        Ok((node, counts))
    }

    /// The models that were named, each once.
    fn models(&self) -> Vec<GpuNumber> {
        let mut models: Vec<GpuNumber> = Vec::new();
        for gpu in &self.gpus {
            match models
                .iter_mut()
                .find(|earlier| earlier.model.key == gpu.model.key)
            {
                Some(earlier) => {
                    earlier.count = earlier.count.zip(gpu.count).map(|(one, other)| one + other);
                }
                None => models.push(gpu.clone()),
            }
        }
        models
    }

    /// Returns a node with as many GPUs of the named models as an advice needs, and gives the GPUs of the advice their
    /// groups in it; `None` if no models were named.
    fn needed(&self, advice: &mut Advice) -> Option<EmptyNode> {
        let mut needed: Vec<GpuNumber> = Vec::new();
        for (group, gpu) in self.models().into_iter().enumerate() {
            let used = advice.gpus.iter().filter(|gpu| gpu.group == group);
            let count = gpu.count.unwrap_or(number(used.count()));
            if count == 0 {
                continue;
            }
            for gpu in advice.gpus.iter_mut().filter(|gpu| gpu.group == group) {
                gpu.group = needed.len();
            }
            needed.push(GpuNumber {
                count: Some(count),
                ..gpu
            });
        }
        (!needed.is_empty()).then(|| node_of(&needed, |gpu| gpu.count.unwrap_or(1)))
    }
}

fn node_of(models: &[GpuNumber], count: impl Fn(&GpuNumber) -> u32) -> EmptyNode {
    let gpus: Vec<GpuArgument> = models
        .iter()
        .map(|gpu| GpuArgument {
            model: gpu.model,
            count: count(gpu),
        })
        .collect();
    EmptyNode::of_models(&gpus)
}
