//! Devices that cannot be seen, are gone, or were made again.

use std::fs;

use serde_json::{Value, json};
use simnode::node::Permissions;

use testkit::{Ran, SMALL, Sim, assert_contains, kill, needs_root};

/// A MIG GPU with a device that has a name, and two whole GPUs.
const MIXED: &str = r#"
[[gpu]]
select = { index = [0] }
devices = [ { profile = "2g" }, { profile = "1g", name = "trainer" } ]
[[gpu]]
select = { index = [1, 2] }
mig = false
"#;

fn mixed() -> Sim {
    let sim = Sim {
        node: testkit::TestNode::builder()
            .gpu("a100-80gb", 1)
            .gpu("h200", 2)
            .build(),
    };
    sim.up(MIXED, &["--yes"]).ended(0);
    sim
}

/// The ids of the problems of a device.
fn ids(status: &Value, device: &str) -> Vec<String> {
    let problems = status["problems"].as_array().unwrap().iter();
    problems
        .filter(|problem| problem["device"] == device)
        .map(|problem| problem["id"].as_str().unwrap().to_owned())
        .collect()
}

/// The text of the device's problem in `status`.
fn problem(status: &Value, device: &str) -> String {
    let mut problems = status["problems"].as_array().unwrap().iter();
    let of_it = problems.find(|problem| problem["device"] == device);
    let of_it = of_it.unwrap_or_else(|| panic!("{device}: {status:#}"));
    of_it["what"].as_str().unwrap().to_owned()
}

/// Ends the daemon and the server of a device without a word.
fn end(sim: &Sim, device: &str) {
    let device = sim.device(device);
    kill(&device["daemon_pid"]);
    kill(&device["servers"][0]["pid"]);
}

#[test]
fn a_lost_gpu_is_said_to_be_lost_and_its_devices_are_not_gone() {
    let sim = mixed();
    end(&sim, "trainer");
    for gpu in [0, 2] {
        sim.node.node().lose_gpu(gpu).unwrap();
    }
    let status = sim.status();
    for (name, gpu, state) in [
        ("0.0", 0, "gpu lost"),
        ("trainer", 0, "dead"),
        ("2", 2, "gpu lost"),
    ] {
        let device = sim.device(name);
        assert_eq!(device["state"], state, "{name}: {device:#}");
        assert_eq!(device["gpu"], gpu, "{name}: {device:#}");
        assert_eq!(ids(&status, name), ["gpu-lost"], "{status:#}");
        let what = problem(&status, name);
        assert_contains(&what, "GPU is lost");
        assert_contains(&what, "reset the GPU or reboot");
        assert!(!what.contains("mig-mps"), "{what}");
    }
    // No command that acts on it calls it gone, or denies that there is such a GPU.
    for words in [
        &["restart", "2", "--yes"][..],
        &["restart", "--gpu", "2", "--yes"],
        &["restart", "trainer", "--yes"],
        &["set", "0.0", "active-thread-percentage=50"],
        &["plan", "profile"],
    ] {
        let ran = if words[0] == "plan" {
            sim.up(MIXED, &["--dry-run"])
        } else {
            sim.run(words)
        };
        assert!(ran.status != 0, "{words:?}: {ran:?}");
        assert!(ran.stderr.contains("GPU is lost"), "{words:?}: {ran:?}");
        assert!(
            ran.stderr.contains("reset the GPU or reboot"),
            "{words:?}: {ran:?}"
        );
        assert!(
            !ran.stderr.contains("gone") && !ran.stderr.contains("there is no GPU"),
            "{words:?}: {ran:?}"
        );
    }
    let lost = sim.device("2")["uuid"].as_str().unwrap().to_owned();
    for (select, status) in [(format!("uuid = \"{lost}\""), 4), ("index = [1]".into(), 0)] {
        let profile = format!("[[gpu]]\nselect = {{ {select} }}\nmig = false\n");
        let ran = sim.up(&profile, &["--dry-run"]).ended(status);
        assert_eq!(ran.stderr.contains("GPU is lost"), status == 4, "{ran:?}");
    }
    let healed = sim.run(&["heal"]).ended(0);
    assert_contains(&healed.stderr, "GPU is lost");
    // The others are served as before, and what is left of these can be taken down.
    assert_eq!(sim.device("1")["state"], "ready");
    sim.run(&["down", "--gpu", "0", "--force", "--yes"])
        .ended(0);
    sim.run(&["down", "2", "--force", "--yes"]).ended(0);
    let ran = sim.run(&["restart", "--gpu", "2", "--yes"]);
    assert_contains(&ran.stderr, "GPU is lost");
}

#[test]
fn instances_that_the_driver_hides_are_not_gone() {
    needs_root!();
    let sim = Sim::small();
    sim.node
        .node()
        .update(|state| state.policy.permissions = Permissions::Strict)
        .unwrap();
    let mut status = sim.by_nobody(&["status", "--json"]);
    let status = Ran::of(status.env("MIG_MPS_RUN_DIR", sim.node.run_dir())).json();
    for device in status["devices"].as_array().unwrap() {
        assert_ne!(device["state"], "no device", "{device:#}");
        assert_eq!(device["gpu"], 0, "{device:#}");
    }
    assert_eq!(status["devices"].as_array().unwrap().len(), 2);
    assert_eq!(status["problems"], json!([]), "{status:#}");
    let hidden = status["hidden"].to_string();
    assert_contains(
        &hidden,
        "the MIG devices of GPU 0, which the driver shows only to root",
    );
}

/// Root has the driver forget its instances: their daemons have died before.
fn destroy(sim: &Sim) {
    for name in ["0.0", "0.2"] {
        end(sim, name);
    }
    sim.node
        .node()
        .update(|state| {
            state.gpus[0].instances.clear();
            state.contexts.clear();
        })
        .unwrap();
}

#[test]
fn a_device_that_is_gone_has_one_remedy_everywhere_and_it_works() {
    let sim = Sim::small();
    destroy(&sim);
    let remedy = "its device no longer exists: run `mig-mps up` to restore it, or `mig-mps down 0.2` to remove what is left";
    let status = sim.status();
    assert_eq!(sim.device("0.2")["state"], "no device");
    assert_eq!(ids(&status, "0.2"), ["device-gone"]);
    assert_eq!(problem(&status, "0.2"), remedy);
    let text = sim.run(&["status"]).ended(0).stdout;
    assert!(!text.contains("mig-mps heal"), "{text}");
    let doctor = sim.run(&["doctor", "0.2"]).ended(3).stdout;
    assert_contains(&doctor, "its device no longer exists [device-gone]");
    assert_contains(&doctor, "$ mig-mps up\n");
    assert!(!doctor.contains("[daemon-dead]"), "{doctor}");
    let restart = sim.run(&["restart", "0.2", "--yes"]);
    assert_contains(&restart.stderr, "run `mig-mps up` to restore it");
    let healed = sim.run(&["heal"]).ended(0);
    assert_contains(&healed.stderr, remedy);
    let plan = sim.up(SMALL, &["--dry-run"]).ended(0).stdout;
    assert_contains(&plan, "their devices are gone");
    // Both commands of the remedy end it.
    sim.run(&["down", "0.2"]).ended(0);
    assert_eq!(ids(&sim.status(), "0.2"), [] as [&str; 0]);
    sim.up(SMALL, &["--yes"]).ended(0);
    let status = sim.status();
    assert_eq!(status["problems"], json!([]), "{status:#}");
    assert_eq!(sim.device("0.0")["state"], "ready");
    assert_eq!(sim.device("0.2")["state"], "ready");
}

#[test]
fn a_device_that_was_made_again_with_another_uuid_has_one_name() {
    let sim = mixed();
    for name in ["0.0", "trainer"] {
        end(&sim, name);
    }
    let before = sim.device("0.0")["uuid"].as_str().unwrap().to_owned();
    let (first, second) = ("MIG-11111111-aaaa", "MIG-22222222-bbbb");
    sim.node
        .node()
        .update(|state| {
            let instances = &mut state.gpus[0].instances;
            instances[0].compute[0].uuid = format!("{first}-5111-8111-111111111111");
            instances[1].compute[0].uuid = format!("{second}-5222-8222-222222222222");
            state.contexts.clear();
        })
        .unwrap();
    let status = sim.status();
    let names: Vec<&str> = status["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["0.0", "trainer", "1", "2"], "{status:#}");
    for (name, uuid) in [("0.0", first), ("trainer", second)] {
        let device = sim.device(name);
        assert!(
            device["uuid"].as_str().unwrap().starts_with(uuid),
            "{device:#}"
        );
        assert_eq!(device["state"], "no device", "{device:#}");
        let what = problem(&status, name);
        let wanted = format!(
            "its device was created again, with another UUID: run `mig-mps up` to restore it, or `mig-mps down {name}` to remove what is left"
        );
        assert_eq!(what, wanted);
    }
    // Each of its names means it: its name, and both UUIDs.
    for word in ["0.0", &before, first] {
        let shown = sim.run(&["status", word, "--json"]).json();
        let devices = shown["devices"].as_array().unwrap();
        assert_eq!(devices.len(), 1, "{word}: {shown:#}");
        assert_eq!(devices[0]["name"], "0.0", "{word}: {shown:#}");
    }
    let list = sim.run(&["list"]).ended(0).stdout;
    assert_contains(&list, "trainer");
    sim.run(&["down", "0.0", "--yes"]).ended(0);
    let entries = fs::read_dir(sim.node.run_dir()).unwrap();
    let mut entries = entries.map(|entry| entry.unwrap().file_name());
    assert!(!entries.any(|name| name.to_str() == Some(&before)));
    sim.up(MIXED, &["--yes"]).ended(0);
    let status = sim.status();
    assert_eq!(status["problems"], json!([]), "{status:#}");
    assert_eq!(sim.device("trainer")["state"], "ready");
}

/// An instance of another size in the place of one that is gone has no name that is taken.
#[test]
fn the_name_of_a_device_that_is_gone_means_it_alone() {
    let sim = Sim::small();
    destroy(&sim);
    sim.foreign_instance(0, 0);
    let foreign = |state: &mut simnode::node::State| {
        let id = state.gpus[0].instances[0].id;
        state.create_compute_instance(0, id, 0, None)
    };
    sim.node.node().update(foreign).unwrap().unwrap();
    let status = sim.status();
    let devices = status["devices"].as_array().unwrap();
    let mut called = devices.iter().filter(|device| device["name"] == "0.0");
    assert_eq!(called.next().unwrap()["state"], "no device", "{status:#}");
    assert!(called.next().is_none(), "{status:#}");
    let mut others = devices
        .iter()
        .filter(|device| device["state"] == "no daemon");
    let other = others.next().unwrap();
    assert_eq!(other["name"], other["uuid"], "{status:#}");
    // The remedy that is shown is not refused.
    sim.run(&["down", "0.0"]).ended(0);
    assert_eq!(sim.device("0.0")["state"], "no daemon");
}

/// A record that is damaged, or of a GPU that was replaced: the profile has no name to change.
#[test]
fn a_record_of_a_gpu_that_is_not_there_is_no_mistake_of_the_profile() {
    let sim = mixed();
    let device = sim.device("1");
    let (uuid, gpu) = (device["uuid"].as_str().unwrap(), "GPX-0");
    let path = sim.node.run_dir().join(uuid).join("device.json");
    let mut record: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    record["key"]["gpu"] = gpu.into();
    fs::write(&path, record.to_string()).unwrap();
    for words in [&["--yes"][..], &["--yes", "--force"], &["--dry-run"]] {
        let refused = sim.up(MIXED, words).ended(4).stderr;
        let said = format!("error: the name \"1\" is already used by device {uuid} on {gpu}, ");
        assert!(refused.starts_with(&said), "{refused}{said}");
        assert_contains(&refused, "hint: run `mig-mps down 1` to stop its daemon");
    }
    sim.run(&["down", "1", "--yes"]).ended(0);
    sim.up(MIXED, &["--yes"]).ended(0);
    assert_eq!(sim.status()["problems"], json!([]));
}
