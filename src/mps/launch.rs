use std::time::{Duration, Instant};

use super::{Daemon, Liveness, MAX_PIPE_DIR, MpsError, WhoMay};
use crate::host::{Host, Limits, Output, Pid, Process, Reader, open_files, run};
use crate::profile::{Cpus, NOFILE};

/// How long `nvidia-cuda-mps-control -d` may take: it initialises CUDA first (0.1 s on an idle H200,
/// seconds on a node whose driver is not persistent).
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);

/// Has one server of root's serve every user at once.
const MULTIUSER: &str = "-multiuser-server";

/// How long the lock may stay unheld after the launcher said it was done.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// How a daemon shall be started.
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
#[derive(Clone, Copy, Debug)]
pub struct Launched {
    /// Its process.
    pub pid: Pid,
    /// Whether it was started for this; one that was found running may have clients.
    pub is_new: bool,
}

impl Daemon {
    /// Refuses a pipe directory whose sockets could not be addressed.
    ///
    /// # Errors
    /// [`MpsError::PathTooLong`]
    pub fn check_path(&self) -> Result<(), MpsError> {
        if self.pipe.as_os_str().len() > MAX_PIPE_DIR {
            return Err(MpsError::PathTooLong(self.pipe.clone()));
        }
        Ok(())
    }

    /// Starts the daemon for one device; its process is told by its lock.
    ///
    /// A daemon that runs already in the directory (an interrupted `up` left it) is taken over when
    /// it serves this device.
    ///
    /// # Errors
    /// [`MpsError`], with the launcher's exit status in words.
    pub fn launch(&self, host: &Host, shall: &Launch) -> Result<Launched, MpsError> {
        self.check_path()?;
        self.check_readers(shall)?;
        self.remove_what_another_left(&shall.who)?;
        self.make_directories(&shall.who)?;
        match self.liveness() {
            Liveness::Held(pid) => return self.take_over(host, pid, shall),
            Liveness::HeldUnseen | Liveness::Hidden => {
                return Err(self.failure(format!(
                    "another process holds the lock in {} and cannot be seen from here",
                    self.pipe.display()
                )));
            }
            Liveness::Dead => {}
        }
        if self.remove_leftovers().is_err() {
            self.put_aside().map_err(MpsError::Directory)?;
            self.make_directories(&shall.who)?;
        }
        let mut command = self.control_within(&self.limits(shall));
        command.arg("-d").env("CUDA_VISIBLE_DEVICES", &shall.device);
        if let WhoMay::User(account) = &shall.who {
            command.env("HOME", &account.home);
        }
        if shall.multiuser {
            command.arg(MULTIUSER);
        }
        let output = run(&mut command, "", LAUNCH_LIMIT)?;
        // Judged by the lock and never by the exit status: an option the program does not know ends
        // it with 0.
        let begun = Instant::now();
        loop {
            match self.liveness() {
                Liveness::Held(pid) => return Ok(Launched { pid, is_new: true }),
                _ if !output.status.success() || begun.elapsed() > LOCK_LIMIT => {
                    return Err(self.failure(in_words(&output, &shall.device)));
                }
                _ => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Refuses directories that somebody who must get through them may not enter: CUDA goes on without MPS
    /// then, and says nothing.
    fn check_readers(&self, shall: &Launch) -> Result<(), MpsError> {
        // A user's daemon writes its own logs.
        let logs = matches!(shall.who, WhoMay::User(_)).then_some(&self.log);
        for path in [&self.pipe].into_iter().chain(logs) {
            for (who, reader) in &shall.readers {
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

    /// As whom and within which limits it shall run; what it has anyway is not asked for.
    fn limits(&self, shall: &Launch) -> Limits {
        let files = shall.nofile.unwrap_or(NOFILE);
        let (now, _) = open_files();
        let is_other = now != Some(files);
        Limits {
            groups_of: match &shall.who {
                WhoMay::User(account) => Some(account.name.clone()),
                _ => None,
            },
            cpus: shall.cpus.as_ref().map(|cpus| cpus.numbers().collect()),
            files: is_other.then_some(files),
            or_fewer: is_other && shall.nofile.is_none(),
            ..self.limits_of_owner()
        }
    }

    /// Reads back as whom and within which limits it runs.
    ///
    /// # Errors
    /// [`MpsError::Failed`] with what is otherwise.
    pub fn verify(&self, process: &Process, shall: &Launch) -> Result<(), MpsError> {
        let said = |value: Option<String>| value.unwrap_or_else(|| "hidden".to_owned());
        let differs = |key: &str, shall: String, is: Option<String>| {
            (is.as_deref() != Some(shall.as_str())).then(|| (key.to_owned(), shall, said(is)))
        };
        let owner = process.owner();
        let files = process.open_files();
        let difference = differs(
            "its user",
            shall.who.owner().to_string(),
            owner.map(|uid| uid.to_string()),
        )
        .or_else(|| {
            let cpus = process.cpus();
            differs("cpus", shall.cpus.as_ref()?.to_string(), cpus)
        })
        .or_else(|| {
            differs(
                "nofile",
                shall.nofile?.to_string(),
                files.map(|files| files.to_string()),
            )
        });
        match difference {
            None => Ok(()),
            Some((key, shall, is)) => {
                Err(self.failure(format!("{key} was set to {shall} and reads back as {is}")))
            }
        }
    }

    fn take_over(&self, host: &Host, pid: Pid, shall: &Launch) -> Result<Launched, MpsError> {
        let process = host.process(pid);
        let serves = process
            .as_ref()
            .and_then(|process| process.environment("CUDA_VISIBLE_DEVICES"));
        let is_multiuser = process
            .as_ref()
            .is_some_and(|process| process.command().contains(MULTIUSER));
        if serves.as_deref() == Some(shall.device.as_str()) && is_multiuser == shall.multiuser {
            return Ok(Launched { pid, is_new: false });
        }
        Err(self.failure(format!(
            "process {pid} holds the lock in {} and serves {} otherwise than it shall",
            self.pipe.display(),
            serves.as_deref().unwrap_or("a device that cannot be seen")
        )))
    }
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
