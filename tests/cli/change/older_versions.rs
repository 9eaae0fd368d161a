//! Run directories of other versions: `fixtures/state/unversioned` holds the files of the last program whose state had no
//! version, with `@…@` for what differs from node to node.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use testkit::{ONE_EACH, Ran, Sim, assert_contains, in_state, is_alive, needs_root, repository};

const DEVICES: [&str; 4] = ["1", "left", "right-0", "right-1"];

fn fixture(name: &str) -> PathBuf {
    repository().join("fixtures/state/unversioned").join(name)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn record_of(sim: &Sim, device: &str) -> PathBuf {
    sim.node
        .run_dir()
        .join("by-name")
        .join(device)
        .join("device.json")
}

/// A file of the fixture with this node's own values.
fn filled(name: &str, record: &Value) -> String {
    let daemon = &record["daemon"];
    let values = [
        ("@gpu@", &record["key"]["gpu"]),
        ("@uuid@", &record["uuid"]),
        ("@boot-id@", &record["boot-id"]),
        ("@since@", &record["since"]),
        ("@pid@", &daemon["pid"]),
        ("@start-time@", &daemon["start-time"]),
        ("@pid-namespace@", &daemon["pid-namespace"]),
    ];
    let text = fs::read_to_string(fixture(name)).unwrap();
    values.iter().fold(text, |text, (key, value)| {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        text.replace(key, &value)
    })
}

/// A node with live daemons whose run directory has the fixture's files in place of this program's.
fn unversioned() -> Sim {
    let sim = Sim::with("a100-80gb", 2);
    let profile = fixture("profile.toml");
    sim.run(&["up", profile.to_str().unwrap()]).ended(0);
    sim.run(&["set", "left", "active-thread-percentage=70", "--yes"])
        .ended(0);
    let written: Vec<Value> = DEVICES.map(|device| read(&record_of(&sim, device))).into();
    for (device, record) in DEVICES.iter().zip(&written) {
        let text = filled(&format!("{device}.json"), record);
        // The fixture is this very state, but for what records have had since.
        let old: Value = serde_json::from_str(&text).unwrap();
        let mut record = record.clone();
        for key in ["version", "gpu", "profile", "machine"] {
            record.as_object_mut().unwrap().remove(key);
        }
        assert_eq!(old, record, "{device}");
        fs::write(record_of(&sim, device), text).unwrap();
    }
    let node = filled("node.json", &written[1]);
    fs::write(sim.node.run_dir().join("node.json"), node).unwrap();
    sim
}

#[test]
fn daemons_of_a_program_without_versions_are_adopted() {
    needs_root!();
    let sim = unversioned();
    let before: Vec<Value> = DEVICES
        .map(|device| sim.device(device)["daemon_pid"].clone())
        .into();
    let mut ready = in_state(&sim.status(), "ready");
    ready.sort();
    assert_eq!(ready, DEVICES);
    let starts = sim.happened("daemon start");
    let profile = fixture("profile.toml");
    sim.run(&["up", profile.to_str().unwrap()]).ended(0);
    sim.run(&["set", "right-0", "active-thread-percentage=40", "--yes"])
        .ended(0);
    assert_eq!(sim.happened("daemon start"), starts);
    let after: Vec<Value> = DEVICES
        .map(|device| sim.device(device)["daemon_pid"].clone())
        .into();
    assert_eq!(after, before);
    assert_eq!(read(&record_of(&sim, "right-0"))["version"], 1);
    sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert!(!before.iter().any(is_alive));
    assert_eq!(sim.run_dir(), ["lock"]);
}

#[test]
fn a_journal_of_a_program_without_versions_is_taken_up() {
    needs_root!();
    let sim = unversioned();
    let record = read(&record_of(&sim, "left"));
    let journal = sim.node.run_dir().join("journal.json");
    fs::write(&journal, filled("journal.json", &record)).unwrap();
    let profile = fs::read_to_string(fixture("profile.toml")).unwrap();
    let ran = sim
        .up(&profile.replace("\"3g\"", "\"4g\""), &["--yes"])
        .ended(0);
    let interrupted =
        "mig-mps up other.toml --yes --force (process 28477, since 2026-11-22T12:19:45Z)";
    assert_contains(&ran.stderr, interrupted);
    assert!(!journal.exists());
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock"]);
}

/// The meaning of a newer program's files cannot be known: they are shown, and nothing is changed.
#[test]
fn the_state_of_a_newer_program_is_left_alone() {
    let sim = Sim::with("h200", 2);
    let text = ONE_EACH;
    sim.up(text, &[]).ended(0);
    let (device, node) = (record_of(&sim, "1.0"), sim.node.run_dir().join("node.json"));
    let pid = sim.device("1.0")["daemon_pid"].clone();
    for file in [device, node] {
        let written = fs::read_to_string(&file).unwrap();
        let newer = written.replace("\"version\": 1", "\"version\": 2");
        assert_ne!(written, newer);
        fs::write(&file, &newer).unwrap();
        let profile = sim.profile(text);
        let profile = profile.to_str().unwrap();
        let said = "a newer mig-mps wrote it (format 2; this version reads up to 1)";
        for args in [
            &["up", profile][..],
            &["up", profile, "--dry-run"],
            &["down", "--force", "--yes"],
            &["down", "--purge", "0.0"],
            &["set", "0.0", "active-thread-percentage=50"],
            &["restart", "0.0", "--force"],
        ] {
            let ran = sim.run(args).ended(1);
            assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
            assert_contains(
                &ran.stderr,
                "change this node with the version of mig-mps that wrote it",
            );
        }
        let status = sim.run(&["status"]);
        assert_contains(&status.stdout, said);
        assert_eq!(fs::read_to_string(&file).unwrap(), newer);
        assert!(is_alive(&pid));
        fs::write(&file, &written).unwrap();
    }
    sim.run(&["down"]).ended(0);
}

/// Each unit that a killed change had stopped is started once, however often its journal names it.
#[test]
fn a_journal_names_each_unit_once() {
    needs_root!();
    let sim = Sim::whole("");
    sim.node.service("nvidia-dcgm.service");
    let boot = read(&record_of(&sim, "0"));
    let journal = json!({
        "command": "mig-mps up",
        "since": "2026-11-24T20:00:00Z",
        "pid": 1,
        "start-time": 1,
        "boot-id": boot["boot-id"],
        "units": vec!["nvidia-dcgm.service"; 10_000],
        "taken": [],
    });
    fs::write(sim.node.run_dir().join("journal.json"), journal.to_string()).unwrap();
    let asked = sim.node.dir().join("asked");
    let script = format!("echo \"$@\" >>{}\nexec $real \"$@\"", asked.display());
    let systemctl = sim.program_script("systemctl", &script);
    let mut down = sim.command(&["down"]);
    let ran = Ran::of(down.env("MIG_MPS_SYSTEMCTL", systemctl));
    let said = "it had stopped nvidia-dcgm.service";
    assert!(
        ran.stderr.contains(said),
        "{}",
        &ran.stderr[..ran.stderr.len().min(1000)]
    );
    let asked = fs::read_to_string(asked).unwrap();
    let starts = asked.lines().filter(|line| line.contains(" start "));
    assert_eq!(starts.count(), 1, "{asked}");
}
