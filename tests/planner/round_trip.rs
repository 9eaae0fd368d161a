//! A node, exported, planned and made again, is the same node: for random nodes.

use mig_mps::internals::convert::export;
use mig_mps::internals::host::Uid;
use mig_mps::internals::node::Served;
use mig_mps::internals::nvml::GpuInstanceReading;
use mig_mps::internals::plan::Plan;
use proptest::prelude::*;
use simnode::catalog::Model;

use super::model;
use super::testbed::{self, Testbed, directories};

fn planned(testbed: &Testbed, profile: &str) -> Result<Plan, String> {
    let plan = testbed.plan(&testbed::parse(profile));
    plan.map_err(|refusal| refusal.to_string())
}

fn made(testbed: &Testbed, plan: &Plan) -> Testbed {
    let mut testbed = testbed.clone();
    testbed.carry_out(plan);
    testbed
}

/// One entry of `devices`, or `mig = false`.
fn some_entry(model: &'static Model, prefix: &'static str) -> impl Strategy<Value = String> {
    let offers = &model.profiles;
    let name = prop::sample::select(vec![
        None,
        None,
        Some(format!("{prefix}-{{gpu}}-{{n}}")),
        Some(format!("{prefix}{{n}}")),
        Some(format!("{{gpu}}{prefix}.{{gpu}}.{{n}}")),
    ]);
    let mps = prop::sample::select(vec![
        "",
        "",
        ", mps = { serve = 'all' }",
        ", mps = { server = 'lazy' }",
        ", mps = { active-thread-percentage = 33.3 }",
        ", mps = false",
    ]);
    (0..offers.len(), 1..3_u32, 0..4_u32, name, mps).prop_map(
        move |(nth, count, parts, name, mps)| {
            let offer = &offers[nth];
            // A device without a daemon has no name.
            let name = name.filter(|_| mps != ", mps = false");
            let name = name.map_or_else(String::new, |name| format!("name = '{name}', "));
            let compute = match parts.min(offer.slices) {
                0 => String::new(),
                parts => format!(", compute = [{}]", vec!["'1c'"; parts as usize].join(", ")),
            };
            format!(
                "{{ {name}profile = '{}', count = {count}{compute}{mps} }}",
                offer.name
            )
        },
    )
}

fn some_model() -> impl Strategy<Value = &'static Model> {
    prop::sample::select(model::keys()).prop_map(model::named)
}

/// Models of three GPUs, and entries for the first two and for the third; without any, it is whole.
type Wanted = (&'static Model, &'static Model, Vec<String>, Vec<String>);

fn some_node() -> impl Strategy<Value = Wanted> {
    (some_model(), some_model()).prop_flat_map(|(two, one)| {
        let entries = |model, prefix, least: usize| {
            prop::collection::vec(some_entry(model, prefix), least..4)
        };
        (
            Just(two),
            Just(one),
            entries(two, "a", 1),
            entries(one, "b", 0),
        )
    })
}

fn profile_of(first: &[String], last: &[String]) -> String {
    let two = format!(
        "[[gpu]]\nselect = {{ index = [0, 1] }}\ndevices = [ {} ]\n",
        first.join(", ")
    );
    let third = "[[gpu]]\nselect = { index = [2] }\n";
    match last {
        [] => format!("{two}{third}mig = false\n"),
        last => format!("{two}{third}devices = [ {} ]\n", last.join(", ")),
    }
}

/// The node with as many of the wanted entries as fit, and an empty one.
fn standing((two, one, mut first, mut last): Wanted) -> Option<(Testbed, Testbed)> {
    let empty = Testbed::of(vec![two, two, one]);
    loop {
        if first.is_empty() {
            return None;
        }
        match planned(&empty, &profile_of(&first, &last)) {
            Ok(plan) => return Some((made(&empty, &plan), empty)),
            Err(_)
                if first
                    .iter()
                    .chain(&last)
                    .any(|entry| entry.contains("count = 2")) =>
            {
                for entry in first.iter_mut().chain(&mut last) {
                    *entry = entry.replace("count = 2", "count = 1");
                }
            }
            Err(_) if !last.is_empty() => drop(last.pop()),
            Err(_) => drop(first.pop()),
        }
    }
}

/// The GPU instances of each GPU, with the SMs of their compute instances.
fn geometry(testbed: &Testbed) -> Vec<Vec<(u32, Vec<u32>)>> {
    let of = |instance: &GpuInstanceReading| {
        let compute = instance.compute.iter();
        let mut compute: Vec<u32> = compute.map(|c| c.multiprocessors).collect();
        compute.sort_unstable();
        (instance.profile.0, compute)
    };
    let gpus = testbed.node.gpus.iter();
    gpus.map(|gpu| {
        let mut all: Vec<_> = gpu.instances.iter().map(of).collect();
        all.sort();
        all
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// `plan` calls the exported profile empty, and on an empty node it makes the same node again.
    #[test]
    fn an_exported_profile_matches_the_node(wanted in some_node()) {
        let Some((node, empty)) = standing(wanted) else {
            return Ok(());
        };
        let exported = export(&node.node, &directories(), Uid::ROOT);
        let text = exported.draft.to_string();
        prop_assert_eq!(&exported.notes, &Vec::<String>::new(), "{}", text);
        prop_assert_eq!(planned(&node, &text), Ok(Plan::default()), "{}", text);
        let again = made(&empty, &planned(&empty, &text).unwrap());
        let devices = |testbed: &Testbed| -> Vec<_> {
            let of = |served: &Served| (served.record.key.clone(), served.record.name.clone(), format!("{:?}", served.record.settings));
            let mut all: Vec<_> = testbed.node.served().map(of).collect();
            all.sort();
            all
        };
        prop_assert_eq!(devices(&again), devices(&node), "{}", text);
        let placed = |testbed: &Testbed| -> Vec<String> {
            let gpus = testbed.node.gpus.iter();
            gpus.map(|gpu| gpu.slice_map().to_string()).collect()
        };
        prop_assert_eq!(placed(&again), placed(&node), "{}", text);
        prop_assert_eq!(geometry(&again), geometry(&node), "{}", text);
    }
}

/// The generator above is of use only where much of what it makes fits.
#[test]
fn most_random_nodes_have_something_on_them() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let nodes = (0..200).map(|_| some_node().new_tree(&mut runner).unwrap().current());
    let devices: Vec<usize> = nodes
        .filter_map(|wanted| Some(standing(wanted)?.0.node.served().count()))
        .collect();
    assert!(devices.len() > 150, "{}", devices.len());
    assert!(
        devices.iter().filter(|count| **count > 4).count() > 75,
        "{devices:?}"
    );
}
