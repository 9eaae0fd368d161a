//! The clients and pods that a plan concerns.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::host::{Pid, Workload, shorten_command, user_name};
use crate::node::{Client, Served};

/// A client that a plan concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClientOf {
    /// The device's name.
    pub device: String,
    /// The process id; null if it cannot be seen, as in another pid namespace.
    pub pid: Option<Pid>,
    /// The user's name.
    #[schemars(with = "Option<String>")]
    pub user: String,
    /// The command line; null if hidden.
    pub command: Option<String>,
    /// The Slurm job, pod or container that it belongs to; null if that cannot be seen.
    pub workload: Option<Workload>,
    /// True if it waits in `cuInit` until another user's programs have exited: it is no client yet, and ends with the
    /// daemon, too.
    #[serde(skip)]
    pub waits: bool,
}

impl fmt::Display for ClientOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pid) = self.pid else {
            return write!(f, "{}: a process in another pid namespace", self.device);
        };
        let command = self.command.as_deref().unwrap_or("hidden");
        let (device, user) = (&self.device, &self.user);
        write!(
            f,
            "{device}: pid {pid} ({user}, {})",
            shorten_command(command)
        )?;
        if let Some(workload) = self.workload.as_ref().filter(|one| one.is_any()) {
            write!(f, ", {workload}")?;
        }
        f.write_str(if self.waits {
            ", which waits in cuInit"
        } else {
            ""
        })
    }
}

impl ClientOf {
    /// Every client of a device, and every program that waits to become one.
    pub(super) fn all_of_device(served: &Served) -> Vec<Self> {
        let waiting = served.waiting.iter().map(|client| Self {
            waits: true,
            ..Self::from_client(served, client)
        });
        served
            .clients
            .as_slice()
            .iter()
            .map(|client| Self::from_client(served, client))
            .chain(waiting)
            .collect()
    }

    /// Returns its device and process, which stay the same when one that waited becomes a client.
    pub(super) fn identity(&self) -> (&str, Option<Pid>) {
        (&self.device, self.pid)
    }

    /// Leaves its identity only: a client that waited is the same one, also after it has started another program.
    pub(super) fn forget_description(&mut self) {
        self.command = None;
        self.workload = None;
        self.waits = false;
    }

    /// One client of a device.
    pub(super) fn from_client(served: &Served, client: &Client) -> Self {
        Self {
            device: served.record.name.clone(),
            pid: client.pid,
            command: client.command.clone(),
            workload: client.workload.clone(),
            waits: false,
            user: client.user.map_or_else(|| "?".to_owned(), user_name),
        }
    }
}

/// A pod that holds a share of a device, and of which no program is a client. Its programs find a daemon only in the pipe
/// directory that its containers have: without it they run outside MPS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct IdlePod {
    /// The device's name.
    pub device: String,
    /// The namespace and the name of the pod, such as `default/trainer`.
    pub pod: String,
}

impl fmt::Display for IdlePod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: pod {}", self.device, self.pod)
    }
}

impl IdlePod {
    /// Every such pod of a device.
    pub(super) fn all_of_device(served: &Served) -> Vec<Self> {
        let pod = |pod: &String| Self {
            device: served.record.name.clone(),
            pod: pod.clone(),
        };
        served.idle_pods.iter().map(pod).collect()
    }
}

/// The remedy for pods in the way.
pub(super) const POD_HINT: &str = "delete the pods, or wait for them with --drain DURATION; with --force, programs that they start later run \
                        outside MPS";

/// Lists the clients and pods in the way, each in a line.
pub(super) fn describe_in_use(clients: &[ClientOf], pods: &[IdlePod]) -> String {
    fn lines<T: fmt::Display>(all: &[T]) -> String {
        let lines: Vec<String> = all.iter().map(T::to_string).collect();
        format!("\n  {}", lines.join("\n  "))
    }
    in_use_message((clients.len(), &lines(clients)), (pods.len(), &lines(pods)))
}

/// The same with the devices alone: processes and pods are not for everybody.
pub(super) fn describe_devices_in_use(clients: &[ClientOf], pods: &[IdlePod]) -> String {
    let names = |mut devices: Vec<&str>| {
        devices.dedup();
        format!(" {}", devices.join(", "))
    };
    let of_clients = clients.iter().map(|client| client.device.as_str());
    let of_pods = pods.iter().map(|pod| pod.device.as_str());
    in_use_message(
        (clients.len(), &names(of_clients.collect())),
        (pods.len(), &names(of_pods.collect())),
    )
}

/// The message on so many clients and pods, each with the list of them.
fn in_use_message(clients: (usize, &str), pods: (usize, &str)) -> String {
    let clients = match clients {
        (0, _) => None,
        (1, list) => Some(format!("1 client is still running:{list}")),
        (count, list) => Some(format!("{count} clients are still running:{list}")),
    };
    let pods = match pods {
        (0, _) => None,
        (1, list) => Some(format!("1 pod holds a share of a device:{list}")),
        (count, list) => Some(format!("{count} pods hold shares of devices:{list}")),
    };
    let parts: Vec<String> = clients.into_iter().chain(pods).collect();
    parts.join("\n")
}
