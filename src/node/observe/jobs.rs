//! The programs of jobs that `mig-mps job begin` has recorded.

use crate::host::{BatchJob, Environment, Pid, Workload};
use crate::node::{Clients, Node};
use crate::state::{JobRecord, RunDir};

/// Gives the programs in the control groups of recorded jobs the names of these jobs.
pub(super) fn name_recorded(environment: &Environment, node: &mut Node) {
    let run_dir = RunDir::at(&environment.roots_run_dir());
    let jobs = JobRecord::load_all(&run_dir, &node.boot_id);
    if jobs.is_empty() {
        return;
    }
    let name = |pid: Option<Pid>, workload: &mut Option<Workload>| {
        let process = pid.and_then(|pid| environment.host.find_process(pid));
        let job = process.and_then(|process| jobs.iter().find(|job| job.has_process(&process)));
        if let Some(job) = job {
            let known = workload.get_or_insert_default();
            known.batch_job = Some(BatchJob {
                system: known
                    .batch_job
                    .as_ref()
                    .filter(|known| !known.unverified)
                    .and_then(|known| known.system),
                id: job.id.clone(),
                unverified: false,
            });
        }
    };
    for device in &mut node.devices {
        if let Some(served) = &mut device.served {
            let (Clients::Known(clients) | Clients::Partial(clients)) = &mut served.clients;
            for client in clients.iter_mut().chain(&mut served.waiting) {
                name(client.pid, &mut client.workload);
            }
        }
        for program in &mut device.outside_mps {
            name(Some(program.pid), &mut program.workload);
        }
    }
}
