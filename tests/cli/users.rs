//! Who may do and see what. These tests run as root and become another user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use insta::assert_snapshot;

use crate::common::{NOBODY, Ran, SMALL, Sim, in_state, is_root, plain};

const WHOLE: &str = "[[gpu]]\nselect = { all = true }\nmig = false\n";

#[test]
fn root_is_told_that_users_take_turns() {
    if !is_root("root_is_told_that_users_take_turns") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let ran = sim.up(WHOLE, &[]).ended(0);
    assert!(
        ran.stderr
            .starts_with("These devices serve one user at a time"),
        "{}",
        ran.stderr
    );
    let all = format!("{WHOLE}mps = {{ serve = \"all\" }}\n");
    let ran = sim.up(&all, &["--yes"]).ended(0);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert_eq!(sim.device("0")["serve"], "all");
    sim.up_does_nothing(&all);
}

#[test]
fn a_plain_user_sees_what_root_serves_and_cannot_change_it() {
    if !is_root("a_plain_user_sees_what_root_serves_and_cannot_change_it") {
        return;
    }
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let roots = sim.node.run_dir();
    let status = Ran::of(
        sim.by_nobody(&["status", "--json"])
            .env("MIG_MPS_RUN_DIR", roots),
    )
    .json();
    assert_eq!(in_state(&status, "ready"), ["0.0", "0.2"]);
    let down = Ran::of(
        sim.by_nobody(&["down"])
            .env("MIG_MPS_RUN_DIR", roots)
            .env("MIG_MPS_LOG_DIR", sim.node.log_dir()),
    );
    assert_snapshot!(plain(&down.ended(1).stderr).replace(roots.to_str().unwrap(), "RUN"), @"
    error: only root can change this node: the run directory RUN belongs to root
    hint: run it as root, or unset MIG_MPS_RUN_DIR for daemons of your own
    ");
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn a_plain_user_serves_himself() {
    if !is_root("a_plain_user_serves_himself") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(WHOLE);
    let up = ["up", profile.to_str().unwrap()];
    Ran::of(&mut sim.by_nobody(&up)).ended(0);
    let status = Ran::of(&mut sim.by_nobody(&["status", "--json"])).json();
    let device = &status["devices"][0];
    assert_eq!(
        (&device["state"], &device["serve"]),
        (&"ready".into(), &"self".into())
    );
    assert_eq!(device["servers"][0]["uid"], NOBODY);
    let pipe = fs::metadata(device["pipe_directory"].as_str().unwrap()).unwrap();
    assert_eq!(
        (pipe.uid(), pipe.permissions().mode() & 0o777),
        (NOBODY, 0o700)
    );
    assert!(
        Ran::of(&mut sim.by_nobody(&up))
            .ended(0)
            .stderr
            .starts_with("Nothing to do")
    );
    Ran::of(&mut sim.by_nobody(&["down"])).ended(0);
}

#[test]
fn a_plain_user_without_a_runtime_directory_is_told_so() {
    if !is_root("a_plain_user_without_a_runtime_directory_is_told_so") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(WHOLE);
    let mut command = sim.by_nobody(&["up", profile.to_str().unwrap()]);
    let ran = Ran::of(command.env_remove("XDG_RUNTIME_DIR")).ended(1);
    assert_snapshot!(ran.stderr, @"
    error: XDG_RUNTIME_DIR is not set: there is no private directory for this user's daemons
    hint: log in through a session that sets XDG_RUNTIME_DIR, set MIG_MPS_RUN_DIR, or run it as root
    ");
}

#[test]
fn a_plain_user_cannot_partition_and_nothing_is_left() {
    if !is_root("a_plain_user_cannot_partition_and_nothing_is_left") {
        return;
    }
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let ran = Ran::of(&mut sim.by_nobody(&["up", profile.to_str().unwrap()])).ended(1);
    assert_snapshot!(plain(&ran.stderr), @"
    error: GPU 0 (GPU-…): enable MIG mode: GPU-…: nvmlDeviceSetMigMode: Insufficient Permissions (4)
    hint: run it as root
    ");
    assert_eq!(sim.list()["gpus"][0]["mig"]["current"], false);
}
