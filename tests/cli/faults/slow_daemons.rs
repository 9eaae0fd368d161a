//! Daemons that answer late or not at all, and are healthy or at least known.

use serde_json::json;

use testkit::{ONE_EACH, Ran, Sim, assert_contains, in_state, whole};

/// Its servers are in the process table, so they are no strangers on their own device.
#[test]
fn a_daemon_that_does_not_answer_keeps_its_servers() {
    let sim = Sim::served("a100-80gb", 1, ONE_EACH);
    let server = sim.device("0.0")["servers"][0]["pid"].clone();
    let control = sim.control_script("[ \"$1\" = -d ] || exec sleep 600\nexec $real \"$@\"");
    let with = |args: &[&str]| {
        let mut command = sim.command(args);
        Ran::of(command.env("MIG_MPS_CONTROL", &control))
    };
    let down = ["down", "--destroy-mig", "--force", "--yes"];
    let ran = with(&[&down[..], &["--dry-run", "--json"]].concat()).ended(0);
    assert_contains(&ran.stdout, "does not answer");
    with(&down).ended(0);
    assert!(!testkit::is_alive(&server));
    assert_eq!(sim.list()["gpus"][0]["devices"], json!([]));
}

/// A machine under load may make any daemon late once.
#[test]
fn a_daemon_that_misses_one_question_is_asked_again() {
    let sim = Sim::whole("");
    let once = sim.node.dir().join("once");
    let control = sim.control_script(&format!(
        "mkdir {} 2>/dev/null && exec sleep 600\nexec $real \"$@\"",
        once.display()
    ));
    let profile = sim.profile(&whole(""));
    let mut plan = sim.command(&["plan", profile.to_str().unwrap()]);
    let ran = Ran::of(plan.env("MIG_MPS_CONTROL", &control)).ended(0);
    assert!(once.exists(), "one question was not answered");
    assert!(ran.stderr.starts_with("Nothing to do"), "{ran:?}");
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}
