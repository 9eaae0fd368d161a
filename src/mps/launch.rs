use std::time::{Duration, Instant};

use super::invocation::{MULTIUSER, Task};
use super::processes::{end_all, serves_in};
use super::program::{MpsProgram, servers_of};
use super::{Daemon, LockHolder, MAX_PIPE_DIR, MpsError, WhoMay};
use crate::host::{
    Host, Limits, Output, Pid, Process, Reader, RunError, Uid, caller, open_files, user_name,
};
use crate::settings::{Cpus, NOFILE};

/// How long `nvidia-cuda-mps-control -d` may take: up to driver 595 it initialises CUDA first (0.1 s on an idle H200,
/// seconds on a node whose driver is not persistent).
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);

/// The same for a daemon of another user than the caller. That user owns its log directory and can make its start hang,
/// and the whole change waits for it.
const LAUNCH_LIMIT_OF_OTHERS: Duration = Duration::from_secs(10);

/// How long the daemon may take to lock its directory after the launcher said it was done.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// The fewest files that a daemon can work with. On an H200 it worked with 64; with 20 its server did not start and its
/// log grew without pause.
const FEWEST_FILES: u64 = 64;

/// How long a daemon that nobody recorded may take to say who its clients are.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// How a daemon is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The UUID of its device.
    pub device: String,
    /// Whether one server of root's serves every user at once.
    pub multiuser: bool,
    /// Who may reach it.
    pub who: WhoMay,
    /// Who must get through the directories above its own, with a word for them.
    pub readers: Vec<(String, Reader)>,
    /// The CPUs it runs on.
    pub cpus: Option<Cpus>,
    /// How many files it may have open; by default [`NOFILE`], or as many as the system allows.
    pub nofile: Option<u64>,
}

/// A daemon that runs.
#[derive(Clone, Debug)]
pub struct Launched {
    /// Its process.
    pub process: Process,
    /// Whether it was started for this; one that was found running may have clients.
    pub is_new: bool,
    /// A process that was in its way, in words.
    pub in_the_way: Option<String>,
}

impl Daemon {
    /// Refuses a pipe directory whose sockets could not be addressed.
    pub fn check_path(&self) -> Result<(), MpsError> {
        if self.pipe.as_os_str().len() > MAX_PIPE_DIR {
            return Err(MpsError::PathTooLong(self.pipe.clone()));
        }
        Ok(())
    }

    /// Refuses to start a daemon with so few open files that it serves nobody. Root may raise any limit.
    fn check_files(&self) -> Result<(), MpsError> {
        match open_files() {
            (_, Some(most)) if most < FEWEST_FILES && caller() != Uid::ROOT => {
                Err(self.failure(format!(
                    "this user may have {most} files open, and an MPS daemon needs {FEWEST_FILES}: raise ulimit -n"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Starts the daemon for one device. Until it holds its lock, nobody but its user can enter its pipe directory.
    ///
    /// A daemon that runs already in the directory and that nobody recorded (an interrupted `up` left it) is taken
    /// over if it serves this device, and ended otherwise. A start that fails ends what it has started.
    pub fn launch(&self, host: &Host, wanted: &Launch) -> Result<Launched, MpsError> {
        self.check_path()?;
        self.check_files()?;
        self.check_readers(wanted)?;
        let owner = wanted.who.owner();
        if let Some(process) = self.running(host, wanted)? {
            self.open_directory(&wanted.who)?;
            return Ok(Launched {
                process,
                is_new: false,
                in_the_way: None,
            });
        }
        let in_the_way = self.stranger(host, owner);
        self.clear(&wanted.who)?;
        let launched = self
            .start(host, wanted)
            .and_then(|process| self.open_directory(&wanted.who).map(|()| process));
        match launched {
            Ok(process) => Ok(Launched {
                process,
                is_new: true,
                in_the_way,
            }),
            Err(error) => Err(self.give_up(host, owner, error, in_the_way)),
        }
    }

    /// Ends what a start that failed has left, and says so.
    fn give_up(
        &self,
        host: &Host,
        owner: Uid,
        error: MpsError,
        in_the_way: Option<String>,
    ) -> MpsError {
        let found = self.found(host, owner).len();
        let left = self.end_found(host, owner);
        let ended = format!("what it had started ({found} processes) was ended");
        let notes = [
            in_the_way,
            (found > 0).then_some(ended),
            (!left.is_empty()).then(|| format!("the kernel does not end {}", list(&left))),
        ];
        let notes = notes.into_iter().flatten();
        let notes = notes.fold(String::new(), |notes, note| notes + "; " + &note);
        match error {
            error if notes.is_empty() => error,
            MpsError::Failed {
                what,
                log,
                last_words,
            } => MpsError::Failed {
                what: what + &notes,
                log,
                last_words,
            },
            error => self.failure(format!("{error}{notes}")),
        }
    }

    /// A daemon that runs already in the directory as it should; others of its user are ended.
    fn running(&self, host: &Host, wanted: &Launch) -> Result<Option<Process>, MpsError> {
        let owner = wanted.who.owner();
        let found = self.found(host, owner);
        let fits = |process: &Process| {
            let device = process.environment("CUDA_VISIBLE_DEVICES");
            let is_multiuser = process.command().contains(MULTIUSER);
            device.as_deref() == Some(&wanted.device) && is_multiuser == wanted.multiuser
        };
        let daemons: Vec<&Process> = found
            .iter()
            .filter(|found| found.program == MpsProgram::Control)
            .map(|found| &found.process)
            .collect();
        match daemons.as_slice() {
            [] => return Ok(None),
            [one]
                if fits(one)
                    && self.has_socket()
                    && self.lock_holder() == LockHolder::Process(one.pid) =>
            {
                return Ok(Some((*one).clone()));
            }
            _ => {}
        }
        if let [one] = daemons.as_slice() {
            self.refuse_clients(host, one)?;
        }
        let held = daemons.iter().filter_map(|daemon| {
            let held = host.hold(daemon.pid, daemon.started)?;
            Some((daemon.pid, held))
        });
        let left = end_all(&held.collect::<Vec<_>>());
        if left.is_empty() {
            return Ok(None);
        }
        Err(self.failure(format!(
            "daemons that nobody recorded run in {} and do not end: {}",
            self.pipe.display(),
            list(&left)
        )))
    }

    /// Refuses to end a daemon that has clients.
    fn refuse_clients(&self, host: &Host, daemon: &Process) -> Result<(), MpsError> {
        let table = host.processes().unwrap_or_default();
        let servers: Vec<Pid> = servers_of(&table, daemon)
            .map(|server| server.pid)
            .collect();
        let Ok(glance) = self.glance(&servers, false, ASK_LIMIT, ASK_LIMIT) else {
            return Ok(());
        };
        let clients: Vec<Pid> = glance
            .servers
            .into_iter()
            .flat_map(|server| server.clients)
            .collect();
        if clients.is_empty() {
            return Ok(());
        }
        Err(self.failure(format!(
            "a daemon that nobody recorded, pid {}, serves otherwise in {} and has clients: {}",
            daemon.pid,
            self.pipe.display(),
            list(&clients)
        )))
    }

    /// A process that holds the lock and is no daemon of ours. Its lock is on a file that is about to go.
    fn stranger(&self, host: &Host, owner: Uid) -> Option<String> {
        let pipe = self.pipe.display();
        match self.lock_holder() {
            LockHolder::Nobody => None,
            LockHolder::Unseen | LockHolder::Hidden => Some(format!(
                "a process that cannot be seen from here held the lock in {pipe}"
            )),
            LockHolder::Process(pid) => {
                let process = host.process(pid)?;
                // The pid in a file of a dead daemon means nothing.
                let holds =
                    !self.is_daemon_here(&process, owner) && process.owner() != Some(Uid::ROOT);
                let user = process.owner().map_or_else(|| "?".to_owned(), user_name);
                let name = process.program();
                holds.then(|| format!("pid {pid} ({user}, {name}) held the lock in {pipe}"))
            }
        }
    }

    /// Makes the directories anew, with nothing in them of daemons that have ended.
    fn clear(&self, who: &WhoMay) -> Result<(), MpsError> {
        let is_anothers = match self.pipe_directory() {
            Ok(Some(pipe)) => pipe
                .stat_self()
                .is_ok_and(|meta| meta.st_uid != who.owner().0),
            Ok(None) => false,
            Err(_) => true,
        };
        if is_anothers {
            self.remove_pipe_dir()?;
        }
        self.make_directories(who)?;
        if self.remove_leftovers().is_err() {
            self.put_aside().map_err(MpsError::Directory)?;
            self.make_directories(who)?;
        }
        Ok(())
    }

    /// Runs the launcher, and waits for the daemon to hold its lock.
    fn start(&self, host: &Host, wanted: &Launch) -> Result<Process, MpsError> {
        let task = Task::Daemon {
            device: wanted.device.clone(),
            log: self.log.clone(),
            multiuser: wanted.multiuser,
            home: match &wanted.who {
                WhoMay::User(account) => Some(account.home.clone()),
                _ => None,
            },
        };
        let owner = wanted.who.owner();
        let is_anothers = owner != caller();
        let limit = if is_anothers {
            LAUNCH_LIMIT_OF_OTHERS
        } else {
            LAUNCH_LIMIT
        };
        let output = self.run(self.invoke(task, &self.limits(wanted)), "", limit);
        let output = output.map_err(|error| match error {
            RunError::Late { .. } if is_anothers => self.held_up(&error, owner),
            error => error.into(),
        })?;
        // Judged by the lock and never by the exit status: an option the program does not know ends
        // it with 0.
        let begun = Instant::now();
        loop {
            if let LockHolder::Process(pid) = self.lock_holder()
                && let Some(process) = host.process(pid)
                && process.owner() == Some(owner)
                && serves_in(&process, &self.pipe)
            {
                return Ok(process);
            }
            if !output.status.success() || begun.elapsed() > LOCK_LIMIT {
                return Err(self.failure(in_words(&output, &wanted.device)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A start that its user may have made hang.
    fn held_up(&self, error: &RunError, owner: Uid) -> MpsError {
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

    /// Refuses directories that somebody who must get through them may not enter: CUDA goes on without MPS
    /// then, and says nothing.
    fn check_readers(&self, wanted: &Launch) -> Result<(), MpsError> {
        // A user's daemon writes its own logs.
        let logs = matches!(wanted.who, WhoMay::User(_)).then_some(&self.log);
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

    /// The user and the limits it runs with; what it has anyway is not asked for.
    fn limits(&self, wanted: &Launch) -> Limits {
        let files = wanted.nofile.unwrap_or(NOFILE);
        let (now, _) = open_files();
        let is_other = now != Some(files);
        Limits {
            groups_of: match &wanted.who {
                WhoMay::User(account) => Some(account.name.clone()),
                _ => None,
            },
            cpus: wanted.cpus.as_ref().map(|cpus| cpus.numbers().collect()),
            files: is_other.then_some(files),
            or_fewer: is_other && wanted.nofile.is_none(),
            ..self.limits_of_owner()
        }
    }

    /// Reads back the user and the limits it runs with.
    pub fn verify(&self, process: &Process, wanted: &Launch) -> Result<(), MpsError> {
        let said = |value: Option<String>| value.unwrap_or_else(|| "hidden".to_owned());
        let differs = |key: &str, set: String, is: Option<String>| {
            (is.as_deref() != Some(set.as_str())).then(|| (key.to_owned(), set, said(is)))
        };
        let owner = process.owner();
        let files = process.open_files();
        let difference = differs(
            "its user",
            wanted.who.owner().to_string(),
            owner.map(|uid| uid.to_string()),
        )
        .or_else(|| {
            let cpus = process.cpus();
            differs("cpus", wanted.cpus.as_ref()?.to_string(), cpus)
        })
        .or_else(|| {
            differs(
                "nofile",
                wanted.nofile?.to_string(),
                files.map(|files| files.to_string()),
            )
        });
        match difference {
            None => Ok(()),
            Some((key, set, is)) => {
                Err(self.failure(format!("{key} was set to {set} and reads back as {is}")))
            }
        }
    }
}

fn list(pids: &[Pid]) -> String {
    let pids: Vec<String> = pids.iter().map(|pid| format!("pid {pid}")).collect();
    pids.join(", ")
}

/// What the launcher's exit status means: it says nothing itself. The status is the low byte of
/// CUDA's error code.
fn in_words(output: &Output, device: &str) -> String {
    let said = format!("{}{}", output.stdout, output.stderr);
    let said = said.trim();
    let code = output.status.code();
    let meaning = match code {
        _ if !said.is_empty() => said.to_owned(),
        Some(100) => format!("CUDA sees no device {device}"),
        Some(244) => "CUDA's driver library libcuda.so.1 cannot be loaded".to_owned(),
        Some(34) => "CUDA says the system is not ready (is the fabric manager running?)".to_owned(),
        Some(35) => "the CUDA driver library and the kernel module differ in version".to_owned(),
        Some(0) => "it ended without an error and no daemon is there".to_owned(),
        // Measured for a path that is too long.
        Some(1) => "it said nothing, as where it cannot use its pipe directory".to_owned(),
        _ => "it said nothing".to_owned(),
    };
    let status = code.map_or_else(
        || output.status.to_string(),
        |code| format!("exit status {code}"),
    );
    format!("the control daemon of {device} did not start ({status}): {meaning}")
}
