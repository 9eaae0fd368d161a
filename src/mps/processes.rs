//! The MPS processes of a pipe directory, found through /proc; the lock of a daemon; daemons without a record.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Flock, FlockType, fcntl_getlk};
use serde::Serialize;

use super::daemon::{LOCK_FILE, PID_FILE};
use super::launch::MULTIUSER;
use super::{Daemon, LaunchRequest, MpsError};
use crate::config::{CONTROL_PROGRAM, MPS_PROGRAM_PREFIX, SERVER_PROGRAM};
use crate::host::{
    Directory, FileResult, Host, Pid, Process, ProcessHandle, ProcessTable, Uid, caller,
    end_processes,
};

/// The two programs of NVIDIA's MPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MpsProgram {
    /// A control daemon or a control session.
    Control,
    Server,
}

impl MpsProgram {
    /// True if a process runs one of the programs, even if it is exiting and no longer shows which one.
    pub fn is_mps_process(process: &Process) -> bool {
        process.name.starts_with(MPS_PROGRAM_PREFIX)
    }

    /// Returns the program that a process runs.
    pub fn from_process(process: &Process) -> Option<Self> {
        if !Self::is_mps_process(process) {
            return None;
        }
        match process.program_name().as_str() {
            CONTROL_PROGRAM => Some(Self::Control),
            SERVER_PROGRAM => Some(Self::Server),
            _ => None,
        }
    }
}

/// True if a process is a control daemon and not a session, which reads commands and exits.
pub fn is_daemon(process: &Process) -> bool {
    MpsProgram::from_process(process) == Some(MpsProgram::Control)
        && process
            .arguments()
            .iter()
            .any(|word| is_daemon_option(word))
}

/// True for an option that makes the control program a daemon, which it knows by each beginning.
fn is_daemon_option(argument: &str) -> bool {
    let option = argument.trim_start_matches('-');
    let is_option = argument.starts_with('-') && !option.is_empty();
    let names = ["daemon", "foreground", "forground"];
    is_option && names.iter().any(|name| name.starts_with(option))
}

pub(super) fn is_server(process: &Process) -> bool {
    MpsProgram::from_process(process) == Some(MpsProgram::Server)
}

/// Returns the servers of a daemon.
pub fn servers_of<'t>(
    table: &'t ProcessTable,
    daemon: &Process,
) -> impl Iterator<Item = &'t Process> + use<'t> {
    table.children(daemon.pid).filter(|child| is_server(child))
}

/// Returns the table of the MPS processes of a node.
pub fn read_mps_table(host: &Host) -> FileResult<ProcessTable> {
    host.read_processes_named(MPS_PROGRAM_PREFIX)
}

/// The MPS processes of a node at one moment, by the pipe directories with which they were started. One pass over the
/// processes of the node finds those of all devices.
#[derive(Debug)]
pub struct MpsProcesses {
    /// The key is `None` for processes whose pipe directory is unset or could not be read: it may be any directory.
    by_pipe: BTreeMap<Option<PathBuf>, Vec<Process>>,
}

impl MpsProcesses {
    pub fn read(host: &Host) -> FileResult<Self> {
        Ok(Self::from_table(&read_mps_table(host)?))
    }

    /// Sorts the processes of a table.
    pub fn from_table(table: &ProcessTable) -> Self {
        let mut by_pipe: BTreeMap<Option<PathBuf>, Vec<Process>> = BTreeMap::new();
        for process in table.iter() {
            let pipe = process.environment_bytes(PIPE_VARIABLE);
            by_pipe
                .entry(pipe.map(PathBuf::from))
                .or_default()
                .push(process.clone());
        }
        Self { by_pipe }
    }

    /// Returns the processes that may belong to a pipe directory.
    fn candidates(&self, pipe: &Path) -> impl Iterator<Item = &Process> {
        let here = self.by_pipe.get(&Some(pipe.to_owned()));
        let anywhere = self.by_pipe.get(&None);
        here.into_iter().chain(anywhere).flatten()
    }
}

const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// The beginning of the names of the programs of mig-mps.
const PROGRAM_PREFIX: &str = "mig-mps";

/// What the control programs of mig-mps have in their environment, and those of others do not.
pub(super) const PROTOCOL_VARIABLE: &str = "CUDA_MPS_PROTOCOL_VERSION";
pub(super) const PROTOCOL_VERSION: &str = "2";

impl Daemon {
    /// True if a process is a daemon of this pipe directory that runs as `owner`.
    pub(super) fn is_daemon_here(&self, process: &Process, owner: Uid) -> bool {
        process.owner() == Some(owner) && is_daemon(process) && uses_pipe_dir(process, &self.pipe)
    }

    /// Returns the daemons of this pipe directory that run as `owner`, among these processes and by the directory's lock.
    fn daemons_here(&self, host: &Host, processes: &MpsProcesses, owner: Uid) -> Vec<Process> {
        // Another process may have the pid of one that has ended since they were read.
        let is_current = |process: &&Process| {
            let now = host.find_process(process.pid);
            now.is_some_and(|now| now.started == process.started)
        };
        let mut daemons: Vec<Process> = processes
            .candidates(&self.pipe)
            .filter(is_current)
            .cloned()
            .collect();
        // A daemon that has started since then holds the lock.
        if let LockHolder::Process(pid) = self.lock_holder()
            && daemons.iter().all(|known| known.pid != pid)
        {
            daemons.extend(host.find_process(pid));
        }
        daemons.retain(|process| self.is_daemon_here(process, owner));
        daemons
    }

    /// Returns the servers of this pipe directory among these processes.
    pub(super) fn servers_here<'p>(
        &self,
        processes: &'p MpsProcesses,
    ) -> impl Iterator<Item = &'p Process> {
        processes
            .candidates(&self.pipe)
            .filter(|process| is_server(process) && uses_pipe_dir(process, &self.pipe))
    }

    /// Returns the number of daemons of this pipe directory that run as `owner`, and of servers in it, among these processes.
    pub fn count_processes(&self, host: &Host, processes: &MpsProcesses, owner: Uid) -> usize {
        let daemons = self.daemons_here(host, processes, owner);
        daemons.len() + self.servers_here(processes).count()
    }

    /// Ends the unrecorded processes of this pipe directory, among these processes and by the directory's lock. With
    /// `spares_clients`, a daemon that has some, or does not tell, is an error.
    pub fn end_unrecorded(
        &self,
        host: &Host,
        processes: &MpsProcesses,
        owner: Uid,
        spares_clients: bool,
    ) -> Result<(), MpsError> {
        if spares_clients {
            for daemon in self.daemons_here(host, processes, owner) {
                self.check_no_clients(host, &daemon)?;
            }
        }
        self.check_all_ended(&self.end_mps_processes(host, processes, owner)?)
    }

    /// Ends the daemons of this pipe directory that run as `owner`, and then all servers in it. Returns those that the
    /// kernel does not end.
    pub(super) fn end_mps_processes(
        &self,
        host: &Host,
        processes: &MpsProcesses,
        owner: Uid,
    ) -> FileResult<Vec<Pid>> {
        let end_servers = |processes: &MpsProcesses| {
            let servers = open_processes(host, self.servers_here(processes))?;
            Ok(end_processes(&servers))
        };
        let daemons = self.daemons_here(host, processes, owner);
        if daemons.is_empty() {
            return end_servers(processes);
        }
        let mut unended = end_processes(&open_processes(host, &daemons)?);
        // A daemon may have started a server until it ended.
        unended.extend(end_servers(&MpsProcesses::read(host)?)?);
        Ok(unended)
    }

    /// Ends control sessions that commands of mig-mps have left here because they were killed: a `quit` that waits for clients
    /// lets no other session in. The daemon carries it out all the same. The session of a command that runs is spared: half of
    /// an answer would be an error there.
    pub fn end_left_sessions(&self, host: &Host, owner: Uid) -> FileResult<()> {
        let processes = MpsProcesses::read(host)?;
        let is_session = |process: &&Process| {
            let protocol = process.environment_bytes(PROTOCOL_VARIABLE);
            process.owner() == Some(owner)
                && MpsProgram::from_process(process) == Some(MpsProgram::Control)
                && process.arguments().iter().all(String::is_empty)
                && protocol.is_some_and(|version| version == PROTOCOL_VERSION)
                && uses_pipe_dir(process, &self.pipe)
                && !has_running_command(host, process)
        };
        let left = processes.candidates(&self.pipe).filter(is_session);
        end_processes(&open_processes(host, left)?);
        Ok(())
    }

    /// Asks the kernel for the holder of the lock. Opens no control session, takes no lock and adds nothing to the logs.
    pub fn lock_holder(&self) -> LockHolder {
        use io::ErrorKind::{CrossesDevices, NotADirectory, NotFound};
        let holder = self.pipe_directory().and_then(|pipe| match pipe {
            Some(pipe) => query_lock_holder(&pipe),
            None => Ok(LockHolder::Nobody),
        });
        holder.unwrap_or_else(|error| match error.kind() {
            // Something else is in its place: a file, or a file system that is mounted there.
            CrossesDevices | NotADirectory | NotFound => LockHolder::Nobody,
            _ => LockHolder::Hidden,
        })
    }

    /// Returns the unrecorded daemon in the directory if it fits the options. Stops all others of the caller.
    pub(super) fn adopt_unrecorded(
        &self,
        host: &Host,
        processes: &MpsProcesses,
        wanted: &LaunchRequest,
    ) -> Result<Option<Process>, MpsError> {
        let daemons = self.daemons_here(host, processes, caller());
        if let [one] = daemons.as_slice() {
            let device = one.environment_bytes("CUDA_VISIBLE_DEVICES");
            if device.is_some_and(|device| device == wanted.visible.as_str())
                && one.command_line().contains(MULTIUSER) == wanted.multiuser
                && self.has_socket()
                && self.lock_holder() == LockHolder::Process(one.pid)
            {
                return Ok(Some(one.clone()));
            }
            self.check_no_clients(host, one)?;
        }
        let unended = end_processes(&open_processes(host, &daemons)?);
        if unended.is_empty() {
            return Ok(None);
        }
        Err(self.error_with_logs(format!(
            "unrecorded daemons run in {} and do not exit: {}",
            self.pipe.display(),
            format_pids(&unended)
        )))
    }

    /// Returns an error if a daemon has clients, or if it has a server and does not tell its clients.
    pub(super) fn check_no_clients(&self, host: &Host, daemon: &Process) -> Result<(), MpsError> {
        let table = read_mps_table(host)?;
        let servers: Vec<Pid> = servers_of(&table, daemon)
            .map(|server| server.pid)
            .collect();
        let status = match self.query_status(
            &servers,
            false,
            CLIENT_QUERY_TIMEOUT,
            CLIENT_QUERY_TIMEOUT,
        ) {
            Ok(status) => status,
            Err(_) if servers.is_empty() => return Ok(()),
            Err(error) => {
                return Err(self.error_with_logs(format!(
                    "an unrecorded daemon, pid {}, has other settings in {} and may have clients, for which it cannot \
                     be asked: {error}",
                    daemon.pid,
                    self.pipe.display(),
                )));
            }
        };
        let clients: Vec<Option<Pid>> = status
            .servers
            .into_iter()
            .flat_map(|server| server.clients)
            .collect();
        if clients.is_empty() {
            return Ok(());
        }
        let mut pids: Vec<String> = clients.iter().flatten().map(Pid::to_string).collect();
        let hidden = clients.len() - pids.len();
        pids.extend((hidden > 0).then(|| format!("{hidden} hidden")));
        Err(self.error_with_logs(format!(
            "an unrecorded daemon, pid {}, has other settings in {} and has clients: {}",
            daemon.pid,
            self.pipe.display(),
            pids.join(", ")
        )))
    }

    /// Describes a process that holds the lock and is not our daemon. Its lock does no harm: the file is removed next.
    pub(super) fn foreign_lock_holder(&self, host: &Host) -> Option<String> {
        let pipe = self.pipe.display();
        match self.lock_holder() {
            LockHolder::Nobody => None,
            LockHolder::Hidden => Some(format!(
                "a process that cannot be seen from here held the lock in {pipe}"
            )),
            LockHolder::Process(pid) => {
                let process = host.find_process(pid)?;
                // A dead daemon leaves its pid file.
                let holds =
                    !self.is_daemon_here(&process, caller()) && process.owner() != Some(Uid::ROOT);
                // A failed start is recorded with this, for every user to read: whose process it is stays out.
                holds.then(|| format!("pid {pid} held the lock in {pipe}"))
            }
        }
    }
}

/// True if the command of mig-mps that has started a process still runs.
fn has_running_command(host: &Host, process: &Process) -> bool {
    let parent = host.find_process(process.parent);
    parent.is_some_and(|parent| parent.name.starts_with(PROGRAM_PREFIX))
}

/// Opens the processes that are still there.
pub(super) fn open_processes<'p>(
    host: &Host,
    processes: impl IntoIterator<Item = &'p Process>,
) -> FileResult<Vec<ProcessHandle>> {
    processes
        .into_iter()
        .filter_map(|process| host.open_process(process.pid, process.started).transpose())
        .collect()
}

/// True if a process was started with this pipe directory.
pub fn uses_pipe_dir(process: &Process, pipe: &Path) -> bool {
    process
        .environment_bytes(PIPE_VARIABLE)
        .is_some_and(|value| Path::new(&value) == pipe)
}

/// Lists pids for a message.
pub(super) fn format_pids(pids: &[Pid]) -> String {
    let pids: Vec<String> = pids.iter().map(|pid| format!("pid {pid}")).collect();
    pids.join(", ")
}

/// The holder of the lock of a daemon's pipe directory.
///
/// It shows that a start is complete, and reveals an unrecorded daemon. It does not prove that a recorded daemon is
/// alive: in a user's directory the user may hold any lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHolder {
    Nobody,
    /// A process, or the one in the daemon's pid file.
    Process(Pid),
    /// A process in another pid namespace, or it cannot be read.
    Hidden,
}

fn query_lock_holder(pipe: &Directory) -> FileResult<LockHolder> {
    let Some(file) = pipe.open_file(LOCK_FILE)? else {
        // From driver 615 on the daemon locks its pid file with flock(2). Such a lock can only be tested by taking it,
        // which would disturb a start.
        return read_pid_file(pipe);
    };
    let Some(lock) = fcntl_getlk(file, &Flock::from(FlockType::WriteLock))? else {
        return Ok(LockHolder::Nobody);
    };
    Ok(match lock.pid.map(|pid| pid.as_raw_nonzero().get()) {
        Some(pid) if pid > 0 => LockHolder::Process(Pid(pid.unsigned_abs())),
        _ => LockHolder::Hidden,
    })
}

fn read_pid_file(pipe: &Directory) -> FileResult<LockHolder> {
    /// More digits than the largest pid has.
    const MAX_PID_DIGITS: u64 = 16;
    let Some(file) = pipe.open_file(PID_FILE)? else {
        return Ok(LockHolder::Nobody);
    };
    let mut text = String::new();
    file.take(MAX_PID_DIGITS).read_to_string(&mut text)?;
    let pid = text.trim().parse().map(Pid);
    Ok(pid.map_or(LockHolder::Nobody, LockHolder::Process))
}

/// The time that an unrecorded daemon may take to list its clients.
const CLIENT_QUERY_TIMEOUT: Duration = Duration::from_secs(2);
