//! A user's daemon that fails is the user's loss.

use super::{HERS, control_that};
use testkit::{Ran, Sim, assert_contains, in_state, needs_root};

/// The failure of her daemon is hers: the others are served, and what is missing is tried again.
#[test]
fn a_users_daemon_that_does_not_start_undoes_nobody_elses() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 2);
    let profile = sim.profile(
        r#"
        [[gpu]]
        select = { index = [0] }
        devices = [
          { name = "hers", profile = "3g", mps = { serve = "user:nobody" } },
          { name = "ours", profile = "2g" },
        ]
        [[gpu]]
        select = { index = [1] }
        mig = false
        "#,
    );
    let profile = profile.to_str().unwrap();
    let refuse = control_that(&sim, "[ $(id -u) = 0 ] || exit 1");
    let mut up = sim.command(&["up", profile]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &refuse)).ended(1);
    for said in [
        "start the daemon of hers, which runs as nobody: ",
        "\neverything else was done\n",
        "hint: run the same command again",
    ] {
        assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("undone"), "{}", ran.stderr);
    // The summary.
    let row = |name: &str| ran.stdout.lines().find(|line| line.starts_with(name));
    assert!(
        row("0.4").is_some_and(|row| row.contains("no daemon")),
        "{}",
        ran.stdout
    );
    assert_eq!(in_state(&sim.status(), "ready"), ["ours", "1"]);
    assert_eq!(sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement"), 2);
    assert_eq!(sim.happened("nvmlGpuInstanceDestroy"), 0);
    assert!(!sim.run_dir().contains(&"journal.json".to_owned()));

    let plan = sim.run(&["plan", profile]).ended(0);
    let steps: Vec<&str> = plan
        .stdout
        .lines()
        .filter(|line| line.trim_start().starts_with(['+', '-', '~']))
        .collect();
    assert_eq!(steps.len(), 1, "{}", plan.stdout);
    assert!(
        steps[0].contains("start 1 daemon") && steps[0].ends_with(": hers"),
        "{steps:?}"
    );
    let daemon = sim.device("ours")["daemon_pid"].clone();
    sim.run(&["up", profile]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["ours", "hers", "1"]);
    assert_eq!(sim.device("ours")["daemon_pid"], daemon);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);

    // A daemon of root's that does not start undoes everything, hers too.
    let refuse = control_that(&sim, "[ $(id -u) != 0 ] || exit 1");
    let mut up = sim.command(&["up", profile]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &refuse)).ended(1);
    assert_contains(&ran.stderr, "was undone");
    assert_eq!(in_state(&sim.status(), "ready"), [""; 0]);
    assert_eq!(sim.run_dir().first().map(String::as_str), Some("lock"));
}

/// So it is with settings that her daemon does not take: she keeps those from before.
#[test]
fn a_users_daemon_that_takes_no_settings_undoes_nobody_elses() {
    needs_root!();
    let sim = Sim::with("h200", 2);
    let profile = |percentage: u32| {
        format!(
            "[mps]\nactive-thread-percentage = {percentage}\n\
             [[gpu]]\nselect = {{ index = [0] }}\nmig = false\nmps = {{ {HERS} }}\n\
             [[gpu]]\nselect = {{ index = [1] }}\nmig = false\n"
        )
    };
    sim.up(&profile(100), &[]).ended(0);
    let refuse = sim.control_script(
        "[ $(id -u) = 0 ] && exec $real \"$@\"\n\
         sed 's/^set_default_active_thread_percentage .*/nonsense/' | exec $real",
    );
    let path = sim.profile(&profile(50));
    let mut up = sim.command(&["up", path.to_str().unwrap()]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &refuse)).ended(1);
    assert_contains(&ran.stderr, "which runs as nobody: ");
    assert_eq!(sim.device("1")["active_thread_percentage"], 50.0);
    let plan = sim.run(&["plan", path.to_str().unwrap()]).ended(0);
    assert_contains(&plan.stdout, "GPU 0");
    assert!(!plan.stdout.contains("GPU 1"), "{}", plan.stdout);
    sim.run(&["up", path.to_str().unwrap()]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0", "1"]);
}
