//! The problems and remarks of `status` as checks.

use super::check::Judge;
use super::{Check, Examined, Finding, Severity, Subject};
use crate::node::ProblemId;

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
    let unchecked = examined.node.unchecked(id, examined.devices).into_iter();
    findings.extend(unchecked.map(|(device, why)| Finding {
        device,
        ..Finding::unknown(why)
    }));
    findings
}
