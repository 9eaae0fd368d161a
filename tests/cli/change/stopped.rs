//! Devices that `down` has stopped by name, and their way back.

use std::fs;

use insta::assert_snapshot;

use testkit::{Ran, SMALL, Sim, assert_contains, kill, needs_root};

const CLASS: &str = "[[gpu]]\nselect = { all = true }\n\
                     devices = [ { name = \"class\", profile = \"3g\" }, { name = \"half\", profile = \"2g\", mps = { max-clients = 9 } } ]\n";

/// Two devices, of which one is stopped.
fn stopped() -> Sim {
    let sim = Sim::served("a100-80gb", 1, CLASS);
    let down = sim.run(&["down", "class"]).ended(0);
    assert_contains(&down.stderr, "run `mig-mps start class` to start it again");
    sim
}

#[test]
fn it_is_known_as_stopped_and_is_no_problem() {
    let sim = stopped();
    let status = sim.run(&["status", "class", "--exit-code"]).ended(0);
    assert_contains(&status.stdout, " stopped ");
    assert_contains(&status.stdout, "class: stopped by root at 20");
    assert_contains(
        &status.stdout,
        "mig-mps down class): run `mig-mps start class` to start it again [device-stopped]",
    );
    assert_eq!(sim.device("class")["state"], "stopped");
    // It differs from the profile, and the next `up` starts it.
    sim.run(&["plan", "--exit-code"]).ended(3);
    let metrics = sim.run(&["metrics"]).ended(0).stdout;
    assert_contains(&metrics, "mig_mps_device_state{device=\"class\"");
    sim.run(&["heal"]).ended(0);
    sim.run(&["heal", "class"]).ended(0);
    assert_eq!(sim.device("class")["state"], "stopped");
    let again = sim.run(&["down", "class"]).ended(0);
    assert_eq!(
        again.stderr,
        "Nothing to do: mig-mps serves none of these devices.\n"
    );
    sim.run(&["up", "--yes"]).ended(0);
    assert_eq!(sim.device("class")["state"], "ready");
    sim.run(&["plan", "--exit-code"]).ended(0);
}

/// All devices are all that have daemons, or had some: a GPU that nobody serves is in nobody's way.
#[test]
fn a_glob_leaves_out_devices_without_daemons() {
    const FIRST: &str = "[[gpu]]\nselect = { index = [0] }\ndevices = [\
                         { name = \"class\", profile = \"3g\" }, { profile = \"2g\", mps = false } ]\n";
    let sim = Sim::served("a100-80gb", 2, FIRST);
    let first = sim.device("class")["daemon_pid"].clone();
    let globs = [&["*"][..], &["--gpu", "0"], &["*", "class"]];
    for words in globs {
        let run = |command: &str, more: &[&str]| {
            sim.run(&[&[command], words, more].concat()).ended(0).stderr
        };
        assert_eq!(
            run("start", &[]),
            "Nothing to do: the daemons of these devices are running.\n"
        );
        let before = sim.device("class")["daemon_pid"].clone();
        run("restart", &["--yes"]);
        assert_ne!(sim.device("class")["daemon_pid"], before);
        sim.run(&["down", "class"]).ended(0);
        run("start", &[]);
        assert_eq!(sim.device("class")["state"], "ready");
    }
    assert_ne!(sim.device("class")["daemon_pid"], first);
    sim.run(&["set", "*", "active-thread-percentage=40"])
        .ended(0);
    assert_eq!(sim.device("class")["active_thread_percentage"], 40.0);
    // One that is named, and a glob of none that is served, get an answer.
    for words in [
        &["0.0"][..],
        &["class", "0.0"],
        &["*", "0.0"],
        &["0.*"],
        &["1"],
    ] {
        for command in ["restart", "start"] {
            sim.run(&[&[command], words].concat()).ended(4);
        }
    }
}

#[test]
fn start_and_restart_bring_it_back_and_nothing_else_changes() {
    let sim = stopped();
    let half = sim.device("half");
    for command in ["start", "restart"] {
        let dry = sim.run(&[command, "class", "--dry-run"]).ended(0);
        assert_contains(&dry.stdout, "+ start 1 daemon (it was stopped): class");
        assert_eq!(sim.device("class")["state"], "stopped");
        sim.run(&[command, "class"]).ended(0);
        assert_eq!(sim.device("class")["state"], "ready");
        assert_eq!(sim.device("half"), half, "{command}");
        sim.run(&["plan", "--exit-code"]).ended(0);
        sim.run(&["down", "class"]).ended(0);
    }
    // A daemon that runs stays.
    let said = sim.run(&["start", "half"]).ended(0).stderr;
    assert_eq!(
        said,
        "Nothing to do: the daemons of these devices are running.\n"
    );
    sim.run(&["start", "*"]).ended(0);
    assert_eq!(sim.device("class")["state"], "ready");
    assert_eq!(sim.device("half"), half);
    // One that died is started, too.
    kill(&half["daemon_pid"]);
    sim.run(&["start", "half"]).ended(0);
    assert_eq!(sim.device("half")["state"], "ready");
    assert_snapshot!(sim.run(&["start"]).ended(2).stderr, @"
    error: no device is selected
    hint: run `mig-mps start DEVICE`, with --gpu N for every device of a GPU, or '*' for all devices; `mig-mps up` applies a profile
    hint: run `mig-mps status` to see the devices; no device is stopped
    ");
}

#[test]
fn what_was_set_by_hand_comes_back() {
    let sim = Sim::served("a100-80gb", 1, CLASS);
    sim.run(&["set", "half", "max-clients=2"]).ended(0);
    sim.run(&["down", "half"]).ended(0);
    sim.run(&["start", "half"]).ended(0);
    let half = sim.device("half");
    assert_eq!(half["client_limit"], 2);
    assert_eq!(half["set_by_hand"], serde_json::json!(["max-clients"]));
}

#[test]
fn a_device_of_the_profile_without_a_record_is_started_by_its_name() {
    let sim = Sim::served("a100-80gb", 1, CLASS);
    // As earlier versions left it.
    sim.run(&["down", "half", "--purge"]).ended(0);
    assert_eq!(sim.device("0.0")["state"], "no daemon");
    sim.run(&["start", "half"]).ended(0);
    let half = sim.device("half");
    assert_eq!(half["state"], "ready");
    assert_eq!(half["client_limit"], 9);
    sim.run(&["plan", "--exit-code"]).ended(0);
}

#[test]
fn where_the_instance_is_gone_up_is_the_way() {
    let sim = Sim::served("a100-80gb", 1, CLASS);
    sim.run(&["down", "class"]).ended(0);
    sim.run(&["down", "class", "--destroy-mig", "--yes"])
        .ended(0);
    for command in ["start", "restart"] {
        let said = sim.run(&[command, "class"]).ended(2).stderr;
        let way = "run `mig-mps up` to create its instance again and start a daemon; device class is in the applied profile profile.toml, but no daemon serves it";
        assert_contains(&said, way);
    }
    sim.run(&["up", "--yes"]).ended(0);
    assert_eq!(sim.device("class")["state"], "ready");
    // Another profile is that of the boot.
    sim.run(&["down", "class", "--destroy-mig", "--yes"])
        .ended(0);
    sim.prepare("etc/mig-mps/profile.toml", SMALL);
    let said = sim.run(&["restart", "class"]).ended(2).stderr;
    assert_contains(&said, "run `mig-mps profiles --applied | mig-mps up -`");
}

#[test]
fn every_word_leads_back() {
    let sim = stopped();
    let starts = "run `mig-mps start class` to start a daemon; device class is in the applied profile profile.toml, but no daemon serves it";
    for words in [
        &["up", "class"][..],
        &["plan", "class"],
        &["check", "class"],
    ] {
        let ran = sim.run(words);
        assert_ne!(ran.status, 0, "{words:?}");
        assert_contains(&ran.stderr, starts);
    }
    let why = "error: device class was stopped by root at 20";
    let starts = "mig-mps down class)\nhint: run `mig-mps start class` to start it again\n";
    for words in [
        &["run", "class", "--", "true"][..],
        &["run", "--any", "class", "--", "true"],
        &["env", "class"],
        &["set", "class", "max-clients=2"],
        &["verify", "class"],
    ] {
        let ran = sim.run(words);
        assert_ne!(ran.status, 0, "{words:?}");
        assert_contains(&ran.stderr, why);
        assert_contains(&ran.stderr, starts);
    }
    // Only words that name a device.
    let ran = sim.run(&["run", "nope", "--", "class"]).stderr;
    assert!(!ran.contains("was stopped"), "{ran}");
    let unknown = sim.run(&["restart", "nope"]).stderr;
    assert!(!unknown.contains("applied profile"), "{unknown}");
}

#[test]
fn a_user_is_sent_back_by_sudo() {
    needs_root!();
    let sim = stopped();
    let said = Ran::of(&mut sim.by_other(&["run", "class", "--", "true"])).ended(125);
    assert_contains(
        &said.stderr,
        "error: device class was stopped by root at 20",
    );
    assert_contains(
        &said.stderr,
        "hint: ask root to start it (`sudo mig-mps start class`)\n",
    );
    let alike = CLASS.replace("2g", "3g");
    let sim = Sim::served("a100-80gb", 1, &alike);
    sim.run(&["down", "class"]).ended(0);
    let said = Ran::of(&mut sim.by_other(&["run", "class", "--", "true"])).ended(125);
    assert_contains(
        &said.stderr,
        "hint: ask root to start it (`sudo mig-mps start class`), or use device half, which is free\n",
    );
}

#[test]
fn nothing_is_said_of_a_device_whose_record_may_be_unreadable() {
    let sim = stopped();
    let record = sim
        .node
        .run_dir()
        .join(sim.uuid("half"))
        .join("device.json");
    let said = || sim.run(&["plan", "class"]).stderr;
    assert_contains(&said(), "but no daemon serves it");
    fs::write(&record, "{").unwrap();
    assert!(!said().contains("but no daemon serves it"), "{}", said());
}

#[test]
fn down_of_everything_forgets_it() {
    let sim = stopped();
    sim.run(&["down"]).ended(0);
    assert_eq!(sim.device("0.4")["state"], "no daemon");
    let status = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&status, "taken down");
    // Also where only stopped devices are left.
    sim.run(&["up", "--yes"]).ended(0);
    sim.run(&["down", "class", "half"]).ended(0);
    let status = sim.run(&["status"]).ended(0).stdout;
    assert!(!status.contains("taken down"), "{status}");
    sim.run(&["down"]).ended(0);
    assert_contains(&sim.run(&["status"]).ended(0).stdout, "taken down");
    assert_eq!(sim.device("0.4")["state"], "no daemon");
}

#[test]
fn another_profile_does_not_know_it() {
    let sim = stopped();
    let other = CLASS.replace(
        "{ name = \"class\", profile = \"3g\" }",
        "{ profile = \"3g\", mps = false }",
    );
    let path = sim.profile(&other);
    sim.run(&["up", path.to_str().unwrap(), "--yes"]).ended(0);
    assert_eq!(sim.device("0.4")["state"], "no daemon");
    // Its name is free.
    let renamed = other.replace("\"half\"", "\"class\"");
    let path = sim.profile(&renamed);
    sim.run(&["up", path.to_str().unwrap(), "--yes"]).ended(0);
    assert_eq!(sim.device("class")["state"], "ready");
    sim.run(&["plan", "--exit-code"]).ended(0);
}

#[test]
fn a_reboot_forgets_it() {
    let sim = stopped();
    sim.node.reboot();
    let status = sim.run(&["status"]).ended(0).stdout;
    assert!(!status.contains("stopped"), "{status}");
}

#[test]
fn a_whole_gpu_is_stopped_and_started_too() {
    let sim = Sim::whole("max-clients = 4");
    sim.run(&["down", "0"]).ended(0);
    assert_eq!(sim.device("0")["state"], "stopped");
    sim.run(&["start", "0"]).ended(0);
    assert_eq!(sim.device("0")["client_limit"], 4);
    assert!(!sim.run_dir().contains(&"node.json".to_owned()));
}
