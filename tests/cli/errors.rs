use insta::assert_snapshot;

use testkit::{Sim, is_root, plain};

/// What a profile's mistake looks like. Nothing may have been touched.
#[track_caller]
fn mistake(profile: &str) -> String {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.up(profile, &[]).ended(2);
    assert_eq!(ran.stdout, "");
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
    assert!(!sim.node.run_dir().exists());
    plain(&ran.stderr)
}

fn devices(entry: &str) -> String {
    format!("[[gpu]]\nselect = {{ all = true }}\ndevices = [\n  {entry},\n]\n")
}

#[test]
fn a_missing_profile() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.run(&["up", "no-such.toml"]).ended(2);
    assert_snapshot!(ran.tidy(), @"
    error: cannot read the profile no-such.toml: No such file or directory
    hint: the built-in profiles are all-large, all-small, balanced, inference, mixed-fleet, training-and-serving, whole-gpu
    ");
}

#[test]
fn malformed_toml() {
    assert_snapshot!(mistake("name = \"x\"\n[[gpu]\n"), @r#"
    error: profile.toml:2:7: unclosed array table, expected "]"
      |
    2 | [[gpu]
      |       ^
    "#);
}

#[test]
fn an_unknown_key() {
    assert_snapshot!(mistake(&devices(r#"{ name = "a", profil = "3g" }"#)), @r#"
    error: profile.toml:4:17: unknown key "profil"
      |
    4 |   { name = "a", profil = "3g" },
      |                 ^^^^^^ did you mean "profile"?
    "#);
}

#[test]
fn a_missing_key() {
    assert_snapshot!(mistake(&devices(r#"{ name = "a" }"#)), @r#"
    error: profile.toml:4:3: the key "profile" is missing here
      |
    4 |   { name = "a" },
      |   ^^^^^^^^^^^^^^
    "#);
}

#[test]
fn a_text_that_is_no_profile_name() {
    assert_snapshot!(mistake(&devices(r#"{ profile = "3G.40GB" }"#)), @r#"
    error: profile.toml:4:15: "3G.40GB" is not a profile name: expected one like "3g", "3g.40gb" or "1g+me"
      |
    4 |   { profile = "3G.40GB" },
      |               ^^^^^^^^^
    "#);
}

#[test]
fn a_profile_of_another_model() {
    assert_snapshot!(mistake(&devices(r#"{ profile = "3g.71gb" }"#)), @r#"
    error: profile.toml:4:15: GPU 0 (NVIDIA A100-SXM4-80GB) has no profile "3g.71gb"
      |
    4 |   { profile = "3g.71gb" },
      |               ^^^^^^^^^ did you mean "3g.40gb"? It has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb
    "#);
}

#[test]
fn a_placement_that_does_not_exist() {
    assert_snapshot!(mistake(&devices(r#"{ profile = "3g", at = 2 }"#)), @r#"
    error: profile.toml:4:15: 3g.40gb cannot start at 2 on GPU 0 (NVIDIA A100-SXM4-80GB)
      |
    4 |   { profile = "3g", at = 2 },
      |               ^^^^ possible starts: 0, 4
    "#);
}

#[test]
fn a_gpu_that_is_not_there() {
    let profile = "[[gpu]]\nselect = { index = [7] }\nmig = false\n";
    assert_snapshot!(mistake(profile), @"
    error: profile.toml:2:10: there is no GPU 7
      |
    2 | select = { index = [7] }
      |          ^^^^^^^^^^^^^^^
    this node has:
      0 NVIDIA A100-SXM4-80GB GPU-… 0000:07:00.0
    ");
}

#[test]
fn a_block_that_cannot_be_reached() {
    let profile = "[[gpu]]\nselect = { all = true }\nmig = false\n\n[[gpu]]\nselect = { index = [0] }\nmig = false\n";
    assert_snapshot!(mistake(profile), @"
    error: profile.toml:6:10: this block can never be reached: the blocks before it select every GPU it could
      |
    6 | select = { index = [0] }
      |          ^^^^^^^^^^^^^^^ the first block that selects a GPU wins
    ");
}

#[test]
fn a_name_given_twice() {
    assert_snapshot!(mistake(&devices(r#"{ name = "a", profile = "1g", count = 2 }"#)), @r#"
    error: profile.toml:4:12: 2 devices would be named "a"
      |
    4 |   { name = "a", profile = "1g", count = 2 },
      |            ^^^ put {n} into the name
    "#);
    let twice = devices(r#"{ name = "a", profile = "1g" }, { name = "a", profile = "1g" }"#);
    assert_snapshot!(mistake(&twice), @r#"
    error: profile.toml:4:44: "a" would name a device of GPU 0 and a device of GPU 0
      |
    4 |   { name = "a", profile = "1g" }, { name = "a", profile = "1g" },
      |                                            ^^^ put {gpu} or {n} into the name
    "#);
}

#[test]
fn settings_out_of_range() {
    assert_snapshot!(mistake(&devices(r#"{ profile = "1g", mps = { active-thread-percentage = 0 } }"#)), @r#"
    error: profile.toml:4:56: active-thread-percentage must be from 0.1 to 100
      |
    4 |   { profile = "1g", mps = { active-thread-percentage = 0 } },
      |                                                        ^
    "#);
    assert_snapshot!(mistake(&devices(r#"{ profile = "1g", mps = { serve = "everybody" } }"#)), @r#"
    error: profile.toml:4:37: serve = "everybody" is not one of "one-at-a-time", "all", "group:NAME", "user:NAME", "self"
      |
    4 |   { profile = "1g", mps = { serve = "everybody" } },
      |                                     ^^^^^^^^^^^
    "#);
}

#[test]
fn whom_root_cannot_serve() {
    if !is_root("whom_root_cannot_serve") {
        return;
    }
    assert_snapshot!(mistake(&devices(r#"{ profile = "1g", mps = { serve = "self" } }"#)), @r#"
    error: profile.toml:4:37: root cannot serve "self"
      |
    4 |   { profile = "1g", mps = { serve = "self" } },
      |                                     ^^^^^^ for root it is "one-at-a-time", "all", "group:NAME" or "user:NAME", or leave serve out
    "#);
}

#[test]
fn a_compute_instance_that_no_gpu_instance_of_that_size_offers() {
    assert_snapshot!(mistake(&devices(r#"{ profile = "4g", compute = ["3c", "1c"] }"#)), @r#"
    error: profile.toml:4:32: a 4g GPU instance has no 3c: it has 1c, 2c, 4c
      |
    4 |   { profile = "4g", compute = ["3c", "1c"] },
      |                                ^^^^
    "#);
}

/// A value or file of the wrong kind is described in the words of the file, not of the program's types.
#[test]
fn no_type_of_rusts_is_named() {
    let sim = Sim::with("h200", 1);
    for (text, wanted) in [
        (
            "select = { index = [\"x\"] }\nmig = false",
            "index must be a list of whole numbers",
        ),
        (
            "select = { index = [{}] }\nmig = false",
            "index must be a list of whole numbers",
        ),
        ("select = 1\nmig = false", "select must be a table"),
        (
            "select = { all = true }\nmps = { active-thread-percentage = [] }",
            "active-thread-percentage must be a number",
        ),
    ] {
        let ran = sim.up(&format!("[[gpu]]\n{text}\n"), &[]).ended(2);
        let is_rust = ["u32", "f64", "struct", "sequence", "map"];
        // The directory of a node has a random name.
        let said = ran.stderr.replace(sim.node.dir().to_str().unwrap(), "");
        assert!(said.contains(wanted), "{said}");
        assert!(!is_rust.iter().any(|word| said.contains(word)), "{said}");
    }
    sim.up("[[gpu]]\nselect = { all = true }\nmig = false\n", &[])
        .ended(0);
    std::fs::write(sim.node.run_dir().join("node.json"), "[]").unwrap();
    let hidden = sim.status()["hidden"].to_string();
    assert!(
        hidden.contains("column 2: not what mig-mps writes there"),
        "{hidden}"
    );
}

#[test]
fn a_selector_selects_what_it_names_and_nothing_else() {
    let sim = Sim::with("a100-80gb", 2);
    for (select, wants, said) in [
        ("index = [0, 9]", "mig = false", "there is no GPU 9"),
        ("index = []", "mig = false", "index = [] selects nothing"),
        ("product = \"\"", "mig = false", "all = true"),
        (
            "uuid = \"GPU-\"",
            "mig = false",
            "several GPUs have UUIDs with this prefix",
        ),
    ] {
        let profile = format!("[[gpu]]\nselect = {{ {select} }}\n{wants}\n");
        let ran = sim.up(&profile, &[]).ended(2);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    assert!(!sim.node.run_dir().exists());
}
