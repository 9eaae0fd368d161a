//! `check`: what a profile makes of GPUs that are not there.

use std::path::Path;

use mig_mps::internals::catalog;
use mig_mps::internals::plan::check::{GpuArgument, against};
use mig_mps::internals::profile::Profile;
use serde_json::json;

use testkit::{Ran, Sim, assert_contains, without_gpu};

fn check(profile: &str, args: &[&str]) -> Ran {
    without_gpu(&[&["check", "/dev/stdin"], args].concat(), profile)
}

/// What it says to a person: everything.
fn said(ran: &Ran) -> String {
    format!("{}{}", ran.stdout, ran.stderr)
}

const MIXED: &str = r#"
[[gpu]]
select = { index = [4] }
mig = false

[[gpu]]
select = { product = "A100.*80GB" }
devices = [
  { name = "trainer-{gpu}", profile = "3g.40gb" },
  { profile = "1g", count = 2, mps = { active-thread-percentage = 50 } },
]

[[gpu]]
select = { product = "A30" }
devices = [ { profile = "2g", compute = ["1c", "1c"] }, { profile = "1g+me", at = 2 } ]
"#;

#[test]
fn a_profile_is_judged_on_the_gpus_that_are_named() {
    let ran = check(
        MIXED,
        &["--gpu", "a100-80gb:3", "--gpu", "a30", "--gpu", "h200:2"],
    )
    .ended(0);
    insta::assert_snapshot!(said(&ran), @"
    GPU 0-2  a100-80gb  NVIDIA A100-SXM4-80GB
      |1g   |1g   |.....|.....|3g.40gb                |
      PROFILE  AT   SERVE          SERVER  THREADS  NAMES
      1g.10gb  0    one-at-a-time  eager       50%  0.0, 1.0, 2.0
      1g.10gb  1    one-at-a-time  eager       50%  0.1, 1.1, 2.1
      3g.40gb  4-7  one-at-a-time  eager      100%  trainer-0, trainer-1, trainer-2
    GPU 3  a30-24gb  NVIDIA A30
      |2g.12gb                |1g.6gb+me  |...........|
      PROFILE     AT   SERVE          SERVER  THREADS  NAMES
      1c.2g.12gb  0-1  one-at-a-time  eager      100%  3.0.c0
      1c.2g.12gb  0-1  one-at-a-time  eager      100%  3.0.c1
      1g.6gb+me   2    one-at-a-time  eager      100%  3.2
    GPU 4  h200-141gb-sxm  NVIDIA H200
      PROFILE    AT  SERVE          SERVER  THREADS  NAMES
      whole GPU  -   one-at-a-time  eager      100%  4
    GPU 5  h200-141gb-sxm  NVIDIA H200
      no block selects it: it is not touched
    It fits: 13 devices on 5 GPUs.
    ");
}

/// A catch-all behind it hides a typing error.
#[test]
fn a_block_that_selects_nothing_is_named_beside_a_catch_all() {
    let profile = |product: &str| {
        format!(
            "[[gpu]]\nselect = {{ product = \"{product}\" }}\ndevices = [ {{ profile = \"3g\", count = 2 }} ]\n\
             [[gpu]]\nselect = {{ all = true }}\nmig = false\n"
        )
    };
    let typo = profile("A100.*80BG");
    let ran = check(&typo, &["--gpu", "a100-80gb:4"]).ended(2);
    insta::assert_snapshot!(said(&ran), @r#"
    error: /dev/stdin:2:10: this selects no model that has MIG
      |
    2 | select = { product = "A100.*80BG" }
      |          ^^^^^^^^^^^^^^^^^^^^^^^^^^ mig-mps check --models lists their product names
    "#);
    // A block for other nodes of the fleet is none.
    let others = profile("H200");
    let ran = check(&others, &["--gpu", "a100-80gb:4"]).ended(0);
    let unmatched = "line 2: { product = \"H200\" }: selects none of these GPUs\n";
    assert!(ran.stdout.contains(unmatched), "{}", ran.stdout);
    let ran = check(&others, &["--gpu", "a100-80gb:4", "--json"]).ended(0);
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["unmatched_blocks"], json!([2]));

    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(&typo).display().to_string();
    let remark = "line 2: { product = \"A100.*80BG\" }: selects no GPU of this node, and no model that mig-mps knows\n";
    assert_eq!(sim.run(&["plan", &path]).ended(0).stderr, remark);
    let plan = sim.run(&["plan", &path, "--json"]).ended(0).stdout;
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["remarks"], json!([remark.trim_end()]));
    let up = sim.run(&["up", &path, "--yes"]).ended(0).stderr;
    assert!(up.starts_with(remark), "{up}");
    let again = sim.run(&["up", &path, "--yes"]).ended(0).stderr;
    assert!(again.starts_with(remark), "{again}");
    let path = sim.profile(&others).display().to_string();
    assert_eq!(
        sim.run(&["plan", &path]).ended(0).stderr,
        "Nothing to do: the node is as the profile says.\n"
    );
}

#[test]
fn without_gpus_every_block_is_judged_on_every_model_it_can_meet() {
    let ran = check(MIXED, &[]).ended(0);
    insta::assert_snapshot!(said(&ran), @r#"
    line 3: { index = [4] }
      the whole GPU, on any model
    line 7: { product = "A100.*80GB" }
      a100-80gb  |1g   |1g   |.....|.....|3g.40gb                |
    line 14: { product = "A30" }
      a30-24gb  |2g.12gb                |1g.6gb+me  |...........|
    It fits 24 models.
    "#);
}

#[test]
fn a_model_that_the_profile_is_not_for_is_a_mistake() {
    let profile =
        "models = [\"h100-80gb-sxm\"]\n\n[[gpu]]\nselect = { product = \"H100\" }\nmig = false\n";
    let ran = check(profile, &["--gpu", "h100-80gb-sxm", "--gpu", "b200:8"]).ended(2);
    insta::assert_snapshot!(said(&ran), @r#"
    error: /dev/stdin:1:11: the profile is not for b200-180gb
      |
    1 | models = ["h100-80gb-sxm"]
      |           ^^^^^^^^^^^^^^^ add it to models, or leave models out
    "#);
}

#[test]
fn a_model_that_it_does_not_fit_is_an_error_that_names_it() {
    let ran = check(
        "[[gpu]]\nselect = { product = 'A30|A100.*40GB' }\ndevices = [ { profile = \"2g\", count = 3 } ]\n",
        &[],
    )
    .ended(5);
    insta::assert_snapshot!(said(&ran), @r#"
    line 2: { product = 'A30|A100.*40GB' }
      a100-40gb  |2g.10gb    |2g.10gb    |2g.10gb    |.....|.....|
      a30-24gb   does not fit: 3 × 2g.12gb requested, and at most 2 can exist
    error: the profile does not fit 1 of 2 models: a30-24gb
    a30-24gb: /dev/stdin:2:10: this does not fit on a GPU it selects
      |
    2 | select = { product = 'A30|A100.*40GB' }
      |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    GPU 0 (NVIDIA A30): 3 × 2g.12gb does not fit: 3 × 2g.12gb requested, and at most 2 can exist
      |2g.12gb                |2g.12gb                |  2 × 2g.12gb
    2 × 2g.12gb would fit
    hint: name the models you have with --gpu MODEL, or keep others away from a block with select = { product = "…" }
    "#);
}

#[test]
fn a_profile_that_a_model_does_not_have_is_a_bad_one() {
    let ran = check(
        "[[gpu]]\nselect = { product = 'A30|H200$' }\ndevices = [ { profile = \"3g\" } ]\n",
        &[],
    )
    .ended(2);
    insta::assert_snapshot!(said(&ran), @r#"
    line 2: { product = 'A30|H200$' }
      a30-24gb        GPU 0 (NVIDIA A30) has no profile "3g"
      h200-141gb-sxm  |3g.71gb                |.....|.....|.....|.....|
    error: the profile does not fit 1 of 2 models: a30-24gb
    a30-24gb: /dev/stdin:3:25: GPU 0 (NVIDIA A30) has no profile "3g"
      |
    3 | devices = [ { profile = "3g" } ]
      |                         ^^^^ did you mean "2g.12gb"? It has 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb
    hint: name the models you have with --gpu MODEL, or keep others away from a block with select = { product = "…" }
    "#);
}

#[test]
fn a_block_meets_no_model_that_the_blocks_before_it_take() {
    let profile = r#"
[[gpu]]
select = { product = "A30|RTX PRO" }
devices = [ { profile = "4g" } ]

[[gpu]]
select = { all = true }
devices = [ { profile = "7g" } ]
"#;
    let judged = check(profile, &["--json"]).json();
    assert_eq!(judged["fits"], true);
    let models = |block: usize| judged["blocks"][block]["models"].as_array().unwrap().len();
    assert_eq!((models(0), models(1)), (2, catalog::models().len() - 2));
}

#[test]
fn a_block_for_certain_gpus_can_meet_any_model() {
    for select in [r"uuid = 'GPU-5f1c'", r"pci = '0000:17:00.0'", "index = [5]"] {
        let profile =
            format!("[[gpu]]\nselect = {{ {select} }}\ndevices = [ {{ profile = '1g' }} ]\n");
        let judged = check(&profile, &["--json"]).json();
        let models = judged["blocks"][0]["models"].as_array().unwrap();
        assert_eq!(models.len(), catalog::models().len(), "{select}");
    }
}

#[test]
fn which_gpu_has_a_uuid_only_the_node_tells() {
    let profile =
        "[[gpu]]\nselect = { uuid = 'GPU-5f1c' }\ndevices = [ { profile = '3g.40gb' } ]\n";
    let ran = check(profile, &["--gpu", "a100-80gb", "--gpu", "h200"]).ended(0);
    insta::assert_snapshot!(said(&ran), @"
    GPU 0  a100-80gb  NVIDIA A100-SXM4-80GB
      not touched, unless a block selects it by UUID or PCI address
    GPU 1  h200-141gb-sxm  NVIDIA H200
      not touched, unless a block selects it by UUID or PCI address
    line 2: { uuid = 'GPU-5f1c' }: which GPU that is, only the node tells; it fits on a100-80gb
    ");
    let ran = check(profile, &["--gpu", "h200"]).ended(2);
    insta::assert_snapshot!(said(&ran), @r#"
    error: /dev/stdin:3:25: GPU 0 (NVIDIA H200) has no profile "3g.40gb"
      |
    3 | devices = [ { profile = '3g.40gb' } ]
      |                         ^^^^^^^^^ did you mean "3g.71gb"? It has 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb
    "#);
}

#[test]
fn what_no_model_is_selected_by_is_a_mistake() {
    let of = |product: &str| {
        let select = format!("[[gpu]]\nselect = {{ product = '{product}' }}\n");
        check(
            &format!("{select}devices = [ {{ profile = '1g' }} ]\n"),
            &[],
        )
        .ended(2)
        .stderr
    };
    insta::assert_snapshot!(of("A10O"), @"
    error: /dev/stdin:2:10: this selects no model that has MIG
      |
    2 | select = { product = 'A10O' }
      |          ^^^^^^^^^^^^^^^^^^^^ mig-mps check --models lists their product names
    ");
    insta::assert_snapshot!(of("AX800"), @"
    error: /dev/stdin:2:10: this selects only models of which too little is known
      |
    2 | select = { product = 'AX800' }
      |          ^^^^^^^^^^^^^^^^^^^^^ on such a machine, mig-mps up --dry-run tells: ax800 lacks its profiles
    ");
    // A GPU without MIG is in no catalog.
    let whole = "[[gpu]]\nselect = { product = 'Tesla T4' }\nmig = false\n";
    check(whole, &[]).ended(0);
}

#[test]
fn an_index_that_the_node_does_not_have_is_a_bad_profile() {
    let ran = check(MIXED, &["--gpu", "a100-80gb:2"]).ended(2);
    insta::assert_snapshot!(said(&ran), @"
    error: /dev/stdin:3:10: there is no GPU 4
      |
    3 | select = { index = [4] }
      |          ^^^^^^^^^^^^^^^
    this node has:
      0 NVIDIA A100-SXM4-80GB a100-80gb#0 (catalog)
      1 NVIDIA A100-SXM4-80GB a100-80gb#1 (catalog)
    ");
}

#[test]
fn names_given_twice_are_found() {
    let profile =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { name = 'a', profile = '1g' } ]\n";
    check(profile, &["--gpu", "a30"]).ended(0);
    let ran = check(profile, &["--gpu", "a30:2"]).ended(2);
    assert_contains(&ran.stderr, "put {gpu} or {n} into the name");
    let twice =
        "[[gpu]]\nselect = { index = [0, 3] }\ndevices = [ { name = 'a', profile = '1g' } ]\n";
    check(twice, &[]).ended(2);
}

#[test]
fn it_is_no_matter_who_checks() {
    let profile = |serve| {
        format!(
            "[mps]\nserve = '{serve}'\n[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ profile = '1g' }} ]\n"
        )
    };
    for serve in ["one-at-a-time", "all", "self"] {
        let judged = check(&profile(serve), &["--gpu", "a30", "--json"]).json();
        assert_eq!(judged["gpus"][0]["devices"][0]["serve"], serve);
    }
}

#[test]
fn programs_get_the_same() {
    let judged = check(MIXED, &["--gpu", "a30:5", "--json"]).json();
    assert_eq!(judged["fits"], true);
    assert_eq!(
        judged["gpus"][0]["devices"][1],
        json!({
            "name": "0.0.c1",
            "profile": "1c.2g.12gb",
            "placement": { "start": 0, "size": 2 },
            "serve": "one-at-a-time",
            "server": "eager",
            "active_thread_percentage": 100.0,
        })
    );
    assert_eq!(judged["gpus"][4]["devices"][0]["profile"], json!(null));
    let too_much =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = '1g', count = 5 } ]\n";
    let ran = check(too_much, &["--gpu", "a30", "--json"]).ended(5);
    let judged: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(judged["fits"], false);
    assert!(
        judged["error"]["what"]
            .as_str()
            .unwrap()
            .contains("does not fit"),
        "{judged}"
    );
}

#[test]
fn a_model_that_is_not_known_is_refused() {
    let said = |gpu: &str| check("", &["--gpu", gpu]).ended(2).stderr;
    insta::assert_snapshot!(said("a100-80"), @r#"
    error: --gpu a100-80: no model is called "a100-80" (did you mean "a100-80gb"?); mig-mps check --models lists all
    hint: mig-mps check --help lists the options
    "#);
    insta::assert_snapshot!(said("ax800"), @"
    error: --gpu ax800: too little is known of ax800: nobody has published its profiles; on a machine with that GPU, NVML tells
    hint: mig-mps check --help lists the options
    ");
    assert!(said("a30:0").contains("from 1 to 1024"));
    assert!(said("a30:x").contains("from 1 to 1024"));
}

#[test]
fn the_catalog_is_listed() {
    let list = without_gpu(&["check", "--models"], "").ended(0).stdout;
    for model in catalog::models() {
        let line = list.lines().find(|line| line.starts_with(&model.key));
        let line = line.unwrap_or_else(|| panic!("no {} in {list}", model.key));
        assert_contains(line, &model.placements_known().to_string());
    }
    assert!(list.contains("jetson-thor"));
    let h200 = list
        .lines()
        .find(|line| line.starts_with("h200-141gb-sxm"))
        .unwrap();
    insta::assert_snapshot!(h200.split_whitespace().collect::<Vec<_>>().join(" "), @"h200-141gb-sxm, h200 141 GiB profiles measured, placements measured");
    let all = without_gpu(&["check", "--models", "--json"], "").json();
    assert_eq!(
        all["models"].as_array().unwrap().len(),
        catalog::models().len()
    );
    assert_eq!(
        all["incomplete"].as_array().unwrap().len(),
        catalog::incomplete().len()
    );
    assert_eq!(all["models"][0]["profiles"][0]["profile"], "1g.5gb");
}

/// As many as can exist fit, and one more does not: of every profile of every model, by its full name.
#[test]
fn every_profile_of_every_model_fits_as_often_as_the_catalog_says() {
    for model in catalog::models() {
        for offer in model.offers() {
            let fits = |count: u32| {
                let text = format!(
                    "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ profile = '{}', count = {count} }} ]\n",
                    offer.name
                );
                let profile = Profile::parse(Path::new("p.toml"), text).unwrap();
                let gpu = GpuArgument { model, count: 1 };
                against(&profile, &[gpu]).map(|on_node| on_node.gpus[0].1.clone().unwrap())
            };
            let shape = fits(offer.most).unwrap();
            assert_eq!(
                shape.devices.len(),
                offer.most as usize,
                "{} {}",
                model.key,
                offer.name
            );
            assert!(
                fits(offer.most + 1).is_err(),
                "{} {}",
                model.key,
                offer.name
            );
        }
    }
}
