//! The form of `status --json`. It only grows; a change that breaks readers raises `version`.

use jiff::Timestamp;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

/// What `mig-mps status --json` prints.
///
/// `null` says that something is unknown or does not exist; it is never 0.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "status")]
pub(in crate::render) struct Status {
    /// The form of this document. It only grows; a change that breaks readers raises this number.
    pub(super) version: u32,
    /// The driver's version.
    pub(super) driver: String,
    /// Whether something is not as it should be: `problems` says what. With `--exit-code` the exit status is then 3.
    pub(super) degraded: bool,
    /// The devices that daemons serve, and those that none serves.
    pub(super) devices: Vec<Device>,
    /// The clients of all of these devices.
    pub(super) clients: Vec<Client>,
    /// Programs that wait in cuInit until another user's have gone.
    pub(super) waiting: Vec<Client>,
    /// Programs that compute on a device without being clients of a daemon.
    pub(super) outside_mps: Vec<Outside>,
    /// MPS programs that mig-mps has not started.
    pub(super) foreign: Vec<Foreign>,
    /// What is not as it should be.
    pub(super) problems: Vec<Remark>,
    /// What is as it may be and still worth a word.
    pub(super) remarks: Vec<Remark>,
    /// What cannot be seen, in words.
    pub(super) hidden: Vec<String>,
}

/// A device and its daemon.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "device")]
pub(super) struct Device {
    /// The name that commands take.
    pub(super) name: String,
    /// What CUDA takes: `MIG-…` or `GPU-…`.
    pub(super) uuid: String,
    /// Its GPU's index; null if the GPU is gone.
    pub(super) gpu: Option<u32>,
    /// `3g.40gb`, `1c.3g.40gb`; null for a whole GPU.
    pub(super) profile: Option<String>,
    /// How its daemon is.
    pub(super) state: State,
    /// Whose clients it serves, as the profile says it.
    #[schemars(with = "Option<String>")]
    pub(super) serve: Value,
    /// `CUDA_MPS_PIPE_DIRECTORY` of its clients.
    pub(super) pipe_directory: Option<String>,
    /// The control daemon's process id.
    pub(super) daemon_pid: Option<u32>,
    /// Its servers; null where they are not known.
    pub(super) servers: Option<Vec<Server>>,
    /// How many clients it has; null where that is not known.
    pub(super) clients: Option<usize>,
    /// How many it takes; null where that is not known.
    pub(super) client_limit: Option<u32>,
    /// How many of its clients have a process id that its daemon cannot see, as in containers beside its own.
    pub(super) clients_unseen: Option<usize>,
    /// What was set when it was started.
    pub(super) active_thread_percentage: Option<f64>,
    /// What its daemon answers now; null where it was not asked.
    pub(super) answered_active_thread_percentage: Option<f64>,
    /// What its daemon answered that cannot be understood, or why it did not answer.
    pub(super) problem: Option<String>,
    /// Device memory in use.
    pub(super) memory_used_bytes: Option<u64>,
    /// All device memory.
    pub(super) memory_total_bytes: Option<u64>,
    /// How busy the GPU was in the driver's last sampling period; null for MIG devices, of which no driver tells.
    pub(super) utilization_percent: Option<u32>,
    /// When its daemon was started.
    #[schemars(with = "Option<String>")]
    pub(super) since: Option<Timestamp>,
}

/// How a daemon is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "state")]
pub(super) enum State {
    /// Its server serves.
    #[serde(rename = "ready")]
    Ready,
    /// It waits for the first client to start a server for.
    #[serde(rename = "no server yet")]
    NoServerYet,
    /// Its server is coming up, or an `up` has not finished with it.
    #[serde(rename = "starting")]
    Starting,
    /// Its server has met a fatal GPU fault and waits until every client has gone.
    #[serde(rename = "fault")]
    Fault,
    /// It lives, and somebody else's control session keeps it from answering.
    #[serde(rename = "busy")]
    Busy,
    /// It lives, and the caller may not ask it.
    #[serde(rename = "hidden")]
    Hidden,
    /// It waits for a client that has died, and so does every new client.
    #[serde(rename = "hung")]
    Hung,
    /// It lives, and does not answer.
    #[serde(rename = "no answer")]
    NoAnswer,
    /// It lives, and its pipe directory is gone.
    #[serde(rename = "orphan")]
    Orphan,
    /// It has died.
    #[serde(rename = "dead")]
    Dead,
    /// It lives, and its device is gone.
    #[serde(rename = "no device")]
    NoDevice,
    /// There is none.
    #[serde(rename = "no daemon")]
    NoDaemon,
}

/// An MPS server.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "server")]
pub(super) struct Server {
    /// Its process id.
    pub(super) pid: u32,
    /// Whose it is; null where that is hidden.
    pub(super) user: Option<String>,
    /// The same as a number.
    pub(super) uid: Option<u32>,
}

/// A program that is a client of a device, or waits to become one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "client")]
pub(super) struct Client {
    /// The device's name.
    pub(super) device: String,
    /// Its process id; null for one in a pid namespace that the daemon cannot see.
    pub(super) pid: Option<u32>,
    /// Whose it is; null where that is hidden.
    pub(super) user: Option<String>,
    /// The same as a number.
    pub(super) uid: Option<u32>,
    /// Its command line; null where that is hidden.
    pub(super) command: Option<String>,
    /// Device memory it uses; null where the driver does not tell.
    pub(super) memory_bytes: Option<u64>,
    /// For how long it has been running.
    pub(super) running_seconds: Option<u64>,
}

/// A program that computes outside MPS.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "outside")]
pub(super) struct Outside {
    /// The device's name.
    pub(super) device: String,
    /// Its process id.
    pub(super) pid: u32,
    /// Whose it is; null where that is hidden.
    pub(super) user: Option<String>,
    /// The same as a number.
    pub(super) uid: Option<u32>,
    /// Its command line.
    pub(super) command: String,
    /// Device memory it uses; null where the driver does not tell.
    pub(super) memory_bytes: Option<u64>,
    /// For how long it has been running.
    pub(super) running_seconds: Option<u64>,
    /// Whether a daemon serves the device: then it is one of the problems.
    pub(super) is_served: bool,
    /// Why it is outside, most likely.
    pub(super) cause: String,
}

/// An MPS program that mig-mps has not started. It is never touched.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "foreign")]
pub(super) struct Foreign {
    /// `control`, or `server` for one whose daemon has gone.
    pub(super) program: &'static str,
    /// Its process id.
    pub(super) pid: u32,
    /// `orphan` if its pipe directory is gone, else `foreign`.
    pub(super) state: &'static str,
    /// Whose it is; null where that is hidden.
    pub(super) user: Option<String>,
    /// The same as a number.
    pub(super) uid: Option<u32>,
    /// Its command line.
    pub(super) command: String,
    /// Whether its environment may be read: what follows is known only then.
    pub(super) environment_is_readable: bool,
    /// Its `CUDA_MPS_PIPE_DIRECTORY`; null where that was not set, or is hidden.
    pub(super) pipe_directory: Option<String>,
    /// Its `CUDA_VISIBLE_DEVICES`; null where that was not set, or is hidden.
    pub(super) visible_devices: Option<String>,
    /// The names of the devices it serves, as far as can be told.
    pub(super) devices: Vec<String>,
    /// Its servers.
    pub(super) servers: Vec<Server>,
    /// For how long it has been running.
    pub(super) running_seconds: Option<u64>,
}

/// Something to say about a device, or about the node.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "remark")]
pub(super) struct Remark {
    /// The device's name; null for the node.
    pub(super) device: Option<String>,
    /// What there is to say.
    pub(super) what: String,
}

/// The schema of `status --json`, as JSON Schema 2020-12.
pub(in crate::render) fn schema() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    SchemaGenerator::new(settings)
        .into_root_schema_for::<Status>()
        .to_value()
}
