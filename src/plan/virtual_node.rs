//! Plans a profile for GPUs with nothing on them: runs the planner of `up` on GPUs of the catalog, or on those of a node as if
//! it were empty.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use super::up::block_selects;
use crate::catalog::{self, Model, model_with_product};
use crate::geometry::{GpuInstanceProfile, SliceMap};
use crate::host::{Uid, group_by};
use crate::node::{Gpu, Node, Unseen};
use crate::nvml::MigMode;
use crate::plan::{Action, DevicePlan, GpuPlan, Plan, Refusal};
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
const MAX_GPUS: u32 = 1024;

impl FromStr for GpuArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(form) = suggest_form(text) {
            return Err(form);
        }
        let (word, count) = text.split_once(':').unwrap_or((text, "1"));
        let number = count
            .parse()
            .ok()
            .filter(|count| (1..=MAX_GPUS).contains(count));
        let count =
            number.ok_or_else(|| format!("\"{count}\" is not a number from 1 to {MAX_GPUS}"))?;
        let model = catalog::find_model(word).map_err(|unknown| unknown.to_string())?;
        Ok(Self { model, count })
    }
}

/// Returns how GPUs are written that a text has in another form: `8xa100-80gb`, `a100-80gb*8`, `h200,a100-80gb`, `0`.
fn suggest_form(text: &str) -> Option<String> {
    // A longer number is that of a model, such as 4090.
    if text == "all" || (text.len() < 4 && text.parse::<u32>().is_ok()) {
        return Some("expected a model; omit --gpu for the GPUs of this node".to_owned());
    }
    let is_model = |word: &str| catalog::find_model(word).is_ok();
    if text.contains(',') && text.split(',').all(is_model) {
        let each = text.replace(',', " --gpu ");
        return Some(format!("expected one model: write --gpu {each}"));
    }
    let is_number = |word: &str| word.trim().parse::<u32>().is_ok();
    let mut pairs = text.match_indices([':', 'x', '*', ' ']).map(|(at, sign)| {
        let (left, right) = (&text[..at], &text[at + sign.len()..]);
        (left.trim(), right.trim(), sign)
    });
    pairs.find_map(|(left, right, sign)| match sign {
        _ if is_number(left) && is_model(right) => Some(format!("write {right}:{left}")),
        "x" | "*" if is_number(right) && is_model(left) => Some(format!("write {left}:{right}")),
        _ => None,
    })
}

/// A node with MIG off and nothing on its GPUs, and these by product.
#[derive(Clone, Debug)]
pub struct EmptyNode {
    pub node: Node,
    /// True if it was made of a node, and not of catalog models.
    pub is_real: bool,
    pub groups: Vec<GpuGroup>,
}

/// The GPUs of one product.
#[derive(Clone, Debug)]
pub struct GpuGroup {
    /// NVML's name.
    pub product: String,
    /// Its model, if the catalog has it.
    pub model: Option<&'static Model>,
    pub indices: Vec<u32>,
    /// The memory of one GPU in MiB, if it is known.
    pub memory_mib: Option<u64>,
    pub has_mig: bool,
    /// The profiles that one GPU offers; none if it has no MIG, or if nobody lists them.
    pub profiles: Vec<GpuInstanceProfile>,
    /// True if the profiles are the catalog's and not a driver's.
    pub is_from_catalog: bool,
}

impl EmptyNode {
    /// Empties a copy of a node. Old drivers list profiles only while MIG is on: there the catalog knows them.
    pub fn from_node(node: &Node) -> Self {
        let groups: Vec<GpuGroup> = group_by(&node.gpus, |one, other| one.product == other.product)
            .iter()
            .map(|gpus| GpuGroup::from_gpus(gpus))
            .collect();
        let gpus = node.gpus.iter().map(|gpu| {
            let group = groups.iter().find(|group| group.product == gpu.product);
            Gpu {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                product: gpu.product.clone(),
                pci: gpu.pci.clone(),
                memory: gpu.memory,
                mig: gpu.mig.map(|_| MigMode {
                    current: false,
                    pending: false,
                }),
                profiles: group.map_or_else(Vec::new, |group| group.profiles.clone()),
                ..Gpu::default()
            }
        });
        let mut lost = node.unseen.clone();
        lost.retain(|unseen| matches!(unseen, Unseen::Gpu { .. }));
        let mut node = Node {
            driver: node.driver.clone(),
            gpus: gpus.collect(),
            unseen: lost,
            joint_before: node.joint_before.clone(),
            ..Node::default()
        };
        node.join();
        Self {
            node,
            is_real: true,
            groups,
        }
    }

    /// A node with GPUs of the catalog.
    pub fn of_models(gpus: &[GpuArgument]) -> Self {
        let models = gpus
            .iter()
            .flat_map(|gpu| (0..gpu.count).map(|_| gpu.model));
        let node = Node::from_models((0..).zip(models.clone()));
        let gpus = node.gpus.iter().zip(models);
        let groups = group_by(gpus, |(_, one), (_, other)| one.key == other.key)
            .into_iter()
            .map(|alike| {
                let (gpus, models): (Vec<&Gpu>, Vec<&Model>) = alike.into_iter().unzip();
                GpuGroup {
                    model: Some(models[0]),
                    is_from_catalog: true,
                    ..GpuGroup::from_gpus(&gpus)
                }
            })
            .collect();
        Self {
            node,
            is_real: false,
            groups,
        }
    }

    /// The models of its GPUs, as far as the catalog has them.
    fn known_models(&self) -> impl Iterator<Item = &'static Model> {
        self.groups.iter().filter_map(|group| group.model)
    }

    /// Returns the model of a GPU, if the catalog has it.
    fn model_of(&self, gpu: &Gpu) -> Option<&'static Model> {
        self.groups
            .iter()
            .find(|group| group.indices.contains(&gpu.index))?
            .model
    }
}

impl GpuGroup {
    /// The group of these GPUs, which are of one product.
    fn from_gpus(gpus: &[&Gpu]) -> Self {
        let first = gpus[0];
        let has_mig = first.mig.is_some();
        let model = if has_mig {
            model_with_product(&first.product)
        } else {
            None
        };
        // Some drivers show placements to root alone.
        let listed = gpus.iter().find(|gpu| {
            gpu.profiles
                .iter()
                .any(|offer| !offer.placements.is_empty())
        });
        Self {
            product: first.product.clone(),
            model,
            indices: gpus.iter().map(|gpu| gpu.index).collect(),
            memory_mib: first.memory.map(|memory| memory.total >> 20),
            has_mig,
            profiles: match listed {
                Some(gpu) => gpu.profiles.clone(),
                None => model.map(Model::offers).unwrap_or_default(),
            },
            is_from_catalog: has_mig && listed.is_none(),
        }
    }
}

/// A profile judged on a node with nothing on its GPUs.
#[derive(Debug)]
pub struct OnNode {
    /// True for the GPUs of this machine, false for GPUs of catalog models.
    pub is_real: bool,
    /// The GPUs, by index.
    pub gpus: Vec<JudgedGpu>,
    /// Blocks that select a GPU by what only a real one has, a UUID or PCI address: which models of
    /// an imaginary node such a GPU can be of.
    pub elsewhere: Vec<(usize, Vec<&'static Model>)>,
    /// Blocks that select none of these GPUs.
    pub unmatched: Vec<usize>,
    /// Remarks on the devices that there would be.
    pub remarks: Vec<String>,
}

/// A GPU that a profile was judged on.
#[derive(Debug)]
pub struct JudgedGpu {
    /// NVML's index.
    pub index: u32,
    /// NVML's name.
    pub product: String,
    /// Its model, if the catalog has it.
    pub model: Option<&'static Model>,
    /// The layout that it gets; `None` where no block selects it.
    pub shape: Option<Shape>,
}

impl JudgedGpu {
    /// Returns its layout with the joint devices only of which it is the first GPU.
    pub fn own_shape(&self) -> Option<Shape> {
        let mut shape = self.shape.clone()?;
        shape.devices.retain(|device| {
            device
                .joint
                .first()
                .is_none_or(|first| *first == self.index)
        });
        Some(shape)
    }
}

/// Judges a profile on an imaginary node of these GPUs.
pub fn check_on_gpus(profile: &Profile, gpus: &[GpuArgument]) -> Result<OnNode, Refusal> {
    check_on_node(profile, &EmptyNode::of_models(gpus))
}

/// Judges a profile on a node, whatever is on its GPUs now.
///
/// # Errors
/// The planner's [`Refusal`]; for a block that selects by UUID or PCI address, on an imaginary node that of the first
/// model where it fits on none. A [`ProfileError`] for blocks that
/// partition and can select no model at all: a catch-all behind them would hide a typing error.
pub fn check_on_node(profile: &Profile, empty: &EmptyNode) -> Result<OnNode, Refusal> {
    let node = &empty.node;
    check_models(profile, empty)?;
    check_products(profile, node)?;
    let (seen, elsewhere): (Vec<_>, Vec<_>) = profile
        .blocks
        .iter()
        .enumerate()
        .partition(|(_, block)| empty.is_real || !block.select.names_a_real_gpu());
    let rest = Profile {
        blocks: seen.iter().map(|(_, block)| (*block).clone()).collect(),
        ..profile.clone()
    };
    let plan = if rest.blocks.is_empty() {
        Plan::default()
    } else {
        plan_on(node, &rest)?
    };
    let mut fits = Vec::new();
    for (position, block) in elsewhere {
        fits.push((position, fitting_models(profile, block, empty)?));
    }
    let gpus = node.gpus.iter().map(|gpu| JudgedGpu {
        index: gpu.index,
        product: gpu.product.clone(),
        model: empty.model_of(gpu),
        shape: shape_on(gpu, &rest, &plan),
    });
    Ok(OnNode {
        is_real: empty.is_real,
        gpus: gpus.collect(),
        elsewhere: fits,
        unmatched: seen
            .iter()
            .filter(|(_, block)| !node.gpus.iter().any(|gpu| block_selects(block, gpu)))
            .map(|(position, _)| *position)
            .collect(),
        remarks: plan.remarks_on_devices(node),
    })
}

/// Returns the models of an imaginary node on which a block fits that selects what only a real GPU has; a refusal if it fits
/// on none.
fn fitting_models(
    profile: &Profile,
    block: &Block,
    empty: &EmptyNode,
) -> Result<Vec<&'static Model>, Refusal> {
    let (mut fits, mut refused) = (Vec::new(), None);
    for model in empty.known_models() {
        match check_on_model(profile, block, model) {
            Ok(_) => fits.push(model),
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
    // A joint device is shown on each of its GPUs.
    let has_joint = |plan: &&GpuPlan| {
        plan.devices
            .iter()
            .any(|device| device.joint.contains(&gpu.index))
    };
    let planned = plan
        .gpus
        .iter()
        .find(has_joint)
        .or_else(|| plan.gpus.iter().find(|plan| plan.index == Some(gpu.index)));
    // A plan leaves out a GPU that is as its block asks.
    let is_selected = profile.blocks.iter().any(|block| block_selects(block, gpu));
    is_selected.then(|| Shape::from_plan(planned, Some(gpu)))
}

/// Refuses GPUs that the profile says it is not for.
fn check_models(profile: &Profile, empty: &EmptyNode) -> Result<(), Refusal> {
    let Some((_, span)) = profile.models.first() else {
        return Ok(());
    };
    let meant: Vec<&str> = profile
        .models
        .iter()
        .filter_map(|(word, _)| catalog::find_model(word).ok())
        .map(|model| model.key.as_str())
        .collect();
    if meant.len() != profile.models.len() {
        return Ok(());
    }
    let Some(other) = empty
        .known_models()
        .find(|model| !meant.contains(&model.key.as_str()))
    else {
        return Ok(());
    };
    let message = format!("the profile is not for {}", other.key);
    let error = profile.error_at(*span, message);
    Err(error.with_hint("add it to models, or omit models").into())
}

/// Judges one block on one model, on as many GPUs as it names by index. Returns what becomes of one, and remarks on its
/// devices.
pub fn check_on_model(
    profile: &Profile,
    block: &Block,
    model: &'static Model,
) -> Result<(Shape, Vec<String>), Refusal> {
    let mut indices: Vec<u32> = block.select.indices().collect();
    indices.sort_unstable();
    indices.dedup();
    indices.truncate(MAX_GPUS as usize);
    let select = if indices.is_empty() {
        // A joint device has two GPUs at least.
        let is_joint = matches!(&block.want, Want::Whole(whole) if whole.is_joint);
        indices.extend(0..if is_joint { 2 } else { 1 });
        Selector::default()
    } else {
        Selector::from_indices(indices.clone())
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
    let node = Node::from_models(indices.into_iter().map(|index| (index, model)));
    let plan = plan_on(&node, &one)?;
    let mut remarks: Vec<String> = plan
        .unused_capacity(&node)
        .into_iter()
        .map(|(_, unused)| unused.to_string())
        .collect();
    remarks.extend(plan.remarks_on_limits(&node));
    Ok((
        Shape::from_plan(plan.gpus.first(), node.gpus.first()),
        remarks,
    ))
}

/// The layout that a profile gives a virtual GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// True if it is in MIG mode.
    pub is_mig: bool,
    /// True if nothing can be said: neither the driver, as it is now, nor the catalog lists its profiles.
    pub is_unknown: bool,
    /// Its slices.
    pub map: SliceMap,
    /// Its devices, from left to right.
    pub devices: Vec<DevicePlan>,
}

impl Shape {
    /// True if it has a joint device.
    pub fn is_joint(&self) -> bool {
        self.devices.iter().any(|device| !device.joint.is_empty())
    }

    /// Returns the result of a plan for an empty GPU. Without one it has neither MIG mode nor a daemon.
    fn from_plan(plan: Option<&GpuPlan>, gpu: Option<&Gpu>) -> Self {
        let mut devices = plan.map_or_else(Vec::new, |plan| plan.devices.clone());
        for device in devices.iter_mut().filter(|device| device.profile.is_none()) {
            let sms = gpu.and_then(|gpu| gpu.device_size().multiprocessors);
            device.multiprocessors = sms.map(|sms| sms.all);
        }
        Self {
            is_mig: plan.is_some_and(|plan| {
                plan.actions()
                    .any(|action| matches!(action, Action::SwitchMig { on: true }))
            }),
            is_unknown: plan.is_some_and(|plan| plan.to_be_continued),
            map: plan.map_or_else(|| SliceMap::new(0, Vec::new()), |plan| plan.after.clone()),
            devices,
        }
    }
}

/// Refuses blocks that partition GPUs neither of this node nor of a model that the catalog knows.
fn check_products(profile: &Profile, node: &Node) -> Result<(), ProfileError> {
    let wrong = profile.blocks.iter().filter(|block| {
        let may_select = |product: &str| block.select.may_select(product);
        matches!(block.want, Want::Parts(_))
            && !node.gpus.iter().any(|gpu| may_select(&gpu.product))
            && !catalog::has_product(may_select)
    });
    let errors = wrong.map(|block| no_model_error(profile, block, &[]));
    match ProfileError::from_errors(errors.collect()) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// True if a GPU of that model can reach this block: it selects one, and none before it has taken
/// all such GPUs.
pub fn may_reach(block: &Block, earlier: &[Block], model: &Model) -> bool {
    model.products_or_default().iter().any(|product| {
        let selected = block.select.may_select(product);
        selected
            && !earlier
                .iter()
                .any(|block| block.select.selects_all(product))
    })
}

/// The error of a block that selects no model that can be planned for.
pub fn no_model_error(profile: &Profile, block: &Block, earlier: &[Block]) -> ProfileError {
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
    let known = catalog::models().any(|model| may_reach(block, &[], model));
    if known && !earlier.is_empty() {
        let message = "the blocks before this one select every model it could";
        return profile.error_at(block.span, message);
    }
    if known && !profile.models.is_empty() {
        let message = "this selects none of the models that the profile is for";
        return profile.error_at(block.span, message);
    }
    if unknown.is_empty() {
        let error = profile.error_at(block.span, "this selects no model that has MIG");
        return error.with_hint("run `mig-mps check --models` to list their product names");
    }
    let message = "this selects only models of which too little is known";
    let hint = format!(
        "run `mig-mps up --dry-run` on such a machine: {}",
        unknown.join("; ")
    );
    profile.error_at(block.span, message).with_hint(hint)
}

/// A plain user, for profiles that root cannot apply.
const PLAIN_USER: Uid = Uid(1000);

/// Plans a profile for a virtual node.
pub fn plan_on(node: &Node, profile: &Profile) -> Result<Plan, Refusal> {
    // The user who checks need not be the one who applies it: a profile that says "self" is a plain
    // user's, any other root's.
    let own = profile.serves.iter().any(|(serve, _)| *serve == Serve::Own);
    let caller = if own { PLAIN_USER } else { Uid::ROOT };
    let run_dir = RunDir::at(Path::new("/run/mig-mps"));
    super::up(node, profile, &run_dir, caller)
}
