//! `status --json` and its schema: devices, servers, clients and other programs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::device::DeviceDocument;
use super::super::json::{VERSION, Version};
use super::View;
use super::profile::ProfileDocument;
use crate::node::{
    self, Client, DaemonState, DeviceState, Finding, Node, OutsideMps, Served, ServerProcess,
    Unmanaged,
};
use crate::state::Closing;

/// The output of `mig-mps status --json`.
///
/// `null` means unknown or not there; it is never 0.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "status")]
pub struct Status {
    version: Version,
    /// The driver's version.
    driver: String,
    /// True if there is a problem; null if none was found, and not everything was read. `status` reads everything, and
    /// with `--exit-code` its exit status is then 3.
    degraded: Option<bool>,
    /// The profile that was applied last; null if none is recorded, and in the status after a change.
    applied_profile: Option<ProfileDocument>,
    /// The devices with a daemon, and those without.
    devices: Vec<DeviceStatus>,
    /// The clients of these devices.
    clients: Vec<ClientDocument>,
    /// Programs that wait in cuInit until another user's programs have exited.
    waiting: Vec<WaitingDocument>,
    /// Programs that compute on a device without being clients of a daemon; null if they were not searched for.
    outside_mps: Option<Vec<OutsideDocument>>,
    /// MPS daemons and servers that mig-mps did not start; null if they were not searched for.
    unmanaged: Option<Vec<Unmanaged>>,
    /// The problems of the devices and of the node.
    problems: Vec<Remark>,
    /// Facts worth knowing that are no problems.
    remarks: Vec<Remark>,
    /// The facts that are hidden from the caller, as sentences.
    hidden: Vec<String>,
}

/// A problem or a remark.
#[derive(Debug, Serialize, JsonSchema)]
struct Remark {
    /// Its id, which `mig-mps explain` explains. Ids never change.
    id: &'static str,
    /// The device's name; null if it is about the node.
    device: Option<String>,
    /// The problem or remark, as a sentence.
    what: String,
}

impl From<Finding> for Remark {
    fn from(problem: Finding) -> Self {
        Self {
            id: problem.id,
            what: problem.describe_with_remedy(),
            device: problem.device,
        }
    }
}

impl Status {
    /// Returns the status of the devices of this view.
    pub fn from_node(node: &Node, view: View<'_>) -> Self {
        let shown = view.select_devices(node);
        let (mut clients, mut waiting, mut outside) = (Vec::new(), Vec::new(), Vec::new());
        for device in &shown {
            outside.extend(device.outside_mps.iter().map(|program| OutsideDocument {
                device: device.name.clone(),
                program: program.clone(),
            }));
            let Some(served) = &device.served else {
                continue;
            };
            clients.extend(
                served
                    .clients
                    .as_slice()
                    .iter()
                    .map(|client| ClientDocument::from_client(served, client)),
            );
            waiting.extend(served.waiting.iter().map(|client| WaitingDocument {
                device: device.name.clone(),
                client: client.clone(),
            }));
        }
        let (problems, remarks) = node.problems_and_remarks(view.devices);
        let is_all = node.detail.outside_mps;
        Self {
            version: VERSION,
            driver: node.driver.clone(),
            degraded: if problems.is_empty() && !is_all {
                None
            } else {
                Some(!problems.is_empty())
            },
            applied_profile: ProfileDocument::from_node(node),
            clients,
            waiting,
            devices: shown
                .iter()
                .map(|device| DeviceStatus::from_device(node, device))
                .collect(),
            outside_mps: (is_all && !node.has_no_driver()).then_some(outside),
            unmanaged: node
                .detail
                .reads_processes()
                .then(|| node.unmanaged.clone()),
            problems: problems.into_iter().map(Remark::from).collect(),
            remarks: remarks.into_iter().map(Remark::from).collect(),
            hidden: node.describe_unseen(),
        }
    }
}

/// A device and its daemon.
#[derive(Debug, Serialize, JsonSchema)]
struct DeviceStatus {
    #[serde(flatten)]
    device: DeviceDocument,
    /// The state of its daemon.
    state: DeviceState,
    /// The setting `serve`: the users that its daemon serves.
    serve: Option<String>,
    /// The setting `share`: the number of clients that each have an equal part of the device; null without one.
    share: Option<u32>,
    /// The pipe directory: `CUDA_MPS_PIPE_DIRECTORY` of its clients.
    pipe_directory: Option<String>,
    /// The control daemon's process id.
    daemon_pid: Option<u32>,
    /// The servers; null if unknown.
    servers: Option<Vec<ServerProcess>>,
    /// The number of clients; null if unknown.
    client_count: Option<usize>,
    /// The largest number of clients; null if unknown.
    client_limit: Option<u32>,
    /// The number of clients whose process ids the daemon cannot see, as in other containers.
    clients_unseen: Option<usize>,
    /// The active thread percentage of the daemon's settings.
    active_thread_percentage: Option<f64>,
    /// The active thread percentage that the daemon reports now; null if it was not asked.
    answered_active_thread_percentage: Option<f64>,
    /// True if the daemon was asked for its settings, and false if they are shown as configured; null without a daemon.
    settings_read_back: Option<bool>,
    /// The setting `pinned-memory-limit`: the most device memory of a client; null for no limit.
    pinned_memory_limit_bytes: Option<u64>,
    /// The setting `client-priority`.
    client_priority: Option<String>,
    /// The setting `cpus`: the CPUs of the daemon and its servers; null for all.
    cpus: Option<String>,
    /// The settings that `mig-mps set` has changed; null without a daemon.
    set_by_hand: Option<Vec<String>>,
    /// What becomes of a device that admits no new programs; null for others.
    closing: Option<ClosingDocument>,
    /// An answer of the daemon that makes no sense, or the reason why there is none.
    problem: Option<String>,
    /// Device memory in use.
    memory_used_bytes: Option<u64>,
    /// Utilization of the GPU in the driver's last sampling period; null for MIG devices: no driver reports it.
    utilization_percent: Option<u32>,
    /// The time at which the daemon was started, in UTC, as in RFC 3339.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    since: Option<Timestamp>,
}

impl DeviceStatus {
    fn from_device(node: &Node, device: &node::Device) -> Self {
        let served = device.served.as_ref();
        let (alive, known, memory) = (
            device.live_daemon(),
            device.daemon_with_known_clients(),
            device.memory(),
        );
        let servers = alive.filter(|served| known.is_some() || served.state == DaemonState::Busy);
        let settings = served.map(|served| &served.record.settings);
        let pipe = served.map(|served| served.run_dir.pipe_dir(&served.record.uuid));
        Self {
            device: DeviceDocument::from_device(device),
            state: node.state_of(device),
            serve: device.serve_setting().map(ToString::to_string),
            share: settings.and_then(|settings| Some(settings.share?.clients)),
            pipe_directory: pipe.map(|pipe| pipe.display().to_string()),
            daemon_pid: alive.and_then(|served| Some(served.record.daemon?.pid.0)),
            servers: servers.map(|served| served.servers.clone()),
            client_count: known.map(|served| served.clients.as_slice().len()),
            client_limit: served.and_then(Served::client_limit),
            clients_unseen: known.map(|served| {
                served
                    .clients
                    .as_slice()
                    .iter()
                    .filter(|client| client.pid.is_none())
                    .count()
            }),
            active_thread_percentage: settings
                .map(|settings| settings.active_thread_percentage.as_f64()),
            answered_active_thread_percentage: served
                .and_then(|served| served.answered.as_ref()?.active_thread_percentage()),
            settings_read_back: served.map(Served::is_read_back),
            pinned_memory_limit_bytes: settings
                .and_then(|settings| Some(settings.pinned_memory_limit?.bytes())),
            client_priority: settings.map(|settings| settings.client_priority.to_string()),
            cpus: settings.and_then(|settings| Some(settings.cpus.as_ref()?.to_string())),
            set_by_hand: served.map(|served| served.record.by_hand.clone()),
            closing: served.and_then(Served::closing).map(ClosingDocument::from),
            problem: served.and_then(|served| Some(served.state.reason()?.to_owned())),
            memory_used_bytes: memory.map(|memory| memory.used),
            utilization_percent: node.gpu_utilization(device),
            since: alive.map(|served| served.record.since),
        }
    }
}

/// A device that admits no new programs: its daemon ends with those that run.
#[derive(Debug, Serialize, JsonSchema)]
struct ClosingDocument {
    /// The command that has closed it.
    command: String,
    /// The name of its user.
    by: String,
    /// The time at which it was closed, in UTC, as in RFC 3339.
    #[schemars(with = "String", extend("format" = "date-time"))]
    since: Timestamp,
    /// The time until which the command waits.
    #[schemars(with = "String", extend("format" = "date-time"))]
    until: Timestamp,
    /// True if a new daemon follows, and false if the device stays without one, or goes.
    is_reopened: bool,
}

impl From<&Closing> for ClosingDocument {
    fn from(closing: &Closing) -> Self {
        Self {
            command: closing.origin.command.clone(),
            by: closing.origin.by.clone(),
            since: closing.origin.since,
            until: closing.until,
            is_reopened: closing.next.is_some(),
        }
    }
}

/// A client of a device.
#[derive(Debug, Serialize, JsonSchema)]
struct ClientDocument {
    /// The device's name.
    device: String,
    #[serde(flatten)]
    client: Client,
    /// True if it uses more memory than the device lets each client have; null if that is not known, or there is no limit.
    is_over_memory_limit: Option<bool>,
    /// The values, by setting, that it keeps from before a change.
    earlier_settings: BTreeMap<String, String>,
}

impl ClientDocument {
    fn from_client(served: &Served, client: &Client) -> Self {
        Self {
            device: served.record.name.clone(),
            client: client.clone(),
            is_over_memory_limit: served.is_over_limit(client),
            earlier_settings: served.earlier_values(client),
        }
    }
}

/// A program that waits to become a client.
#[derive(Debug, Serialize, JsonSchema)]
struct WaitingDocument {
    /// The device's name.
    device: String,
    #[serde(flatten)]
    client: Client,
}

/// A program that computes outside MPS.
#[derive(Debug, Serialize, JsonSchema)]
struct OutsideDocument {
    /// The device's name.
    device: String,
    #[serde(flatten)]
    program: OutsideMps,
}
