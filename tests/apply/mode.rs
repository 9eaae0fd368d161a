//! MIG mode: done, busy, a reset due, a reboot due.

use mig_mps::internals::apply::{Allowed, ApplyError};
use mig_mps::internals::failure::Failure;
use simnode::node::Platform;

use crate::apply::testbed::{Hand, Testbed};
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

fn mode(testbed: &Testbed) -> (bool, bool) {
    let mode = testbed.hand.observe().gpus[0].mig.unwrap();
    (mode.current, mode.pending)
}

fn is_up(testbed: &Testbed, unit: &str) -> bool {
    let mut command = testbed.sim.node.program("systemctl");
    let output = command
        .args(["show", "--property=Id,ActiveState,MainPID", "--", unit])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).contains("ActiveState=active")
}

fn refused(testbed: &Testbed, allowed: Allowed) -> ApplyError {
    testbed.hand.bring_with(ONE, allowed).unwrap_err()
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
    let testbed = Testbed::with("a100-80gb", 1);
    let holder = testbed.sim.node.holder(&[0]);
    let error = refused(&testbed, Allowed::default());
    let text = error.to_string();
    let named = format!("kept open by pid {} (", holder.pid());
    assert_contains(&text, &named);
    assert_contains(&text, ", session-1.scope)");
    assert!(error.is_busy() && !error.is_pending(), "{error:?}");
    assert_eq!(
        error.hints(),
        ["end these processes, then run the command again"]
    );
    assert_eq!(mode(&testbed), (false, false), "nothing waits for a reset");
    // Not even where units may be stopped: it is none.
    let error = refused(&testbed, STOP);
    assert_contains(&error.to_string(), &named);
    holder.finish();
    testbed.hand.bring_to(ONE).unwrap();
    assert_eq!(mode(&testbed), (true, true));
}

#[test]
fn monitoring_units_are_stopped_only_where_allowed_and_started_again() {
    let testbed = Testbed::with("a100-80gb", 1);
    for unit in MONITORS {
        testbed.sim.node.service(unit);
    }
    let error = refused(&testbed, Allowed::default());
    for unit in MONITORS {
        assert_contains(&error.to_string(), &format!(", {unit})"));
    }
    let hint = "use --stop-holders to stop these services during the change";
    assert_eq!(error.hints(), [hint]);
    assert_eq!(testbed.sim.happened("systemctl stop"), 0);
    testbed.hand.bring_with(ONE, STOP).unwrap();
    assert_eq!(mode(&testbed), (true, true));
    for unit in MONITORS {
        assert!(is_up(&testbed, unit), "{unit}");
    }
    assert_eq!(testbed.sim.happened("systemctl stop"), MONITORS.len());
    testbed.is_tidy();
}

#[test]
fn a_unit_is_started_again_after_a_failure() {
    let testbed = Testbed::with("a100-80gb", 1);
    testbed.sim.node.service(DCGM);
    let create = testbed
        .sim
        .node
        .fault("nvmlDeviceCreateGpuInstanceWithPlacement");
    create.fails(999).unwrap();
    let error = refused(&testbed, STOP);
    assert!(is_up(&testbed, DCGM), "{error}");
    // An A100 would need a reset to leave MIG mode again.
    assert_eq!(mode(&testbed), (true, true));
    let stands = &error.rolled_back.stands;
    assert!(
        matches!(stands.as_slice(), [one] if one.ends_with(
            "MIG mode is still on, because turning it off requires a GPU reset"
        )),
        "{error}"
    );
    testbed.is_tidy();
}

#[test]
fn a_unit_that_does_not_start_again_is_said_and_started_by_the_next_run() {
    let testbed = Testbed::with("a100-80gb", 1);
    testbed.sim.node.service(DCGM);
    testbed.sim.node.fault("systemctl start").fails(1).unwrap();
    let error = refused(&testbed, STOP);
    assert!(
        error
            .to_string()
            .starts_with("cannot start nvidia-dcgm.service again\n"),
        "{error}"
    );
    assert!(!is_up(&testbed, DCGM));
    // The mode is as wanted; the journal stays until the unit is up.
    assert_eq!(mode(&testbed), (true, true));
    assert!(testbed.sim.run_dir().contains(&"journal.json".to_owned()));
    testbed.hand.bring_to("3g.40gb@4").unwrap();
    assert!(is_up(&testbed, DCGM));
    testbed.is_tidy();
}

#[test]
fn hopper_is_switched_back() {
    let testbed = Testbed::with("h200-141gb-sxm", 1);
    let create = testbed
        .sim
        .node
        .fault("nvmlDeviceCreateGpuInstanceWithPlacement");
    create.fails(999).unwrap();
    let error = testbed.hand.bring_to("3g.71gb@0").unwrap_err();
    assert_eq!(mode(&testbed), (false, false), "{error}");
    assert!(error.rolled_back.stands.is_empty(), "{error}");
    assert!(testbed.sim.run_dir().is_empty());
}

#[test]
fn in_a_virtual_machine_the_reboot_is_due_and_the_next_run_goes_on() {
    let testbed = Testbed::with("a100-80gb", 1);
    let set = |platform| {
        let node = testbed.sim.node.node();
        node.update(|state| state.policy.platform = platform)
            .unwrap();
    };
    set(Platform::PassThrough);
    let error = refused(&testbed, Allowed::default());
    assert!(error.is_pending(), "{error}");
    assert!(error.hints()[0].contains("--reset"), "{:?}", error.hints());
    assert_eq!(testbed.sim.happened("gpu reset"), 0);
    let stands = &error.rolled_back.stands;
    assert!(
        matches!(stands.as_slice(), [one] if one.contains("the MIG mode change is pending")),
        "{error}"
    );
    assert_eq!(mode(&testbed), (false, true));
    let error = refused(&testbed, RESET);
    assert_eq!(testbed.sim.happened("gpu reset"), 1);
    assert!(error.is_pending(), "{error}");
    assert_contains(&error.to_string(), "Not Supported");
    let hint = "reboot, then run the same command again to continue";
    assert_eq!(error.hints()[0], hint);
    testbed.sim.node.reboot();
    assert_eq!(mode(&testbed), (true, true));
    Hand::new(testbed.hand.environment.clone());
    testbed.hand.bring_to(ONE).unwrap();
    assert!(
        testbed
            .things()
            .iter()
            .any(|thing| thing.contains("daemon of 0.0 ["))
    );
}

#[test]
fn a_reset_is_made_where_allowed() {
    let testbed = Testbed::with("a100-80gb", 1);
    let node = testbed.sim.node.node();
    let update = node.update(|state| state.policy.platform = Platform::NoOwnReset);
    update.unwrap();
    let error = refused(&testbed, Allowed::default());
    assert!(error.is_pending(), "{error}");
    assert_eq!(testbed.sim.happened("gpu reset"), 0);
    // Somebody watches: the reset is refused, and the holder named.
    let holder = testbed.sim.node.holder(&[0]);
    let error = refused(&testbed, RESET);
    assert!(error.is_busy(), "{error}");
    assert_contains(&error.to_string(), &format!("pid {}", holder.pid()));
    holder.finish();
    testbed.hand.bring_with(ONE, RESET).unwrap();
    assert_eq!(testbed.sim.happened("gpu reset"), 1);
    assert_eq!(mode(&testbed), (true, true));
}

#[test]
fn the_exit_status_tells_busy_from_not_yet() {
    let sim = Sim::with("a100-80gb", 1);
    let holder = sim.node.holder(&[0]);
    let ran = sim.up(SMALL, &[]).ended(4);
    assert_contains(
        &ran.stderr,
        "cannot switch the MIG mode of GPU 0: kept open by pid ",
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
        "hint: reboot, then run the same command again to continue",
    );
    sim.node.reboot();
    sim.up(SMALL, &[]).ended(0);
}

/// A call that hangs is still inside the driver after its thread was abandoned. To shut NVML down for a reset would pull
/// the library from under it.
#[test]
fn no_reset_is_made_while_a_call_hangs() {
    let mut testbed = Testbed::with("a100-80gb", 2);
    testbed.hand.environment.call_limit = std::time::Duration::from_millis(700);
    let node = testbed.sim.node.node();
    let update = node.update(|state| state.policy.platform = Platform::NoOwnReset);
    update.unwrap();
    // Of the GPU that is changed first; the other one is to be reset.
    testbed
        .sim
        .node
        .fault("nvmlDeviceSetMigMode")
        .hangs()
        .unwrap();
    let error = testbed.hand.bring_with("3g.40gb@0 / 3g.40gb@0", RESET);
    let error = error.unwrap_err();
    assert_eq!(testbed.sim.happened("gpu reset"), 0, "{error}");
    let hangs = "nvmlDeviceSetMigMode did not return on ";
    assert_contains(&error.to_string(), hangs);
}
