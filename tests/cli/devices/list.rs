use testkit::{SMALL, Sim, assert_contains};

#[test]
fn json_holds_the_same() {
    let sim = Sim::served("h200", 1, SMALL);
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
    let sim = Sim::small();
    let id = sim.foreign_instance(0, 6);
    let ran = sim.run(&["list"]).ended(0);
    let line = format!(
        "GPU instance {id} (1g.10gb at slice 6) has no compute instance: CUDA does not see it"
    );
    assert_contains(&ran.stdout, &line);
}

#[test]
fn everything_fits_into_80_columns() {
    let sim = Sim::small();
    let ran = sim.in_80_columns("list");
    for line in ran.stdout.lines() {
        assert!(console::measure_text_width(line.trim_end()) <= 80, "{line}");
    }
    assert!(!ran.stdout.contains("not shown: "), "{}", ran.stdout);
}
