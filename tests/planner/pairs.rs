//! Every way from any layout to any request on the grid of seven slices, against brute force. Unless
//! `EXHAUSTIVE` is set, one layout in five is tried as the first one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use mig_mps::internals::geometry::{Disruption, Existing, Placement, ProfileId, Request, arrange};
use mig_mps::internals::plan::{Plan, Refusal};
use mig_mps::internals::profile::Profile;
use simnode::catalog::Model;

use super::brute::{self, Body, Counts};
use super::{model, testbed};
use testbed::Testbed;
use testkit::sample;

/// The measures that plans are compared by, less is better: clients disrupted, GPU instances destroyed, daemons
/// stopped, then the largest free block, and the placements.
type Score = (u32, usize, usize, Reverse<u32>, Vec<(u32, u32)>);

/// An instance with a daemon that has so many clients.
type Served = (Body, u32);

struct Grid {
    model: &'static Model,
    layouts: BTreeMap<Counts, Vec<Vec<Body>>>,
    requests: Vec<(Counts, Profile)>,
}

impl Grid {
    fn new() -> Self {
        let model = model::named("a100-80gb");
        let layouts = brute::layouts(model);
        let requests = layouts.keys().cloned();
        let requests = requests.filter(|counts| counts.iter().any(|&count| count > 0));
        Self {
            model,
            requests: requests
                .map(|counts| {
                    let profile = testbed::asking_for(model, &counts);
                    (counts, profile)
                })
                .collect(),
            layouts,
        }
    }

    /// The best that can be, found by looking at all.
    fn best(&self, standing: &[Body], served: &[Served], counts: &Counts) -> Score {
        let wanted = self.layouts[counts].iter();
        let scores = wanted.map(|layout| self.score(standing, served, layout));
        scores.min().expect("a layout with these counts")
    }

    fn score(&self, standing: &[Body], served: &[Served], layout: &[Body]) -> Score {
        let gone = standing.iter().filter(|body| !layout.contains(body));
        let stopped = served.iter().filter(|(body, _)| !layout.contains(body));
        (
            stopped.clone().map(|(_, clients)| clients).sum(),
            gone.count(),
            stopped.count(),
            Reverse(brute::free_block(self.model, layout)),
            layout
                .iter()
                .map(|&(_, start, size)| (start, size))
                .collect(),
        )
    }

    /// The layouts from which ways begin.
    fn standing(&self) -> Vec<&Vec<Body>> {
        let all = self.layouts.values().flatten();
        // That the grid is whole.
        assert_eq!(all.clone().count(), 2319);
        sample(all, 5)
    }
}

/// Works through all standing layouts on every core.
fn each<T: Sync>(items: &[T], work: impl Fn(&T) -> usize + Sync) -> usize {
    let (next, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let cores = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    total.fetch_add(work(item), Ordering::Relaxed);
                }
            });
        }
    });
    total.into_inner()
}

#[test]
fn every_way_from_a_layout_to_a_request_is_the_best_there_is() {
    let grid = Grid::new();
    let pairs = each(&grid.standing(), |standing| {
        let mut before = Testbed::new(grid.model, 1);
        before.lay(standing);
        for (counts, profile) in &grid.requests {
            let plan = before
                .plan(profile)
                .unwrap_or_else(|refusal| panic!("{standing:?} to {counts:?}: {refusal}"));
            let mut after = before.clone();
            after.carry_out(&plan);
            let score = grid.score(standing, &[], &after.layout());
            let best = grid.best(standing, &[], counts);
            assert_eq!(score, best, "{standing:?} to {counts:?}: {plan:#?}");
        }
        grid.requests.len()
    });
    println!("{pairs} pairs");
    assert_eq!(grid.requests.len(), 127);
    assert_eq!(pairs, 127 * grid.standing().len());
}

#[test]
fn what_does_not_fit_fits_beside_nothing_that_stands() {
    let grid = Grid::new();
    let node = model::node(&[grid.model]);
    let offered = &node.gpus[0].profiles;
    let wanted: Vec<Vec<Request>> = brute::requests(grid.model)
        .iter()
        .filter(|counts| !grid.layouts.contains_key(*counts))
        .map(|counts| {
            let counts = by_id(grid.model, counts);
            let request = |&(profile, count): &(ProfileId, u32)| {
                let request = Request {
                    profile,
                    at: None,
                    entry: 0,
                };
                std::iter::repeat_n(request, count as usize)
            };
            counts.iter().flat_map(request).collect()
        })
        .collect();
    let free = |_: usize, _: usize| Disruption::NONE;
    let pairs = each(&grid.standing(), |layout| {
        let standing: Vec<Existing> = layout
            .iter()
            .map(|&(number, start, size)| Existing {
                profile: ProfileId(grid.model.profiles[number].id),
                placement: Placement::new(start, size),
                disruption: Disruption::NONE,
            })
            .collect();
        for requests in &wanted {
            let found = arrange(offered, &standing, requests, &free);
            assert_eq!(found, None, "{layout:?} to {requests:?}");
        }
        wanted.len()
    });
    println!("{pairs} pairs that cannot be");
    assert!(pairs > 50_000);
}

fn by_id(model: &Model, counts: &Counts) -> Vec<(ProfileId, u32)> {
    let profiles = model.profiles.iter().map(|profile| ProfileId(profile.id));
    profiles.zip(counts.iter().copied()).collect()
}

#[test]
fn clients_and_daemons_are_left_alone_if_that_can_be() {
    let grid = Grid::new();
    let has_plain_names = |layout: &&&Vec<Body>| {
        let names = layout
            .iter()
            .map(|(number, ..)| &grid.model.profiles[*number]);
        names
            .clone()
            .all(|profile| profile.attributes.is_empty() && profile.name != "1g.20gb")
    };
    let standing: Vec<&Vec<Body>> = grid.standing();
    let standing: Vec<&Vec<Body>> = standing.iter().filter(has_plain_names).copied().collect();
    let refused = AtomicUsize::new(0);
    let pairs = each(&standing, |standing| {
        let mut count = 0;
        for nth in 0..standing.len() {
            // One with a client, and the next one with a daemon alone.
            let mut served = vec![(nth, 1), ((nth + 1) % standing.len(), 0)];
            served.dedup_by_key(|(nth, _)| *nth);
            let mut before = Testbed::new(grid.model, 1);
            before.lay(standing);
            let devices = before.node.gpus[0].devices();
            for &(nth, clients) in &served {
                before.serve(&devices[nth], clients);
            }
            let served: Vec<Served> = served
                .into_iter()
                .map(|(nth, clients)| (standing[nth], clients))
                .collect();
            for (counts, profile) in &grid.requests {
                let best = grid.best(standing, &served, counts);
                count += 1;
                let plan = before.plan(profile).expect("a plan");
                let disturbed = plan.clients_in_the_way().count();
                assert_eq!(disturbed, best.0 as usize, "{standing:?} to {counts:?}");
                assert_eq!(is_refused(&plan), best.0 > 0);
                refused.fetch_add(disturbed, Ordering::Relaxed);
                let mut after = before.clone();
                after.carry_out(&plan);
                let score = grid.score(standing, &served, &after.layout());
                assert_eq!(score, best, "{standing:?} to {counts:?}: {plan:#?}");
            }
        }
        count
    });
    println!("{pairs} pairs with a daemon, {refused:?} refused");
    assert!(refused.into_inner() > 200 && pairs > 4_000);
}

fn is_refused(plan: &Plan) -> bool {
    matches!(plan.permit("hint"), Err(Refusal::InUse { .. }))
}

#[test]
fn the_half_that_has_to_stay_decides() {
    let grid = Grid::new();
    let number = |name: &str| {
        let mut profiles = grid.model.profiles.iter();
        profiles.position(|profile| profile.name == name).unwrap()
    };
    let three = number("3g.40gb");
    let mut before = Testbed::new(grid.model, 1);
    before.lay(&[(three, 0, 4), (three, 4, 4)]);
    let mut counts = vec![0; grid.model.profiles.len()];
    counts[three] = 1;
    counts[number("2g.20gb")] = 1;
    counts[number("1g.10gb")] = 2;
    let profile = testbed::asking_for(grid.model, &counts);
    let devices = before.node.gpus[0].devices();
    for (busy, is_in_the_way) in [(0, true), (1, false)] {
        let mut before = before.clone();
        before.serve(&devices[busy], 1);
        let plan = before.plan(&profile).unwrap();
        assert_eq!(is_refused(&plan), is_in_the_way);
        let mut after = before.clone();
        after.carry_out(&plan.by_force(1));
        assert!(after.layout().contains(&(three, 4, 4)));
    }
}
