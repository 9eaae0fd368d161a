//! The documents of `--json`: their schemas, one name and unit for each quantity, errors as objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use jiff::Timestamp;
use serde_json::{Value, json};

use testkit::{SMALL, Sim, assert_contains, is_root, is_shipped, repository, shell, without_gpu};

/// The documents with a schema of their own; that of `up` is that of every command that changes the node.
pub(super) const DOCUMENTS: [&str; 14] = [
    "list", "status", "logs", "doctor", "verify", "compare", "advise", "env", "plan", "up",
    "check", "job", "models", "error",
];

/// The other commands that change the node.
const CHANGES: [&str; 5] = ["set", "restart", "heal", "kill", "down"];

fn path(document: &str) -> String {
    format!("fixtures/schemas/{document}.json")
}

fn schema(document: &str) -> Value {
    let path = repository().join(path(document));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Asserts that something keeps to the schema of a document.
#[track_caller]
pub(super) fn keeps_to(value: &Value, document: &str) {
    let validator = jsonschema::validator_for(&schema(document)).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| error.to_string())
        .collect();
    assert_eq!(errors, Vec::<String>::new(), "{document}: {value:#}");
}

#[test]
fn the_shipped_schemas_are_what_the_program_prints() {
    let printed = |document: &str| without_gpu(&["schema", document], "").ended(0).stdout;
    for document in DOCUMENTS {
        is_shipped(&path(document), &printed(document));
    }
    for command in CHANGES {
        assert_eq!(printed(command), printed("up"), "{command}");
    }
}

/// The words that completion offers after these.
fn offered(words: &[&str]) -> BTreeSet<String> {
    let words = [&["__complete", "mig-mps"], words].concat();
    let lines = without_gpu(&words, "").ended(0).stdout;
    let first = |line: &str| line.split('\t').next().unwrap().to_owned();
    lines.lines().map(first).collect()
}

#[test]
fn every_command_that_prints_json_has_a_schema() {
    let has_json = |command: &String| offered(&[command, "--jso"]).contains("--json");
    let mut with_json: BTreeSet<String> = offered(&[""]).into_iter().filter(has_json).collect();
    assert!(with_json.len() > 8, "{with_json:?}");
    let documents = ["profile", "env", "job", "models", "error"].map(str::to_owned);
    with_json.extend(documents);
    assert_eq!(with_json, offered(&["schema", ""]));
}

#[test]
fn what_each_command_prints_keeps_to_its_schema() {
    let sim = Sim::with("a100-80gb", 2);
    let path = sim.profile(SMALL);
    let profile = path.to_str().unwrap();
    let printed = |args: &[&str], document: &str| {
        let value = sim.run(args).json();
        keeps_to(&value, document);
        value
    };
    printed(&["plan", profile, "--json"], "plan");
    let planned = printed(&["up", profile, "--json", "--dry-run"], "up");
    assert_eq!(
        (&planned["status"], &planned["changed"]),
        (&json!(null), &json!(false))
    );
    assert_eq!(planned["plan"]["changes"], true);
    assert_eq!(printed(&["up", profile, "--json"], "up")["changed"], true);
    assert_eq!(printed(&["up", profile, "--json"], "up")["changed"], false);
    printed(&["list", "--json"], "list");
    let wanted = sim.node.dir().join("wanted.toml");
    let figures = "[[measured]]\nprogram = \"a\"\ngpu = \"a100-80gb\"\ndevice = \"2g\"\ncopies = 2\nthroughput = 5\n";
    fs::write(
        &wanted,
        format!("[[program]]\nname = \"a\"\nrate = 9\n{figures}"),
    )
    .unwrap();
    let advice = printed(&["advise", wanted.to_str().unwrap(), "--json"], "advise");
    assert_eq!(
        (&advice["slices"], &advice["programs"][0]["rate"]),
        (&json!(4), &json!(10.0))
    );
    printed(&["status", "--json"], "status");
    let set = ["set", "0.0", "active-thread-percentage=50", "--json"];
    let made = printed(&set, "up");
    let settings = &made["plan"]["gpus"][0]["steps"][0]["settings"];
    assert_eq!(
        settings,
        &json!([{ "key": "active-thread-percentage", "from": "100", "to": "50" }])
    );
    assert_eq!(printed(&set, "up")["changed"], false);
    let client = sim.client("0.0");
    let pid = client.pid().to_string();
    let killed = printed(&["kill", "0.0", &pid, "--json", "--yes"], "up");
    assert_eq!(killed["plan"]["kill"]["victims"][0]["pid"], client.pid());
    printed(&["restart", "0.2", "--json", "--yes"], "up");
    printed(&["heal", "--json"], "up");
    let logs = sim.run(&["logs", "0.0", "--json"]).ended(0).stdout;
    assert!(logs.lines().count() > 3, "{logs}");
    for line in logs.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        keeps_to(&line, "logs");
        assert_eq!(line["device"], "0.0");
        line["time"].as_str().unwrap().parse::<Timestamp>().unwrap();
    }
    printed(&["doctor", "--json"], "doctor");
    printed(&["verify", "--json"], "verify");
    printed(&["env", "0.0", "--format", "json"], "env");
    if is_root("what_each_command_prints_keeps_to_its_schema") {
        let begin = [
            "job",
            "begin",
            "--id",
            "7",
            "--user",
            "root",
            "--devices",
            "0.0",
        ];
        let with_group = [&begin[..], &["--cgroup", "/jobs/7", "--json"]].concat();
        printed(&with_group, "job");
    }
    let program = ["-n", "1", "--rounds", "1", "--json", "--", "echo", "5"];
    let compare = [&["compare", "--device", "0.2"], &program[..]].concat();
    printed(&compare, "compare");
    printed(&["check", profile, "--json"], "check");
    printed(&["check", profile, "--json", "--models"], "check");
    let gpus = ["check", profile, "--json", "--gpu", "h100-80gb-sxm:2"];
    printed(&gpus, "check");
    printed(&["check", "--models", "--json"], "models");
    drop(client);
    printed(
        &["down", "--json", "--force", "--destroy-mig", "--yes"],
        "up",
    );
}

/// The properties of a schema and of everything in it, with their types.
fn properties(schema: &Value, found: &mut Vec<(String, Value)>) {
    match schema {
        Value::Object(object) => {
            for (name, property) in object
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                found.push((name.clone(), property.clone()));
            }
            object.values().for_each(|value| properties(value, found));
        }
        Value::Array(array) => array.iter().for_each(|value| properties(value, found)),
        _ => {}
    }
}

/// The types of a property, without null.
fn types(property: &Value) -> BTreeSet<String> {
    let one = |value: &Value| value.as_str().unwrap().to_owned();
    let mut types: BTreeSet<String> = match &property["type"] {
        Value::String(_) => [one(&property["type"])].into(),
        Value::Array(types) => types.iter().map(one).collect(),
        _ => {
            let parts = ["anyOf", "oneOf"].map(|key| property[key].as_array());
            let parts = parts.into_iter().flatten().flatten();
            let whole = property.get("$ref").map(Value::to_string);
            whole.into_iter().chain(parts.flat_map(types)).collect()
        }
    };
    types.remove("null");
    types
}

#[test]
fn a_quantity_has_one_name_one_unit_and_one_type_in_all_documents() {
    let mut found = Vec::new();
    for document in DOCUMENTS {
        properties(&schema(document), &mut found);
    }
    assert!(found.len() > 100, "{}", found.len());
    // Numbers that are no quantities, and counts.
    let bare = [
        "version",
        "exit_status",
        "index",
        "gpu",
        "reason_of_gpu",
        "pid",
        "daemon_pid",
        "server_pid",
        "uid",
        "line",
        "start",
        "size",
        "placement_units",
        "profile_id",
        "gpu_instance_id",
        "compute_instance_id",
        "compute_instances",
        "multiprocessors",
        "copy_engines",
        "video_decoders",
        "video_encoders",
        "jpeg_decoders",
        "optical_flow_accelerators",
        "slices",
        "most",
        "free",
        "client_count",
        "clients_unseen",
        "hidden_processes",
        "client_limit",
        "max_clients",
        "share",
        "slurm_job",
        "copies",
        "rounds",
        "largest_free_block",
        "least_gpus",
        "least_slices",
        "undivided_gpus",
        "wanted_copies",
        // In the unit of what was measured.
        "rate",
        "wanted_rate",
        // Of a ratio, or of what the document's "quantity" says.
        "least",
        "mean",
        "greatest",
        "others",
    ];
    let units = ["_bytes", "_seconds", "_percent", "_percentage"];
    for name in bare {
        assert!(found.iter().any(|(known, _)| known == name), "{name}");
    }
    let mut types_of: BTreeMap<String, (BTreeSet<String>, Value)> = BTreeMap::new();
    for (name, property) in found {
        let types = types(&property);
        if types.contains("integer") || types.contains("number") {
            let has_unit = units.iter().any(|unit| name.ends_with(unit));
            assert!(
                has_unit || bare.contains(&name.as_str()),
                "{name} has no unit"
            );
        }
        if property
            .get("description")
            .and_then(Value::as_str)
            .is_some_and(|text| text.contains("time at"))
        {
            assert_eq!(property["format"], "date-time", "{name}");
        }
        let known = types_of
            .entry(name.clone())
            .or_insert((types.clone(), property.clone()));
        assert!(
            known.0 == types,
            "{name} has two types: {} and {property}",
            known.1
        );
    }
}

/// Only the memory may differ: `list` does not ask the driver for that of each MIG device.
#[test]
fn a_device_has_the_same_description_in_list_and_status() {
    let sim = Sim::small();
    let list = sim.run(&["list", "--json"]).ended(0);
    let list: Value = serde_json::from_str(&list.stdout).unwrap();
    let devices = list["gpus"][0]["devices"].as_array().unwrap();
    assert!(!devices.is_empty());
    for device in devices {
        let status = sim.device(device["name"].as_str().unwrap());
        let (device, status) = (device.as_object().unwrap(), status.as_object().unwrap());
        assert!(device.len() >= 9, "{device:#?}");
        for (key, value) in device
            .iter()
            .filter(|(key, _)| *key != "memory_total_bytes")
        {
            assert_eq!(status.get(key), Some(value), "{key}");
        }
    }
}

/// A command with `--json` prints one object when it fails, and its exit status is in it.
#[test]
fn an_error_is_an_object() {
    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(SMALL);
    let profile = path.to_str().unwrap();
    sim.run(&["up", profile]).ended(0);
    let client = sim.client("0.0");
    let too_large = sim.node.dir().join("large.toml");
    fs::write(&too_large, SMALL.replace("\"2g\"", "\"2g\", count = 9")).unwrap();
    let too_large = too_large.to_str().unwrap();
    let failed = |args: &[&str], status: i32, what: &str| {
        let ran = sim.run(args).ended(status);
        let document: Value = serde_json::from_str(&ran.stdout).unwrap();
        keeps_to(&document, "error");
        assert_eq!(document["exit_status"], status);
        let said = document["error"]["what"].as_str().unwrap();
        assert_contains(said, what);
        // A person who reads along sees the same.
        let first = said.lines().next().unwrap();
        assert_contains(&ran.stderr, first);
        document
    };
    failed(
        &["status", "x", "--json"],
        2,
        "no device has the name \"x\"",
    );
    failed(&["list", "x", "--json"], 2, "no device has the name \"x\"");
    failed(&["logs", "x", "--json"], 2, "no device has the name \"x\"");
    failed(&["plan", "no.toml", "--json"], 2, "no.toml");
    failed(&["up", too_large, "--json"], 5, "");
    failed(&["set", "x", "max-clients=2", "--json"], 2, "no device");
    failed(&["restart", "--json"], 2, "no device is selected");
    failed(&["kill", "0.0", "1", "--json"], 2, "");
    let refused = failed(&["down", "0.0", "--json"], 4, "");
    assert_eq!(refused["error"]["hints"].as_array().unwrap().len(), 1);
    // Mistakes on the command line are clap's to find.
    let mistyped = failed(
        &["status", "--json", "--colums=x"],
        2,
        "unexpected argument '--colums' found",
    );
    assert!(
        mistyped["error"]["hints"][0]
            .as_str()
            .unwrap()
            .contains("--columns")
    );
    failed(
        &["kill", "0.0", "abc", "--json"],
        2,
        "expected a number from 1",
    );
    // The document of check has its error.
    for gpu in [&["--gpu", "a100-80gb"][..], &["--models"], &[]] {
        let args = [&["check", too_large, "--json"], gpu].concat();
        let ran = sim.run(&args).ended(5);
        let document: Value = serde_json::from_str(&ran.stdout).unwrap();
        keeps_to(&document, "check");
        assert_eq!(document["fits"], false);
        assert!(document["error"]["what"].is_string(), "{document:#}");
    }
    failed(&["check", "no.toml", "--json"], 2, "no.toml");
    drop(client);
}

#[test]
fn every_part_of_a_status_keeps_to_its_schema() {
    let validator = jsonschema::validator_for(&schema("status")).unwrap();
    let check = |status: &Value| keeps_to(status, "status");
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
