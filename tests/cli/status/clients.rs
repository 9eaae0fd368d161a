//! As many clients as a device takes, and one more.

use std::collections::BTreeMap;

use serde_json::json;
use testkit::{App, Sim, assert_contains, whole};

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

/// The figures of two programs, each of 30 copies on a hundredth of the whole GPU.
const THIRTY_EACH: &str = "
[[program]]
name = \"a\"
copies = 30
share = true
[[program]]
name = \"b\"
copies = 30
share = true
[[measured]]
program = \"a\"
gpu = \"a100-80gb\"
device = \"whole\"
threads = 1
copies = 30
throughput = 30
[[measured]]
program = \"b\"
gpu = \"a100-80gb\"
device = \"whole\"
threads = 1
copies = 30
throughput = 30
";

/// Every place in which clients are promised knows how many the daemon takes.
#[test]
fn no_more_clients_are_promised_than_the_daemon_takes() {
    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(&whole("serve = \"all\", share = 60"));
    let profile = path.to_str().unwrap();
    let meant = "device 0 is meant for 60 clients, but 48 are the maximum with driver 580;";
    let check = sim.run(&["check", profile]).ended(0);
    assert_contains(&check.stderr, meant);
    assert!(!check.stdout.contains(" 60 "), "{check:?}");
    let planned = sim.run(&["plan", profile]).ended(0);
    assert_contains(&planned.stderr, meant);
    let of_model = sim.run(&["check", profile, "--gpu", "a100-80gb"]).ended(0);
    assert_contains(
        &of_model.stderr,
        "48 are the maximum with drivers before 590;",
    );
    let document = sim.run(&["check", profile, "--json"]).json();
    let device = &document["gpus"][0]["devices"][0];
    assert_eq!(
        (&device["share"], &device["client_limit"]),
        (&json!(60), &json!(48))
    );
    assert_contains(
        &sim.up(&whole("serve = \"all\", share = 60"), &[])
            .ended(0)
            .stderr,
        meant,
    );
    assert_eq!(sim.device("0")["client_limit"], 48);
    let gres = sim.run(&["slurm", "gres", "--node", "n1"]).stdout;
    assert!(!gres.contains("60"), "{gres}");
    // 54 clients would use all SMs.
    let at_limit = sim.run(&["set", "0", "share=48"]).ended(0).stdout;
    assert_contains(&at_limit, "12 SMs remain unused");
    assert!(!at_limit.contains("share = 54"), "{at_limit}");
    assert!(!at_limit.contains("at most"), "{at_limit}");
    for setting in ["share=49", "max-clients=60"] {
        let set = sim.run(&["set", "0", setting]).ended(0).stdout;
        assert_contains(&set, "its daemon accepts only 48 clients");
    }
    // Sixty copies would be known to be too many.
    let refused = sim
        .run(&["run", "-n", "60", "0", "--", "true"])
        .ended(125)
        .stderr;
    assert_contains(&refused, "device 0 accepts 48 clients, not 60");
    let by_hand = sim.profile(&whole("max-clients = 50"));
    let check = sim
        .run(&["check", by_hand.to_str().unwrap()])
        .ended(0)
        .stderr;
    assert_contains(
        &check,
        "device 0 is meant for 50 clients, but 48 are the maximum with driver 580;",
    );
}

/// NVIDIA's MIG guide documents a proportional part of the clients for MIG devices.
#[test]
fn a_mig_device_takes_its_part_of_the_clients() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = "[mps]\nserve = \"all\"\nshare = 7\n[[gpu]]\nselect = { all = true }\n\
                   devices = [ { profile = \"1g\" }, { profile = \"3g\", compute = [\"1c\", \"2c\"] } ]\n";
    let said = sim.up(profile, &[]).ended(0).stderr;
    let meant =
        "are meant for 7 clients, but 6 are the maximum with driver 580, by NVIDIA's MIG guide;";
    assert_contains(&said, meant);
    let status = sim.status();
    let devices = status["devices"].as_array().unwrap().iter();
    let limits: BTreeMap<_, _> = devices
        .map(|device| (device["profile"].as_str().unwrap(), &device["client_limit"]))
        .collect();
    assert_eq!(*limits["1g.10gb"], 6);
    assert_eq!(*limits["1c.3g.40gb"], 6);
    assert_eq!(*limits["2c.3g.40gb"], 7);
    let small = status["devices"].as_array().unwrap().iter();
    let small = small
        .clone()
        .find(|device| device["profile"] == "1g.10gb")
        .unwrap();
    let name = small["name"].as_str().unwrap();
    let clients: Vec<App> = (0..6).map(|_| sim.client(name)).collect();
    let full = sim.status();
    assert_eq!(
        full["remarks"][0]["id"], "clients-full",
        "{}",
        full["remarks"]
    );
    assert_contains(&sim.app(name, &["hold"]).finish().output, "malloc err 46");
    drop(clients);
    // A number that is only documented is not shown as if it was known.
    sim.run(&["set", name, "share=none"]).ended(0);
    assert!(sim.device(name)["client_limit"].is_null());
}

#[test]
fn advice_puts_no_more_copies_on_a_device_than_it_takes() {
    let sim = Sim::with("a100-80gb", 2);
    let path = sim.node.dir().join("wanted.toml");
    let advise = |text: &str| {
        std::fs::write(&path, text).unwrap();
        sim.run(&["advise", path.to_str().unwrap(), "--json"])
    };
    let apart = advise(THIRTY_EACH).json();
    let used: usize = apart["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gpus| gpus["indices"].as_array().unwrap().len())
        .sum();
    assert_eq!(used, 2, "{apart:#}");
    let twenty = advise(&THIRTY_EACH.replace("30", "24")).json();
    let used: usize = twenty["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gpus| gpus["indices"].as_array().unwrap().len())
        .sum();
    assert_eq!(used, 1, "{twenty:#}");
    let refused = advise(&THIRTY_EACH.replace("30", "49")).ended(5);
    assert_contains(
        &refused.stderr,
        "a has figures only for more copies than a device accepts clients",
    );
}
