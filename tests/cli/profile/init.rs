//! `init`: a first profile by questions and by options.

use std::fs;
use std::path::{Path, PathBuf};

use mig_mps::internals::catalog;
use simnode::node::ControlVersion;
use tempfile::TempDir;

use testkit::{Ran, Sim, assert_contains, needs_root, without_gpu};

/// A new directory, and a file in it that is not there.
fn new_file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("first.toml");
    (directory, path)
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Runs `init -` without a GPU and without a terminal; the words after it are separated by blanks.
fn init(words: &str) -> Ran {
    let words: Vec<&str> = ["init", "-"]
        .into_iter()
        .chain(words.split_whitespace())
        .collect();
    without_gpu(&words, "")
}

/// Of each model and each layout, with and without whole GPUs.
#[test]
fn check_accepts_what_is_written_for_every_model() {
    is_accepted("none", "1");
}

#[test]
fn check_accepts_what_is_written_beside_a_whole_gpu() {
    is_accepted("1", "7");
}

/// Every layout that is offered for so many jobs on three GPUs of each model, of which so many stay whole.
fn is_accepted(whole: &str, jobs: &str) {
    let (_directory, path) = new_file();
    let file = path.to_str().unwrap();
    let mut layouts = 0;
    for model in catalog::models() {
        let gpus = format!("{}:3", model.key);
        for layout in 1.. {
            let layout = layout.to_string();
            let args = [
                "init", file, "--force", "--gpu", &gpus, "--whole", whole, "--jobs", jobs, "--yes",
                "--layout", &layout,
            ];
            let ran = without_gpu(&args, "");
            if ran.status == 2 && layout != "1" {
                assert_contains(&ran.stderr, "there is no layout");
                break;
            }
            let ran = ran.ended(0);
            let written = fs::read_to_string(file).unwrap();
            for args in [&["check", file][..], &["check", file, "--gpu", &gpus]] {
                let checked = without_gpu(args, "");
                assert_eq!(checked.status, 0, "{written}{}", checked.stderr);
                // The map in the comment is the one that the planner makes.
                let map = written.lines().find(|line| line.starts_with("#   |"));
                let map = map.unwrap().trim_start_matches("#   ");
                assert!(checked.stdout.contains(map), "{written}{}", checked.stdout);
                assert_contains(&ran.stderr, map);
            }
            layouts += 1;
        }
    }
    assert!(layouts > catalog::models().len(), "{layouts}");
}

#[test]
fn what_is_written_for_a_node_is_applied_there() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 2);
    let (_directory, path) = new_file();
    let file = path.to_str().unwrap();
    let args = [
        "--whole", "1", "--jobs", "4", "--memory", "9.5G", "--serve", "no",
    ];
    let ran = sim
        .run(&[&["init", file, "--layout", "4"], &args[..]].concat())
        .ended(0);
    assert_eq!(ran.stdout, "");
    // Root needs no sudo.
    let said = ran.stderr.replace(file, "first.toml");
    let said = if rustix::process::geteuid().is_root() {
        assert!(!said.contains("sudo"), "{said}");
        said.replace("  mig-mps up", "  sudo mig-mps up")
    } else {
        said
    };
    insta::assert_snapshot!(said, @"
    GPUs 0-1  NVIDIA A100-SXM4-80GB  80.0 GiB  up to 7 devices each

    GPU 0  NVIDIA A100-SXM4-80GB
      1  as even as possible (recommended): 4 devices
         |2g.20gb    |2g.20gb    |2g.20gb    |1g.20gb    |
         3 × 2g.20gb (19.5 GiB, 28 SMs) + 1 × 1g.20gb (19.5 GiB, 14 SMs)
      2  all of one size: 4 devices
         |1g.20gb    |1g.20gb    |1g.20gb    |1g.20gb    |
         4 × 1g.20gb (19.5 GiB, 14 SMs); uses 56 of 98 SMs
      3  one as large as possible: 4 devices
         |4g.40gb                |1g   |1g   |1g   |.....|
         1 × 4g.40gb (39.2 GiB, 56 SMs) + 3 × 1g.10gb (9.5 GiB, 14 SMs); uses 7 of
         8 memory slices
      4  many sizes: 4 devices
         |1g   |1g   |2g.20gb    |3g.40gb                |
         1 × 3g.40gb (39.2 GiB, 42 SMs) + 1 × 2g.20gb (19.5 GiB, 28 SMs) +
         2 × 1g.10gb (9.5 GiB, 14 SMs)
      5  as many as possible: 7 devices
         |1g   |1g   |1g   |1g   |1g   |1g   |1g   |.....|
         7 × 1g.10gb (9.5 GiB, 14 SMs)

    Wrote first.toml: 5 devices on 2 GPUs. Next:
      mig-mps check first.toml
      mig-mps plan first.toml
      sudo mig-mps up first.toml
    ");
    sim.run(&["plan", file]).ended(0);
    sim.run(&["up", file, "--yes"]).ended(0);
    let again = sim.run(&["up", file]).ended(0);
    assert!(
        again.stderr.starts_with("Nothing to do"),
        "{}",
        again.stderr
    );
    let list = sim.list();
    let first = list["gpus"][0]["devices"].as_array().unwrap().iter();
    let sizes: Vec<_> = first.map(|device| device["profile"].clone()).collect();
    assert_eq!(sizes, ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]);
    // What runs there is no obstacle to writing another.
    sim.run(&["init", file, "--force", "--yes"]).ended(0);
    sim.run(&["plan", file]).ended(0);
}

#[test]
fn nonsense_is_refused() {
    let end = |words: &str| {
        let ran = init(words);
        assert_eq!((ran.status, ran.stdout.as_str()), (2, ""), "{words}");
        let error = ran.stderr.split_once("error: ").unwrap().1;
        format!("{words}: {}", error.lines().next().unwrap())
    };
    let all = [
        "--gpu a100-80gb --yes --whole x",
        "--gpu a100-80gb --yes --whole 1",
        "--gpu a100-80gb --yes --whole 0-4000000000",
        "--gpu a100-80gb --yes --jobs 0",
        "--gpu a100-80gb --yes --jobs -1",
        "--gpu a100-80gb --yes --jobs 99999999999",
        "--gpu a100-80gb --yes --memory 10",
        "--gpu a100-80gb --yes --memory lots",
        "--gpu a100-80gb --yes --serve root",
        "--gpu a100-80gb --yes --layout 0",
        "--gpu a100-80gb --yes --layout 99",
        "--gpu a100-80gb --yes --layout 1,1",
        "--gpu a100-80gb --yes --whole all --jobs 3",
        "--gpu a100-80gb --yes --whole all --layout 1",
        "--gpu a100-80gb:0 --yes",
        "--gpu nosuch --yes",
    ];
    insta::assert_snapshot!(all.map(end).join("\n"), @r#"
    --gpu a100-80gb --yes --whole x: invalid value 'x' for '--whole <GPUS>': "x" does not name GPUs: write indices such as 0 or 0-1,7, none or all
    --gpu a100-80gb --yes --whole 1: there is no GPU 1
    --gpu a100-80gb --yes --whole 0-4000000000: invalid value '0-4000000000' for '--whole <GPUS>': "0-4000000000" does not name GPUs: write indices such as 0 or 0-1,7, none or all
    --gpu a100-80gb --yes --jobs 0: invalid value '0' for '--jobs <N>': expected a number, 1 or more
    --gpu a100-80gb --yes --jobs -1: unexpected argument '-1' found
    --gpu a100-80gb --yes --jobs 99999999999: invalid value '99999999999' for '--jobs <N>': expected a number, 1 or more
    --gpu a100-80gb --yes --memory 10: invalid value '10' for '--min-memory <SIZE>': "10" has no unit: 10G or 10M?
    --gpu a100-80gb --yes --memory lots: invalid value 'lots' for '--min-memory <SIZE>': expected a memory size such as 10G or 512M, or any
    --gpu a100-80gb --yes --serve root: invalid value 'root' for '--serve <WHO>': expected no, yes, or one of one-at-a-time, all, group:NAME, user:NAME, self
    --gpu a100-80gb --yes --layout 0: invalid value '0' for '--layout <N>': expected a number, 1 or more
    --gpu a100-80gb --yes --layout 99: there is no layout 99: choose 1 to 5
    --gpu a100-80gb --yes --layout 1,1: --layout needs a number for each product: 1, not 2
    --gpu a100-80gb --yes --whole all --jobs 3: --jobs is for GPUs that are partitioned, and there are none
    --gpu a100-80gb --yes --whole all --layout 1: --layout is for GPUs that are partitioned, and there are none
    --gpu a100-80gb:0 --yes: invalid value 'a100-80gb:0' for '--gpu <MODEL[:COUNT]>': "0" is not a number from 1 to 1024
    --gpu nosuch --yes: invalid value 'nosuch' for '--gpu <MODEL[:COUNT]>': no model with MIG has the name "nosuch"; `mig-mps check --models` lists all models
    "#);
    // Many jobs are no reason to calculate for long.
    init("--gpu a100-80gb:1024 --yes --jobs 4000000000").ended(5);
    init("--gpu a100-80gb:1024 --gpu a30:1024 --yes --jobs 7000").ended(0);
}

#[test]
fn a_file_is_replaced_only_by_consent() {
    let (directory, path) = new_file();
    let file = path.to_str().unwrap();
    let args = ["init", file, "--gpu", "a30", "--yes"];
    fs::write(&path, "mine").unwrap();
    let ran = without_gpu(&args, "").ended(2);
    assert_contains(&ran.stderr, "first.toml exists");
    assert_contains(&ran.stderr, "--force");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    without_gpu(&[&args[..], &["--force"]].concat(), "").ended(0);
    assert!(fs::read_to_string(&path).unwrap().contains("NVIDIA A30"));
    // A link to nowhere is there, too.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let dangling = ["init", link.to_str().unwrap(), "--gpu", "a30", "--yes"];
    without_gpu(&dangling, "").ended(2);
    assert_eq!(entries(directory.path()).len(), 2);
    for (place, why) in [
        (".", "is a directory"),
        ("/nosuch/x.toml", "no directory /nosuch"),
    ] {
        let ran = without_gpu(&["init", place, "--gpu", "a30", "--yes"], "").ended(2);
        assert_contains(&ran.stderr, why);
    }
}

#[test]
fn a_plain_user_can_write_one_where_that_user_may_write() {
    needs_root!();
    let sim = Sim::with("a30", 1);
    let (_directory, path) = new_file();
    let refused = Ran::of(&mut sim.by_nobody(&["init", path.to_str().unwrap(), "--yes"])).ended(1);
    assert!(
        refused.stderr.starts_with("error: cannot write"),
        "{}",
        refused.stderr
    );
    let ran = Ran::of(&mut sim.by_nobody(&["init", "-", "--yes"])).ended(0);
    assert_contains(&ran.stdout, "serve = \"one-at-a-time\"");
}

#[test]
fn users_are_checked_on_the_node_alone() {
    let sim = Sim::with("a30", 1);
    let ran = sim
        .run(&["init", "-", "--yes", "--serve", "group:nosuchgroup"])
        .ended(2);
    assert_contains(
        &ran.stderr,
        "error: there is no group \"nosuchgroup\" on this machine",
    );
    init("--gpu a30 --yes --serve group:nosuchgroup").ended(0);
    let update = |version| sim.node.node().update(|state| state.install(version));
    update(ControlVersion::R550).unwrap();
    let ran = sim.run(&["init", "-", "--yes", "--serve", "yes"]).ended(2);
    assert_contains(&ran.stderr, "no server for several users at once");
    sim.run(&["init", "-", "--yes", "--serve", "no"]).ended(0);
}

/// The questions, each with an answer that is refused and one that is not.
const ANSWERS: [(&str, &str, &str, &str); 5] = [
    ("or all [none]:", "5", "there is no GPU 5", "none"),
    ("of jobs [4]:", "100", "100 jobs do not fit", "3"),
    (
        "or any [any]:",
        "79G",
        "3 jobs with 79 GiB each do not fit",
        "15G",
    ),
    ("user:NAME [no]:", "perhaps", "expected no, yes", "yes"),
    ("layout [1]:", "77", "there is no layout 77", "2"),
];

#[test]
fn in_a_terminal_each_question_is_asked_until_it_is_answered() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let (directory, path) = new_file();
    let mut asked = sim.dialogue(&format!("init {}", path.display()));
    for (question, wrong, why, right) in ANSWERS {
        asked.await_text(question);
        asked.press(&format!("{wrong}\r"));
        asked.await_text(why);
        asked.await_text(question);
        asked.press(&format!("{right}\r"));
    }
    let ran = asked.end().ended(0);
    assert_contains(&ran.stdout, "Wrote ");
    // A path may be long.
    let mut lines = ran
        .stdout
        .lines()
        .filter(|line| !line.contains("first.toml"));
    assert!(
        lines.all(|line| line.chars().count() <= 80),
        "{}",
        ran.stdout
    );
    let written = fs::read_to_string(&path).unwrap();
    assert_contains(&written, "serve = \"all\"");
    assert_eq!(entries(directory.path()), [path.as_path()]);
    sim.run(&["up", path.to_str().unwrap(), "--yes"]).ended(0);
}

#[test]
fn enter_takes_every_default() {
    let sim = Sim::with("a100-80gb", 1);
    let (_directory, path) = new_file();
    let mut asked = sim.dialogue(&format!("init {}", path.display()));
    for (question, ..) in ANSWERS {
        asked.await_text(question);
        asked.press("\r");
    }
    asked.end().ended(0);
    let unasked = sim.run(&["init", "-", "--yes"]).ended(0);
    assert_eq!(fs::read_to_string(&path).unwrap(), unasked.stdout);
}

/// At each question, with Ctrl-C and with Ctrl-D.
#[test]
fn an_interrupted_round_leaves_no_file() {
    let sim = Sim::with("a100-80gb", 1);
    let (directory, path) = new_file();
    for (key, end) in [
        ("\u{3}", "Interrupted. Nothing was changed."),
        ("\u{4}", "Nothing was written."),
    ] {
        for last in 0..ANSWERS.len() {
            let mut asked = sim.dialogue(&format!("init {}", path.display()));
            for (nth, (question, ..)) in ANSWERS.iter().enumerate().take(last + 1) {
                asked.await_text(question);
                asked.press(if nth == last { key } else { "\r" });
            }
            // Before the end of what is typed, which is a key as well.
            asked.await_text(end);
            let ran = asked.end().ended(130);
            assert!(ran.stdout.ends_with('\n'), "{}", ran.stdout);
            assert_eq!(entries(directory.path()), [""; 0].map(PathBuf::from));
        }
    }
}

#[test]
fn a_file_that_exists_is_asked_about_first() {
    let sim = Sim::with("a30", 1);
    let (_directory, path) = new_file();
    fs::write(&path, "mine").unwrap();
    for (answer, status) in [("n\r", 4), ("maybe\r", 4), ("\u{4}", 130)] {
        let mut asked = sim.dialogue(&format!("init {} --whole all", path.display()));
        asked.await_text("exists. Replace it? [y/N]");
        asked.press(answer);
        let ran = asked.end().ended(status);
        assert_contains(&ran.stdout, "Nothing was written.");
        assert!(!ran.stdout.contains("May several"), "{}", ran.stdout);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
    let mut asked = sim.dialogue(&format!("init {} --whole all", path.display()));
    asked.await_text("Replace it?");
    asked.press("y\r");
    asked.await_text("[no]:");
    asked.press("user:root\r");
    asked.end().ended(0);
    let written = fs::read_to_string(&path).unwrap();
    assert_contains(&written, "serve = \"user:root\"");
}
