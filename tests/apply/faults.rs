//! Every call of a reconfiguration of two GPUs fails in turn.

use std::collections::BTreeSet;
use std::time::Duration;

use mig_mps::internals::apply::ApplyError;
use mig_mps::internals::settings::Server;
use simnode::node::{Effect, Fault, Node, When};

use crate::apply::scene::{Layout, Scene};

/// Before: on GPU 0 an instance that stays beside one that goes; GPU 1 changes as a whole.
pub(crate) const BEFORE: &Layout = "3g.40gb@0 3g.40gb@4 / 2g.20gb@0 3g.40gb@4";
pub(crate) const AFTER: &Layout = "2g.20gb@0 3g.40gb@4 / 4g.40gb@0";

/// Every NVML function that a run calls, those that only read included: a run after which none of the faults has happened ends the count,
/// so a name that is never called costs one run.
const NVML: [&str; 18] = [
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
    "nvmlDeviceSetMigMode",
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

/// From what to what.
#[derive(Clone, Copy)]
struct Change {
    model: &'static str,
    before: &'static Layout,
    after: &'static Layout,
}

const RECONFIGURE: Change = Change {
    model: "a100-80gb",
    before: BEFORE,
    after: AFTER,
};

/// On GPUs that change their mode without a reset.
const SWITCH_ON: Change = Change {
    model: "h200-141gb-sxm",
    before: "off / off",
    after: "3g.71gb@0 / 3g.71gb@0",
};

const SWITCH_OFF: Change = Change {
    before: SWITCH_ON.after,
    after: SWITCH_ON.before,
    ..SWITCH_ON
};

struct Trial {
    change: Change,
    scene: Scene,
    before: BTreeSet<String>,
    ours: BTreeSet<String>,
    wanted: BTreeSet<String>,
}

impl Trial {
    fn new(change: Change, server: Server) -> Self {
        let mut scene = Scene::with(change.model, 2);
        scene.hand.server = server;
        scene.hand.bring_to(change.after).unwrap();
        let wanted = scene.things();
        scene.hand.bring_to(change.before).unwrap();
        Self {
            change,
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
        let plan = scene.hand.reconfigure(&node, self.change.after);
        // Only now: what the run itself does shall meet them.
        set(scene.sim.node.node());
        let result = scene
            .hand
            .run(&node, &plan, mig_mps::internals::apply::Allowed::default());
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
                scene.is_tidy();
                // From here the next run is the good one that was made at first.
                return true;
            }
            Err(error) => {
                assert_eq!(now, self.reported(&error), "{what}: {error}");
                counts.reported += 1;
            }
        }
        scene
            .hand
            .bring_to(self.change.after)
            .unwrap_or_else(|error| panic!("{what}: then: {error}"));
        assert_eq!(scene.things(), self.wanted, "{what}: then");
        scene.is_tidy();
        self.back();
        true
    }

    fn back(&self) {
        self.scene.hand.bring_to(self.change.before).unwrap();
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

/// Meets every occurrence of every one of these with faults, and says what came of it.
fn enumerate(
    change: Change,
    names: &[&str],
    server: Server,
    set: impl Fn(&Node, &str, u32),
) -> Counts {
    Trial::new(change, server).enumerate(names, set)
}

impl Trial {
    fn enumerate(&self, names: &[&str], set: impl Fn(&Node, &str, u32)) -> Counts {
        let mut counts = Counts::default();
        for on in names {
            for nth in 1.. {
                let what = format!("{on} number {nth}");
                if !self.run(&what, |node| set(node, on, nth), &mut counts) {
                    break;
                }
            }
        }
        eprintln!("{counts:?}");
        counts
    }
}

/// Unknown Error: none that is tried again, or taken for an answer.
const UNKNOWN: u32 = 999;

#[test]
fn each_nvml_call_fails_once() {
    let counts = enumerate(RECONFIGURE, &NVML, Server::Lazy, |node, on, nth| {
        node.fault(on).nth(nth).fails(UNKNOWN).unwrap();
    });
    assert_eq!(counts.reported, 0, "what fails once can be undone");
    assert!(counts.runs > 60);
}

#[test]
fn each_control_command_fails_once() {
    let counts = enumerate(RECONFIGURE, &MPS, Server::Eager, |node, on, nth| {
        node.fault(on).nth(nth).fails(1).unwrap();
    });
    assert_eq!(counts.reported, 0, "what fails once can be undone");
    assert!(counts.runs > 18);
}

/// More than there are occurrences in a run and what undoes it.
const FOR_EVER: u32 = 80;

/// From the nth occurrence on it fails.
fn keeps_failing(node: &Node, on: &str, nth: u32, code: u32) {
    let faults = (nth..nth + FOR_EVER).map(|nth| Fault {
        on: on.to_owned(),
        when: When::In(nth),
        effect: Effect::Fail(code),
    });
    let set = node.update(|state| state.faults.extend(faults));
    set.unwrap();
}

#[test]
fn each_nvml_call_keeps_failing() {
    let counts = enumerate(RECONFIGURE, &NVML, Server::Lazy, |node, on, nth| {
        keeps_failing(node, on, nth, UNKNOWN);
    });
    assert!(counts.reported > 0, "{counts:?}");
}

#[test]
fn each_control_command_keeps_failing() {
    // A daemon that never takes its quit costs 15 s each time.
    let names = &MPS[..MPS.len() - 1];
    let counts = enumerate(RECONFIGURE, names, Server::Eager, |node, on, nth| {
        // A refusal, not a busy daemon that is asked again for a while.
        keeps_failing(node, on, nth, 2);
    });
    assert!(counts.reported > 0, "{counts:?}");
}

/// A call that hangs in this process is left behind in its thread.
#[test]
fn each_change_hangs_once() {
    let names = NVML.iter().filter(|name| {
        let changes = ["Create", "Destroy", "SetMigMode"];
        changes.iter().any(|change| name.contains(change))
    });
    let names: Vec<&str> = names.copied().collect();
    let mut trial = Trial::new(RECONFIGURE, Server::Lazy);
    // Short, and many times what a call takes on a node without a GPU.
    trial.scene.hand.environment.call_limit = Duration::from_millis(700);
    let counts = trial.enumerate(&names, |node, on, nth| {
        node.fault(on).nth(nth).hangs().unwrap();
    });
    assert_eq!(counts.wanted, 0);
    assert!(counts.runs >= 10);
}

#[test]
fn each_nvml_call_of_a_change_of_mode_fails_once() {
    for change in [SWITCH_ON, SWITCH_OFF] {
        let counts = enumerate(change, &NVML, Server::Lazy, |node, on, nth| {
            node.fault(on).nth(nth).fails(UNKNOWN).unwrap();
        });
        assert_eq!(counts.reported, 0, "what fails once can be undone");
    }
}

#[test]
fn each_nvml_call_of_a_change_of_mode_keeps_failing() {
    for change in [SWITCH_ON, SWITCH_OFF] {
        let counts = enumerate(change, &NVML, Server::Lazy, |node, on, nth| {
            keeps_failing(node, on, nth, UNKNOWN);
        });
        assert!(counts.reported > 0, "{counts:?}");
    }
}
