//! The schema of `status --json`, and what it costs to find that out.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Ran, SMALL, Sim, shell};
use crate::shipped::is_shipped;

const SCHEMA: &str = "src/render/status/schema.json";

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(SCHEMA);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_shipped_schema_is_what_the_program_prints() {
    let sim = Sim::with("a100-80gb", 1);
    let printed = sim.run(&["status", "--json-schema"]).ended(0).stdout;
    is_shipped(SCHEMA, &printed);
}

#[test]
fn what_is_printed_keeps_to_the_schema() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let check = |status: &Value| {
        let errors: Vec<String> = validator
            .iter_errors(status)
            .map(|error| error.to_string())
            .collect();
        assert_eq!(errors, Vec::<String>::new(), "{status:#}");
    };
    let sim = Sim::with("a100-80gb", 2);
    check(&sim.status());
    let ran = sim.up(SMALL, &["--json"]).json();
    check(&ran["status"]);
    let client = sim.client("0.2");
    let lost = sim
        .node
        .cuda_app(&sim.node.run_dir().join("nowhere"), &["hold"]);
    let pipe = sim.node.run_dir().with_file_name("theirs");
    fs::create_dir(&pipe).unwrap();
    let mut unmanaged = sim.node.program("nvidia-cuda-mps-control");
    unmanaged
        .arg("-d")
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
        .env("CUDA_MPS_LOG_DIRECTORY", &pipe);
    assert!(unmanaged.status().unwrap().success());
    shell(format!("kill -9 {}", sim.device("1.0")["daemon_pid"])).ended(0);
    let mut status = sim.status();
    while status["outside_mps"] == serde_json::json!([]) || status["degraded"] == false {
        status = sim.status();
    }
    for list in ["devices", "clients", "outside_mps", "unmanaged", "problems"] {
        assert_ne!(status[list], serde_json::json!([]), "{list}");
    }
    check(&status);
    // A schema that everything keeps to would say nothing.
    for (pointer, wrong) in [
        ("/devices/0/state", "well"),
        ("/version", "1"),
        ("/clients/0/pid", "4711"),
    ] {
        let mut broken = status.clone();
        *broken.pointer_mut(pointer).unwrap() = wrong.into();
        assert!(!validator.is_valid(&broken), "{pointer}");
    }
    status.as_object_mut().unwrap().remove("hidden");
    assert!(!validator.is_valid(&status));
    drop((client, lost));
}

/// What a GPU could offer beyond what it has is nothing that `status` shows.
#[test]
fn nvml_is_asked_for_no_more_than_is_shown() {
    let sim = Sim::with("a100-80gb", 2);
    let sevenths =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7 } ]\n";
    sim.up(sevenths, &[]).ended(0);
    let calls = |args: &[&str]| {
        let before = sim.node.events().len();
        Ran::of(sim.command(args).env("SIMNODE_EVENTS", "all")).ended(0);
        let events = sim.node.events().split_off(before);
        let calls = events
            .into_iter()
            .filter(|event| event.what.starts_with("nvml"));
        calls.map(|event| event.what).collect::<Vec<String>>()
    };
    let status = calls(&["status"]);
    for needless in [
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        "nvmlDeviceGetGpuInstanceRemainingCapacity",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlDeviceGetGpuInstances",
    ] {
        assert!(!status.iter().any(|call| call == needless), "{needless}");
    }
    // 9 for each MIG device and 4 for its processes and memory; 14 for each GPU; 4 for the driver.
    assert!(status.len() <= 14 * 14 + 2 * 15 + 4, "{}", status.len());
    let list = calls(&["list"]);
    assert!(status.len() < list.len(), "{} {}", status.len(), list.len());
}

#[test]
fn status_fits_terminals_from_80_to_200_columns() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let client = sim.client("0.2");
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    let mut lost = sim.node.program("cuda-app");
    lost.arg("hold")
        .env("CUDA_VISIBLE_DEVICES", &uuid)
        .env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nowhere-at-all");
    let mut lost = simnode::harness::App::start(lost);
    lost.wait_up();
    for columns in [80, 100, 132, 160, 200] {
        let ran = sim.in_columns("status", columns);
        for line in ran.stdout.lines() {
            assert!(
                console::measure_text_width(line.trim_end()) <= columns,
                "{columns}: {line}"
            );
        }
        assert!(ran.stdout.contains("OUTSIDE MPS"), "{}", ran.stdout);
    }
    let only = sim
        .run(&["status", "0.2", "--columns=state,name,state"])
        .ended(0)
        .stdout;
    assert!(only.starts_with("STATE  NAME\nready  0.2\n"), "{only}");
    sim.run(&["status", "--columns", "colour"]).ended(2);
    drop((client, lost));
}

#[test]
fn no_color_means_no_colours() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let coloured = sim.in_terminal("TERM=xterm", "status", 120);
    assert!(coloured.stdout.contains("\u{1b}["), "{}", coloured.stdout);
    let plain = sim.in_terminal("TERM=xterm NO_COLOR=1", "status", 120);
    assert!(!plain.stdout.contains("\u{1b}["), "{}", plain.stdout);
}
