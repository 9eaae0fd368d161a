use std::collections::BTreeMap;

use super::Draft;
use super::group::Group;
use super::present::{Present, PresentGpu, Standing};
use crate::host::Uid;
use crate::node::Node;
use crate::plan::check::Shape;
use crate::plan::{self, Plan};
use crate::profile::Profile;
use crate::state::RunDir;

/// A node as a profile.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The profile.
    pub draft: Draft,
    /// The steps that `up` would still take, or its refusal.
    pub notes: Vec<String>,
}

/// The present geometry and MPS settings as a profile, for `caller` with daemons in `run_dir`.
///
/// Placements are pinned where the planner would choose others on an empty GPU, and where two
/// instances alike differ in name or settings. What comes out has been planned for this node.
pub fn export(node: &Node, run_dir: &RunDir, caller: Uid) -> Exported {
    let present = Present::of(node, run_dir);
    let mut pinned = vec![false; present.groups().len()];
    let wanted = |pinned: &[bool]| draft(&present, pinned);
    let judge = |node: &Node, draft: &Draft| -> Result<Plan, String> {
        let text = draft.to_string();
        let profile = Profile::parse("the exported profile".as_ref(), text);
        let profile = profile.map_err(|error| error.to_string())?;
        plan::up(node, &profile, run_dir, caller).map_err(|refusal| refusal.to_string())
    };
    let empty = emptied(node);
    let again = judge(&empty, &wanted(&pinned));
    for (nth, group) in present.groups().iter().enumerate() {
        let same = |gpu: &&PresentGpu| {
            let plan = again.as_ref().ok();
            let plan = plan.and_then(|plan| plan.gpus.iter().find(|p| p.index == Some(gpu.index)));
            plan.is_some_and(|plan| as_present(gpu, &Shape::of(plan)))
        };
        pinned[nth] = !group.iter().all(same);
    }
    let starts_only = |plan: &Result<Plan, String>| {
        let steps = plan.iter().flat_map(Plan::steps);
        plan.is_ok() && steps.into_iter().all(|step| step.action.is_start())
    };
    if !starts_only(&judge(node, &wanted(&pinned))) {
        pinned.fill(true);
    }
    let draft = wanted(&pinned);
    let notes = match judge(node, &draft) {
        _ if draft.blocks.is_empty() => Vec::new(),
        Ok(plan) => still_to_do(&plan),
        Err(refusal) => vec![format!("up would refuse this profile here: {refusal}")],
    };
    Exported { draft, notes }
}

/// The node with nothing on its GPUs: MIG mode as it is, no instances, no daemons.
fn emptied(node: &Node) -> Node {
    let mut empty = node.clone();
    empty.served.clear();
    empty.processes.clear();
    empty.created.clear();
    for gpu in &mut empty.gpus {
        gpu.instances.clear();
    }
    empty
}

/// True if the profile would make the same GPU again.
fn as_present(gpu: &PresentGpu, shape: &Shape) -> bool {
    let made = shape.devices.iter();
    let made: BTreeMap<&str, _> = made
        .map(|d| (d.name.as_str(), d.placement.map(|p| p.start)))
        .collect();
    match &gpu.standing {
        Standing::Whole(_) => true,
        Standing::Parts(parts) => {
            let devices = parts.iter().flat_map(|part| {
                part.devices
                    .iter()
                    .map(move |device| (device.name.as_str(), Some(part.at)))
            });
            devices.collect::<BTreeMap<_, _>>() == made
        }
    }
}

fn still_to_do(plan: &Plan) -> Vec<String> {
    let steps: Vec<String> = plan
        .steps()
        .map(|step| format!("  {}: {}", step.action, step.because))
        .collect();
    if steps.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "up with this profile would still:\n{}",
        steps.join("\n")
    )]
}

fn draft(present: &Present, pinned: &[bool]) -> Draft {
    let mut remarks = vec!["What this node had when mig-mps exported it.".to_owned()];
    remarks.extend(present.remarks.iter().cloned());
    let groups = present.groups().into_iter().zip(pinned);
    Draft {
        remarks,
        name: None,
        mps: present.mps.clone(),
        blocks: groups
            .map(|(gpus, &pinned)| Group::new(present, gpus, pinned).block())
            .collect(),
    }
}
