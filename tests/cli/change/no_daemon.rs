//! `mps = false`: devices without daemons, whole GPUs without one, and MIG mode without instances.

use insta::assert_snapshot;
use serde_json::json;

use testkit::{ONE_EACH, SMALL, Sim, assert_contains, in_state, plain, without_gpu};

const UNSERVED: &str = r#"
mps = false

[[gpu]]
select = { all = true }
devices = [ { profile = "2g" }, { profile = "1g" } ]
"#;

/// The devices of `list --json`, by GPU, without UUIDs.
fn devices(sim: &Sim) -> Vec<String> {
    let list = sim.list();
    let gpus = list["gpus"].as_array().unwrap().iter();
    let devices = gpus.flat_map(|gpu| gpu["devices"].as_array().unwrap().clone());
    devices
        .map(|device| device["profile"].as_str().unwrap_or("whole").to_owned())
        .collect()
}

#[test]
fn mig_devices_without_daemons_need_no_mps() {
    let sim = Sim::with("a100-80gb", 2);
    let profile = sim.profile(UNSERVED);
    let mut up = sim.command(&["up", profile.to_str().unwrap(), "--yes"]);
    // As on a machine where nobody has installed MPS.
    up.env("MIG_MPS_CONTROL", "/nonexistent/nvidia-cuda-mps-control");
    let ran = testkit::Ran::of(&mut up).ended(0);
    assert_eq!(
        devices(&sim),
        ["2g.20gb", "1g.10gb", "2g.20gb", "1g.10gb"],
        "{}",
        ran.stdout
    );
    assert_eq!(sim.happened("daemon start"), 0);
    assert_eq!(sim.run(&["status", "--exit-code"]).ended(0).status, 0);
    sim.up_does_nothing(UNSERVED);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_eq!(devices(&sim), [""; 0]);
}

#[test]
fn daemons_come_and_go_and_the_instances_stay() {
    let sim = Sim::served("a100-80gb", 1, UNSERVED);
    let before = sim.list()["gpus"][0]["devices"].clone();
    let uuids = |devices: &serde_json::Value| {
        let devices = devices.as_array().unwrap().iter();
        devices
            .map(|device| device["uuid"].clone())
            .collect::<Vec<_>>()
    };
    sim.up(SMALL, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    let client = sim.client("0.0");
    let refused = sim.up(UNSERVED, &[]).ended(4);
    assert_contains(&refused.stderr, "0.0");
    drop(client);
    let ran = sim.up(UNSERVED, &["--yes"]).ended(0);
    assert_contains(
        &ran.stdout,
        "(the profile wants no daemon for it): 0.0, 0.2",
    );
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0.0", "0.2"]);
    assert_eq!(uuids(&sim.list()["gpus"][0]["devices"]), uuids(&before));
    sim.up_does_nothing(UNSERVED);
}

#[test]
fn each_table_can_say_otherwise_than_the_one_around_it() {
    let sim = Sim::with("a100-80gb", 2);
    let profile = r#"
mps = false

[[gpu]]
select = { index = [0] }
devices = [ { profile = "2g" }, { name = "served", profile = "1g", mps = { serve = "one-at-a-time" } } ]

[[gpu]]
select = { index = [1] }
mps = {}
devices = [ { profile = "3g" }, { profile = "1g", mps = false } ]
"#;
    sim.up(
        &profile.replace("serve = \"one-at-a-time\"", ""),
        &["--yes"],
    )
    .ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["served", "1.4"]);
    assert_eq!(devices(&sim), ["2g.20gb", "1g.10gb", "1g.10gb", "3g.40gb"]);
}

#[test]
fn mig_off_and_nothing_else() {
    let sim = Sim::served("h200", 1, ONE_EACH);
    let bare = "[[gpu]]\nselect = { all = true }\nmig = false\nmps = false\n";
    sim.up(bare, &["--yes"]).ended(0);
    let list = sim.list();
    assert_eq!(list["gpus"][0]["mig"]["current"], false, "{list:#}");
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0"]);
    sim.up_does_nothing(bare);
    // A daemon for the whole GPU goes, too.
    sim.up(&bare.replace("mps = false\n", ""), &["--yes"])
        .ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.up(bare, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0"]);
}

#[test]
fn mig_on_and_not_partitioned() {
    let sim = Sim::small();
    let empty = "[[gpu]]\nselect = { all = true }\ndevices = []\n";
    sim.up(empty, &["--yes"]).ended(0);
    let list = sim.list();
    assert_eq!(list["gpus"][0]["mig"]["current"], true, "{list:#}");
    assert_eq!(list["gpus"][0]["devices"], json!([]));
    sim.up_does_nothing(empty);
}

#[test]
fn a_name_without_a_daemon_is_refused() {
    let sim = Sim::with("a100-80gb", 1);
    let named = UNSERVED.replace("{ profile = \"1g\" }", "{ name = \"a\", profile = \"1g\" }");
    let ran = sim.up(&named, &[]).ended(2);
    insta::assert_snapshot!(plain(&ran.stderr), @r#"
    error: profile.toml:6:42: mps is false here: only a device with a daemon can have a name
      |
    6 | devices = [ { profile = "2g" }, { name = "a", profile = "1g" } ]
      |                                          ^^^
    "#);
}

#[test]
fn check_shows_which_devices_have_no_daemon() {
    let profile = r#"
[[gpu]]
select = { index = [0] }
mps = false
devices = [ { profile = "3g" }, { profile = "1g", count = 2, mps = {} } ]

[[gpu]]
select = { index = [1] }
mig = false
mps = false

[[gpu]]
select = { index = [2] }
devices = []
"#;
    let ran = without_gpu(&["check", "-", "--gpu", "a100-80gb:4"], profile).ended(0);
    insta::assert_snapshot!(ran.stdout, @"
    GPU 0  a100-80gb  NVIDIA A100-SXM4-80GB
      |1g   |1g   |.....|.....|3g.40gb                |
      PROFILE  AT   SMS   GIB  SERVE          SERVER  THREADS  LIMIT  CLIENTS  NAMES
      1g.10gb  0     14   9.5  one-at-a-time  eager      100%      -        -  0.0
      1g.10gb  1     14   9.5  one-at-a-time  eager      100%      -        -  0.1
      3g.40gb  4-7   42  39.2  -              -             -      -        -  no daemon
    GPU 1  a100-80gb  NVIDIA A100-SXM4-80GB
      the whole GPU, without a daemon
    GPU 2  a100-80gb  NVIDIA A100-SXM4-80GB
      |.....|.....|.....|.....|.....|.....|.....|.....|
    GPU 3  a100-80gb  NVIDIA A100-SXM4-80GB
      no block selects it: it is not touched
    It fits: 3 devices on 3 GPUs.
    ");
    let fleet = format!("models = [\"a100-80gb\"]\n{profile}");
    let fleet = without_gpu(&["check", "-"], &fleet).ended(0);
    assert_contains(&fleet.stdout, "  a100-80gb  |1g   |1g   |");
}

/// Programs that read records alone have not looked for devices without a daemon, and do not deny them.
#[test]
fn a_device_without_a_daemon_is_not_denied() {
    let sim = Sim::served("a100-80gb", 1, UNSERVED);
    let words: [&[&str]; 5] = [
        &["env", "0.0"],
        &["run", "0.0", "--", "true"],
        &["run", "-n", "2", "0.0", "--", "true"],
        &["verify", "0.0"],
        &["verify", "--gpu", "0"],
    ];
    let said = || {
        let said = words.map(|args| sim.run(args).stderr);
        for (args, said) in words.iter().zip(&said) {
            let is_of_daemons = said.starts_with("error: no daemon serves");
            let is_of_a_choice = said.starts_with("error: no device with a daemon matches");
            assert!(is_of_daemons || is_of_a_choice, "{args:?}: {said}");
        }
        said
    };
    assert_snapshot!(said()[0], @r#"
    error: no daemon serves "0.0"
    hint: run `mig-mps up PROFILE` to start daemons, or `mig-mps list` to see the devices
    "#);
    // Another device has one.
    sim.up(SMALL, &["--yes"]).ended(0);
    sim.run(&["down", "0.0"]).ended(0);
    let said = sim.run(&["env", "0.0"]).ended(2).stderr;
    assert!(
        said.starts_with("error: device 0.0 was stopped by root at "),
        "{said}"
    );
    assert!(
        said.ends_with(" down 0.0)\nhint: run `mig-mps start 0.0` to start it again\n"),
        "{said}"
    );
}
