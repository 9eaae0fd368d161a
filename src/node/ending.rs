//! The way in which a reader ends a daemon that mig-mps did not start.

use super::Unmanaged;
use crate::host::{Supervisor, Uid, quote_for_shell, user_name};

/// The way in which a reader ends a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonEnding {
    /// A command ends it, and nothing else.
    Command {
        command: String,
        /// True if it is not started again at the next boot.
        is_for_good: bool,
    },
    /// Somebody else ends it, or at another place.
    Advice(String),
}

impl DaemonEnding {
    fn by_command(command: impl Into<String>) -> Self {
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
            } => format!("run `{command}` to end {it} for good"),
            Self::Command { command, .. } => format!("run `{command}` to end {it}"),
            Self::Advice(advice) => advice.clone(),
        }
    }
}

impl Unmanaged {
    /// Returns the way in which this user ends it. A command never ends a daemon or a program of others: a unit may run
    /// more than the daemon, and the path of a socket may lead elsewhere from here.
    pub fn ending_for(&self, reader: Uid) -> DaemonEnding {
        if reader != Uid::ROOT && self.user != Some(reader) {
            let owner = match self.user {
                Some(Uid::ROOT) => return DaemonEnding::Advice("only root can end it".to_owned()),
                user => user.map_or_else(|| "its owner".to_owned(), user_name),
            };
            return DaemonEnding::Advice(format!("only {owner} or root can end it"));
        }
        if let Some(supervisor) = &self.supervisor {
            return self.ending_by(supervisor, reader);
        }
        if self.is_elsewhere {
            return DaemonEnding::Advice(
                "it runs in another mount namespace (a container): end it there".to_owned(),
            );
        }
        if self.is_orphan || !self.is_daemon() {
            // No session reaches it.
            return DaemonEnding::by_command(format!("kill {}", self.pid));
        }
        // A heal of theirs starts it again.
        if let [device] = self.devices.as_slice()
            && let Some(command) = self.command_as_owner(&format!("down {device}"))
        {
            return DaemonEnding::by_command(command);
        }
        self.quit_command().map_or_else(
            || DaemonEnding::Advice("let its owner end it".to_owned()),
            DaemonEnding::by_command,
        )
    }

    fn ending_by(&self, supervisor: &Supervisor, reader: Uid) -> DaemonEnding {
        let for_good = |command| DaemonEnding::Command {
            command,
            is_for_good: true,
        };
        let advice = match supervisor {
            Supervisor::SlurmJob(job) => return DaemonEnding::by_command(format!("scancel {job}")),
            Supervisor::Service(name) | Supervisor::UserService(_, name)
                if self.has_company || name.starts_with("mig-mps") =>
            {
                format!(
                    "it belongs to {name}, which also runs other programs: end the daemon there"
                )
            }
            Supervisor::Service(name) if reader == Uid::ROOT => {
                return for_good(format!("systemctl disable --now {}", quote_for_shell(name)));
            }
            Supervisor::UserService(user, name) if *user == reader => {
                return for_good(format!(
                    "systemctl --user disable --now {}",
                    quote_for_shell(name)
                ));
            }
            Supervisor::UserService(user, name) if reader == Uid::ROOT => {
                let machine = format!("--machine={}@", user.0);
                let name = quote_for_shell(name);
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
        DaemonEnding::Advice(advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Pid;
    use crate::mps::MpsProgram;
    use crate::node::Variable;

    /// A user whom no machine has.
    const ALICE: Uid = Uid(61_000);

    fn daemon(user: Uid) -> Unmanaged {
        Unmanaged {
            program: MpsProgram::Control,
            pid: Pid(4711),
            user: Some(user),
            command: String::new(),
            supervisor: None,
            has_company: false,
            is_elsewhere: false,
            age: None,
            pipe_directory: Variable::Is("/tmp/mps".to_owned()),
            is_orphan: false,
            visible: Variable::Unset,
            devices: Vec::new(),
            servers: Vec::new(),
        }
    }

    #[track_caller]
    fn ends(daemon: &Unmanaged, reader: Uid, remedy: &str) {
        assert_eq!(daemon.ending_for(reader).remedy("it"), remedy);
    }

    #[test]
    fn each_reader_gets_the_way_that_is_open_to_the_reader() {
        let quit =
            "run `echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/mps nvidia-cuda-mps-control` to end it";
        for reader in [Uid::ROOT, ALICE] {
            ends(&daemon(ALICE), reader, quit);
        }
        ends(&daemon(ALICE), Uid(61_001), "only 61000 or root can end it");
        ends(&daemon(Uid::ROOT), ALICE, "only root can end it");
        let unknown = Unmanaged {
            user: None,
            ..daemon(ALICE)
        };
        ends(&unknown, ALICE, "only its owner or root can end it");
        let orphan = Unmanaged {
            is_orphan: true,
            ..daemon(ALICE)
        };
        ends(&orphan, ALICE, "run `kill 4711` to end it");
        let server = Unmanaged {
            program: MpsProgram::Server,
            ..daemon(ALICE)
        };
        ends(&server, ALICE, "run `kill 4711` to end it");
        let managed = Unmanaged {
            pipe_directory: Variable::Is("/run/user/61000/mig-mps/GPU-1/pipe".to_owned()),
            devices: vec!["0".to_owned()],
            ..daemon(ALICE)
        };
        let down = "run `runuser -u 61000 -- env XDG_RUNTIME_DIR=/run/user/61000 mig-mps down 0` to end it";
        ends(&managed, Uid::ROOT, down);
    }

    #[test]
    fn a_service_is_disabled_by_a_reader_who_may() {
        let of = |supervisor: Supervisor| Unmanaged {
            supervisor: Some(supervisor),
            ..daemon(ALICE)
        };
        let service = |name: &str| of(Supervisor::Service(name.to_owned()));
        let mps = service("mps.service");
        let disable = "run `systemctl disable --now mps.service` to end it for good";
        ends(&mps, Uid::ROOT, disable);
        ends(
            &mps,
            ALICE,
            "it belongs to mps.service: ask root to disable it",
        );
        let own = of(Supervisor::UserService(ALICE, "mps.service".to_owned()));
        let disable = "run `systemctl --user disable --now mps.service` to end it for good";
        ends(&own, ALICE, disable);
        let disable =
            "run `systemctl --user --machine=61000@ disable --now mps.service` to end it for good";
        ends(&own, Uid::ROOT, disable);
        // What else the unit runs would end, too.
        let shared = Unmanaged {
            has_company: true,
            ..mps
        };
        let there = |name: &str| {
            format!("it belongs to {name}, which also runs other programs: end the daemon there")
        };
        ends(&shared, Uid::ROOT, &there("mps.service"));
        let ours = service("mig-mps.service");
        ends(&ours, Uid::ROOT, &there("mig-mps.service"));
    }
}
