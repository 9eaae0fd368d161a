//! Where profiles come from, and the mistakes in them.

use std::path::Path;

use insta::assert_snapshot;
use serde_json::{Value, json};

use testkit::{Ran, SMALL, Sim, assert_contains, needs_root, plain, without_gpu};

#[test]
fn built_in_profiles_go_by_their_names() {
    let sim = Sim::with("a100-80gb", 1);
    let listed = sim.run(&["profiles"]).ended(0);
    assert_snapshot!(listed.stdout, @"
    NAME                  DESCRIPTION
    all-large             Two halves of every GPU
    all-small             As many devices as the GPU has slices, all of the smallest size
    balanced              One large, one medium and two small devices on every GPU
    inference             Devices of medium size for inference services, and small ones for what is left
    mixed-fleet           One file for all nodes of a fleet with different GPUs: the product decides
    training-and-serving  One large device for training and small ones for serving on every GPU
    whole-gpu             Every GPU as one device, not partitioned: one MPS daemon and server each
    ");
    let text = sim.run(&["profiles", "balanced"]).ended(0).stdout;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles/balanced.toml");
    assert_eq!(text, std::fs::read_to_string(file).unwrap());
    sim.run(&["check", "balanced"]).ended(0);
    sim.run(&["plan", "balanced"]).ended(0);
    sim.run(&["up", "balanced", "--yes"]).ended(0);
    let node = std::fs::read_to_string(sim.node.run_dir().join("node.json")).unwrap();
    assert_contains(&node, "\"balanced\"");
    let wrong = sim.run(&["up", "balnced.toml"]).ended(2);
    assert_snapshot!(wrong.stderr, @"
    error: cannot read the profile balnced.toml: No such file or directory
    hint: did you mean the built-in profile balanced?
    ");
}

#[test]
fn standard_input_is_a_profile() {
    let ran = without_gpu(&["check", "-", "--gpu", "a30"], SMALL).ended(0);
    assert_contains(&ran.stdout, "1g.6gb");
    let ran = without_gpu(&["check", "-"], "nam = 1\n").ended(2);
    assert!(
        ran.stderr
            .starts_with("error: standard input:1:1: unknown key"),
        "{}",
        ran.stderr
    );
}

/// One run shows every mistake, in the order of the file and in its words.
#[test]
fn all_mistakes_are_shown_at_once() {
    let profile = r#"
name = 7
mps = true
models = "a100-80gb"

[[gpu]]
select = { index = 0, product = "(" }
devices = { profile = "1g" }

[[gpu]]
select = { index = [-1, "x", 5000000000] }
mig = "no"
mps = { active-thread-percentage = "50%", max-clients = 0x1_0000_0000_0000_0000, serve = 1 }

[[gpu]]
select = { all = true }
devices = [ { profil = "1g" }, { profile = 1, count = -3, compute = "1c" }, "1g" ]
"#;
    let ran = without_gpu(&["check", "-"], profile).ended(2);
    assert_snapshot!(ran.stderr, @r#"
    error: standard input:2:8: name must be a string
      |
    2 | name = 7
      |        ^
    standard input:3:7: mps must be a table of settings, or false
      |
    3 | mps = true
      |       ^^^^
    standard input:4:10: models must be a list of strings
      |
    4 | models = "a100-80gb"
      |          ^^^^^^^^^^^ write models = ["a100-80gb"]
    standard input:7:20: index must be a list of whole numbers
      |
    7 | select = { index = 0, product = "(" }
      |                    ^ write index = [0]
    standard input:7:33: not a regular expression: unclosed group
      |
    7 | select = { index = 0, product = "(" }
      |                                 ^^^
    standard input:8:11: devices must be a list of tables
      |
    8 | devices = { profile = "1g" }
      |           ^^^^^^^^^^^^^^^^^^ write devices = [{ profile = "1g" }]
    standard input:11:21: index must be a list of whole numbers
       |
    11 | select = { index = [-1, "x", 5000000000] }
       |                     ^^
    standard input:11:25: index must be a list of whole numbers
       |
    11 | select = { index = [-1, "x", 5000000000] }
       |                         ^^^
    standard input:11:30: index must be a list of whole numbers
       |
    11 | select = { index = [-1, "x", 5000000000] }
       |                              ^^^^^^^^^^
    standard input:12:7: mig must be true or false
       |
    12 | mig = "no"
       |       ^^^^
    standard input:13:36: active-thread-percentage must be a number
       |
    13 | mps = { active-thread-percentage = "50%", max-clients = 0x1_0000_0000_0000_0000, serve = 1 }
       |                                    ^^^^^ write active-thread-percentage = 50
    standard input:13:57: max-clients must be from 1 to 1024
       |
    13 | mps = { active-thread-percentage = "50%", max-clients = 0x1_0000_0000_0000_0000, serve = 1 }
       |                                                         ^^^^^^^^^^^^^^^^^^^^^^^
    standard input:13:90: serve must be a string
       |
    13 | mps = { active-thread-percentage = "50%", max-clients = 0x1_0000_0000_0000_0000, serve = 1 }
       |                                                                                          ^
    standard input:17:15: unknown key "profil"
       |
    17 | devices = [ { profil = "1g" }, { profile = 1, count = -3, compute = "1c" }, "1g" ]
       |               ^^^^^^ did you mean "profile"?
    standard input:17:44: profile must be a string
       |
    17 | devices = [ { profil = "1g" }, { profile = 1, count = -3, compute = "1c" }, "1g" ]
       |                                            ^
    standard input:17:55: count must be a whole number from 0 to 4294967295
       |
    17 | devices = [ { profil = "1g" }, { profile = 1, count = -3, compute = "1c" }, "1g" ]
       |                                                       ^^
    standard input:17:69: compute must be a list of strings
       |
    17 | devices = [ { profil = "1g" }, { profile = 1, count = -3, compute = "1c" }, "1g" ]
       |                                                                     ^^^^ write compute = ["1c"]
    standard input:17:77: devices must be a list of tables
       |
    17 | devices = [ { profil = "1g" }, { profile = 1, count = -3, compute = "1c" }, "1g" ]
       |                                                                             ^^^^
    "#);
}

/// Users that the machine does not know, GPUs that are not there, and sizes that a GPU does not offer.
#[test]
fn all_mistakes_that_only_a_node_shows_are_shown_at_once() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 2);
    let profile = r#"
[mps]
serve = "user:nobdy"

[[gpu]]
select = { index = [0, 9, 8] }
devices = [
  { profile = "1g.5gb", mps = { serve = "self" } },
  { profile = "3g", at = 2, mps = { serve = "group:no-such-group-anywhere" } },
]

[[gpu]]
select = { uuid = "GPU-00000000" }
mig = false
"#;
    let path = sim.profile(profile);
    let ran = sim.run(&["plan", path.to_str().unwrap()]).ended(2);
    assert_snapshot!(plain(&ran.stderr), @r#"
    error: profile.toml:3:9: there is no user "nobdy" on this machine
      |
    3 | serve = "user:nobdy"
      |         ^^^^^^^^^^^^ did you mean "user:nobody"?
    profile.toml:6:10: there are no GPUs 8, 9
      |
    6 | select = { index = [0, 9, 8] }
      |          ^^^^^^^^^^^^^^^^^^^^^
    this node has:
      0 NVIDIA A100-SXM4-80GB GPU-… 0000:07:00.0
      1 NVIDIA A100-SXM4-80GB GPU-… 0000:0f:00.0
    profile.toml:8:15: GPU 0 (NVIDIA A100-SXM4-80GB) has no profile "1g.5gb"
      |
    8 |   { profile = "1g.5gb", mps = { serve = "self" } },
      |               ^^^^^^^^ did you mean "1g.10gb"? It has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb
    profile.toml:8:41: root cannot serve "self"
      |
    8 |   { profile = "1g.5gb", mps = { serve = "self" } },
      |                                         ^^^^^^ for root it is "one-at-a-time", "all", "group:NAME" or "user:NAME", or leave serve out
    profile.toml:9:15: 3g.40gb cannot start at 2 on GPU 0 (NVIDIA A100-SXM4-80GB)
      |
    9 |   { profile = "3g", at = 2, mps = { serve = "group:no-such-group-anywhere" } },
      |               ^^^^ possible starts: 0, 4
    profile.toml:9:45: there is no group "no-such-group-anywhere" on this machine
      |
    9 |   { profile = "3g", at = 2, mps = { serve = "group:no-such-group-anywhere" } },
      |                                             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    profile.toml:13:10: this selects a GPU that is not there
       |
    13 | select = { uuid = "GPU-00000000" }
       |          ^^^^^^^^^^^^^^^^^^^^^^^^^
    "#);
    assert_eq!(sim.up(profile, &["--yes"]).ended(2).stderr, ran.stderr);
    assert!(!sim.node.run_dir().exists());

    // Where the driver does not answer, those of the user database.
    let mut up = sim.command(&["up", path.to_str().unwrap(), "--yes"]);
    up.env("MIG_MPS_NVML_LIBRARY", "/no/libnvidia-ml.so.1");
    let ran = plain(&Ran::of(&mut up).ended(2).stderr);
    assert_eq!(ran.matches("profile.toml:").count(), 2, "{ran}");
}

/// What does not fit in one block hides no mistake in another, whatever their order.
#[test]
fn all_mistakes_are_shown_whatever_order_the_blocks_have() {
    let sim = Sim::with("a100-80gb", 3);
    let block = |index: u32, devices: &str| {
        format!("[[gpu]]\nselect = {{ index = [{index}] }}\ndevices = [ {devices} ]\n")
    };
    let too_many = block(0, r#"{ profile = "3g", count = 3 }"#);
    let unknown = block(1, r#"{ profile = "9g" }"#);
    let twice = block(
        2,
        r#"{ name = "a", profile = "1g" }, { name = "a", profile = "1g" }"#,
    );
    let said = |blocks: &[&String]| {
        let path = sim.profile(&blocks.iter().copied().cloned().collect::<String>());
        sim.run(&["plan", path.to_str().unwrap()]).ended(2).stderr
    };
    let all = [
        "GPU 0 (NVIDIA A100-SXM4-80GB): 3 × 3g.40gb does not fit: 3 × 3g.40gb requested, and at most 2 can exist",
        "GPU 1 (NVIDIA A100-SXM4-80GB) has no profile \"9g\"",
        "\"a\" would name a device of GPU 2 and a device of GPU 2",
    ];
    for blocks in [
        [&too_many, &unknown, &twice],
        [&twice, &too_many, &unknown],
        [&unknown, &twice, &too_many],
    ] {
        let said = said(&blocks);
        for mistake in all {
            assert!(said.contains(mistake), "no {mistake}: {said}");
        }
    }
    assert!(said(&[&too_many, &unknown]).contains("2 × 3g.40gb would fit"));
    // Several requests that do not fit are shown with their maps.
    let other = block(1, r#"{ profile = "4g", count = 2 }"#);
    let path = sim.profile(&format!("{too_many}{other}"));
    let ran = sim.run(&["plan", path.to_str().unwrap()]).ended(5);
    assert_snapshot!(plain(&ran.stderr), @"
    error: profile.toml:2:10: this does not fit on a GPU it selects
      |
    2 | select = { index = [0] }
      |          ^^^^^^^^^^^^^^^
    GPU 0 (NVIDIA A100-SXM4-80GB): 3 × 3g.40gb does not fit: 3 × 3g.40gb requested, and at most 2 can exist
      |3g.40gb                |3g.40gb                |  2 × 3g.40gb
    profile.toml:5:10: this does not fit on a GPU it selects
      |
    5 | select = { index = [1] }
      |          ^^^^^^^^^^^^^^^
    GPU 1 (NVIDIA A100-SXM4-80GB): 2 × 4g.40gb does not fit: 2 × 4g.40gb requested, and at most 1 can exist
      |4g.40gb                |.....|.....|.....|.....|  4g.40gb
    hint: on GPU 0, 2 × 3g.40gb would fit; on GPU 1, 4g.40gb would fit
    ");
}

/// A setting that every device overrides holds for none.
#[test]
fn a_serve_that_every_block_overrides_is_no_mistake() {
    needs_root!();
    let sim = Sim::with("h200", 2);
    let block = |index: u32, mps: &str| {
        format!("[[gpu]]\nselect = {{ index = [{index}] }}\nmig = false\n{mps}")
    };
    let all = "mps = { serve = \"all\" }\n";
    let (first, second) = (block(0, all), block(1, all));
    sim.up(&format!("[mps]\nserve = \"self\"\n{first}{second}"), &[])
        .ended(0);
    let ran = sim
        .up(
            &format!("[mps]\nserve = \"self\"\n{first}{}", block(1, "")),
            &[],
        )
        .ended(2);
    assert_contains(&ran.stderr, "root cannot serve \"self\"");
}

#[test]
fn all_names_given_twice_are_shown_at_once() {
    let sim = Sim::with("a100-80gb", 3);
    let profile = r#"
[[gpu]]
select = { all = true }
devices = [ { name = "a", profile = "3g" }, { name = "b-{gpu}", profile = "1g" }, { name = "c", profile = "1g" } ]
"#;
    let ran = sim.up(profile, &[]).ended(2);
    assert_snapshot!(plain(&ran.stderr), @r#"
    error: profile.toml:4:22: "a" would name a device of GPU 1 and a device of GPU 0
      |
    4 | devices = [ { name = "a", profile = "3g" }, { name = "b-{gpu}", profile = "1g" }, { name = "c", profile = "1g" } ]
      |                      ^^^ put {gpu} or {n} into the name
    profile.toml:4:92: "c" would name a device of GPU 1 and a device of GPU 0
      |
    4 | devices = [ { name = "a", profile = "3g" }, { name = "b-{gpu}", profile = "1g" }, { name = "c", profile = "1g" } ]
      |                                                                                            ^^^ put {gpu} or {n} into the name
    "#);
}

#[test]
fn every_syntax_error_is_shown() {
    let ran = without_gpu(
        &["check", "-"],
        "name = \n[[gpu]]\nselect = { all = yes }\nmig = = false\n",
    )
    .ended(2);
    assert_snapshot!(ran.stderr, @r##"
    error: standard input:1:8: string values must be quoted, expected literal string
      |
    1 | name = 
      |        ^
    standard input:3:18: yes is no value: it is true in TOML
      |
    3 | select = { all = yes }
      |                  ^^^ write true, or "yes" for a string
    standard input:4:7: extra "=", expected nothing
      |
    4 | mig = = false
      |       ^
    standard input:4:9: unexpected key or value, expected newline, "#"
      |
    4 | mig = = false
      |         ^
    "##);
}

/// All keys of `select` must hold.
#[test]
fn a_word_of_another_language_is_no_truth() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = "[[gpu]]\nselect = { all = true }\nmig = off\n";
    assert_snapshot!(plain(&sim.up(profile, &[]).ended(2).stderr), @r#"
    error: profile.toml:3:7: off is no value: it is false in TOML
      |
    3 | mig = off
      |       ^^^ write false, or "off" for a string
    "#);
}

#[test]
fn a_device_serves_one_user_by_name() {
    let sim = Sim::with("a100-80gb", 1);
    let profile =
        "[[gpu]]\nselect = { all = true }\nmig = false\nmps = { serve = \"user:alice,bob\" }\n";
    assert_snapshot!(plain(&sim.up(profile, &[]).ended(2).stderr), @r#"
    error: profile.toml:4:17: serve = "user:alice,bob": it names one user or one group; "group:NAME" is for several users
      |
    4 | mps = { serve = "user:alice,bob" }
      |                 ^^^^^^^^^^^^^^^^
    "#);
}

#[test]
fn a_selector_with_several_keys() {
    let sim = Sim {
        node: testkit::TestNode::builder()
            .gpu("a100-80gb", 2)
            .gpu("h200", 2)
            .build(),
    };
    let profile = r#"
[[gpu]]
select = { product = "H200", index = [0, 2] }
devices = [ { profile = "7g" } ]

[[gpu]]
select = { product = "A100" }
devices = [ { profile = "3g" } ]
"#;
    let plan: Value = {
        let path = sim.profile(profile);
        sim.run(&["plan", path.to_str().unwrap(), "--json"]).json()
    };
    let gpus: Vec<(&Value, &Value)> = plan["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gpu| (&gpu["index"], &gpu["after"]))
        .collect();
    let indices: Vec<&&Value> = gpus.iter().map(|(index, _)| index).collect();
    assert_eq!(indices, [&&json!(0), &&json!(1), &&json!(2)], "{plan:#}");
    for (select, said) in [
        ("{}", "select needs one of"),
        ("{ all = true, index = [0] }", "leave it out"),
        ("{ all = false }", "all = false selects nothing"),
    ] {
        let text = format!("[[gpu]]\nselect = {select}\nmig = false\n");
        let ran = sim.up(&text, &[]).ended(2);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    // The second block wants less than the first takes.
    let shadowed = "[[gpu]]\nselect = { product = \"A100\" }\nmig = false\n\n\
                    [[gpu]]\nselect = { product = \"A100\", index = [1] }\nmig = false\n";
    let ran = sim.up(shadowed, &[]).ended(2);
    assert_contains(&ran.stderr, "can never be reached");
    let reached = "[[gpu]]\nselect = { product = \"A100\", index = [1] }\nmig = false\n\n\
                   [[gpu]]\nselect = { index = [1, 0] }\nmig = false\n";
    sim.up(reached, &["--dry-run"]).ended(0);
}

#[test]
fn check_holds_a_profile_to_its_models() {
    let profile = |models: &str| {
        format!(
            "models = [{models}]\n[[gpu]]\nselect = {{ product = \"A100\" }}\ndevices = [ {{ profile = \"3g\" }} ]\n"
        )
    };
    let check = |models: &str| without_gpu(&["check", "-"], &profile(models));
    let fits = check("\"a100-40gb\", \"A100-80GB\"").ended(0);
    assert!(!fits.stdout.contains("a800"), "{}", fits.stdout);
    assert_snapshot!(check("\"a100-80gb\", \"h200\"").ended(2).stderr, @r#"
    error: standard input:1:24: no block selects h200-141gb-sxm (NVIDIA H200)
      |
    1 | models = ["a100-80gb", "h200"]
      |                        ^^^^^^
    "#);
    assert_snapshot!(check("\"a100\", \"b999\"").ended(2).stderr, @r#"
    error: standard input:1:11: "a100" can be a100-40gb, a100-80gb: write one of these
      |
    1 | models = ["a100", "b999"]
      |           ^^^^^^
    standard input:1:19: no model is called "b999"; mig-mps check --models lists all
      |
    1 | models = ["a100", "b999"]
      |                   ^^^^^^
    "#);
    assert_snapshot!(check("").ended(2).stderr, @"
    error: standard input:1:10: models = [] names no model
      |
    1 | models = []
      |          ^^ leave it out for a profile that is for every model
    ");
    // up goes by the GPUs it finds.
    let sim = Sim::with("a800-80gb", 1);
    sim.up(
        &profile("\"a100-40gb\"").replace("A100", "A800"),
        &["--dry-run"],
    )
    .ended(0);
}

#[test]
fn a_plain_user_can_plan_and_check_roots_profile() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let all = SMALL.replace("[[gpu]]", "mps = { serve = \"all\" }\n[[gpu]]");
    sim.up(&all, &["--yes"]).ended(0);
    let by_nobody = |command: &str, profile: &str| {
        let path = sim.profile(profile);
        let mut command = sim.by_nobody(&[command, path.to_str().unwrap()]);
        command.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
        command.env("MIG_MPS_LOG_DIR", sim.node.log_dir());
        Ran::of(&mut command)
    };
    by_nobody("check", &all).ended(0);
    let ran = by_nobody("plan", &all).ended(0);
    assert_snapshot!(ran.stderr, @"
    Planned as root would apply it: only root can serve other users.
    Nothing to do: the node is as the profile says.
    ");
    let more = all.replace(
        "{ profile = \"1g\" }",
        "{ profile = \"1g\" }, { profile = \"3g\" }",
    );
    let ran = by_nobody("plan", &more).ended(0);
    assert_contains(&ran.stdout, "+ create 3g.40gb at slices 4-7");
}

#[test]
fn the_schema_takes_what_the_program_takes() {
    let schema = without_gpu(&["schema", "profile"], "").json();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let fits = |text: &str| {
        let value: toml::Value = toml::from_str(text).unwrap();
        validator.is_valid(&serde_json::to_value(value).unwrap())
    };
    for built_in in mig_mps::internals::catalog::BuiltIn::all() {
        assert!(fits(built_in.text), "{}", built_in.name);
    }
    let block = |keys: &str| format!("[[gpu]]\nselect = {{ all = true }}\n{keys}\n");
    for (text, good) in [
        (block("mig = false"), true),
        (block("mig = false\nmps = false"), true),
        (block("mig = false\nmps = true"), false),
        (block("mig = 0"), false),
        (block("devices = []"), true),
        (block("devices = [ { count = 1 } ]"), false),
        (
            block("devices = [ { profile = \"1g\", mps = { serve = \"group:vision\" } } ]"),
            true,
        ),
        (
            block("devices = [ { profile = \"1g\", mps = { serve = \"everybody\" } } ]"),
            false,
        ),
        (
            block("devices = [ { profile = \"1g\", mps = { max-clients = \"8\" } } ]"),
            false,
        ),
        (block("device = []"), false),
        (
            "[gpu]\nselect = { all = true }\nmig = false\n".to_owned(),
            false,
        ),
        ("[[gpu]]\nmig = false\n".to_owned(), false),
    ] {
        assert_eq!(fits(&text), good, "{text}");
        let ran = without_gpu(&["check", "-"], &text);
        assert_eq!(ran.status == 0, good, "{text}{}", ran.stderr);
    }
}
