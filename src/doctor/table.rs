//! All checks.

use super::check::Judge;
use super::{
    Check, Diagnosis, Examined, attach, daemons, directories, driver, gpus, instances, others,
    reported, surroundings,
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

/// Makes every check.
pub fn examine(examined: &Examined<'_>) -> Vec<Diagnosis> {
    let checks = checks().into_iter();
    let made = checks.map(|check| Diagnosis {
        check,
        findings: match check.judge {
            Judge::Own(judge) => judge(examined),
            Judge::Reported(id) => reported::findings(examined, id),
        },
    });
    made.collect()
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
        for id in ProblemId::ALL {
            assert!(ids.contains(id.name()), "{}", id.name());
        }
    }
}
