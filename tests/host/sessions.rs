//! How often commands ask daemons: a control session costs 1 to 2 ms, adds lines to the daemon's log, and keeps others waiting.

use testkit::Sim;

/// Commands, with the most control sessions that they open for each device of the node, and for those that they name. A server
/// that starts is asked until it is ready: two sessions are for that.
const COMMANDS: [(&str, usize, usize); 11] = [
    ("status", 0, 0),
    ("heal", 0, 0),
    ("plan", 1, 0),
    // The plan, the setting of the daemon and of its server, and the check of both.
    ("set 0.0 active-thread-percentage=50", 0, 4),
    ("set * active-thread-percentage=40", 4, 0),
    // The plan, the end, the start of a server with its state, and the check.
    ("restart 0.0 --yes", 0, 5 + 2),
    ("down 0.0 --drain 2s --yes", 0, 2),
    ("start 0.0", 0, 3 + 2),
    ("up --yes", 5, 0),
    ("up --yes", 1, 0),
    ("down --yes", 2, 0),
];

#[test]
fn only_the_devices_of_a_change_are_asked_and_once() {
    for count in [1, 7] {
        let sim = Sim::with("a100-80gb", 2);
        let profile = format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ profile = \"1g\", count = {count} }} ]\n"
        );
        let profile = sim.profile(&profile);
        let profile = profile.to_str().unwrap();
        sim.run(&["up", profile, "--yes"]).ended(0);
        for (command, for_each, in_all) in COMMANDS {
            let before = sim.happened("session open");
            let args: Vec<&str> = command.split(' ').collect();
            sim.run(&args).ended(0);
            let sessions = sim.happened("session open") - before;
            let most = for_each * 2 * count + in_all;
            assert!(
                sessions <= most,
                "{command}: {sessions} sessions, and not {most}"
            );
        }
    }
}

/// Whoever waits for a client looks often, and asks seldom.
#[test]
fn a_change_that_waits_does_not_ask_each_time() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    let before = sim.happened("session open");
    sim.run(&["down", "0", "--drain", "4s", "--yes"]).ended(4);
    let sessions = sim.happened("session open") - before;
    assert!((1..=2).contains(&sessions), "{sessions} sessions");
    client.finish();
}
