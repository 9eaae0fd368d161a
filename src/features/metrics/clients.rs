//! The clients of a device by user and workload.

use std::collections::BTreeMap;

use crate::host::user_name;
use crate::node::{Client, Device};

/// The clients of one user and one workload on a device.
pub(super) struct ClientSum {
    pub(super) clients: u64,
    /// The memory that they use; `None` if that of one is unknown.
    pub(super) memory: Option<u64>,
}

/// The users and workloads of a client. What is unknown is empty, and so is the container in a pod, which lasts longer than
/// its containers.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClientUser {
    name: String,
    slurm_job: String,
    batch_job: String,
    pod_uid: String,
    pod_name: String,
    container_id: String,
}

impl ClientUser {
    fn from_client(client: &Client) -> Self {
        let name = client.user.map(user_name);
        let workload = client.workload.clone().unwrap_or_default();
        let job = workload.slurm_job.map(|job| job.to_string());
        // Names that a user can change would make any number of series.
        let batch_job = workload.batch_job.filter(|job| !job.unverified);
        let container = match workload.pod_uid {
            Some(_) => None,
            None => workload.container_id,
        };
        Self {
            name: name.unwrap_or_default(),
            slurm_job: job.unwrap_or_default(),
            batch_job: batch_job.map(|job| job.to_string()).unwrap_or_default(),
            pod_uid: workload.pod_uid.unwrap_or_default(),
            pod_name: workload.pod_name.unwrap_or_default(),
            container_id: container.unwrap_or_default(),
        }
    }

    pub(super) fn labels<'a>(&'a self, device: &'a str) -> [(&'a str, &'a str); 7] {
        [
            ("device", device),
            ("user", &self.name),
            ("slurm_job", &self.slurm_job),
            ("batch_job", &self.batch_job),
            ("pod_uid", &self.pod_uid),
            ("pod_name", &self.pod_name),
            ("container_id", &self.container_id),
        ]
    }
}

/// Sums up the clients of a device.
pub(super) fn clients_by_user(device: &Device) -> BTreeMap<ClientUser, ClientSum> {
    let mut sums = BTreeMap::new();
    let clients = device
        .daemon_with_known_clients()
        .into_iter()
        .flat_map(|served| served.clients.as_slice());
    for client in clients {
        let sum = sums
            .entry(ClientUser::from_client(client))
            .or_insert(ClientSum {
                clients: 0,
                memory: Some(0),
            });
        sum.clients += 1;
        sum.memory = sum.memory.zip(client.memory).map(|(sum, own)| sum + own);
    }
    sums
}
