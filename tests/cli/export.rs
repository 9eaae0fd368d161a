//! `export`: what a node has, as a profile that `up` has nothing to do for.

use std::fs;

use testkit::{Ran, Sim, assert_contains, in_state, is_alive, needs_root, plain, shell};

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

    [[gpu]]
    select = { index = [4] }
    mig = false
    mps = false
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

    mps = false

    # The GPU instance at 6 has no compute instance: up would make one.
    [[gpu]]
    select = { index = [0] }
    devices = [
      { profile = "2g.20gb", at = 0 },
      { profile = "1g.10gb", at = 6 },
    ]

    [[gpu]]
    select = { index = [1] }
    mig = false
    up with this profile would still:
      create the full compute instance in slice 6: its GPU instance is there without it
    "#);
    assert!(!is_as_there(&sim, &ran.stdout));
    let _ = sim.up(&ran.stdout, &["--yes"]).ended(0);
    assert!(is_as_there(&sim, &ran.stdout));
    let parted = sim.run(&["export", "--format", "mig-parted"]).ended(0);
    insta::assert_snapshot!(said(&parted), @r#"
    # What this node had when mig-mps exported it.
    # Where instances lie is left out: mig-parted lets the driver choose.
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
    "#);
}

/// Without daemons on the whole node, on a GPU, and in an entry.
#[test]
fn devices_without_daemons_come_out_as_they_are() {
    let sim = Sim::with("a100-80gb", 4);
    let none = r#"
mps = false

[[gpu]]
select = { index = [0, 1] }
devices = [ { profile = "2g", compute = ["1c", "1c"] }, { profile = "1g", count = 2 } ]

[[gpu]]
select = { index = [2] }
devices = []
"#;
    sim.up(none, &["--yes"]).ended(0);
    let ran = sim.run(&["export"]).ended(0);
    insta::assert_snapshot!(said(&ran), @r#"
    # What this node had when mig-mps exported it.

    mps = false

    [[gpu]]
    select = { index = [0, 1] }
    devices = [
      { profile = "1g.10gb", count = 2 },
      { profile = "2g.20gb", compute = ["1c", "1c"] },
    ]

    [[gpu]]
    select = { index = [2] }
    devices = []

    [[gpu]]
    select = { index = [3] }
    mig = false
    "#);
    assert!(is_as_there(&sim, &ran.stdout));

    // Daemons on GPU 0, except one, and on GPU 3.
    let some = format!(
        "{}\n[[gpu]]\nselect = {{ index = [3] }}\nmig = false\n",
        none.replace("mps = false", "mps = { server = \"lazy\" }")
    );
    sim.up(&some, &["--yes"]).ended(0);
    sim.run(&["down", "0.0"]).ended(0);
    let devices = sim.status()["devices"].as_array().unwrap().clone();
    for device in devices.iter().filter(|device| device["gpu"] == 1) {
        sim.run(&["down", device["name"].as_str().unwrap()])
            .ended(0);
    }
    let ran = sim.run(&["export"]).ended(0);
    let shown = ran
        .stdout
        .replace("\"one-at-a-time\"", "\"SERVE\"")
        .replace("\"self\"", "\"SERVE\"");
    insta::assert_snapshot!(shown, @r#"
    # What this node had when mig-mps exported it.

    [mps]
    serve = "SERVE"
    server = "lazy"

    [[gpu]]
    select = { index = [0] }
    devices = [
      { profile = "1g.10gb", mps = false },
      { profile = "1g.10gb" },
      { profile = "2g.20gb", compute = ["1c", "1c"] },
    ]

    [[gpu]]
    select = { index = [1] }
    mps = false
    devices = [
      { profile = "1g.10gb", count = 2 },
      { profile = "2g.20gb", compute = ["1c", "1c"] },
    ]

    [[gpu]]
    select = { index = [2] }
    devices = []

    [[gpu]]
    select = { index = [3] }
    mig = false
    "#);
    assert_eq!(ran.stderr, "");
    assert!(is_as_there(&sim, &ran.stdout));

    // On the empty node the same comes again.
    let before = sim.status();
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    sim.up(&ran.stdout, &["--yes"]).ended(0);
    for state in ["no daemon", "no server yet"] {
        assert_eq!(in_state(&sim.status(), state), in_state(&before, state));
    }
    assert_eq!(sim.run(&["export"]).ended(0).stdout, ran.stdout);
}

/// `mps` is that of an entry: one with daemons for some of its devices cannot be written.
#[test]
fn an_entry_with_some_daemons_has_a_remark_and_keeps_what_runs() {
    let sim = Sim::with("a100-80gb", 1);
    let shared = r#"
[[gpu]]
select = { all = true }
devices = [ { name = "s-{n}", profile = "3g", compute = ["1c", "1c", "1c"], mps = { client-priority = "below-normal" } } ]
"#;
    sim.up(shared, &["--yes"]).ended(0);
    sim.run(&["down", "s-0"]).ended(0);
    let ran = sim.run(&["export"]).ended(0);
    let shown = said(&ran)
        .replace("\"one-at-a-time\"", "\"SERVE\"")
        .replace("\"self\"", "\"SERVE\"");
    insta::assert_snapshot!(shown, @r#"
    # What this node had when mig-mps exported it.

    [mps]
    client-priority = "below-normal"
    serve = "SERVE"

    # The GPU instance at 0 has devices without daemons: up would start one for each.
    [[gpu]]
    select = { index = [0] }
    devices = [
      { name = "s-{n}", profile = "3g.40gb", at = 0, compute = ["1c", "1c", "1c"] },
    ]
    up with this profile would still:
      start the daemon of s-0: no daemon yet
    "#);
    let kept = sim.device("s-1")["daemon_pid"].clone();
    sim.up(&ran.stdout, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["s-0", "s-1", "s-2"]);
    assert_eq!(sim.device("s-1")["daemon_pid"], kept);
    assert!(is_as_there(&sim, &ran.stdout));
}

#[test]
fn a_record_that_cannot_be_read_is_mentioned() {
    let sim = Sim::with("a30", 1);
    let profile = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = '2g' } ]\n";
    sim.up(profile, &[]).ended(0);
    let uuid = sim.device("0.0")["uuid"].clone();
    let run_dir = sim.node.run_dir();
    let record = run_dir.join(uuid.as_str().unwrap()).join("device.json");
    assert!(record.exists(), "{:?}", sim.run_dir());
    fs::write(&record, "{").unwrap();
    let ran = sim.run(&["export"]).ended(0);
    let shown = said(&ran).replace(run_dir.to_str().unwrap(), "RUN");
    insta::assert_snapshot!(shown, @r#"
    # What this node had when mig-mps exported it.
    # RUN/MIG-…/device.json: line 1, column 1: not what mig-mps writes there: its device is exported as one without a daemon, which may be wrong.

    mps = false

    [[gpu]]
    select = { index = [0] }
    devices = [
      { profile = "2g.12gb" },
    ]
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
fn a_node_without_mig_and_daemons_comes_out_too() {
    let sim = Sim::with("a30", 2);
    let ran = sim.run(&["export"]).ended(0);
    insta::assert_snapshot!(said(&ran), @"
    # What this node had when mig-mps exported it.

    [[gpu]]
    select = { index = [0, 1] }
    mig = false
    mps = false
    ");
    assert!(is_as_there(&sim, &ran.stdout));
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

    [[gpu]]
    select = { index = [3, 4] }
    mig = false
    mps = false
    "#);
}

/// mig-parted names a compute instance by its slices, which both kinds in a double-memory 1g have.
#[test]
fn either_compute_instance_of_a_double_memory_1g_comes_back_from_mig_parted() {
    let small = "{ profile = '1g.20gb', compute = ['1c'], count = 2 }";
    let full = "{ profile = '1g.20gb', count = 2 }";
    for (entry, exact) in [(small, true), (full, false)] {
        let sim = Sim::with("h100-80gb-sxm", 1);
        let profile = format!("[[gpu]]\nselect = {{ all = true }}\ndevices = [ {entry} ]\n");
        let _ = sim.up(&profile, &[]).ended(0);
        let ran = sim.run(&["export", "--format", "mig-parted"]).ended(0);
        let which = if exact {
            "16 of 26 SMs, as mig-parted makes it. Import it with --exact."
        } else {
            "all 26 SMs. mig-parted accepts it, and would make one with 16."
        };
        insta::allow_duplicates! {
            insta::assert_snapshot!(said(&ran).replace(which, "WHICH"), @r#"
            # What this node had when mig-mps exported it.
            # Where instances lie is left out: mig-parted lets the driver choose.
            # 1g.20gb on GPU 0: the compute instance has WHICH
            # mig-parted knows nothing of MPS: names and settings of daemons are left out.
            version: v1
            mig-configs:
              current:
                - devices: [0]
                  mig-enabled: true
                  mig-devices:
                    "1g.20gb": 2
            mig-parted knows nothing of MPS: names and settings of daemons are left out.
            "#);
        }
        let yaml = sim.node.dir().join("exported.yaml");
        fs::write(&yaml, &ran.stdout).unwrap();
        // Either becomes the other.
        let other = if exact { full } else { small };
        let other = profile.replace(entry, other);
        let _ = sim.up(&other, &["--yes"]).ended(0);
        assert_eq!(
            sim.list()["gpus"][0]["devices"][0]["multiprocessors"],
            if exact { 26 } else { 16 }
        );
        sim.up_does_nothing(&other);
        let _ = sim.up(&profile, &["--yes"]).ended(0);
        let mut import = vec!["import", yaml.to_str().unwrap()];
        import.extend(exact.then_some("--exact"));
        let back = sim.run(&import).ended(0).stdout;
        assert!(is_as_there(&sim, &back), "{back}");
        if exact {
            // As after mig-parted: without --exact the compute instances are made anew.
            let larger = sim.run(&["import", yaml.to_str().unwrap()]).ended(0).stdout;
            let path = sim.profile(&larger);
            let plan = ["plan", path.to_str().unwrap(), "--exit-code"];
            let plan = sim.run(&plan).ended(3).stdout;
            assert_contains(&plan, "- destroy compute instance");
        }
    }
    let sim = Sim::with("h100-80gb-sxm", 1);
    let both = "{ profile = '1g.20gb' }, { profile = '1g.20gb', compute = ['1c'] }";
    let profile = format!("[[gpu]]\nselect = {{ all = true }}\ndevices = [ {both} ]\n");
    let _ = sim.up(&profile, &[]).ended(0);
    let ran = sim.run(&["export", "--format", "mig-parted"]).ended(0);
    assert_contains(&ran.stderr, "an import makes them alike");
}

/// As somebody saw it on an H100: profile 7 with all SMs beside profile 0.
#[test]
fn a_2g_with_a_full_compute_instance_of_its_own_is_read_back_and_kept() {
    let sim = Sim::with("h100-80gb-sxm-2g-ci7", 1);
    let profile = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = '2g' } ]\n";
    let _ = sim.up(profile, &[]).ended(0);
    let device = &sim.list()["gpus"][0]["devices"][0];
    assert_eq!(device["multiprocessors"], 26, "{device:#}");
    assert_eq!(device["profile"], "2g.20gb", "{device:#}");
    sim.up_does_nothing(profile);
    let ran = sim.run(&["export"]).ended(0);
    assert_contains(&ran.stdout, "  { profile = \"2g.20gb\" },\n");
    assert!(is_as_there(&sim, &ran.stdout));

    let small = profile.replace("'2g'", "'2g', compute = ['1c']");
    let _ = sim.up(&small, &["--yes"]).ended(0);
    let device = &sim.list()["gpus"][0]["devices"][0];
    assert_eq!(device["multiprocessors"], 16, "{device:#}");
    sim.up_does_nothing(&small);
    let ran = sim.run(&["export"]).ended(0);
    assert!(is_as_there(&sim, &ran.stdout), "{}", ran.stdout);
    // And the full one comes back.
    let _ = sim.up(profile, &["--yes"]).ended(0);
    sim.up_does_nothing(profile);
}

#[test]
fn a_plain_user_sees_what_there_is_and_is_told_whose_it_is() {
    needs_root!();
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

    mps = false

    [[gpu]]
    select = { index = [0] }
    devices = [
      { profile = "2g.12gb", count = 2 },
    ]

    [[gpu]]
    select = { index = [1] }
    mig = false
    "#);
    // Where the system's run directory is the one everybody looks into.
    let mut shared = sim.by_nobody(&["export"]);
    shared.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
    let ran = Ran::of(&mut shared).ended(0);
    assert!(ran.stderr.contains("plain user"), "{}", said(&ran));
}
