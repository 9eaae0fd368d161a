//! Ctrl-C: at the next safe point what was done is undone; before anything was changed the program ends at once.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use testkit::{Dialogue, SMALL, Sim, assert_contains, in_state, under, wait_until};

use crate::apply::child;
use crate::apply::faults::{AFTER, BEFORE};
use crate::apply::testbed::Testbed;

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";

#[test]
fn a_change_is_undone_and_the_undoing_goes_on() {
    let testbed = Testbed::with("a100-80gb", 2);
    testbed.hand.bring_to(BEFORE).unwrap();
    let (before, ours) = (testbed.things(), testbed.ledger());
    let mut child = child::start(&testbed, AFTER, "");
    let node = &testbed.sim.node;
    // Both GPUs are in the middle of their change.
    let creates = node.fault(CREATE).every().waits().unwrap();
    child.press("go\n");
    testbed.sim.await_event("fault", 2);
    child.signal(Signal::INT);
    child.await_text("heard in Changing");
    // What is met next is met while the change is undone: a daemon that is started again.
    node.node().clear_faults().unwrap();
    let starts = node.fault("daemon start").every().waits().unwrap();
    drop(creates);
    testbed.sim.await_event("fault", 3);
    child.signal(Signal::INT);
    child.await_text("heard in RollingBack");
    drop(starts);
    let said = child.end().ended(130).stdout;
    assert_contains(&said, "\ninterrupted\n");
    assert_contains(&said, "earlier changes were undone");
    assert_eq!(testbed.things(), before, "{said}");
    assert_eq!(testbed.ledger(), ours, "{said}");
    testbed.is_tidy();
}

/// As `systemctl stop` and a lost connection end it.
#[test]
fn up_is_undone_by_sigterm_and_sighup_too() {
    for signal in [Signal::TERM, Signal::HUP] {
        let sim = Sim::with("a100-80gb", 1);
        let path = sim.profile(SMALL);
        let creates = sim.node.fault(CREATE).nth(2).waits().unwrap();
        let mut up = sim.talk(&["up", path.to_str().unwrap()]);
        sim.await_event("fault", 1);
        up.signal(signal);
        up.await_text("interrupted: stopping at the next safe point");
        drop(creates);
        let said = up.end().ended(130).stdout;
        assert_contains(&said, "earlier changes were undone");
        assert_eq!(sim.happened("nvmlGpuInstanceDestroy"), 2, "{said}");
        assert_eq!(sim.run_dir(), ["lock", "node.json"], "{said}");
        sim.up(SMALL, &[]).ended(0);
    }
}

#[test]
fn units_are_started_again() {
    const DCGM: &str = "nvidia-dcgm.service";
    let testbed = Testbed::with("a100-80gb", 1);
    let node = &testbed.sim.node;
    node.service(DCGM);
    let mut child = child::start(&testbed, "3g.40gb@0", "stop-holders");
    let creates = node.fault(CREATE).waits().unwrap();
    child.press("go\n");
    testbed.sim.await_event("fault", 1);
    child.signal(Signal::INT);
    child.await_text("heard in Changing");
    drop(creates);
    let said = child.end().ended(130).stdout;
    assert_eq!(testbed.sim.happened("systemctl start"), 1, "{said}");
    testbed.is_tidy();
    // The same with a kill: then the next command does it, and says so.
    let mut child = child::start(&testbed, "3g.40gb@0", "stop-holders");
    node.fault(CREATE).kills().unwrap();
    child.press("go\n");
    let _ = child.end().ended(-1);
    assert_eq!(testbed.sim.happened("systemctl start"), 1);
    let ran = testbed.sim.run(&["down"]).ended(0);
    assert_eq!(
        testbed.sim.happened("systemctl start"),
        1,
        "the mode was on already"
    );
    let begin = "note: an earlier run was interrupted: ";
    assert!(ran.stderr.starts_with(begin), "{}", ran.stderr);
    assert_contains(&ran.stderr, "continuing from the present state");
    testbed.is_tidy();
}

#[test]
fn a_unit_that_a_killed_run_had_stopped_is_started_by_the_next() {
    let testbed = Testbed::with("h200-141gb-sxm", 1);
    let node = &testbed.sim.node;
    node.service("nvidia-dcgm.service");
    let mut child = child::start(&testbed, "3g.71gb@0", "stop-holders");
    node.fault(CREATE).kills().unwrap();
    child.press("go\n");
    let _ = child.end().ended(-1);
    assert_eq!(testbed.sim.happened("systemctl start"), 0);
    assert_eq!(testbed.hand.observe().interrupted.len(), 1);
    let ran = testbed.sim.run(&["down"]).ended(0);
    assert_eq!(testbed.sim.happened("systemctl start"), 1);
    assert_contains(&ran.stderr, "it had stopped nvidia-dcgm.service");
    testbed.is_tidy();
}

#[test]
fn what_a_killed_run_took_away_is_said() {
    let testbed = Testbed::with("a100-80gb", 1);
    testbed.hand.bring_to("3g.40gb@0 3g.40gb@4").unwrap();
    let mut child = child::start(&testbed, "2g.20gb@0 3g.40gb@4", "");
    testbed.sim.node.fault(CREATE).kills().unwrap();
    child.press("go\n");
    let _ = child.end().ended(-1);
    // It says what others may not know.
    let journal = fs::metadata(testbed.sim.node.run_dir().join("journal.json"));
    assert_eq!(journal.unwrap().permissions().mode() & 0o777, 0o600);
    let ran = testbed.sim.run(&["down", "0.4"]).ended(0);
    let line = ran.stderr.lines().next().unwrap();
    assert!(
        line.ends_with(
            "it had destroyed GPU 0 3g.40gb at slices 0-3; continuing from the present state"
        ),
        "{line}"
    );
    testbed.is_tidy();
}

#[test]
fn down_stops_and_says_what_is_left() {
    let sim = Sim::small();
    let quits = sim.node.fault("quit").waits().unwrap();
    let mut down = sim.talk(&["down", "--destroy-mig", "--yes"]);
    sim.await_event("fault", 1);
    down.signal(Signal::INT);
    down.await_text("stopping at the next safe point");
    drop(quits);
    let said = down.end().ended(130).stdout;
    let left = said.lines().filter(|line| line.starts_with("not done: "));
    assert_eq!(
        left.count(),
        5,
        "a daemon, two compute and two GPU instances: {said}"
    );
    assert_eq!(in_state(&sim.status(), "ready").len(), 1);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
}

#[test]
fn nothing_has_been_changed_it_ends_at_once() {
    let sim = Sim::small();
    let before = sim.status();
    let app = sim.client("0.2");
    // Waiting for a client.
    let mut down = sim.talk(&["down", "--drain", "600"]);
    down.await_text("waiting up to");
    down.signal(Signal::INT);
    let _ = down.end().ended(130);
    drop(app);
    // Waiting for another change.
    let lock = File::open(sim.node.run_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    let down = sim.talk(&["down"]);
    let opened = format!("/proc/{}/fd", down.pid());
    wait_until("it has the lock's file open", || {
        let mut opened = fs::read_dir(&opened).unwrap().flatten();
        opened.any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path.ends_with("run/lock")))
    });
    down.signal(Signal::INT);
    let _ = down.end().ended(130);
    drop(lock);
    assert_eq!(in_state(&sim.status(), "ready"), in_state(&before, "ready"));
    assert_eq!(sim.happened("daemon end"), 0);
}

#[test]
fn a_question_can_be_answered_with_ctrl_c() {
    let sim = Sim::small();
    let ran = sim.answered("down --destroy-mig", "\x03").ended(130);
    // The shell goes on in a line of its own.
    assert!(ran.stdout.ends_with('\n'), "{:?}", ran.stdout);
    assert_eq!(in_state(&sim.status(), "ready").len(), 2);
}

#[test]
fn nohup_is_respected() {
    let sim = Sim::small();
    let app = sim.client("0.2");
    let down = sim.command(&["down", "--drain", "600"]);
    let mut down = Dialogue::start(under(&["nohup"], &down));
    down.await_text("waiting up to");
    down.signal(Signal::HUP);
    app.finish();
    let _ = down.end().ended(0);
    sim.run(&["list"]).ended(0);
}

/// The GPU is in use, and MIG mode waits for it: Ctrl-C is no refusal (exit 4).
#[test]
fn a_wait_for_a_gpu_in_use_is_interrupted() {
    let sim = Sim::with("a100-80gb", 1);
    let holder = sim.node.holder(&[0]);
    let profile = sim.profile(SMALL);
    let mut up = sim.talk(&["up", profile.to_str().unwrap(), "--progress=plain"]);
    up.await_text(&format!("waiting for pid {}", holder.pid()));
    up.signal(Signal::INT);
    let said = up.end().ended(130).stdout;
    assert!(!said.contains("in use"), "{said}");
    holder.finish();
    let list = sim.list();
    assert_eq!(list["gpus"][0]["mig"]["current"], false, "{list:#}");
    assert_eq!(list["gpus"][0]["mig"]["pending"], false, "{list:#}");
}
