//! The node remembers which profiles were applied: across reboots, and when their files are gone.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use insta::assert_snapshot;
use regex::Regex;
use serde_json::{Value, json};

use testkit::{
    NOBODY, ONE_EACH, Ran, SMALL, Sim, assert_contains, in_state, needs_root, plain, user, whole,
};

/// Where root's history is, on the machine that the node seems to be.
const FILE: &str = "var/lib/mig-mps/profiles.json";

/// Applies two profiles, each from a file of its own, the first of which is gone then.
fn twice() -> Sim {
    let sim = Sim::with("a100-80gb", 1);
    for (name, text) in [("small", SMALL), ("large", ONE_EACH)] {
        let path = file(&sim, &format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        sim.run(&["up", path.to_str().unwrap(), "--yes"]).ended(0);
        fs::remove_file(&path).unwrap();
    }
    sim
}

fn file(sim: &Sim, name: &str) -> PathBuf {
    sim.node.dir().join(name)
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().to_owned()
}

/// The history of the user who runs the tests.
fn history(sim: &Sim) -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return sim.machine(FILE);
    }
    let own = sim.node.dir().parent().unwrap();
    own.join(".local/state/mig-mps")
        .join(host_name())
        .join("profiles.json")
}

/// A reboot stops the service, and starts it again.
#[test]
fn the_end_of_the_service_is_no_end_of_the_profile() {
    let sim = Sim::small();
    let mut stop = sim.command(&["down"]);
    Ran::of(stop.env("SERVICE_RESULT", "success")).ended(0);
    assert_eq!(
        sim.status()["applied_profile"]["taken_down_at"],
        Value::Null
    );
    assert!(line(&sim).ends_with("; the node differs: `mig-mps plan`"));
}

/// A share of a whole GPU depends on its memory.
#[test]
fn a_whole_gpu_with_a_share_is_as_its_profile_says() {
    let sim = Sim::whole("share = 20");
    assert_eq!(sim.status()["applied_profile"]["differs"], false);
}

/// The first line of `status`.
fn line(sim: &Sim) -> String {
    let shown = sim.run(&["status"]).ended(0).stdout;
    plain(shown.lines().next().unwrap())
}

/// The numbers and paths that the history lists.
fn listed(sim: &Sim) -> Vec<String> {
    let shown = sim.run(&["profiles", "--history"]).ended(0).stdout;
    let rows = shown.lines().skip(1);
    rows.map(|row| {
        let mut words = row.split_whitespace();
        let number = words.next().unwrap();
        let path = words.next_back().unwrap();
        format!("{number} {}", path.rsplit('/').next().unwrap())
    })
    .collect()
}

#[test]
fn the_profile_that_was_applied_outlasts_its_file_and_a_reboot() {
    let sim = twice();
    assert_eq!(line(&sim), "profile large.toml, applied N ago by USER");
    let status = sim.status();
    let profile = &status["applied_profile"];
    assert_eq!(profile["applied_by"], user());
    assert_eq!(profile["differs"], false);
    assert_eq!(profile["path"], file(&sim, "large.toml").to_str().unwrap());
    sim.node.reboot();
    assert_eq!(
        line(&sim),
        "profile large.toml, applied N ago by USER; nothing was applied since the boot: `mig-mps up`"
    );
    let ran = sim.run(&["plan", "--exit-code"]).ended(3);
    let path = file(&sim, "large.toml");
    let said = format!(
        "note: using profile 2, {}, applied N ago by USER\n",
        path.display()
    );
    assert!(plain(&ran.stderr).starts_with(&said), "{}", ran.stderr);
    let ran = sim.run(&["up", "--yes"]).ended(0);
    assert!(plain(&ran.stderr).starts_with(&said), "{}", ran.stderr);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    assert_eq!(
        sim.run(&["profiles", "--applied"]).ended(0).stdout,
        ONE_EACH
    );
    assert_eq!(listed(&sim), ["2 large.toml", "1 small.toml"]);
}

#[test]
fn the_profile_before_can_be_applied_again() {
    let sim = twice();
    let ran = sim.run(&["up", "--previous", "--yes"]).ended(0);
    let path = file(&sim, "small.toml");
    let said = format!("note: using profile 1, {}, applied ", path.display());
    assert_contains(&ran.stderr, &said);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    assert_eq!(
        listed(&sim),
        ["3 small.toml", "2 large.toml", "1 small.toml"]
    );
    // And back.
    sim.run(&["up", "--previous", "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    let ran = sim.run(&["up", "--previous", "balanced"]).ended(2);
    assert_contains(&ran.stderr, "cannot be used with");
}

#[test]
fn profiles_that_were_applied_are_listed_and_printed() {
    let sim = twice();
    let shown = sim.run(&["profiles", "--history"]).ended(0).stdout;
    let time = Regex::new(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d").unwrap();
    let at = |text: &str| {
        let text = time.replace_all(text, "TIME").into_owned();
        let text = text.replace(&format!("{}/", sim.node.dir().display()), "");
        text.replace(&user(), "USER")
    };
    let words = Regex::new(" {2,}").unwrap();
    assert_snapshot!(words.replace_all(&at(&shown), "  "), @"
    NUMBER  APPLIED  BY  DEVICES  NAME  PATH
      2  TIME  USER  1  -  large.toml
      1  TIME  USER  2  -  small.toml
    ");
    assert_eq!(
        sim.run(&["profiles", "--history", "1"]).ended(0).stdout,
        SMALL
    );
    sim.run(&["profiles", "--applied", "--history"]).ended(2);
}

/// A change that was only shown, refused, or undone has applied nothing; and who applies the same again changes nothing.
#[test]
fn only_what_was_applied_is_recorded() {
    let sim = Sim::small();
    let before = fs::read(history(&sim)).unwrap();
    sim.up_does_nothing(SMALL);
    sim.up(ONE_EACH, &["--dry-run"]).ended(0);
    sim.up(
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\", count = 2 } ]\n",
        &[],
    )
    .ended(5);
    sim.node
        .fault("nvmlDeviceCreateGpuInstanceWithPlacement")
        .fails(999)
        .unwrap();
    sim.up(ONE_EACH, &["--yes"]).ended(1);
    assert_eq!(fs::read(history(&sim)).unwrap(), before);
    assert_eq!(sim.status()["applied_profile"]["differs"], false);
}

/// Another file that asks for the same is applied, too, though there is nothing to do.
#[test]
fn another_text_for_the_same_node_is_recorded() {
    let sim = Sim::small();
    let renamed = format!("name = \"lab\"\n{SMALL}");
    sim.up_does_nothing(&renamed);
    assert_eq!(line(&sim), "profile lab, applied N ago by USER");
    // What is done again is one entry, with the time of the last.
    sim.kill_daemon("0.2");
    sim.up(&renamed, &[]).ended(0);
    assert_eq!(listed(&sim), ["2 profile.toml", "1 profile.toml"]);
}

#[test]
fn what_set_and_a_dead_daemon_change_is_a_difference() {
    let sim = Sim::small();
    sim.run(&["set", "0.2", "active-thread-percentage=50"])
        .ended(0);
    assert_eq!(sim.status()["applied_profile"]["differs"], true);
    sim.up(SMALL, &[]).ended(0);
    assert_eq!(sim.status()["applied_profile"]["differs"], false);
    sim.kill_daemon("0.0");
    assert_eq!(sim.status()["applied_profile"]["differs"], true);
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.status()["applied_profile"]["differs"], false);
    sim.run(&["down", "0.2"]).ended(0);
    assert_eq!(sim.status()["applied_profile"]["differs"], true);
}

/// `status` reads fewer facts than `plan`, and both find no difference after `up`.
#[test]
fn status_and_plan_agree_on_what_was_just_applied() {
    for (model, profile) in [
        ("a30", "balanced-on-a30"),
        ("h100-80gb-sxm", "balanced"),
        ("h200", "whole-gpu"),
        ("h100-80gb-sxm", "shared"),
        ("a100-80gb", "empty"),
    ] {
        let sim = Sim::with(model, 2);
        let ran = match profile {
            "balanced-on-a30" => sim.up(ONE_OF_TWO, &["--yes"]),
            "shared" => sim.up(SHARED, &["--yes"]),
            "empty" => sim.up(
                "[[gpu]]\nselect = { all = true }\ndevices = []\n",
                &["--yes"],
            ),
            name => sim.run(&["up", name, "--yes"]),
        };
        let _ = ran.ended(0);
        sim.run(&["plan", "--exit-code"]).ended(0);
        let judged = if profile == "empty" {
            json!(null)
        } else {
            json!(false)
        };
        assert_eq!(
            sim.status()["applied_profile"]["differs"],
            judged,
            "{model} {profile}"
        );
    }
}

const ONE_OF_TWO: &str = "[[gpu]]\nselect = { index = [1] }\ndevices = [ { profile = \"1g\", count = 2, mps = false }, { profile = \"2g\", at = 2 } ]\n";

const SHARED: &str = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"4g\", compute = [\"1c\", \"2c\"] }, { profile = \"1g\", count = 2 } ]\n";

#[test]
fn what_was_taken_down_is_said() {
    let sim = Sim::small();
    sim.run(&["down", "0.0"]).ended(0);
    assert_eq!(
        sim.status()["applied_profile"]["taken_down_at"],
        Value::Null
    );
    sim.run(&["down"]).ended(0);
    let line = Regex::new(r"down \w+ ago by \S+")
        .unwrap()
        .replace(&line(&sim), "down N ago by USER")
        .into_owned();
    assert_eq!(
        line,
        "profile profile.toml, applied N ago by USER, taken down N ago by USER"
    );
    // The last profile is the one to come back to.
    sim.run(&["up", "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    assert_eq!(listed(&sim), ["1 profile.toml"]);
}

/// Where they were taken away on purpose, no MIG device is missed; after a reboot they are, and `up` needs no profile.
#[test]
fn mig_devices_are_missed_unless_they_were_taken_down() {
    let sim = Sim::small();
    sim.node.reboot();
    assert_eq!(
        sim.status()["remarks"][0]["what"],
        "GPU 0: MIG is on and there is no MIG device; run `mig-mps up` to create MIG devices"
    );
    sim.run(&["up", "--yes"]).ended(0);
    assert_eq!(line(&sim), "profile profile.toml, applied N ago by USER");
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    let status = sim.status();
    assert_eq!(status["remarks"], json!([]), "{status:#}");
    sim.run(&["up", "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn without_a_profile_status_says_so_and_up_needs_one() {
    let sim = Sim::with("h200", 1);
    assert_eq!(line(&sim), "no profile is recorded");
    assert_eq!(sim.status()["applied_profile"], Value::Null);
    let ran = sim.run(&["up"]).ended(2);
    assert_contains(&ran.stderr, "no profile is selected");
    // A table for a program has its columns alone.
    let table = sim.run(&["status", "--columns", "name"]).ended(0).stdout;
    assert!(table.starts_with("NAME\n"), "{table}");
}

/// The profile of the boot is the node's, whatever was tried since.
#[test]
fn the_profile_of_the_boot_comes_first() {
    needs_root!();
    let sim = Sim::small();
    sim.prepare("etc/mig-mps/profile.toml", ONE_EACH);
    let ran = sim.run(&["plan", "--exit-code"]).ended(3);
    assert!(
        ran.stderr.starts_with("note: using profile "),
        "{}",
        ran.stderr
    );
    assert_contains(&ran.stderr, "/etc/mig-mps/profile.toml\n");
    sim.run(&["set", "0.2", "active-thread-percentage=50"])
        .ended(0);
    let differs = "; the node differs: `mig-mps profiles --applied | mig-mps plan -`";
    assert!(line(&sim).ends_with(differs), "{}", line(&sim));
    sim.run(&["up", "--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    assert!(
        line(&sim).ends_with("profile.toml, applied N ago by USER"),
        "{}",
        line(&sim)
    );
}

/// A change that has succeeded does not fail where the profile cannot be kept, and nobody's file is trusted.
#[test]
fn a_profile_that_cannot_be_recorded_fails_nothing() {
    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(SMALL);
    let elsewhere = |args: &[&str], directory: &str| {
        Ran::of(sim.command(args).env("MIG_MPS_STATE_DIR", directory))
    };
    let up = ["up", path.to_str().unwrap()];
    // Nothing can be made there.
    let ran = elsewhere(&up, "/proc/state").ended(0);
    let said = "the profile was applied but could not be recorded, so status and up --previous do not know it: /proc/state: ";
    assert_contains(&ran.stderr, said);
    let open = file(&sim, "open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let open = open.to_str().unwrap();
    let ran = elsewhere(&up, open).ended(0);
    assert_contains(&ran.stderr, "others can write to it");
    let shown = elsewhere(&["status"], open).ended(0).stdout;
    assert_contains(&shown, "the applied profile is unknown: ");
    let remedy = format!(
        "others can write to it; examine the files in {open}, then run `chmod go-w {open}`"
    );
    assert_contains(&shown, &remedy);
    elsewhere(&["down"], open).ended(0);
}

/// A profile is judged anew: what it names may be gone since.
#[test]
fn an_applied_profile_is_checked_again() {
    needs_root!();
    let sim = Sim::served("h200", 1, &whole("serve = \"user:nobody\""));
    let path = sim.machine(FILE);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("user:nobody", "user:ghost")).unwrap();
    let ran = sim.run(&["up"]).ended(2);
    assert_contains(&ran.stderr, "there is no user \"ghost\" on this machine");
    // Nor can it write to the terminal.
    let steered = text.replace("profile.toml\"", "\\u001b[2Jprofile.toml\"");
    let steered = steered.replace("\"by\": \"", "\"by\": \"\\u001b[2J");
    assert_eq!(steered.matches("u001b").count(), 2, "{steered}");
    fs::write(&path, steered).unwrap();
    let is_safe = || {
        for args in [
            &["status"][..],
            &["profiles", "--history"],
            &["status", "--json"],
            &["plan"],
        ] {
            let said = sim.run(args).ended(0).stdout + &sim.run(args).stderr;
            assert!(!said.contains('\u{1b}'), "{args:?}: {said:?}");
        }
    };
    is_safe();
    sim.run(&["down", "--yes"]).ended(0);
    let text = fs::read_to_string(&path).unwrap();
    let steered = text.replace("\"by\": \"", "\"by\": \"\\u001b[2J");
    assert!(steered.contains("taken-down"), "{steered}");
    fs::write(&path, steered).unwrap();
    is_safe();
}

/// Who could write it could have another profile applied.
#[test]
fn a_history_that_another_user_can_change_is_not_applied() {
    needs_root!();
    let sim = twice();
    let path = history(&sim);
    let before = fs::read(&path).unwrap();
    let refused = |why: &str| {
        let why = format!("profiles.json: {why}");
        for args in [
            &["up", "--previous", "--yes"][..],
            &["up", "--yes"],
            &["profiles", "--applied"],
        ] {
            let ran = sim.run(args).ended(1);
            assert_contains(&ran.stderr, &why);
            let file = path.display();
            let hint = format!(
                "hint: examine {file} and remove it, then select the profile: `mig-mps up PROFILE`\n"
            );
            assert_contains(&ran.stderr, &hint);
            assert_eq!(ran.stderr.matches("hint:").count(), 1, "{}", ran.stderr);
        }
        assert_contains(&sim.run(&["status"]).ended(0).stdout, &why);
        assert_eq!(fs::read(&path).unwrap(), before);
        assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    };
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    refused("others can write to it");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    chown(&path, Some(NOBODY), None).unwrap();
    refused("it belongs to user nobody");
    // What is applied next is recorded all the same.
    sim.up(SMALL, &["--yes"]).ended(0);
    assert_eq!(listed(&sim), ["1 profile.toml"]);
    assert_eq!(
        fs::read(path.with_extension("json.unreadable")).unwrap(),
        before
    );
}

/// A plain user sees root's profile, and has a history for daemons of the user's own.
#[test]
fn a_plain_user_has_a_history_beside_roots() {
    needs_root!();
    let sim = Sim::with("h200", 2);
    let of_one = |index: u32| {
        format!("name = \"of-{index}\"\n[[gpu]]\nselect = {{ index = [{index}] }}\nmig = false\n")
    };
    sim.up(&of_one(0), &[]).ended(0);
    let status = |json: &str| Ran::of(&mut sim.by_other(&["status", json])).json();
    let profile = status("--json")["applied_profile"].clone();
    assert_eq!(
        (&profile["name"], &profile["differs"]),
        (&json!("of-0"), &json!(null))
    );
    let path = file(&sim, "hers.toml");
    fs::write(&path, of_one(1)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut up = sim.by_nobody(&["up", path.to_str().unwrap(), "--yes"]);
    let _ = Ran::of(&mut up).ended(0);
    let profile =
        Ran::of(&mut sim.by_nobody(&["status", "--json"])).json()["applied_profile"].clone();
    assert_eq!(
        (&profile["name"], &profile["applied_by"]),
        (&json!("of-1"), &json!("nobody"))
    );
    assert_eq!(sim.status()["applied_profile"]["name"], "of-0");
    // Another machine with the same `$HOME` has a history of its own.
    let state = sim.node.run_dir().with_file_name("nobody/state/mig-mps");
    assert!(state.join(host_name()).join("profiles.json").exists());
}

/// The document of a change has the profile that the change has applied.
#[test]
fn a_document_of_a_change_has_the_profile() {
    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(SMALL);
    let up = sim
        .run(&["up", path.to_str().unwrap(), "--yes", "--json"])
        .json();
    let profile = &up["status"]["applied_profile"];
    assert_eq!(profile["path"], path.to_str().unwrap());
    assert_eq!(profile["differs"], false);
    assert_eq!(*profile, sim.status()["applied_profile"]);
    let down = sim.run(&["down", "--json"]).json();
    let taken_down = &down["status"]["applied_profile"]["taken_down_at"];
    assert!(taken_down.is_string(), "{down:#}");
}
