//! `kill -9` at each point of a reconfiguration.

use std::collections::BTreeSet;
use std::fs;

use mig_mps::internals::apply::pick_up;
use mig_mps::internals::state::RunDir;
use simnode::node::Node;

use crate::apply::child;
use crate::apply::faults::{AFTER, BEFORE};
use crate::apply::scene::Scene;

/// Whatever changes something, or tells of what was just changed. A process that is killed in a call that only reads leaves what the
/// change before left, and so does one that is killed at the beginning of the next change.
const POINTS: [&str; 13] = [
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceDestroy",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlComputeInstanceDestroy",
    "daemon start",
    "set_default_active_thread_percentage",
    "get_default_active_thread_percentage",
    "start_server",
    "get_server_list",
    "get_server_status",
    "quit",
];

/// Kills the process that reconfigures at the nth occurrence; `None` where there are fewer.
fn killed(scene: &Scene, on: &str, nth: u32) -> Option<()> {
    let faults = scene.sim.happened("fault");
    let node: &Node = scene.sim.node.node();
    let mut child = child::start(scene, AFTER, "");
    node.fault(on).nth(nth).kills().unwrap();
    child::go(&mut child);
    let (said, status) = child::ended(child);
    node.clear_faults().unwrap();
    if scene.sim.happened("fault") == faults {
        assert_eq!(status, 0, "{on} number {nth}: {said}");
        return None;
    }
    Some(())
}

fn each_point(recover: impl Fn(&Scene, &BTreeSet<String>, &str)) {
    let scene = Scene::with("a100-80gb", 2);
    scene.hand.bring_to(AFTER).unwrap();
    let wanted = scene.things();
    let mut count = 0;
    for on in POINTS {
        for nth in 1.. {
            scene.hand.bring_to(BEFORE).unwrap();
            if killed(&scene, on, nth).is_none() {
                break;
            }
            count += 1;
            recover(&scene, &wanted, &format!("{on} number {nth}"));
        }
    }
    eprintln!("killed at {count} points");
    assert!(count > POINTS.len());
}

#[test]
fn killed_anywhere_the_next_run_finishes() {
    each_point(|scene, wanted, at| {
        // What each command that changes something does first.
        let run_dir = RunDir::at(&scene.hand.directories.run);
        let node = scene.hand.observe();
        let picked_up = pick_up(&scene.hand.environment, &run_dir, &node).unwrap();
        assert!(picked_up.is_some(), "killed at {at}: no journal");
        let next = scene.hand.bring_to(AFTER);
        next.unwrap_or_else(|error| panic!("killed at {at}: {error}"));
        assert_eq!(scene.things(), *wanted, "killed at {at}");
        scene.is_tidy();
    });
}

#[test]
fn killed_anywhere_down_leaves_nothing() {
    each_point(|scene, _, at| {
        let down = ["down", "--destroy-mig", "--force", "--yes"];
        let mut ran = scene.sim.run(&down);
        // A daemon that the killed run was starting may come up between the plan and the change.
        if ran.status == 4 && ran.stderr.contains("the node has changed") {
            ran = scene.sim.run(&down);
        }
        assert_eq!(
            ran.status, 0,
            "killed at {at}: {}{}",
            ran.stdout, ran.stderr
        );
        let left: Vec<String> = scene
            .things()
            .into_iter()
            .filter(|thing| !thing.ends_with("MIG mode on"))
            .collect();
        assert!(left.is_empty(), "killed at {at}: {left:?}: {}", ran.stderr);
        // That the mode is mig-mps's doing stays known, for --disable-mig.
        assert_eq!(scene.sim.run_dir(), ["lock", "node.json"], "killed at {at}");
        assert!(scene.ledger().is_empty(), "killed at {at}");
    });
}

#[test]
fn half_made_files_are_removed() {
    let scene = Scene::with("a100-80gb", 1);
    scene.hand.bring_to("3g.40gb@0").unwrap();
    let run = scene.sim.node.run_dir();
    let half = run.join("MIG-00000000-0000-0000-0000-000000000000");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("device.json.new"), "{").unwrap();
    fs::write(run.join("node.json.new"), "{").unwrap();
    let served = scene.sim.device("0.0")["uuid"].as_str().unwrap().to_owned();
    fs::write(run.join(served).join("device.json.new"), "{").unwrap();
    std::os::unix::fs::symlink("../MIG-1", run.join("by-name/.0.4.new")).unwrap();
    std::os::unix::fs::symlink("../MIG-1", run.join("by-name/0.4")).unwrap();
    let kept = run.join("somebody-elses");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "").unwrap();
    let mut child = child::start(&scene, "3g.40gb@0 3g.40gb@4", "");
    scene.sim.node.fault("daemon start").kills().unwrap();
    child::go(&mut child);
    assert_eq!(child::ended(child).1, -1);
    scene.sim.run(&["down"]).ended(0);
    assert!(kept.join("file").exists());
    fs::remove_dir_all(&kept).unwrap();
    assert_eq!(scene.sim.run_dir(), ["lock", "node.json"]);
}
