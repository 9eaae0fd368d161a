//! The same work with the control programs of an older and of a newer driver.

use insta::assert_snapshot;
use serde_json::json;
use simnode::node::ControlVersion;

use crate::common::{Sim, in_state, is_alive, is_root};
use crate::settings::ask;

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

#[test]
fn drivers_550_and_580_are_brought_up_seen_set_and_taken_down() {
    for version in [ControlVersion::R550, ControlVersion::R580] {
        let sim = Sim::with("a100-80gb", 2);
        let update = sim.node.node().update(|state| {
            state.install(version);
            // As many sessions that meet another are refused in silence as were measured.
            state.policy.silent_refusals = 38;
        });
        update.unwrap();
        sim.up(PROFILE, &[]).ended(0);
        let again = sim.up(PROFILE, &[]).ended(0);
        assert!(
            again.stderr.starts_with("Nothing to do"),
            "{}",
            again.stderr
        );
        for device in ["0.0", "0.2", "1"] {
            assert_eq!(ask(&sim, device, DEFAULTS), "50.0\n1G\n1\n", "{version:?}");
        }
        let status = sim.status();
        assert_eq!(in_state(&status, "ready"), ["0.0", "0.2"]);
        assert_eq!(in_state(&status, "no server yet"), ["1"]);
        let (first, second) = (sim.client("0.2"), sim.client("1"));
        assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2", "1"]);
        for device in ["0.2", "1"] {
            assert_eq!(sim.device(device)["clients"], 1, "{version:?}");
            let set = [
                "set",
                device,
                "active-thread-percentage=25",
                "pinned-memory-limit=1G",
            ];
            sim.run(&set).ended(0);
            assert_eq!(ask(&sim, device, DEFAULTS), "25.0\n1G\n1\n", "{version:?}");
        }
        // A daemon that dies, one whose clients must go, and one without any.
        let daemon = sim.device("0.0")["daemon_pid"].clone();
        crate::common::shell(format!("kill -9 {daemon}")).ended(0);
        while is_alive(&daemon) {
            std::thread::yield_now();
        }
        assert_eq!(in_state(&sim.status(), "dead"), ["0.0"]);
        sim.run(&["down"]).ended(4);
        assert!(first.finish().status.success());
        sim.run(&["down", "--now"]).ended(0);
        let ended = second.finish();
        assert!(ended.output.contains("err 810"), "{}", ended.output);
        assert_eq!(in_state(&sim.status(), "no daemon").len(), 3);
        assert_eq!(sim.status()["foreign"], json!([]));
    }
}

/// The control program of 550 answers `-multiuser-server` with its usage.
#[test]
fn several_users_at_once_are_refused_by_a_driver_that_has_no_server_for_them() {
    if !is_root("serve = \"all\"") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let update = sim
        .node
        .node()
        .update(|state| state.install(ControlVersion::R550));
    update.unwrap();
    let whole = |serve: &str| {
        format!(
            "[[gpu]]\nselect = {{ all = true }}\nmig = false\nmps = {{ serve = \"{serve}\" }}\n"
        )
    };
    let path = sim.profile(&whole("all")).display().to_string();
    let refused = sim.run(&["plan", &path]).ended(2);
    assert_snapshot!(crate::common::plain(&refused.stderr), @r#"
    error: profile.toml:4:17: "all" cannot be here: driver 550.163.01 has no multi-user server
      |
    4 | mps = { serve = "all" }
      |                 ^^^^^ driver 555 is the first with one; "one-at-a-time" and "user:NAME" do without
    "#);
    for serve in ["all", "group:root"] {
        let refused = sim.up(&whole(serve), &["--yes"]).ended(2);
        let why = format!("\"{serve}\" cannot be here: driver 550.163.01 has no multi-user server");
        assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    }
    assert_eq!(sim.run_dir(), [""; 0]);
    // Nobody is advised to use it.
    let said = sim.up(&whole("one-at-a-time"), &[]).ended(0).stderr;
    assert!(said.contains("waits in cuInit"), "{said}");
    assert!(!said.contains("all"), "{said}");
    sim.node
        .node()
        .update(|state| state.install(ControlVersion::R580))
        .unwrap();
    sim.profile(&whole("all"));
    let plan = sim.run(&["plan", &path]).ended(0).stdout;
    assert!(plan.contains("serve is"), "{plan}");
}
