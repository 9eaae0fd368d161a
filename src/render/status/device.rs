//! A device in `status --json`.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::program::Server;
use super::row::Row;
use crate::node::{DaemonState, Served};

/// A device and its daemon.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "device")]
pub(super) struct Device {
    /// The name, which commands take.
    name: String,
    /// The UUID, which CUDA takes: `MIG-…` or `GPU-…`.
    uuid: String,
    /// The index of its GPU; null if the device is gone.
    gpu: Option<u32>,
    /// The profile name, such as `3g.40gb` or `1c.3g.40gb`; null for a whole GPU.
    profile: Option<String>,
    /// The state of its daemon.
    state: State,
    /// The setting `serve`: the users that its daemon serves.
    serve: Option<String>,
    /// The pipe directory: `CUDA_MPS_PIPE_DIRECTORY` of its clients.
    pipe_directory: Option<String>,
    /// The control daemon's process id.
    daemon_pid: Option<u32>,
    /// The servers; null if unknown.
    servers: Option<Vec<Server>>,
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
    /// An answer of the daemon that makes no sense, or the reason why there is none.
    problem: Option<String>,
    /// Device memory in use.
    memory_used_bytes: Option<u64>,
    /// All device memory.
    memory_total_bytes: Option<u64>,
    /// Utilization of the GPU in the driver's last sampling period; null for MIG devices: no driver reports it.
    utilization_percent: Option<u32>,
    /// The time at which the daemon was started, in UTC, as in RFC 3339.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    since: Option<Timestamp>,
}

impl Device {
    pub(super) fn of(row: &Row<'_>) -> Self {
        let served = row.served;
        let alive = row.alive();
        let known = alive.filter(|_| row.is_known());
        let servers = alive.filter(|served| row.is_known() || served.state == DaemonState::Busy);
        let memory = row.memory();
        let record = served.map(|served| &served.record);
        let settings = record.map(|record| &record.settings);
        let pipe = served.map(|served| served.run_dir.pipe_dir(&served.record.uuid));
        let part = row.device.as_ref().and_then(|device| device.part.as_ref());
        Self {
            name: row.name.clone(),
            uuid: row.uuid.clone(),
            gpu: row.gpu_index(),
            profile: part.map(|part| part.title.clone()),
            state: State::of(row),
            serve: record.and_then(|record| Some(record.settings.serve.as_ref()?.to_string())),
            pipe_directory: pipe.map(|pipe| pipe.display().to_string()),
            daemon_pid: alive.and_then(|served| Some(served.record.daemon?.pid.0)),
            servers: servers.map(|served| served.servers.iter().map(Server::of).collect()),
            client_count: known.map(|served| served.clients.listed().len()),
            client_limit: served.and_then(|served| served.client_limit),
            clients_unseen: known.map(|served| {
                let clients = served.clients.listed().iter();
                clients.filter(|client| client.pid.is_none()).count()
            }),
            active_thread_percentage: record
                .map(|record| record.settings.active_thread_percentage.value()),
            answered_active_thread_percentage: served
                .and_then(|served| served.answered.as_ref()?.percentage()),
            settings_read_back: served.map(Served::is_read_back),
            pinned_memory_limit_bytes: settings
                .and_then(|settings| Some(settings.pinned_memory_limit?.bytes())),
            client_priority: settings.map(|settings| settings.client_priority.to_string()),
            cpus: settings.and_then(|settings| Some(settings.cpus.as_ref()?.to_string())),
            set_by_hand: record.map(|record| record.by_hand.clone()),
            problem: served.and_then(|served| served.problem.clone()),
            memory_used_bytes: memory.map(|memory| memory.used),
            memory_total_bytes: memory.map(|memory| memory.total),
            utilization_percent: row.utilization(),
            since: alive.map(|served| served.record.since),
        }
    }
}

/// The state of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "state")]
pub(super) enum State {
    /// It would take a client now.
    #[serde(rename = "ready")]
    Ready,
    /// The server starts with the first client.
    #[serde(rename = "no server yet")]
    NoServerYet,
    /// Its server is starting, or a change is not finished.
    #[serde(rename = "starting")]
    Starting,
    /// A fatal GPU fault, until every client has exited.
    #[serde(rename = "fault")]
    Fault,
    /// Another control session is open, so that it does not answer.
    #[serde(rename = "busy")]
    Busy,
    /// It runs, and the caller may not ask it; or whether it runs cannot be seen.
    #[serde(rename = "hidden")]
    Hidden,
    /// It waits for a client that died, and so does every new client.
    #[serde(rename = "hung")]
    Hung,
    /// It runs and does not answer.
    #[serde(rename = "no answer")]
    NoAnswer,
    /// It runs, and its pipe directory was removed.
    #[serde(rename = "orphan")]
    Orphan,
    /// It has ended.
    #[serde(rename = "dead")]
    Dead,
    /// It is dead or hung, and `heal` has given it up.
    #[serde(rename = "failing")]
    Failing,
    /// Its device is gone.
    #[serde(rename = "no device")]
    NoDevice,
    /// It runs, and its GPU is lost or cannot be read.
    #[serde(rename = "gpu lost")]
    GpuLost,
    /// mig-mps does not serve the device.
    #[serde(rename = "no daemon")]
    NoDaemon,
}

impl State {
    pub(super) const ALL: [Self; 14] = [
        Self::Ready,
        Self::NoServerYet,
        Self::Starting,
        Self::Fault,
        Self::Busy,
        Self::Hidden,
        Self::Hung,
        Self::NoAnswer,
        Self::Orphan,
        Self::Dead,
        Self::Failing,
        Self::NoDevice,
        Self::GpuLost,
        Self::NoDaemon,
    ];

    pub(super) fn of(row: &Row<'_>) -> Self {
        match row.served {
            None if row.may_be_served() => Self::Hidden,
            None => Self::NoDaemon,
            Some(served) if row.is_missed() && served.is_gone() => Self::NoDevice,
            Some(served) if served.is_alive() && served.lost().is_some() => Self::GpuLost,
            Some(served) if served.is_failing() => Self::Failing,
            Some(served) => match served.state {
                DaemonState::Ready => Self::Ready,
                DaemonState::NoServerYet => Self::NoServerYet,
                DaemonState::Starting => Self::Starting,
                DaemonState::Fault => Self::Fault,
                DaemonState::Busy => Self::Busy,
                DaemonState::Hidden => Self::Hidden,
                DaemonState::Hung => Self::Hung,
                DaemonState::NoAnswer => Self::NoAnswer,
                DaemonState::Orphan => Self::Orphan,
                DaemonState::Dead => Self::Dead,
            },
        }
    }
}

/// The word in JSON.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
