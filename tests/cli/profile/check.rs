//! `check`: what a profile makes of this node's GPUs, and of GPUs that are not there.

use std::fs;
use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;
use mig_mps::internals::catalog;
use mig_mps::internals::manual::TOPICS;
use mig_mps::internals::plan::check::{GpuArgument, check_on_gpus};
use mig_mps::internals::profile::Profile;
use serde_json::{Value, json};

use testkit::{Ran, SMALL, Sim, assert_contains, built, in_state, plain, without_gpu};

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
            "client_limit": 12,
            "joint_gpus": [],
            "profile": "1c.2g.12gb",
            "placement": { "start": 0, "size": 2 },
            "multiprocessors": null,
            "memory_total_bytes": 11968_u64 << 20,
            "serve": "one-at-a-time",
            "server": "eager",
            "active_thread_percentage": 100.0,
            "pinned_memory_limit_bytes": null,
            "max_clients": null,
            "share": null,
            "each_client": null,
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
                check_on_gpus(&profile, &[gpu])
                    .map(|on_node| on_node.gpus[0].shape.clone().unwrap())
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

/// Four devices of a quarter of the memory each have four sevenths of the SMs.
const QUARTERS: &str =
    "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g.20gb\", count = 4 } ]\n";

const UNUSED: &str = "4 × 1g.20gb uses 56 of 98 SMs; 3 × 2g.20gb + 1 × 1g.20gb uses all";

#[test]
fn what_a_layout_leaves_unused_is_said_once_for_each_kind_of_gpu_and_is_no_error() {
    let remark = |gpus: &str| format!("GPUs {gpus}: {UNUSED}\n");
    let ran = check(QUARTERS, &["--gpu", "a100-80gb:2", "--gpu", "h100:1"]).ended(0);
    let h100 = "note: GPU 2: 4 × 1g.20gb uses 104 of 132 SMs; 3 × 2g.20gb + 1 × 1g.20gb uses 122\n";
    let noted = |gpus: &str| format!("note: {}", remark(gpus));
    assert_eq!(ran.stderr, noted("0-1") + h100);
    // Nobody has published the SMs of this one.
    let ran = check(QUARTERS, &["--gpu", "h800-80gb"]).ended(0);
    assert_snapshot!(ran.stderr, @"note: GPU 0: 4 × 1g.20gb uses 4 of 7 compute slices; 3 × 2g.20gb + 1 × 1g.20gb uses all");
    let judged = check(QUARTERS, &["--gpu", "a100-80gb:2", "--json"]).json();
    assert_eq!(judged["remarks"], json!([remark("0-1").trim_end()]));

    let sim = Sim::with("a100-80gb", 2);
    let path = sim.profile(QUARTERS);
    let path = path.to_str().unwrap();
    assert_eq!(sim.run(&["check", path]).ended(0).stderr, noted("0-1"));
    let plan = sim.run(&["plan", path, "--json"]).json();
    assert_eq!(plan["remarks"], json!([remark("0-1").trim_end()]));
    assert_contains(&sim.run(&["plan", path]).ended(0).stderr, &remark("0-1"));
    let up = sim.up(QUARTERS, &[]).ended(0);
    assert_eq!(up.stderr.matches(UNUSED).count(), 1, "{}", up.stderr);
    // A layout that stands gets no remark each time.
    sim.up_does_nothing(QUARTERS);
    assert_eq!(sim.run(&["-q", "check", path]).ended(0).stderr, "");
    let init = [
        "init", "-", "--whole", "none", "--jobs", "8", "--memory", "19G", "--serve", "no",
    ];
    let alike = sim.run(&[&init[..], &["--layout", "2"]].concat()).ended(0);
    assert_contains(&alike.stderr, &remark("0-1"));
    let even = sim.run(&[&init[..], &["--layout", "1"]].concat()).ended(0);
    assert!(!even.stderr.contains("note: GPU"), "{}", even.stderr);
}

/// On the whole catalog almost every model would have a remark of its own.
#[test]
fn remarks_on_many_models_are_counted() {
    let ones = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 4 } ]\n";
    let ran = check(ones, &["--models"]).ended(0);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(
        lines[0],
        "note: a100-40gb, a800-40gb: 4 × 1g.5gb uses 56 of 98 SMs; 1 × 3g.20gb + 4 × 1g.5gb uses all"
    );
    let judged = check(ones, &["--models", "--json"]).json();
    let others = judged["remarks"].as_array().unwrap().len() - 1;
    assert_eq!(lines.len(), 2, "{lines:?}");
    let counted = format!("note: line 2: {{ all = true }}: {others} more remarks for other models");
    assert!(lines[1].starts_with(&counted), "{lines:?}");
}

/// A driver's next version may give the same profile another number, as on a GB200; otherwise the share counts.
#[test]
fn a_size_that_a_gpu_lacks_is_answered_with_the_nearest_one_or_the_same_share() {
    for (model, wanted, near) in [
        ("gb200-186gb", "1g.24gb", "1g.23gb"),
        ("gb200-186gb", "2g.48gb", "2g.47gb"),
        ("gb200-186gb", "3g.95gb", "3g.93gb"),
        ("gb200-186gb", "1g.24gb+me", "1g.23gb+me"),
        ("b200-180gb", "1g.24gb", "1g.23gb"),
        ("h200-141gb-sxm", "1g.16gb", "1g.18gb"),
        ("h100-94gb-nvl", "1g.11gb", "1g.12gb"),
        ("a100-40gb", "1g.20gb", "1g.10gb"),
        ("a100-40gb", "3g.40gb", "3g.20gb"),
        ("a100-80gb", "1g.5gb", "1g.10gb"),
        ("a100-80gb", "1g.21gb", "1g.20gb"),
        ("a100-80gb", "4g.71gb", "4g.40gb"),
        ("a30-24gb", "3g.40gb", "2g.12gb"),
        ("a30-24gb", "7g.80gb", "4g.24gb"),
        ("a30-24gb", "2g.20gb+me", "2g.12gb+me"),
        ("h200-141gb-sxm", "1g.10gb", "1g.18gb"),
        ("rtx-pro-6000-96gb", "1g.20gb", "1g.24gb"),
        ("pg506-96gb", "1g+me", "1g.12gb"),
    ] {
        let profile = QUARTERS.replace("1g.20gb\", count = 4", &format!("{wanted}\""));
        let said = check(&profile, &["--gpu", model]).ended(2).stderr;
        assert_contains(&said, &format!("did you mean \"{near}\"?"));
    }
}

#[test]
fn this_node_is_judged_whatever_is_on_it() {
    let sim = Sim::with("a100-80gb", 2);
    sim.up(SMALL, &[]).ended(0);
    let uuid = sim.list()["gpus"][1]["uuid"].as_str().unwrap().to_owned();
    let profile = format!(
        "[[gpu]]\nselect = {{ uuid = \"{uuid}\" }}\nmig = false\n\
         [[gpu]]\nselect = {{ product = \"A100\" }}\ndevices = [ {{ profile = \"7g\" }} ]\n\
         [[gpu]]\nselect = {{ product = \"A30\" }}\ndevices = [ {{ profile = \"4g\" }} ]\n"
    );
    let path = sim.profile(&profile);
    let path = path.to_str().unwrap();
    let before = sim.list();
    let ran = sim.run(&["check", path]).ended(0);
    assert_eq!(ran.stderr, "");
    assert_snapshot!(ran.stdout, @r#"
    GPU 0  a100-80gb  NVIDIA A100-SXM4-80GB
      |7g.80gb                                        |
      PROFILE    AT   SMS   GIB  SERVE          SERVER  THREADS  LIMIT  CLIENTS  NAMES
      7g.80gb    0-7   98  79.0  one-at-a-time  eager      100%      -        -  0.0
    GPU 1  a100-80gb  NVIDIA A100-SXM4-80GB
      PROFILE    AT   SMS   GIB  SERVE          SERVER  THREADS  LIMIT  CLIENTS  NAMES
      whole GPU  -    108  80.0  one-at-a-time  eager      100%      -        -  1
    line 8: { product = "A30" }: selects no GPU of this node
    It fits this node: 2 devices on 2 GPUs.
    "#);
    assert_eq!(sim.list(), before);
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    // Placements that the driver does not show are the catalog's.
    let placements = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";
    sim.node.fault(placements).every().fails(4).unwrap();
    let hidden = sim.run(&["check", path]).ended(0);
    assert_eq!(hidden.stdout, ran.stdout);
    let judged = sim.run(&["check", path, "--json"]).json();
    assert_eq!(judged["judged_on"], "this-node");
    assert_eq!(judged["unmatched_blocks"], json!([8]));
    assert_eq!(judged["gpus"][1]["devices"][0]["name"], "1");
    // Unless other GPUs are named, or all.
    let judged = sim.run(&["check", path, "--json", "--models"]).json();
    assert_eq!(
        (&judged["judged_on"], &judged["gpus"]),
        (&json!("models"), &json!(null))
    );
    let judged = sim
        .run(&["check", path, "--json", "--gpu", "a100-80gb"])
        .json();
    assert_eq!(judged["judged_on"], "gpus");
    assert_eq!(judged["blocks_by_uuid_or_pci"][0]["line"], 2);
}

/// A product that neither this node nor the catalog has is a typing error, which a block for all GPUs hides.
#[test]
fn a_product_that_nothing_has_is_an_error_on_this_node_too() {
    let sim = Sim::with("a100-80gb", 1);
    let typo = "[[gpu]]\nselect = { product = \"A100.*80BG\" }\ndevices = [ { profile = \"3g\" } ]\n\
                [[gpu]]\nselect = { all = true }\nmig = false\n";
    let path = sim.profile(typo);
    for option in [&[][..], &["--models"], &["--gpu", "a100-80gb"]] {
        let args = [&["check", path.to_str().unwrap()], option].concat();
        let said = sim.run(&args).ended(2).stderr;
        assert_contains(
            &plain(&said),
            "profile.toml:2:10: this selects no model that has MIG",
        );
    }
    // A whole GPU may be one without MIG, which the catalog does not have.
    let whole = typo.replace("devices = [ { profile = \"3g\" } ]", "mig = false");
    let path = sim.profile(&whole);
    let said = sim.run(&["check", path.to_str().unwrap()]).ended(0).stdout;
    assert_contains(
        &said,
        "selects no GPU of this node, and no model that mig-mps knows\n",
    );
}

#[test]
fn without_a_gpu_the_models_are_judged_and_this_is_said() {
    let ran = without_gpu(&["check", "balanced"], "").ended(0);
    assert_contains(
        &ran.stderr,
        "no GPU is visible here, so the models of the catalog are checked: cannot load the NVML library",
    );
    assert_contains(&ran.stdout, "\nIt fits 24 models of the catalog.\n");
    let asked = without_gpu(&["check", "balanced", "--models"], "").ended(0);
    assert_eq!((asked.stderr.as_str(), asked.stdout), ("", ran.stdout));
}

#[test]
fn of_several_profiles_each_is_judged_and_the_highest_status_counts() {
    let sim = Sim::with("a100-80gb", 1);
    let file = |name: &str, text: &str| {
        let path = sim.node.dir().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (good, large, wrong) = (
        file("good.toml", QUARTERS),
        file("large.toml", &QUARTERS.replace("count = 4", "count = 5")),
        file("wrong.toml", "nam = 1\n"),
    );
    let checked = |files: &[&str], status| {
        let ran = sim.run(&[&["check"], files].concat()).ended(status);
        let json = sim
            .run(&[&["check", "--json"], files].concat())
            .ended(status);
        let documents = serde_json::Deserializer::from_str(&json.stdout).into_iter::<Value>();
        let documents: Vec<Value> = documents.map(Result::unwrap).collect();
        assert_eq!(documents.len(), files.len(), "{}", json.stdout);
        for (document, file) in documents.iter().zip(files) {
            assert_eq!(document["profile"], **file);
            assert_contains(&ran.stdout, &format!("{file}:\n"));
            let (what, fits) = (&document["error"]["what"], document["fits"] == true);
            assert_eq!(fits, what.is_null(), "{document}");
            if let Some(what) = what.as_str() {
                assert_contains(&ran.stderr, what);
            }
        }
        documents
    };
    checked(&[&good, "balanced"], 0);
    checked(&[&wrong, &good], 2);
    let all = checked(&[&large, &wrong, &good], 5);
    let fits: Vec<&Value> = all.iter().map(|document| &document["fits"]).collect();
    assert_eq!(fits, [false, false, true]);
}

/// The recipe of the manual, on a repository with a directory for each kind of node.
#[test]
fn the_recipe_for_a_repository_of_profiles_finds_what_does_not_fit() {
    let chapter = TOPICS.iter().find(|topic| topic.name == "profile").unwrap();
    let (_, recipe) = chapter.text.split_once("```sh\n").unwrap();
    let (recipe, _) = recipe.split_once("```").unwrap();
    assert!(recipe.lines().count() <= 10, "{recipe}");
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let run = || {
        let programs = Path::new(&built().mig_mps)
            .parent()
            .unwrap()
            .display()
            .to_string();
        let path = format!("{programs}:/usr/bin:/bin");
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", recipe]).current_dir(directory.path());
        Ran::of(shell.env_clear().env("PATH", path))
    };
    file("a100-80gb:4/lab.toml", QUARTERS);
    file("a100-80gb:4/class.toml", SMALL);
    file("h200:8/train.toml", &QUARTERS.replace("1g.20gb", "1g.35gb"));
    let ran = run().ended(0);
    assert_eq!(ran.stdout.matches("It fits: ").count(), 3, "{}", ran.stdout);
    file(
        "h200:8/serve.toml",
        &QUARTERS.replace("count = 4", "count = 9"),
    );
    file("a30:2/last.toml", &QUARTERS.replace("1g.20gb", "1g"));
    let ran = run().ended(2);
    assert_contains(&ran.stderr, "error: h200:8/serve.toml:3:25: ");
    assert_contains(&ran.stdout, "GPUs 0-1  a30-24gb  NVIDIA A30\n");
}
