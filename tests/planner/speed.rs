//! The time that planning takes is measured by `cargo bench`; here it is only made sure that nothing
//! explodes: requests that differ pairwise are the worst case.

use std::time::Instant;

use mig_mps::internals::profile::Profile;

use super::model;
use super::testbed::{self, Testbed};

#[test]
fn seven_different_wishes_are_planned_at_once() {
    let model = model::named("a100-80gb");
    let entry = |nth: u32| {
        format!(
            "{{ name = \"d{nth}\", profile = \"1g\", mps = {{ active-thread-percentage = {nth}0 }} }}"
        )
    };
    let profile = |order: [u32; 7]| {
        let entries = order.map(entry).join(", ");
        testbed::parse(&format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {entries} ]\n"
        ))
    };
    let mut testbed = Testbed::new(model, 1);
    let forward = profile([1, 2, 3, 4, 5, 6, 7]);
    let plan = testbed.plan(&forward).unwrap();
    testbed.carry_out(&plan);
    let best = |profile: &Profile| {
        let times = (0..5).map(|_| {
            let begun = Instant::now();
            assert!(testbed.plan(profile).unwrap().is_empty());
            begun.elapsed()
        });
        times.min().unwrap()
    };
    // Each finds its own device again, wherever it stands in the file. There are 5,040 orders.
    let [in_order, shuffled] =
        [forward, profile([4, 7, 1, 3, 6, 2, 5])].map(|profile| best(&profile));
    assert!(shuffled < in_order * 20, "{shuffled:?}, {in_order:?}");
}
