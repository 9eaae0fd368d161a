use super::*;
use crate::geometry::ProfileEnum;

/// The A100's table (MIG user guide): name, id, how many, size, starts.
fn a100() -> Vec<GpuInstanceProfile> {
    [
        ("1g.10gb", 19, 7, 1, vec![0, 1, 2, 3, 4, 5, 6]),
        ("1g.10gb+me", 20, 1, 1, vec![0, 1, 2, 3, 4, 5, 6]),
        ("1g.20gb", 15, 4, 2, vec![0, 2, 4, 6]),
        ("2g.20gb", 14, 3, 2, vec![0, 2, 4]),
        ("3g.40gb", 9, 2, 4, vec![0, 4]),
        ("4g.40gb", 5, 1, 4, vec![0]),
        ("7g.80gb", 0, 1, 8, vec![0]),
    ]
    .into_iter()
    .map(|(name, id, most, size, starts)| GpuInstanceProfile {
        id: ProfileId(id),
        query: ProfileEnum(0),
        name: name.parse().unwrap(),
        slices: 1,
        multiprocessors: Some(14),
        memory_mib: 0,
        engines: None,
        most,
        free: None,
        placements: starts
            .into_iter()
            .map(|start| Placement::new(start, size))
            .collect(),
    })
    .collect()
}

fn requests(names: &str) -> Vec<Request> {
    let offered = a100();
    names
        .split_whitespace()
        .map(|word| {
            let (name, at) = word
                .split_once('@')
                .map_or((word, None), |(name, at)| (name, Some(at.parse().unwrap())));
            let name: crate::geometry::ProfileName = name.parse().unwrap();
            let id = name
                .find_among(offered.iter().map(|p| (&p.name, p.id)))
                .unwrap();
            Request {
                profile: id,
                at,
                entry: 0,
            }
        })
        .collect()
}

fn keeping_is_free(_: usize, _: usize) -> Disruption {
    Disruption::NONE
}

fn on(standing: &[Existing], names: &str) -> Option<(Vec<u32>, Disruption)> {
    let found = arrange(&a100(), standing, &requests(names), &keeping_is_free)?;
    let starts = found.placements.iter().map(|place| place.start).collect();
    Some((starts, found.disruption))
}

fn starts(names: &str) -> Option<Vec<u32>> {
    on(&[], names).map(|(starts, _)| starts)
}

fn standing(id: u32, start: u32, size: u32, clients: u32) -> Existing {
    Existing {
        profile: ProfileId(id),
        placement: Placement::new(start, size),
        disruption: Disruption {
            clients,
            gpu_instances: 1,
            ..Disruption::NONE
        },
    }
}

#[test]
fn three_g_yields_the_half_that_two_g_needs() {
    // A 3g at 0 would leave one compute slice too few behind it.
    assert_eq!(starts("3g 2g 1g 1g"), Some(vec![4, 2, 0, 1]));
    assert_eq!(starts("1g 1g 2g 3g"), Some(vec![0, 1, 2, 4]));
}

#[test]
fn what_cannot_fit_is_infeasible() {
    for names in [
        "3g 3g 1g",
        "4g 4g",
        "7g 1g",
        "1g+me 1g+me",
        "2g 2g 2g 2g",
        "3g 2g 2g 1g",
        "4g@4",
    ] {
        assert_eq!(starts(names), None, "{names}");
    }
}

#[test]
fn a_pinned_placement_is_kept_to() {
    assert_eq!(starts("1g@6 1g"), Some(vec![6, 0]));
    assert_eq!(starts("2g@1"), None);
}

#[test]
fn the_largest_free_block_is_left() {
    assert_eq!(starts("1g"), Some(vec![0]));
    // Beside 4-5, a 1g at 0 leaves 3 units in a row, at 3 it leaves 0-2, at 6 it leaves 0-3.
    assert_eq!(starts("2g@4 1g"), Some(vec![4, 6]));
}

#[test]
fn what_stands_is_kept_where_it_can_be() {
    let halves = [standing(9, 0, 4, 0), standing(9, 4, 4, 0)];
    let disruption = |gpu_instances, clients| Disruption {
        clients,
        gpu_instances,
        ..Disruption::NONE
    };
    assert_eq!(
        on(&halves[1..], "3g 3g"),
        Some((vec![0, 4], disruption(0, 0)))
    );
    assert_eq!(
        on(&halves[1..], "1g 3g"),
        Some((vec![0, 4], disruption(0, 0)))
    );
    assert_eq!(
        on(&halves, "3g 2g 1g 1g"),
        Some((vec![4, 2, 0, 1], disruption(1, 0)))
    );
    // The clients at 0 are in the way of every arrangement.
    let busy = [standing(9, 0, 4, 2), halves[1]];
    assert_eq!(
        on(&busy, "3g 2g 1g 1g"),
        Some((vec![4, 2, 0, 1], disruption(1, 2)))
    );
    // One of two equal ones has to go: the idle one.
    assert_eq!(on(&busy, "3g"), Some((vec![0], disruption(1, 0))));
    assert_eq!(on(&halves, ""), Some((vec![], disruption(2, 0))));
}

#[test]
fn a_request_gets_the_standing_instance_that_suits_it() {
    let halves = [standing(9, 0, 4, 0), standing(9, 4, 4, 0)];
    let mut wanted = requests("3g 3g");
    wanted[1].entry = 1;
    // The first entry's daemon runs at 4, the second's at 0.
    let keeping = |entry: usize, standing: usize| Disruption {
        daemons: u32::from(entry == standing),
        ..Disruption::NONE
    };
    let found = arrange(&a100(), &halves, &wanted, &keeping).unwrap();
    assert_eq!(
        found.placements,
        [Placement::new(4, 4), Placement::new(0, 4)]
    );
    assert_eq!(found.disruption, Disruption::NONE);
    let pinned = [
        Request {
            at: Some(0),
            ..wanted[0].clone()
        },
        wanted[1].clone(),
    ];
    let found = arrange(&a100(), &halves, &pinned, &keeping).unwrap();
    assert_eq!(found.disruption.daemons, 2);
}

#[test]
fn the_order_of_requests_never_decides_feasibility() {
    let names = ["1g", "1g+me", "1g.20gb", "2g", "3g", "4g", "7g"];
    for a in names {
        for b in names {
            for c in names {
                let forward = starts(&format!("{a} {b} {c}")).is_some();
                for order in [[a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
                    assert_eq!(starts(&order.join(" ")).is_some(), forward, "{order:?}");
                }
            }
        }
    }
}
