//! Programs that compute beside MPS. CUDA falls back to that without a word when it does not find a daemon.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::foreign::Variable;
use super::{Node, Served};
use crate::host::{Host, Pid, Process, ProcessTable, Reader, Uid, claimed, user_name};
use crate::mps::MpsProgram;
use crate::nvml::Nvml;

/// A program that computes on a device without being a client of a daemon's.
#[derive(Clone, Debug)]
pub struct Outside {
    /// The device's UUID.
    pub uuid: String,
    /// Its process id.
    pub pid: Pid,
    /// Whose it is; `None` where that is hidden.
    pub user: Option<Uid>,
    /// Its command line.
    pub command: String,
    /// Device memory it uses in bytes; `None` where the driver does not tell.
    pub memory: Option<u64>,
    /// For how long it has been running.
    pub age: Option<Duration>,
    /// Whether a daemon serves the device: the program was meant to be its client, or keeps off the limits that
    /// others have.
    pub is_served: bool,
    /// Why, most likely.
    pub cause: String,
}

/// Finds them: what computes, is no MPS server, and is on no list of clients, in two samples and as the same
/// process. One sample is not enough: NVML's two lists are made one after the other.
pub(super) fn find(host: &Host, table: &ProcessTable, nvml: Nvml, node: &mut Node) {
    let mut first: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for uuid in node.processes.keys() {
        let suspects = suspects(node, table, uuid);
        if !suspects.is_empty() {
            first.insert(uuid.clone(), suspects);
        }
    }
    let mut outside = Vec::new();
    for (uuid, suspects) in first {
        let again = uuid.clone();
        let Ok(second) = nvml.supervise(move |session| session.read_processes(&again)) else {
            // The device has gone meanwhile.
            continue;
        };
        let lists =
            |usages: &[crate::nvml::Usage], pid| usages.iter().any(|usage| usage.pid == pid);
        let mut unseen = 0;
        for pid in suspects {
            if !lists(&second.compute, pid) || lists(&second.clients, pid) {
                continue;
            }
            match (table.get(Pid(pid)), host.process(Pid(pid))) {
                (Some(before), Some(now)) if before.started == now.started => {
                    let usage = second.compute.iter().find(|usage| usage.pid == pid);
                    let memory = usage.and_then(|usage| usage.memory);
                    outside.push(Outside::new(host, node, &uuid, &now, memory));
                }
                (None, None) => unseen += 1,
                _ => {}
            }
        }
        if unseen > 0 {
            let name = node.name_of_uuid(&uuid);
            node.hidden.push(format!(
                "what {unseen} process{} on {name} {}: /proc does not show {}, so MPS servers cannot be told from programs outside MPS",
                if unseen == 1 { "" } else { "es" },
                if unseen == 1 { "is" } else { "are" },
                if unseen == 1 { "it" } else { "them" },
            ));
        }
    }
    node.outside = outside;
}

/// The processes on no list that are no MPS program either: the servers of an unmanaged daemon are nobody's suspects.
fn suspects(node: &Node, table: &ProcessTable, uuid: &str) -> Vec<u32> {
    let is_mps = |pid: Pid| table.get(pid).is_some_and(MpsProgram::is_one);
    let pids = node.unaccounted_for(uuid).into_iter();
    pids.filter(|&pid| !is_mps(pid)).map(|pid| pid.0).collect()
}

impl Outside {
    fn new(host: &Host, node: &Node, uuid: &str, process: &Process, memory: Option<u64>) -> Self {
        let served = node
            .served
            .iter()
            .find(|served| served.record.uuid == uuid && served.is_alive());
        let is_foreign = node
            .foreign
            .iter()
            .any(|foreign| foreign.devices.iter().any(|device| device == uuid));
        Self {
            uuid: uuid.to_owned(),
            pid: process.pid,
            user: process.owner(),
            command: process.command(),
            memory,
            age: process.age(),
            is_served: served.is_some() || is_foreign,
            cause: match served {
                Some(served) => cause(host, node, served, process),
                None if is_foreign => {
                    "a foreign daemon serves this device, and it is no client of it".to_owned()
                }
                None => "no daemon serves this device".to_owned(),
            },
        }
    }
}

/// Why a program on a served device is not its daemon's client.
fn cause(host: &Host, node: &Node, served: &Served, process: &Process) -> String {
    let right = served.run_dir.pipe_dir(&served.record.uuid);
    let environ = process.environ();
    let pipe = match Variable::of(environ.as_ref(), "CUDA_MPS_PIPE_DIRECTORY") {
        Variable::Hidden => return "unknown: its environment is hidden".to_owned(),
        Variable::Unset => return "CUDA_MPS_PIPE_DIRECTORY is not set".to_owned(),
        Variable::Is(pipe) => pipe,
    };
    if let Variable::Is(version) = Variable::of(environ.as_ref(), "CUDA_MPS_PROTOCOL_VERSION")
        && version != "2"
    {
        return format!("CUDA_MPS_PROTOCOL_VERSION is {version}, and the daemon speaks 2");
    }
    let given = Path::new(&pipe);
    let real = claimed(given);
    let leads_to = |directory: &Path| {
        given == directory
            || matches!((&real, claimed(directory)), (Ok(Some(real)), Ok(Some(directory))) if *real == directory)
    };
    if !leads_to(&right) {
        let other = node
            .served
            .iter()
            .find(|other| leads_to(&other.run_dir.pipe_dir(&other.record.uuid)));
        return match other {
            Some(other) if other.is_alive() => {
                format!("its pipe directory is that of {}", other.record.name)
            }
            Some(other) => format!(
                "its pipe directory is that of {}, whose daemon is dead",
                other.record.name
            ),
            None => format!("its pipe directory is {pipe}"),
        };
    }
    if let Some(user) = process.owner()
        && let Some(closed) =
            Reader::User(user, process.groups()).is_kept_out_of(&right.join("control"))
    {
        return format!("{} may not enter {}", user_name(user), closed.display());
    }
    let daemon = served.record.daemon;
    if daemon.is_some_and(|daemon| {
        let daemon = host.process(daemon.pid);
        daemon.is_some_and(|daemon| process.started.0 < daemon.started.0)
    }) {
        return "it started before the daemon".to_owned();
    }
    "unknown: its pipe directory is the right one".to_owned()
}
