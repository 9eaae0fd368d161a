//! The documents that `--json` prints, and their schemas: those of plans and of changes, and what all have. That of `status`
//! is in [`super::status`].

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::status::{Status, View};
use super::verified::VerifiedDevice;
use super::{output_width, print};
use crate::client::{Variables, Verified};
use crate::failure::{Failure, Problem};
use crate::host::{Workload, is_terminal_control, user_name};
use crate::node::Node;
use crate::nvml::compute_mode_name;
use crate::plan::{
    CdiChange, ClientOf, GpuPlan, HeldGpus, IdlePod, ModeChange, Plan, Signal, Undisturbed,
};

pub use super::list::ListDocument;
pub use super::verified::VerifyDocument;

/// The version of the format. The format only grows; a change that breaks readers raises it.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Version(u32);

/// The version that this program prints.
pub const VERSION: Version = Version(1);

/// Returns the schema of a document, as JSON Schema 2020-12.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    SchemaGenerator::new(settings)
        .into_root_schema_for::<T>()
        .to_value()
}

/// Serializes milliseconds as seconds, to the nanosecond: without digits that only come from the division.
#[allow(clippy::ref_option, reason = "serde passes a reference")]
pub fn as_seconds<S: Serializer>(
    milliseconds: &Option<f64>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    milliseconds
        .map(|milliseconds| (milliseconds * 1e6).round() / 1e9)
        .serialize(serializer)
}

/// The output of a command: text for people, JSON for programs.
pub trait Report: Serialize + JsonSchema {
    /// Formats it for people, at this width.
    fn text(&self, width: usize) -> String;
}

/// Prints a report to standard output, as JSON or as text.
pub fn print_report(report: &impl Report, as_json: bool) -> Result<()> {
    if as_json {
        print_json(report)
    } else {
        print(&report.text(output_width()))
    }
}

/// Prints a document to standard output, as indented JSON.
pub fn print_json(document: &impl Serialize) -> Result<()> {
    print(&to_json_text(document)?)
}

/// Formats a document as indented JSON.
pub fn to_json_text(document: &impl Serialize) -> Result<String> {
    Ok(escape_json(&serde_json::to_string_pretty(document)?) + "\n")
}

/// Formats a document as one line.
pub fn to_json_line(document: &impl Serialize) -> Result<String> {
    Ok(escape_json(&serde_json::to_string(document)?) + "\n")
}

/// Escapes everything in JSON that could control a terminal: it occurs in strings alone, where escapes are allowed.
fn escape_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !is_terminal_control(c) {
            text.push(c);
            continue;
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

/// The output of a command with `--json` that fails, in place of its own document; one line.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "error")]
pub struct ErrorDocument {
    version: Version,
    /// The error.
    error: Message,
    /// The exit status of the command.
    exit_status: u8,
}

/// A message with advice.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Message {
    /// The text, which may have several lines.
    pub what: String,
    /// Advice.
    pub hints: Vec<String>,
}

impl<E: Failure> From<&E> for Message {
    fn from(error: &E) -> Self {
        Self {
            what: error.to_string(),
            hints: error.hints(),
        }
    }
}

impl ErrorDocument {
    /// Prints the error with which a command ends.
    pub fn print(error: Message, exit_status: u8) -> Result<()> {
        print(&to_json_line(&Self {
            version: VERSION,
            error,
            exit_status,
        })?)
    }
}

/// The output of `mig-mps env --format json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "env")]
pub struct EnvDocument {
    version: Version,
    /// The device's name.
    device: String,
    /// The variables to set, with their values.
    set: BTreeMap<String, String>,
    /// The variables that must not be set.
    unset: Vec<String>,
}

impl EnvDocument {
    /// Describes the environment of a device's clients.
    pub fn new(device: &str, variables: &Variables) -> Self {
        Self {
            version: VERSION,
            device: device.to_owned(),
            set: variables
                .set
                .iter()
                .map(|(name, value)| (name.clone(), value.to_string_lossy().into_owned()))
                .collect(),
            unset: variables.unset.clone(),
        }
    }
}

/// The output of `mig-mps plan --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "plan")]
pub struct PlanDocument {
    version: Version,
    /// True if there is something to do.
    changes: bool,
    /// The GPUs that change.
    gpus: Vec<PlannedGpu>,
    /// True if logs and what users left in pipe directories are removed.
    purges: bool,
    /// The change of the CDI file of container engines: `write`, or `remove`; null if it stays.
    cdi: Option<&'static str>,
    /// The clients whose work is ended; null if there is nothing of the kind to do.
    kill: Option<PlannedKill>,
    /// Remarks on the profile: probable mistakes, such as a block that selects no GPU; and lost GPUs that stay as they are.
    remarks: Vec<String>,
    /// The parts of the profile that `up --keep-going` leaves out.
    missing: Vec<Problem>,
    /// The devices with clients that go on and keep everything that they have.
    undisturbed: Vec<Undisturbed>,
}

/// A GPU that changes.
#[derive(Debug, Serialize, JsonSchema)]
struct PlannedGpu {
    #[serde(flatten)]
    plan: GpuPlan,
    /// The change of its compute mode; null if it stays, or another entry has it.
    compute_mode: Option<ComputeModeChange>,
    /// The changes of the compute mode of each GPU by the steps of this entry: a joint device has several GPUs.
    compute_modes: Vec<GpuComputeMode>,
    /// The clients that lose their device.
    disrupts: Vec<ClientOf>,
    /// The pods that lose their share of a device, and of which no program is a client there.
    idle_pods: Vec<IdlePod>,
    /// The reasons why the plan cannot be applied as it is.
    obstacles: Vec<Message>,
    /// The processes that have the GPU open although its MIG mode is switched, and with `--stop-holders` the monitoring
    /// services that have it open although its instances are destroyed; null if there are none.
    holders: Option<Vec<PlannedHolder>>,
    /// The number of processes that could not be inspected: each may have it open, too.
    hidden_processes: usize,
}

/// A process that has a GPU open.
#[derive(Debug, Serialize, JsonSchema)]
struct PlannedHolder {
    /// The process id.
    pid: u32,
    /// The user's name; null if hidden.
    user: Option<String>,
    /// The command line.
    command: String,
    /// The systemd unit, such as `nvidia-dcgm.service`; null if there is none, or hidden.
    unit: Option<String>,
    /// The Slurm job, pod or container that it belongs to; null if that cannot be seen.
    workload: Option<Workload>,
    /// The option that stops it for the change and starts it again; null if it has to be ended by hand.
    option: Option<&'static str>,
}

/// A change of the compute mode.
#[derive(Debug, Serialize, JsonSchema)]
struct ComputeModeChange {
    /// The present mode; null if unknown, as in MIG mode.
    from: Option<&'static str>,
    /// The new mode.
    to: &'static str,
}

/// The change of the compute mode of one GPU.
#[derive(Debug, Serialize, JsonSchema)]
struct GpuComputeMode {
    /// NVML's index of the GPU.
    index: u32,
    #[serde(flatten)]
    change: ComputeModeChange,
}

impl From<&ModeChange> for ComputeModeChange {
    fn from(change: &ModeChange) -> Self {
        Self {
            from: change.from.map(compute_mode_name),
            to: compute_mode_name(change.to),
        }
    }
}

/// Clients whose work is ended.
#[derive(Debug, Serialize, JsonSchema)]
struct PlannedKill {
    /// The device's name.
    device: String,
    /// These clients.
    victims: Vec<ClientOf>,
    /// The signal for their processes; null for none.
    signal: Option<&'static str>,
    /// The number of the device's other clients.
    others: usize,
}

impl PlanDocument {
    /// Describes a plan.
    pub fn from_plan(plan: &Plan, held: &[HeldGpus]) -> Self {
        Self {
            version: VERSION,
            changes: plan.has_changes(),
            gpus: plan
                .gpus
                .iter()
                .map(|gpu| PlannedGpu::from_plan(gpu, held))
                .collect(),
            purges: plan.purge.is_some(),
            cdi: plan.cdi.map(|change| match change {
                CdiChange::Write => "write",
                CdiChange::Remove => "remove",
            }),
            kill: plan.kill.as_ref().map(|kill| PlannedKill {
                device: kill.name.clone(),
                victims: kill.clients().cloned().collect(),
                signal: kill.signal.map(Signal::name),
                others: kill.others,
            }),
            remarks: plan.remarks.clone(),
            missing: plan.missing.clone(),
            undisturbed: plan.undisturbed.clone(),
        }
    }
}

impl PlannedGpu {
    fn from_plan(gpu: &GpuPlan, held: &[HeldGpus]) -> Self {
        let held = held.iter().find(|held| held.uuids.contains(&gpu.uuid));
        let held_open = held.and_then(|held| held.check_not_held().err());
        let stops: Vec<_> = gpu
            .steps
            .iter()
            .filter_map(|step| step.action.as_stop())
            .collect();
        let unasked = stops.iter().filter_map(|stop| stop.unasked.as_ref());
        Self {
            plan: gpu.clone(),
            compute_mode: gpu
                .compute_modes
                .iter()
                .find(|change| {
                    change
                        .joint_gpu
                        .is_none_or(|index| gpu.index == Some(index))
                })
                .map(ComputeModeChange::from),
            compute_modes: gpu
                .compute_modes
                .iter()
                .filter_map(|change| {
                    Some(GpuComputeMode {
                        index: change.joint_gpu.or(gpu.index)?,
                        change: change.into(),
                    })
                })
                .collect(),
            disrupts: stops.iter().flat_map(|stop| stop.clients.clone()).collect(),
            idle_pods: stops.iter().flat_map(|stop| stop.pods.clone()).collect(),
            obstacles: gpu
                .obstacles
                .iter()
                .chain(unasked)
                .chain(&held_open)
                .map(Message::from)
                .collect(),
            holders: held.map(|held| {
                held.holders
                    .seen
                    .iter()
                    .map(|holder| PlannedHolder {
                        pid: holder.pid.0,
                        user: holder.user.map(user_name),
                        command: holder.command.clone(),
                        unit: holder.unit.clone(),
                        workload: holder.workload.clone(),
                        option: holder.is_monitoring().then_some("--stop-holders"),
                    })
                    .collect()
            }),
            hidden_processes: held.map_or(0, |held| held.holders.hidden),
        }
    }
}

/// The output of a command that changes the node, with `--json`: `up`, `set`, `restart`, `kill`, `down`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "change")]
pub struct ChangeDocument {
    version: Version,
    /// The actions that were taken, or with `--dry-run` those that would be.
    plan: PlanDocument,
    /// The status of all devices afterwards; null with `--dry-run`.
    status: Option<Status>,
    /// The error of a change of which a part failed; null if none did.
    error: Option<Message>,
    /// True if something was changed.
    changed: bool,
    /// The devices that were checked afterwards; null without `up --verify`.
    verified: Option<Vec<VerifiedDevice>>,
}

impl ChangeDocument {
    /// Describes a plan that is not applied.
    pub fn from_plan(plan: &Plan, held: &[HeldGpus]) -> Self {
        Self {
            version: VERSION,
            plan: PlanDocument::from_plan(plan, held),
            status: None,
            error: None,
            changed: false,
            verified: None,
        }
    }

    /// Adds the devices that were checked afterwards.
    #[must_use]
    pub fn with_verified(self, all: &[Verified]) -> Self {
        Self {
            verified: Some(VerifiedDevice::from_all(all)),
            ..self
        }
    }

    /// Describes the actions of a plan, and the node afterwards.
    pub fn after_change(plan: &Plan, node: &Node, error: Option<Message>) -> Self {
        Self {
            status: Some(Status::from_node(node, View::table(&[]))),
            // The file is written after everything else: an error of a plan with nothing else is its own.
            changed: !plan.is_empty() || plan.cdi.is_some() && error.is_none(),
            error,
            ..Self::from_plan(plan, &[])
        }
    }
}
