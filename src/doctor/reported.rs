//! The problems and remarks of `status` as checks.

use super::check::Judge;
use super::{Check, Examined, Finding, Severity, Subject};
use crate::node::{DaemonState, ProblemId, Served};

/// Returns a check for each id.
pub(super) fn checks() -> impl Iterator<Item = Check> {
    ProblemId::ALL.iter().map(|id| Check {
        id: id.name(),
        subject: subject(*id),
        fault: id.meaning(),
        why: id.why(),
        remedy: id.remedy(),
        judge: Judge::Reported(*id),
    })
}

fn subject(id: ProblemId) -> Subject {
    match id {
        ProblemId::DriverSilent => Subject::Driver,
        ProblemId::GpuLost | ProblemId::NoMigDevices => Subject::Gpus,
        ProblemId::RecordUnreadable => Subject::Directories,
        _ => Subject::Daemons,
    }
}

/// Returns what `status` has found: a problem is a fail, a remark a warning.
pub(super) fn findings(examined: &Examined<'_>, id: ProblemId) -> Vec<Finding> {
    let problems = examined.problems.iter();
    let problems = problems.map(|problem| (problem, Severity::Fail));
    let remarks = examined.remarks.iter();
    let remarks = remarks.map(|remark| (remark, Severity::Warn));
    let found = problems.chain(remarks);
    let found = found.filter(|(problem, _)| problem.id == id);
    let mut findings: Vec<Finding> = found
        .map(|(problem, severity)| Finding::of_problem(problem, severity))
        .collect();
    findings.extend(hidden(examined, id));
    findings
}

/// Returns what `status` cannot see, and would report.
fn hidden(examined: &Examined<'_>, id: ProblemId) -> Vec<Finding> {
    let node = examined.node;
    match id {
        ProblemId::DeviceHung | ProblemId::GpuFault => {
            let hidden = examined
                .served()
                .filter(|served| served.state == DaemonState::Hidden);
            let found = hidden
                .map(|served| Finding::unknown("its daemon was not asked").on(&served.record.name));
            found.collect()
        }
        ProblemId::MemoryOverLimit => {
            let is_hidden = |served: &&Served| {
                let clients = &served.clients;
                let mut listed = clients.listed().iter();
                served.is_alive()
                    && served.record.settings.pinned_memory_limit.is_some()
                    && !(clients.are_known() && listed.all(|client| client.memory.is_some()))
            };
            let hidden = examined.served().filter(is_hidden);
            let found = hidden.map(|served| {
                Finding::unknown("the memory of its clients is hidden").on(&served.record.name)
            });
            found.collect()
        }
        ProblemId::OutsideMps => {
            let unlisted = examined
                .devices()
                .filter(|(_, device)| !node.processes.contains_key(&device.uuid));
            let found = unlisted.map(|(name, _)| {
                Finding::unknown("the driver shows who computes on it to root alone").on(&name)
            });
            found.collect()
        }
        ProblemId::ChangeUnderWay | ProblemId::ChangeInterrupted if node.may_be_changing => {
            vec![Finding::unknown("the journal is hidden")]
        }
        ProblemId::SeesAllGpus | ProblemId::DefaultPipeDirectory => {
            let hidden = node.unmanaged.iter().filter(|daemon| daemon.is_hidden());
            let found = hidden.map(|daemon| {
                Finding::unknown(format!(
                    "the environment of daemon {} is hidden",
                    daemon.pid
                ))
            });
            found.collect()
        }
        _ => Vec::new(),
    }
}
