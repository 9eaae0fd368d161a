//! A node, exported, planned and made again, is the same node: for random nodes, without any I/O.

use std::path::Path;

use jiff::Timestamp;
use mig_mps::catalog::{self, Model};
use mig_mps::convert::{export, import, mig_parted, to_mig_parted};
use mig_mps::geometry::{
    ComputeChoice, ComputeInstanceId, ComputeProfileId, GpuInstanceId, Placement,
};
use mig_mps::host::Uid;
use mig_mps::node::{DeviceRecord, Life, Node, RunDir, Served};
use mig_mps::nvml::{ComputeInstanceReading, GpuInstanceReading, MigMode};
use mig_mps::plan::{self, Action, GpuPlan, Place, Plan};
use mig_mps::profile::{Profile, Settings};
use proptest::prelude::*;

fn home() -> RunDir {
    RunDir::at(Path::new("/run/mig-mps"))
}

fn planned(node: &Node, profile: &str) -> Result<Plan, String> {
    let profile = Profile::parse(Path::new("p.toml"), profile.to_owned()).unwrap();
    let plan = plan::up(node, &profile, &home(), Uid::ROOT);
    plan.map_err(|refusal| refusal.to_string())
}

/// Carries a plan out on a node that exists only here.
fn made(node: &Node, plan: &Plan) -> Node {
    let mut node = node.clone();
    for gpu_plan in &plan.gpus {
        make_instances(&mut node, gpu_plan);
        start_daemons(&mut node, gpu_plan);
    }
    node
}

fn make_instances(node: &mut Node, plan: &GpuPlan) {
    let gpu = node
        .gpus
        .iter_mut()
        .find(|gpu| gpu.index == plan.index)
        .unwrap();
    for step in &plan.steps {
        match &step.action {
            Action::SwitchMig { on: true } => {
                gpu.mig = Some(MigMode {
                    current: true,
                    pending: true,
                });
            }
            Action::CreateGpuInstance {
                profile, placement, ..
            } => gpu.instances.push(GpuInstanceReading {
                id: GpuInstanceId(placement.start + 1),
                profile: *profile,
                placement: *placement,
                compute: Vec::new(),
                offered: Vec::new(),
            }),
            Action::CreateComputeInstance { instance, compute } => {
                let choice = *compute;
                let uuid = format!("MIG-{}-{instance}-{}", gpu.index, step.because.len());
                let at = gpu
                    .instances
                    .iter()
                    .position(|one| one.placement == *instance)
                    .unwrap();
                let offer = gpu.profile(gpu.instances[at].profile).unwrap().clone();
                let compute = &mut gpu.instances[at].compute;
                let start = compute.iter().map(|one| one.slices).sum();
                let (size, sms) = match choice {
                    ComputeChoice::Slices { count, .. } => {
                        (count, offer.multiprocessors / offer.slices * count)
                    }
                    _ => (offer.slices, offer.multiprocessors),
                };
                compute.push(ComputeInstanceReading {
                    id: ComputeInstanceId(start),
                    profile: ComputeProfileId(size),
                    uuid: format!("{uuid}-{start}"),
                    placement: Placement::new(start, size),
                    slices: size,
                    multiprocessors: sms,
                });
            }
            _ => {}
        }
    }
    gpu.instances.sort_by_key(|instance| instance.placement);
}

fn start_daemons(node: &mut Node, plan: &GpuPlan) {
    let gpu = node
        .gpus
        .iter()
        .find(|gpu| gpu.index == plan.index)
        .unwrap();
    let devices = gpu.devices();
    for step in &plan.steps {
        let Action::Start(start) = &step.action else {
            continue;
        };
        let device = match start.place {
            Place::Whole => devices.first(),
            Place::Part { placement, nth } => {
                let lies_there = |part: &mig_mps::node::DevicePart| part.placement == placement;
                let mut there = devices
                    .iter()
                    .filter(|d| d.part.as_ref().is_some_and(lies_there));
                there.nth(nth)
            }
        };
        let device = device.unwrap();
        node.served.push(Served {
            record: DeviceRecord {
                name: start.name.clone(),
                key: device.key.clone(),
                uuid: device.uuid.clone(),
                settings: Settings {
                    serve: Some(start.serve),
                    server: start.server,
                    active_thread_percentage: start.active_thread_percentage,
                },
                daemon: None,
                finished: true,
                boot_id: String::new(),
                since: Timestamp::UNIX_EPOCH,
            },
            run_dir: home(),
            device_is_there: true,
            life: Life::Ready,
            is_known: true,
            problem: None,
            servers: Vec::new(),
            clients: Vec::new(),
            waiting: Vec::new(),
            client_limit: None,
            percentage: None,
        });
    }
}

/// One entry of `devices`, or `mig = false`.
fn some_entry(model: &'static Model, prefix: &'static str) -> impl Strategy<Value = String> {
    let offers = model.offers();
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
    ]);
    (0..offers.len(), 1..3_u32, 0..4_u32, name, mps).prop_map(
        move |(nth, count, parts, name, mps)| {
            let offer = &offers[nth];
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
    (0..catalog::models().len()).prop_map(|nth| &catalog::models()[nth])
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
fn standing((two, one, mut first, mut last): Wanted) -> Option<(Node, Node)> {
    let empty = Node::of_models([(0, two), (1, two), (2, one)]);
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// `plan` calls the exported profile empty, and on an empty node it makes the same node again.
    #[test]
    fn an_exported_profile_is_what_is_there(wanted in some_node()) {
        let Some((node, empty)) = standing(wanted) else {
            return Ok(());
        };
        let exported = export(&node, &home(), Uid::ROOT);
        let text = exported.draft.to_string();
        prop_assert_eq!(&exported.notes, &Vec::<String>::new(), "{}", text);
        prop_assert_eq!(planned(&node, &text), Ok(Plan::default()), "{}", text);
        let again = made(&empty, &planned(&empty, &text).unwrap());
        let devices = |node: &Node| -> Vec<_> {
            let of = |served: &Served| (served.record.key.clone(), served.record.name.clone(), format!("{:?}", served.record.settings));
            let mut all: Vec<_> = node.served.iter().map(of).collect();
            all.sort();
            all
        };
        prop_assert_eq!(devices(&again), devices(&node), "{}", text);
    }

    /// What goes to mig-parted and comes back is the same geometry, or the file says what is lost.
    #[test]
    fn mig_parted_gives_back_what_it_got(wanted in some_node()) {
        let Some((node, empty)) = standing(wanted) else {
            return Ok(());
        };
        let (yaml, lost) = to_mig_parted(&node);
        if lost.iter().any(|lost| lost.contains("put compute instances together")) {
            return Ok(());
        }
        let spec = mig_parted::Spec::parse(Path::new("c.yaml"), yaml.clone()).unwrap();
        let profile = import(&spec, "current", true).unwrap().draft.to_string();
        let back = made(&empty, &planned(&empty, &profile).unwrap());
        let geometry = |node: &Node| -> Vec<Vec<(u32, Vec<u32>)>> {
            let of = |instance: &GpuInstanceReading| {
                let mut compute: Vec<u32> = instance.compute.iter().map(|c| c.multiprocessors).collect();
                compute.sort_unstable();
                (instance.profile.0, compute)
            };
            node.gpus.iter().map(|gpu| {
                let mut all: Vec<_> = gpu.instances.iter().map(of).collect();
                all.sort();
                all
            }).collect()
        };
        prop_assert_eq!(geometry(&back), geometry(&node), "{}", yaml);
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
        .filter_map(|wanted| Some(standing(wanted)?.0.served.len()))
        .collect();
    assert!(devices.len() > 150, "{}", devices.len());
    assert!(
        devices.iter().filter(|count| **count > 4).count() > 75,
        "{devices:?}"
    );
}
