//! The devices of `run --private`, each with a daemon that runs for its programs alone. The programs of a job step on this
//! node share it: the first one starts the process that keeps the daemon, and the others find it by the name of a socket.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::keeper::{Answer, end_left, peer};
use crate::error::{CommandError, Result, failed};
use crate::failure::ExitStatus;
use crate::host::{Environment, KEEP, bounded, caller, clean_command, run_as, user_name};
use crate::node::{Device, Node, Served, observe_records};

/// The time that a daemon may take to start: where many start at once, each waits for the others.
const START_LIMIT: Duration = Duration::from_secs(150);

/// The time that a daemon may take to end.
const END_LIMIT: Duration = Duration::from_secs(15);

/// The pause between two attempts to find the keeper, which has to start.
const PAUSE: Duration = Duration::from_millis(10);

/// The time that a keeper may take to be found.
const KEEPER_LIMIT: Duration = Duration::from_secs(10);

/// The keepers of a device that may end while a program joins.
const ATTEMPTS: usize = 10;

/// A device with a private daemon, which goes on until the value is dropped.
pub(super) struct PrivateDevice {
    /// The environment in which the daemon is found.
    pub(super) environment: Environment,
    /// A node of the daemon's record alone.
    pub(super) node: Node,
    pub(super) served: Served,
    connection: UnixStream,
    directory: PathBuf,
    lock: File,
}

impl PrivateDevice {
    /// Joins the programs on these devices, whose daemons start side by side if they do not run.
    pub(super) fn join(environment: &Environment, devices: &[&Device]) -> Result<Vec<Self>> {
        devices
            .iter()
            .try_for_each(|device| refuse_served(device))?;
        let until = Instant::now() + START_LIMIT;
        let mut joining = Vec::new();
        for device in devices {
            joining.push(connect(environment, device, until)?);
        }
        let joining = devices.iter().zip(joining);
        joining
            .map(|(device, connection)| Self::joined(environment, device, connection, until))
            .collect()
    }

    /// Waits for the daemon. A keeper that is about to end does not answer, and another one takes its place.
    fn joined(
        environment: &Environment,
        device: &Device,
        mut connection: UnixStream,
        until: Instant,
    ) -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let answer = read(&connection, until).map_err(|_| late(device))?;
            if let Some(answer) = answer {
                let directory = answer.directory()?;
                return Self::in_directory(environment, device, connection, directory);
            }
            connection = connect(environment, device, until)?;
        }
        Err(failed(format_args!(
            "the processes that are to keep the daemon of {} end at once",
            device.name
        ))
        .hint("the kernel's log may say who ends them"))
    }

    fn in_directory(
        environment: &Environment,
        device: &Device,
        connection: UnixStream,
        directory: PathBuf,
    ) -> Result<Self> {
        let lock = File::open(&directory)?;
        lock.lock_shared()?;
        let environment = environment.within(&directory);
        let node = observe_records(&environment)?;
        let served = node.served().next().cloned();
        let served = served.ok_or_else(|| {
            failed(format_args!(
                "the private daemon of {} has ended already",
                device.name
            ))
            .hint("run it again")
        })?;
        Ok(Self {
            environment,
            node,
            served,
            connection,
            directory,
            lock,
        })
    }
}

impl Drop for PrivateDevice {
    /// Leaves the device, and waits for the end of the daemon if no other program uses it. A keeper that was killed has
    /// left that to the last program.
    fn drop(&mut self) {
        let _ = self.connection.shutdown(Shutdown::Write);
        let _ = self.connection.set_read_timeout(Some(END_LIMIT));
        let _ = self.connection.read(&mut [0]);
        let _ = self.lock.unlock();
        if self.directory.exists() {
            end_left(&self.environment, &self.directory);
        }
    }
}

/// Refuses a device that a daemon of mig-mps serves.
fn refuse_served(device: &Device) -> Result<()> {
    let Some(served) = device.alive() else {
        return Ok(());
    };
    let (name, run_dir) = (&device.name, served.run_dir.path().display());
    let what = format!("{name} is served by a daemon of {run_dir} already");
    let hint =
        format!("mig-mps run {name} uses that one; --private is for devices without a daemon");
    Err(CommandError::new(ExitStatus::Refused, what).hint(hint))
}

/// The variables of the caller that the keeper gets, beside those of mig-mps: by these it finds programs, libraries and
/// directories.
const KEPT: [&str; 5] = [
    "HOME",
    "LD_LIBRARY_PATH",
    "PATH",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// Connects to the process that keeps the device's daemon for the caller's job step. Starts one if there is none.
fn connect(environment: &Environment, device: &Device, until: Instant) -> Result<UnixStream> {
    let socket = socket(device);
    let mut started: Option<Instant> = None;
    loop {
        let is_crowded = match connect_at_once(&socket) {
            Ok(connection) => {
                refuse_stranger(device, &connection)?;
                return Ok(connection);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Err(error) => return Err(error.into()),
        };
        if Instant::now() >= until {
            return Err(late(device));
        }
        if !is_crowded && started.is_none_or(|started| started.elapsed() > KEEPER_LIMIT) {
            start_keeper(environment, device, &socket)?;
            started = Some(Instant::now());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Connects, or fails at once: a process of another user that takes no connections could hold this one up for ever.
fn connect_at_once(socket: &str) -> io::Result<UnixStream> {
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
    let named = std::env::current_exe().ok().filter(|path| path.exists());
    let program = named.as_ref().unwrap_or(&environment.helper);
    let mut keeper = clean_command(program, &KEPT);
    keeper.envs(environment.named_paths());
    keeper.args([
        KEEP,
        "--device",
        &device.uuid,
        "--socket",
        socket,
        "--apart",
    ]);
    let name = "the process that keeps a private daemon".to_owned();
    let output = run_as(name, &keeper, "", KEEPER_LIMIT)?;
    if output.status.success() {
        return Ok(());
    }
    let said = bounded(output.stderr.trim()).into_owned();
    Err(failed(format_args!(
        "the process that keeps a private daemon does not start: {said}"
    )))
}

/// Returns the name of the socket: programs of one user, one job step and one device meet there.
fn socket(device: &Device) -> String {
    let number = |name| {
        let value = std::env::var(name).ok();
        let number: Option<u64> = value.and_then(|value| value.parse().ok());
        number.map_or_else(|| "-".to_owned(), |number| number.to_string())
    };
    let [job, step] = ["SLURM_JOB_ID", "SLURM_STEP_ID"].map(number);
    format!("mig-mps {} {job}.{step} {}", caller(), device.uuid)
}

/// Refuses a socket of another user, who has taken its name.
fn refuse_stranger(device: &Device, connection: &UnixStream) -> Result<()> {
    let (user, pid) = peer(connection)?;
    if user == caller() {
        return Ok(());
    }
    let (name, user) = (&device.name, user_name(user));
    Err(failed(format_args!(
        "pid {pid} of {user} has the socket by which programs find the private daemon of {name}"
    ))
    .hint("tell the administrator: that process does nothing else"))
}

fn late(device: &Device) -> CommandError {
    let seconds = START_LIMIT.as_secs();
    failed(format_args!(
        "the private daemon of {} did not start within {seconds} s",
        device.name
    ))
    .hint("mig-mps doctor finds out why MPS does not work")
}

/// Reads the keeper's answer; `None` if it ends without one.
fn read(connection: &UnixStream, until: Instant) -> io::Result<Option<Answer>> {
    let limit = until.saturating_duration_since(Instant::now());
    connection.set_read_timeout(Some(limit.max(PAUSE)))?;
    let mut text = String::new();
    match BufReader::new(connection).read_line(&mut text) {
        Ok(_) => Ok(serde_json::from_str(&text).ok()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::keeper::address;
    use super::*;

    #[test]
    fn a_socket_that_takes_no_more_holds_nobody_up() {
        let name = format!("mig-mps test {}", std::process::id());
        let listener = UnixListener::bind_addr(&address(&name).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut taken = Vec::new();
        let refused = loop {
            match connect_at_once(&name) {
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
