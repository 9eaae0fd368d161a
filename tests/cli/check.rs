//! `check`: what a profile makes of GPUs that are not there.

use std::path::Path;

use mig_mps::internals::catalog;
use mig_mps::internals::plan::check::{GpuArgument, check_on_gpus};
use mig_mps::internals::profile::Profile;
use serde_json::json;

use testkit::{Ran, Sim, assert_contains, without_gpu};

fn check(profile: &str, args: &[&str]) -> Ran {
    without_gpu(&[&["check", "/dev/stdin"], args].concat(), profile)
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

/// A catch-all behind it hides a typing error.
#[test]
fn programs_learn_of_blocks_that_select_nothing() {
    let profile = "[[gpu]]\nselect = { product = \"A100.*80BG\" }\ndevices = [ { profile = \"3g\" } ]\n\
                   [[gpu]]\nselect = { all = true }\nmig = false\n";
    let fleet = profile.replace("A100.*80BG", "A30");
    let judged = check(&fleet, &["--gpu", "a100-80gb", "--json"]).json();
    assert_eq!(judged["unmatched_blocks"], json!([2]));
    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(profile);
    let plan = sim.run(&["plan", path.to_str().unwrap(), "--json"]).json();
    let remark = plan["remarks"][0].as_str().unwrap();
    assert!(remark.contains("selects no GPU of this node"), "{remark}");
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
                check_on_gpus(&profile, &[gpu]).map(|on_node| on_node.gpus[0].1.clone().unwrap())
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
