//! The devices of `run --private`, each with a daemon that runs for its programs alone. The programs of a job on this node
//! share it: the first one starts the process that keeps the daemon, and the others find it by the name of a socket.

mod daemon;
mod joint;
mod keeper;

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use self::daemon::{end_leftover, end_processes};
use self::keeper::{KeeperAnswer, peer_credentials};
use crate::error::{CommandError, Result, command_error};
use crate::failure::ExitStatus;
use crate::host::{
    Environment, FileResult, Host, KEEP, Pid, Process, caller, clean_command, run_with_name,
    shorten_command, user_name,
};
use crate::node::{Device, Node, Served, observe_records};
use crate::render::warn;
use crate::state::{JobRecord, RunDir};

pub use daemon::parent_directories;
pub use joint::joint_device;
pub use keeper::KeepArgs;

/// The time that a daemon may take to start: where many start at once, each waits for the others.
const START_TIMEOUT: Duration = Duration::from_secs(150);

/// The time that a daemon may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// The pause between two attempts to find the keeper, which has to start.
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);

/// The time that a keeper may take to be found.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(10);

/// The time after which the state of a keeper that does not answer is read again.
const STATE_INTERVAL: Duration = Duration::from_millis(500);

/// The number of times in a row that a keeper must be found stopped: when a job that was stopped goes on, its processes do so
/// one after the other.
const MAX_STOPPED_READINGS: usize = 4;

/// The keepers of a device that may end while a program joins.
const MAX_KEEPERS: usize = 10;

/// A device with a private daemon, which goes on until the value is dropped.
pub struct PrivateDevice {
    /// The environment in which the daemon is found.
    pub environment: Environment,
    /// A node of the daemon's record alone.
    pub node: Node,
    pub served: Served,
    keeper: KeeperConnection,
    directory: PathBuf,
    lock: File,
}

impl PrivateDevice {
    /// Joins the programs on these devices, whose daemons start side by side if they do not run. `free` is a device that can be
    /// used instead of one that is served.
    pub fn join_all(
        environment: &Environment,
        devices: &[&Device],
        free: Option<&Device>,
    ) -> Result<Vec<Self>> {
        devices
            .iter()
            .try_for_each(|device| check_not_served(device, free))?;
        let until = Instant::now() + START_TIMEOUT;
        let mut joining = Vec::new();
        for device in devices {
            joining.push(connect_to_keeper(environment, device, until)?);
        }
        let joining = devices.iter().zip(joining);
        joining
            .map(|(device, keeper)| Self::wait_for_daemon(environment, device, keeper, until))
            .collect()
    }

    /// Waits for the daemon. A keeper that is about to end does not answer, and another one takes its place.
    fn wait_for_daemon(
        environment: &Environment,
        device: &Device,
        mut keeper: KeeperConnection,
        until: Instant,
    ) -> Result<Self> {
        for _ in 0..MAX_KEEPERS {
            let text = keeper
                .read_answer(until)
                .map_err(|silence| silence.into_error(device))?;
            if let Ok(answer) = serde_json::from_str::<KeeperAnswer>(&text) {
                let directory = answer.into_directory()?;
                return Self::in_directory(environment, device, keeper, directory);
            }
            keeper = connect_to_keeper(environment, device, until)?;
        }
        Err(command_error(format_args!(
            "the processes that keep the daemon of device {} exit at once",
            device.name
        ))
        .with_hint("search the kernel log for the process that ends them"))
    }

    fn in_directory(
        environment: &Environment,
        device: &Device,
        keeper: KeeperConnection,
        directory: PathBuf,
    ) -> Result<Self> {
        let is_gone = || {
            let (name, path) = (&device.name, directory.display());
            if keeper.is_elsewhere(&directory) {
                return command_error(format_args!(
                    "cannot join the programs on device {name}: the mount namespace of this program (a container) \
                     does not have the directory of their daemon, {path}"
                ))
                .with_hint("set TMPDIR to a directory that is visible to all programs of the job");
            }
            command_error(format_args!(
                "cannot join the programs on device {name}: the directory of their daemon, {path}, was removed or \
                 emptied"
            ))
            .with_hint(format!(
                "wait until these programs have exited, then run the program again; let no script remove {path} while \
                 they run"
            ))
        };
        let lock = File::open(&directory).map_err(|_| is_gone())?;
        lock.lock_shared()?;
        let environment = environment.with_directory(&directory);
        let node = observe_records(&environment)?;
        let served = node.served().next().cloned().ok_or_else(is_gone)?;
        Ok(Self {
            environment,
            node,
            served,
            keeper,
            directory,
            lock,
        })
    }
}

impl Drop for PrivateDevice {
    /// Leaves the device, and waits for the end of the daemon if no other program uses it. A keeper that was killed has
    /// left that to the last program.
    fn drop(&mut self) {
        let _ = self.keeper.stream.shutdown(Shutdown::Write);
        if let Err(Silence::Stopped(pid)) = self.keeper.read_answer(Instant::now() + END_TIMEOUT) {
            warn(&format!(
                "the private daemon of device {0} continues, because pid {pid}, which should end it, is stopped; to \
                 resume it, run `kill -CONT {pid}`",
                self.served.record.name
            ));
        }
        // The lock of a directory that is gone still tells whether others use the daemon.
        let is_last = self.lock.try_lock().is_ok();
        let _ = self.lock.unlock();
        if !is_last {
            return;
        }
        if self.directory.exists() {
            end_leftover(&self.environment, &self.directory);
        }
        let record = &self.served.record;
        let daemon = record.daemon;
        if daemon.is_some_and(|daemon| daemon.find_process(&self.environment.host).is_some()) {
            end_processes(&self.environment, &self.directory, &record.uuid);
        }
    }
}

/// A connection with the process that keeps a daemon. The daemon goes on until all are closed.
struct KeeperConnection {
    stream: UnixStream,
    /// The process id of the keeper.
    pid: Pid,
}

/// The reason why a keeper does not answer.
enum Silence {
    Late,
    Stopped(Pid),
}

impl Silence {
    fn into_error(self, device: &Device) -> CommandError {
        let name = &device.name;
        match self {
            Self::Late => start_timeout_error(device),
            Self::Stopped(pid) => command_error(format_args!(
                "cannot join the programs on device {name}: pid {pid}, which keeps their private daemon, is stopped"
            ))
            .with_hint(format!("run `kill -CONT {pid}` to resume it")),
        }
    }
}

impl KeeperConnection {
    /// Reads a line; what comes before the end of the connection if there is none.
    fn read_answer(&self, until: Instant) -> Result<String, Silence> {
        let mut reader = BufReader::new(&self.stream);
        let mut text = String::new();
        let mut stops = 0;
        while Instant::now() < until {
            let _ = self.stream.set_read_timeout(Some(STATE_INTERVAL));
            match reader.read_line(&mut text) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => return Ok(text),
            }
            stops = if self.is_keeper_stopped() {
                stops + 1
            } else {
                0
            };
            if stops == MAX_STOPPED_READINGS {
                return Err(Silence::Stopped(self.pid));
            }
        }
        Err(Silence::Late)
    }

    fn is_keeper_stopped(&self) -> bool {
        find_process(self.pid).is_some_and(|keeper| keeper.is_stopped)
    }

    /// True if this path leads to another place for the keeper.
    fn is_elsewhere(&self, directory: &Path) -> bool {
        let own = Pid(std::process::id());
        let [own, keepers] = [own, self.pid].map(|pid| find_process(pid)?.directory_at(directory));
        own.zip(keepers)
            .is_some_and(|(own, keepers)| own != keepers)
    }
}

/// Returns a process by its id on the machine, which the kernel tells whatever a test shows below another root.
fn find_process(pid: Pid) -> Option<Process> {
    Host::at(Path::new("/")).find_process(pid)
}

/// Refuses a device that a daemon of mig-mps serves.
fn check_not_served(device: &Device, free: Option<&Device>) -> Result<()> {
    let Some(served) = device.live_daemon() else {
        return Ok(());
    };
    let (name, run_dir) = (&device.name, served.run_dir.path().display());
    let what = format!("device {name} is already served by a daemon of {run_dir}");
    let hint = match free {
        Some(free) => format!(
            "run `CUDA_VISIBLE_DEVICES={} mig-mps run --private -- PROGRAM` to use device {}, which is free; or run \
             `mig-mps run {name}` to use the daemon of device {name}",
            free.uuid, free.name
        ),
        None => format!(
            "run `mig-mps run {name}` to use that daemon; --private is for devices without a daemon"
        ),
    };
    Err(CommandError::new(ExitStatus::Refused, what).with_hint(hint))
}

/// The variables of the caller that the keeper gets, beside those of mig-mps: by these it finds programs, libraries and
/// directories.
const KEPT_VARIABLES: [&str; 5] = [
    "HOME",
    "LD_LIBRARY_PATH",
    "PATH",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// Connects to the process that keeps the device's daemon for the caller's job. Starts one if there is none.
fn connect_to_keeper(
    environment: &Environment,
    device: &Device,
    until: Instant,
) -> Result<KeeperConnection> {
    let socket = socket_name(environment, device);
    let mut started: Option<Instant> = None;
    loop {
        let is_crowded = match connect_without_waiting(&socket) {
            Ok(stream) => {
                let pid = check_keeper_user(device, &stream)?;
                return Ok(KeeperConnection { stream, pid });
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Err(error) => return Err(error.into()),
        };
        if Instant::now() >= until {
            return Err(start_timeout_error(device));
        }
        if !is_crowded && started.is_none_or(|started| started.elapsed() > KEEPER_TIMEOUT) {
            start_keeper(environment, device, &socket)?;
            started = Some(Instant::now());
        }
        std::thread::sleep(CONNECT_INTERVAL);
    }
}

/// Connects, or fails at once: a process of another user that takes no connections could block this process forever.
fn connect_without_waiting(socket: &str) -> FileResult<UnixStream> {
    let address = SocketAddrUnix::new_abstract_name(socket.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&connection, &address)?;
    let connection = UnixStream::from(connection);
    connection.set_nonblocking(false)?;
    Ok(connection)
}

/// Starts a process that keeps the device's daemon.
fn start_keeper(environment: &Environment, device: &Device, socket: &str) -> Result<()> {
    // By its name in lists of processes, unless its file was replaced.
    let program = std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| environment.helper.clone());
    let mut keeper = clean_command(&program, &KEPT_VARIABLES);
    keeper.envs(environment.named_paths());
    keeper.args([
        KEEP,
        "--device",
        &device.driver_uuids().join(","),
        "--socket",
        socket,
        "--first",
        &std::process::id().to_string(),
        "--apart",
    ]);
    let name = "the process that keeps a private daemon".to_owned();
    let output = run_with_name(name, &keeper, "", KEEPER_TIMEOUT)?;
    if output.status.success() {
        return Ok(());
    }
    let said = shorten_command(output.stderr.trim()).into_owned();
    Err(command_error(format_args!(
        "the process that keeps a private daemon did not start: {said}"
    )))
}

/// Returns the name of the socket: programs of one user, one pid namespace, one job and one device meet there. A daemon ends
/// with its pid namespace, such as that of a container, and its process is not seen in another one.
fn socket_name(environment: &Environment, device: &Device) -> String {
    let host = &environment.host;
    let namespace = host.pid_namespace().unwrap_or_default();
    let boot_id = host.boot_id().unwrap_or_default();
    let recorded = JobRecord::load_all(&RunDir::at(&environment.roots_run_dir()), &boot_id);
    let recorded: Vec<String> = recorded.into_iter().map(|job| job.control_group).collect();
    let job = host.own_job(&recorded, |name| std::env::var_os(name));
    let job = job.as_deref().unwrap_or("-");
    format!("mig-mps {} {namespace} {job} {}", caller(), device.uuid)
}

/// Refuses a socket of another user, who has taken its name. Returns the process id of the keeper.
fn check_keeper_user(device: &Device, stream: &UnixStream) -> Result<Pid> {
    let (user, pid) = peer_credentials(stream)?;
    if user == caller() {
        return Ok(pid);
    }
    let (name, user) = (&device.name, user_name(user));
    Err(command_error(format_args!(
        "pid {pid} of {user} has the socket of the private daemon of device {name}"
    ))
    .with_hint("ask the administrator to end that process"))
}

fn start_timeout_error(device: &Device) -> CommandError {
    let seconds = START_TIMEOUT.as_secs();
    command_error(format_args!(
        "the private daemon of device {} did not start within {seconds} s",
        device.name
    ))
    .with_hint("run `mig-mps doctor` to find out why MPS does not work")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::keeper::socket_address;
    use super::*;

    #[test]
    fn a_socket_that_takes_no_more_holds_nobody_up() {
        let name = format!("mig-mps test {}", std::process::id());
        let listener = UnixListener::bind_addr(&socket_address(&name).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut taken = Vec::new();
        let refused = loop {
            match connect_without_waiting(&name) {
                Ok(connection) => taken.push(connection),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        // The others go on.
        let (mut member, _) = listener.accept().unwrap();
        drop(taken);
        assert_eq!(member.read(&mut [0]).unwrap(), 0);
    }
}
