//! `import` of manifests, values and other files that carry configurations of mig-parted.

use std::fs;
use std::path::PathBuf;

use testkit::{Ran, assert_contains, repository, without_gpu};

fn manifests() -> PathBuf {
    repository().join("fixtures/mig-parted/manifests")
}

fn imported(text: &str, args: &[&str]) -> Ran {
    without_gpu(&[&["import", "-"], args].concat(), text)
}

/// The file of that name, with that option for `--config`.
fn imported_file(name: &str, config: Option<&str>) -> Ran {
    let text = fs::read_to_string(manifests().join(name)).unwrap();
    let args: Vec<&str> = config.iter().flat_map(|config| ["-c", config]).collect();
    imported(&text, &args)
}

/// A file, the configuration that is asked for, and what the profile has of it.
type Case = (&'static str, Option<&'static str>, &'static [&'static str]);

const CASES: [Case; 19] = [
    (
        "ansible-tasks.yaml",
        None,
        &["lab", "2g.20gb\", count = 3", "1g.10gb+me"],
    ),
    (
        "ansible-variables.yaml",
        None,
        &["course", "1g.5gb\", count = 7"],
    ),
    ("argo-application.yaml", None, &["whole", "7g.80gb"]),
    (
        "cloud-init.yaml",
        None,
        &["default", "1g.12gb\", count = 7"],
    ),
    (
        "configmap.yaml",
        None,
        &[
            "teams",
            "index = [0]",
            "3g.40gb\", count = 2",
            "index = [1]",
            "1g.10gb\", count = 7",
        ],
    ),
    (
        "flux-release.yaml",
        None,
        &["quarters", "1g.20gb\", count = 4"],
    ),
    (
        "flow-mappings.yaml",
        None,
        &["don't", "2g.20gb\", count = 3"],
    ),
    (
        "helm-get-values.json",
        Some("evening"),
        &["evening", "index = [0, 1]", "1g.18gb\", count = 7"],
    ),
    ("helm-values.yaml", None, &["site", "2g.20gb\", count = 3"]),
    ("kubectl-get.json", None, &["off", "mig = false"]),
    (
        "kubectl-get.yaml",
        None,
        &["mixed", "index = [0, 1]", "4g.40gb", "1g.10gb\", count = 3"],
    ),
    (
        "kustomization.yaml",
        None,
        &["overlay", "index = [3]", "mig = false"],
    ),
    ("list.yaml", None, &["halves", "3g.40gb\", count = 2"]),
    (
        "several-documents.yaml",
        Some("line 7:rack"),
        &["rack", "2g.20gb\", count = 3"],
    ),
    (
        "several-documents.yaml",
        Some("line 19:rack"),
        &["rack", "3g.40gb\", count = 2"],
    ),
    (
        "several-keys.yaml",
        Some("disabled"),
        &["disabled", "mig = false"],
    ),
    (
        "several-keys.yaml",
        Some("h200.yaml:balanced"),
        &["balanced", "3g.71gb"],
    ),
    (
        "umbrella-values.yaml",
        None,
        &["inference", "1g.10gb\", count = 7"],
    ),
    ("with-scripts.yaml", None, &["night", "7g.80gb"]),
];

#[test]
fn configurations_are_found_in_manifests_as_people_have_them() {
    for (name, config, parts) in CASES {
        let profile = imported_file(name, config).ended(0).stdout;
        let mut rest = profile.as_str();
        for part in parts {
            let at = rest.find(part);
            let at = at.unwrap_or_else(|| panic!("{name} lacks {part}:\n{profile}"));
            rest = &rest[at + part.len()..];
        }
    }
    for file in fs::read_dir(manifests()).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(CASES.iter().any(|(case, ..)| *case == name), "{name}");
    }
}

#[test]
fn several_configurations_are_listed_by_key_or_line() {
    insta::assert_snapshot!(imported_file("several-keys.yaml", None).ended(2).stderr, @"
    error: standard input has 3 configurations; choose one with --config:
      a100.yaml: balanced, disabled
      h200.yaml: balanced
    ");
    insta::assert_snapshot!(imported_file("several-keys.yaml", Some("balanced")).ended(2).stderr, @r#"
    error: standard input has 2 configurations "balanced"; choose one with --config:
      a100.yaml:balanced
      h200.yaml:balanced
    "#);
    insta::assert_snapshot!(imported_file("several-keys.yaml", Some("b200.yaml:balanced")).ended(2).stderr, @r#"
    error: standard input has no configuration "b200.yaml:balanced"; it has:
      a100.yaml: balanced, disabled
      h200.yaml: balanced
    "#);
    insta::assert_snapshot!(imported_file("several-documents.yaml", None).ended(2).stderr, @"
    error: standard input has 2 configurations; choose one with --config:
      line 7: rack
      line 19: rack
    ");
}

/// A file of the corpus with a text in it replaced, and the message about it.
fn mistaken(name: &str, right: &str, wrong: &str) -> String {
    let text = fs::read_to_string(manifests().join(name)).unwrap();
    assert!(text.contains(right), "{name} has no {right}");
    let text = text.replacen(right, wrong, 1);
    let shown = imported(&text, &[]).ended(2).stderr;
    // The same with the ends of lines as Windows has them.
    let there = imported(&text.replace('\n', "\r\n"), &[]).ended(2).stderr;
    assert_eq!(there.lines().next(), shown.lines().next());
    shown
}

#[test]
fn mistakes_are_shown_with_the_line_of_the_file() {
    insta::assert_snapshot!(mistaken("configmap.yaml", "\"3g.40gb\": 2", "\"3g\": 2"), @r#"
    error: standard input:15:19: "3g" does not have its memory, which mig-parted requires: "3g.40gb", not "3g"
       |
    15 |             "3g": 2
       |                   ^
    "#);
    insta::assert_snapshot!(mistaken("argo-application.yaml", "mig-devices:", "mig-device:"), @r#"
    error: standard input:26:23: unknown key "mig-device"
       |
    26 |                       mig-device:
       |                       ^^^^^^^^^^ did you mean "mig-devices"?
    "#);
    insta::assert_snapshot!(mistaken("flux-release.yaml", "0x233010DE", "0x000110DE"), @r#"
    error: standard input:24:19: the catalog has no product name for the device id 0x000110DE
       |
    24 |                 - device-filter: ["0x000110DE"]
       |                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    take this id out of the file, import the rest, and add a block with
    select = { product = "^NAME$" }; `mig-mps list` shows the product names of a node
    "#);
    insta::assert_snapshot!(mistaken("ansible-variables.yaml", "version: v1", "version: v2"), @"
    error: standard input:4:14: version v2 is not known: expected v1
      |
    4 |     version: v2
      |              ^^
    ");
    insta::assert_snapshot!(mistaken("umbrella-values.yaml", "mig-enabled: yes", "mig-enabled: [yes"), @"
    error: standard input:17:28: this is not YAML that import can read: illegal placement of ':' indicator
       |
    17 |                 mig-devices:
       |                            ^
    ");
    insta::assert_snapshot!(mistaken("helm-get-values.json", "\"1g.18gb", "\"1g"), @r#"
    error: standard input:9:59: "1g" does not have its memory, which mig-parted requires: "3g.40gb", not "3g"
      |
    9 |               { "devices": [0, 1], "mig-devices": { "1g": 7 }, "mig-enabled": true }
      |                                                           ^
    "#);
    // A text in quotes has lines of its own: they are counted from where it starts.
    insta::assert_snapshot!(mistaken("kubectl-get.json", "false", "no-way"), @r#"
    error: standard input:4:24: config.yaml:5:20: expected true or false, without quotes
      |
    5 |       mig-enabled: no-way
      |                    ^^^^^^
    "#);
    insta::assert_snapshot!(mistaken("kubectl-get.yaml", "4g.40gb", "4g"), @r#"
    error: standard input:3:16: config.yaml:8:15: "4g" does not have its memory, which mig-parted requires: "3g.40gb", not "3g"
      |
    8 |         "4g": 1
      |               ^
    "#);
}

#[test]
fn a_configuration_with_a_mistake_takes_away_itself() {
    let text = "version: v1\nmig-configs:\n  new:\n    - devices: all\n      mig-enabled: true\n      mig-devices: { 1q.10gb: 7 }\n\
                \x20 known:\n    - devices: all\n      mig-enabled: true\n      mig-devices: { 1g.10gb: 7 }\n";
    let ran = imported(text, &["-c", "known"]).ended(0);
    assert_contains(&ran.stdout, "1g.10gb");
    insta::assert_snapshot!(ran.stderr, @r#"warning: another part of the file cannot be read: standard input:6:31: "1q.10gb" is not a MIG device: expected one like "3g.40gb", "1g.10gb+me" or "1c.3g.40gb""#);
    for args in [&["-c", "new"][..], &["-c", "missing"], &[]] {
        let shown = imported(text, args).ended(2).stderr;
        assert_contains(
            &shown,
            "standard input:6:31: \"1q.10gb\" is not a MIG device",
        );
    }
}

#[test]
fn a_part_that_cannot_be_read_takes_away_itself() {
    let rack = "data: { config.yaml: \"{version: v1, mig-configs: {a: [{devices: all, mig-enabled: false}]}}\" }\n";
    let broken = format!("mig-configs: [\n---\n{rack}");
    let ran = imported(&broken, &[]).ended(0);
    assert_contains(&ran.stdout, "name = \"a\"");
    insta::assert_snapshot!(ran.stderr, @"warning: another part of the file cannot be read: standard input:1:14: this is not YAML that import can read: unclosed bracket '['");
    // What is asked for may be in it.
    let other = imported(&broken, &["-c", "b"]).ended(2).stderr;
    assert_contains(&other, "standard input:1:14: this is not YAML");
    // Templates are no YAML.
    let template = "{{- if .Values.mig }}\ndata:\n  config.yaml: |\n    version: v1\n    mig-configs: {}\n{{- end }}\n";
    insta::assert_snapshot!(imported(template, &[]).ended(2).stderr, @r#"
    error: standard input:1:3: this is not YAML that import can read: "-" is only valid inside a block
      |
    1 | {{- if .Values.mig }}
      |   ^^^^^^^^^^^^^^^^^^^ this is a template: import what it is rendered to, such as the output of helm template
    "#);
    // Texts in base64 are not read.
    for manifest in [
        "binaryData: { config.yaml: dmVyc2lvbjogdjEK }",
        "kind: Secret\ndata: { config.yaml: dmVyc2lvbjogdjEK }",
        "write_files: [{ encoding: gz+b64, content: H4sIAAAAAAAAA }]",
    ] {
        let none = imported(manifest, &["-c", "a"]).ended(2).stderr;
        assert_contains(&none, "standard input has no configuration of mig-parted");
        assert_contains(&none, "hint: decode the text first");
    }
    // Words about configurations are none.
    let manifests = [
        "data: { note: see mig-configs }",
        "metadata: { a: \"mig-configs: {}\" }",
        "mig-configs",
    ];
    for manifest in manifests {
        for args in [&[][..], &["-c", "a"]] {
            let none = imported(manifest, args).ended(2).stderr;
            assert_contains(&none, "standard input has no configuration of mig-parted");
            assert_contains(
                &none,
                "hint: check that the text has the keys version and mig-configs",
            );
        }
    }
}
