//! An unmanaged daemon on a device that a profile wants served.

use std::process::Command;

use insta::assert_snapshot;
use serde_json::json;

use crate::cli::status::foreign_programs::{beside, unmanaged_daemon};
use testkit::{Ran, Sim, WHOLE, assert_contains, is_alive, shell, user, wait_until};

#[test]
fn plan_and_up_tell_of_it_and_leave_it_alone() {
    let sim = Sim::with("h200", 2);
    let path = sim.profile(WHOLE).display().to_string();
    let gpu = sim.uuid("1");
    let pipe = beside(&sim, "seed");
    unmanaged_daemon(&sim, &pipe, Some(&gpu));
    let pid = sim.status()["unmanaged"][0]["pid"].clone();
    let tidy = |text: &str| {
        let text = text.replace(&pipe.display().to_string(), "/seed");
        testkit::plain(&text)
            .replace(&format!("pid {pid}"), "pid PID")
            .replace(&format!("daemon {pid} of {}", user()), "daemon PID of USER")
    };
    let plan = sim.run(&["plan", &path]).ended(0).stdout;
    assert_snapshot!(tidy(&plan), @"
    GPU 0  NVIDIA H200  GPU-…
      + start 1 daemon (no daemon yet): 0
    GPU 1  NVIDIA H200  GPU-…
      + start 1 daemon (only an unmanaged daemon, pid PID, serves it): 1
    Unmanaged daemon PID of USER also serves 1. This ends it:
      echo quit | CUDA_MPS_PIPE_DIRECTORY=/seed nvidia-cuda-mps-control
    Two daemons on a device share it independently of each other.

    Plan: start 2 daemons.
    Apply with: mig-mps up profile.toml
    ");
    let plan = sim.run(&["plan", &path, "--json"]).json();
    let shown = |gpu: usize| plan["gpus"][gpu]["steps"][0]["beside"].clone();
    assert_eq!(shown(0), json!([]));
    assert_eq!(
        shown(1),
        json!([{ "pid": pid, "user": user(), "pipe_directory": pipe }])
    );
    // It is in nobody's way.
    let ran = sim.up(WHOLE, &[]).ended(0);
    let said = tidy(&ran.stderr);
    let how = "echo quit | CUDA_MPS_PIPE_DIRECTORY=/seed nvidia-cuda-mps-control";
    assert_contains(&said, "note: unmanaged daemon PID of USER also serves 1");
    assert_contains(&said, how);
    assert_contains(&ran.stdout, "1: 2 daemons serve it");
    sim.up_does_nothing(WHOLE);
    shell(format!("kill -0 {pid}")).ended(0);

    // What was said ends it.
    sim.run(&["down"]).ended(0);
    let how = how.replace("/seed", &pipe.display().to_string());
    let program = sim.node.program("nvidia-cuda-mps-control");
    let how = how.replace(
        "nvidia-cuda-mps-control",
        program.get_program().to_str().unwrap(),
    );
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &how]).env_clear().envs(sim.node.env());
    let _ = Ran::of(&mut shell).ended(0);
    // Its daemon ends when the session has.
    wait_until("the daemon ends", || !is_alive(&pid));
    let plan = sim.run(&["plan", &path]).ended(0).stdout;
    assert_contains(&plan, "+ start 2 daemons in all (no daemon yet): 0, 1");
    assert!(!plan.contains("oreign"), "{plan}");
}

/// It serves a MIG device that stays; one that is made anew it cannot.
#[test]
fn one_on_a_mig_device_is_reported_where_the_device_stays() {
    let sim = Sim::served("a100-80gb", 1, testkit::SMALL);
    let uuid = sim.uuid("0.2");
    sim.run(&["down"]).ended(0);
    unmanaged_daemon(&sim, &beside(&sim, "seed"), Some(&uuid));
    let path = sim.profile(testkit::SMALL).display().to_string();
    let plan = sim.run(&["plan", &path]).ended(0).stdout;
    assert_contains(&plan, "+ start 1 daemon (no daemon yet): 0.0");
    assert_contains(&plan, "(only an unmanaged daemon, pid ");
    assert_contains(&plan, " also serves 0.2. ");
}
