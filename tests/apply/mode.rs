//! MIG mode: done, busy, a reset due, a reboot due.

use mig_mps::internals::apply::{Allowed, ApplyError};
use mig_mps::internals::failure::Failure;
use simnode::node::Platform;

use crate::apply::scene::{Hand, Scene};
use testkit::{SMALL, Sim, assert_contains};

const ONE: &str = "3g.40gb@0";

const DCGM: &str = "nvidia-dcgm.service";

/// The exporters, NVSM, and NVIDIA's own.
const MONITORS: [&str; 8] = [
    "nvidia-dcgm-exporter.service",
    "dcgm-exporter.service",
    "prometheus-nvidia-exporter.service",
    "nvidia_gpu_exporter.service",
    "nvsm.service",
    DCGM,
    "dcgm.service",
    "nvidia-persistenced.service",
];

fn mode(scene: &Scene) -> (bool, bool) {
    let mode = scene.hand.observe().gpus[0].mig.unwrap();
    (mode.current, mode.pending)
}

fn is_up(scene: &Scene, unit: &str) -> bool {
    let mut command = scene.sim.node.program("systemctl");
    let output = command
        .args(["show", "--property=Id,ActiveState,MainPID", "--", unit])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).contains("ActiveState=active")
}

fn refused(scene: &Scene, allowed: Allowed) -> ApplyError {
    scene.hand.bring_with(ONE, allowed).unwrap_err()
}

const STOP: Allowed = Allowed {
    stop_holders: true,
    reset: false,
    destroy_unmanaged: false,
};

const RESET: Allowed = Allowed {
    stop_holders: false,
    reset: true,
    destroy_unmanaged: false,
};

#[test]
fn a_busy_gpu_keeps_its_mode_and_the_holder_is_named() {
    let scene = Scene::with("a100-80gb", 1);
    let holder = scene.sim.node.holder(&[0]);
    let error = refused(&scene, Allowed::default());
    let text = error.to_string();
    let named = format!("held by pid {} (", holder.pid());
    assert_contains(&text, &named);
    assert_contains(&text, ", session-1.scope)");
    assert!(error.is_busy() && !error.is_pending(), "{error:?}");
    assert_eq!(error.hints(), ["end them, and run this again"]);
    assert_eq!(mode(&scene), (false, false), "nothing waits for a reset");
    // Not even where units may be stopped: it is none.
    let error = refused(&scene, STOP);
    assert_contains(&error.to_string(), &named);
    holder.finish();
    scene.hand.bring_to(ONE).unwrap();
    assert_eq!(mode(&scene), (true, true));
}

#[test]
fn monitoring_units_are_stopped_only_where_allowed_and_started_again() {
    let scene = Scene::with("a100-80gb", 1);
    for unit in MONITORS {
        scene.sim.node.service(unit);
    }
    let error = refused(&scene, Allowed::default());
    for unit in MONITORS {
        assert_contains(&error.to_string(), &format!(", {unit})"));
    }
    let hint = "--stop-holders stops them for the change, and starts them again";
    assert_eq!(error.hints(), [hint]);
    assert_eq!(scene.sim.happened("systemctl stop"), 0);
    scene.hand.bring_with(ONE, STOP).unwrap();
    assert_eq!(mode(&scene), (true, true));
    for unit in MONITORS {
        assert!(is_up(&scene, unit), "{unit}");
    }
    assert_eq!(scene.sim.happened("systemctl stop"), MONITORS.len());
    scene.is_tidy();
}

#[test]
fn a_unit_is_started_again_after_a_failure() {
    let scene = Scene::with("a100-80gb", 1);
    scene.sim.node.service(DCGM);
    let create = scene
        .sim
        .node
        .fault("nvmlDeviceCreateGpuInstanceWithPlacement");
    create.fails(999).unwrap();
    let error = refused(&scene, STOP);
    assert!(is_up(&scene, DCGM), "{error}");
    // An A100 would need a reset to leave MIG mode again.
    assert_eq!(mode(&scene), (true, true));
    let stands = &error.rolled_back.stands;
    assert!(
        matches!(stands.as_slice(), [one] if one.ends_with(
            "MIG mode on: it is left on: to switch it off again, this GPU needs a reset"
        )),
        "{error}"
    );
    scene.is_tidy();
}

#[test]
fn a_unit_that_does_not_start_again_is_said_and_started_by_the_next_run() {
    let scene = Scene::with("a100-80gb", 1);
    scene.sim.node.service(DCGM);
    scene.sim.node.fault("systemctl start").fails(1).unwrap();
    let error = refused(&scene, STOP);
    assert!(
        error
            .to_string()
            .starts_with("starting nvidia-dcgm.service again: "),
        "{error}"
    );
    assert!(!is_up(&scene, DCGM));
    // The mode is as wanted; the journal stays until the unit is up.
    assert_eq!(mode(&scene), (true, true));
    assert!(scene.sim.run_dir().contains(&"journal.json".to_owned()));
    scene.hand.bring_to("3g.40gb@4").unwrap();
    assert!(is_up(&scene, DCGM));
    scene.is_tidy();
}

#[test]
fn hopper_is_switched_back() {
    let scene = Scene::with("h200-141gb-sxm", 1);
    let create = scene
        .sim
        .node
        .fault("nvmlDeviceCreateGpuInstanceWithPlacement");
    create.fails(999).unwrap();
    let error = scene.hand.bring_to("3g.71gb@0").unwrap_err();
    assert_eq!(mode(&scene), (false, false), "{error}");
    assert!(error.rolled_back.stands.is_empty(), "{error}");
    assert!(scene.sim.run_dir().is_empty());
}

#[test]
fn in_a_virtual_machine_the_reboot_is_due_and_the_next_run_goes_on() {
    let scene = Scene::with("a100-80gb", 1);
    let set = |platform| {
        let node = scene.sim.node.node();
        node.update(|state| state.policy.platform = platform)
            .unwrap();
    };
    set(Platform::PassThrough);
    let error = refused(&scene, Allowed::default());
    assert!(error.is_pending(), "{error}");
    assert!(error.hints()[0].contains("--reset"), "{:?}", error.hints());
    assert_eq!(scene.sim.happened("gpu reset"), 0);
    let stands = &error.rolled_back.stands;
    assert!(
        matches!(stands.as_slice(), [one] if one.contains("MIG mode: the change is pending")),
        "{error}"
    );
    assert_eq!(mode(&scene), (false, true));
    let error = refused(&scene, RESET);
    assert_eq!(scene.sim.happened("gpu reset"), 1);
    assert!(error.is_pending(), "{error}");
    assert_contains(&error.to_string(), "Not Supported");
    let hint = "reboot this machine, and run this again: it goes on";
    assert_eq!(error.hints()[0], hint);
    scene.sim.node.reboot();
    assert_eq!(mode(&scene), (true, true));
    Hand::new(scene.hand.environment.clone());
    scene.hand.bring_to(ONE).unwrap();
    assert!(
        scene
            .things()
            .iter()
            .any(|thing| thing.contains("daemon of 0.0 ["))
    );
}

#[test]
fn a_reset_is_made_where_allowed() {
    let scene = Scene::with("a100-80gb", 1);
    let node = scene.sim.node.node();
    let update = node.update(|state| state.policy.platform = Platform::NoOwnReset);
    update.unwrap();
    let error = refused(&scene, Allowed::default());
    assert!(error.is_pending(), "{error}");
    assert_eq!(scene.sim.happened("gpu reset"), 0);
    // Somebody watches: the reset is refused, and the holder named.
    let holder = scene.sim.node.holder(&[0]);
    let error = refused(&scene, RESET);
    assert!(error.is_busy(), "{error}");
    assert_contains(&error.to_string(), &format!("pid {}", holder.pid()));
    holder.finish();
    scene.hand.bring_with(ONE, RESET).unwrap();
    assert_eq!(scene.sim.happened("gpu reset"), 1);
    assert_eq!(mode(&scene), (true, true));
}

#[test]
fn the_exit_status_tells_busy_from_not_yet() {
    let sim = Sim::with("a100-80gb", 1);
    let holder = sim.node.holder(&[0]);
    let ran = sim.up(SMALL, &[]).ended(4);
    assert_contains(
        &ran.stderr,
        "cannot switch the MIG mode of GPU 0: held open by pid ",
    );
    holder.finish();
    sim.node.service(DCGM);
    sim.up(SMALL, &["--stop-holders", "--yes"]).ended(0);
    assert_eq!(sim.happened("systemctl start"), 1);
    let sim = Sim::with("a100-80gb", 1);
    let node = sim.node.node();
    let update = node.update(|state| state.policy.platform = Platform::PassThrough);
    update.unwrap();
    sim.up(SMALL, &[]).ended(3);
    let ran = sim.up(SMALL, &["--reset", "--yes"]).ended(3);
    assert_contains(
        &ran.stderr,
        "hint: reboot this machine, and run this again: it goes on",
    );
    sim.node.reboot();
    sim.up(SMALL, &[]).ended(0);
}

/// A call that hangs is still inside the driver after its thread was abandoned. To shut NVML down for a reset would pull
/// the library from under it.
#[test]
fn no_reset_is_made_while_a_call_hangs() {
    let mut scene = Scene::with("a100-80gb", 2);
    scene.hand.environment.call_limit = std::time::Duration::from_millis(700);
    let node = scene.sim.node.node();
    let update = node.update(|state| state.policy.platform = Platform::NoOwnReset);
    update.unwrap();
    // Of the GPU that is changed first; the other one is to be reset.
    scene
        .sim
        .node
        .fault("nvmlDeviceSetMigMode")
        .hangs()
        .unwrap();
    let error = scene.hand.bring_with("3g.40gb@0 / 3g.40gb@0", RESET);
    let error = error.unwrap_err();
    assert_eq!(scene.sim.happened("gpu reset"), 0, "{error}");
    let hangs = "nvmlDeviceSetMigMode has not returned for ";
    assert_contains(&error.to_string(), hangs);
}
