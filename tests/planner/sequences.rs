//! One profile after another on GPUs of any model.

use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::testbed::{self, Testbed};
use super::{brute, model};

/// The names and the settings of MPS that a device may have.
const NAMES: [&str; 4] = ["", "x-{gpu}-{n}", "y{n}", "z-{gpu}-{n}"];
const SETTINGS: [&str; 3] = ["", "serve = \"all\"", "active-thread-percentage = 50"];

#[derive(Clone, Debug)]
struct Request {
    counts: Index,
    name: &'static str,
    settings: &'static str,
    split: bool,
    order: Vec<Index>,
}

fn request() -> impl Strategy<Value = Request> {
    (
        any::<Index>(),
        select(&NAMES[..]),
        select(&SETTINGS[..]),
        any::<bool>(),
        prop::collection::vec(any::<Index>(), 8),
    )
        .prop_map(|(counts, name, settings, split, order)| Request {
            counts,
            name,
            settings,
            split,
            order,
        })
}

/// The entries of a request on a model: half the entries with a name and settings of their own.
fn entries(
    model: &simnode::catalog::Model,
    feasible: &[&Vec<u32>],
    request: &Request,
) -> Vec<String> {
    let counts = *request.counts.get(feasible);
    let mut entries = Vec::new();
    for (number, (profile, &count)) in model.profiles.iter().zip(counts).enumerate() {
        let mut add = |count: u32, special: bool| {
            if count == 0 {
                return;
            }
            let mut keys = format!("profile = \"{}\", count = {count}", profile.name);
            if special && !request.name.is_empty() {
                let _ = write!(keys, ", name = \"{}\"", request.name);
            }
            if special && !request.settings.is_empty() {
                let _ = write!(keys, ", mps = {{ {} }}", request.settings);
            }
            if special && request.split && profile.slices > 1 {
                keys += ", compute = [\"1c\", \"1c\"]";
            }
            entries.push(format!("{{ {keys} }}"));
        };
        let half = if number % 2 == 0 {
            count / 2
        } else {
            count.div_ceil(2)
        };
        add(half, true);
        add(count - half, false);
    }
    entries
}

fn profile(entries: &[String]) -> mig_mps::internals::profile::Profile {
    testbed::parse(&format!(
        "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {} ]\n",
        entries.join(", ")
    ))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever stood before: after `up`, `plan` of the same profile is empty, however its devices are
    /// ordered.
    #[test]
    fn nothing_is_left_to_do_after_up(
        key in select(model::keys()),
        gpus in 1_usize..3,
        requests in prop::collection::vec(request(), 1..6),
    ) {
        let model = model::named(key);
        let layouts = brute::layouts(model);
        let feasible: Vec<&Vec<u32>> = layouts
            .keys()
            .filter(|counts| counts.iter().any(|&count| count > 0))
            .collect();
        let mut testbed = Testbed::new(model, gpus);
        for request in &requests {
            let mut entries = entries(model, &feasible, request);
            let wanted = profile(&entries);
            let plan = testbed.plan(&wanted).unwrap_or_else(|refusal| panic!("{refusal}"));
            for (nth, index) in request.order.iter().enumerate().take(entries.len()) {
                let other = index.index(entries.len());
                entries.swap(nth, other);
            }
            let shuffled = testbed.plan(&profile(&entries));
            prop_assert!(shuffled.is_ok());
            testbed.carry_out(&plan);
            let rest = testbed.plan(&wanted).unwrap_or_else(|refusal| panic!("{refusal}"));
            prop_assert!(rest.is_empty(), "{key} {entries:?}: {rest:#?}");
        }
    }
}
