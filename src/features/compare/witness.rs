//! The device during a trial: whether its copies compute as they are to, as MPS clients or outside MPS.

use std::collections::BTreeSet;

use crate::error::{CommandError, Result, command_error};
use crate::host::{Environment, Pid, shorten_command};
use crate::node::{Node, Served};
use crate::nvml::Nvml;
use crate::shared::{DeviceUse, LeftMps};

/// A device on which copies run.
pub(super) struct Witness<'a> {
    environment: &'a Environment,
    nvml: Nvml,
    node: &'a Node,
    pub(super) served: &'a Served,
    /// The processes that computed on the idle device: MPS servers.
    before: BTreeSet<Pid>,
}

impl<'a> Witness<'a> {
    /// Reads which processes compute on the device before anything runs.
    pub(super) fn new(
        environment: &'a Environment,
        node: &'a Node,
        served: &'a Served,
    ) -> Result<Self> {
        let nvml = Nvml::open(environment.nvml_library.as_deref())?;
        let before = DeviceUse::query(nvml, served.record.driver_uuids()).unwrap_or_default();
        Ok(Self {
            environment,
            nvml,
            node,
            served,
            before: before.others,
        })
    }

    /// Returns the clients, and the programs outside MPS.
    fn query_device_use(&self) -> Option<DeviceUse> {
        let record = &self.served.record;
        let mut used = DeviceUse::query(self.nvml, record.driver_uuids())?;
        let daemon = record.daemon.map(|daemon| daemon.pid);
        used.others.retain(|pid| {
            let process = self.environment.host.find_process(*pid);
            let is_server = |parent| Some(parent) == daemon;
            !self.before.contains(pid) && process.is_some_and(|one| !is_server(one.parent))
        });
        Some(used)
    }

    /// Returns the error for a process that computes in the other way.
    fn wrong_way_error(&self, pid: Pid, is_mps: bool) -> CommandError {
        let host = &self.environment.host;
        if is_mps {
            return LeftMps::new(
                host,
                self.node,
                self.served,
                (pid, &self.served.record.name),
                "the comparison was stopped",
            )
            .into();
        }
        let command = host.find_process(pid).map(|process| process.command_line());
        command_error(format_args!(
            "pid {pid} ({}) used device {} as an MPS client, but should run outside MPS",
            shorten_command(command.as_deref().unwrap_or("gone")),
            self.served.record.name
        ))
        .with_hint("check that the program does not change CUDA_MPS_PIPE_DIRECTORY or start programs that do")
    }
}

/// The processes that were seen during one trial.
pub(super) struct Sightings<'a> {
    witness: &'a Witness<'a>,
    /// The copies are to be clients.
    is_mps: bool,
    /// The processes that computed in the other way in the last sample.
    suspects: BTreeSet<Pid>,
    /// The error for one that did so, but not for long.
    refused: Option<CommandError>,
    has_answer: bool,
    /// A copy computed as it was to.
    is_seen: bool,
    /// The most that was in use, in bytes.
    pub(super) memory_used: Option<u64>,
}

impl<'a> Sightings<'a> {
    pub(super) fn new(witness: &'a Witness<'a>, is_mps: bool) -> Self {
        Self {
            witness,
            is_mps,
            suspects: BTreeSet::new(),
            refused: None,
            has_answer: false,
            is_seen: false,
            memory_used: None,
        }
    }

    /// Takes a sample. Fails if a process computes in the other way for the second time.
    pub(super) fn sample(&mut self) -> Result<()> {
        let Some((right, wrong)) = self.query_processes() else {
            return Ok(());
        };
        self.has_answer = true;
        self.is_seen |= !right.is_empty();
        if let Some(pid) = wrong.intersection(&self.suspects).next() {
            return Err(self.witness.wrong_way_error(*pid, self.is_mps));
        }
        if self.refused.is_none()
            && let Some(pid) = wrong.first()
        {
            // The program may end before the next sample.
            let refused = self.witness.wrong_way_error(*pid, self.is_mps);
            let again = self.query_processes();
            let is_wrong = again.is_some_and(|(_, wrong)| wrong.contains(pid));
            self.refused = is_wrong.then_some(refused);
        }
        self.suspects = wrong;
        Ok(())
    }

    /// Returns the processes that compute as the copies are to, and those that compute in the other way.
    fn query_processes(&mut self) -> Option<(BTreeSet<Pid>, BTreeSet<Pid>)> {
        let used = self.witness.query_device_use()?;
        self.memory_used = self.memory_used.max(used.memory_used);
        Some(if self.is_mps {
            (used.clients, used.others)
        } else {
            (used.others, used.clients)
        })
    }

    /// Returns true if a copy was seen that computed as it was to; `None` if the driver shows no processes. Fails if
    /// programs that are too short to be seen twice were seen only in the other way.
    pub(super) fn into_verdict(self) -> Result<Option<bool>> {
        match self.refused {
            Some(refused) if !self.is_seen => Err(refused),
            _ => Ok(self.has_answer.then_some(self.is_seen)),
        }
    }
}
