//! The way in which a reader ends a daemon that mig-mps did not start.

use super::Unmanaged;
use crate::host::{Supervisor, Uid, quoted, user_name};

/// The way in which a reader ends a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A command ends it, and nothing else.
    Command {
        command: String,
        /// True if it is not started again at the next boot.
        is_for_good: bool,
    },
    /// Somebody else ends it, or at another place.
    Advice(String),
}

impl Ending {
    fn by(command: impl Into<String>) -> Self {
        Self::Command {
            command: command.into(),
            is_for_good: false,
        }
    }

    /// Describes it as a remedy; `it` is the daemon.
    pub fn remedy(&self, it: &str) -> String {
        match self {
            Self::Command {
                command,
                is_for_good: true,
            } => format!("`{command}` ends {it} for good"),
            Self::Command { command, .. } => format!("`{command}` ends {it}"),
            Self::Advice(advice) => advice.clone(),
        }
    }
}

impl Unmanaged {
    /// Returns the way in which this user ends it. A command never ends a daemon or a program of others: a unit may run
    /// more than the daemon, and the path of a socket may lead elsewhere from here.
    pub fn ending(&self, reader: Uid) -> Ending {
        if reader != Uid::ROOT && self.user != Some(reader) {
            let owner = match self.user {
                Some(Uid::ROOT) => return Ending::Advice("only root can end it".to_owned()),
                user => user.map_or_else(|| "its owner".to_owned(), user_name),
            };
            return Ending::Advice(format!("only {owner} or root can end it"));
        }
        if let Some(supervisor) = &self.supervisor {
            return self.ending_by(supervisor, reader);
        }
        if self.is_elsewhere {
            return Ending::Advice(
                "it runs in another mount namespace (a container): end it there".to_owned(),
            );
        }
        if self.is_orphan || !self.is_daemon() {
            // No session reaches it.
            return Ending::by(format!("kill {}", self.pid));
        }
        // A heal of theirs starts it again.
        if let [device] = self.devices.as_slice()
            && let Some(command) = self.managed_by(&format!("down {device}"))
        {
            return Ending::by(command);
        }
        self.quit_command().map_or_else(
            || Ending::Advice("let its owner end it".to_owned()),
            Ending::by,
        )
    }

    fn ending_by(&self, supervisor: &Supervisor, reader: Uid) -> Ending {
        let for_good = |command| Ending::Command {
            command,
            is_for_good: true,
        };
        let advice = match supervisor {
            Supervisor::SlurmJob(job) => return Ending::by(format!("scancel {job}")),
            Supervisor::Service(name) | Supervisor::UserService(_, name)
                if self.has_company || name.starts_with("mig-mps") =>
            {
                format!(
                    "it belongs to {name}, which also runs other programs: end the daemon there"
                )
            }
            Supervisor::Service(name) if reader == Uid::ROOT => {
                return for_good(format!("systemctl disable --now {}", quoted(name)));
            }
            Supervisor::UserService(user, name) if *user == reader => {
                return for_good(format!("systemctl --user disable --now {}", quoted(name)));
            }
            Supervisor::UserService(user, name) if reader == Uid::ROOT => {
                let machine = format!("--machine={}@", user.0);
                let name = quoted(name);
                return for_good(format!("systemctl --user {machine} disable --now {name}"));
            }
            Supervisor::Service(name) | Supervisor::UserService(_, name) => {
                format!("it belongs to {name}: ask root to disable it")
            }
            Supervisor::BatchJob(_) => format!("it belongs to the {supervisor}: end that job"),
            Supervisor::Pod(_) => {
                format!("it belongs to the {supervisor}: delete the workload that deploys it")
            }
            Supervisor::Container(_) => {
                format!("it belongs to the {supervisor}: stop it with its container engine")
            }
            Supervisor::Guest(name) => {
                format!("it runs in {name}, another system on this machine: end it there")
            }
        };
        Ending::Advice(advice)
    }
}
