//! The setting `share`: equal parts of a device for a number of clients.

use serde_json::{Value, json};

use testkit::{App, Sim, assert_contains, needs_root, whole};

const ANSWERS: &str =
    "get_default_device_pinned_mem_limit 0\nget_default_active_thread_percentage\n";

/// The settings of a device that follow from a share.
fn parts(sim: &Sim, device: &str) -> Value {
    let device = sim.device(device);
    json!([
        device["share"],
        device["active_thread_percentage"],
        device["pinned_memory_limit_bytes"]
            .as_u64()
            .map(|bytes| bytes >> 20),
        device["client_limit"],
    ])
}

#[test]
fn a_share_gives_each_client_an_equal_part() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = whole("share = 20");
    let path = sim.profile(&profile);
    let plan = sim.run(&["plan", path.to_str().unwrap()]).ended(0);
    let words = "4 of 108 SMs and 3.9 GiB each; 28 SMs remain unused (share = 18 uses all)";
    assert_contains(&plan.stdout, words);
    let check = sim.run(&["check", path.to_str().unwrap(), "--gpu", "a100-80gb"]);
    let check = check.ended(0).stdout;
    assert_contains(&check, &format!("whole GPU, share = 20: {words}"));
    sim.up(&profile, &[]).ended(0);
    assert_eq!(parts(&sim, "0"), json!([20, 5.5, 4058, 20]));
    assert_eq!(sim.ask("0", ANSWERS), "3G\n5.5\n");
    sim.up_does_nothing(&profile);
    let mut app = sim.app("0", &["run", "0", "--alloc", "4059"]);
    let up = app.wait_up();
    assert!(up.contains(" sm 4 "), "{up}");
    assert_contains(&app.finish().output, "alloc 4059 MiB -> 2 ");
    sim.run(&["restart", "0", "--yes"]).ended(0);
    assert_eq!(parts(&sim, "0"), json!([20, 5.5, 4058, 20]));
    sim.up_does_nothing(&profile);
    let exported = sim.run(&["export"]).ended(0).stdout;
    assert_contains(&exported, "share = 20");
    assert!(!exported.contains("pinned-memory-limit"), "{exported}");
    sim.up_does_nothing(&exported);
}

/// Every client fills its limit while the others have filled theirs. A context is in the limit.
#[test]
fn all_clients_can_have_their_parts_at_once() {
    let sim = Sim::served("h100-80gb-sxm", 1, &whole("share = 4"));
    let limit = sim.device("0")["pinned_memory_limit_bytes"]
        .as_u64()
        .unwrap()
        >> 20;
    // The context of a client with 32 SMs takes 147 MiB.
    let rest = (limit - 148).to_string();
    let clients: Vec<App> = (0..4)
        .map(|_| {
            let mut app = sim.app("0", &["hold", "--alloc", &rest]);
            let up = app.wait_up();
            assert!(up.contains(" sm 32 "), "{up}");
            let got = app.wait_up();
            assert!(got.ends_with(" -> 0 no error"), "{got}");
            app
        })
        .collect();
    for client in clients {
        assert!(client.finish().status.success());
    }
}

/// A device that its profile makes larger has larger parts; the same number of clients means other parts on each device.
#[test]
fn parts_follow_the_size_of_the_device() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = |devices: &str| {
        format!("[mps]\nshare = 3\n[[gpu]]\nselect = {{ all = true }}\ndevices = [ {devices} ]\n")
    };
    let small = profile("{ profile = \"2g.20gb\" }, { profile = \"1g.10gb\" }");
    sim.up(&small, &[]).ended(0);
    let memory_of = |mib: u64| (mib - 128) / 3 - 2;
    let of = |device: &str| {
        let device = sim.device(device);
        let sms = device["active_thread_percentage"].clone();
        let limit = device["pinned_memory_limit_bytes"].as_u64().unwrap() >> 20;
        (sms, limit)
    };
    assert_eq!(of("0.0"), (json!(35.7), memory_of(19968)));
    assert_eq!(of("0.2"), (json!(42.8), memory_of(9728)));
    sim.up_does_nothing(&small);
    let large = profile("{ name = \"large\", profile = \"3g.40gb\" }");
    sim.up(&large, &["--yes"]).ended(0);
    assert_eq!(of("large"), (json!(38.0), memory_of(40192)));
    sim.up_does_nothing(&large);
}

#[test]
fn what_is_given_takes_the_place_of_a_part() {
    let sim = Sim::with("a100-80gb", 1);
    for (settings, wanted) in [
        (
            "share = 20, active-thread-percentage = 100",
            json!([20, 100.0, 4058, 20]),
        ),
        (
            "share = 20, pinned-memory-limit = \"2G\", max-clients = 30",
            json!([20, 5.5, 2048, 30]),
        ),
        (
            "share = 20, pinned-memory-limit = \"none\"",
            json!([20, 5.5, null, 20]),
        ),
        ("share = 20, oversubscribe = 2", json!([20, 11.1, 4058, 20])),
    ] {
        let profile = whole(settings);
        sim.up(&profile, &[]).ended(0);
        assert_eq!(parts(&sim, "0"), wanted, "{settings}");
        sim.up_does_nothing(&profile);
        let exported = sim.run(&["export"]).ended(0).stdout;
        sim.up_does_nothing(&exported);
    }
    // A share inside takes over from what is given outside, and the other way round.
    let inner = |outer: &str, inner: &str| format!("[mps]\n{outer}\n{}", whole(inner));
    sim.up(&inner("active-thread-percentage = 50", "share = 20"), &[])
        .ended(0);
    assert_eq!(parts(&sim, "0"), json!([20, 5.5, 4058, 20]));
    sim.up(&inner("share = 20", "active-thread-percentage = 50"), &[])
        .ended(0);
    assert_eq!(parts(&sim, "0"), json!([20, 50.0, 4058, 20]));
}

#[test]
fn a_share_is_set_and_removed_while_the_daemon_runs() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(&whole("active-thread-percentage = 50"), &[])
        .ended(0);
    let client = sim.client("0");
    let set = sim.run(&["set", "0", "share=18"]).ended(0).stdout;
    assert_contains(&set, "share                     none → 18\n");
    assert_contains(&set, "6 of 108 SMs and 4.4 GiB each");
    assert_eq!(parts(&sim, "0"), json!([18, 7.4, 4509, 18]));
    assert_eq!(sim.device("0")["set_by_hand"], json!(["share"]));
    let set = [
        "set",
        "0",
        "pinned-memory-limit=1G",
        "share=20",
        "oversubscribe=2",
    ];
    sim.run(&set).ended(0);
    assert_eq!(parts(&sim, "0"), json!([20, 11.1, 1024, 20]));
    let again = sim.run(&set).ended(0);
    assert!(
        again.stderr.starts_with("Nothing to do"),
        "{}",
        again.stderr
    );
    sim.run(&["set", "0", "share=none"]).ended(0);
    assert_eq!(parts(&sim, "0"), json!([null, 100.0, 1024, 48]));
    assert!(client.finish().status.success());
}

/// A client that started before a change is marked, with what it keeps; after the change back it has what it should.
#[test]
fn clients_from_before_a_change_are_marked() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = whole("");
    sim.up(&profile, &[]).ended(0);
    let older = sim.client("0");
    sim.run(&["set", "0", "share=20"]).ended(0);
    let newer = sim.client("0");
    let status = sim.status();
    let earlier = |pid: u32| {
        let clients = status["clients"].as_array().unwrap();
        let of_pid = clients.iter().find(|client| client["pid"] == pid).unwrap();
        of_pid["earlier_settings"].clone()
    };
    let kept = json!({ "active-thread-percentage": "100", "pinned-memory-limit": "none" });
    assert_eq!(earlier(older.pid()), kept);
    assert_eq!(earlier(newer.pid()), json!({}));
    assert_eq!(status["remarks"][0]["id"], "older-clients");
    let shown = sim.run(&["status"]).ended(0).stdout;
    let marked: Vec<&str> = shown
        .lines()
        .filter(|line| line.contains("earlier settings"))
        .collect();
    assert_eq!(marked.len(), 1, "{shown}");
    assert_contains(marked[0], &older.pid().to_string());
    // Back to the settings with which it started: only the newer one keeps others.
    let path = sim.profile(&profile);
    let plan = sim.run(&["plan", path.to_str().unwrap(), "--json"]).json();
    let keep = plan["gpus"][0]["steps"][0]["keep_old_values"].clone();
    assert_eq!(keep.as_array().unwrap().len(), 1, "{keep}");
    assert_eq!(keep[0]["pid"], newer.pid());
    sim.up(&profile, &[]).ended(0);
    let remarks = sim.status()["remarks"].clone();
    let what = remarks[0]["what"].as_str().unwrap();
    assert_contains(what, &format!("pid {}", newer.pid()));
    assert!(newer.finish().status.success());
    assert_eq!(sim.status()["remarks"], json!([]));
    assert!(older.finish().status.success());
}

#[test]
fn slurm_gets_as_many_shards() {
    needs_root!();
    let sim = Sim::served("h200", 1, &whole("share = 4"));
    let gres = sim.run(&["slurm", "gres", "--node", "n1"]).ended(0).stdout;
    assert_contains(&gres, "Name=shard Count=4 ");
    assert_contains(&gres, ",shard:4");
}
