//! Clients that are to end, and commands about clients.

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE};
use testkit::{SMALL, is_alive, shell, stop};

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::with_profile("a100-80gb", 1, SMALL);
    let sim = &stage.sim;
    let (client, other) = (sim.client("0.2"), sim.client("0.0"));
    let kill = |pid: u32, rest: &str| format!("mig-mps kill 0.2 {pid}{rest}");
    stage.show(
        topic,
        "A client is to end, and nobody can agree",
        &kill(client.pid(), ""),
    );
    stage.show(
        topic,
        "A client of another device",
        &kill(other.pid(), " --yes"),
    );
    let device = sim.device("0.2");
    let number = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    stage.show(
        topic,
        "The daemon is no client",
        &kill(number(&device["daemon_pid"]), " --yes"),
    );
    stage.show(
        topic,
        "The server is no client",
        &kill(number(&device["servers"][0]["pid"]), " --yes"),
    );
    stage.show(
        topic,
        "A program of another kind",
        &kill(std::process::id(), " --yes"),
    );
    stop(client.pid());
    stage.show(
        topic,
        "The process does not notice",
        &kill(client.pid(), " --yes"),
    );
    let term = kill(client.pid(), " --signal --yes");
    stage.show(topic, "The process does not end", &term);
    drop((client, other));
    let daemon = device["daemon_pid"].clone();
    stop(&daemon);
    stage.show(topic, "The daemon is stopped", "mig-mps kill 0.2 1 --yes");
    shell(format!("kill -KILL {daemon}")).ended(0);
    while is_alive(&daemon) {
        std::thread::yield_now();
    }
    stage.show(topic, "The daemon is dead", "mig-mps kill 0.2 1 --yes");
    let exclusive = format!("[mps]\ncompute-mode = \"exclusive-process\"\n{WHOLE}");
    let stage = Stage::with_profile("h200", 1, &exclusive);
    stage.show(
        topic,
        "compare on a GPU for MPS alone",
        "mig-mps compare -n 2 -- true",
    );
    let stage = Stage::with_profile("h200", 1, WHOLE);
    stage.show(
        topic,
        "compare with a program that fails",
        "mig-mps compare -n 2 -- false",
    );
    stage.show(
        topic,
        "set to a value that does not exist",
        "mig-mps set 0 max-clients=many",
    );
    stage.show(
        topic,
        "set of a key that does not exist",
        "mig-mps set 0 threads=50",
    );
}
