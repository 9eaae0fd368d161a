//! The same work with the control programs of an older and of a newer driver.

use std::fs;
use std::path::PathBuf;

use insta::assert_snapshot;
use serde_json::json;
use simnode::node::ControlVersion;

use testkit::{Ran, Sim, assert_contains, in_state, kill, needs_root, plain, wait_until, whole};

const PROFILE: &str = r#"
[mps]
active-thread-percentage = 50
pinned-memory-limit = "1.5G"
client-priority = "below-normal"

[[gpu]]
select = { index = [0] }
devices = [ { profile = "2g" }, { profile = "1g" } ]

[[gpu]]
select = { index = [1] }
mig = false
mps = { server = "lazy" }
"#;

const DEFAULTS: &str = "get_default_active_thread_percentage\n\
    get_default_device_pinned_mem_limit 0\nget_default_client_priority\n";

/// `up` with every setting, `status`, `logs`, `set`, `plan`, `restart` and `down`, with and without clients.
fn walk(version: ControlVersion) {
    walk_as(version, None);
}

/// The same, where the driver gives itself another version.
fn walk_as(version: ControlVersion, name: Option<&str>) {
    let sim = Sim::with("a100-80gb", 2);
    let update = sim.node.node().update(|state| {
        state.install(version);
        state.driver.version = name.map_or(state.driver.version.clone(), str::to_owned);
    });
    update.unwrap();
    let path = sim.profile(PROFILE).display().to_string();
    let plan = ["plan", &path, "--exit-code"];
    sim.up(PROFILE, &[]).ended(0);
    sim.up_does_nothing(PROFILE);
    sim.run(&plan).ended(0);
    for device in ["0.0", "0.2", "1"] {
        let is = sim.ask(device, DEFAULTS);
        assert_eq!(is, "50.0\n1G\n1\n", "{version:?}");
    }
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), ["0.0", "0.2"], "{version:?}");
    assert_eq!(in_state(&status, "no server yet"), ["1"], "{version:?}");
    // The limit is 1.5 GiB and no less.
    let mut app = sim.app("0.2", &["run", "0", "--alloc", "1600", "--alloc", "900"]);
    app.wait_up();
    let got = app.finish().output;
    assert_contains(&got, "alloc 1600 MiB -> 2 out of memory");
    assert_contains(&got, "alloc 900 MiB -> 0 no error");

    let (first, second) = (sim.client("0.2"), sim.client("1"));
    let ready = in_state(&sim.status(), "ready").len();
    assert_eq!(ready, 3, "{version:?}");
    for device in ["0.2", "1"] {
        assert_eq!(sim.device(device)["client_count"], 1, "{version:?}");
        let percentage = "active-thread-percentage=25";
        let set = ["set", device, percentage, "pinned-memory-limit=2.5G"];
        sim.run(&set).ended(0);
        let is = sim.ask(device, DEFAULTS);
        assert_eq!(is, "25.0\n2G\n1\n", "{version:?}");
        let set = ["set", device, "pinned-memory-limit=none"];
        sim.run(&set).ended(0);
        assert_eq!(sim.ask(device, DEFAULTS), "25.0\n1\n", "{version:?}");
    }
    let drift = sim.run(&plan).ended(3).stdout;
    assert_contains(
        &drift,
        "pinned-memory-limit       none (set by hand) → 1536M",
    );
    sim.up(PROFILE, &[]).ended(0);
    sim.run(&plan).ended(0);
    // Every line is known, and who wrote it and when.
    for device in ["0.2", "1"] {
        for line in sim.run(&["logs", device, "--json"]).ended(0).stdout.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_ne!(line["kind"], "unknown", "{version:?}: {line}");
            let tag = line["tag"].as_str().unwrap_or("none");
            assert!(
                !tag.contains("INFO") && tag != "none",
                "{version:?}: {line}"
            );
        }
    }
    let before = sim.device("0.0")["daemon_pid"].clone();
    sim.run(&["restart", "0.0", "--yes"]).ended(0);
    assert_ne!(sim.device("0.0")["daemon_pid"], before, "{version:?}");
    sim.run(&plan).ended(0);

    // A daemon that dies, one whose clients must go, and one without any.
    sim.kill_daemon("0.0");
    assert_eq!(in_state(&sim.status(), "dead"), ["0.0"], "{version:?}");
    sim.run(&["down"]).ended(4);
    assert!(first.finish().status.success());
    sim.run(&["down", "--force"]).ended(0);
    let ended = second.finish();
    assert_contains(&ended.output, "err 810");
    let status = sim.status();
    assert_eq!(in_state(&status, "no daemon").len(), 3, "{version:?}");
    assert_eq!(status["unmanaged"], json!([]), "{version:?}");
}

#[test]
fn driver_535_does_everything() {
    walk(ControlVersion::R535);
}

#[test]
fn driver_550_does_everything() {
    walk(ControlVersion::R550);
}

#[test]
fn driver_555_does_everything() {
    walk(ControlVersion::R555);
}

#[test]
fn driver_580_does_everything() {
    walk(ControlVersion::R580);
}

#[test]
fn driver_595_does_everything() {
    walk(ControlVersion::R595);
}

#[test]
fn driver_615_does_everything() {
    walk(ControlVersion::R615);
}

#[test]
fn a_driver_to_come_is_treated_like_the_newest() {
    walk_as(ControlVersion::R615, Some("700.01"));
}

/// 535 lists a server before it is ready, and one that fails then must be undone.
#[test]
fn driver_535_is_believed_only_once_the_log_says_ready() {
    let sim = Sim::with("h200", 1);
    let node = sim.node.node();
    node.update(|state| state.install(ControlVersion::R535))
        .unwrap();
    let profile = sim.profile(&whole(""));
    let up = ["up", profile.to_str().unwrap(), "--yes"];
    sim.node.fault("server start").hangs().unwrap();
    let change = sim.talk(&up);
    sim.await_event("server start", 1);
    let mut events = sim.node.events().into_iter();
    let started = events.find(|event| event.what == "server start");
    let server = started.unwrap().detail["server"].clone();
    // The server is listed meanwhile.
    wait_until("it is listed", || {
        sim.ask("0", "get_server_list\n") == format!("{server}\n")
    });
    let status = sim.status();
    assert_eq!(in_state(&status, "starting"), ["0"], "{status:#}");
    kill(&server);
    let said = change.end().ended(1).stdout;
    assert_contains(&said, "MPS server");
    assert_eq!(sim.run_dir(), ["lock"]);

    let slow = std::time::Duration::from_millis(300);
    sim.node.fault("server start").slow(slow).unwrap();
    sim.run(&up).ended(0);
    assert_eq!(sim.happened("server ready"), 1);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// 535 has no `get_server_status`: the log tells of a fault.
#[test]
fn a_fault_is_seen_also_where_the_daemon_has_no_word_for_it() {
    let sim = Sim::with("h200", 1);
    let update = sim.node.node();
    let update = update.update(|state| state.install(ControlVersion::R535));
    update.unwrap();
    sim.up(&whole(""), &[]).ended(0);
    drop(sim.faulty("0"));
    sim.await_state("0", "ready");
    assert!(sim.client("0").finish().status.success());
}

/// The control program of 550 answers `-multiuser-server` with its usage.
#[test]
fn several_users_at_once_are_refused_by_a_driver_that_has_no_server_for_them() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let update = sim
        .node
        .node()
        .update(|state| state.install(ControlVersion::R550));
    update.unwrap();
    let whole = |serve: &str| whole(&format!("serve = \"{serve}\""));
    let path = sim.profile(&whole("all")).display().to_string();
    let refused = sim.run(&["plan", &path]).ended(2);
    assert_snapshot!(testkit::plain(&refused.stderr), @r#"
    error: profile.toml:4:17: "all" is not possible here: driver 550.163.01 has no multi-user server
      |
    4 | mps = { serve = "all" }
      |                 ^^^^^ use "one-at-a-time" or "user:NAME", or install driver 555 or newer
    "#);
    for serve in ["all", "group:root"] {
        let refused = sim.up(&whole(serve), &["--yes"]).ended(2);
        let why =
            format!("\"{serve}\" is not possible here: driver 550.163.01 has no multi-user server");
        assert_contains(&refused.stderr, &why);
    }
    assert_eq!(sim.run_dir(), [""; 0]);
    // Nobody is advised to use it.
    let said = sim.up(&whole("one-at-a-time"), &[]).ended(0).stderr;
    assert_contains(&said, "start without `mig-mps run` wait");
    assert!(!said.contains("all"), "{said}");
    sim.node
        .node()
        .update(|state| state.install(ControlVersion::R580))
        .unwrap();
    sim.profile(&whole("all"));
    let plan = sim.run(&["plan", &path]).ended(0).stdout;
    assert_contains(&plan, "serve is");
}

/// A node whose driver calls itself that.
fn with_driver(gpu: &str, version: &str) -> Sim {
    let sim = Sim::with(gpu, 1);
    let update = sim
        .node
        .node()
        .update(|state| version.clone_into(&mut state.driver.version));
    update.unwrap();
    sim
}

const TOO_OLD: &str =
    "error: driver VERSION is too old: mig-mps changes a node with driver 535 or newer
hint: install a newer driver; only `mig-mps list`, `status` and `down` work with this one
";

/// Older drivers lack commands, or were never tried.
#[test]
fn a_driver_before_535_is_refused_by_name_by_every_command_that_changes_the_node() {
    for version in ["470.256.02", "525.147.05"] {
        let sim = with_driver("a100-80gb", version);
        let refused = |args: &[&str]| {
            let ran = sim.run(args).ended(2);
            assert_eq!(ran.stdout, "", "{args:?}");
            plain(&ran.stderr).replace(version, "VERSION")
        };
        let path = sim.profile(&whole("")).display().to_string();
        let said = refused(&["up", &path, "--yes"]);
        assert_eq!(said, TOO_OLD);
        assert_eq!(refused(&["plan", &path]), said);
        // MIG too, without any daemon.
        let path = sim.profile(&format!("mps = false\n{}", testkit::SMALL));
        let path = path.display().to_string();
        assert_eq!(refused(&["up", &path, "--yes"]), said);
        assert_eq!(sim.run_dir(), [""; 0]);
        sim.run(&["list"]).ended(0);
        sim.run(&["status"]).ended(0);
        sim.run(&["check", &path, "--gpu", "a100-80gb"]).ended(0);

        // The driver was exchanged under running daemons: only their end is left.
        let name = |version: &str| {
            let update = sim.node.node();
            let update = update.update(|state| version.clone_into(&mut state.driver.version));
            update.unwrap();
        };
        name("580.159.04");
        sim.up(&whole(""), &[]).ended(0);
        name(version);
        let client = sim.client("0");
        for args in [
            &["set", "0", "active-thread-percentage=50"][..],
            &["restart", "0", "--force", "--yes"],
            &["kill", "0", &client.pid().to_string(), "--yes"],
            &["heal"],
        ] {
            assert_eq!(refused(args), said, "{args:?}");
        }
        sim.run(&["down", "--force"]).ended(0);
        assert_eq!(sim.run_dir(), ["lock"]);
    }
}

/// Returns a copy of the node's NVML library without this call.
fn library_without(sim: &Sim, call: &str) -> PathBuf {
    let library = sim.node.dir().join("lib/libnvidia-ml.so.1");
    let mut bytes = fs::read(library).unwrap();
    let found: Vec<usize> = bytes
        .windows(call.len())
        .enumerate()
        .filter(|(_, window)| *window == call.as_bytes())
        .map(|(at, _)| at)
        .collect();
    for at in found {
        bytes[at + call.len() - 1] = b'_';
    }
    let without = sim.node.dir().join("lib/older.so");
    fs::write(&without, bytes).unwrap();
    without
}

/// Drivers before R510 do not tell the names of profiles.
#[test]
fn a_call_that_an_older_driver_lacks_is_named() {
    let sim = Sim::small();
    let library = library_without(&sim, "nvmlDeviceGetGpuInstanceProfileInfoV");
    let run = |args: &[&str]| {
        let mut command = sim.command(args);
        Ran::of(command.env("MIG_MPS_NVML_LIBRARY", &library))
    };
    let lacks =
        "the driver is too old: its NVML library has no nvmlDeviceGetGpuInstanceProfileInfoV";
    let list = run(&["list"]).ended(1);
    assert_eq!(
        plain(&list.stderr),
        format!("error: {lacks}\nhint: install driver 535 or newer\n")
    );
    let status = run(&["status"]);
    assert_contains(
        &plain(&status.stdout),
        &format!("not seen: the GPUs, since the driver does not answer: {lacks}"),
    );
    // The instances stay, and their record.
    run(&["down", "--force"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
}

#[test]
fn drivers_from_535_on_are_taken_without_a_word() {
    for known in ["535.183.01", "700.01"] {
        let sim = with_driver("h200", known);
        let path = sim.profile(&whole("")).display().to_string();
        assert_eq!(sim.run(&["plan", &path]).ended(0).stderr, "", "{known}");
    }
}

/// Measured on an H200 with driver 580: 516 MiB of a limit are gone before a program has allocated anything.
#[test]
fn a_limit_under_which_no_program_starts_is_refused_there_and_warned_of_elsewhere() {
    let small = whole("pinned-memory-limit = \"400M\"");
    let warning = "warning: pinned-memory-limit 400M may be too small for any program: on a whole NVIDIA H200 with driver 580, a CUDA context uses 516 MiB\n";
    let sim = Sim::with("h200", 1);
    let refused = sim.up(&small, &[]).ended(2);
    assert_snapshot!(plain(&refused.stderr), @r#"
    error: profile.toml:2:10: pinned-memory-limit 400M is too small for any program: on a whole NVIDIA H200 with driver 580, a CUDA context uses 516 MiB
      |
    2 | select = { all = true }
      |          ^^^^^^^^^^^^^^ raise the limit, or set it to "none"
    "#);
    assert_eq!(sim.run_dir(), [""; 0]);
    let path = sim.profile(&small).display().to_string();
    sim.run(&["plan", &path]).ended(2);
    sim.run(&["check", &path]).ended(2);
    let elsewhere = sim.run(&["check", &path, "--models"]).ended(0);
    assert_eq!(elsewhere.stderr, warning);
    let least = sim
        .up(&whole("pinned-memory-limit = \"516M\""), &[])
        .ended(0)
        .stderr;
    assert_contains(&least, "pinned-memory-limit 516M may be");
    let set = ["set", "0", "pinned-memory-limit=400M"];
    let refused = sim.run(&set).ended(2);
    assert_snapshot!(plain(&refused.stderr), @r#"
    error: pinned-memory-limit 400M is too small for any program: on a whole NVIDIA H200 with driver 580, a CUDA context uses 516 MiB
    hint: raise the limit, or set it to "none"
    "#);
    let enough = sim.run(&["set", "0", "pinned-memory-limit=517M"]).ended(0);
    assert!(
        enough.stderr.starts_with("1 device on 1 GPU ready in "),
        "{}",
        enough.stderr
    );

    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(&small).display().to_string();
    assert_eq!(sim.run(&["plan", &path]).ended(0).stderr, warning);
    let up = sim.up(&small, &["--yes"]).ended(0).stderr;
    assert!(up.starts_with(warning), "{up}");
    let set = sim.run(&["set", "0", "pinned-memory-limit=300M"]).ended(0);
    let said = set.stderr;
    assert!(said.starts_with(&warning.replace("400M", "300M")), "{said}");
}
