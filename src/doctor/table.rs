//! All checks.

use super::check::Judge;
use super::{
    Check, Diagnosis, Examined, Finding, Subject, attach, daemons, directories, driver, gpus,
    instances, others, reported, surroundings,
};

/// Returns every check, by subject.
pub fn checks() -> Vec<Check> {
    let tables: [&[Check]; 8] = [
        driver::CHECKS,
        gpus::CHECKS,
        instances::CHECKS,
        daemons::CHECKS,
        attach::CHECKS,
        others::CHECKS,
        directories::CHECKS,
        surroundings::CHECKS,
    ];
    let mut checks = tables.concat();
    let is_judged = |id: &str| {
        tables
            .iter()
            .any(|table| table.iter().any(|own| own.id == id))
    };
    checks.extend(reported::checks().filter(|check| !is_judged(check.id)));
    checks.sort_by_key(|check| check.subject);
    checks
}

/// Checks of other subjects than GPUs that the driver must answer for.
const OF_DRIVER: [&str; 6] = [
    "clients-full",
    "memory-over-limit",
    "outside-mps",
    "pipe-too-long",
    "several-daemons",
    "too-many-clients",
];

/// Makes every check; the attach check only if it was asked for.
pub fn examine(examined: &Examined<'_>) -> Vec<Diagnosis> {
    let is_made = |check: &Check| check.id != attach::ID || examined.attached.is_some();
    let checks = checks().into_iter().filter(is_made);
    let made = checks.map(|check| Diagnosis {
        check,
        findings: findings(examined, &check),
    });
    made.collect()
}

fn findings(examined: &Examined<'_>, check: &Check) -> Vec<Finding> {
    let is_of_gpus = check.subject == Subject::Gpus && check.id != instances::DEVICE_NODES;
    let found = match check.judge {
        Judge::Own(judge) => judge(examined),
        Judge::Records(judge) => {
            let unseen = examined.node.unseen_daemons().map(Finding::unknown);
            judge(examined).into_iter().chain(unseen).collect()
        }
        Judge::Reported(id) => reported::findings(examined, id),
    };
    let needs_driver = is_of_gpus || OF_DRIVER.contains(&check.id);
    if examined.node.has_no_driver && needs_driver && found.is_empty() {
        return vec![Finding::unknown("the driver does not answer")];
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::node::ProblemId;

    #[test]
    fn ids_are_unique_and_every_problem_is_a_check() {
        let checks = checks();
        let ids: BTreeSet<&str> = checks.iter().map(|check| check.id).collect();
        assert_eq!(ids.len(), checks.len());
        for id in ProblemId::ALL.iter().map(|id| id.name()).chain(OF_DRIVER) {
            assert!(ids.contains(id), "{id}");
        }
    }
}
