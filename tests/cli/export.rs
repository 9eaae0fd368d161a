//! `export`: what a node has, as a profile that `up` has nothing to do for.

use std::fs;

use crate::common::{Ran, Sim, is_alive, is_root, plain, shell};

fn said(ran: &Ran) -> String {
    plain(&format!("{}{}", ran.stdout, ran.stderr))
}

/// Whether `up` with that profile has nothing to do.
fn is_as_there(sim: &Sim, profile: &str) -> bool {
    let ran = sim.up(profile, &["--dry-run"]).ended(0);
    ran.stderr.contains("Nothing to do")
}

const VARIED: &str = r#"
[mps]
active-thread-percentage = 80

[[gpu]]
select = { index = [3] }
mig = false
name = "big"

[[gpu]]
select = { index = [0, 1] }
devices = [
  { name = "trainer-{gpu}", profile = "3g.40gb", mps = { active-thread-percentage = 33.3 } },
  { profile = "1g", count = 2, mps = { server = "lazy" } },
  { name = "s-{gpu}-{n}", profile = "2g", compute = ["1c", "1c"] },
]

[[gpu]]
select = { index = [2] }
devices = [ { profile = "1g", at = 6 }, { profile = "1g", at = 3, mps = { server = "lazy" } } ]
"#;

#[test]
fn a_node_comes_out_as_the_profile_that_made_it() {
    let sim = Sim::with("a100-80gb", 5);
    let _ = sim.up(VARIED, &["--yes"]).ended(0);
    let ran = sim.run(&["export"]).ended(0);
    assert_eq!(ran.stderr, "");
    let shown = ran
        .stdout
        .replace("\"one-at-a-time\"", "\"SERVE\"")
        .replace("\"self\"", "\"SERVE\"");
    insta::assert_snapshot!(shown, @r#"
    # What this node had when mig-mps exported it.
    # GPU 4 is left out: it is whole and has no daemon.

    [mps]
    active-thread-percentage = 80
    serve = "SERVE"

    [[gpu]]
    select = { index = [0, 1] }
    devices = [
      { profile = "1g.10gb", count = 2, mps = { server = "lazy" } },
      { name = "trainer-{gpu}", profile = "3g.40gb", mps = { active-thread-percentage = 33.3 } },
      { name = "s-{gpu}-{n}", profile = "2g.20gb", compute = ["1c", "1c"] },
    ]

    [[gpu]]
    select = { index = [2] }
    devices = [
      { profile = "1g.10gb", at = 3, mps = { server = "lazy" } },
      { profile = "1g.10gb", at = 6 },
    ]

    [[gpu]]
    select = { index = [3] }
    mig = false
    name = "big"
    "#);
    assert!(is_as_there(&sim, &ran.stdout));

    // On the node as it is after a reboot, MIG mode aside, the same comes again.
    let before = sim.list();
    let _ = sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    let _ = sim.up(&ran.stdout, &["--yes"]).ended(0);
    let devices = |list: &serde_json::Value| -> Vec<String> {
        let gpus = list["gpus"].as_array().unwrap().iter();
        let all = gpus.flat_map(|gpu| gpu["devices"].as_array().unwrap().clone());
        all.map(|d| format!("{} {} {}", d["name"], d["profile"], d["placement"]))
            .collect()
    };
    assert_eq!(devices(&sim.list()), devices(&before));
}

#[test]
fn instances_of_other_tools_come_out_too() {
    let sim = Sim::with("a100-80gb", 2);
    let _ = sim
        .up(
            "[[gpu]]\nselect = { index = [0] }\ndevices = [ { profile = '2g' } ]\n",
            &[],
        )
        .ended(0);
    let _ = sim.run(&["down"]).ended(0);
    sim.foreign_instance(0, 6);
    let ran = sim.run(&["export"]).ended(0);
    insta::assert_snapshot!(said(&ran), @r#"
    # What this node had when mig-mps exported it.
    # GPU 1 is left out: it is whole and has no daemon.

    # Some of these have no daemon now: up would start one for each.
    # The GPU instance at 6 has no compute instance: up would make one.
    [[gpu]]
    select = { index = [0] }
    devices = [
      { profile = "2g.20gb", at = 0 },
      { profile = "1g.10gb", at = 6 },
    ]
    up with this profile would still:
      start the daemon of 0.0: no daemon serves it
      create the full compute instance in 6:1: its GPU instance is there without it
      start the daemon of 0.6: no daemon serves it
    "#);
    assert!(!is_as_there(&sim, &ran.stdout));
    let _ = sim.up(&ran.stdout, &["--yes"]).ended(0);
    assert!(is_as_there(&sim, &ran.stdout));
    let parted = sim.run(&["export", "--format", "mig-parted"]).ended(0);
    insta::assert_snapshot!(said(&parted), @r#"
    # What this node had when mig-mps exported it.
    # Where instances lie is left out: mig-parted lets the driver choose.
    # mig-parted knows nothing of MPS: names and settings of daemons are left out.
    version: v1
    mig-configs:
      current:
        - devices: [0]
          mig-enabled: true
          mig-devices:
            "1g.10gb": 1
            "2g.20gb": 1
        - devices: [1]
          mig-enabled: false
    mig-parted knows nothing of MPS: names and settings of daemons are left out.
    "#);
}

#[test]
fn a_dead_daemon_is_mentioned() {
    let sim = Sim::with("a30", 1);
    let _ = sim
        .up(
            "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = '2g' } ]\n",
            &[],
        )
        .ended(0);
    let daemon = &sim.device("0.0")["daemon_pid"];
    shell(format!("kill -9 {daemon}")).ended(0);
    while is_alive(daemon) {
        std::thread::yield_now();
    }
    let ran = sim.run(&["export"]).ended(0);
    assert!(
        ran.stdout
            .contains("# The daemon of 0.0 is dead: up would start it again."),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stderr
            .contains("start the daemon of 0.0: its daemon has died"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_node_with_nothing_to_say_is_no_profile() {
    let sim = Sim::with("a30", 2);
    insta::assert_snapshot!(sim.run(&["export"]).ended(1).stderr, @"
    error: there is nothing that a profile could say of this node
    What this node had when mig-mps exported it.
    GPUs 0, 1 are left out, each for this: it is whole and has no daemon.
    ");
    let _ = sim.run(&["export", "--format", "mig-parted"]).ended(0);
}

#[test]
fn mig_parted_gets_the_geometry_and_gives_it_back() {
    let sim = Sim::with("a100-80gb", 5);
    let _ = sim.up(VARIED, &["--yes"]).ended(0);
    let ran = sim.run(&["export", "--format", "mig-parted"]).ended(0);
    insta::assert_snapshot!(said(&ran), @r#"
    # What this node had when mig-mps exported it.
    # Where instances lie is left out: mig-parted lets the driver choose.
    # mig-parted knows nothing of MPS: names and settings of daemons are left out.
    version: v1
    mig-configs:
      current:
        - devices: [0, 1]
          mig-enabled: true
          mig-devices:
            "1c.2g.20gb": 2
            "1g.10gb": 2
            "3g.40gb": 1
        - devices: [2]
          mig-enabled: true
          mig-devices:
            "1g.10gb": 2
        - devices: [3, 4]
          mig-enabled: false
    mig-parted knows nothing of MPS: names and settings of daemons are left out.
    "#);
    let yaml = sim.node.dir().join("exported.yaml");
    fs::write(&yaml, &ran.stdout).unwrap();
    let yaml = yaml.to_str().unwrap();
    let profile = sim.run(&["import", yaml]).ended(0).stdout;
    insta::assert_snapshot!(profile, @r#"
    # Imported from the mig-parted configuration "current".
    name = "current"

    [[gpu]]
    select = { index = [0, 1] }
    devices = [
      { profile = "3g.40gb" },
      { profile = "2g.20gb", compute = ["1c", "1c"] },
      { profile = "1g.10gb", count = 2 },
    ]

    [[gpu]]
    select = { index = [2] }
    devices = [
      { profile = "1g.10gb", count = 2 },
    ]

    # mig-parted switches MIG off here. mig-mps leaves these GPUs as they are: mig = false would
    # also start a daemon for the whole GPU. If that is wanted:
    # [[gpu]]
    # select = { index = [3, 4] }
    # mig = false
    "#);
}

#[test]
fn a_plain_user_sees_what_there_is_and_is_told_whose_it_is() {
    if !is_root("a_plain_user_sees_what_there_is_and_is_told_whose_it_is") {
        return;
    }
    let sim = Sim::with("a30", 2);
    let _ = sim
        .up(
            "[[gpu]]\nselect = { index = [0] }\ndevices = [ { profile = '2g', count = 2 } ]\n",
            &[],
        )
        .ended(0);
    let ran = Ran::of(&mut sim.by_nobody(&["export"])).ended(0);
    insta::assert_snapshot!(said(&ran), @r#"
    # What this node had when mig-mps exported it.
    # GPU 1 is left out: it is whole and has no daemon.

    # Some of these have no daemon now: up would start one for each.
    [[gpu]]
    select = { index = [0] }
    devices = [
      { profile = "2g.12gb", count = 2 },
    ]
    up with this profile would still:
      start the daemon of 0.0: no daemon serves it
      start the daemon of 0.2: no daemon serves it
    "#);
    // Where the system's run directory is the one everybody looks into.
    let mut shared = sim.by_nobody(&["export"]);
    shared.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
    let ran = Ran::of(&mut shared).ended(0);
    assert!(ran.stderr.contains("plain user"), "{}", said(&ran));
}
