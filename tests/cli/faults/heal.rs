//! `heal`: daemons that died and devices that hang come back, unattended, and nothing else is touched.

use std::fs::File;

use insta::assert_snapshot;
use serde_json::Value;

use testkit::{Ran, SMALL, Sim, assert_contains, in_state, is_alive, kill, stop, terminate, whole};

#[track_caller]
fn does_nothing(ran: &Ran) {
    assert_eq!((ran.status, ran.stdout.as_str()), (0, ""), "{ran:?}");
}

#[test]
fn a_daemon_that_died_starts_again_with_what_was_set_by_hand() {
    let sim = Sim::whole("active-thread-percentage = 50");
    sim.run(&["set", "0", "active-thread-percentage=25"])
        .ended(0);
    does_nothing(&sim.run(&["heal"]));
    sim.kill_daemon("0");
    let dry = sim.run(&["heal", "--dry-run"]).ended(0);
    assert_contains(&dry.stdout, "+ start 1 daemon (its daemon has died");
    assert_eq!(in_state(&sim.status(), "dead"), ["0"]);
    let ran = sim.run(&["heal"]).ended(0);
    let daemon = format!("daemon {} serves", sim.device("0")["daemon_pid"]);
    assert_snapshot!(ran.stdout.replace(&daemon, "daemon PID serves"), @"0: its daemon has died; active-thread-percentage as set by hand: restarted, daemon PID serves it (1 of 5 times within an hour)");
    assert_eq!(ran.stderr, "1 daemon started\n");
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    assert_eq!(
        sim.ask("0", "get_default_active_thread_percentage\n"),
        "25.0\n"
    );
    sim.client("0").finish();
    does_nothing(&sim.run(&["heal"]));
}

#[test]
fn a_hung_device_is_cured_once_no_client_works_there() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    let server = sim.device("0")["servers"][0]["pid"].clone();
    sim.hang("0");
    does_nothing(&sim.run(&["heal"]));
    assert!(is_alive(&server), "a client works there");
    client.finish();
    let ran = sim.run(&["heal"]).ended(0);
    assert!(
        ran.stdout
            .starts_with("0: it is hung, so new clients would wait"),
        "{ran:?}"
    );
    sim.client("0").finish();
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

#[test]
fn the_server_of_a_hung_daemon_that_died_is_ended_too() {
    let sim = Sim::whole("");
    sim.hang("0");
    let device = sim.device("0");
    terminate(&device["daemon_pid"]);
    let server = &device["servers"][0]["pid"];
    assert!(is_alive(server), "it outlives its daemon");
    sim.run(&["heal"]).ended(0);
    assert!(!is_alive(server));
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// Any user can end a daemon again and again.
#[test]
fn after_five_times_in_an_hour_it_gives_up_until_somebody_restarts_the_device() {
    let sim = Sim::whole("");
    for time in 1..=5 {
        sim.kill_daemon("0");
        let ran = sim.run(&["heal"]).ended(0);
        assert!(
            ran.stdout
                .ends_with(&format!("({time} of 5 times within an hour)\n")),
            "{ran:?}"
        );
    }
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.kill_daemon("0");
    let ran = sim.run(&["heal"]).ended(3);
    assert_eq!(ran.stdout, "");
    assert_snapshot!(ran.stderr.trim_end(), @"warning: device 0: `heal` has started it 5 times within an hour, and it is dead again: run `mig-mps logs 0` to find the cause, then `mig-mps restart 0` to start it again [device-failing]");
    assert_eq!(in_state(&sim.status(), "failing"), ["0"]);
    sim.run(&["heal", "--dry-run"]).ended(3);
    sim.run(&["restart", "0"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.kill_daemon("0");
    let ran = sim.run(&["heal"]).ended(0);
    assert_contains(&ran.stdout, "(1 of 5 times");
}

#[test]
fn what_happened_more_than_an_hour_ago_does_not_count() {
    let sim = Sim::whole("");
    for _ in 0..5 {
        sim.kill_daemon("0");
        sim.run(&["heal"]).ended(0);
    }
    sim.kill_daemon("0");
    sim.edit("by-name/0/device.json", |record| {
        record["healed"][0] = "2026-01-01T00:00:00Z".into();
    });
    let ran = sim.run(&["heal"]).ended(0);
    assert_contains(&ran.stdout, "(5 of 5 times");
}

#[test]
fn what_down_took_stays_down() {
    let sim = Sim::small();
    let devices = in_state(&sim.status(), "ready");
    let (first, second) = (devices[0].as_str(), devices[1].as_str());
    sim.run(&["down", first]).ended(0);
    does_nothing(&sim.run(&["heal"]));
    assert_eq!(in_state(&sim.status(), "stopped"), [first]);
    // The change that takes a device is killed half-way.
    sim.node.fault("quit").nth(1).kills().unwrap();
    let daemon = sim.device(second)["daemon_pid"].clone();
    let killed = sim.run(&["down", second]);
    assert_eq!(killed.status, -1, "{killed:?}");
    if is_alive(&daemon) {
        kill(&daemon);
    }
    does_nothing(&sim.run(&["heal"]));
    assert_eq!(in_state(&sim.status(), "dead"), [second]);
}

#[test]
fn it_waits_for_no_other_change() {
    let sim = Sim::whole("");
    sim.kill_daemon("0");
    let lock = File::open(sim.node.run_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    let ran = sim.run(&["heal"]);
    does_nothing(&ran);
    assert_contains(&ran.stderr, "is changing this node");
    let json = sim.run(&["heal", "--json"]);
    assert_contains(&json.stderr, "is changing this node");
    let document = json.json();
    assert_eq!(
        (&document["changed"], &document["error"]),
        (&false.into(), &Value::Null)
    );
    assert_eq!(in_state(&document["status"], "dead"), ["0"]);
    // Not by closing the file: a program that another test starts may have it for a moment longer.
    lock.unlock().unwrap();
    sim.run(&["heal"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

#[test]
fn a_device_of_an_earlier_boot_is_left_to_up() {
    let sim = Sim::whole("");
    sim.node.node().reboot().unwrap();
    does_nothing(&sim.run(&["heal"]));
    assert_eq!(in_state(&sim.status(), "dead"), ["0"]);
}

#[test]
fn one_daemon_that_does_not_start_keeps_no_other_from_it() {
    let sim = Sim::small();
    let devices = in_state(&sim.status(), "ready");
    for device in &devices {
        sim.kill_daemon(device);
    }
    sim.node.fault("daemon start").nth(1).fails(100).unwrap();
    let ran = sim.run(&["heal"]).ended(1);
    assert_eq!(ran.stdout.lines().count(), devices.len() - 1, "{ran:?}");
    assert_contains(&ran.stderr, "CUDA sees no device");
    let ran = sim.run(&["heal"]).ended(0);
    assert_contains(&ran.stdout, "(2 of 5 times");
    assert_eq!(in_state(&sim.status(), "ready"), devices);
}

#[test]
fn devices_can_be_named() {
    let sim = Sim::small();
    let devices = in_state(&sim.status(), "ready");
    for device in &devices {
        sim.kill_daemon(device);
    }
    sim.run(&["heal", &devices[0]]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), devices[..1]);
    assert_eq!(in_state(&sim.status(), "dead"), devices[1..]);
}

/// One device is given up, and another one has just died.
#[test]
fn a_dry_run_ends_as_heal_would() {
    let sim = Sim::served("h200", 2, &whole(""));
    for _ in 1..=5 {
        sim.kill_daemon("0");
        sim.run(&["heal"]).ended(0);
    }
    sim.kill_daemon("0");
    sim.kill_daemon("1");
    let dry = sim.run(&["heal", "--dry-run"]).ended(3);
    assert_contains(&dry.stdout, "start 1 daemon");
    assert_contains(&dry.stderr, "[device-failing]");
    sim.run(&["heal", "--dry-run", "--json"]).ended(3);
    assert_eq!(in_state(&sim.status(), "dead"), ["1"]);
    sim.run(&["heal"]).ended(3);
    assert_eq!(in_state(&sim.status(), "ready"), ["1"]);
}

/// `down` was ending the first device: it is not started, and its server keeps GPU memory.
#[test]
fn an_idle_server_is_ended_also_where_no_daemon_is_started() {
    let sim = Sim::served("h200", 2, &whole(""));
    sim.hang("0");
    let device = sim.await_state("0", "hung");
    terminate(&device["daemon_pid"]);
    sim.edit("by-name/0/device.json", |record| {
        record["leaving"] = true.into();
    });
    sim.kill_daemon("1");
    let shown = sim.run(&["heal", "--dry-run"]).ended(0).stdout;
    assert!(shown.find("GPU 0") < shown.find("GPU 1"), "{shown}");
    let server = &device["servers"][0]["pid"];
    assert!(is_alive(server));
    let ran = sim.run(&["heal"]).ended(0);
    let ended = format!("0: server {server} outlived its daemon and was ended\n");
    assert!(ran.stdout.starts_with(&ended), "{}", ran.stdout);
    assert_contains(&ran.stdout, "1: its daemon has died: restarted");
    assert_eq!(ran.stderr, "1 daemon started, 1 server ended\n");
    assert!(!is_alive(server));
}

/// A worker that starts again in a running container asks no engine. It ends no other program, so heal only reports it.
#[test]
fn programs_outside_mps_are_reported() {
    let sim = Sim::small();
    let outside = sim.outside("0.0");
    let named = |ran: &Ran| {
        let pid = format!("warning: device 0.0: pid {} (", outside.pid());
        let mut lines = ran.stderr.lines();
        lines.any(|line| line.starts_with(&pid) && line.contains(" computes outside MPS: "))
    };
    let ran = sim.run(&["heal"]).ended(0);
    assert!(named(&ran), "{}", ran.stderr);
    sim.kill_daemon("0.0");
    let ran = sim.run(&["heal"]).ended(0);
    assert_contains(&ran.stdout, "0.0: its daemon has died: restarted");
    assert!(named(&ran), "{}", ran.stderr);
}

/// Somebody may have stopped the daemon, and a daemon that nobody reaches may have clients.
#[test]
fn what_is_not_healed_is_said_with_its_remedy() {
    let sim = Sim::small();
    let pid = sim.device("0.0")["daemon_pid"].clone();
    stop(&pid);
    std::fs::remove_dir_all(sim.pipe("0.2")).unwrap();
    let ran = sim.run(&["heal"]).ended(0);
    for line in [
        format!("not healed: 0.0: its daemon (pid {pid}) is stopped (SIGSTOP)"),
        format!(
            "run `kill -CONT {pid}` to resume it, or `mig-mps restart 0.0 --force` to replace it"
        ),
        "not healed: 0.2: its daemon (pid ".to_owned(),
        "run `mig-mps restart 0.2 --force` to start another daemon".to_owned(),
    ] {
        assert_contains(&ran.stderr, &line);
    }
    let one = sim.run(&["heal", "0.2"]).ended(0);
    assert!(!one.stderr.contains("0.0"), "{one:?}");
    sim.run(&["restart", "0.0", "0.2", "--force", "--yes"])
        .ended(0);
    does_nothing(&sim.run(&["heal"]));
}

/// Every command says what `status` says, and works with `--force`.
#[test]
fn a_stopped_daemon_has_one_remedy() {
    let sim = Sim::small();
    let more = SMALL.replace("\"2g\"", "\"2g\", mps = { server = \"lazy\" }");
    let path = sim.profile(&more).display().to_string();
    for forced in [
        &["restart", "0.0", "--force", "--yes"][..],
        &["up", &path, "--force", "--yes"],
        &["down", "0.0", "--force"],
    ] {
        let pid = sim.device("0.0")["daemon_pid"].clone();
        stop(&pid);
        let status = sim.run(&["status"]).ended(0).stdout;
        let remedy = format!(
            "run kill -CONT {pid} to resume it, or mig-mps restart 0.0 --force to replace it"
        );
        let flat: Vec<&str> = status.split_whitespace().collect();
        assert_contains(&flat.join(" ").replace('`', ""), &remedy);
        let mut commands = vec![
            vec!["restart", "0.0", "--yes"],
            vec!["set", "0.0", "share=2"],
            vec!["set", "0.0", "share=2", "--force"],
            vec!["down", "0.0"],
        ];
        if forced[0] == "up" {
            commands.push(vec!["up", &path, "--yes"]);
        }
        for args in commands {
            let ran = sim.run(&args).ended(4);
            assert_contains(&ran.stderr.replace('`', ""), &format!("hint: {remedy}"));
        }
        sim.run(forced).ended(0);
        let ready = in_state(&sim.status(), "ready");
        assert_eq!(ready.contains(&"0.0".to_owned()), forced[0] == "restart");
    }
    assert_eq!(in_state(&sim.status(), "stopped"), ["0.0"]);
}
