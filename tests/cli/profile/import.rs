//! `import`: mig-parted's configurations as profiles.

use testkit::{Ran, assert_contains, without_gpu};

fn imported(yaml: &str, args: &[&str]) -> Ran {
    without_gpu(&[&["import", "-"], args].concat(), yaml)
}

/// A configuration called `c` with these entries.
pub(crate) fn config(entries: &str) -> String {
    let entries = entries.trim_matches('\n').replace('\n', "\n    ");
    format!("version: v1\nmig-configs:\n  c:\n    {entries}\n")
}

/// The message about a wrong one.
fn refused(entries: &str) -> String {
    imported(&config(entries), &[]).ended(2).stderr
}

#[test]
fn a_subsystem_names_one_product() {
    let entry = "- device-filter: \"0x20B210DE:0x147F10DE\"\n  devices: all\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }";
    let profile = imported(&config(entry), &[]).ended(0).stdout;
    let select = "select = { product = \"^NVIDIA A100-SXM4-80GB$\" }";
    assert!(profile.contains(select), "{profile}");
}

#[test]
fn an_entry_that_a_later_one_covers_is_left_out() {
    let entries = "- devices: [0]\n  mig-enabled: true\n  mig-devices: { 3g.40gb: 2 }\n\
                   - devices: all\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }";
    let profile = imported(&config(entries), &[]).ended(0).stdout;
    assert_eq!(profile.matches("[[gpu]]").count(), 1, "{profile}");
    assert!(profile.contains("7g.80gb"), "{profile}");
    // One block has no order.
    assert!(!profile.contains("reversed"), "{profile}");
    // Not one that it only half covers.
    let hidden = refused(
        "- devices: all\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }\n\
         - devices: all\n  device-filter: '0x1FB010DE'\n  mig-enabled: false",
    );
    let why = "without a block for these GPUs";
    assert!(hidden.contains(why), "{hidden}");
}

/// Both only switch MIG off on GPUs that no block selects.
#[test]
fn entries_for_one_unknown_gpu_leave_each_other_out() {
    let entries = "- devices: [0]\n  device-filter: '0xFFFF10DE'\n  mig-enabled: false\n\
                   - devices: all\n  device-filter: '0xFFFF10DE'\n  mig-enabled: false\n\
                   - devices: all\n  device-filter: '0x20B210DE'\n  mig-enabled: true\n  mig-devices: { 7g.80gb: 1 }";
    let ran = imported(&config(entries), &[]).ended(0);
    assert_eq!(ran.stdout.matches("[[gpu]]").count(), 1, "{}", ran.stdout);
    assert_eq!(
        ran.stderr.matches("is left out").count(),
        1,
        "{}",
        ran.stderr
    );
}

/// The A100's double-memory 1g has one kind of compute instance.
#[test]
fn nothing_is_said_of_compute_instances_of_one_kind() {
    let entry = "- devices: all\n  device-filter: '0x20B210DE'\n  mig-enabled: true\n  mig-devices: { 1g.20gb: 2 }";
    assert_eq!(imported(&config(entry), &[]).ended(0).stderr, "");
}

/// `ParseConfigFile` reads with `yaml.Unmarshal` of sigs.k8s.io/yaml, which is not strict: of equal keys go-yaml keeps the
/// last, and `resolve` takes `07` for octal and `yes` for true.
#[test]
fn numbers_and_keys_are_read_as_mig_parted_reads_them() {
    let plain = imported(
        &config("- devices: [2]\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 7 }"),
        &[],
    );
    let plain = plain.ended(0).stdout;
    for entry in [
        "- devices: [2]\n  mig-enabled: yes\n  mig-devices: { 1g.5gb: 07 }",
        "- devices: [02]\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 1, 1g.5gb: 7 }",
        "- devices: [1]\n  devices: [2]\n  mig-enabled: false\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 7 }",
    ] {
        assert_eq!(
            imported(&config(entry), &[]).ended(0).stdout,
            plain,
            "{entry}"
        );
    }
    let first = config("- devices: [2]\n  mig-enabled: true\n  mig-devices: { 1g.5gb: 7 }");
    assert_eq!(
        imported(&format!("---\n{first}"), &[]).ended(0).stdout,
        plain
    );
    let several = format!("{first}---\n{first}");
    let several = imported(&several, &[]).ended(2).stderr;
    assert_contains(&several, "line 1: c\n  line 7: c\n");

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
    for wrong in ["1.5", "7.0", "~"] {
        let count = refused(&format!(
            "- devices: [2]\n  mig-enabled: true\n  mig-devices: {{ 1g.5gb: {wrong} }}"
        ));
        assert_contains(&count, "expected a whole number");
    }
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
    # device-filter "A100" is no PCI id, so mig-parted selects no GPU by it
    name = "c"

    # device-filter 0x20B510DE: NVIDIA A100 80GB PCIe
    [[gpu]]
    select = { product = "^NVIDIA A100 80GB PCIe$" }
    devices = [
      { profile = "7g.80gb" },
    ]
    note: device-filter "A100" is no PCI id, so mig-parted selects no GPU by it
    "#);
    let nothing = imported(&entry("A100"), &[]).ended(2).stderr;
    assert_contains(&nothing, "selects no GPU");
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
    error: standard input:4:7: mig-devices is missing although mig-enabled is true
      |
    4 |     - devices: all
      |       ^^^^^^^^^^^^
    ");
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: false\n  mig-devices: { 1g.5gb: 1 }"), @"
    error: standard input:6:20: mig-devices are requested although mig-enabled is false
      |
    6 |       mig-devices: { 1g.5gb: 1 }
      |                    ^
    ");
    insta::assert_snapshot!(refused("- devices: all\n  mig-enabled: true\n  mig-devices: { 1g: 7 }"), @r#"
    error: standard input:6:26: "1g" does not have its memory, which mig-parted requires: "3g.40gb", not "3g"
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
    error: standard input:6:20: expected keys with values
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
    for (yaml, why) in [
        ("", "no configuration of mig-parted"),
        (
            "version: v1\nmig-configs: [",
            "not YAML that import can read: unclosed bracket",
        ),
        ("version: v1\nmig-configs: 3\n", "expected keys with values"),
        ("version: v1\nmig-configs: { c: 3 }\n", "expected a list"),
        ("version: [1]\nmig-configs: {}\n", "expected a word"),
        ("version: ~\nmig-configs: {}\n", "expected a word"),
    ] {
        assert_contains(&imported(yaml, &[]).ended(2).stderr, why);
    }
}
