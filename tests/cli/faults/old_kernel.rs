//! A kernel before Linux 5.3.

use testkit::{Ran, SMALL, Sim, without_pidfd};
const SAID: &str = "error: mig-mps needs Linux 5.3 or newer: pidfd_open failed: Function not implemented\nhint: check the version of the kernel with `uname -r`; in a container, its filter of system calls may refuse the call\n";

#[test]
fn an_old_kernel_is_refused_before_anything_is_done() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let profile = profile.to_str().unwrap();
    let on_old = |args: &[&str]| {
        let mut command = sim.command(args);
        without_pidfd(&mut command);
        Ran::of(&mut command)
    };
    for args in [
        &["up", profile][..],
        &["plan", profile],
        &["status"],
        &["down"],
        &["doctor"],
        &["metrics"],
    ] {
        assert_eq!(on_old(args).ended(1).stderr, SAID, "{args:?}");
    }
    assert_eq!(
        on_old(&["run", "0.0", "--", "true"]).ended(125).stderr,
        SAID
    );
    assert_eq!(sim.happened("daemon start"), 0);
    // What is made from files alone is made where packages are built.
    on_old(&["check", profile]).ended(0);
    on_old(&["completions", "bash"]).ended(0);
    on_old(&["--help"]).ended(0);
}
