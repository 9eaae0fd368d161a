//! Starts a control daemon in a closed pipe directory, and opens that once the daemon is complete.

use std::time::{Duration, Instant};

use super::invocation::{DaemonTask, Task};
use super::log::cuda_error;
use super::processes::{list_pids, serves_in};
use super::{Access, Daemon, LaunchOptions, LockHolder, MAX_PIPE_DIR, MpsError};
use crate::host::{Host, Output, Process, RunError, Uid, caller, user_name};

/// The time that `nvidia-cuda-mps-control -d` may take: up to driver 595 it initialises CUDA first (0.1 s on an idle
/// H200, seconds on a node without persistence mode).
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);

/// The time that the daemon may take to lock its directory after the launcher has exited.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// A running daemon.
#[derive(Clone, Debug)]
pub struct Launched {
    pub process: Process,
    /// It was started by this launch. A daemon that was already running may have clients.
    pub is_new: bool,
    /// A process that held the lock of the directory before, in words.
    pub in_the_way: Option<String>,
}

impl Daemon {
    /// Refuses a pipe directory whose path is too long for a socket address.
    pub fn check_path(&self) -> Result<(), MpsError> {
        if self.pipe.as_os_str().len() > MAX_PIPE_DIR {
            return Err(MpsError::PathTooLong(self.pipe.clone()));
        }
        Ok(())
    }

    /// Starts the daemon for one device. Until it holds its lock, only its user can enter its pipe directory.
    ///
    /// An unrecorded daemon that already runs in the directory (left by an interrupted `up`) is adopted if it serves
    /// this device, and stopped otherwise. After a failed start its processes are ended.
    pub fn launch(&self, host: &Host, wanted: &LaunchOptions) -> Result<Launched, MpsError> {
        self.check_path()?;
        self.check_files()?;
        self.check_readers(wanted)?;
        let owner = wanted.access.owner();
        if let Some(process) = self.running(host, wanted)? {
            self.open_directory(&wanted.access)?;
            return Ok(Launched {
                process,
                is_new: false,
                in_the_way: None,
            });
        }
        let in_the_way = self.foreign_lock_holder(host, owner);
        self.clear(&wanted.access)?;
        let launched = self
            .start(host, wanted)
            .and_then(|process| self.open_directory(&wanted.access).map(|()| process));
        match launched {
            Ok(process) => Ok(Launched {
                process,
                is_new: true,
                in_the_way,
            }),
            Err(error) => Err(self.clean_up(host, owner, error, in_the_way)),
        }
    }

    /// Ends the processes of a failed start, and adds that to its error.
    fn clean_up(
        &self,
        host: &Host,
        owner: Uid,
        mut error: MpsError,
        in_the_way: Option<String>,
    ) -> MpsError {
        let found = self.count_processes(host, owner);
        let (found, left, unknown) = match (found, self.end_mps_processes(host, owner)) {
            (Ok(found), Ok(left)) => (found, left, None),
            (Err(error), _) | (_, Err(error)) => (0, Vec::new(), Some(error)),
        };
        let ended = format!("what it had started ({found} processes) was ended");
        let notes = [
            in_the_way,
            (found > 0).then_some(ended),
            (!left.is_empty()).then(|| format!("the kernel does not end {}", list_pids(&left))),
            unknown.map(|error| format!("what it has started may still run: {error}")),
        ];
        let notes = notes.into_iter().flatten();
        let notes = notes.fold(String::new(), |notes, note| notes + "; " + &note);
        match &mut error {
            _ if notes.is_empty() => {}
            MpsError::Failed { what, .. } => what.push_str(&notes),
            _ => error = self.failure(format!("{error}{notes}")),
        }
        error
    }

    /// Makes the directories without any files of earlier daemons.
    fn clear(&self, access: &Access) -> Result<(), MpsError> {
        let is_foreign = match self.pipe_directory() {
            Ok(Some(pipe)) => pipe
                .stat_self()
                .is_ok_and(|meta| meta.st_uid != access.owner().0),
            Ok(None) => false,
            Err(_) => true,
        };
        if is_foreign {
            self.remove_pipe_dir()?;
        }
        self.make_directories(access)?;
        if self.remove_leftovers().is_err() {
            self.move_away()?;
            self.make_directories(access)?;
        }
        Ok(())
    }

    /// Runs the launcher, and waits for the daemon to hold its lock.
    fn start(&self, host: &Host, wanted: &LaunchOptions) -> Result<Process, MpsError> {
        let task = Task::Daemon(DaemonTask {
            device: wanted.device.clone(),
            log: self.log.clone(),
            multiuser: wanted.multiuser,
            user_dir: wanted
                .access
                .user()
                .map(|account| account.directory.clone()),
        });
        let owner = wanted.access.owner();
        let is_foreign = owner != caller();
        let launcher = self.command(task, &self.limits(wanted)?);
        // The user of the daemon owns the log directory and can make the start hang.
        let output = self.wait_for_user(LAUNCH_LIMIT, |limit| {
            self.run(&launcher, "", limit).map_err(|error| match error {
                RunError::Late { .. } if is_foreign => self.blocked_start(&error, owner),
                error => error.into(),
            })
        })?;
        // The lock decides, not the exit status, which is 0 even for an unknown option.
        let start = Instant::now();
        loop {
            if let LockHolder::Process(pid) = self.lock_holder()
                && let Some(process) = host.process(pid)
                && process.owner() == Some(owner)
                && serves_in(&process, &self.pipe)
            {
                return Ok(process);
            }
            if !output.status.success() || start.elapsed() > LOCK_LIMIT {
                return Err(self.failure(in_words(&output, &wanted.device)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the error for a start that the daemon's user may have blocked.
    fn blocked_start(&self, error: &RunError, owner: Uid) -> MpsError {
        let user = user_name(owner);
        let why = match self.log_that_is_no_file() {
            Some((log, kind)) => format!(
                "{} is {kind} that {user} has put there, and a daemon that opens it may wait for ever",
                log.display()
            ),
            None => format!("it runs as {user}, who can make its start hang"),
        };
        self.failure(format!("{error}: {why}"))
    }

    /// Refuses directories that one of the readers cannot enter: CUDA would silently run without MPS.
    fn check_readers(&self, wanted: &LaunchOptions) -> Result<(), MpsError> {
        // A daemon of a user writes its logs as that user.
        let logs = wanted.access.user().map(|_| &self.log);
        for path in [&self.pipe].into_iter().chain(logs) {
            for (who, reader) in &wanted.readers {
                if let Some(closed) = reader.is_kept_out_of(path) {
                    return Err(MpsError::KeptOut {
                        who: who.clone(),
                        closed,
                        path: path.clone(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Explains the exit status of the launcher, which prints nothing. The status is the low byte of CUDA's error code.
fn in_words(output: &Output, device: &str) -> String {
    let printed = format!("{}{}", output.stdout, output.stderr);
    let printed = printed.trim();
    let code = output.status.code();
    let meaning = match code {
        _ if !printed.is_empty() => printed.to_owned(),
        Some(100) => format!("CUDA sees no device {device}"),
        Some(0) => "it ended without an error and no daemon is there".to_owned(),
        // Measured with a path that is too long.
        Some(1) => "it said nothing, as where it cannot use its pipe directory".to_owned(),
        _ => match cuda_error(|error| i32::try_from(error & 0xff).ok() == code) {
            Some(words) => words.to_owned(),
            None => "it said nothing".to_owned(),
        },
    };
    let status = code.map_or_else(
        || output.status.to_string(),
        |code| format!("exit status {code}"),
    );
    format!("the control daemon of {device} did not start ({status}): {meaning}")
}
