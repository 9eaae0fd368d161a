//! A served device: its daemon, the programs on it, and daemons that are not managed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{AccessFault, Closer, DaemonState, Gpu};
use crate::config::{
    DEFAULT_PIPE_DIRECTORIES, PRIVATE_DIRECTORY_LETTERS, PRIVATE_DIRECTORY_PREFIX,
};
use crate::host::{
    Environ, Pid, Process, Reader, StartTime, Supervisor, Uid, Workload, caller, is_shell_safe,
    user_name,
};
use crate::mps::MpsProgram;
use crate::nvml::{EXCLUSIVE_PROCESS, GpuUsage};
use crate::settings::{KEYS, MemoryLimit, PINNED_MEMORY_LIMIT, Reported, Serve, Server, Settings};
use crate::state::{DeviceRecord, OlderClient, RunDir};

/// Memory that the driver lists for a client and MPS does not count against its limit: 2 MiB of a client on a whole H200, as
/// measured, and some for what other GPUs and drivers do.
const UNCOUNTED_CLIENT_BYTES: u64 = 128 << 20;

/// A device with a record, and the state of its daemon.
#[derive(Clone, Debug)]
pub struct Served {
    pub record: DeviceRecord,
    /// The run directory the record is in.
    pub run_dir: RunDir,
    /// The state of its daemon.
    pub state: DaemonState,
    /// The process that has closed it to new programs.
    pub closer: Closer,
    /// True if its start was interrupted, and no change in progress will finish it.
    pub is_abandoned: bool,
    /// True if `heal` no longer starts it: it did so too often within the last hour.
    pub is_given_up: bool,
    /// Its servers: at most one, except while one user's server replaces another's.
    pub servers: Vec<ServerProcess>,
    /// Its clients. Its servers are known if they are.
    pub clients: Clients,
    /// The clients of a joint device that a GPU fault has not reached, and that still work, as far as that is known.
    pub unaffected: Vec<Pid>,
    /// Programs that wait in `cuInit` until those of another user have exited.
    pub waiting: Vec<Client>,
    /// The pods that hold a share, and of which no program is a client, by namespace and name. Read with the clients'
    /// workloads.
    pub idle_pods: Vec<String>,
    /// The most clients that its daemon takes, on all its GPUs together: measured on whole GPUs, as NVIDIA documents it on MIG
    /// devices; `None` if it is not known.
    pub hardware_limit: Option<u32>,
    /// The same if it was measured.
    pub measured_limit: Option<u32>,
    /// Its GPU's compute mode by NVML's number; `None` on a MIG device, and if it was not read.
    pub compute_mode: Option<u32>,
    /// The ways in which others than its users reach its daemon, or these do not.
    pub access: Vec<AccessFault>,
    /// The daemon's current defaults for servers; `None` if it was not asked.
    pub answered: Option<Reported>,
}

impl Served {
    /// Returns a device with a record, of whose daemon nothing is known yet.
    pub fn new(record: DeviceRecord, run_dir: &RunDir) -> Self {
        Self {
            is_given_up: record.is_given_up(Timestamp::now()),
            record,
            run_dir: run_dir.clone(),
            is_abandoned: false,
            closer: Closer::Gone,
            state: DaemonState::Dead,
            servers: Vec::new(),
            clients: Clients::Partial(Vec::new()),
            unaffected: Vec::new(),
            waiting: Vec::new(),
            idle_pods: Vec::new(),
            hardware_limit: None,
            measured_limit: None,
            compute_mode: None,
            access: Vec::new(),
            answered: None,
        }
    }

    /// True if somebody changed the compute mode that was set for its daemon.
    pub fn has_lost_compute_mode(&self) -> bool {
        self.record.finished
            && self.record.settings.compute_mode.is_some()
            && self
                .compute_mode
                .is_some_and(|mode| mode != EXCLUSIVE_PROCESS)
    }

    /// True if a server was started with the daemon and has ended. A server that is starting, or that gave way to
    /// another user's, is not lost.
    pub fn has_lost_server(&self) -> bool {
        self.state == DaemonState::NoServerYet
            && self.record.finished
            && self.record.settings.server == Server::Eager
    }

    /// True if there is a memory limit, and the memory of some client cannot be seen.
    pub fn hides_memory_over_limit(&self) -> bool {
        self.record.settings.pinned_memory_limit.is_some()
            && !(self.clients.are_known()
                && self
                    .clients
                    .as_slice()
                    .iter()
                    .all(|client| client.memory.is_some()))
    }

    /// Returns the values that MPS gave a client when it started, by key, where they are not those of these settings.
    pub fn other_values(&self, client: &Client, settings: &Settings) -> BTreeMap<String, String> {
        let older = self.record.older_clients.iter().find(|older| {
            client.pid == Some(older.pid) && client.started == Some(older.start_time)
        });
        let mut values = BTreeMap::new();
        for key in KEYS.iter().filter(|key| key.control_commands().is_some()) {
            let kept = older.and_then(|older| older.values.get(key.name));
            let value = kept.map_or_else(|| (key.show)(&self.record.settings), Clone::clone);
            if value != (key.show)(settings) {
                values.insert(key.name.to_owned(), value);
            }
        }
        values
    }

    /// Returns the values that a client keeps from before a change of settings, by key.
    pub fn earlier_values(&self, client: &Client) -> BTreeMap<String, String> {
        self.other_values(client, &self.record.settings)
    }

    /// Returns the clients that keep other values than those of new settings.
    pub fn older_clients(&self, settings: &Settings) -> Vec<OlderClient> {
        self.clients
            .as_slice()
            .iter()
            .filter_map(|client| {
                Some(OlderClient {
                    pid: client.pid?,
                    start_time: client.started?,
                    values: self.other_values(client, settings),
                })
            })
            .filter(|older| !older.values.is_empty())
            .collect()
    }

    /// True if a client uses more memory than the device lets each client have; `None` if that is not known.
    pub fn is_over_limit(&self, client: &Client) -> Option<bool> {
        self.memory_limit_of(client)?;
        client.memory?;
        let mut over = self.clients_over_limit();
        Some(over.any(|other| other.pid == client.pid && other.started == client.started))
    }

    /// Returns the clients that use more memory than the device lets each client have.
    pub fn clients_over_limit(&self) -> impl Iterator<Item = &Client> {
        // The limit of a daemon that somebody has changed is a problem of its own.
        let answered = self.answered.as_ref();
        let is_changed =
            answered.is_some_and(|answered| answered.has_other_memory_limit(&self.record.settings));
        self.clients.as_slice().iter().filter(move |client| {
            let most = self
                .memory_limit_of(client)
                .map(|limit| limit.bytes() + UNCOUNTED_CLIENT_BYTES);
            !is_changed && most.is_some() && client.memory_on_one_gpu() > most
        })
    }

    /// Returns the memory limit with which a client started.
    pub(super) fn memory_limit_of(&self, client: &Client) -> Option<MemoryLimit> {
        match self.earlier_values(client).get(PINNED_MEMORY_LIMIT) {
            Some(earlier) => earlier.parse().ok(),
            None => self.record.settings.pinned_memory_limit,
        }
    }

    /// True if it is down, and `heal` has given it up.
    pub fn is_failing(&self) -> bool {
        self.is_given_up && matches!(self.state, DaemonState::Dead | DaemonState::Hung(_))
    }

    /// True if its daemon was asked for its settings.
    pub fn is_read_back(&self) -> bool {
        self.record.finished && self.answered.is_some()
    }

    /// Returns the most clients that it is shown to take: `max-clients`, or fewer if it does not take as many; `None` if
    /// neither `max-clients` nor a measurement tells, but only NVIDIA's documentation, as of MIG devices.
    pub fn client_limit(&self) -> Option<u32> {
        match self.record.settings.max_clients {
            Some(meant) => Some(self.hardware_limit.map_or(meant, |limit| limit.min(meant))),
            None if self.record.key.is_joint() => None,
            None => self.measured_limit,
        }
    }

    /// Returns the number of clients with which no other one is let in: MIG devices may take more than NVIDIA documents.
    pub fn firm_client_limit(&self) -> Option<u32> {
        let meant = self.record.settings.max_clients;
        self.measured_limit.into_iter().chain(meant).min()
    }

    /// Returns the number of programs that can have a share of it at once: no more than its daemon takes. `None` if it has
    /// no share.
    pub fn share_count(&self) -> Option<u32> {
        let share = self.record.settings.share?;
        // Without the driver, the device is as large as it was for the plan.
        let limit = self.hardware_limit.or(share.device.clients);
        Some(limit.map_or(share.clients, |limit| share.clients.min(limit)))
    }

    /// True if the program with that process id waits in `cuInit`.
    pub fn has_waiting_program(&self, pid: Pid) -> bool {
        self.waiting.iter().any(|client| client.pid == Some(pid))
    }

    /// True if one of its servers or clients has that process id.
    pub(super) fn has_program(&self, pid: Pid) -> bool {
        self.servers.iter().any(|server| server.pid == pid) || self.clients.contains_pid(pid)
    }

    /// Returns the users of the device, or `None` if there is no user or group of that name.
    pub fn served_users(&self) -> Option<Reader> {
        match &self.record.settings.serve {
            Some(Serve::User(_) | Serve::Own) => {
                Some(Reader::from_account(self.record.only_user()?))
            }
            Some(Serve::Group(_)) => Some(Reader::any_member(self.record.only_group().ok()??)),
            Some(Serve::All | Serve::OneAtATime) | None => Some(Reader::any_user()),
        }
    }

    /// Returns the topmost directory above the daemon's socket that this reader may not enter.
    pub fn find_closed_directory(&self, reader: &Reader) -> Option<PathBuf> {
        let pipe = self.run_dir.pipe_dir(&self.record.uuid);
        reader.find_closed_directory(&pipe.join("control"))
    }

    /// True if the device is for programs of this user, as far as settings and directories tell.
    pub(super) fn is_for_user(&self, user: Uid) -> bool {
        let is_for_user = self.record.only_user().is_none_or(|only| only == user);
        is_for_user
            && self
                .find_closed_directory(&Reader::from_account(user))
                .is_none()
    }

    /// True if its daemon runs, or may run.
    pub fn is_alive(&self) -> bool {
        self.state != DaemonState::Dead
    }
}

/// The user of a process, as documents have it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Owner {
    /// The user's name; null if hidden.
    user: Option<String>,
    /// The user's number; null if hidden.
    uid: Option<u32>,
}

#[allow(
    clippy::ref_option,
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes it"
)]
pub(super) fn as_owner<S: Serializer>(uid: &Option<Uid>, serializer: S) -> Result<S::Ok, S::Error> {
    Owner {
        user: uid.map(user_name),
        uid: uid.map(|uid| uid.0),
    }
    .serialize(serializer)
}

#[allow(clippy::ref_option, reason = "serde passes it")]
pub(super) fn as_seconds<S: Serializer>(
    age: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    age.map(|age| age.as_secs()).serialize(serializer)
}

/// An MPS server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ServerProcess {
    /// The process id.
    pub pid: Pid,
    /// Its user; `None` if hidden.
    #[serde(flatten, serialize_with = "as_owner")]
    #[schemars(with = "Owner")]
    pub user: Option<Uid>,
    /// Identifies the process together with the pid; `None` if it was not read.
    #[serde(skip)]
    pub started: Option<StartTime>,
}

impl ServerProcess {
    pub(super) fn from_process(process: &Process) -> Self {
        Self {
            pid: process.pid,
            user: process.owner(),
            started: Some(process.started),
        }
    }
}

/// A program that computes through MPS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Client {
    /// The process id; null if the daemon cannot see it, as in another pid namespace.
    pub pid: Option<Pid>,
    /// Identifies the process together with the pid; `None` if the process cannot be seen.
    #[serde(skip)]
    pub started: Option<StartTime>,
    /// Its server; `None` for a program that waits for one.
    #[serde(skip)]
    pub server: Option<Pid>,
    /// Its user; `None` if hidden.
    #[serde(flatten, serialize_with = "as_owner")]
    #[schemars(with = "Owner")]
    pub user: Option<Uid>,
    /// The command line; null if hidden.
    pub command: Option<String>,
    /// The Slurm job, pod or container that it belongs to; null if that cannot be seen.
    // Read with `Detail::outside_mps`, and where every daemon is asked.
    pub workload: Option<Workload>,
    /// Device memory in use; null if the driver does not report it.
    #[serde(rename = "memory_used_bytes")]
    pub memory: Option<u64>,
    /// The GPUs of a joint device that it uses; empty on another device.
    pub gpus: Vec<GpuUsage>,
    /// Time since its start.
    #[serde(rename = "running_seconds", serialize_with = "as_seconds")]
    #[schemars(with = "Option<u64>")]
    pub age: Option<Duration>,
}

impl Client {
    /// Returns its process id for a message.
    pub fn shown_pid(&self) -> String {
        self.pid
            .map_or_else(|| "hidden".to_owned(), |pid| pid.to_string())
    }

    /// `pid 4711 (alice)`
    pub(super) fn pid_with_user(&self) -> String {
        let user = self.user.map_or_else(|| "somebody".to_owned(), user_name);
        format!("pid {} ({user})", self.shown_pid())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Every client.
    Known(Vec<Client>),
    /// Some or all are unknown: the daemon or the driver did not list them.
    Partial(Vec<Client>),
}

impl Clients {
    /// The clients that were listed.
    pub fn as_slice(&self) -> &[Client] {
        match self {
            Self::Known(clients) | Self::Partial(clients) => clients,
        }
    }

    /// True if all clients are known.
    pub fn are_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// True if there certainly are none.
    pub fn are_none(&self) -> bool {
        matches!(self, Self::Known(clients) if clients.is_empty())
    }

    /// Returns the process ids of the clients that were listed, as far as they are known, for a message.
    pub fn shown_pids(&self) -> Vec<String> {
        self.as_slice()
            .iter()
            .filter_map(|client| client.pid)
            .map(|pid| pid.to_string())
            .collect()
    }

    /// True if a client has that process id.
    pub fn contains_pid(&self, pid: Pid) -> bool {
        self.as_slice().iter().any(|client| client.pid == Some(pid))
    }
}

/// A server in a pipe directory of mig-mps that outlived its daemon. It keeps its GPU memory until it is terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Its process.
    pub server: ServerProcess,
    /// Identifies the process together with the pid.
    pub started: StartTime,
    /// The clients on its device that belong to no daemon; `None` if the driver hides clients.
    pub clients: Option<Vec<Pid>>,
}

impl Stray {
    /// True if terminating it disrupts nobody.
    pub fn is_idle(&self) -> bool {
        self.clients.as_ref().is_some_and(Vec::is_empty)
    }
}

/// An MPS daemon or server that mig-mps did not start. It is never touched.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Unmanaged {
    /// `control`, or `server` for a server whose daemon is gone.
    #[schemars(with = "String")]
    pub program: MpsProgram,
    /// The process id.
    pub pid: Pid,
    /// True if its pipe directory was removed.
    // No program can reach the daemon then.
    pub is_orphan: bool,
    /// Its user; `None` if hidden.
    #[serde(flatten, serialize_with = "as_owner")]
    #[schemars(with = "Owner")]
    pub user: Option<Uid>,
    /// The command line.
    pub command: String,
    /// The systemd service, container, pod or batch job that keeps it running; null if there is none, or it cannot be seen.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "Option<String>")]
    pub supervisor: Option<Supervisor>,
    /// True if its supervisor runs other programs, too.
    #[serde(skip)]
    pub has_company: bool,
    /// True if its file system may be another one than this process sees.
    #[serde(skip)]
    pub is_elsewhere: bool,
    /// Its `CUDA_MPS_PIPE_DIRECTORY`.
    #[serde(flatten, serialize_with = "as_pipe_directory")]
    #[schemars(with = "PipeDirectory")]
    pub pipe_directory: Variable,
    /// The value of its `CUDA_VISIBLE_DEVICES`; null if unset or hidden.
    #[serde(rename = "visible_devices")]
    #[schemars(with = "Option<String>")]
    pub visible: Variable,
    /// The names of the devices that it serves, as far as they are known.
    pub devices: Vec<String>,
    /// The servers of the daemon.
    pub servers: Vec<ServerProcess>,
    /// Time since its start.
    #[serde(rename = "running_seconds", serialize_with = "as_seconds")]
    #[schemars(with = "Option<u64>")]
    pub age: Option<Duration>,
}

#[allow(clippy::ref_option, reason = "serde passes it")]
fn as_text<S: Serializer>(value: &Option<Supervisor>, serializer: S) -> Result<S::Ok, S::Error> {
    value
        .as_ref()
        .map(ToString::to_string)
        .serialize(serializer)
}

/// The pipe directory of an unmanaged daemon, as documents have it.
#[derive(Debug, Serialize, JsonSchema)]
struct PipeDirectory {
    /// True if its environment can be read; otherwise the next two are unknown.
    environment_is_readable: bool,
    /// The value of its `CUDA_MPS_PIPE_DIRECTORY`; null if unset or hidden.
    #[schemars(with = "Option<String>")]
    pipe_directory: Variable,
}

fn as_pipe_directory<S: Serializer>(pipe: &Variable, serializer: S) -> Result<S::Ok, S::Error> {
    PipeDirectory {
        environment_is_readable: *pipe != Variable::Hidden,
        pipe_directory: pipe.clone(),
    }
    .serialize(serializer)
}

/// A variable in another process's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// The caller may not read it.
    Hidden,
    /// It is not set.
    Unset,
    /// Its value.
    Is(String),
}

impl Variable {
    pub(super) fn from_environ(environ: Option<&Environ>, name: &str) -> Self {
        environ.map_or(Self::Hidden, |environ| {
            let value = environ.get(name).cloned();
            value.map_or(Self::Unset, Self::Is)
        })
    }

    /// Returns its value, if it is set and can be read.
    pub fn value(&self) -> Option<&str> {
        match self {
            Self::Is(value) => Some(value),
            Self::Hidden | Self::Unset => None,
        }
    }
}

/// Its value, or null.
impl Serialize for Variable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl Unmanaged {
    /// True if CUDA programs without settings of their own become its clients.
    pub fn uses_default_pipe_dir(&self) -> bool {
        match &self.pipe_directory {
            Variable::Hidden => false,
            Variable::Unset => true,
            Variable::Is(path) => DEFAULT_PIPE_DIRECTORIES.contains(&path.trim_end_matches('/')),
        }
    }

    /// True if it is the daemon of `run --private`, by the name of its directory: `/tmp/mig-mps-a1cJcU/UUID/pipe`.
    pub fn is_private(&self) -> bool {
        if self.is_orphan || !self.is_daemon() {
            return false;
        }
        self.pipe_directory
            .value()
            .map(Path::new)
            .and_then(|pipe| pipe.ancestors().nth(2)?.file_name()?.to_str())
            .and_then(|name| name.strip_prefix(PRIVATE_DIRECTORY_PREFIX))
            .is_some_and(|letters| letters.len() == PRIVATE_DIRECTORY_LETTERS)
    }

    /// True unless its `CUDA_VISIBLE_DEVICES` lists other GPUs.
    pub fn may_see(&self, gpu: &Gpu) -> bool {
        let Variable::Is(list) = &self.visible else {
            return true;
        };
        list.split(',').map(str::trim).any(|word| {
            let is_number = word.parse() == Ok(gpu.index);
            is_number || (word.starts_with("GPU-") && gpu.uuid.starts_with(word))
        })
    }

    /// True if it serves the device with that name.
    pub fn serves_device(&self, name: &str) -> bool {
        self.devices.iter().any(|device| device == name)
    }

    /// True if it is a daemon, and not a server without one.
    pub fn is_daemon(&self) -> bool {
        self.program == MpsProgram::Control
    }

    /// True if it is a daemon whose environment the caller may not read.
    pub fn is_hidden(&self) -> bool {
        self.is_daemon() && self.pipe_directory == Variable::Hidden
    }

    /// Returns the command by which its owner ends it; `None` if its pipe directory is hidden. The owner chose the
    /// directory: none is returned that a shell would interpret.
    pub fn quit_command(&self) -> Option<String> {
        let pipe = match &self.pipe_directory {
            Variable::Hidden => return None,
            Variable::Unset => DEFAULT_PIPE_DIRECTORIES[0],
            Variable::Is(pipe) => pipe,
        };
        is_shell_safe(pipe)
            .then(|| format!("echo quit | CUDA_MPS_PIPE_DIRECTORY={pipe} nvidia-cuda-mps-control"))
    }

    /// Returns the command by which root runs `mig-mps COMMAND` as the daemon's owner, if the pipe directory is named
    /// like one of mig-mps. The owner chose both names: none is returned that a shell would interpret.
    pub fn command_as_owner(&self, command: &str) -> Option<String> {
        let user = self.user.filter(|user| *user != caller()).map(user_name)?;
        let run_dir = Path::new(self.pipe_directory.value()?).parent()?.parent()?;
        let runtime = run_dir.parent()?.to_str()?;
        let is_of_mig_mps = run_dir.file_name()? == "mig-mps";
        (is_of_mig_mps && is_shell_safe(runtime) && is_shell_safe(&user)).then(|| {
            format!("runuser -u {user} -- env XDG_RUNTIME_DIR={runtime} mig-mps {command}")
        })
    }

    /// True if it was started with every GPU of the node visible.
    pub fn sees_every_gpu(&self) -> bool {
        self.is_daemon() && self.visible == Variable::Unset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(pipe_directory: Variable, visible: Variable) -> Unmanaged {
        Unmanaged {
            program: MpsProgram::Control,
            pid: Pid(1),
            user: None,
            command: String::new(),
            supervisor: None,
            has_company: false,
            is_elsewhere: false,
            age: None,
            pipe_directory,
            is_orphan: false,
            visible,
            devices: Vec::new(),
            servers: Vec::new(),
        }
    }

    #[test]
    fn the_default_directories_are_known_and_hidden_ones_are_not_guessed() {
        let is_at_default = |pipe: Variable| daemon(pipe, Variable::Unset).uses_default_pipe_dir();
        let at = |path: &str| is_at_default(Variable::Is(path.to_owned()));
        assert!(is_at_default(Variable::Unset));
        assert!(at("/tmp/nvidia-mps") && at("/tmp/nvidia-mps/") && at("/run/nvidia-mps"));
        assert!(!at("/tmp/nvidia-mps-0"));
        assert!(!is_at_default(Variable::Hidden));
        assert!(daemon(Variable::Unset, Variable::Unset).sees_every_gpu());
        assert!(!daemon(Variable::Unset, Variable::Hidden).sees_every_gpu());
    }
}
