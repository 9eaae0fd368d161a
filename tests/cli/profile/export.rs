//! `export`: what a node has, as a profile that `up` has nothing to do for.

use std::fs;

use testkit::{Ran, Sim, WHOLE, assert_contains, plain};

fn said(ran: &Ran) -> String {
    plain(&format!("{}{}", ran.stdout, ran.stderr))
}

/// True if `up` with that profile has nothing to do.
fn is_as_there(sim: &Sim, profile: &str) -> bool {
    let ran = sim.up(profile, &["--dry-run"]).ended(0);
    ran.stderr.contains("Nothing to do")
}

#[test]
fn it_is_written_to_a_new_file() {
    let sim = Sim::served("h200", 1, WHOLE);
    let printed = sim.run(&["export"]).ended(0).stdout;
    let file = sim.node.dir().join("exported.toml");
    let words = ["export", "-o", file.to_str().unwrap()];
    let ran = sim.run(&words).ended(0);
    assert_eq!(ran.stdout, "");
    assert_eq!(ran.stderr, format!("wrote {}\n", file.display()));
    assert_eq!(fs::read_to_string(&file).unwrap(), printed);
    // It may have been edited.
    fs::write(&file, "edited").unwrap();
    let refused = sim.run(&words).ended(1);
    assert_contains(&refused.stderr, "File exists");
    assert_eq!(fs::read_to_string(&file).unwrap(), "edited");
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

    # the GPU instance at 6 has no compute instance; up would create one
    [[gpu]]
    select = { index = [0] }
    devices = [
      { profile = "2g.20gb", at = 0 },
      { profile = "1g.10gb", at = 6 },
    ]

    [[gpu]]
    select = { index = [1] }
    mig = false
    note: up with this profile would still:
      create the full compute instance in slice 6: its GPU instance is there without it
    "#);
    assert!(!is_as_there(&sim, &ran.stdout));
    let _ = sim.up(&ran.stdout, &["--yes"]).ended(0);
    assert!(is_as_there(&sim, &ran.stdout));
}

/// mig-parted names a compute instance by its slices, which both kinds in a double-memory 1g have.
#[test]
fn either_compute_instance_of_a_double_memory_1g_is_kept() {
    let config = "version: v1\nmig-configs:\n  c:\n  - devices: all\n    mig-enabled: true\n    \
                  mig-devices: { 1g.20gb: 2 }\n";
    let small = "{ profile = '1g.20gb', compute = ['1c'], count = 2 }";
    let full = "{ profile = '1g.20gb', count = 2 }";
    for (entry, other, exact) in [(small, full, true), (full, small, false)] {
        let sim = Sim::with("h100-80gb-sxm", 1);
        let yaml = sim.node.dir().join("config.yaml");
        fs::write(&yaml, config).unwrap();
        let profile = format!("[[gpu]]\nselect = {{ all = true }}\ndevices = [ {entry} ]\n");
        let _ = sim.up(&profile, &[]).ended(0);
        let exported = sim.run(&["export"]).ended(0).stdout;
        assert!(is_as_there(&sim, &exported), "{exported}");
        // Either becomes the other.
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
        let imported = sim.run(&import).ended(0).stdout;
        assert!(is_as_there(&sim, &imported), "{imported}");
        if exact {
            // As after mig-parted: without --exact the compute instances are made anew.
            let larger = sim.run(&["import", yaml.to_str().unwrap()]).ended(0).stdout;
            let path = sim.profile(&larger);
            let plan = ["plan", path.to_str().unwrap(), "--exit-code"];
            let plan = sim.run(&plan).ended(3).stdout;
            assert_contains(&plan, "- destroy compute instance");
        }
    }
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
