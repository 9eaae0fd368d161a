use insta::assert_snapshot;

use testkit::{SMALL, Sim, assert_contains, plain};

#[test]
fn gpus_without_mig_are_shown_with_what_they_offer() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.run(&["list", "--profiles"]).ended(0);
    assert_snapshot!(plain(&ran.stdout), @"
    GPU 0  NVIDIA A100-SXM4-80GB  80.0 GiB  MIG off
      GPU-…  0000:07:00.0
      OFFERS      ID  SMS   GIB  MOST  FREE  SLICES
      1g.10gb     19   14   9.5     7     7  0, 1, 2, 3, 4, 5, 6
      1g.10gb+me  20   14   9.5     1     1  0, 1, 2, 3, 4, 5, 6
      1g.20gb     15   14  19.5     4     4  0-1, 2-3, 4-5, 6-7
      2g.20gb     14   28  19.5     3     3  0-1, 2-3, 4-5
      3g.40gb      9   42  39.2     2     2  0-3, 4-7
      4g.40gb      5   56  39.2     1     1  0-3
      7g.80gb      0   98  79.0     1     1  0-7

    ID: the profile's number in nvidia-smi. SMS, GIB: of one instance. MOST: on an empty GPU. FREE: how many more fit now. SLICES: where one can be.
    ");
}

#[test]
fn mig_devices_are_shown_under_their_gpu_with_a_slice_map() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let ran = sim.run(&["list"]).ended(0);
    assert_snapshot!(plain(&ran.stdout), @"
    GPU 0  NVIDIA A100-SXM4-80GB  80.0 GiB  MIG on
      GPU-…  0000:07:00.0
      |2g.20gb    |1g   |.....|.....|.....|.....|.....|
      NAME  PROFILE  GI/CI  AT   SMS   GIB  UUID
      0.0   2g.20gb  3/0    0-1   28  19.5  MIG-…
      0.2   1g.10gb  9/0    2     14   9.5  MIG-…
    ");
}

#[test]
fn json_holds_the_same() {
    let sim = Sim::with("h200", 1);
    sim.up(SMALL, &[]).ended(0);
    let list = sim.list();
    let gpu = &list["gpus"][0];
    assert_eq!(gpu["product"], "NVIDIA H200");
    assert_eq!(gpu["mig"]["current"], true);
    assert_eq!(gpu["placement_units"], 8);
    let devices = gpu["devices"].as_array().unwrap();
    let of = |key: &str| {
        devices
            .iter()
            .map(|device| device[key].to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("name"), ["\"0.0\"", "\"0.2\""]);
    assert_eq!(of("profile"), ["\"2g.35gb\"", "\"1g.18gb\""]);
    assert_eq!(of("multiprocessors"), ["32", "16"]);
    assert_eq!(devices[1]["placement"]["start"], 2);
    assert_eq!(gpu["profiles"].as_array().unwrap().len(), 7);
}

#[test]
fn a_gpu_instance_without_compute_instance_is_seen() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let id = sim.foreign_instance(0, 6);
    let ran = sim.run(&["list"]).ended(0);
    let line = format!(
        "GPU instance {id} (1g.10gb at slice 6) has no compute instance: CUDA does not see it"
    );
    assert_contains(&ran.stdout, &line);
}

#[test]
fn everything_fits_into_80_columns() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let ran = sim.in_80_columns("list");
    for line in ran.stdout.lines() {
        assert!(console::measure_text_width(line.trim_end()) <= 80, "{line}");
    }
    assert!(!ran.stdout.contains("hidden: "), "{}", ran.stdout);
}
