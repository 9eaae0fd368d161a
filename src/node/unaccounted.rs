use super::Node;
use crate::host::Pid;

impl Node {
    /// The processes that compute on a device and are neither servers nor clients of its daemon, nor idle servers that
    /// outlived one. What they do there is outside the daemon's MPS: they are programs, or servers of unmanaged
    /// daemons.
    pub fn unaccounted_for(&self, uuid: &str) -> Vec<Pid> {
        let Some(processes) = self.processes.get(uuid) else {
            return Vec::new();
        };
        let served = self
            .served
            .iter()
            .find(|served| served.record.uuid == uuid && served.is_alive());
        let known = |pid: Pid| {
            let mut servers = served.into_iter().flat_map(|served| &served.servers);
            servers.any(|server| server.pid == pid)
                || served.is_some_and(|served| served.clients.have(pid))
                || processes.clients.iter().any(|usage| usage.pid == pid.0)
                || self
                    .strays
                    .iter()
                    .any(|stray| stray.is_idle() && stray.server.pid == pid)
        };
        let pids = processes.compute.iter().map(|usage| Pid(usage.pid));
        pids.filter(|&pid| !known(pid)).collect()
    }
}
