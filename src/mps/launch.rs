use std::time::{Duration, Instant};

use super::{Daemon, Liveness, MAX_PIPE_DIR, MpsError, WhoMay};
use crate::host::{Host, Output, Pid, run};

/// How long `nvidia-cuda-mps-control -d` may take: it initialises CUDA first (0.1 s on an idle H200,
/// seconds on a node whose driver is not persistent).
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);

/// Has one server of root's serve every user at once.
const MULTIUSER: &str = "-multiuser-server";

/// How long the lock may stay unheld after the launcher said it was done.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

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
    pub fn launch(
        &self,
        host: &Host,
        device: &str,
        multiuser: bool,
        who: WhoMay,
    ) -> Result<Launched, MpsError> {
        self.check_path()?;
        self.make_directories(who)?;
        match self.liveness() {
            Liveness::Held(pid) => return self.take_over(host, pid, device, multiuser),
            Liveness::HeldUnseen | Liveness::Hidden => {
                return Err(self.failure(format!(
                    "another process holds the lock in {} and cannot be seen from here",
                    self.pipe.display()
                )));
            }
            Liveness::Dead => {}
        }
        self.remove_leftovers().map_err(MpsError::Directory)?;
        let mut command = self.control();
        command.arg("-d").env("CUDA_VISIBLE_DEVICES", device);
        if multiuser {
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
                    return Err(self.failure(in_words(&output, device)));
                }
                _ => std::thread::sleep(PAUSE),
            }
        }
    }

    fn take_over(
        &self,
        host: &Host,
        pid: Pid,
        device: &str,
        multiuser: bool,
    ) -> Result<Launched, MpsError> {
        let process = host.process(pid);
        let serves = process
            .as_ref()
            .and_then(|process| process.environment("CUDA_VISIBLE_DEVICES"));
        let is_multiuser = process.is_some_and(|process| process.command().contains(MULTIUSER));
        if serves.as_deref() == Some(device) && is_multiuser == multiuser {
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
        _ => "it said nothing".to_owned(),
    };
    let status = code.map_or_else(
        || output.status.to_string(),
        |code| format!("exit status {code}"),
    );
    format!("the control daemon of {device} did not start ({status}): {meaning}")
}
