//! Ctrl-C: at the next safe point what was done is undone; before anything was changed the program ends at once.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Ran, SMALL, Sim, assert_contains, hearing, in_state, terminal};

use crate::apply::child;
use crate::apply::faults::{AFTER, BEFORE};
use crate::apply::scene::Scene;

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

/// Waits until so many faults have been met.
fn met(sim: &Sim, faults: usize) {
    while sim.happened("fault") < faults {
        std::thread::yield_now();
    }
}

const A_WHILE: std::time::Duration = std::time::Duration::from_millis(600);

#[test]
fn a_change_is_undone_and_the_undoing_goes_on() {
    let scene = Scene::with("a100-80gb", 2);
    scene.hand.bring_to(BEFORE).unwrap();
    let (before, ours) = (scene.things(), scene.ledger());
    let mut child = child::start(&scene, AFTER, "");
    let node = &scene.sim.node;
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    node.fault(create).slow(A_WHILE).unwrap();
    child::go(&mut child);
    met(&scene.sim, 1);
    // What is met next is met while the change is undone: a daemon that is started again.
    node.node().clear_faults().unwrap();
    node.fault("daemon start").every().slow(A_WHILE).unwrap();
    interrupt(&child);
    let mut said = child::wait_for(&mut child, "heard in Changing");
    // The other GPU may be starting a daemon of the change still.
    while !said.contains("heard in RollingBack") {
        interrupt(&child);
        said += &child::wait_for(&mut child, "heard in ");
    }
    let (rest, status) = child::ended(child);
    let said = said + &rest;
    assert_eq!(status, 130, "{said}");
    assert_contains(&said, "heard in RollingBack");
    assert_contains(&said, "\ninterrupted\n");
    assert_contains(&said, "what had been done before was undone");
    assert_eq!(scene.things(), before, "{said}");
    assert_eq!(scene.ledger(), ours, "{said}");
    scene.is_tidy();
}

#[test]
fn units_are_started_again() {
    const DCGM: &str = "nvidia-dcgm.service";
    let scene = Scene::with("a100-80gb", 1);
    let node = &scene.sim.node;
    node.service(DCGM);
    let mut child = child::start(&scene, "3g.40gb@0", "stop-holders");
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    node.fault(create).slow(A_WHILE).unwrap();
    child::go(&mut child);
    met(&scene.sim, 1);
    interrupt(&child);
    let (said, status) = child::ended(child);
    assert_eq!(status, 130, "{said}");
    assert_eq!(scene.sim.happened("systemctl start"), 1, "{said}");
    scene.is_tidy();
    // The same with a kill: then the next command does it, and says so.
    let mut child = child::start(&scene, "3g.40gb@0", "stop-holders");
    node.fault(create).kills().unwrap();
    child::go(&mut child);
    let (_, status) = child::ended(child);
    assert_eq!(status, -1);
    assert_eq!(scene.sim.happened("systemctl start"), 1);
    let ran = scene.sim.run(&["down"]).ended(0);
    assert_eq!(
        scene.sim.happened("systemctl start"),
        1,
        "the mode was on already"
    );
    assert!(
        ran.stderr.starts_with("An earlier run was interrupted: "),
        "{}",
        ran.stderr
    );
    assert_contains(&ran.stderr, "Continuing from the present state.");
    scene.is_tidy();
}

#[test]
fn a_unit_that_a_killed_run_had_stopped_is_started_by_the_next() {
    let scene = Scene::with("h200-141gb-sxm", 1);
    let node = &scene.sim.node;
    node.service("nvidia-dcgm.service");
    let mut child = child::start(&scene, "3g.71gb@0", "stop-holders");
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    node.fault(create).kills().unwrap();
    child::go(&mut child);
    assert_eq!(child::ended(child).1, -1);
    assert_eq!(scene.sim.happened("systemctl start"), 0);
    assert_eq!(scene.hand.observe().interrupted.len(), 1);
    let ran = scene.sim.run(&["down"]).ended(0);
    assert_eq!(scene.sim.happened("systemctl start"), 1);
    assert_contains(&ran.stderr, "It had stopped nvidia-dcgm.service.");
    scene.is_tidy();
}

#[test]
fn what_a_killed_run_took_away_is_said() {
    let scene = Scene::with("a100-80gb", 1);
    scene.hand.bring_to("3g.40gb@0 3g.40gb@4").unwrap();
    let mut child = child::start(&scene, "2g.20gb@0 3g.40gb@4", "");
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    scene.sim.node.fault(create).kills().unwrap();
    child::go(&mut child);
    assert_eq!(child::ended(child).1, -1);
    let ran = scene.sim.run(&["down", "0.4"]).ended(0);
    let line = ran.stderr.lines().next().unwrap();
    assert!(
        line.ends_with(
            "It had destroyed GPU 0 3g.40gb at slices 0-3. Continuing from the present state."
        ),
        "{line}"
    );
    scene.is_tidy();
}

#[test]
fn down_stops_and_says_what_is_left() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    sim.node.fault("quit").slow(A_WHILE).unwrap();
    let mut command = hearing(&sim.command(&["down", "--destroy-mig", "--yes"]));
    let child = command
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let child = child.unwrap();
    met(&sim, 1);
    interrupt(&child);
    let (said, status) = child::ended(child);
    assert_eq!(status, 130, "{said}");
    assert_contains(&said, "stopping at the next safe point");
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
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let before = sim.status();
    let app = sim.client("0.2");
    // Waiting for a client.
    let mut command = hearing(&sim.command(&["down", "--drain", "600"]));
    let mut down = command.stderr(Stdio::piped()).spawn().unwrap();
    child::wait_for(&mut down, "waiting for at most");
    interrupt(&down);
    assert_eq!(child::ended(down).1, 130);
    drop(app);
    // Waiting for another change.
    let lock = std::fs::File::open(sim.node.run_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    let mut down = hearing(&sim.command(&["down"]));
    let down = down.stderr(Stdio::piped()).spawn().unwrap();
    let waits = || {
        let opened = std::fs::read_dir(format!("/proc/{}/fd", down.id())).unwrap();
        let mut opened = opened
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        opened.any(|path| path.ends_with("run/lock"))
    };
    while !waits() {
        std::thread::yield_now();
    }
    interrupt(&down);
    assert_eq!(child::ended(down).1, 130);
    drop(lock);
    assert_eq!(in_state(&sim.status(), "ready"), in_state(&before, "ready"));
    assert_eq!(sim.happened("daemon end"), 0);
}

#[test]
fn a_question_can_be_answered_with_ctrl_c() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let mut script = terminal(format!("{program} down --destroy-mig"));
    script.env_clear().envs(sim.node.env());
    let mut child = hearing(&script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut said = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    while !said.contains("Go on?") {
        let mut byte = [0];
        assert!(
            std::io::Read::read(stdout, &mut byte).unwrap() > 0,
            "{said}"
        );
        said.push(byte[0].into());
    }
    stdin.write_all(b"\x03").unwrap();
    let stdout = child.stdout.as_mut().unwrap();
    std::io::Read::read_to_string(stdout, &mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    // The shell goes on in a line of its own.
    assert!(said.ends_with('\n'), "{said:?}");
    assert_eq!(in_state(&sim.status(), "ready").len(), 2);
}

#[test]
fn nohup_is_respected() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let app = sim.client("0.2");
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let mut command = Command::new("/bin/sh");
    command
        .args([
            "-c",
            &format!("trap '' HUP; exec {program} down --drain 600"),
        ])
        .env_clear()
        .envs(sim.node.env())
        .stderr(Stdio::piped());
    let mut down = command.spawn().unwrap();
    child::wait_for(&mut down, "waiting for at most");
    let pid = Pid::from_raw(down.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    app.finish();
    let (said, status) = child::ended(down);
    assert_eq!(status, 0, "{said}");
    let _ = Ran::of(&mut sim.command(&["list"])).ended(0);
}

/// The GPU is in use, and MIG mode waits for it: Ctrl-C is no refusal (exit 4).
#[test]
fn a_wait_for_a_gpu_in_use_is_interrupted() {
    let sim = Sim::with("a100-80gb", 1);
    let holder = sim.node.holder(&[0]);
    let profile = sim.profile(SMALL);
    let words = ["up", profile.to_str().unwrap(), "--progress=json"];
    let mut command = hearing(&sim.command(&words));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut up = command.spawn().unwrap();
    child::wait_for(&mut up, &format!("pid {}", holder.pid()));
    interrupt(&up);
    let (said, status) = child::ended(up);
    assert_eq!(status, 130, "{said}");
    assert!(!said.contains("in use"), "{said}");
    holder.finish();
    let list = sim.list();
    assert_eq!(list["gpus"][0]["mig"]["current"], false, "{list:#}");
    assert_eq!(list["gpus"][0]["mig"]["pending"], false, "{list:#}");
}
