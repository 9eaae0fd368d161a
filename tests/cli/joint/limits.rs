//! The limit of clients, which the driver has for each GPU.

use serde_json::json;
use testkit::{App, Ran, Sim, assert_contains};

use super::TRAINERS;

/// As many clients as one GPU takes.
fn fill_gpu(sim: &Sim, ordinal: &str) -> Vec<App> {
    let start = |_| sim.app("trainers", &["hold", "--on", ordinal]);
    let mut clients: Vec<App> = (0..48).map(start).collect();
    for client in &mut clients {
        assert!(client.wait_up().ends_with("mps yes"));
    }
    clients
}

#[test]
fn a_full_gpu_refuses_the_programs_that_see_it() {
    let sim = Sim::served("h200", 3, TRAINERS);
    let mut clients = fill_gpu(&sim, "1");
    let full = "GPU 1 has reached its limit of clients: another program's context on it fails with CUDA error 46";
    let remark = json!({ "id": "clients-full", "device": "trainers", "what": full });
    assert_eq!(sim.status()["remarks"], json!([remark]));
    let run = |choice: &[&str], visible: &str| {
        let app = ["--", "cuda-app", "run", "0", "--on", "all"];
        let args = [&["run"], choice, &["trainers"], &app].concat();
        Ran::of(sim.command(&args).env("CUDA_VISIBLE_DEVICES", visible))
    };
    let choices: [&[&str]; 4] = [&[], &["--any"], &["-n", "3"], &["--any", "--no-check"]];
    for choice in choices {
        for visible in ["0,1", "1"] {
            if choice.contains(&"--no-check") && visible == "1" {
                continue;
            }
            let refused = run(choice, visible).ended(125);
            let reason = "GPU 1 of device trainers is full (48 of 48 clients)";
            assert_contains(&refused.stderr, reason);
        }
        let ran = run(choice, "0").ended(0);
        assert_contains(&ran.stdout, " up devices 1 ");
    }
    let args = ["run", "trainers", "--wait", "1h", "--", "true"];
    let mut waiting = sim.talk(&args);
    waiting.await_text("GPU 1 of device trainers is full");
    clients.pop();
    let _ = waiting.end().ended(0);
}

#[test]
fn a_daemon_takes_the_clients_of_all_its_gpus() {
    let meant_for = |clients: u32| {
        let settings = format!("\"all\", max-clients = {clients} }}");
        TRAINERS.replace("\"all\" }", &settings)
    };
    let sim = Sim::with("h200", 3);
    let ran = sim.up(&meant_for(96), &[]).ended(0);
    assert!(!ran.stderr.contains("are the most"), "{}", ran.stderr);
    assert_eq!(sim.device("trainers")["client_limit"], 96);
    let check = sim.profile(&meant_for(96)).display().to_string();
    let check = sim.run(&["check", &check, "--json"]).json();
    let planned = &check["gpus"][0]["devices"][0];
    assert_eq!(planned["client_limit"], 96, "{check:#}");
    let series = sim.run(&["metrics"]).ended(0).stdout;
    let limit = "mig_mps_device_client_limit{device=\"trainers\"} 96\n";
    assert_contains(&series, limit);
    let more = sim.profile(&meant_for(100)).display().to_string();
    let ran = sim.run(&["check", &more]).ended(0);
    let meant = "device trainers is meant for 100 clients, but 48 on each GPU are the maximum with driver 580;";
    assert_contains(&ran.stderr, meant);
    let set = sim.run(&["set", "trainers", "max-clients=97"]).ended(0);
    let most = "its daemon accepts only 48 clients on each GPU";
    assert_contains(&set.stdout, most);
    let copies = ["run", "-n", "60", "trainers", "--", "true"];
    sim.run(&copies).ended(0);
    let mut on_one = sim.command(&copies);
    let refused = Ran::of(on_one.env("CUDA_VISIBLE_DEVICES", "1")).ended(125);
    assert_contains(
        &refused.stderr,
        "device trainers accepts 48 clients, not 60",
    );
}
