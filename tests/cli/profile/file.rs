//! Where profiles come from, and the mistakes in them.

use insta::assert_snapshot;
use serde_json::{Value, json};

use testkit::{Ran, SMALL, Sim, assert_contains, in_state, needs_root, repository, without_gpu};

#[test]
fn built_in_profiles_go_by_their_names() {
    let sim = Sim::with("a100-80gb", 1);
    let listed = sim.run(&["profiles"]).ended(0);
    assert_snapshot!(listed.stdout, @"
    NAME                  FITS THIS NODE  DESCRIPTION
    all-large             2 devices       Two halves of every GPU
    all-small             7 devices       As many devices as the GPU has slices, all of the smallest size
    balanced              4 devices       Devices of different sizes on every GPU: large, medium and small
    inference             4 devices       Devices of medium size for inference services, and small ones in the rest
    mixed-fleet           4 devices       One file for all nodes of a fleet with different GPUs: the product decides
    training-and-serving  4 devices       One large device for training and small ones for serving on every GPU
    whole-gpu             1 device        Every GPU as one device, not partitioned: one MPS daemon and server each
    ");
    let text = sim.run(&["profiles", "balanced"]).ended(0).stdout;
    let file = repository().join("profiles/balanced.toml");
    assert_eq!(text, std::fs::read_to_string(file).unwrap());
    sim.run(&["check", "balanced"]).ended(0);
    sim.run(&["plan", "balanced"]).ended(0);
    sim.run(&["up", "balanced", "--yes"]).ended(0);
    assert_eq!(sim.status()["applied_profile"]["path"], "balanced");
}

#[test]
fn a_file_with_the_name_of_a_built_in_one_is_meant_by_its_path() {
    let sim = Sim::with("a100-80gb", 1);
    std::fs::write(sim.node.dir().join("balanced"), SMALL).unwrap();
    let planned = |profile: &str| {
        let mut plan = sim.command(&["plan", profile]);
        Ran::of(plan.current_dir(sim.node.dir())).ended(0).stdout
    };
    assert_contains(
        &planned("./balanced"),
        "daemons (no daemon yet): 0.0, 0.2\n",
    );
    assert_contains(
        &planned("balanced"),
        "daemons (no daemon yet): 0.0, 0.1, 0.2, 0.4\n",
    );
}

#[test]
fn a_gpu_is_selected_by_its_pci_address() {
    let sim = Sim::with("h200", 3);
    let list = sim.list();
    let address = list["gpus"][1]["pci"].as_str().unwrap();
    let profile = format!("[[gpu]]\nselect = {{ pci = \"{address}\" }}\nmig = false\n");
    sim.up(&profile, &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["1"]);
    let absent = profile.replace(address, "0000:ff:00.0");
    let refused = sim.up(&absent, &[]).ended(2).stderr;
    assert_contains(&refused, "this selects a GPU that does not exist");
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
        ("{}", "select needs at least one of"),
        ("{ all = true, index = [0] }", "remove it"),
        ("{ all = false }", "all = false selects nothing"),
    ] {
        let text = format!("[[gpu]]\nselect = {select}\nmig = false\n");
        let ran = sim.up(&text, &[]).ended(2);
        assert_contains(&ran.stderr, said);
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
    note: planned as root would apply it, because only root can serve other users
    Nothing to do: the node matches the profile.
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
        (
            block("mig = false\nmps = { threads = 50, memory = \"4G\" }"),
            true,
        ),
        (
            block("mig = false\nmps = { threads = 50, active-thread-percentage = 50 }"),
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
