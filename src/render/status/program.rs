//! Servers, clients and other programs in `status --json`.

use schemars::JsonSchema;
use serde::Serialize;

use super::row::Row;
use crate::host::{Uid, user_name};
use crate::node::{self, MpsProgram, Node, OutsideMps, ServerProcess, Unmanaged, Variable};

/// The user of a process.
#[derive(Debug, Serialize, JsonSchema)]
struct Owner {
    /// The user's name; null if hidden.
    user: Option<String>,
    /// The user's number; null if hidden.
    uid: Option<u32>,
}

impl Owner {
    fn of(uid: Option<Uid>) -> Self {
        Self {
            user: uid.map(user_name),
            uid: uid.map(|uid| uid.0),
        }
    }
}

/// An MPS server.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "server")]
pub(super) struct Server {
    /// The process id.
    pid: u32,
    #[serde(flatten)]
    owner: Owner,
}

impl Server {
    pub(super) fn of(server: &ServerProcess) -> Self {
        Self {
            pid: server.pid.0,
            owner: Owner::of(server.user),
        }
    }
}

/// A client of a device, or a program that waits to become one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "client")]
pub(super) struct Client {
    /// The device's name.
    device: String,
    /// The process id; null if the daemon cannot see it, as in another pid namespace.
    pid: Option<u32>,
    #[serde(flatten)]
    owner: Owner,
    /// The command line; null if hidden.
    command: Option<String>,
    /// Device memory in use; null if the driver does not report it.
    memory_used_bytes: Option<u64>,
    /// Time since its start.
    running_seconds: Option<u64>,
}

impl Client {
    pub(super) fn of(row: &Row<'_>, client: &node::Client) -> Self {
        Self {
            device: row.name.clone(),
            pid: client.pid.map(|pid| pid.0),
            owner: Owner::of(client.user),
            command: client.command.clone(),
            memory_used_bytes: client.memory,
            running_seconds: client.age.map(|age| age.as_secs()),
        }
    }
}

/// A program that computes outside MPS.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "outside")]
pub(super) struct Outside {
    /// The device's name.
    pub(super) device: String,
    /// The process id.
    pid: u32,
    #[serde(flatten)]
    owner: Owner,
    /// The command line.
    command: String,
    /// Device memory in use; null if the driver does not report it.
    memory_used_bytes: Option<u64>,
    /// Time since its start.
    running_seconds: Option<u64>,
    /// True if a daemon serves the device; the program is then one of the problems.
    is_served: bool,
    /// The likely cause.
    cause: String,
}

impl Outside {
    pub(super) fn of(node: &Node, outside: &OutsideMps) -> Self {
        Self {
            device: node.name_of_uuid(&outside.uuid),
            pid: outside.pid.0,
            owner: Owner::of(outside.user),
            command: outside.command.clone(),
            memory_used_bytes: outside.memory,
            running_seconds: outside.age.map(|age| age.as_secs()),
            is_served: outside.is_served,
            cause: outside.cause.clone(),
        }
    }
}

/// An MPS daemon or server that mig-mps did not start. It is never touched.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "unmanaged")]
pub(super) struct UnmanagedDaemon {
    /// `control`, or `server` for a server whose daemon is gone.
    program: &'static str,
    /// The process id.
    pid: u32,
    /// True if its pipe directory was removed.
    is_orphan: bool,
    #[serde(flatten)]
    owner: Owner,
    /// The command line.
    command: String,
    /// True if its environment can be read; otherwise the next two are unknown.
    environment_is_readable: bool,
    /// The value of its `CUDA_MPS_PIPE_DIRECTORY`; null if unset or hidden.
    pipe_directory: Option<String>,
    /// The value of its `CUDA_VISIBLE_DEVICES`; null if unset or hidden.
    visible_devices: Option<String>,
    /// The names of the devices that it serves, as far as they are known.
    devices: Vec<String>,
    /// The servers of the daemon.
    servers: Vec<Server>,
    /// Time since its start.
    running_seconds: Option<u64>,
}

impl UnmanagedDaemon {
    pub(super) fn of(node: &Node, unmanaged: &Unmanaged) -> Self {
        let devices = unmanaged.devices.iter();
        Self {
            program: match unmanaged.program {
                MpsProgram::Control => "control",
                MpsProgram::Server => "server",
            },
            pid: unmanaged.pid.0,
            is_orphan: unmanaged.is_orphan,
            owner: Owner::of(unmanaged.user),
            command: unmanaged.command.clone(),
            environment_is_readable: unmanaged.pipe_directory != Variable::Hidden,
            pipe_directory: unmanaged.pipe_directory.value().map(str::to_owned),
            visible_devices: unmanaged.visible.value().map(str::to_owned),
            devices: devices.map(|uuid| node.name_of_uuid(uuid)).collect(),
            servers: unmanaged.servers.iter().map(Server::of).collect(),
            running_seconds: unmanaged.age.map(|age| age.as_secs()),
        }
    }
}

/// Returns the state of an unmanaged daemon or server.
pub(super) fn unmanaged_state(unmanaged: &Unmanaged) -> &'static str {
    if unmanaged.is_orphan {
        "orphan"
    } else {
        "unmanaged"
    }
}
