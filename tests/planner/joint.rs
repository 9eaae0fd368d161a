//! Profiles with joint devices one after another, on nodes of any size, of which GPUs are lost, or do not exist, and come
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use jiff::Timestamp;
use mig_mps::internals::host::Uid;
use mig_mps::internals::node::{Gpu, Unseen};
use mig_mps::internals::plan::{self, LeftOut, Plan, Refusal};
use mig_mps::internals::profile::Profile;
use mig_mps::internals::state::{AppliedProfile, RecordedGpu};
use proptest::prelude::*;
use proptest::sample::select;

use super::model;
use super::testbed::{self, Testbed, directories};

const MODELS: [&str; 2] = ["h100-80gb-sxm", "h200-141gb-sxm"];

/// The models of a node's GPUs: three in four are the same.
fn models() -> impl Strategy<Value = Vec<&'static str>> {
    let model = prop_oneof![3 => Just(MODELS[0]), 1 => Just(MODELS[1])];
    prop::collection::vec(model, 1..=5)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Want {
    Joint,
    Whole,
    WholeWithoutMps,
    Parts,
    Empty,
}

#[derive(Clone, Debug)]
struct BlockChoice {
    want: Want,
    /// By index; no GPU stands for all.
    gpus: BTreeSet<u32>,
    settings: &'static str,
}

fn block() -> impl Strategy<Value = BlockChoice> {
    let want = prop_oneof![
        4 => Just(Want::Joint),
        1 => Just(Want::Whole),
        1 => Just(Want::WholeWithoutMps),
        2 => Just(Want::Parts),
        1 => Just(Want::Empty),
    ];
    let gpus = prop_oneof![
        1 => Just(BTreeSet::new()),
        2 => prop::collection::btree_set(0_u32..5, 1..5),
    ];
    let settings = select(&["", "serve = \"all\"", "active-thread-percentage = 50"][..]);
    (want, gpus, settings).prop_map(|(want, gpus, settings)| BlockChoice {
        want,
        gpus,
        settings,
    })
}

/// One profile, and what happens to the node before it is applied.
#[derive(Clone, Debug)]
struct Step {
    blocks: Vec<BlockChoice>,
    lost: Option<u32>,
    /// True if the driver does not list the lost GPU, after a boot.
    is_absent: bool,
    keeps_going: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let lost = prop_oneof![3 => Just(None), 2 => (0_u32..5).prop_map(Some)];
    let blocks = prop_oneof![
        prop::collection::vec(block(), 1),
        prop::collection::vec(block(), 1..4),
    ];
    let step = (blocks, lost, any::<bool>(), any::<bool>());
    step.prop_map(|(blocks, lost, is_absent, keeps_going)| Step {
        blocks,
        lost,
        is_absent,
        keeps_going,
    })
}

/// The profile of these blocks, whose indices are those of the node; `None` if a block can select no GPU.
fn profile(blocks: &[BlockChoice], count: u32) -> Option<Profile> {
    let mut text = String::new();
    for (number, block) in blocks.iter().enumerate() {
        let gpus: Vec<u32> = block.gpus.iter().map(|gpu| gpu % count).collect();
        let gpus: BTreeSet<u32> = gpus.into_iter().collect();
        let which = if gpus.is_empty() {
            "all = true".to_owned()
        } else {
            format!("index = {:?}", Vec::from_iter(gpus))
        };
        let _ = writeln!(text, "[[gpu]]\nselect = {{ {which} }}");
        let mps = format!("mps = {{ {} }}", block.settings);
        let _ = match block.want {
            Want::Joint => {
                writeln!(
                    text,
                    "mig = false\nname = \"joint-{number}\"\njoint = true\n{mps}"
                )
            }
            Want::Whole => writeln!(text, "mig = false\n{mps}"),
            Want::WholeWithoutMps => writeln!(text, "mig = false\nmps = false"),
            Want::Parts => writeln!(
                text,
                "devices = [ {{ profile = \"3g\", {mps} }}, {{ profile = \"1g\" }} ]"
            ),
            Want::Empty => writeln!(text, "devices = []"),
        };
    }
    Profile::parse(Path::new("profile.toml"), text).ok()
}

/// The block that selects a GPU: the first one.
fn block_of(blocks: &[BlockChoice], index: u32, count: u32) -> Option<&BlockChoice> {
    blocks.iter().find(|block| {
        let mut gpus = block.gpus.iter();
        block.gpus.is_empty() || gpus.any(|own| own % count == index)
    })
}

/// What is on each GPU, by UUID: MIG mode, instances, and the daemons that serve it or a part of it.
fn contents(testbed: &Testbed) -> BTreeMap<String, String> {
    let mut contents = BTreeMap::new();
    for gpu in &testbed.node.gpus {
        let on_gpu = |gpu: &Gpu| {
            let records = testbed.node.served().map(|served| &served.record);
            let own = records.filter(|record| record.key.has_gpu(&gpu.uuid));
            own.map(|record| format!("{} {:?}", record.uuid, record.settings))
                .collect::<BTreeSet<String>>()
        };
        let is = format!("{:?} {:?} {:?}", gpu.mig, gpu.slice_map(), on_gpu(gpu));
        contents.insert(gpu.uuid.clone(), is);
    }
    contents
}

/// Takes a GPU from the node, as if it had fallen off the bus.
fn lose(testbed: &mut Testbed, index: u32) -> Option<(usize, Gpu)> {
    let at = testbed
        .node
        .gpus
        .iter()
        .position(|gpu| gpu.index == index)?;
    let gpu = testbed.node.gpus.remove(at);
    let why = format!("GPU {index} is lost");
    testbed.node.unseen.push(Unseen::Gpu { index, why });
    testbed.models.remove(at);
    testbed.node.join();
    Some((at, gpu))
}

/// Boots the node without the GPU that was taken from it.
fn boot_without_lost(testbed: &mut Testbed) {
    testbed.node.unseen.clear();
    for device in &mut testbed.node.devices {
        device.served = None;
    }
    testbed.node.join();
}

/// Notes the GPUs of the joint devices of a profile that was applied, as `up` does.
fn note_joint_devices(testbed: &mut Testbed, profile: &Profile) {
    let joint = testbed.node.joint_devices_of(profile, &directories());
    let text = profile.source.text().to_owned();
    let before = &mut testbed.node.joint_before;
    before.retain(|applied| applied.text != text);
    before.insert(
        0,
        AppliedProfile {
            name: None,
            path: "profile.toml".to_owned(),
            at: Timestamp::UNIX_EPOCH,
            by: "root".to_owned(),
            devices: 0,
            boot_id: None,
            joint,
            text,
        },
    );
}

fn plan_of(
    testbed: &Testbed,
    profile: &Profile,
    left_out: Option<&mut LeftOut>,
) -> Result<Plan, Refusal> {
    match left_out {
        Some(left_out) => plan::up_in_part(
            &testbed.node,
            profile,
            &directories(),
            Uid::ROOT,
            left_out,
            plan::Unselected::Stay,
        ),
        None => testbed.plan(profile),
    }
}

/// The devices are what the profile asks for, but for GPUs that are left out.
fn check_devices(
    testbed: &Testbed,
    step: &Step,
    count: u32,
    is_left_out: impl Fn(&Gpu) -> bool,
) -> Result<(), TestCaseError> {
    for (number, block) in step.blocks.iter().enumerate() {
        let gpus = testbed.node.gpus.iter();
        let is_its = |index: u32| {
            let first = block_of(&step.blocks, index, count);
            first.is_some_and(|first| std::ptr::eq(first, block))
        };
        let own: Vec<&Gpu> = gpus.filter(|gpu| is_its(gpu.index)).collect();
        if block.want != Want::Joint || own.is_empty() {
            continue;
        }
        let out = own.iter().filter(|gpu| is_left_out(gpu)).count();
        prop_assert!(out == 0 || out == own.len(), "{out} of {}", own.len());
        let lost = testbed.node.lost_gpus().any(|(index, _)| is_its(index));
        prop_assert!(out > 0 || !lost, "without its lost GPU: {own:?}");
        if out > 0 {
            continue;
        }
        let name = format!("joint-{number}");
        let served = testbed
            .node
            .served()
            .find(|served| served.record.name == name);
        let uuids: Vec<&String> = own.iter().map(|gpu| &gpu.uuid).collect();
        let joint = &served.expect("it is served").record.key.joint;
        prop_assert_eq!(joint.iter().collect::<Vec<_>>(), uuids);
        // It is smaller than it was only by the word of the profile, or if its former GPUs are there.
        let has_one_of =
            |before: &&Vec<RecordedGpu>| before.iter().any(|gpu| joint.contains(&gpu.uuid));
        let profiles = testbed.node.joint_before.iter();
        let mut before = profiles.filter_map(|applied| applied.joint.get(&name).filter(has_one_of));
        let before = before.next().map_or(&[][..], Vec::as_slice);
        let is_there = |gpu: &RecordedGpu| testbed.node.gpus.iter().any(|one| one.uuid == gpu.uuid);
        let may_be_smaller = !block.gpus.is_empty() || before.iter().all(is_there);
        prop_assert!(may_be_smaller || joint.len() >= before.len(), "{joint:?}");
    }
    Ok(())
}

fn apply(testbed: &mut Testbed, step: &Step, count: u32) -> Result<(), TestCaseError> {
    let Some(profile) = profile(&step.blocks, count) else {
        return Ok(());
    };
    let before = contents(testbed);
    let mut left_out = step.keeps_going.then(LeftOut::default);
    let Ok(plan) = plan_of(testbed, &profile, left_out.as_mut()) else {
        // It is refused before anything is touched.
        return Ok(());
    };
    let out: BTreeSet<u32> = plan.missing.iter().filter_map(|one| one.gpu).collect();
    let is_left_out = |gpu: &Gpu| out.contains(&gpu.index);
    let is_alone =
        |gpu: &&Gpu| block_of(&step.blocks, gpu.index, count).is_none() || is_left_out(gpu);
    let alone: Vec<String> = testbed
        .node
        .gpus
        .iter()
        .filter(is_alone)
        .map(|gpu| gpu.uuid.clone())
        .collect();
    for gpu in &plan.gpus {
        prop_assert!(!alone.contains(&gpu.uuid), "{:#?}", gpu);
    }
    testbed.carry_out(&plan);
    let after = contents(testbed);
    for uuid in &alone {
        prop_assert_eq!(&before[uuid], &after[uuid]);
    }
    check_devices(testbed, step, count, is_left_out)?;
    let mut rest_left_out = step.keeps_going.then(LeftOut::default);
    match plan_of(testbed, &profile, rest_left_out.as_mut()) {
        Ok(rest) => prop_assert!(rest.is_empty(), "{:#?}", rest),
        Err(refusal) => prop_assert!(false, "{}", refusal),
    }
    note_joint_devices(testbed, &profile);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gpus_join_and_part_as_wholes(
        models in models(),
        steps in prop::collection::vec(step(), 1..6),
    ) {
        let count = u32::try_from(models.len()).unwrap();
        let mut testbed = Testbed::of(models.into_iter().map(model::named).collect());
        for step in &steps {
            let lost = step.lost.and_then(|index| lose(&mut testbed, index % count));
            let models = testbed.models.clone();
            if step.is_absent && lost.is_some() {
                boot_without_lost(&mut testbed);
            }
            apply(&mut testbed, step, count)?;
            if let Some((at, gpu)) = lost {
                testbed.models = models;
                testbed.models.insert(at, model::named(MODELS[usize::from(gpu.product.contains("H200"))]));
                testbed.node.unseen.clear();
                testbed.node.gpus.insert(at, gpu);
                testbed.node.join();
            }
        }
    }
}

/// A joint device does not become smaller when one of its GPUs is left out.
#[test]
fn a_gpu_that_is_left_out_keeps_the_others_from_joining() {
    let mut testbed = Testbed::new(model::named(MODELS[0]), 4);
    let joint = |gpus: &str| {
        testbed::parse(&format!(
            "[[gpu]]\nselect = {{ index = [{gpus}] }}\nmig = false\nname = \"joint\"\njoint = true\n\
             [[gpu]]\nselect = {{ all = true }}\nmig = false\nmps = false\n"
        ))
    };
    let recorded = testbed.plan(&joint("2, 3")).unwrap();
    testbed.carry_out(&recorded);
    // GPU 3 is left as it is, and so is GPU 2.
    let without = testbed::parse(
        "[[gpu]]\nselect = { index = [0, 1, 2] }\nmig = false\nname = \"other\"\njoint = true\n",
    );
    let before = contents(&testbed);
    assert!(testbed.plan(&without).is_err());
    let mut left_out = LeftOut::default();
    let plan = plan_of(&testbed, &without, Some(&mut left_out));
    assert!(plan.is_err(), "{plan:#?}");
    assert_eq!(contents(&testbed), before);
}
