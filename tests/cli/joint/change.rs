//! Changes of joint devices that are in use, and what they look like afterwards.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{App, Ran, Sim, assert_contains, in_state, kill};

use super::programs::visible;
use super::{TRAINERS, client_on, gpu, joint, trainers};

const PARTS: &str = "[[gpu]]\nselect = { index = [0, 1] }\ndevices = [ { profile = \"3g\" } ]\n";

const WHOLE: &str = "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\n";

#[track_caller]
fn finishes(client: App) {
    let finished = client.finish();
    assert!(finished.status.success(), "{}", finished.output);
}

/// Whichever of its GPUs a client uses, it is in the way of all that end the daemon.
#[test]
fn a_client_on_any_gpu_is_in_the_way() {
    let sim = joint("share = 4");
    for ordinal in ["0", "1"] {
        let client = client_on(&sim, "trainers", ordinal);
        let named = format!("trainers: pid {} (", client.pid());
        let before = sim.device("trainers");
        for profile in [PARTS, WHOLE] {
            let ran = sim.up(profile, &["--yes"]).ended(4);
            assert_contains(&ran.stderr, &named);
        }
        let commands: [&[&str]; 3] = [
            &["down", "--yes"],
            &["down", "--gpu", ordinal, "--yes"],
            &["restart", "trainers", "--yes"],
        ];
        for args in commands {
            assert_contains(&sim.run(args).ended(4).stderr, &named);
        }
        let after = sim.device("trainers");
        assert_eq!(before["daemon_pid"], after["daemon_pid"]);
        assert_eq!(before["servers"], after["servers"]);
        finishes(client);
    }
}

#[test]
fn restart_waits_behind_a_closed_door() {
    let sim = joint("share = 4");
    let before = sim.device("trainers")["daemon_pid"].clone();
    let client = client_on(&sim, "trainers", "1");
    let args = ["restart", "trainers", "--drain", "1h", "--no-new", "--yes"];
    let mut restart = sim.talk(&args);
    restart.await_text("note: closed ");
    assert_eq!(sim.device("trainers")["state"], "closing");
    let refused = sim.app("trainers", &["run", "0"]).finish();
    assert_contains(&refused.output, "err 805");
    finishes(client);
    let _ = restart.end().ended(0);
    let after = sim.device("trainers");
    assert_eq!(after["state"], "ready");
    assert_ne!(after["daemon_pid"], before);
    sim.up_does_nothing(&trainers("share = 4"));
}

#[test]
fn up_waits_behind_a_closed_door_for_the_gpus_that_it_splits() {
    for profile in [PARTS, WHOLE] {
        let sim = joint("share = 4");
        let client = client_on(&sim, "trainers", "1");
        let path = sim.profile(profile).display().to_string();
        let mut up = sim.talk(&["up", &path, "--drain", "1h", "--no-new", "--yes"]);
        up.await_text("note: closed ");
        assert_eq!(sim.device("trainers")["state"], "closing");
        let refused = sim.app("trainers", &["run", "0", "--on", "0"]).finish();
        assert_contains(&refused.output, "err 805");
        finishes(client);
        let _ = up.end().ended(0);
        assert_eq!(in_state(&sim.status(), "ready").len(), 2);
        sim.up_does_nothing(profile);
    }
}

/// All GPUs of a new joint device wait for the clients of each.
#[test]
fn up_waits_behind_closed_doors_for_the_gpus_that_it_joins() {
    let sim = Sim::served("h200", 3, PARTS);
    let client = sim.client("1.0");
    let path = sim.profile(TRAINERS).display().to_string();
    let mut up = sim.talk(&["up", &path, "--drain", "1h", "--no-new", "--yes"]);
    up.await_text("note: closed ");
    assert_eq!(sim.device("1.0")["state"], "closing");
    finishes(client);
    let _ = up.end().ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["trainers"]);
    sim.up_does_nothing(TRAINERS);
}

/// A joint device waits for its own GPUs, not for those of another one.
#[test]
fn up_changes_at_once_what_other_joint_devices_do_not_need() {
    const JOINT: &str = "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\njoint = true\nname = \"first\"\n\
                         [[gpu]]\nselect = { index = [2, 3] }\nmig = false\njoint = true\nname = \"second\"\n";
    const INSTANCES: &str =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\" } ]\n";
    const GPUS: &str = "[[gpu]]\nselect = { all = true }\nmig = false\n";
    for (before, after, busy, ready) in [
        (JOINT, INSTANCES, "first", ["2.0", "3.0"].as_slice()),
        (JOINT, GPUS, "first", &["2", "3"]),
        (INSTANCES, JOINT, "1.0", &["second"]),
        (GPUS, JOINT, "1", &["second"]),
    ] {
        let sim = Sim::served("h200", 4, before);
        let mut client = sim.app(busy, &["hold", "--on", "0"]);
        client.wait_up();
        let path = sim.profile(after).display().to_string();
        let mut up = sim.talk(&["up", &path, "--drain", "1h", "--no-new", "--yes"]);
        up.await_text("note: closed ");
        let status = sim.status();
        assert_eq!(in_state(&status, "ready"), ready, "{busy}");
        assert!(in_state(&status, "closing").contains(&busy.to_owned()));
        finishes(client);
        let _ = up.end().ended(0);
        sim.up_does_nothing(after);
    }
}

#[test]
fn down_and_start_keep_the_device_and_its_settings() {
    let sim = joint("share = 2");
    let before = sim.device("trainers");
    sim.run(&["set", "trainers", "active-thread-percentage=30", "--yes"])
        .ended(0);
    // By one of its GPUs.
    sim.run(&["down", "--gpu", "1", "--yes"]).ended(0);
    let stopped = sim.device("trainers");
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(stopped["joint_gpus"], before["joint_gpus"]);
    sim.run(&["start", "trainers"]).ended(0);
    let after = sim.device("trainers");
    assert_eq!(after["state"], "ready");
    assert_eq!(after["uuid"], before["uuid"]);
    assert_eq!(after["active_thread_percentage"], 30.0);
    sim.run(&["down", "--force", "--yes"]).ended(0);
    let runs = sim.run_dir();
    assert!(
        !runs.iter().any(|entry| entry.starts_with("JOINT")),
        "{runs:?}"
    );
}

#[test]
fn heal_replaces_a_daemon_that_has_died_and_cures_one_that_hangs() {
    let sim = joint("share = 4");
    sim.kill_daemon("trainers");
    sim.await_state("trainers", "dead");
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("trainers")["state"], "ready");
    sim.hang("trainers");
    sim.run(&["heal"]).ended(0);
    sim.run(&["verify", "trainers"]).ended(0);
    // Its server has died.
    kill(&sim.device("trainers")["servers"][0]["pid"]);
    sim.run(&["heal"]).ended(0);
    finishes(client_on(&sim, "trainers", "all"));
    sim.up_does_nothing(&trainers("share = 4"));
}

/// After a reboot, `heal` leaves the start to `up`.
#[test]
fn after_a_reboot_up_starts_it_again() {
    let sim = joint("share = 2");
    let uuid = sim.uuid("trainers");
    sim.node.reboot();
    sim.run(&["heal"]).ended(0);
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), [""; 0], "{status:#}");
    sim.up(&trainers("share = 2"), &["--yes"]).ended(0);
    let device = sim.device("trainers");
    assert_eq!(
        (&device["state"], &device["uuid"]),
        (&"ready".into(), &Value::from(uuid.as_str()))
    );
    sim.up_does_nothing(&trainers("share = 2"));
}

/// The driver may number GPUs in another order after it was loaded again, or after a reboot that keeps the run directory.
#[test]
fn it_is_the_same_device_where_its_gpus_have_other_indices() {
    let order = |sim: &Sim, order: [usize; 3]| {
        let node = sim.node.node();
        let changed = node.update(|state| {
            let gpus = order.map(|index| state.gpus[index].clone());
            state.gpus = gpus.into();
        });
        changed.unwrap();
    };
    // Each has the index of the other.
    let sim = joint("share = 2");
    let uuid = sim.uuid("trainers");
    sim.kill_daemon("trainers");
    order(&sim, [1, 0, 2]);
    let device = sim.device("trainers");
    assert_eq!(
        (&device["state"], &device["uuid"]),
        (&"dead".into(), &json!(uuid))
    );
    sim.up(&trainers("share = 2"), &["--yes"]).ended(0);
    assert_eq!(sim.uuid("trainers"), uuid);
    let both = format!("{},{}", gpu(&sim, 0), gpu(&sim, 1));
    assert_eq!(
        visible(&sim, &[], &[]),
        both,
        "in the order of the new indices"
    );
    let first = [("CUDA_VISIBLE_DEVICES", "0")];
    assert_eq!(visible(&sim, &first, &["--visible", "index"]), "0");
    finishes(client_on(&sim, "trainers", "all"));
    sim.up_does_nothing(&trainers("share = 2"));
    // The profile has another GPU at an index of one of them.
    sim.kill_daemon("trainers");
    order(&sim, [0, 2, 1]);
    let dead = sim.device("trainers");
    let indices: Vec<&Value> = dead["joint_gpus"].as_array().unwrap().iter().collect();
    assert_eq!(
        (&indices[0]["index"], &indices[1]["index"]),
        (&json!(0), &json!(2))
    );
    let alone = "[[gpu]]\nselect = { index = [2] }\nmig = false\n";
    let profile = trainers("share = 2") + alone;
    sim.up(&profile, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["trainers", "2"]);
    assert_ne!(sim.uuid("trainers"), uuid);
    assert_eq!(sim.uuid("2"), gpu(&sim, 2));
    sim.up_does_nothing(&profile);
}

/// The joint device and what is made beside it are undone.
#[test]
fn up_is_undone_by_ctrl_c() {
    let beside = "[[gpu]]\nselect = { index = [2] }\ndevices = [ { profile = \"3g\" } ]\n";
    for what in ["daemon start", "server start"] {
        let sim = Sim::with("h200", 3);
        let path = sim.profile(&(TRAINERS.to_owned() + beside));
        let start = sim.node.fault(what).nth(2).waits().unwrap();
        let mut up = sim.talk(&["up", path.to_str().unwrap(), "--yes"]);
        sim.await_event("fault", 1);
        up.signal(Signal::INT);
        up.await_text("interrupted: stopping at the next safe point");
        drop(start);
        let said = up.end().ended(130).stdout;
        assert_contains(&said, "earlier changes were undone");
        assert_eq!(sim.run_dir(), ["lock"], "{said}");
        assert_eq!(sim.node.processes("nvidia-cuda-mps-control -d").len(), 0);
        assert_eq!(in_state(&sim.status(), "no daemon"), ["0", "1", "2"]);
        let profile = TRAINERS.to_owned() + beside;
        sim.up(&profile, &["--yes"]).ended(0);
        sim.up_does_nothing(&profile);
    }
}

/// A joint device is known by its GPUs: by another name it is the same device.
#[test]
fn it_keeps_its_identity_under_another_name() {
    let sim = joint("share = 2");
    let uuid = sim.uuid("trainers");
    let renamed = trainers("share = 2").replace("trainers", "pair");
    sim.up(&renamed, &["--yes"]).ended(0);
    assert_eq!(sim.uuid("pair"), uuid);
    let moved = renamed.replace("[0, 1]", "[1, 2]")
        + "[[gpu]]\nselect = { index = [0] }\nmig = false\nmps = false\n";
    sim.up(&moved, &["--yes"]).ended(0);
    assert_ne!(sim.uuid("pair"), uuid);
    assert_eq!(sim.device("pair")["joint_gpus"][0]["uuid"], gpu(&sim, 1));
    sim.up_does_nothing(&moved);
}

/// CUDA ends the list of a daemon's GPUs at one that it does not see, and says nothing.
#[test]
fn a_daemon_that_lacks_a_gpu_does_not_serve() {
    for (server, who) in [
        ("eager", "its server does not use"),
        ("lazy", "it does not have"),
    ] {
        let sim = Sim::with("h200", 2);
        let profile = sim.profile(&trainers(&format!("server = \"{server}\"")));
        let control = sim.control_script(
        "[ \"$1\" = -d ] && export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%,*}\nexec $real \"$@\"",
    );
        let mut up = sim.command(&["up", profile.to_str().unwrap(), "--yes"]);
        let ran = Ran::of(up.env("MIG_MPS_CONTROL", &control)).ended(1);
        let missing = format!("{who} {}", gpu(&sim, 1));
        assert_contains(&ran.stderr, &missing);
        assert_eq!(sim.status()["devices"].as_array().unwrap().len(), 2);
    }
}
