//! Clients that a plan terminates.

use clap::ValueEnum;

use super::refusal::{ClientOf, Obstacle};
use crate::host::{Pid, StartTime};
use crate::mps::Patience;
use crate::node::{Client, Served};
use crate::state::RunDir;

/// A signal that ends processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Signal {
    /// A process may clean up, or take no notice
    #[value(alias = "SIGTERM")]
    Term,
    /// It ends at once
    #[value(alias = "SIGKILL")]
    Kill,
}

impl Signal {
    /// Its name in signal(7).
    pub fn name(self) -> &'static str {
        match self {
            Self::Term => "SIGTERM",
            Self::Kill => "SIGKILL",
        }
    }
}

/// Clients of one device to terminate.
#[derive(Clone, Debug, PartialEq)]
pub struct Kill {
    pub name: String,
    /// The UUID its directory is called by.
    pub uuid: String,
    /// Where that directory is.
    pub run_dir: RunDir,
    /// True if the caller owns that directory.
    pub is_callers: bool,
    /// The clients.
    pub victims: Vec<Victim>,
    /// The number of its other clients, which continue.
    pub others: usize,
    /// True after a fatal GPU fault of its server: nobody computes there until all clients have left.
    pub has_fault: bool,
    /// The signal for their processes.
    pub signal: Option<Signal>,
    /// The time that they get to exit by themselves.
    pub patience: Patience,
}

/// A client to terminate.
#[derive(Clone, Debug, PartialEq)]
pub struct Victim {
    /// The client, for messages.
    pub client: ClientOf,
    pub pid: Pid,
    /// When its process started; `None` where that cannot be seen.
    pub started: Option<StartTime>,
    /// The server that has it.
    pub server: Pid,
    /// True if a signal may be sent to its process: its server's user owns it, or the driver lists it as a client. The
    /// daemon's word is not enough.
    pub is_certain: bool,
}

impl Victim {
    pub(super) fn is_in(&self, served: &Served) -> bool {
        let is_it =
            |client: &Client| client.pid == Some(self.pid) && client.started == self.started;
        served.clients.listed().iter().any(is_it)
    }
}

impl Kill {
    /// The clients, for messages.
    pub fn clients(&self) -> impl Iterator<Item = &ClientOf> {
        self.victims.iter().map(|victim| &victim.client)
    }

    /// Checks that the signal can be sent to every process. A fault has ended the clients' work already, so only a
    /// signal has an effect then.
    pub(super) fn permit_signal(&self) -> Result<(), Obstacle> {
        let refuse = |what: String, hint: &str| Err(Obstacle::new(what, hint));
        if self.signal.is_none() {
            return if self.has_fault {
                let what = format!(
                    "{} had a GPU fault: its clients' work has ended, and it serves again when their processes have",
                    self.name
                );
                refuse(what, "end them with --signal")
            } else {
                Ok(())
            };
        }
        let mut victims = self.victims.iter();
        if let Some(Victim { client, .. }) = victims.find(|victim| !victim.is_certain) {
            let what = format!(
                "the process of {client} is not its server's user's, and the driver does not list it as a client"
            );
            return refuse(what, "leave --signal out, or end the process itself");
        }
        let mut victims = self.victims.iter();
        if let Some(Victim { client, .. }) = victims.find(|victim| victim.started.is_none()) {
            let what = format!(
                "the process of {client} cannot be seen from here: it can be sent no signal"
            );
            return refuse(
                what,
                "leave --signal out, or run it where /proc shows that process",
            );
        }
        Ok(())
    }
}
