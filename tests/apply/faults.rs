//! Every call of a reconfiguration of two GPUs fails in turn.

use std::collections::BTreeSet;
use std::time::Duration;

use mig_mps::internals::apply::{Allowed, ApplyError};
use simnode::node::{Effect, Fault, Node, When};

use crate::apply::child;
use crate::apply::testbed::{Layout, Testbed};

/// Before: on GPU 0 an instance that stays beside one that goes; GPU 1 changes as a whole.
pub(crate) const BEFORE: &Layout = "3g.40gb@0 3g.40gb@4 / 2g.20gb@0 3g.40gb@4";
pub(crate) const AFTER: &Layout = "2g.20gb@0 3g.40gb@4 / 4g.40gb@0";

#[derive(Debug, Default)]
struct Counts {
    runs: usize,
    wanted: usize,
    before: usize,
    reported: usize,
}

/// From what to what.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    pub(crate) model: &'static str,
    pub(crate) before: &'static Layout,
    pub(crate) after: &'static Layout,
}

impl Change {
    pub(crate) fn testbed(self) -> Testbed {
        Testbed::with(self.model, self.before.split('/').count())
    }
}

pub(crate) const RECONFIGURE: Change = Change {
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

/// GPU 0 is set while its daemon runs, and GPU 1 needs another one.
const SET: Change = Change {
    before: "off / off",
    after: r#"off active-thread-percentage = 50, pinned-memory-limit = "2G", client-priority = "below-normal" /
              off compute-mode = "exclusive-process""#,
    ..SWITCH_ON
};

/// MIG devices give way to a joint device.
pub(crate) const JOIN_PARTS: Change = Change {
    before: "3g.71gb@0 / 1g.18gb@0 3g.71gb@4",
    after: "joint / joint",
    ..SWITCH_ON
};

pub(crate) const SPLIT_INTO_PARTS: Change = Change {
    before: JOIN_PARTS.after,
    after: JOIN_PARTS.before,
    ..SWITCH_ON
};

/// The daemons of whole GPUs give way to that of a joint device.
const JOIN_WHOLE: Change = Change {
    before: "off / off",
    after: "joint / joint",
    ..SWITCH_ON
};

/// A joint device takes one GPU in, and lets another one go.
pub(crate) const REJOIN: Change = Change {
    before: "joint / joint / 3g.71gb@0",
    after: "off / joint / joint",
    ..SWITCH_ON
};

struct Trial {
    change: Change,
    testbed: Testbed,
    before: BTreeSet<String>,
    ours: BTreeSet<String>,
    wanted: BTreeSet<String>,
}

impl Trial {
    fn new(change: Change, server: &str) -> Self {
        let mut testbed = change.testbed();
        server.clone_into(&mut testbed.hand.server);
        testbed.hand.bring_to(change.after).unwrap();
        let wanted = testbed.things();
        testbed.hand.bring_to(change.before).unwrap();
        Self {
            change,
            before: testbed.things(),
            ours: testbed.ledger(),
            wanted,
            testbed,
        }
    }

    /// Reconfigures with faults set.
    fn run(&self, what: &str, set: impl Fn(&Node), counts: &mut Counts) {
        let testbed = &self.testbed;
        let met = || testbed.sim.happened("fault");
        let faults = met();
        let node = testbed.hand.observe();
        let plan = testbed.hand.reconfigure(&node, self.change.after);
        // Only now: the faults are meant for what the run itself does.
        set(testbed.sim.node.node());
        let result = testbed.hand.run(&node, &plan, Allowed::default());
        testbed.sim.node.node().clear_faults().unwrap();
        if met() == faults {
            // What is asked until it is ready is not asked as often each time.
            result.unwrap();
            return self.back();
        }
        counts.runs += 1;
        let now = testbed.things();
        match result {
            Ok(()) => {
                assert_eq!(now, self.wanted, "{what}: done");
                counts.wanted += 1;
            }
            Err(error) if now == self.before => {
                assert!(error.rolled_back.stands.is_empty(), "{what}: {error}");
                assert!(error.rolled_back.missing.is_empty(), "{what}: {error}");
                assert_eq!(testbed.ledger(), self.ours, "{what}: {error}");
                counts.before += 1;
                testbed.is_tidy();
                // From here the next run is the good one that was made at first.
                return;
            }
            Err(error) => {
                assert_eq!(now, self.reported(&error), "{what}: {error}");
                counts.reported += 1;
            }
        }
        testbed
            .hand
            .bring_to(self.change.after)
            .unwrap_or_else(|error| panic!("{what}: then: {error}"));
        assert_eq!(testbed.things(), self.wanted, "{what}: then");
        testbed.is_tidy();
        self.back();
    }

    fn back(&self) {
        self.testbed.hand.bring_to(self.change.before).unwrap();
        assert_eq!(self.testbed.things(), self.before);
    }

    /// The things that are on the node according to a report.
    fn reported(&self, error: &ApplyError) -> BTreeSet<String> {
        let named = |item: &String| {
            let known = self.before.union(&self.wanted);
            let mut known = known.filter(|thing| {
                let bare = thing.split(" [").next().unwrap();
                let kept = bare.replace("MIG mode on", "MIG mode is still on, ");
                item.starts_with(&format!("{bare}: "))
                    || item.starts_with(&format!("{bare}\n"))
                    || (kept != bare && item.starts_with(&kept))
            });
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

/// Meets one share of the points with these names, and says what came of it.
fn enumerate(
    trial: &Trial,
    share: usize,
    counts: impl Fn(&str) -> bool,
    set: impl Fn(&Node, &str, u32),
) -> Counts {
    let points = child::points(&trial.testbed, trial.change.after, share, counts);
    trial.back();
    let mut counts = Counts::default();
    for (on, nth) in &points {
        let what = format!("{on} number {nth}");
        trial.run(&what, |node| set(node, on, *nth), &mut counts);
    }
    eprintln!("{counts:?}");
    // A slow start asks a daemon more often than a quick one: not every point of the first run is met again.
    assert!(counts.runs * 3 >= points.len(), "{points:?}: {counts:?}");
    counts
}

fn is_nvml(name: &str) -> bool {
    name.starts_with("nvml")
}

/// Unknown Error: none that is tried again, or taken for an answer.
const UNKNOWN: u32 = 999;

fn nvml_fails_once(change: Change, share: usize) {
    let counts = enumerate(
        &Trial::new(change, "lazy"),
        share,
        is_nvml,
        |node, on, nth| {
            node.fault(on).nth(nth).fails(UNKNOWN).unwrap();
        },
    );
    assert_eq!(counts.reported, 0, "what fails once can be undone");
}

fn control_fails_once(change: Change, share: usize) {
    let is_control = |name: &str| !is_nvml(name);
    let counts = enumerate(
        &Trial::new(change, "eager"),
        share,
        is_control,
        |node, on, nth| {
            node.fault(on).nth(nth).fails(1).unwrap();
        },
    );
    assert_eq!(counts.reported, 0, "what fails once can be undone");
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

fn nvml_keeps_failing(change: Change, share: usize) {
    let counts = enumerate(
        &Trial::new(change, "lazy"),
        share,
        is_nvml,
        |node, on, nth| {
            keeps_failing(node, on, nth, UNKNOWN);
        },
    );
    assert!(counts.reported > 0, "{counts:?}");
}

fn control_keeps_failing(change: Change, share: usize) {
    // A daemon that never takes its quit costs 15 s each time.
    let counted = |name: &str| !is_nvml(name) && name != "quit";
    let trial = Trial::new(change, "eager");
    let counts = enumerate(&trial, share, counted, |node, on, nth| {
        // A refusal, not a busy daemon that is asked again for a while.
        keeps_failing(node, on, nth, 2);
    });
    assert!(counts.reported > 0, "{counts:?}");
}

/// A call that hangs in this process is left behind in its thread.
fn hangs_once(change: Change, share: usize) {
    let changes =
        |name: &str| is_nvml(name) && (name.contains("Create") || name.contains("Destroy"));
    let mut trial = Trial::new(change, "lazy");
    // Short, and many times what a call takes on a node without a GPU.
    trial.testbed.hand.environment.call_limit = Duration::from_millis(700);
    let counts = enumerate(&trial, share, changes, |node, on, nth| {
        node.fault(on).nth(nth).hangs().unwrap();
    });
    assert_eq!(counts.wanted, 0);
}

in_thirds! {
    an_nvml_call_fails_once: nvml_fails_once(RECONFIGURE),
    a_control_command_fails_once: control_fails_once(RECONFIGURE),
    an_nvml_call_keeps_failing: nvml_keeps_failing(RECONFIGURE),
    a_control_command_keeps_failing: control_keeps_failing(RECONFIGURE),
    a_change_hangs_once: hangs_once(RECONFIGURE),
    an_nvml_call_fails_once_where_mig_is_switched_on: nvml_fails_once(SWITCH_ON),
    an_nvml_call_fails_once_where_mig_is_switched_off: nvml_fails_once(SWITCH_OFF),
    an_nvml_call_keeps_failing_where_mig_is_switched_on: nvml_keeps_failing(SWITCH_ON),
    an_nvml_call_keeps_failing_where_mig_is_switched_off: nvml_keeps_failing(SWITCH_OFF),
    an_nvml_call_fails_once_where_settings_change: nvml_fails_once(SET),
    a_control_command_fails_once_where_settings_change: control_fails_once(SET),
    an_nvml_call_fails_once_where_parts_join: nvml_fails_once(JOIN_PARTS),
    a_control_command_fails_once_where_parts_join: control_fails_once(JOIN_PARTS),
    an_nvml_call_keeps_failing_where_parts_join: nvml_keeps_failing(JOIN_PARTS),
    a_change_hangs_once_where_parts_join: hangs_once(JOIN_PARTS),
    an_nvml_call_fails_once_where_a_joint_device_is_split: nvml_fails_once(SPLIT_INTO_PARTS),
    a_control_command_fails_once_where_a_joint_device_is_split: control_fails_once(SPLIT_INTO_PARTS),
    an_nvml_call_keeps_failing_where_a_joint_device_is_split: nvml_keeps_failing(SPLIT_INTO_PARTS),
    a_control_command_fails_once_where_whole_gpus_join: control_fails_once(JOIN_WHOLE),
    a_control_command_keeps_failing_where_whole_gpus_join: control_keeps_failing(JOIN_WHOLE),
    an_nvml_call_fails_once_where_gpus_join_otherwise: nvml_fails_once(REJOIN),
    an_nvml_call_keeps_failing_where_gpus_join_otherwise: nvml_keeps_failing(REJOIN),
    a_control_command_keeps_failing_where_gpus_join_otherwise: control_keeps_failing(REJOIN),
}
