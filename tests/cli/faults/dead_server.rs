//! Eager servers that are gone while their daemons live.

use insta::assert_snapshot;
use serde_json::json;

use testkit::{Sim, WHOLE, assert_contains, kill, needs_root, whole};

const EAGER: &str = r#"
[mps]
serve = "one-at-a-time"
server = "eager"

[[gpu]]
select = { all = true }
mig = false
"#;

/// Kills the server of a device, and waits until its daemon knows.
fn kill_server(sim: &Sim, name: &str) {
    kill(&sim.device(name)["servers"][0]["pid"]);
    sim.await_state(name, "no server yet");
}

#[test]
fn an_eager_server_that_was_killed_is_started_by_the_next_up_in_the_daemon_that_lives() {
    needs_root!();
    let sim = Sim::served("h200", 2, EAGER);
    let profile = sim.profile(EAGER).display().to_string();
    let before = sim.device("0");
    kill_server(&sim, "0");
    let plan = sim.run(&["plan", &profile, "--exit-code"]).ended(3);
    assert_snapshot!(plan.tidy(), @"
    GPU 0  NVIDIA H200  GPU-…
      + start the server of 1 daemon (it has exited): 0

    Plan: start 1 server.
    Apply with: mig-mps up profile.toml
    ");
    let plan = sim.run(&["plan", &profile, "--json"]).json();
    assert_eq!(
        plan["gpus"][0]["steps"],
        json!([{ "action": "start-server", "device": "0", "joint_gpus": [], "because": "it has exited" }])
    );
    // Nobody is disturbed, and nobody is asked.
    sim.up(EAGER, &[]).ended(0);
    let after = sim.device("0");
    assert_eq!(after["state"], "ready");
    assert_eq!(after["daemon_pid"], before["daemon_pid"]);
    assert_ne!(after["servers"][0]["pid"], before["servers"][0]["pid"]);
    assert_eq!(after["servers"][0]["user"], before["servers"][0]["user"]);
    sim.up_does_nothing(EAGER);
}

#[test]
fn it_starts_with_what_the_daemon_has_been_set_to() {
    let sim = Sim::whole("active-thread-percentage = 50");
    kill_server(&sim, "0");
    let to = whole("active-thread-percentage = 25");
    let said = sim.up(&to, &[]).ended(0).stdout;
    assert_contains(&said, "~ set 1 daemon");
    assert_contains(&said, "+ start the server of 1 daemon");
    assert_eq!(sim.device("0")["state"], "ready");
    let default = "get_default_active_thread_percentage\n";
    assert_eq!(sim.ask("0", default), "25.0\n");
    let server = sim.device("0")["servers"][0]["pid"].clone();
    let of_server = format!("get_active_thread_percentage {server}\n");
    assert_eq!(sim.ask("0", &of_server), "25.0\n");
    sim.up_does_nothing(&to);
}

#[test]
fn one_that_does_not_come_up_is_said_to() {
    let sim = Sim::whole("");
    kill_server(&sim, "0");
    sim.node.fault("server start").fails(1).unwrap();
    let said = sim.up(WHOLE, &[]).ended(1).stderr;
    assert_contains(&said, "start the server of 0");
    sim.up(WHOLE, &[]).ended(0);
    assert_eq!(sim.device("0")["state"], "ready");
}

/// A server is started for its daemon's start, or for one that was there: a daemon that was to wait for its
/// first client goes on waiting.
#[test]
fn a_lazy_daemon_gets_none() {
    let sim = Sim::with("h200", 1);
    let whole = |server: &str| whole(&format!("server = \"{server}\""));
    sim.up(&whole("lazy"), &[]).ended(0);
    for server in ["lazy", "eager"] {
        sim.up_does_nothing(&whole(server));
    }
    assert_eq!(sim.happened("server launch"), 0);
    // One that was eager and is to be lazy no longer needs what it has lost.
    let sim = Sim::served("h200", 1, &whole("eager"));
    kill_server(&sim, "0");
    sim.up_does_nothing(&whole("lazy"));
}
