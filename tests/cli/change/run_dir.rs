//! Records, journals and other things in the run directory that cannot be read or are not ours.

use std::fs;

use serde_json::{Value, json};
use testkit::{SMALL, Sim, assert_contains, shell};

#[test]
fn whatever_lies_in_a_users_directory_holds_nobody_up() {
    let sim = Sim::small();
    let evil = sim.node.run_dir().join("x");
    fs::create_dir(&evil).unwrap();
    shell(format!("mkfifo {}", evil.join("device.json").display())).ended(0);
    let link = sim.node.run_dir().join("y");
    fs::create_dir(&link).unwrap();
    std::os::unix::fs::symlink("/dev/zero", link.join("device.json")).unwrap();
    let ran = sim.run(&["status"]).ended(0);
    assert_eq!(
        ran.stdout.matches("not seen: ").count(),
        2,
        "{}",
        ran.stdout
    );
    sim.run(&["list"]).ended(0);
}

/// As on a file system that machines share: there its daemons live, and its pids mean nothing here.
#[test]
fn a_run_directory_of_another_machine_is_left_alone() {
    let sim = Sim::small();
    let records = [sim.uuid("0.0"), sim.uuid("0.2")]
        .map(|uuid| sim.node.run_dir().join(uuid).join("device.json"));
    for path in &records {
        let mut record: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        record["boot-id"] = "a-boot-of-n1".into();
        record["machine"] = json!({ "name": "n1", "id": null });
        fs::write(path, record.to_string()).unwrap();
    }
    let before = records.each_ref().map(|path| fs::read(path).unwrap());
    let daemons = sim.node.processes("nvidia-cuda-mps-control -d");
    let profile = sim.profile(SMALL);
    let why = format!(
        "{} is in use on another machine, n1",
        sim.node.run_dir().display()
    );
    for args in [
        &["up", profile.to_str().unwrap(), "--yes", "--stop-holders"][..],
        &["down", "--yes", "--force"],
        &["heal"],
        &["restart", "0.0", "--yes", "--force"],
        &["set", "0.0", "active-thread-percentage=50", "--yes"],
        &["run", "0.0", "--", "true"],
        &["env", "0.0"],
    ] {
        let ran = sim.run(args);
        assert_ne!(ran.status, 0, "{args:?}: {ran:?}");
        assert_contains(&ran.stderr, &why);
    }
    assert_contains(&sim.run(&["status"]).stdout, &format!("not seen: {why}"));
    assert_eq!(
        records.each_ref().map(|path| fs::read(path).unwrap()),
        before
    );
    assert_eq!(sim.node.processes("nvidia-cuda-mps-control -d"), daemons);
}

#[test]
fn a_record_cannot_write_to_the_terminal() {
    let sim = Sim::small();
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    let path = sim.node.run_dir().join(uuid).join("device.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"0.2\"", "\"evil\\u001b[31m\"")).unwrap();
    let ran = sim.run(&["status"]).ended(0);
    assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
    assert_contains(&ran.stdout, "its record is of another device");
}

#[test]
fn a_journal_that_cannot_be_read_is_not_the_end() {
    let sim = Sim::small();
    fs::write(sim.node.run_dir().join("journal.json"), "{").unwrap();
    for ran in [sim.up(SMALL, &[]), sim.run(&["down"])] {
        let ran = ran.ended(1);
        let advice = "remove the file, and check that the monitoring services in it are running";
        assert_contains(&ran.stderr, advice);
    }
}

#[test]
fn commands_that_only_read_report_a_change_that_was_killed() {
    let sim = Sim::with("a100-80gb", 1);
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    sim.node.fault(create).kills().unwrap();
    let _ = sim.up(SMALL, &[]);
    let path = sim.profile(SMALL);
    for args in [&["status"][..], &["plan", path.to_str().unwrap()]] {
        let ran = sim.run(args).ended(0);
        let is_reported = ran.stderr.contains("a change was interrupted: ")
            || ran.stdout.contains("interrupted: ");
        assert!(is_reported, "{args:?}: {}", ran.stderr);
    }
    sim.up(SMALL, &["--yes"]).ended(0);
    let ran = sim.run(&["status"]).ended(0);
    let said = ran.stdout + &ran.stderr;
    assert!(!said.contains("interrupted"), "{said}");
}
