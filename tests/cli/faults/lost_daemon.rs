//! Daemons that run while their record, or their directory, is lost or damaged.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use testkit::{Ran, SMALL, Sim, assert_contains, in_state, is_alive, needs_root, whole};

/// A node whose device 0.2 has a working client; returns its directory too.
fn serving() -> (Sim, testkit::App, PathBuf) {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let link = sim.node.run_dir().join("by-name/0.2");
    let directory = fs::canonicalize(link).unwrap();
    (sim, client, directory)
}

/// Has every verb spare the clients of a daemon that cannot be asked, unless it is forced.
fn spared(sim: &Sim, words: &[&[&str]]) {
    for words in words {
        let ran = sim.run(words);
        assert_eq!(ran.status, 4, "{words:?}: {ran:?}");
        assert!(ran.stderr.contains("--force"), "{words:?}: {ran:?}");
    }
}

#[test]
fn a_daemon_whose_directory_is_gone_is_no_dead_one() {
    let (sim, client, directory) = serving();
    let record = fs::read_to_string(directory.join("device.json")).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let profile = sim.profile(SMALL);
    let profile = profile.to_str().unwrap();
    spared(
        &sim,
        &[
            &["up", profile, "--yes"],
            &["down", "--yes"],
            &["down", "0.2", "--yes"],
        ],
    );
    // Neither is it where an interrupted change has left a record without a daemon.
    fs::create_dir(&directory).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
    record["daemon"] = json!(null);
    record["finished"] = json!(false);
    fs::write(directory.join("device.json"), record.to_string()).unwrap();
    assert_eq!(in_state(&sim.status(), "orphan"), ["0.2"]);
    spared(
        &sim,
        &[
            &["up", profile, "--yes"],
            &["down", "--yes"],
            &["down", "0.2", "--yes"],
            &["restart", "0.2", "--yes"],
        ],
    );
    client.finish();
    sim.run(&["restart", "0.2", "--force", "--yes"]).ended(0);
    sim.client("0.2").finish();
    assert_eq!(sim.status()["problems"], json!([]));
}

#[test]
fn what_is_said_to_bring_such_a_device_back_does() {
    for words in [
        &["up", "--force"][..],
        &["down", "--force", "--destroy-mig", "--yes"],
    ] {
        let (sim, client, directory) = serving();
        let daemon = sim.device("0.2")["daemon_pid"].clone();
        fs::remove_dir_all(&directory).unwrap();
        if words[0] == "up" {
            let refused = sim.up(SMALL, &["--yes"]).ended(4).stderr;
            let hint =
                "hint: run `mig-mps up --force` with the same profile to start another daemon\n";
            assert_contains(&refused, hint);
            sim.up(SMALL, &["--force", "--yes"]).ended(0);
            sim.client("0.2").finish();
        } else {
            sim.run(words).ended(0);
            assert_eq!(sim.run_dir(), ["lock", "node.json"]);
        }
        assert!(!is_alive(&daemon));
        drop(client);
        sim.up(SMALL, &["--yes"]).ended(0);
        assert_eq!(sim.status()["problems"], json!([]));
    }
}

#[test]
fn a_daemon_that_lost_its_record_alone_is_named_and_taken_over() {
    let (sim, client, directory) = serving();
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    fs::remove_file(directory.join("device.json")).unwrap();
    spared(&sim, &[&["down", "--yes"], &["down", "0.2", "--yes"]]);
    let problems = sim.status()["problems"].to_string();
    assert_contains(&problems, "record-unreadable");
    let missing = format!("it is missing, and the daemon {daemon} lives");
    assert_contains(&problems, &missing);
    let doctor = sim.run(&["doctor", "0.2"]).ended(3).stdout;
    assert_contains(&doctor, &missing);
    sim.up(SMALL, &["--yes"]).ended(0);
    assert_eq!(sim.device("0.2")["daemon_pid"], daemon);
    client.finish();
    fs::remove_file(directory.join("device.json")).unwrap();
    sim.run(&["down", "--force"]).ended(0);
    assert!(!is_alive(&daemon));
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
}

#[test]
fn a_damaged_boot_id_makes_no_daemon_dead() {
    let (sim, client, directory) = serving();
    let path = directory.join("device.json");
    let record = fs::read_to_string(&path).unwrap();
    fs::write(&path, record.replace("\"boot-id\": \"", "\"boot-id\": \"z")).unwrap();
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), ["0.0", "0.2"], "{status:#}");
    assert_eq!(status["clients"].as_array().unwrap().len(), 1);
    let refused = sim.run(&["down", "0.2"]).ended(4);
    assert_contains(&refused.stderr, "1 client");
    client.finish();
    sim.run(&["down", "0.2"]).ended(0);
}

/// In a user namespace that does not map root, everything belongs to user nobody.
#[test]
fn a_daemon_whose_owner_is_not_mapped_is_hidden_and_stays() {
    needs_root!();
    let works = Command::new("unshare").args(["-U", "true"]).status();
    if !works.is_ok_and(|status| status.success()) {
        testkit::skip(
            "a_daemon_whose_owner_is_not_mapped_is_hidden_and_stays",
            "no user namespace can be made",
        );
        return;
    }
    let (sim, client, _) = serving();
    let unmapped = |args: &[&str]| {
        let inner = sim.command(args);
        let mut command = Command::new("unshare");
        command
            .arg("-U")
            .arg(inner.get_program())
            .args(args)
            .env_clear();
        for (name, value) in inner.get_envs() {
            command.envs(value.map(|value| (name, value)));
        }
        Ran::of(&mut command)
    };
    let status = unmapped(&["status", "--json"]).json();
    assert_eq!(in_state(&status, "hidden"), ["0.0", "0.2"], "{status:#}");
    let logs = unmapped(&["logs", "0.2"]);
    assert!(!logs.stderr.contains("has died"), "{logs:?}");
    for words in [
        &["down", "--yes"][..],
        &["down", "0.2", "--yes"],
        &["restart", "0.2", "--yes"],
    ] {
        let ran = unmapped(words);
        assert!([1, 4].contains(&ran.status), "{words:?}: {ran:?}");
        assert!(!ran.stdout.contains("dead"), "{words:?}: {ran:?}");
    }
    assert_eq!(sim.status()["problems"], json!([]));
    client.finish();
}

/// Its daemon may run, so the profile is still applied to that device.
#[test]
fn a_record_that_cannot_be_read_keeps_the_profile() {
    let sim = Sim::served("h200", 2, &format!("name = \"both\"\n{}", whole("")));
    let record = sim.uuid("1") + "/device.json";
    fs::write(sim.node.run_dir().join(record), "{").unwrap();
    sim.run(&["down", "0"]).ended(0);
    let profile = sim.status()["applied_profile"].clone();
    assert_eq!(
        (&profile["name"], &profile["taken_down_at"]),
        (&json!("both"), &json!(null))
    );
    sim.run(&["down", "--force", "--yes"]).ended(0);
    let profile = sim.status()["applied_profile"].clone();
    assert_eq!(profile["name"], "both");
    assert!(profile["taken_down_at"].is_string(), "{profile:#}");
}

#[test]
fn the_logs_of_a_dead_daemon_say_that_it_has_died() {
    let sim = Sim::small();
    let is_dead = |name: &str| {
        let said = sim.run(&["logs", name]).ended(0).stderr;
        said.contains(&format!("the daemon of device {name} has died"))
    };
    assert!(!is_dead("0.0"));
    sim.kill_daemon("0.0");
    assert!(is_dead("0.0") && !is_dead("0.2"));
    sim.run(&["down", "0.0"]).ended(0);
    assert!(!is_dead("0.0"));
}
