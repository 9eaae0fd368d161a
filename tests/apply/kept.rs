//! What a reconfiguration does not touch, and how much it does.

use serde_json::Value;

use crate::apply::faults::{AFTER, BEFORE};
use crate::apply::scene::Scene;
use testkit::{Sim, assert_contains, in_state};

fn server(device: &Value) -> &Value {
    &device["servers"][0]["pid"]
}

#[test]
fn a_client_on_a_kept_device_notices_nothing() {
    let scene = Scene::with("a100-80gb", 2);
    scene.hand.bring_to(BEFORE).unwrap();
    let before = scene.sim.device("0.4");
    let app = scene.sim.client("0.4");
    scene.hand.bring_to(AFTER).unwrap();
    let after = scene.sim.device("0.4");
    assert!(server(&before).is_number(), "{before:#}");
    assert_eq!(server(&before), server(&after));
    assert_eq!(before["uuid"], after["uuid"]);
    assert_eq!(before["daemon_pid"], after["daemon_pid"]);
    assert_eq!(after["client_count"], 1);
    let finished = app.finish();
    assert!(finished.status.success(), "{}", finished.output);
}

/// How often a call was made with that answer.
fn calls(scene: &Scene, call: &str, code: u32) -> usize {
    let events = scene.sim.node.events();
    events
        .iter()
        .filter(|event| event.what == call && event.detail["code"] == code)
        .count()
}

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
const DESTROY: &str = "nvmlComputeInstanceDestroy";

#[test]
fn no_instance_is_made_that_is_not_wanted() {
    let scene = Scene::with("a100-80gb", 2);
    scene.hand.bring_to(BEFORE).unwrap();
    assert_eq!(calls(&scene, CREATE, 0), 4);
    scene.hand.bring_to(AFTER).unwrap();
    assert_eq!(calls(&scene, CREATE, 0), 4 + 2);
    assert_eq!(scene.sim.happened(CREATE), 4 + 2);
    assert_eq!(calls(&scene, DESTROY, 0), 3);
}

#[test]
fn what_is_in_use_for_a_moment_is_tried_again() {
    let scene = Scene::with("a100-80gb", 1);
    scene.hand.bring_to("3g.40gb@0").unwrap();
    for nth in [1, 2, 3] {
        scene.sim.node.fault(DESTROY).nth(nth).fails(19).unwrap();
    }
    scene.sim.node.fault(CREATE).fails(19).unwrap();
    scene.hand.bring_to("2g.20gb@0").unwrap();
    assert_eq!(
        (calls(&scene, DESTROY, 19), calls(&scene, DESTROY, 0)),
        (3, 1)
    );
    assert_eq!(
        (calls(&scene, CREATE, 19), calls(&scene, CREATE, 0)),
        (1, 2)
    );
}

#[test]
fn whoever_keeps_an_instance_in_use_is_named() {
    let scene = Scene::with("a100-80gb", 1);
    scene.hand.bring_to("3g.40gb@0 3g.40gb@4").unwrap();
    let before = scene.things();
    let uuid = scene.sim.device("0.0")["uuid"].as_str().unwrap().to_owned();
    let mut command = scene.sim.node.program("cuda-app");
    command
        .arg("hold")
        .env("CUDA_VISIBLE_DEVICES", uuid)
        .env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    let mut app = testkit::App::start(command);
    assert!(app.wait_up().ends_with("mps no"));
    let error = scene.hand.bring_to("2g.20gb@0 3g.40gb@4").unwrap_err();
    let text = error.to_string();
    assert!(error.is_busy(), "{text}");
    assert_contains(&text, &format!("held by pid {} (", app.pid()));
    assert_contains(&text, "cuda-app hold");
    // The daemon that was ended for it serves again.
    assert_eq!(scene.things(), before, "{text}");
    assert!(calls(&scene, DESTROY, 19) > 3, "it was tried for a while");
    app.finish();
    scene.hand.bring_to("2g.20gb@0 3g.40gb@4").unwrap();
}

#[test]
fn a_name_that_moves_to_another_gpu_waits_for_the_daemon_that_had_it() {
    let sim = Sim::with("a100-80gb", 2);
    let named = |first: &str, second: &str| {
        let block = |gpu: u32, name: &str| {
            format!(
                "[[gpu]]\nselect = {{ index = [{gpu}] }}\ndevices = [ {{ profile = \"3g\", name = \"{name}\" }} ]\n"
            )
        };
        block(0, first) + &block(1, second)
    };
    sim.up(&named("x", "y"), &[]).ended(0);
    // GPU 0 takes its time to let go of a name that GPU 1 is to have.
    let slow = std::time::Duration::from_millis(500);
    sim.node.fault("quit").nth(1).slow(slow).unwrap();
    sim.node.fault("quit").nth(2).slow(slow).unwrap();
    sim.up(&named("y", "x"), &["--yes"]).ended(0);
    let events = sim.node.events();
    let nth = |what: &str, nth: usize| {
        let mut found = (0..events.len()).filter(|at| events[*at].what == what);
        found.nth(nth).unwrap()
    };
    // Each GPU starts a daemon under the name of one that the other GPU ends.
    assert!(nth("daemon end", 1) < nth("daemon start", 2));
    assert_eq!(in_state(&sim.status(), "ready"), ["y", "x"]);
    assert_eq!(sim.device("x")["gpu"], 1);
}
