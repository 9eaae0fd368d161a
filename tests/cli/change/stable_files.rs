//! The files that earlier versions have left: `fixtures/state/VERSION` has those of a node with a device of each kind. A later
//! version reads them and goes on from there.
//!
//! `FREEZE=1 cargo test --test suite -- stable` writes the directory of the present version.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use testkit::{App, SMALL, Sim, WHOLE, assert_contains, in_state, needs_root, repository};

use super::after_change;
use crate::cli::selftest::geometry;

const PROFILE: &str = r#"name = "fixture"

[[gpu]]
select = { index = [0] }
devices = [
  { name = "left", profile = "3g" },
  { name = "right-{n}", profile = "2g", compute = ["1c", "1c"], mps = { threads = 50, memory = "2G" } },
]

[[gpu]]
select = { index = [1] }
mig = false
mps = { serve = "all", compute-mode = "exclusive-process", max-clients = 4 }

[[gpu]]
select = { index = [2, 3] }
mig = false
name = "pair"
joint = true
"#;

/// What differs from node to node, and from run to run.
const VOLATILE: [&str; 21] = [
    "at",
    "before",
    "boot-id",
    "change",
    "command",
    "device",
    "devices",
    "directory",
    "gpu",
    "id",
    "joint",
    "machine",
    "path",
    "pid",
    "pid-namespace",
    "shown",
    "since",
    "start-time",
    "switched-on",
    "until",
    "uuid",
];

/// A node with every kind of device, in every kind of state that is recorded, and a client of device 1, which is closing.
fn node() -> (Sim, App) {
    let sim = Sim::with("a100-80gb", 4);
    sim.up(&format!("name = \"whole\"\n{WHOLE}"), &[]).ended(0);
    sim.up(PROFILE, &["--yes"]).ended(0);
    let set = ["set", "left", "active-thread-percentage=70", "--yes"];
    sim.run(&set).ended(0);
    sim.run(&["down", "right-1"]).ended(0);
    let client = sim.client("1");
    let job = client.pid().to_string();
    let node = sim.node.node();
    node.show_in_cgroup(client.pid(), "/pbs_jobs.service/jobid/101")
        .unwrap();
    let begin = ["job", "begin", "--id", "101", "--user", "root"];
    let of_client = ["--devices", "1", "--pid", &job];
    sim.run(&[&begin[..], &of_client].concat()).ended(0);
    let restart = ["restart", "1", "--drain", "1", "--no-new", "--yes"];
    sim.run(&restart).ended(4);
    (sim, client)
}

/// Files of a node by their names in a fixture.
pub(crate) type Files = BTreeMap<String, PathBuf>;

/// The files that describe the devices of a node.
fn files(sim: &Sim) -> Files {
    let run_dir = sim.node.run_dir();
    let by_name = |device: &str| run_dir.join("by-name").join(device).join("device.json");
    let devices = ["1", "left", "right-0", "pair"];
    let devices = devices.map(|device| (format!("device-{device}"), by_name(device)));
    let others = [
        ("node", run_dir.join("node.json")),
        ("job", run_dir.join("jobs/101")),
        ("profiles", sim.machine("var/lib/mig-mps/profiles.json")),
    ];
    let others = others.map(|(name, path)| (name.to_owned(), path));
    devices.into_iter().chain(others).collect()
}

fn read(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// The kinds of a value and of everything in it, by key.
fn kinds(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), kinds(value)))
            .collect(),
        Value::Array(items) => items.iter().map(kinds).collect(),
        Value::String(_) => "string".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "boolean".into(),
        Value::Null => Value::Null,
    }
}

/// A file of an earlier version with this node's own values. What it has, the present version writes as well.
#[track_caller]
fn fill(earlier: &mut Value, present: &Value, path: &str) {
    match (earlier, present) {
        (Value::Object(earlier), Value::Object(present)) => {
            for (key, value) in earlier {
                let path = format!("{path}.{key}");
                let now = present.get(key).unwrap_or_else(|| panic!("{path} is gone"));
                if VOLATILE.contains(&key.as_str()) {
                    assert_eq!(kinds(value), kinds(now), "{path}");
                    *value = now.clone();
                } else {
                    fill(value, now, &path);
                }
            }
        }
        (Value::Array(earlier), Value::Array(present)) => {
            assert_eq!(earlier.len(), present.len(), "{path}");
            for (index, (value, now)) in earlier.iter_mut().zip(present).enumerate() {
                fill(value, now, &format!("{path}[{index}]"));
            }
        }
        (earlier, present) => assert_eq!(earlier, present, "{path}"),
    }
}

fn this_version() -> &'static str {
    env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0
}

fn versions() -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join("fixtures/state")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| !path.ends_with("unversioned"))
        .collect()
}

/// Removes the names of this machine.
fn anonymize(content: &mut Value) {
    match content {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("name", Value::String(name)) if *name == this_machine() => {
                        "node".clone_into(name);
                    }
                    ("path", Value::String(path)) => "profile.toml".clone_into(path),
                    ("directory", Value::String(path)) => {
                        "/run/mig-mps-selftest".clone_into(path);
                    }
                    ("command", Value::String(command)) => {
                        let words = command.split_once(' ').unwrap().1;
                        *command = format!("mig-mps {words}");
                    }
                    (_, value) => anonymize(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(anonymize),
        _ => {}
    }
}

fn this_machine() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().to_owned()
}

fn freeze(files: &Files) {
    let directory = repository().join("fixtures/state").join(this_version());
    fs::create_dir_all(&directory).unwrap();
    for (name, path) in files {
        let mut content = read(path);
        anonymize(&mut content);
        let text = serde_json::to_string_pretty(&content).unwrap() + "\n";
        fs::write(directory.join(format!("{name}.json")), text).unwrap();
    }
}

/// Makes nodes, puts the files of each earlier version in the place of theirs, and lets the present version go on from there.
pub(crate) fn go_on_from_earlier_files<T>(
    node: impl Fn() -> (Sim, T),
    files: impl Fn(&Sim) -> Files,
    go_on: impl Fn(&Sim, T),
) {
    if std::env::var_os("FREEZE").is_some() {
        freeze(&files(&node().0));
    }
    let versions = versions();
    assert!(!versions.is_empty());
    for version in versions {
        let (sim, rest) = node();
        for (name, path) in files(&sim) {
            let file = version.join(format!("{name}.json"));
            // Earlier versions may lack a kind of file.
            if !file.exists() && !version.ends_with(this_version()) {
                continue;
            }
            let mut earlier = read(&file);
            let name = format!("{}: {name}", version.display());
            fill(&mut earlier, &read(&path), &name);
            fs::write(path, earlier.to_string()).unwrap();
        }
        go_on(&sim, rest);
    }
}

#[test]
fn files_of_earlier_versions_are_read() {
    needs_root!();
    let pids = |sim: &Sim| {
        let names = ["1", "left", "right-0", "pair"];
        names.map(|name| sim.device(name)["daemon_pid"].clone())
    };
    let node = || {
        let (sim, client) = node();
        let before = pids(&sim);
        (sim, (client, before))
    };
    go_on_from_earlier_files(node, files, |sim, (client, before)| {
        let status = sim.status();
        for (state, devices) in [
            ("ready", &["left", "pair", "right-0"][..]),
            ("closing", &["1"]),
            ("stopped", &["right-1"]),
        ] {
            let mut found = in_state(&status, state);
            found.sort();
            assert_eq!(found, devices, "{state}");
        }
        assert_eq!(pids(sim), before);
        let client_of = status["clients"][0]["workload"]["batch_job"].clone();
        assert_eq!(client_of["id"], "101");
        assert_contains(&sim.run(&["status", "left"]).ended(0).stdout, " 70% ");
        let dry = sim.run(&["up", "--previous", "--dry-run", "--keep-going"]);
        assert_contains(&dry.stderr, "whole");

        sim.run(&["start", "right-1"]).ended(0);
        client.finish();
        sim.run(&["heal"]).ended(0);
        assert_eq!(sim.device("1")["state"], "ready");
        sim.run(&["up", "--yes"]).ended(0);
        let after = pids(sim);
        assert_eq!(after[1..], before[1..]);
        assert_ne!(after[0], before[0], "the closing device has been restarted");
        sim.run(&["job", "end", "--id", "101"]).ended(0);
        sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
        assert_eq!(sim.run_dir(), ["jobs", "lock"]);
    });
}

const DCGM: &str = "nvidia-dcgm.service";

/// A node on which `down` was killed when it had destroyed instances and stopped a service.
fn node_of_killed_change() -> (Sim, ()) {
    let sim = Sim::served("a100-80gb", 1, SMALL);
    sim.node.service(DCGM);
    sim.node.fault("systemctl start").kills().unwrap();
    let down = [
        "down",
        "--disable-mig",
        "--reset",
        "--stop-holders",
        "--yes",
    ];
    let killed = sim.spawn(&down).wait_with_output().unwrap();
    assert_eq!(killed.status.signal(), Some(9), "{killed:?}");
    (sim, ())
}

#[test]
fn the_journal_of_a_killed_change_of_earlier_versions_is_taken_up() {
    needs_root!();
    let journal = |sim: &Sim| sim.node.run_dir().join("journal.json");
    let files = |sim: &Sim| Files::from([("journal".to_owned(), journal(sim))]);
    go_on_from_earlier_files(node_of_killed_change, files, |sim, ()| {
        let kept = read(&journal(sim));
        assert_eq!(kept["units"], serde_json::json!([DCGM]));
        assert_eq!(kept["taken"].as_array().unwrap().len(), 2);
        let up = sim
            .up(SMALL, &["--yes", "--reset", "--stop-holders"])
            .ended(0);
        assert_contains(
            &up.stderr,
            "down --disable-mig --reset --stop-holders --yes (process ",
        );
        assert_contains(&up.stderr, &format!("it had stopped {DCGM}"));
        assert!(!journal(sim).exists());
        assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    });
}

/// A node on which one of two programs that follow a change has failed.
fn node_with_followers() -> (Sim, ()) {
    let sim = after_change::node(1);
    after_change::write_noting(&sim, "10-good");
    after_change::write(&sim, "20-bad", "echo 20-bad >>ran; exit 1");
    sim.up(WHOLE, &[]).ended(1);
    assert_eq!(after_change::ran(&sim), ["10-good", "20-bad"]);
    (sim, ())
}

/// The program that succeeded does not run again.
#[test]
fn the_programs_that_have_followed_a_change_are_known_from_files_of_earlier_versions() {
    needs_root!();
    let files = |sim: &Sim| {
        let directory = sim.node.run_dir().join("after-change");
        let names = ["change", "results"];
        let paths = names.map(|name| (name.to_owned(), directory.join(format!("{name}.json"))));
        Files::from(paths)
    };
    go_on_from_earlier_files(node_with_followers, files, |sim, ()| {
        sim.run(&["heal"]).ended(1);
        assert_eq!(after_change::ran(sim), ["20-bad"]);
        after_change::write_noting(sim, "20-bad");
        sim.run(&["heal"]).ended(0);
        assert_eq!(after_change::ran(sim), ["20-bad"]);
        sim.run(&["heal"]).ended(0);
        sim.run(&["restart", "0", "--yes"]).ended(0);
        assert_eq!(after_change::ran(sim), [""; 0]);
    });
}

/// A node on which a self-test was killed, with the instances of its GPU before.
fn node_of_killed_self_test() -> (Sim, Vec<String>) {
    let sim = Sim::with("a30", 1);
    let profile = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", at = 1 } ]\n";
    sim.up(profile, &["--yes", "--reset"]).ended(0);
    sim.run(&["down"]).ended(0);
    let before = geometry(&sim);
    let mut killed = sim.talk(&["selftest", "--yes", "--quick", "--reset", "--gpu", "0"]);
    killed.await_text("1g.6gb: daemon and server start");
    killed.signal(Signal::KILL);
    killed.end();
    (sim, before)
}

#[test]
fn a_killed_self_test_of_earlier_versions_is_undone() {
    needs_root!();
    let record = |sim: &Sim| sim.machine("var/lib/mig-mps/selftest.json");
    let files = |sim: &Sim| Files::from([("selftest".to_owned(), record(sim))]);
    go_on_from_earlier_files(node_of_killed_self_test, files, |sim, before| {
        let up = sim.run(&["up", "--yes"]).ended(0);
        let said = "a self-test was interrupted; restoring GPU 0";
        assert_contains(&up.stderr, said);
        assert!(!record(sim).exists());
        assert_eq!(geometry(sim), before);
    });
}
