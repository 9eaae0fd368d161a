//! A process of its own that changes the node, so that it can be killed.

use std::collections::BTreeMap;
use std::env;
use std::io::stdin;
use std::process::Command;

use mig_mps::internals::apply::Allowed;
use mig_mps::internals::host::Environment;

use crate::apply::testbed::{Hand, Layout, Testbed};
use testkit::{Dialogue, hearing, sample};

const LAYOUT: &str = "APPLY_TEST_LAYOUT";
const ALLOWED: &str = "APPLY_TEST_ALLOWED";
const SERVER: &str = "APPLY_TEST_SERVER";
const PLANNED: &str = "planned";

/// A process that has planned to bring a testbed's node to a layout, and carries the plan out when it reads a line.
pub(crate) fn start(testbed: &Testbed, layout: &Layout, allowed: &str) -> Dialogue {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "apply::child::child", "--ignored", "--nocapture"])
        .env_clear()
        .envs(testbed.sim.node.env())
        .env("SIMNODE_EVENTS", "all")
        .env(LAYOUT, layout)
        .env(ALLOWED, allowed)
        .env(SERVER, &testbed.hand.server);
    let mut child = Dialogue::start(hearing(&command));
    child.await_text(PLANNED);
    child
}

/// One third of the places where a fault can meet what brings a testbed's node to a layout: the nth occurrence of a name. All
/// are found by a run without faults, which leaves the node there. Of more than ten places, one in three is returned unless
/// `EXHAUSTIVE` is set.
pub(crate) fn points(
    testbed: &Testbed,
    layout: &Layout,
    share: usize,
    counts: impl Fn(&str) -> bool,
) -> Vec<(String, u32)> {
    let mut child = start(testbed, layout, "");
    let planned = testbed.sim.node.events().len();
    child.press("go\n");
    let _ = child.end().ended(0);
    // These alone are not in the event log.
    let mut found = BTreeMap::from(["nvmlInit_v2", "nvmlShutdown"].map(|on| (on.to_owned(), 1)));
    for event in testbed.sim.node.events().split_off(planned) {
        *found.entry(event.what).or_default() += 1;
    }
    // Calls of NVML, commands and starts; other events follow from these.
    found.retain(|on, _| (!on.contains(' ') || on.ends_with(" start")) && counts(on));
    let each = |(on, count): (String, u32)| (1..=count).map(move |nth| (on.clone(), nth));
    let third: Vec<_> = found
        .into_iter()
        .flat_map(each)
        .skip(share)
        .step_by(3)
        .collect();
    let one_in = if third.len() > 10 { 3 } else { 1 };
    sample(third, one_in)
}

#[test]
#[ignore = "is run by other tests, to be killed"]
fn child() {
    let Some(layout) = env::var_os(LAYOUT) else {
        return;
    };
    let environment = Environment::read();
    let listening = environment
        .interrupt
        .listen(&environment.host, |phase| eprintln!("heard in {phase:?}"));
    listening.unwrap();
    let mut hand = Hand::new(environment);
    hand.server = env::var(SERVER).unwrap();
    let words = env::var(ALLOWED).unwrap();
    let allowed = Allowed {
        reset: words.contains("reset"),
        stop_holders: words.contains("stop-holders"),
        destroy_unmanaged: false,
    };
    let node = hand.observe();
    let plan = hand.reconfigure(&node, layout.to_str().unwrap());
    eprintln!("{PLANNED}");
    stdin().read_line(&mut String::new()).unwrap();
    let result = hand.run(&node, &plan, allowed);
    let status = match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            if error.is_interrupted() { 130 } else { 1 }
        }
    };
    std::process::exit(status);
}
