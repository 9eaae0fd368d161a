use std::collections::BTreeMap;

use toml::{Table, Value};

use super::gpu_block::{by_default, gpu_block, left_out, served, table};
use super::{Converted, DraftBlock, DraftProfile, grouped};
use crate::host::Uid;
use crate::node::{DaemonState, Gpu, Node};
use crate::plan::check::Shape;
use crate::plan::{self, Action, Plan};
use crate::profile::Profile;
use crate::state::RunDir;

/// The present geometry and MPS settings as a profile, for `caller` with daemons in `run_dir`.
///
/// Placements are pinned where the planner would choose others on an empty GPU, and where two
/// instances alike differ in name or settings. What comes out has been planned for this node.
pub fn export(node: &Node, run_dir: &RunDir, caller: Uid) -> Converted {
    let said = |gpu: &&Gpu| left_out(gpu).is_none();
    let gpus: Vec<&Gpu> = node.gpus.iter().filter(said).collect();
    let devices = gpus.iter().flat_map(|gpu| gpu.devices());
    let tables: Vec<Table> = devices
        .filter_map(|device| Some(table(&served(node, &device)?.record.settings)))
        .collect();
    let mps = shared(&tables);
    let blocks = gpus
        .iter()
        .map(|gpu| (gpu_block(node, gpu, &mps), gpu.index));
    // GPUs alike share a block.
    let pinned: Vec<DraftBlock> = grouped(blocks)
        .into_iter()
        .map(|(block, indices)| block.of_gpus(indices))
        .collect();
    let draft = |blocks: Vec<DraftBlock>| DraftProfile {
        remarks: remarks(node, run_dir, &gpus),
        mps: mps.clone(),
        blocks,
        ..DraftProfile::default()
    };
    let judge = |node: &Node, draft: &DraftProfile| -> Result<Plan, String> {
        let text = draft.to_string();
        let profile = Profile::parse("the exported profile".as_ref(), text);
        let profile = profile.map_err(|error| error.to_string())?;
        plan::up(node, &profile, run_dir, caller).map_err(|refusal| refusal.to_string())
    };
    let unpinned: Vec<DraftBlock> = pinned.iter().map(DraftBlock::unpinned).collect();
    let again = judge(&emptied(node), &draft(unpinned.clone())).unwrap_or_default();
    let is_again = |block: &DraftBlock| {
        let mut selected = gpus.iter().filter(|gpu| block.select.selects(gpu.index));
        selected.all(|gpu| is_same(node, gpu, &again))
    };
    let blocks = pinned.iter().zip(unpinned);
    let blocks = blocks.map(|(pinned, block)| {
        if is_again(&block) {
            block
        } else {
            pinned.clone()
        }
    });
    let mut exported = draft(blocks.collect());
    let starts_only = |plan: Plan| {
        plan.steps()
            .all(|step| matches!(step.action, Action::Start(_) | Action::StartServer(_)))
    };
    if !judge(node, &exported).is_ok_and(starts_only) {
        exported = draft(pinned);
    }
    let notes = match judge(node, &exported) {
        _ if exported.blocks.is_empty() => Vec::new(),
        Ok(plan) => still_to_do(&plan),
        Err(refusal) => vec![format!("up would refuse this profile here: {refusal}")],
    };
    Converted {
        draft: exported,
        notes,
    }
}

/// Of the settings that every device has, the most frequent value of each that is not the default.
fn shared(tables: &[Table]) -> Table {
    let keys = tables.first().into_iter().flat_map(Table::keys);
    keys.filter_map(|key| {
        let mut counts: BTreeMap<String, (usize, &Value)> = BTreeMap::new();
        for table in tables {
            let value = table.get(key)?;
            counts.entry(value.to_string()).or_insert((0, value)).0 += 1;
        }
        let (_, most) = counts.into_values().max_by_key(|(count, _)| *count)?;
        (by_default(key).as_ref() != Some(most)).then(|| (key.clone(), most.clone()))
    })
    .collect()
}

/// The notes on the whole profile.
fn remarks(node: &Node, run_dir: &RunDir, gpus: &[&Gpu]) -> Vec<String> {
    let mut remarks = vec!["What this node had when mig-mps exported it.".to_owned()];
    for device in gpus.iter().flat_map(|gpu| gpu.devices()) {
        let Some(served) = served(node, &device) else {
            continue;
        };
        let name = &served.record.name;
        if served.run_dir != *run_dir {
            let of = served.run_dir.path().display();
            remarks.push(format!(
                "{name} is served by a daemon of {of}: up refuses to change that."
            ));
        }
        if served.state == DaemonState::Dead {
            remarks.push(format!(
                "The daemon of {name} is dead: up would start it again."
            ));
        }
    }
    let unreadable = node.unreadable.iter();
    remarks.extend(unreadable.map(|(_, problem)| {
        format!("{problem}: its device is exported as one without a daemon, which may be wrong.")
    }));
    let left_out = |gpu: &Gpu| Some((left_out(gpu)?, gpu.index.to_string()));
    let reasons = grouped(node.gpus.iter().filter_map(left_out));
    remarks.extend(reasons.iter().map(|(why, gpus)| match gpus.as_slice() {
        [one] => format!("GPU {one} is left out: {why}."),
        several => format!(
            "GPUs {} are left out, each for this: {why}.",
            several.join(", ")
        ),
    }));
    remarks
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

/// True if a plan for the emptied node makes the same devices on a GPU.
fn is_same(node: &Node, gpu: &Gpu, plan: &Plan) -> bool {
    let devices = gpu.devices();
    let present = devices.iter().map(|device| {
        let name = served(node, device).map(|served| served.record.name.as_str());
        (device.part.as_ref().map(|part| part.placement), name)
    });
    let planned = plan.gpus.iter().find(|plan| plan.index == Some(gpu.index));
    planned.is_some_and(|plan| {
        let shape = Shape::of(plan);
        let made = shape.devices.iter();
        let made = made.map(|made| {
            let name = made.daemon.as_ref().map(|daemon| daemon.name.as_str());
            (made.placement, name)
        });
        plan.after == gpu.slice_map() && sorted(made) == sorted(present)
    })
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort();
    all
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
