//! Single faults of a command that closes a device and waits for its client (`--no-new`): the client is not lost, and the device
//! is reopened, or what the command wanted is recorded and done by heal.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use serde_json::Value;
use testkit::{Sim, sample, wait_until};

const SERVED: &str = "[[gpu]]\nselect = { all = true }\n\
                      devices = [ { name = \"class\", profile = \"3g\", mps = { serve = \"all\" } } ]\n";

/// One device takes the place of that one.
const OTHERS: &str =
    "[[gpu]]\nselect = { all = true }\ndevices = [ { name = \"all\", profile = \"7g\" } ]\n";

/// The record of the device.
fn record(sim: &Sim) -> Value {
    let path = sim.node.run_dir().join(sim.uuid("class"));
    serde_json::from_slice(&fs::read(path.join("device.json")).unwrap()).unwrap()
}

/// Runs the command while a client is on the device, which finishes once the device is closed, or the command has ended. Returns
/// true if the command succeeded.
fn run(sim: &Sim, command: &[&str], what: &str, set: impl FnOnce()) -> bool {
    let client = sim.client("class");
    let path = sim
        .node
        .run_dir()
        .join(sim.uuid("class"))
        .join("device.json");
    set();
    let mut change = sim.command(&[command, &["--drain", "1h", "--no-new", "--yes"]].concat());
    change.env("SIMNODE_EVENTS", "all");
    let mut change = change
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ended = None;
    wait_until("it is closed, or given up", || {
        ended = change.try_wait().unwrap();
        let text = fs::read_to_string(&path).unwrap_or_default();
        ended.is_some() || text.contains("\"is-asked\": true") || text.contains("\"is-asked\":true")
    });
    let finished = client.finish();
    assert!(finished.status.success(), "{what}: {}", finished.output);
    ended.unwrap_or_else(|| change.wait().unwrap()).success()
}

/// Runs the command without a fault, and returns one third of the points at which one can happen: each name, with its number.
fn find_points(sim: &Sim, command: &[&str], share: usize) -> Vec<(String, u32)> {
    let before = sim.node.events().len();
    assert!(run(sim, command, "without a fault", || ()));
    let mut found: BTreeMap<String, u32> = BTreeMap::new();
    for event in sim.node.events().split_off(before) {
        *found.entry(event.what).or_default() += 1;
    }
    // Calls of NVML, commands and starts; other events follow from these.
    found.retain(|on, _| !on.contains(' ') || on.ends_with(" start"));
    let each = |(on, count): (String, u32)| (1..=count.min(4)).map(move |nth| (on.clone(), nth));
    let points: Vec<_> = found.into_iter().flat_map(each).collect();
    sample(points.into_iter().skip(share).step_by(3), 4)
}

/// Meets one third of the points with these names in turn.
fn fails_once(command: &str, share: usize) {
    let sim = Sim::served("h200", 1, SERVED);
    let done = if command == "down" {
        "stopped"
    } else {
        "ready"
    };
    let change = [command, "class"];
    let points = find_points(&sim, &change, share);
    let (mut met, mut failed) = (0, 0);
    for (on, nth) in &points {
        let what = format!("{command}, {on} number {nth}");
        sim.run(&["start", "class"]).ended(0);
        let faults = sim.happened("fault");
        let code = if on.starts_with("nvml") { 999 } else { 1 };
        let succeeded = run(&sim, &change, &what, || {
            sim.node.fault(on).nth(*nth).fails(code).unwrap();
        });
        sim.node.node().clear_faults().unwrap();
        met += usize::from(sim.happened("fault") > faults);
        failed += usize::from(!succeeded);
        let wanted = match sim.device("class")["state"].as_str().unwrap() {
            _ if succeeded => done,
            "stopped" => "stopped",
            _ => match &record(&sim)["closing"] {
                Value::Object(closing) if closing["next"].is_null() => "stopped",
                _ => "ready",
            },
        };
        wait_until(&what, || {
            sim.run(&["heal"]).ended(0);
            sim.device("class")["state"] == wanted
        });
        sim.run(&["heal"]).ended(0);
        assert_eq!(sim.device("class")["state"], wanted, "{what}");
        if wanted == "ready" {
            assert_eq!(record(&sim)["closing"], Value::Null, "{what}");
            let app = sim.client("class").finish();
            assert!(app.status.success(), "{what}: {}", app.output);
        }
    }
    eprintln!(
        "{command}: {} points, {met} met, {failed} failed",
        points.len()
    );
    assert!(met * 3 >= points.len(), "{points:?}: {met}");
}

/// The same for an `up` that destroys the instance of the device.
fn fails_once_in_up(share: usize) {
    let sim = Sim::served("h200", 1, SERVED);
    let others = sim.node.dir().join("others.toml");
    fs::write(&others, OTHERS).unwrap();
    let up = ["up", others.to_str().unwrap()];
    let points = find_points(&sim, &up, share);
    let served = sim.profile(SERVED);
    let back = ["up", served.to_str().unwrap(), "--yes"];
    let (mut met, mut failed) = (0, 0);
    for (on, nth) in &points {
        let what = format!("up, {on} number {nth}");
        sim.run(&back).ended(0);
        let faults = sim.happened("fault");
        let code = if on.starts_with("nvml") { 999 } else { 1 };
        let succeeded = run(&sim, &up, &what, || {
            sim.node.fault(on).nth(*nth).fails(code).unwrap();
        });
        sim.node.node().clear_faults().unwrap();
        met += usize::from(sim.happened("fault") > faults);
        failed += usize::from(!succeeded);
        if !succeeded {
            let class = || {
                let status = sim.status();
                let devices = status["devices"].as_array().unwrap();
                let class = devices.iter().find(|device| device["name"] == "class");
                class.map(|device| device["state"].as_str().unwrap().to_owned())
            };
            // What the command has not done either stays as it was, or is recorded.
            wait_until(&what, || {
                sim.run(&["heal"]).ended(0);
                let state = class();
                state.is_none_or(|state| state == "ready" || state == "stopped")
            });
            if class().as_deref() == Some("ready") {
                assert_eq!(record(&sim)["closing"], Value::Null, "{what}");
                let app = sim.client("class").finish();
                assert!(app.status.success(), "{what}: {}", app.output);
            }
            sim.run(&[&up[..], &["--yes"]].concat()).ended(0);
        }
        sim.run(&["plan", up[1], "--exit-code"]).ended(0);
        let app = sim.client("all").finish();
        assert!(app.status.success(), "{what}: {}", app.output);
    }
    eprintln!("up: {} points, {met} met, {failed} failed", points.len());
    assert!(met * 3 >= points.len(), "{points:?}: {met}");
}

in_thirds! {
    a_call_fails_once_while_a_device_closes_for_restart: fails_once("restart"),
    a_call_fails_once_while_a_device_closes_for_down: fails_once("down"),
    a_call_fails_once_while_a_device_closes_for_an_up_that_destroys_it: fails_once_in_up(),
}
