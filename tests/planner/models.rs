//! Every request on every model, against brute force.

use mig_mps::internals::plan::Refusal;

use super::{brute, model, testbed};
use testbed::Testbed;

#[test]
fn a_plan_exists_exactly_when_it_should_on_every_model() {
    let (mut feasible, mut infeasible) = (0, 0);
    for key in model::keys() {
        let model = model::named(key);
        let layouts = brute::layouts(model);
        let empty = Testbed::new(model, 1);
        for counts in brute::requests(model) {
            if counts.iter().all(|&count| count == 0) {
                continue;
            }
            let profile = testbed::asking_for(model, &counts);
            let should = layouts.contains_key(&counts);
            match empty.plan(&profile) {
                Ok(plan) => {
                    assert!(should, "{key} {counts:?} cannot fit: {plan:#?}");
                    let mut after = empty.clone();
                    after.carry_out(&plan);
                    assert!(
                        layouts[&counts].contains(&after.layout()),
                        "{key} {counts:?}"
                    );
                    feasible += 1;
                }
                Err(Refusal::Infeasible(because)) => {
                    assert!(!should, "{key} {counts:?} fits: {because}");
                    assert!(!because.nearest.is_empty(), "{key} {counts:?}");
                    infeasible += 1;
                }
                Err(refusal) => panic!("{key} {counts:?}: {refusal}"),
            }
        }
    }
    println!("{feasible} requests that fit, {infeasible} that do not");
    assert!(feasible > 1_000 && infeasible > 1_000);
}
