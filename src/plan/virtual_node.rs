//! Plans a profile without a GPU: runs the planner of `up` on GPUs of the catalog.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use super::up::selects;
use crate::catalog::{self, Model};
use crate::geometry::SliceMap;
use crate::host::Uid;
use crate::node::{Gpu, Node};
use crate::plan::{Action, DeviceAfter, GpuPlan, LooseLimits, Plan, Refusal};
use crate::profile::{Block, Profile, ProfileError, Selector, Want};
use crate::settings::Serve;
use crate::state::RunDir;

/// `--gpu MODEL[:COUNT]`
#[derive(Clone, Debug)]
pub struct GpuArgument {
    pub model: &'static Model,
    /// The number of such GPUs.
    pub count: u32,
}

/// More GPUs than any node has: a typing error is found before it costs memory.
const MOST: u32 = 1024;

impl FromStr for GpuArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, count) = text.split_once(':').unwrap_or((text, "1"));
        let number = count
            .parse()
            .ok()
            .filter(|count| (1..=MOST).contains(count));
        let count =
            number.ok_or_else(|| format!("\"{count}\" is not a number from 1 to {MOST}"))?;
        let model = catalog::find(word).map_err(|unknown| unknown.to_string())?;
        Ok(Self { model, count })
    }
}

/// A profile judged on a node of certain GPUs.
#[derive(Debug)]
pub struct OnNode {
    /// The model of each GPU, by index, and what becomes of it; `None` where no block selects it.
    pub gpus: Vec<(&'static Model, Option<Shape>)>,
    /// Blocks that select a GPU by what only a real one has, a UUID or PCI address: which models of
    /// the node such a GPU can be of.
    pub elsewhere: Vec<(usize, Vec<&'static Model>)>,
    /// The memory limits above the memory of their device.
    pub loose_limits: LooseLimits,
    /// Blocks that select none of these GPUs.
    pub unmatched: Vec<usize>,
}

/// Judges a profile on a node of these GPUs.
///
/// # Errors
/// The planner's [`Refusal`]; for a block that selects by UUID or PCI address, that of the first
/// model where it fits on none. A [`ProfileError`] for blocks that
/// partition and can select no model at all: a catch-all behind them would hide a typing error.
pub fn check_on_gpus(profile: &Profile, gpus: &[GpuArgument]) -> Result<OnNode, Refusal> {
    refuse_other_models(profile, gpus)?;
    refuse_unknown_products(profile)?;
    let models = gpus
        .iter()
        .flat_map(|gpu| (0..gpu.count).map(|_| gpu.model));
    let node = Node::of_models((0..).zip(models.clone()));
    let (real, seen): (Vec<_>, Vec<_>) = profile
        .blocks
        .iter()
        .enumerate()
        .partition(|(_, block)| block.select.names_a_real_gpu());
    let rest = Profile {
        blocks: seen.iter().map(|(_, block)| (*block).clone()).collect(),
        ..profile.clone()
    };
    let plan = if rest.blocks.is_empty() {
        Plan::default()
    } else {
        plan_on(&node, &rest)?
    };
    let mut elsewhere = Vec::new();
    for (position, block) in real {
        elsewhere.push((position, models_of(profile, block, gpus)?));
    }
    Ok(OnNode {
        gpus: models
            .zip(&node.gpus)
            .map(|(model, gpu)| (model, shape_on(gpu, &rest, &plan)))
            .collect(),
        elsewhere,
        loose_limits: plan.loose_limits(&node),
        unmatched: seen
            .iter()
            .filter(|(_, block)| !node.gpus.iter().any(|gpu| selects(block, gpu)))
            .map(|(position, _)| *position)
            .collect(),
    })
}

/// Returns the models on which a block fits that selects what only a real GPU has; a refusal if it fits on none.
fn models_of(
    profile: &Profile,
    block: &Block,
    gpus: &[GpuArgument],
) -> Result<Vec<&'static Model>, Refusal> {
    let mut fits: Vec<&'static Model> = Vec::new();
    let mut refused = None;
    for gpu in gpus {
        match check_on_model(profile, block, gpu.model) {
            Ok(_) if fits.iter().any(|model| model.key == gpu.model.key) => {}
            Ok(_) => fits.push(gpu.model),
            Err(refusal) => refused = refused.or(Some(refusal)),
        }
    }
    match refused {
        Some(refusal) if fits.is_empty() => Err(refusal),
        _ => Ok(fits),
    }
}

/// Returns what becomes of a GPU; `None` if no block selects it.
fn shape_on(gpu: &Gpu, profile: &Profile, plan: &Plan) -> Option<Shape> {
    let planned = plan.gpus.iter().find(|plan| plan.index == Some(gpu.index));
    // A plan leaves out a GPU that is as its block asks.
    let is_selected = profile.blocks.iter().any(|block| selects(block, gpu));
    is_selected.then(|| Shape::of(planned))
}

/// Refuses GPUs that the profile says it is not for.
fn refuse_other_models(profile: &Profile, gpus: &[GpuArgument]) -> Result<(), Refusal> {
    let Some((_, span)) = profile.models.first() else {
        return Ok(());
    };
    let meant: Vec<&str> = profile
        .models
        .iter()
        .filter_map(|(word, _)| catalog::find(word).ok())
        .map(|model| model.key.as_str())
        .collect();
    let other = gpus
        .iter()
        .find(|gpu| !meant.contains(&gpu.model.key.as_str()));
    let Some(other) = other.filter(|_| meant.len() == profile.models.len()) else {
        return Ok(());
    };
    let message = format!("the profile is not for {}", other.model.key);
    let error = profile.error(*span, message);
    Err(error
        .with_hint("add it to models, or leave models out")
        .into())
}

/// Judges one block on one model, on as many GPUs as it names by index.
pub fn check_on_model(
    profile: &Profile,
    block: &Block,
    model: &'static Model,
) -> Result<Shape, Refusal> {
    let mut indices: Vec<u32> = block.select.indices().collect();
    indices.sort_unstable();
    indices.dedup();
    indices.truncate(MOST as usize);
    let select = if indices.is_empty() {
        indices.push(0);
        Selector::default()
    } else {
        Selector::of_indices(indices.clone())
    };
    let one = Profile {
        blocks: vec![Block {
            select,
            ..block.clone()
        }],
        // Not the other blocks: this is done for each.
        source: Arc::clone(&profile.source),
        name: profile.name.clone(),
        models: Vec::new(),
        cdi: None,
        serves: profile.serves.clone(),
    };
    let node = Node::of_models(indices.into_iter().map(|index| (index, model)));
    let plan = plan_on(&node, &one)?;
    Ok(Shape::of(plan.gpus.first()))
}

/// The layout that a profile gives a virtual GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// True if it is in MIG mode.
    pub is_mig: bool,
    /// Its slices.
    pub map: SliceMap,
    /// Its devices, from left to right.
    pub devices: Vec<DeviceAfter>,
}

impl Shape {
    /// Returns the result of a plan for an empty GPU. Without one it has neither MIG mode nor a daemon.
    fn of(plan: Option<&GpuPlan>) -> Self {
        Self {
            is_mig: plan.is_some_and(|plan| {
                plan.actions()
                    .any(|action| matches!(action, Action::SwitchMig { on: true }))
            }),
            map: plan.map_or_else(|| SliceMap::new(0, Vec::new()), |plan| plan.after.clone()),
            devices: plan.map_or_else(Vec::new, |plan| plan.devices.clone()),
        }
    }
}

/// Refuses blocks that partition GPUs of no model that the catalog knows.
pub(super) fn refuse_unknown_products(profile: &Profile) -> Result<(), ProfileError> {
    let wrong = profile.blocks.iter().filter(|block| {
        matches!(block.want, Want::Parts(_))
            && !catalog::has_product(|name| block.select.may_select(name))
    });
    let errors = wrong.map(|block| reaches_no_model(profile, block, &[]));
    ProfileError::all(errors.collect()).map_or(Ok(()), Err)
}

/// True if a GPU of that model can reach this block: it selects one, and none before it has taken
/// all such GPUs.
pub fn may_reach(block: &Block, earlier: &[Block], model: &Model) -> bool {
    model.products().iter().any(|product| {
        let selected = block.select.may_select(product);
        selected
            && !earlier
                .iter()
                .any(|block| block.select.selects_all(product))
    })
}

/// The error of a block that selects no model that can be planned for.
pub fn reaches_no_model(profile: &Profile, block: &Block, earlier: &[Block]) -> ProfileError {
    let unknown: Vec<String> = catalog::incomplete()
        .iter()
        .filter(|model| {
            model
                .product_names
                .iter()
                .any(|name| block.select.may_select(name))
        })
        .map(|model| format!("{} lacks {}", model.key, model.missing.join(", ")))
        .collect();
    let known = catalog::models()
        .iter()
        .any(|model| may_reach(block, &[], model));
    if known && !earlier.is_empty() {
        let message = "the blocks before this one take every model it could select";
        return profile.error(block.span, message);
    }
    if known && !profile.models.is_empty() {
        let message = "this selects none of the models that the profile is for";
        return profile.error(block.span, message);
    }
    if unknown.is_empty() {
        let error = profile.error(block.span, "this selects no model that has MIG");
        return error.with_hint("mig-mps check --models lists their product names");
    }
    let message = "this selects only models of which too little is known";
    let hint = format!(
        "on such a machine, mig-mps up --dry-run tells: {}",
        unknown.join("; ")
    );
    profile.error(block.span, message).with_hint(hint)
}

/// A plain user, for profiles that root cannot apply.
const SOMEBODY: Uid = Uid(1000);

/// Plans a profile for a virtual node.
pub fn plan_on(node: &Node, profile: &Profile) -> Result<Plan, Refusal> {
    // The user who checks need not be the one who applies it: a profile that says "self" is a plain
    // user's, any other root's.
    let own = profile.serves.iter().any(|(serve, _)| *serve == Serve::Own);
    let caller = if own { SOMEBODY } else { Uid::ROOT };
    let run_dir = RunDir::at(Path::new("/run/mig-mps"));
    super::up(node, profile, &run_dir, caller)
}
