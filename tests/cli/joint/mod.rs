//! Joint devices: several whole GPUs with one daemon.

mod absent;
mod apart;
mod caller;
mod change;
mod choice;
mod limits;
mod programs;
mod settings;
mod stopped;

use serde_json::Value;
use testkit::{App, Sim};

/// GPUs 0 and 1 as one device, for everybody.
const TRAINERS: &str = "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\nname = \"trainers\"\njoint = true\n\
                        mps = { serve = \"all\" }\n";

/// The same with these settings: `key = value, key = value`.
fn trainers(settings: &str) -> String {
    TRAINERS.replace("\"all\" }", &format!("\"all\", {settings} }}"))
}

/// Three H200s, of which two are a joint device with these settings.
pub(super) fn joint(settings: &str) -> Sim {
    Sim::served("h200", 3, &trainers(settings))
}

/// A client of a device on the GPUs with these ordinals.
#[track_caller]
pub(super) fn client_on(sim: &Sim, device: &str, ordinals: &str) -> App {
    let mut app = sim.app(device, &["hold", "--on", ordinals]);
    let up = app.wait_up();
    assert!(up.ends_with("mps yes"), "{up}");
    app
}

/// The UUID of a GPU.
fn gpu(sim: &Sim, index: usize) -> String {
    sim.node.node().state().unwrap().gpus[index].uuid.clone()
}

/// The clients of `status --json`.
fn clients(sim: &Sim) -> Vec<Value> {
    sim.status()["clients"].as_array().unwrap().clone()
}

/// The ids of the problems of `status --json`.
fn problems(sim: &Sim) -> Vec<String> {
    let status = sim.status();
    let problems = status["problems"].as_array().unwrap().iter();
    problems
        .map(|problem| problem["id"].as_str().unwrap().to_owned())
        .collect()
}
