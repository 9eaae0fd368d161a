//! The interfaces that scripts rely on: `fixtures/stable/VERSION` has those of an earlier version. A later version adds to
//! them; it neither removes nor changes what they have.
//!
//! `FREEZE=1 cargo test --test suite -- stable` writes the directory of the present version.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use testkit::{Sim, repository, without_gpu};

use super::json::DOCUMENTS;

const METRICS: &str = "metrics";

fn stable() -> PathBuf {
    repository().join("fixtures/stable")
}

fn earlier_versions() -> Vec<PathBuf> {
    let entries = fs::read_dir(stable()).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn read(file: &std::path::Path) -> Value {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str(&text).unwrap()
}

/// Removes the sentences, which may change.
fn without_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("description").is_some_and(Value::is_string) {
                map.remove("description");
            }
            map.values_mut().for_each(without_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(without_descriptions),
        _ => {}
    }
}

fn schema(document: &str) -> Value {
    let mut schema = without_gpu(&["schema", document], "").ended(0).json();
    without_descriptions(&mut schema);
    schema
}

/// The series of a node with a device of each kind, and their labels; the ids of problems and the states of devices too.
fn metrics() -> Value {
    let sim = Sim::whole("");
    let client = sim.client("0");
    let outside = sim.outside("0");
    let profile = sim.node.dir().join("profile.toml");
    let text = sim
        .run(&["metrics", "--profile", profile.to_str().unwrap()])
        .ended(0)
        .stdout;
    outside.finish();
    client.finish();
    let mut series: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            kinds.insert(name, kind);
        }
        if line.starts_with('#') {
            continue;
        }
        let (name, rest) = line.split_once(['{', ' ']).unwrap();
        let labels = series.entry(name).or_default();
        for label in rest.split("\",").filter(|label| label.contains("=\"")) {
            let (label, value) = label.split_once("=\"").unwrap();
            labels.insert(label);
            if ["id", "state"].contains(&label) {
                let value = value.split('"').next().unwrap();
                values.entry(label).or_default().insert(value);
            }
        }
    }
    assert!(series.len() > 15 && values.len() == 2, "{text}");
    json!({ "labels": series, "types": kinds, "values": values })
}

/// What a schema describes, by path: the types, the constants, and whether it is always there.
#[derive(Debug, Default)]
struct Shape {
    types: BTreeSet<String>,
    constants: BTreeSet<String>,
    is_required: bool,
}

fn type_of(constant: &Value) -> &'static str {
    match constant {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn collect_shapes(
    root: &Value,
    schema: &Value,
    path: &str,
    followed: &[&str],
    found: &mut BTreeMap<String, Shape>,
) {
    if let Some(reference) = schema["$ref"].as_str()
        && !followed.contains(&reference)
    {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        let followed = [followed, &[reference]].concat();
        collect_shapes(root, target, path, &followed, found);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for part in schema[key].as_array().into_iter().flatten() {
            collect_shapes(root, part, path, followed, found);
        }
    }
    let shape = found.entry(path.to_owned()).or_default();
    match &schema["type"] {
        Value::String(one) => _ = shape.types.insert(one.clone()),
        Value::Array(several) => shape
            .types
            .extend(several.iter().map(|one| one.as_str().unwrap().to_owned())),
        _ => {}
    }
    let constants = schema["enum"].as_array().into_iter().flatten();
    for constant in constants.chain(schema.get("const")) {
        shape.types.insert(type_of(constant).to_owned());
        shape.constants.insert(constant.to_string());
    }
    let is_described = ["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"];
    if !is_described.iter().any(|key| schema.get(key).is_some()) {
        shape.types.insert("any".to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        collect_shapes(root, property, &path, followed, found);
        let required = schema["required"].as_array().into_iter().flatten();
        found.entry(path).or_default().is_required |=
            required.into_iter().any(|required| required == name);
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[key].is_object() {
            let path = format!("{path}{mark}");
            collect_shapes(root, &schema[key], &path, followed, found);
        }
    }
}

fn shapes(schema: &Value) -> BTreeMap<String, Shape> {
    let mut found = BTreeMap::new();
    collect_shapes(schema, schema, "", &[], &mut found);
    found
}

/// The changes of a schema that break scripts. A profile is read, and everything else is written by the program.
fn breaks(document: &str, earlier: &Value, present: &Value) -> Vec<String> {
    let is_read = document == "profile";
    let present = shapes(present);
    let mut found = Vec::new();
    for (path, earlier) in shapes(earlier) {
        let Some(present) = present.get(&path) else {
            found.push(format!("{document}{path} is gone"));
            continue;
        };
        let (accepted, given) = if is_read {
            (&present.types, &earlier.types)
        } else {
            (&earlier.types, &present.types)
        };
        if !given.is_subset(accepted) {
            found.push(format!("{document}{path}: {given:?} was {accepted:?}"));
        }
        if !earlier.constants.is_subset(&present.constants) {
            let gone: Vec<_> = earlier.constants.difference(&present.constants).collect();
            found.push(format!("{document}{path}: {gone:?} is gone"));
        }
        if is_read && earlier.constants.is_empty() && !present.constants.is_empty() {
            found.push(format!("{document}{path}: only {:?}", present.constants));
        }
        let was_weakened = earlier.is_required && !present.is_required;
        let was_demanded = present.is_required && !earlier.is_required;
        if (is_read && was_demanded) || (!is_read && was_weakened) {
            found.push(format!("{document}{path}: whether it is required"));
        }
    }
    found
}

/// The names of a document of names that are gone.
fn missing(earlier: &Value, present: &Value, path: &str) -> Vec<String> {
    match (earlier, present) {
        (Value::Object(earlier), Value::Object(present)) => earlier
            .iter()
            .flat_map(|(key, value)| {
                let path = format!("{path}.{key}");
                present.get(key).map_or_else(
                    || vec![format!("{path} is gone")],
                    |now| missing(value, now, &path),
                )
            })
            .collect(),
        (Value::Array(earlier), Value::Array(present)) => earlier
            .iter()
            .filter(|item| !present.contains(item))
            .map(|item| format!("{path}: {item} is gone"))
            .collect(),
        _ if earlier == present => Vec::new(),
        _ => vec![format!("{path}: {present} was {earlier}")],
    }
}

#[test]
fn interfaces_only_grow() {
    let documents = || DOCUMENTS.into_iter().chain(["profile"]);
    let mut present: BTreeMap<&str, Value> = documents()
        .map(|document| (document, schema(document)))
        .collect();
    present.insert(METRICS, metrics());
    if std::env::var_os("FREEZE").is_some() {
        let version = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
        let directory = stable().join(version);
        fs::create_dir_all(&directory).unwrap();
        for (name, content) in &present {
            let text = serde_json::to_string_pretty(content).unwrap() + "\n";
            fs::write(directory.join(format!("{name}.json")), text).unwrap();
        }
    }
    let versions = earlier_versions();
    assert!(!versions.is_empty());
    for version in versions {
        let mut broken = Vec::new();
        for (name, present) in &present {
            let file = version.join(format!("{name}.json"));
            if !file.exists() {
                // A later version may have more documents.
                continue;
            }
            let earlier = read(&file);
            broken.extend(match *name {
                METRICS => missing(&earlier, present, METRICS),
                document => breaks(document, &earlier, present),
            });
        }
        for file in fs::read_dir(&version).unwrap() {
            let name = file.unwrap().path();
            let name = name.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(present.contains_key(name.as_str()), "{name} is gone");
        }
        assert_eq!(broken, Vec::<String>::new(), "{}", version.display());
    }
}

#[test]
fn a_change_of_an_interface_is_found() {
    let object = |properties: Value, required: Value| json!({ "type": "object", "properties": properties, "required": required });
    let earlier = object(
        json!({ "a": { "type": "string" }, "b": { "enum": ["x", "y"] }, "c": { "$ref": "#/$defs/c" } }),
        json!(["a"]),
    );
    let with = |mut schema: Value, kind: Value| {
        schema["$defs"] = json!({ "c": { "type": "array", "items": { "type": kind } } });
        schema
    };
    let earlier = with(earlier, json!("integer"));
    let changed = |document: &str, key: &str, value: Value| {
        let mut present = earlier.clone();
        *present.pointer_mut(key).unwrap() = value;
        breaks(document, &earlier, &present)
    };
    for (key, value, of_output, of_input) in [
        ("/properties/a/type", json!(["string", "null"]), 1, 0),
        ("/properties/a/type", json!("integer"), 1, 1),
        ("/properties/a", json!({ "enum": ["x"] }), 0, 1),
        ("/properties/b/enum", json!(["x", "y", "z"]), 0, 0),
        ("/properties/b/enum", json!(["x"]), 1, 1),
        ("/properties/c", json!({}), 2, 2),
        ("/required", json!([]), 1, 0),
        ("/required", json!(["a", "b"]), 0, 1),
        ("/$defs/c/items/type", json!("number"), 1, 1),
    ] {
        assert_eq!(
            changed("status", key, value.clone()).len(),
            of_output,
            "{key} {value}"
        );
        assert_eq!(
            changed("profile", key, value.clone()).len(),
            of_input,
            "{key} {value}"
        );
    }
    let names = json!({ "labels": { "a": ["x", "y"] } });
    assert_eq!(
        missing(
            &names,
            &json!({ "labels": { "a": ["y", "x", "z"], "b": [] } }),
            ""
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        missing(&names, &json!({ "labels": { "a": ["y"] } }), "").len(),
        1
    );
    assert_eq!(missing(&names, &json!({ "labels": {} }), "").len(), 1);
}
