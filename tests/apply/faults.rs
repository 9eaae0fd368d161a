//! Every call of a reconfiguration of two GPUs fails in turn.

use std::collections::BTreeSet;
use std::time::Instant;

use mig_mps::apply::ApplyError;
use mig_mps::nvml::Code;
use simnode::node::Node;

use crate::scene::{Layout, Scene};

/// Before: on GPU 0 an instance that stays beside one that goes; GPU 1 changes as a whole.
pub(crate) const BEFORE: &Layout = "3g.40gb@0 3g.40gb@4 / 2g.20gb@0 3g.40gb@4";
pub(crate) const AFTER: &Layout = "2g.20gb@0 3g.40gb@4 / 4g.40gb@0";

/// Every NVML function that a run calls, those that only read included: a run after which none of the faults has happened ends the count,
/// so a name that is never called costs one run.
const NVML: [&str; 17] = [
    "nvmlInit_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceDestroy",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlComputeInstanceDestroy",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMinorNumber",
];

/// Every command and start of NVIDIA's MPS programs that a run makes.
const MPS: [&str; 8] = [
    "daemon start",
    "server start",
    "set_default_active_thread_percentage",
    "get_default_active_thread_percentage",
    "start_server",
    "get_server_list",
    "get_server_status",
    "quit",
];

#[derive(Debug, Default)]
struct Counts {
    runs: usize,
    wanted: usize,
    before: usize,
    reported: usize,
}

struct Trial {
    scene: Scene,
    before: BTreeSet<String>,
    ours: BTreeSet<String>,
    wanted: BTreeSet<String>,
}

impl Trial {
    fn new() -> Self {
        let scene = Scene::with("a100-80gb", 2);
        scene.hand.bring_to(AFTER).unwrap();
        let wanted = scene.things();
        scene.hand.bring_to(BEFORE).unwrap();
        Self {
            before: scene.things(),
            ours: scene.ledger(),
            wanted,
            scene,
        }
    }

    /// Reconfigures with faults set; `false` where none was met.
    fn run(&self, what: &str, set: impl Fn(&Node), counts: &mut Counts) -> bool {
        let scene = &self.scene;
        let met = || scene.sim.happened("fault");
        let faults = met();
        let node = scene.hand.observe();
        let plan = crate::scene::reconfigure(&node, AFTER);
        // Only now: what the run itself does shall meet them.
        set(scene.sim.node.node());
        let result = scene
            .hand
            .run(&node, &plan, mig_mps::apply::Allowed::default());
        scene.sim.node.node().clear_faults().unwrap();
        if met() == faults {
            result.unwrap();
            self.back();
            return false;
        }
        counts.runs += 1;
        let now = scene.things();
        match result {
            Ok(()) => {
                assert_eq!(now, self.wanted, "{what}: done");
                counts.wanted += 1;
            }
            Err(error) if now == self.before => {
                assert!(error.rolled_back.stands.is_empty(), "{what}: {error}");
                assert!(error.rolled_back.missing.is_empty(), "{what}: {error}");
                assert_eq!(scene.ledger(), self.ours, "{what}: {error}");
                counts.before += 1;
            }
            Err(error) => {
                assert_eq!(now, self.reported(&error), "{what}: {error}");
                counts.reported += 1;
            }
        }
        scene
            .hand
            .bring_to(AFTER)
            .unwrap_or_else(|error| panic!("{what}: then: {error}"));
        assert_eq!(scene.things(), self.wanted, "{what}: then");
        scene.is_tidy();
        self.back();
        true
    }

    fn back(&self) {
        self.scene.hand.bring_to(BEFORE).unwrap();
        assert_eq!(self.scene.things(), self.before);
    }

    /// What a report says is on the node.
    fn reported(&self, error: &ApplyError) -> BTreeSet<String> {
        let named = |item: &String| {
            let known = self.before.union(&self.wanted);
            let mut known = known.filter(|thing| item.starts_with(&format!("{thing}: ")));
            known
                .next()
                .unwrap_or_else(|| panic!("{item} is not known"))
                .clone()
        };
        let mut things = self.before.clone();
        for missing in &error.rolled_back.missing {
            assert!(things.remove(&named(missing)), "{missing}: {error}");
        }
        things.extend(error.rolled_back.stands.iter().map(named));
        things
    }
}

#[test]
fn each_call_fails_once() {
    let begun = Instant::now();
    let trial = Trial::new();
    let mut all = Counts::default();
    for (on, code) in calls() {
        let mut counts = Counts::default();
        let mut nth = 1;
        loop {
            let set = |node: &Node| node.fault(on).nth(nth).fails(code).unwrap();
            if !trial.run(&format!("{on} number {nth}"), set, &mut counts) {
                break;
            }
            nth += 1;
        }
        eprintln!("{on}: {counts:?} {:?}", begun.elapsed());
        all.runs += counts.runs;
        all.wanted += counts.wanted;
        all.before += counts.before;
        all.reported += counts.reported;
    }
    eprintln!("{all:?}");
}

fn calls() -> impl Iterator<Item = (&'static str, u32)> {
    // Unknown Error: nothing that is tried again or taken for an answer.
    let nvml = NVML.map(|name| (name, 999));
    let mps = MPS.map(|name| (name, 1));
    assert_ne!(nvml[0].1, Code::IN_USE.0);
    nvml.into_iter().chain(mps)
}
