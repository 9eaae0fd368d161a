//! `mig-mps export`: a node as a profile, each GPU a block, and the names of devices as the templates that could have given
//! them.

use std::collections::BTreeMap;
use std::ops::Range;

use clap::{Args, ValueEnum};
use toml::{Table, Value};

use super::grouped;
use super::mig_parted::compute_slices;
use super::to_mig_parted::to_mig_parted;
use crate::commands::Context;
use crate::error::{Result, failed};
use crate::failure::ExitStatus;
use crate::host::Uid;
use crate::node::{DaemonState, Detail, Device, Gpu, Node, Served, observe};
use crate::nvml::GpuInstanceReading;
use crate::plan::virtual_node::Shape;
use crate::plan::{self, Action, Plan};
use crate::profile::{
    Converted, DraftBlock, DraftDevices, DraftEntry, DraftProfile, DraftSelect, NameTemplate,
    Profile,
};
use crate::render::{note, print};
use crate::settings::Settings;
use crate::state::RunDir;

/// Print this node as a profile
///
/// Prints the geometry, the names and the MPS settings; `up` with that profile does nothing here.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t = ExportFormat::Toml)]
    format: ExportFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExportFormat {
    /// A profile of mig-mps: geometry, names and MPS settings
    Toml,
    /// A configuration of mig-parted: geometry alone
    MigParted,
}

/// Prints the node as a profile.
pub fn run(args: &ExportArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let node = observe(environment, Detail::OFFERS)?;
    match args.format {
        ExportFormat::MigParted => {
            let (text, lost) = to_mig_parted(&node);
            print(&text)?;
            for lost in lost {
                note(&format!("{lost}."));
            }
        }
        ExportFormat::Toml => {
            // A caller without a run directory has no daemons either.
            let run = environment.directories().map_or_else(
                |_| environment.roots_run_dir(),
                |directories| directories.run,
            );
            let exported = export(&node, &RunDir::at(&run), environment.caller);
            if exported.draft.blocks.is_empty() {
                let why = exported.draft.remarks.join("\n");
                return Err(
                    failed(format_args!("this node has nothing to export\n{why}"))
                        .hint("mig-mps init writes a first profile"),
                );
            }
            print(&exported.draft.to_string())?;
            for remark in exported.notes {
                note(&remark);
            }
        }
    }
    Ok(ExitStatus::Done)
}

/// The present geometry and MPS settings as a profile, for `caller` with daemons in `run_dir`.
///
/// Placements are pinned where the planner would choose others on an empty GPU, and where two
/// instances alike differ in name or settings. What comes out has been planned for this node.
pub fn export(node: &Node, run_dir: &RunDir, caller: Uid) -> Converted {
    let exporter = Exporter::of(node, run_dir, caller);
    let pinned = exporter.pinned();
    let mut draft = exporter.draft(exporter.unpinned_where_equal(&pinned));
    if !exporter.only_starts_daemons(&draft) {
        draft = exporter.draft(pinned);
    }
    let notes = exporter.notes(&draft);
    Converted { draft, notes }
}

/// A node on its way to being a profile.
struct Exporter<'a> {
    node: &'a Node,
    run_dir: &'a RunDir,
    caller: Uid,
    /// The GPUs that a profile can express.
    gpus: Vec<&'a Gpu>,
    /// The settings that most devices share.
    mps: Table,
}

impl<'a> Exporter<'a> {
    fn of(node: &'a Node, run_dir: &'a RunDir, caller: Uid) -> Self {
        let gpus: Vec<&Gpu> = node
            .gpus
            .iter()
            .filter(|gpu| left_out(gpu).is_none())
            .collect();
        let tables: Vec<Table> = gpus
            .iter()
            .flat_map(|gpu| gpu.devices())
            .filter_map(|device| Some(table(&served(node, &device)?.record.settings)))
            .collect();
        Self {
            node,
            run_dir,
            caller,
            gpus,
            mps: shared(&tables),
        }
    }

    /// The blocks with every placement pinned. GPUs alike share a block.
    fn pinned(&self) -> Vec<DraftBlock> {
        let blocks = self
            .gpus
            .iter()
            .map(|gpu| (gpu_block(self.node, gpu, &self.mps), gpu.index));
        grouped(blocks)
            .into_iter()
            .map(|(block, indices)| block.of_gpus(indices))
            .collect()
    }

    /// The blocks without placements, where the planner makes the same devices on an empty GPU.
    fn unpinned_where_equal(&self, pinned: &[DraftBlock]) -> Vec<DraftBlock> {
        let unpinned: Vec<DraftBlock> = pinned.iter().map(DraftBlock::unpinned).collect();
        let plan = self
            .plan(&emptied(self.node), &self.draft(unpinned.clone()))
            .unwrap_or_default();
        let mut blocks = Vec::new();
        for (pinned, unpinned) in pinned.iter().zip(unpinned) {
            let is_equal = self
                .gpus
                .iter()
                .filter(|gpu| unpinned.select.selects(gpu.index))
                .all(|gpu| is_same(self.node, gpu, &plan));
            blocks.push(if is_equal { unpinned } else { pinned.clone() });
        }
        blocks
    }

    fn draft(&self, blocks: Vec<DraftBlock>) -> DraftProfile {
        DraftProfile {
            remarks: remarks(self.node, self.run_dir, &self.gpus),
            mps: self.mps.clone(),
            blocks,
            ..DraftProfile::default()
        }
    }

    /// Plans the draft as `up` would. Returns the text of a refusal.
    fn plan(&self, node: &Node, draft: &DraftProfile) -> Result<Plan, String> {
        let profile = Profile::parse("the exported profile".as_ref(), draft.to_string())
            .map_err(|error| error.to_string())?;
        plan::up(node, &profile, self.run_dir, self.caller).map_err(|refusal| refusal.to_string())
    }

    fn only_starts_daemons(&self, draft: &DraftProfile) -> bool {
        self.plan(self.node, draft).is_ok_and(|plan| {
            plan.steps()
                .all(|step| matches!(step.action, Action::Start(_) | Action::StartServer(_)))
        })
    }

    /// The steps that `up` would still take, or its refusal.
    fn notes(&self, draft: &DraftProfile) -> Vec<String> {
        if draft.blocks.is_empty() {
            return Vec::new();
        }
        match self.plan(self.node, draft) {
            Ok(plan) => still_to_do(&plan),
            Err(refusal) => vec![format!("up would refuse this profile here: {refusal}")],
        }
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
    remarks.extend(node.unreadable().map(|(_, problem)| {
        format!("{problem}: its device is exported as one without a daemon, which may be wrong.")
    }));
    let reasons = node
        .gpus
        .iter()
        .filter_map(|gpu| Some((left_out(gpu)?, gpu.index.to_string())));
    for (why, gpus) in grouped(reasons) {
        remarks.push(match gpus.as_slice() {
            [one] => format!("GPU {one} is left out: {why}."),
            several => format!(
                "GPUs {} are left out, each for this: {why}.",
                several.join(", ")
            ),
        });
    }
    remarks
}

/// The node with nothing on its GPUs: MIG mode as it is, no instances, no daemons.
fn emptied(node: &Node) -> Node {
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
fn is_same(node: &Node, gpu: &Gpu, plan: &Plan) -> bool {
    let devices = gpu.devices();
    let present = devices.iter().map(|device| {
        let name = served(node, device).map(|served| served.record.name.as_str());
        (device.part.as_ref().map(|part| part.placement), name)
    });
    let Some(planned) = plan.gpus.iter().find(|plan| plan.index == Some(gpu.index)) else {
        return false;
    };
    let shape = Shape::of(planned);
    let made = shape.devices.iter().map(|made| {
        let name = made.daemon.as_ref().map(|daemon| daemon.name.as_str());
        (made.placement, name)
    });
    planned.after == gpu.slice_map() && sorted(made) == sorted(present)
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

/// Returns the reason why a profile cannot express a GPU.
pub(super) fn left_out(gpu: &Gpu) -> Option<String> {
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
pub(super) fn served<'a>(node: &'a Node, device: &Device) -> Option<&'a Served> {
    let joined = node
        .device_at(&device.key)
        .filter(|device| device.is_there());
    joined?.served.as_ref()
}

fn name<'a>(node: &'a Node, device: &'a Device) -> &'a str {
    served(node, device).map_or(&device.name, |served| &served.record.name)
}

fn names<'a>(node: &'a Node, devices: &[&'a Device]) -> Vec<&'a str> {
    devices.iter().map(|device| name(node, device)).collect()
}

/// Returns the block for one GPU, every placement pinned, with `{gpu}` in names and without the GPU's index. `mps` are the
/// settings that its devices inherit.
pub(super) fn gpu_block(node: &Node, gpu: &Gpu, mps: &Table) -> DraftBlock {
    let devices = gpu.devices();
    let mut builder = Builder {
        node,
        gpu,
        mps,
        remarks: Vec::new(),
    };
    let devices = match devices.as_slice() {
        [whole] if whole.part.is_none() => DraftDevices::Whole {
            name: builder.name(&[whole], 1).map(|(name, _)| name),
            mps: served(node, whole).map(|_| builder.settings(&[whole])),
        },
        devices => DraftDevices::Instances(builder.entries(devices)),
    };
    DraftBlock {
        remarks: builder.remarks,
        select: DraftSelect::default(),
        devices,
    }
}

struct Builder<'a> {
    node: &'a Node,
    gpu: &'a Gpu,
    mps: &'a Table,
    remarks: Vec<String>,
}

impl Builder<'_> {
    /// The entries for the GPU's instances: those without a number in the order of placements, then the others by the
    /// names and numbers that a template counts from entry to entry.
    fn entries(&mut self, devices: &[Device]) -> Vec<DraftEntry> {
        let mut entries = Vec::new();
        let mut numbered = Vec::new();
        for instance in &self.gpu.instances {
            match self.entry(instance, devices) {
                Some((Some(number), entry)) => numbered.push((number, entry)),
                Some((None, entry)) => entries.push(entry),
                None => {}
            }
        }
        numbered.sort_by_key(|(number, entry)| (entry.name.clone(), *number));
        entries.extend(numbered.into_iter().map(|(_, entry)| entry));
        entries
    }

    /// The entry for a GPU instance, and the number with which its devices' names begin.
    fn entry(
        &mut self,
        instance: &GpuInstanceReading,
        devices: &[Device],
    ) -> Option<(Option<u32>, DraftEntry)> {
        let profile = self.gpu.profile(instance.profile)?;
        let (with_daemon, without): (Vec<&Device>, Vec<&Device>) = devices
            .iter()
            .filter(|device| {
                let part = device.part.as_ref();
                part.is_some_and(|part| part.gpu_instance == instance.id)
            })
            .partition(|device| served(self.node, device).is_some());
        let at = instance.placement.start;
        let remark = match (with_daemon.as_slice(), without.as_slice()) {
            ([], []) => Some("has no compute instance: up would make one"),
            ([_, ..], [_, ..]) => Some("has devices without daemons: up would start one for each"),
            _ => None,
        };
        let remark = remark.map(|what| format!("The GPU instance at {at} {what}."));
        self.remarks.extend(remark);
        let count = with_daemon.len() + without.len();
        let (name, number) = self.name(&with_daemon, count).unzip();
        let compute = compute_slices(instance, profile.multiprocessors);
        let entry = DraftEntry {
            name,
            at: Some(at),
            mps: (!with_daemon.is_empty()).then(|| self.settings(&with_daemon)),
            ..DraftEntry::plain(profile.name.clone(), compute)
        };
        Some((number.flatten(), entry))
    }

    /// The name of an entry of `count` devices that gives these their names; none where they have them by default.
    fn name(&mut self, devices: &[&Device], count: usize) -> Option<(String, Option<u32>)> {
        let names = names(self.node, devices);
        if devices
            .iter()
            .all(|device| name(self.node, device) == device.name)
        {
            return None;
        }
        let shared = shared_name(&names, count);
        if shared.is_none() {
            self.remarks.push(format!(
                "A profile cannot give these names: {}",
                names.join(", ")
            ));
        }
        shared.map(|(name, number)| (with_gpu(&name, self.gpu.index), number))
    }

    /// The settings of these devices that are not inherited.
    fn settings(&mut self, devices: &[&Device]) -> Table {
        let mut settings: Vec<Table> = devices
            .iter()
            .map(|device| self.own_settings(device))
            .collect();
        settings.dedup();
        if settings.len() > 1 {
            let names = names(self.node, devices).join(", ");
            self.remarks.push(format!(
                "The settings of {names} differ, which a profile cannot say."
            ));
        }
        settings.into_iter().next().unwrap_or_default()
    }

    fn own_settings(&self, device: &Device) -> Table {
        let Some(served) = served(self.node, device) else {
            return Table::new();
        };
        let mut settings = table(&served.record.settings);
        settings.retain(|key, value| {
            let inherited = self.mps.get(key).cloned().or_else(|| by_default(key));
            inherited.as_ref() != Some(&*value)
        });
        settings
    }
}

/// Settings as a profile writes them.
pub(super) fn table(settings: &Settings) -> Table {
    let mut table = Table::try_from(settings).unwrap_or_default();
    for (_, value) in &mut table {
        if let Value::Float(number) = *value
            && number.fract() == 0.0
        {
            // 50 and not 50.0
            #[allow(
                clippy::cast_possible_truncation,
                reason = "it is a whole number up to 100"
            )]
            let whole = number as i64;
            *value = Value::Integer(whole);
        }
    }
    table
}

/// The value of a setting that a profile omits.
pub(super) fn by_default(key: &str) -> Option<Value> {
    table(&Settings::default()).remove(key)
}

/// The digits in a name, as byte ranges.
fn numbers(name: &str) -> Vec<Range<usize>> {
    let mut numbers: Vec<Range<usize>> = Vec::new();
    for (at, _) in name.match_indices(|c: char| c.is_ascii_digit()) {
        match numbers.last_mut() {
            Some(number) if number.end == at => number.end += 1,
            _ => numbers.push(at..at + 1),
        }
    }
    numbers
}

fn replaced(name: &str, number: &Range<usize>, word: &str) -> String {
    format!("{}{word}{}", &name[..number.start], &name[number.end..])
}

/// Returns a name that gives these names to devices of an entry of `count`, with the number of the first: that of a
/// single one, or a template with `{n}`.
pub(super) fn shared_name(names: &[&str], count: usize) -> Option<(String, Option<u32>)> {
    let first = names.first()?;
    if count == 1 {
        return Some(((*first).to_owned(), None));
    }
    for number in numbers(first) {
        let template = replaced(first, &number, "{n}");
        if names
            .iter()
            .all(|name| NameTemplate(&template).makes(0, name))
        {
            return Some((template, first[number].parse().ok()));
        }
    }
    None
}

/// Puts `{gpu}` into a name where the GPU's index stands last.
pub(super) fn with_gpu(name: &str, gpu: u32) -> String {
    let index = gpu.to_string();
    let numbers = numbers(name);
    let last = numbers
        .iter()
        .rfind(|number| name[(*number).clone()] == index);
    last.map_or_else(|| name.to_owned(), |number| replaced(name, number, "{gpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_traced_back_to_the_template_that_could_have_given_it() {
        assert_eq!(with_gpu("trainer-3", 3), "trainer-{gpu}");
        assert_eq!(with_gpu("node0-0", 0), "node0-{gpu}");
        assert_eq!(with_gpu("s-1-{n}", 1), "s-{gpu}-{n}");
        assert_eq!(with_gpu("trainer-13", 3), "trainer-13");
        let shared = |names: &[&str]| shared_name(names, names.len());
        assert_eq!(shared(&["one7"]), Some(("one7".to_owned(), None)));
        let numbered = Some(("w0-{n}".to_owned(), Some(4)));
        assert_eq!(shared(&["w0-4", "w0-5"]), numbered);
        assert_eq!(
            shared_name(&["w-4"], 2),
            Some(("w-{n}".to_owned(), Some(4)))
        );
        for other in [&["a0", "a01"][..], &["a0", "b1"], &["a", "b"], &[]] {
            assert_eq!(shared(other), None, "{other:?}");
        }
    }
}
