//! `mig-mps export`: a node as a profile, each GPU a block, and the names of devices as the templates that could have given
//! them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use toml::{Table, Value};

use super::mig_parted::compute_slices;
use super::names::{shared_name, with_gpu};
use crate::commands::{Context, print_or_write_new};
use crate::error::{Result, command_error};
use crate::failure::ExitStatus;
use crate::host::Uid;
use crate::node::{DaemonState, Detail, Device, Gpu, Node, Served, observe};
use crate::nvml::GpuInstanceReading;
use crate::plan::{self, Action, Plan};
use crate::profile::Profile;
use crate::render::format::group_by;
use crate::render::{examples, note};
use crate::settings::{FOLLOW_A_SHARE, SHARE};
use crate::shared::{
    ConvertedProfile, DraftBlock, DraftProfile, default_setting, device_entry, merge_equal_entries,
    mig_devices, settings_table, table,
};
use crate::state::RunDir;

/// Print this node as a profile
///
/// Prints the layout, the names and the MPS settings. Applying this profile changes nothing on this node.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps export -o profile.toml", "Save the node as a profile"),
]))]
pub struct ExportArgs {
    /// Write to a new file instead of standard output
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
}

/// Prints the node as a profile.
pub fn run(args: &ExportArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let node = observe(environment, Detail::OFFERS)?;
    for (_, why) in node.lost_gpus() {
        note(&format!("left out: {why}"));
    }
    let is_incomplete = |device: &&Device| device.key.is_joint() && !device.exists();
    for device in node.devices.iter().filter(is_incomplete) {
        let name = &device.name;
        note(&format!(
            "left out: device {name}, of which a GPU is missing; the profile has its other GPUs without a daemon"
        ));
    }
    // A caller without a run directory has no daemons either.
    let run = environment.directories().map_or_else(
        |_| environment.roots_run_dir(),
        |directories| directories.run,
    );
    let exported = export(&node, &RunDir::at(&run), environment.caller);
    if exported.draft.blocks.is_empty() {
        let why = exported.draft.remarks.join("\n");
        let error = command_error(format_args!("this node has nothing to export\n{why}"));
        return Err(error.with_hint("run `mig-mps init` to write a first profile"));
    }
    print_or_write_new(&exported.draft.to_string(), args.output.as_deref())?;
    for remark in exported.notes {
        note(&remark);
    }
    Ok(ExitStatus::Done)
}

/// The present geometry and MPS settings as a profile, for `caller` with daemons in `run_dir`.
///
/// Placements are pinned where the planner would choose others on an empty GPU, and where two
/// instances alike differ in name or settings. What comes out has been planned for this node.
pub fn export(node: &Node, run_dir: &RunDir, caller: Uid) -> ConvertedProfile {
    let exporter = Exporter::new(node, run_dir, caller);
    let mut draft = exporter.draft_profile(&exporter.groups_to_pin());
    let mut plan = exporter.plan_draft(node, &draft);
    let only_starts_daemons = plan.as_ref().is_ok_and(|plan| {
        plan.steps()
            .all(|step| matches!(step.action, Action::Start(_) | Action::StartServer(_)))
    });
    if !only_starts_daemons {
        draft = exporter.draft_profile(&vec![true; exporter.groups.len()]);
        plan = exporter.plan_draft(node, &draft);
    }
    let notes = match plan {
        // A profile without blocks is none.
        _ if draft.blocks.is_empty() => Vec::new(),
        Ok(plan) => remaining_steps(&plan),
        Err(refusal) => vec![format!("up would refuse this profile here: {refusal}")],
    };
    ConvertedProfile { draft, notes }
}

/// A node on its way to being a profile.
struct Exporter<'a> {
    node: &'a Node,
    run_dir: &'a RunDir,
    caller: Uid,
    /// The GPUs that a profile can express. GPUs alike share a block.
    groups: Vec<Vec<&'a Gpu>>,
    /// The settings that most devices share.
    mps: Table,
}

impl<'a> Exporter<'a> {
    fn new(node: &'a Node, run_dir: &'a RunDir, caller: Uid) -> Self {
        let gpus: Vec<&Gpu> = node
            .gpus
            .iter()
            .filter(|gpu| reason_to_leave_out(gpu).is_none())
            .collect();
        let tables: Vec<Table> = gpus
            .iter()
            .flat_map(|gpu| gpu.devices())
            .filter_map(|device| Some(settings_table(&find_served(node, &device)?.record.settings)))
            .collect();
        let mut exporter = Self {
            node,
            run_dir,
            caller,
            groups: Vec::new(),
            mps: common_settings(&tables),
        };
        let blocks = gpus
            .into_iter()
            .map(|gpu| (exporter.draft_block(gpu, true, false), gpu));
        exporter.groups = group_by(blocks, |(one, _), (other, _)| one == other)
            .into_iter()
            .map(|alike| alike.into_iter().map(|(_, gpu)| gpu).collect())
            .collect();
        exporter
    }

    /// For each group of GPUs, true if the planner makes other devices on an empty one without pinned placements.
    fn groups_to_pin(&self) -> Vec<bool> {
        let unpinned = self.draft_profile(&vec![false; self.groups.len()]);
        let plan = self
            .plan_draft(&without_devices(self.node), &unpinned)
            .unwrap_or_default();
        self.groups
            .iter()
            .map(|gpus| {
                !gpus
                    .iter()
                    .all(|gpu| makes_same_devices(self.node, gpu, &plan))
            })
            .collect()
    }

    /// The profile with the placements of those groups pinned.
    fn draft_profile(&self, pins: &[bool]) -> DraftProfile {
        let blocks = self.groups.iter().zip(pins).map(|(gpus, &is_pinned)| {
            let indices: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
            DraftBlock {
                select: table([("index", indices.into())]),
                ..self.draft_block(gpus[0], is_pinned, gpus.len() == 1)
            }
        });
        DraftProfile {
            remarks: profile_remarks(self.node, self.run_dir, &self.groups.concat()),
            mps: self.mps.clone(),
            blocks: blocks.collect(),
            ..DraftProfile::default()
        }
    }

    /// Plans the draft as `up` would. Returns the text of a refusal.
    fn plan_draft(&self, node: &Node, draft: &DraftProfile) -> Result<Plan, String> {
        let profile = Profile::parse("the exported profile".as_ref(), draft.to_string())
            .map_err(|error| error.to_string())?;
        plan::up(node, &profile, self.run_dir, self.caller).map_err(|refusal| refusal.to_string())
    }

    /// Returns the block of a GPU without its selector. One that is alone has names with its index, and not `{gpu}`.
    fn draft_block(&self, gpu: &Gpu, is_pinned: bool, is_alone: bool) -> DraftBlock {
        let mut builder = BlockBuilder {
            node: self.node,
            gpu,
            mps: &self.mps,
            is_pinned,
            is_alone,
            remarks: Vec::new(),
        };
        let want = builder.build_want();
        DraftBlock {
            remarks: builder.remarks,
            select: Table::new(),
            want,
        }
    }
}

/// Of the settings that every device has, the most frequent value of each that is not the default.
fn common_settings(tables: &[Table]) -> Table {
    tables
        .first()
        .into_iter()
        .flat_map(Table::keys)
        .filter_map(|key| {
            let mut counts: BTreeMap<String, (usize, &Value)> = BTreeMap::new();
            for table in tables {
                let value = table.get(key)?;
                counts.entry(value.to_string()).or_insert((0, value)).0 += 1;
            }
            let (_, most) = counts.into_values().max_by_key(|(count, _)| *count)?;
            (default_setting(key).as_ref() != Some(most)).then(|| (key.clone(), most.clone()))
        })
        .collect()
}

/// The notes on the whole profile.
fn profile_remarks(node: &Node, run_dir: &RunDir, gpus: &[&Gpu]) -> Vec<String> {
    let mut remarks = vec!["What this node had when mig-mps exported it.".to_owned()];
    for device in gpus.iter().flat_map(|gpu| gpu.devices()) {
        let Some(served) = find_served(node, &device) else {
            continue;
        };
        let name = &served.record.name;
        if served.run_dir != *run_dir {
            let of = served.run_dir.path().display();
            remarks.push(format!(
                "device {name} is served by a daemon of {of}, and up refuses to change that"
            ));
        }
        if served.state == DaemonState::Dead {
            remarks.push(format!(
                "the daemon of device {name} is dead; up would start it again"
            ));
        }
    }
    remarks.extend(node.unreadable_records().map(|(_, problem)| {
        format!("{problem}; its device is exported as one without a daemon, which may be wrong")
    }));
    let reasons = node
        .gpus
        .iter()
        .filter_map(|gpu| Some((reason_to_leave_out(gpu)?, gpu.index.to_string())));
    for alike in group_by(reasons, |(one, _), (other, _)| one == other) {
        let why = &alike[0].0;
        let gpus: Vec<&str> = alike.iter().map(|(_, gpu)| gpu.as_str()).collect();
        remarks.push(match gpus.as_slice() {
            [one] => format!("GPU {one} is left out: {why}"),
            several => format!(
                "GPUs {} are left out, each for this reason: {why}",
                several.join(", ")
            ),
        });
    }
    remarks
}

/// The node with nothing on its GPUs: MIG mode as it is, no instances, no daemons.
fn without_devices(node: &Node) -> Node {
    let mut empty = node.clone();
    empty.devices.clear();
    empty.created.clear();
    for gpu in &mut empty.gpus {
        gpu.instances.clear();
    }
    empty.join();
    empty
}

/// True if a plan for the emptied node makes the same devices on a GPU.
fn makes_same_devices(node: &Node, gpu: &Gpu, plan: &Plan) -> bool {
    let devices = gpu.devices();
    let present = devices.iter().map(|device| {
        let name = find_served(node, device).map(|served| served.record.name.as_str());
        (device.part.as_ref().map(|part| part.placement), name)
    });
    let Some(planned) = plan.gpus.iter().find(|plan| plan.index == Some(gpu.index)) else {
        return false;
    };
    let made = planned.devices.iter().map(|made| {
        let name = made.settings.as_ref().map(|_| made.name.as_str());
        (made.place.placement(), name)
    });
    planned.after == gpu.slice_map() && into_sorted(made) == into_sorted(present)
}

fn into_sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort();
    all
}

fn remaining_steps(plan: &Plan) -> Vec<String> {
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

/// Returns the reason why a profile cannot express a GPU.
fn reason_to_leave_out(gpu: &Gpu) -> Option<String> {
    if let Some(why) = &gpu.hidden {
        return Some(format!("its instances cannot be seen: {why}"));
    }
    let unknown = gpu
        .instances
        .iter()
        .map(|instance| instance.profile)
        .find(|profile| gpu.profile(*profile).is_none())?;
    Some(format!(
        "it has an instance of the profile {unknown} that it does not offer"
    ))
}

/// Returns the record of a device's daemon.
fn find_served<'a>(node: &'a Node, device: &Device) -> Option<&'a Served> {
    node.device_with_key(&device.key)
        .filter(|device| device.is_there())?
        .served
        .as_ref()
}

/// Returns the recorded names of devices, or their default ones.
fn device_names<'a>(node: &'a Node, devices: &[&'a Device]) -> Vec<&'a str> {
    devices
        .iter()
        .map(|device| match find_served(node, device) {
            Some(served) => served.record.name.as_str(),
            None => device.name.as_str(),
        })
        .collect()
}

/// Builds the block of a GPU.
struct BlockBuilder<'a> {
    node: &'a Node,
    gpu: &'a Gpu,
    /// The settings that its devices inherit.
    mps: &'a Table,
    is_pinned: bool,
    /// True if the block is for this GPU alone.
    is_alone: bool,
    remarks: Vec<String>,
}

impl BlockBuilder<'_> {
    fn build_want(&mut self) -> Table {
        let whole = self.node.whole_device_of(self.gpu);
        let joint = whole.filter(|device| device.key.is_joint());
        if let Some(joint) = joint.filter(|joint| find_served(self.node, joint).is_some()) {
            // Its GPUs have the same block.
            let name = joint.name.as_str();
            let mut want = table([
                ("mig", false.into()),
                ("name", name.into()),
                ("joint", true.into()),
            ]);
            want.extend(self.mps_entry(&[joint]));
            return want;
        }
        match self.gpu.devices().as_slice() {
            [whole] if whole.part.is_none() => {
                let mut want = table([("mig", false.into())]);
                let name = self.entry_name(&[whole], 1).map(|(name, _)| name);
                want.extend(name.map(|name| ("name".to_owned(), name.into())));
                let daemon = find_served(self.node, whole).map(|_| whole);
                want.extend(self.mps_entry(daemon.as_slice()));
                want
            }
            devices => mig_devices(self.build_entries(devices)),
        }
    }

    /// The entries for the GPU's instances: those without a number in the order of placements, then the others by the
    /// names and numbers that a template counts from entry to entry.
    fn build_entries(&mut self, devices: &[Device]) -> Vec<Table> {
        let mut numbered: Vec<(Option<(String, u32)>, Table)> = self
            .gpu
            .instances
            .iter()
            .filter_map(|instance| self.build_entry(instance, devices))
            .collect();
        numbered.sort_by(|(one, _), (other, _)| one.cmp(other));
        let entries: Vec<Table> = numbered.into_iter().map(|(_, entry)| entry).collect();
        if self.is_pinned {
            entries
        } else {
            merge_equal_entries(&entries)
        }
    }

    /// The entry for a GPU instance; with its name and the number with which its devices' names begin, if that counts.
    fn build_entry(
        &mut self,
        instance: &GpuInstanceReading,
        devices: &[Device],
    ) -> Option<(Option<(String, u32)>, Table)> {
        let profile = self.gpu.profile(instance.profile)?;
        let (with_daemon, without): (Vec<&Device>, Vec<&Device>) = devices
            .iter()
            .filter(|device| {
                let part = device.part.as_ref();
                part.is_some_and(|part| part.gpu_instance == instance.id)
            })
            .partition(|device| find_served(self.node, device).is_some());
        let at = instance.placement.start;
        let remark = match (with_daemon.as_slice(), without.as_slice()) {
            ([], []) => Some("has no compute instance; up would create one"),
            ([_, ..], [_, ..]) => Some("has devices without daemons; up would start one for each"),
            _ => None,
        };
        let remark = remark.map(|what| format!("the GPU instance at {at} {what}"));
        self.remarks.extend(remark);
        let compute = compute_slices(instance, profile.multiprocessors);
        let mut entry = device_entry(&profile.name, &compute);
        if self.is_pinned {
            entry.insert("at".to_owned(), at.into());
        }
        let name = self.entry_name(&with_daemon, with_daemon.len() + without.len());
        entry.extend(
            name.iter()
                .map(|(name, _)| ("name".to_owned(), name.as_str().into())),
        );
        entry.extend(self.mps_entry(&with_daemon));
        let numbered = name.and_then(|(name, number)| Some((name, number?)));
        Some((numbered, entry))
    }

    /// The name of an entry of `count` devices that gives these their names; none where they have them by default.
    fn entry_name(&mut self, devices: &[&Device], count: usize) -> Option<(String, Option<u32>)> {
        let names = device_names(self.node, devices);
        if names
            .iter()
            .zip(devices)
            .all(|(name, device)| *name == device.name)
        {
            return None;
        }
        let shared = shared_name(&names, count);
        if shared.is_none() {
            self.remarks.push(format!(
                "a profile cannot give these names: {}",
                names.join(", ")
            ));
        }
        if self.is_alone {
            return shared;
        }
        shared.map(|(name, number)| (with_gpu(&name, self.gpu.index), number))
    }

    /// The key `mps` for these devices with daemons: the settings that are not inherited, `false` without devices.
    fn mps_entry(&mut self, devices: &[&Device]) -> Option<(String, Value)> {
        let mut settings: Vec<Table> = devices
            .iter()
            .map(|device| self.own_settings(device))
            .collect();
        settings.dedup();
        if settings.len() > 1 {
            let names = device_names(self.node, devices).join(", ");
            self.remarks.push(format!(
                "the settings of {names} differ, which a profile cannot express"
            ));
        }
        let value = match settings.into_iter().next() {
            None => Value::from(false),
            Some(settings) if settings.is_empty() => return None,
            Some(settings) => Value::from(settings),
        };
        Some(("mps".to_owned(), value))
    }

    fn own_settings(&self, device: &Device) -> Table {
        let Some(served) = find_served(self.node, device) else {
            return Table::new();
        };
        let mut settings = settings_table(&served.record.settings);
        let share = settings.get(SHARE).cloned();
        let starts_anew = share.as_ref() != self.mps.get(SHARE);
        settings.retain(|key, value| {
            // Beside a share, even a default says that it does not follow from the share.
            let is_given = share.is_some() && FOLLOW_A_SHARE.contains(&key);
            let inherited = match self.mps.get(key) {
                Some(inherited) if !(is_given && starts_anew) => Some(inherited.clone()),
                _ if is_given => None,
                _ => default_setting(key),
            };
            inherited.as_ref() != Some(&*value)
        });
        settings
    }
}
