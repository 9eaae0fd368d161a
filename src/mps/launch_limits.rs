//! The user, CPUs and open files of a daemon.

use super::{Daemon, LaunchOptions, MpsError};
use crate::host::{Limits, Process, Uid, caller, open_files};
use crate::settings::{Cpus, NOFILE};

/// The lowest limit of open files at which a daemon works. On an H200 it worked with 64; with 20 its server did not
/// start and its log grew without pause.
const FEWEST_FILES: u64 = 64;

impl Daemon {
    /// Refuses a limit of open files that is too low for a daemon. Root can raise any limit.
    pub(super) fn check_files(&self) -> Result<(), MpsError> {
        match open_files() {
            (_, Some(most)) if most < FEWEST_FILES && caller() != Uid::ROOT => {
                Err(self.failure(format!(
                    "this user may have {most} files open, and an MPS daemon needs {FEWEST_FILES}: raise ulimit -n"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns the user and the limits of the daemon, without those that the caller already has.
    pub(super) fn limits(&self, wanted: &LaunchOptions) -> Result<Limits, MpsError> {
        let files = wanted.nofile.unwrap_or(NOFILE);
        let (current, _) = open_files();
        let differs = current != Some(files);
        Ok(Limits {
            groups_of: wanted.access.user().map(|account| account.name.clone()),
            cpus: wanted.cpus.as_ref().map(|cpus| cpus.numbers().collect()),
            files: differs.then_some(files),
            or_fewer: differs && wanted.nofile.is_none(),
            ..self.limits_of_user()?
        })
    }

    /// Checks the user and the limits of the running daemon.
    pub fn verify(&self, process: &Process, wanted: &LaunchOptions) -> Result<(), MpsError> {
        let checks = [
            (
                "its user",
                Some(wanted.access.owner().to_string()),
                process.owner().map(|uid| uid.to_string()),
            ),
            (
                "cpus",
                wanted.cpus.as_ref().map(Cpus::to_string),
                process.cpus(),
            ),
            (
                "nofile",
                wanted.nofile.map(|files| files.to_string()),
                process.open_files().map(|files| files.to_string()),
            ),
        ];
        for (key, set, is) in checks {
            if let Some(set) = set
                && is.as_ref() != Some(&set)
            {
                let is = is.as_deref().unwrap_or("hidden");
                return Err(self.failure(format!("{key} was set to {set} and reads back as {is}")));
            }
        }
        Ok(())
    }
}
