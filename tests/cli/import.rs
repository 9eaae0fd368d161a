//! `import`: mig-parted's configurations as profiles.

use std::path::Path;

use mig_mps::internals::profile::Profile;

use testkit::{Ran, Sim, assert_contains, in_state, without_gpu};

fn imported(yaml: &str, args: &[&str]) -> Ran {
    without_gpu(&[&["import", "-"], args].concat(), yaml)
}

/// A configuration called `c` with these entries.
pub(crate) fn config(entries: &str) -> String {
    let entries = entries.trim_matches('\n').replace('\n', "\n    ");
    format!("version: v1\nmig-configs:\n  c:\n    {entries}\n")
}

/// What is said of a wrong one.
fn refused(entries: &str) -> String {
    imported(&config(entries), &[]).ended(2).stderr
}

const SEVERAL: &str = r#"
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  all-1g.10gb:
    - devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7
  all-balanced:
    - device-filter: ["0x20B210DE", "0x20B510DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "2g.20gb": 1
        "3g.40gb": 1
    - device-filter: "0x233510DE"
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.18gb": 2
        "2g.35gb": 1
        "3g.71gb": 1
  custom:
    - devices: [0, 1]
      mig-enabled: false
    - devices: [2]
      mig-enabled: true
      mig-devices:
        "1c.3g.40gb": 3
        "1g.10gb+me": 1
        "2g.20gb": 1
        "1g.20gb": 0
    - devices: [3]
      mig-enabled: true
      mig-devices: { "7g.80gb": 1 }
"#;

#[test]
fn one_kind_on_every_gpu() {
    let profile = imported(SEVERAL, &["-c", "all-1g.10gb"]).ended(0).stdout;
    insta::assert_snapshot!(profile, @r#"
    # Imported from the mig-parted configuration "all-1g.10gb".
    name = "all-1g.10gb"

    # mig-parted passes over GPUs without MIG here; mig-mps refuses a node that has one:
    # select by product or index there.
    [[gpu]]
    select = { all = true }
    devices = [
      { profile = "1g.10gb", count = 7 },
    ]
    "#);
}

#[test]
fn a_device_filter_becomes_product_names() {
    let profile = imported(SEVERAL, &["-c", "all-balanced"]).ended(0).stdout;
    insta::assert_snapshot!(profile, @r#"
    # Imported from the mig-parted configuration "all-balanced".
    name = "all-balanced"

    # device-filter 0x20B210DE: any of NVIDIA A100-SXM4-80GB, NVIDIA PG509-210
    # device-filter 0x20B510DE: NVIDIA A100 80GB PCIe
    [[gpu]]
    select = { product = "^(NVIDIA A100 80GB PCIe|NVIDIA A100-SXM4-80GB|NVIDIA PG509-210)$" }
    devices = [
      { profile = "3g.40gb" },
      { profile = "2g.20gb" },
      { profile = "1g.10gb", count = 2 },
    ]

    # device-filter 0x233510DE: NVIDIA H200
    [[gpu]]
    select = { product = "^NVIDIA H200$" }
    devices = [
      { profile = "3g.71gb" },
      { profile = "2g.35gb" },
      { profile = "1g.18gb", count = 2 },
    ]
    "#);
    // On each model exactly its own block is meant.
    let ran = without_gpu(&["check", "/dev/stdin"], &profile).ended(0);
    insta::assert_snapshot!(ran.stdout, @r#"
    line 7: { product = "^(NVIDIA A100 80GB PCIe|NVIDIA A100-SXM4-80GB|NVIDIA PG509-210)$" }
      a100-80gb  |1g   |1g   |2g.20gb    |3g.40gb                |
    line 16: { product = "^NVIDIA H200$" }
      h200-141gb-sxm  |1g   |1g   |2g.35gb    |3g.71gb                |
    It fits 2 models.
    "#);
    let subsystem = config(
        "- device-filter: \"0x20B210DE:0x147F10DE\"\n  devices: all\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }",
    );
    let profile = imported(&subsystem, &[]).ended(0).stdout;
    assert_contains(
        &profile,
        "select = { product = \"^NVIDIA A100-SXM4-80GB$\" }",
    );
}

#[test]
fn devices_by_index_share_gpu_instances_and_leave_the_others_alone() {
    let ran = imported(SEVERAL, &["-c", "custom"]).ended(0);
    insta::assert_snapshot!(format!("{}{}", ran.stdout, ran.stderr), @r#"
    # Imported from the mig-parted configuration "custom".
    name = "custom"

    [[gpu]]
    select = { index = [0, 1] }
    mig = false
    mps = false

    [[gpu]]
    select = { index = [2] }
    devices = [
      { profile = "3g.40gb", compute = ["1c", "1c", "1c"] },
      { profile = "2g.20gb" },
      { profile = "1g.10gb+me" },
    ]

    [[gpu]]
    select = { index = [3] }
    devices = [
      { profile = "7g.80gb" },
    ]
    "#);
}

#[test]
fn a_whole_gpu_is_served_only_where_that_is_asked_for() {
    let profile = imported(SEVERAL, &["-c", "custom", "--serve-whole"])
        .ended(0)
        .stdout;
    let parsed = Profile::parse(Path::new("p.toml"), profile.clone()).unwrap();
    assert_eq!(parsed.blocks.len(), 3);
    assert_contains(
        &profile,
        "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\n",
    );
    let profile = imported(SEVERAL, &["-c", "all-disabled"]).ended(0).stdout;
    insta::assert_snapshot!(profile, @r#"
    # Imported from the mig-parted configuration "all-disabled".
    name = "all-disabled"

    [[gpu]]
    select = { all = true }
    mig = false
    mps = false
    "#);
    let profile = imported(SEVERAL, &["-c", "all-disabled", "--serve-whole"])
        .ended(0)
        .stdout;
    insta::assert_snapshot!(profile, @r#"
    # Imported from the mig-parted configuration "all-disabled".
    name = "all-disabled"

    # mig-parted only switches MIG off here; mig-mps also starts a daemon for the whole GPU.
    [[gpu]]
    select = { all = true }
    mig = false
    "#);
}

#[test]
fn which_configuration_is_asked() {
    insta::assert_snapshot!(imported(SEVERAL, &[]).ended(2).stderr, @"
    error: standard input has 5 configurations: choose one with --config:
      all-1g.10gb
      all-balanced
      all-disabled
      all-enabled
      custom
    ");
    insta::assert_snapshot!(imported(SEVERAL, &["-c", "balanced"]).ended(2).stderr, @r#"
    error: standard input has no configuration "balanced"; it has:
      all-1g.10gb
      all-balanced
      all-disabled
      all-enabled
      custom
    "#);
    let absent = without_gpu(&["import", "/nowhere.yaml"], "")
        .ended(2)
        .stderr;
    insta::assert_snapshot!(absent, @"
    error: cannot read /nowhere.yaml: No such file or directory
    hint: import reads a configuration of mig-parted (YAML)
    ");
}

#[test]
fn of_entries_that_overlap_the_last_one_stays() {
    let profile = imported(
        &config(
            "- devices: all\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }\n\
             - devices: [3, 4, 3]\n  mig-enabled: true\n  mig-devices: { 3g.40gb: 2 }\n\
             - devices: []\n  mig-enabled: true\n  mig-devices: { 4g.40gb: 1 }\n\
             - devices: [4, 5]\n  mig-enabled: true\n  mig-devices: { 2g.20gb: 1 }",
        ),
        &[],
    );
    insta::assert_snapshot!(profile.ended(0).stdout, @r#"
    # Imported from the mig-parted configuration "c".
    # The entries overlap: mig-parted carries out one after the other and the last one for a
    # GPU stays. Here the first block that selects a GPU wins: the order is reversed.
    name = "c"

    [[gpu]]
    select = { index = [4, 5] }
    devices = [
      { profile = "2g.20gb" },
    ]

    [[gpu]]
    select = { index = [3, 4] }
    devices = [
      { profile = "3g.40gb", count = 2 },
    ]

    # mig-parted passes over GPUs without MIG here; mig-mps refuses a node that has one:
    # select by product or index there.
    [[gpu]]
    select = { all = true }
    devices = [
      { profile = "7g.80gb" },
    ]
    "#);
    let covered = imported(
        &config(
            "- devices: [0]\n  mig-enabled: true\n  mig-devices: { 3g.40gb: 2 }\n\
             - devices: all\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }",
        ),
        &[],
    );
    let profile = covered.ended(0).stdout;
    assert_eq!(profile.matches("[[gpu]]").count(), 1, "{profile}");
    assert_contains(&profile, "7g.80gb");
}

#[test]
fn mode_alone_and_indices_of_one_model_are_imported() {
    let profile = imported(SEVERAL, &["-c", "all-enabled"]).ended(0).stdout;
    insta::assert_snapshot!(profile, @r#"
    # Imported from the mig-parted configuration "all-enabled".
    name = "all-enabled"

    # mig-parted passes over GPUs without MIG here; mig-mps refuses a node that has one:
    # select by product or index there.
    [[gpu]]
    select = { all = true }
    devices = []
    "#);
    let both = config(
        "- devices: [2, 0]\n  device-filter: '0x20B510DE'\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }",
    );
    insta::assert_snapshot!(imported(&both, &[]).ended(0).stdout, @r#"
    # Imported from the mig-parted configuration "c".
    name = "c"

    # device-filter 0x20B510DE: NVIDIA A100 80GB PCIe
    [[gpu]]
    select = { index = [0, 2], product = "^NVIDIA A100 80GB PCIe$" }
    devices = [
      { profile = "7g.80gb" },
    ]
    "#);
}

#[test]
fn what_a_profile_cannot_say_is_refused_by_name() {
    insta::assert_snapshot!(refused("- devices: all\n  device-filter: '0x1EB810DE'\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }"), @r#"
    error: standard input:4:7: the catalog has no product name for the device id 0x1EB810DE
      |
    4 |     - devices: all
      |       ^^^^^^^^^^^^
    mig-mps list shows the product names of a node: take this id out of the file,
    import the rest, and add a block with select = { product = "^NAME$" }
    "#);
}

/// `ParseConfigFile` reads with `yaml.Unmarshal` of sigs.k8s.io/yaml, which is not strict: of equal keys go-yaml keeps the
/// last, `resolve` takes `07` for octal and `7.0` for a number, which is 7 in JSON, and the second document is not read.
#[test]
fn numbers_keys_and_documents_are_read_as_mig_parted_reads_them() {
    let plain = imported(
        &config("- devices: [2]\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 7 }"),
        &[],
    );
    let plain = plain.ended(0).stdout;
    for entry in [
        "- devices: [2]\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 7.0 }",
        "- devices: [2.0]\n  mig-enabled: yes\n  mig-devices: { 1g.5gb: 07 }",
        "- devices: [02]\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 1, 1g.5gb: 7 }",
        "- devices: [1]\n  devices: [2]\n  mig-enabled: ~\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 7, 2g.10gb: ~ }",
    ] {
        assert_eq!(
            imported(&config(entry), &[]).ended(0).stdout,
            plain,
            "{entry}"
        );
    }
    let first = config("- devices: [2]\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 7 }");
    let followed = format!("---\n{first}---\n[ this is not read\n");
    assert_eq!(imported(&followed, &[]).ended(0).stdout, plain);

    let quoted = refused("- devices: [2]\n  mig-enabled: true\n  mig-devices: { 1g.5gb: \"7\" }");
    insta::assert_snapshot!(quoted, @r#"
    error: standard input:6:30: expected a whole number, without quotes
      |
    6 |       mig-devices: { 1g.5gb: "7" }
      |                              ^^^
    "#);
    let quoted = refused("- devices: [2]\n  mig-enabled: \"true\"\n  mig-devices: { 1g.5gb: 7 }");
    insta::assert_snapshot!(quoted, @r#"
    error: standard input:5:20: expected true or false, without quotes
      |
    5 |       mig-enabled: "true"
      |                    ^^^^^^
    "#);
    for wrong in ["[\"2\"]", "[2.5]", "2", "true"] {
        let devices = refused(&format!("- devices: {wrong}\n  mig-enabled: false"));
        assert_contains(&devices, "expected \"all\" or a list of indices");
    }
    let half = refused("- devices: [2]\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 1.5 }");
    assert_contains(&half, "expected a whole number");
    for wrong in ["1g.10gb+me,me", "1g.10gb+me+me", "1g.10gb+me-gfx"] {
        let twice = refused(&format!(
            "- devices: [2]\n  mig-enabled: true\n  mig-devices: {{ '{wrong}': 1 }}"
        ));
        assert_contains(&twice, "once each, in one list");
    }
}

/// `NewDeviceIDFromString` takes any number, and `MatchesDeviceFilter` ignores its error.
#[test]
fn a_filter_may_be_decimal_and_a_name_selects_nothing() {
    let entry = |filter: &str| {
        config(&format!(
            "- device-filter: {filter}\n  devices: all\n  mig-enabled: true\n  mig-devices: {{ 7g.80gb: 1 }}"
        ))
    };
    let profile = |filter: &str| imported(&entry(filter), &[]).ended(0).stdout;
    assert_eq!(profile("'548540638'"), profile("'0x20B210DE'"));
    let ran = imported(&entry("['A100', '0x20B510DE']"), &[]).ended(0);
    insta::assert_snapshot!(format!("{}{}", ran.stdout, ran.stderr), @r#"
    # Imported from the mig-parted configuration "c".
    # device-filter "A100" is no PCI id: mig-parted selects no GPU by it.
    name = "c"

    # device-filter 0x20B510DE: NVIDIA A100 80GB PCIe
    [[gpu]]
    select = { product = "^NVIDIA A100 80GB PCIe$" }
    devices = [
      { profile = "7g.80gb" },
    ]
    device-filter "A100" is no PCI id: mig-parted selects no GPU by it.
    "#);
    let nothing = imported(&entry("A100"), &[]).ended(2).stderr;
    assert_contains(&nothing, "selects no GPU");
}

/// A DGX Station has a display board, on which mig-parted's file switches MIG off.
#[test]
fn an_entry_that_only_switches_mig_off_on_unknown_gpus_is_left_out() {
    let dgx = include_str!("../../fixtures/mig-parted/dgx-station-80gb-config.yaml");
    let ran = imported(dgx, &["-c", "all-3g.40gb-dgx-station-80"]).ended(0);
    insta::assert_snapshot!(format!("{}{}", ran.stdout, ran.stderr), @r#"
    # Imported from the mig-parted configuration "all-3g.40gb-dgx-station-80".
    # device-filter 0x1FB010DE is left out: it only switches MIG off, on GPUs that the catalog does not know.
    name = "all-3g.40gb-dgx-station-80"

    # device-filter 0x20B210DE: any of NVIDIA A100-SXM4-80GB, NVIDIA PG509-210
    [[gpu]]
    select = { product = "^(NVIDIA A100-SXM4-80GB|NVIDIA PG509-210)$" }
    devices = [
      { profile = "3g.40gb", count = 2 },
    ]
    device-filter 0x1FB010DE is left out: it only switches MIG off, on GPUs that the catalog does not know.
    "#);
    let hidden = refused(
        "- devices: all\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }\n\
         - devices: all\n  device-filter: '0x1FB010DE'\n  mig-enabled: false",
    );
    assert_contains(&hidden, "without a block for these GPUs");
}

#[test]
fn the_full_compute_instance_is_made_unless_that_of_mig_parted_is_asked_for() {
    let yaml = config(
        "- devices: all\n  device-filter: '0x233010DE'\n  mig-enabled: true\n  mig-devices: { 1g.20gb: 2, 3g.40gb: 1 }",
    );
    let ran = imported(&yaml, &[]).ended(0);
    insta::assert_snapshot!(format!("{}{}", ran.stdout, ran.stderr), @r#"
    # Imported from the mig-parted configuration "c".
    # 1g.20gb gets the compute instance with all its SMs; mig-parted makes one with fewer (--exact does too).
    name = "c"

    # device-filter 0x233010DE: NVIDIA H100 80GB HBM3
    [[gpu]]
    select = { product = "^NVIDIA H100 80GB HBM3$" }
    devices = [
      { profile = "3g.40gb" },
      { profile = "1g.20gb", count = 2 },
    ]
    1g.20gb gets the compute instance with all its SMs; mig-parted makes one with fewer (--exact does too).
    "#);
    let ran = imported(&yaml, &["--exact"]).ended(0);
    insta::assert_snapshot!(format!("{}{}", ran.stdout, ran.stderr), @r#"
    # Imported from the mig-parted configuration "c".
    name = "c"

    # device-filter 0x233010DE: NVIDIA H100 80GB HBM3
    [[gpu]]
    select = { product = "^NVIDIA H100 80GB HBM3$" }
    devices = [
      { profile = "3g.40gb" },
      { profile = "1g.20gb", count = 2, compute = ["1c"] },
    ]
    "#);
    // The A100's double-memory 1g has one kind of compute instance.
    let a100 = imported(&yaml.replace("0x2330", "0x20B2"), &[]).ended(0);
    assert_eq!(a100.stderr, "");
}

#[test]
fn mistakes_in_an_entry_are_shown_with_their_line() {
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: true\n  mig-device: {}"), @r#"
    error: standard input:6:7: unknown key "mig-device"
      |
    6 |       mig-device: {}
      |       ^^^^^^^^^^ did you mean "mig-devices"?
    "#);
    insta::assert_snapshot!(refused("- device: all\n  mig-enabled: true"), @r#"
    error: standard input:4:7: unknown key "device"
      |
    4 |     - device: all
      |       ^^^^^^ did you mean "devices"?
    "#);
    insta::assert_snapshot!(refused("- devices: everything\n  mig-enabled: false"), @r#"
    error: standard input:4:16: devices: everything is neither "all" nor a list of indices
      |
    4 |     - devices: everything
      |                ^^^^^^^^^^
    "#);
    insta::assert_snapshot!(refused("- devices: [0, -1]\n  mig-enabled: false"), @r#"
    error: standard input:4:16: devices: an index of a GPU cannot be negative or so large
      |
    4 |     - devices: [0, -1]
      |                ^
    "#);
    insta::assert_snapshot!(refused("- devices: all"), @r#"
    error: standard input:4:7: the key "mig-enabled" is missing here
      |
    4 |     - devices: all
      |       ^^^^^^^
    "#);
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: true"), @"
    error: standard input:4:7: mig-devices is missing where mig-enabled is true
      |
    4 |     - devices: all
      |       ^^^^^^^^^^^^
    ");
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: false\n  mig-devices: { 1g.5gb: 1 }"), @"
    error: standard input:6:20: mig-devices are asked for where mig-enabled is false
      |
    6 |       mig-devices: { 1g.5gb: 1 }
      |                    ^
    ");
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: true\n  mig-devices: { 1g: 7 }"), @r#"
    error: standard input:6:26: "1g" does not say its memory, as mig-parted demands: "3g.40gb", not "3g"
      |
    6 |       mig-devices: { 1g: 7 }
      |                          ^
    "#);
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: true\n  mig-devices: { 4c.3g.40gb: 1 }"), @r#"
    error: standard input:6:34: "4c.3g.40gb" has more compute slices than its GPU instance
      |
    6 |       mig-devices: { 4c.3g.40gb: 1 }
      |                                  ^
    "#);
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: true\n  mig-devices: { 1g.5gb: -1 }"), @"
    error: standard input:6:30: -1 of 1g.5gb cannot be: from 0 to 64
      |
    6 |       mig-devices: { 1g.5gb: -1 }
      |                              ^^
    ");
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 0 }"), @"
    error: standard input:6:20: every count in mig-devices is 0
      |
    6 |       mig-devices: { 1g.5gb: 0 }
      |                    ^
    ");
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: true\n  mig-devices: [ 1g.5gb ]"), @"
    error: standard input:6:20: expected mapping start
      |
    6 |       mig-devices: [ 1g.5gb ]
      |                    ^
    ");
}

#[test]
fn mistakes_in_filters_and_around_entries_are_shown_with_their_line() {
    insta::assert_snapshot!(refused("- devices: all\n  device-filter: 0x20B210DE\n  mig-enabled: false"), @r#"
    error: standard input:5:22: expected a string like "0x20B210DE", or a list of such
      |
    5 |       device-filter: 0x20B210DE
      |                      ^^^^^^^^^^
    "#);
    insta::assert_snapshot!(imported("version: v2\nmig-configs: { c: [] }\n", &[]).ended(2).stderr, @"
    error: standard input:1:10: version v2 is not known: expected v1
      |
    1 | version: v2
      |          ^^
    ");
    insta::assert_snapshot!(imported("version: v1\nmig-configs: { c: [] }\n", &[]).ended(2).stderr, @r#"
    error: standard input:2:19: the configuration "c" has no entry
      |
    2 | mig-configs: { c: [] }
      |                   ^
    "#);
    imported("", &[]).ended(2);
    imported("version: v1\nmig-configs: [", &[]).ended(2);
}

#[test]
fn the_profile_is_written_to_a_new_file_and_never_over_another() {
    let sim = Sim::with("a100-80gb", 4);
    let spec = sim.profile(SEVERAL);
    let path = spec.with_file_name("imported.toml");
    let (spec, path) = (spec.to_str().unwrap(), path.to_str().unwrap());
    let import = ["import", spec, "-c", "custom", "-o", path];
    let ran = sim.run(&import).ended(0);
    assert_eq!(ran.stdout, "");
    assert!(
        ran.stderr.starts_with(&format!("wrote {path}\n")),
        "{ran:?}"
    );
    let again = sim.run(&import).ended(1).stderr;
    assert_contains(&again, "File exists");

    // And that profile does on a node what it says.
    let _ = sim.run(&["up", path, "--yes"]).ended(0);
    let node = sim.list();
    let titles = |gpu: usize| -> Vec<String> {
        let devices = node["gpus"][gpu]["devices"].as_array().unwrap().iter();
        devices
            .map(|device| device["profile"].to_string().replace('"', ""))
            .collect()
    };
    let mut shared = titles(2);
    shared.sort();
    assert_eq!(
        shared,
        [
            "1c.3g.40gb",
            "1c.3g.40gb",
            "1c.3g.40gb",
            "1g.10gb+me",
            "2g.20gb"
        ]
    );
    assert_eq!(titles(3), ["7g.80gb"]);
    assert_eq!(node["gpus"][0]["mig"]["current"], false);
    // GPUs that mig-parted switches MIG off on have no daemon of ours.
    let status = sim.status();
    assert_eq!(in_state(&status, "no daemon"), ["0", "1"]);
    assert_eq!(in_state(&status, "ready").len(), 6, "{status}");
}
