//! A daemon that is not as the profile says, though its record is.

use testkit::{SMALL, Sim, assert_contains, shell, stop};

#[test]
fn a_setting_changed_by_hand_is_drift() {
    let sim = Sim::small();
    let pipe = sim.pipe("0.2");
    let control = sim.node.dir().join("bin/nvidia-cuda-mps-control");
    let set = format!(
        "echo set_default_active_thread_percentage 10 | CUDA_MPS_PIPE_DIRECTORY={pipe} {}",
        control.display()
    );
    shell(set).ended(0);
    let ran = sim.up(SMALL, &["--yes"]).ended(0);
    assert_contains(
        &ran.stdout,
        "active-thread-percentage  10 in the daemon → 100",
    );
    sim.up_does_nothing(SMALL);
}

#[test]
fn a_daemon_that_does_not_answer_is_not_as_the_profile_says() {
    let sim = Sim::small();
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    stop(&daemon);
    let ran = sim.up(SMALL, &["--yes"]).ended(4);
    assert_contains(&ran.stderr, "it is stopped by a signal");
    shell(format!("kill -CONT {daemon}")).ended(0);
}
