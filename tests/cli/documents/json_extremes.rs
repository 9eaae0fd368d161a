//! Every document keeps to its schema where there is nothing, where values are absent or very large, and where names are odd.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;

use serde_json::Value;
use testkit::{App, Ran, SMALL, Sim, assert_contains, needs_root, without_gpu};

use crate::cli::documents::json::{DOCUMENTS, keeps_to};

/// The documents that were checked, with those of errors.
#[derive(Default)]
struct Checked(BTreeSet<String>);

impl Checked {
    /// Checks what a command has printed: its document, or that of an error.
    #[track_caller]
    fn check(&mut self, ran: &Ran, document: &str) -> Vec<Value> {
        let values = serde_json::Deserializer::from_str(&ran.stdout).into_iter::<Value>();
        let values: Vec<Value> = values.map(|value| value.unwrap()).collect();
        assert!(
            !values.is_empty() || document == "logs",
            "{document}: {ran:?}"
        );
        for value in &values {
            let is_error = value.get("exit_status").is_some() && value.get("error").is_some();
            let document = if is_error { "error" } else { document };
            keeps_to(value, document);
            self.0.insert(document.to_owned());
        }
        values
    }

    /// Runs every command that prints a document, on this device.
    fn all(&mut self, sim: &Sim, device: &str, profile: &str) {
        let wanted = sim.node.dir().join("wanted.toml");
        let wanted = wanted.to_str().unwrap();
        let commands: [(&[&str], &str); 16] = [
            (&["list", "--json"], "list"),
            (&["status", "--json"], "status"),
            (&["status", device, "--json"], "status"),
            (&["logs", device, "--json"], "logs"),
            (&["doctor", "--json"], "doctor"),
            (&["verify", "--json"], "verify"),
            (&["verify", device, "--json"], "verify"),
            (&["env", device, "--format", "json"], "env"),
            (&["env", device, "--format=json"], "env"),
            (&["plan", profile, "--json"], "plan"),
            (&["up", profile, "--json", "--dry-run"], "up"),
            (&["check", profile, "--json"], "check"),
            (&["check", profile, "--models", "--json"], "check"),
            (&["check", "--models", "--json"], "models"),
            (&["advise", wanted, "--json"], "advise"),
            (
                &["set", device, "max-clients=7", "--json", "--dry-run"],
                "up",
            ),
        ];
        for (words, document) in commands {
            self.check(&sim.run(words), document);
        }
        for words in ["restart", "heal", "kill", "down"] {
            self.check(&sim.run(&[words, device, "--json", "--dry-run"]), "up");
        }
        let compare = [
            "compare",
            "--device",
            device,
            "-n",
            "1",
            "--rounds",
            "1",
            "--seconds",
            "1",
            "--json",
            "--",
        ];
        self.check(
            &sim.run(&[&compare[..], &["echo", "1e-99"]].concat()),
            "compare",
        );
    }
}

/// A file of programs for `advise`, with a rate of this size.
fn want(sim: &Sim, rate: &str) {
    let text = format!(
        "[[program]]\nname = \"a \u{202e}b\"\nrate = {rate}\n[[measured]]\nprogram = \"a \u{202e}b\"\ngpu = \"h200\"\ndevice = \"whole\"\n\
         copies = 1\nthroughput = {rate}\nlatency_ms = {rate}\n"
    );
    fs::write(sim.node.dir().join("wanted.toml"), text).unwrap();
}

#[test]
fn documents_of_a_node_with_nothing_keep_to_their_schemas() {
    let mut checked = Checked::default();
    let sim = Sim::with("h200", 1);
    want(&sim, "1");
    let profile = sim.profile("");
    checked.all(&sim, "0", profile.to_str().unwrap());
    checked.all(&sim, "nosuch", "nosuch.toml");
    for document in ["status", "list", "doctor", "verify", "plan"] {
        let words = if document == "plan" {
            vec![document, "balanced", "--json"]
        } else {
            vec![document, "--json"]
        };
        checked.check(&without_gpu(&words, ""), document);
    }
    // A command that fails prints a document, also one without `--json`.
    for words in [
        &["env", "nosuch", "--format", "json"][..],
        &["env", "nosuch", "--format=json"],
        &["env", "0", "--format", "json"],
        &["env", "0", "--nosuch", "--format", "json"],
    ] {
        let ran = sim.run(words);
        let printed = checked.check(&ran, "error");
        assert_eq!(printed[0]["exit_status"], ran.status, "{words:?}");
    }
    // The words of a program are not those of `run`.
    let ran = sim.run(&["run", "nosuch", "--", "x", "--format", "json"]);
    assert_eq!(ran.stdout, "");
}

#[test]
fn documents_with_large_numbers_and_odd_names_keep_to_their_schemas() {
    let mut checked = Checked::default();
    let sim = Sim::with("h200", 2);
    let name = "x".repeat(60) + "._-Y";
    let text = format!(
        "name = \"a \\\"b\\\" \\u00e9\\u202e \\n\\u001b[31m\"\n[[gpu]]\nselect = {{ index = [0] }}\nmig = false\nname = \"{name}\"\n\
         mps = {{ serve = \"all\", share = 1024, oversubscribe = 1024, max-clients = 1024, pinned-memory-limit = \"1024G\", active-thread-percentage = 0.1 }}\n"
    );
    let odd = sim.node.dir().join("odd \u{202e} \n name.toml");
    fs::write(&odd, &text).unwrap();
    let odd = odd.to_str().unwrap();
    checked.check(&sim.run(&["up", odd, "--json"]), "up");
    assert_eq!(sim.device(&name)["share"], 1024);
    want(&sim, "1e100");
    sim.edit(&format!("{}/device.json", sim.uuid(&name)), |record| {
        record["restarts"] = Value::from(u64::MAX);
        record["settings"]["nofile"] = Value::from(u64::MAX);
        record["since"] = Value::from("9999-12-30T00:00:00Z");
    });
    // A client with an odd command line.
    let mut client = sim.node.program("cuda-app");
    client.env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe_link(&name));
    client
        .arg0("odd \u{1b}[31m \n \"name\" \u{202e}")
        .arg("hold");
    let mut client = App::start(client);
    assert!(client.wait_up().ends_with("mps yes"));
    let by_name = odd.to_owned();
    checked.all(&sim, &name, &by_name);
    client.finish();
    let id = "7".repeat(64);
    let begin = [
        "job",
        "begin",
        "--id",
        &id,
        "--user",
        "root",
        "--devices",
        &name,
    ];
    let group = ["--cgroup", "/odd \u{202e}/job", "--json"];
    let job = sim.run(&[&begin[..], &group].concat());
    checked.check(&job, if job.status == 0 { "job" } else { "error" });
    checked.all(&sim, &name, &by_name);
    checked.check(
        &sim.run(&["check", odd, "--gpu", "h200:1024", "--json"]),
        "check",
    );
    for rate in ["1e100", "1e-100", "9e99"] {
        want(&sim, rate);
        let wanted = sim.node.dir().join("wanted.toml");
        checked.check(
            &sim.run(&["advise", wanted.to_str().unwrap(), "--json"]),
            "advise",
        );
    }
    let missed: Vec<&&str> = DOCUMENTS
        .iter()
        .filter(|document| !checked.0.contains(**document))
        .filter(|document| **document != "job" || job.status == 0)
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn documents_with_absent_values_keep_to_their_schemas() {
    needs_root!();
    let mut checked = Checked::default();
    let sim = Sim::served("a100-80gb", 2, SMALL);
    want(&sim, "1");
    let profile = sim.profile(SMALL);
    let profile = profile.to_str().unwrap().to_owned();
    let client = sim.client("0.0");
    let outside = sim.outside("0.2");
    // A user sees less than root.
    for words in [
        &["list", "--json"][..],
        &["status", "--json"],
        &["doctor", "--json"],
        &["verify", "--json"],
        &["logs", "0.0", "--json"],
    ] {
        let ran = Ran::of(&mut sim.by_nobody(words));
        checked.check(&ran, words[0]);
    }
    // Records of earlier versions have less.
    sim.edit(&format!("{}/device.json", sim.uuid("0.0")), |record| {
        let record = record.as_object_mut().unwrap();
        for key in ["gpu", "profile", "machine", "restarts", "served-id"] {
            record.remove(key);
        }
    });
    checked.all(&sim, "0.0", &profile);
    drop((client, outside));
    sim.kill_daemon("0.2");
    checked.all(&sim, "0.2", &profile);
    // A lost GPU, and one whose record cannot be read.
    sim.node.node().lose_gpu(1).unwrap();
    checked.all(&sim, "1.0", &profile);
    let broken = sim.node.run_dir().join(sim.uuid("0.2")).join("device.json");
    fs::write(&broken, "{").unwrap();
    let status = checked.check(&sim.run(&["status", "--json"]), "status");
    assert_contains(&status[0].to_string(), "record-unreadable");
    checked.all(&sim, "0.2", &profile);
}
