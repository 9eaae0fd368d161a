//! As many clients as a device takes, and one more.

use serde_json::json;
use testkit::{App, Sim, assert_contains};

#[test]
fn forty_eight_clients_are_shown_and_the_next_is_refused() {
    let sim = Sim::whole("");
    let mut clients: Vec<App> = (0..48).map(|_| sim.app("0", &["hold"])).collect();
    for client in &mut clients {
        assert!(client.wait_up().ends_with("mps yes"));
    }
    let status = sim.status();
    assert_eq!(status["clients"].as_array().unwrap().len(), 48);
    let device = &status["devices"][0];
    assert_eq!(
        (
            &device["state"],
            &device["client_count"],
            &device["client_limit"]
        ),
        (&json!("ready"), &json!(48), &json!(48))
    );
    let full =
        "it has reached its limit of clients: another program's context fails with CUDA error 46";
    let remark = json!({ "id": "clients-full", "device": "0", "what": full });
    assert_eq!(status["remarks"], json!([remark]));
    assert_eq!(status["degraded"], false);
    let refused = sim.app("0", &["hold"]).finish();
    assert_contains(&refused.output, "malloc err 46");
    // It is nowhere: no client, and not outside MPS either.
    let status = sim.status();
    assert_eq!(status["devices"][0]["client_count"], 48);
    assert_eq!(status["outside_mps"], json!([]));
    let text = sim
        .run(&["status", "--columns", "name,clients"])
        .ended(0)
        .stdout;
    assert_contains(&text, "48/48");
    assert!(clients.pop().unwrap().finish().status.success());
    let status = sim.status();
    assert_eq!(status["remarks"], json!([]));
    assert!(sim.client("0").finish().status.success());
}

/// MPS does not enforce the number of clients that the device is meant for.
#[test]
fn more_clients_than_the_device_is_meant_for_are_reported() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = "[mps]\nmax-clients = 1\n[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"2g\" } ]\n";
    sim.up(profile, &[]).ended(0);
    let first = sim.client("0.0");
    assert_eq!(sim.status()["remarks"], json!([]));
    let second = sim.client("0.0");
    let status = sim.status();
    let device = &status["devices"][0];
    assert_eq!(
        (&device["client_count"], &device["client_limit"]),
        (&json!(2), &json!(1))
    );
    let more = "it has 2 clients and is meant for 1 (max-clients)";
    assert_eq!(
        status["remarks"],
        json!([{ "id": "too-many-clients", "device": "0.0", "what": more }])
    );
    let text = sim.run(&["status", "--columns", "clients"]).ended(0).stdout;
    assert_contains(&text, "2/1");
    drop((first, second));
}
