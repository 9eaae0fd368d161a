//! The same work with the control programs of an older and of a newer driver.

use serde_json::json;
use simnode::node::ControlVersion;

use crate::common::{Sim, in_state, is_alive};
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
            state.policy.control = version;
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
            assert_eq!(
                ask(&sim, device, DEFAULTS),
                "50.0\n1536M\n1\n",
                "{version:?}"
            );
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
            assert_eq!(
                ask(&sim, device, DEFAULTS),
                "25.0\n1024M\n1\n",
                "{version:?}"
            );
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
