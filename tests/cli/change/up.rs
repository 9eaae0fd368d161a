use insta::assert_snapshot;
use mig_mps::internals::manual::TOPICS;
use rustix::process::Signal;

use testkit::{
    ONE_EACH, SMALL, Sim, WHOLE, assert_contains, by_anybody, in_state, is_alive, is_root,
    needs_root, plain, tidy, user,
};

#[test]
fn every_device_gets_a_daemon_and_a_server_that_is_ready() {
    let sim = Sim::with("a100-80gb", 2);
    let ran = sim.up(SMALL, &[]).ended(0);
    assert_snapshot!(by_anybody(&tidy(&ran.stdout)), @"
    GPUs 0-1  NVIDIA A100-SXM4-80GB
      |.....|.....|.....|.....|.....|.....|.....|.....|  now: MIG off
      |2g.20gb  |1g  |.....|.....|.....|.....|.....|  then
      + enable MIG mode (requested by the profile)
      + create 2g.20gb at slices 0-1, 1g.10gb at slice 2 on each GPU
      + start 4 daemons in all (no daemon yet): 0.0, 0.2 … 1.2
    NAME  GPU  PROFILE  STATE  USER  CLIENTS  MEMORY GIB  DAEMON  SERVER  SINCE  SERVE  DEVICE
    0.0  0  2g.20gb  ready  -  0  0.0/19.5  N  N  Ns  SERVE  MIG-…
    0.2  0  1g.10gb  ready  -  0  0.0/9.5  N  N  Ns  SERVE  MIG-…
    1.0  1  2g.20gb  ready  -  0  0.0/19.5  N  N  Ns  SERVE  MIG-…
    1.2  1  1g.10gb  ready  -  0  0.0/9.5  N  N  Ns  SERVE  MIG-…
    ");
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), ["0.0", "0.2", "1.0", "1.2"]);
    for device in status["devices"].as_array().unwrap() {
        assert!(is_alive(&device["daemon_pid"]) && is_alive(&device["servers"][0]["pid"]));
        assert_eq!(device["active_thread_percentage"], 100.0);
    }
}

#[test]
fn up_again_does_nothing() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    let before = sim.status();
    let changes = sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement");
    sim.up_does_nothing(SMALL);
    assert_eq!(sim.status()["devices"], before["devices"]);
    assert_eq!(
        sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement"),
        changes
    );
    assert_eq!(sim.happened("daemon start"), 4);
}

/// The task of Ansible in the manual: what it runs, and what it takes for a change.
#[test]
fn a_task_that_applies_a_profile_is_changed_and_then_ok() {
    let recipes = TOPICS.iter().find(|topic| topic.name == "recipes").unwrap();
    let (_, playbook) = recipes.text.split_once("```yaml\n").unwrap();
    let (playbook, _) = playbook.split_once("```").unwrap();
    let playbook: serde_json::Value = serde_saphyr::from_str(playbook).unwrap();
    let plays = playbook.as_array().unwrap().iter();
    let mut tasks = plays.flat_map(|play| play["tasks"].as_array().unwrap());
    let task = tasks
        .find(|task| task["name"] == "Apply the profile")
        .unwrap();
    let changed = "(up.stdout | from_json).changed | default(false)";
    assert_eq!(
        (&task["register"], &task["changed_when"]),
        (&"up".into(), &changed.into())
    );
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let command = task["ansible.builtin.command"]["cmd"].as_str().unwrap();
    let words: Vec<&str> = command
        .split(' ')
        .map(|word| {
            if word.ends_with("profile.toml") {
                profile.to_str().unwrap()
            } else {
                word
            }
        })
        .collect();
    let is_changed = || sim.run(&words[1..]).json()["changed"].clone();
    assert_eq!([is_changed(), is_changed()], [true, false]);
}

#[test]
fn a_dry_run_shows_the_plan_and_changes_nothing() {
    let sim = Sim::with("a100-80gb", 2);
    let ran = sim.up(SMALL, &["--dry-run"]).ended(0);
    assert_snapshot!(plain(&format!("{}{}", ran.stdout, ran.stderr)), @"
    GPUs 0-1  NVIDIA A100-SXM4-80GB
      |.....|.....|.....|.....|.....|.....|.....|.....|  now: MIG off
      |2g.20gb    |1g   |.....|.....|.....|.....|.....|  then
      + enable MIG mode (requested by the profile)
      + create 2g.20gb at slices 0-1, 1g.10gb at slice 2 on each GPU
      + start 4 daemons in all (no daemon yet): 0.0, 0.2 … 1.2

    GPUs 0-1: changing the MIG mode resets the GPU. An idle GPU is reset automatically; use --reset for other GPUs. In a virtual machine, reboot instead.

    Plan: enable MIG mode on GPUs 0-1, create 4 GPU instances and start 4 daemons.
    note: GPUs 0-1: 2g.20gb + 1g.10gb uses 42 of 98 SMs; 1 × 3g.40gb + 1 × 2g.20gb + 2 × 1g.10gb uses all
    ");
    assert_eq!(sim.list()["gpus"][0]["mig"]["current"], false);
    assert!(!sim.node.run_dir().exists());
}

#[test]
fn gpus_that_the_profile_does_not_select_are_left_alone() {
    let sim = Sim::with("a100-80gb", 3);
    let profile = r#"
[[gpu]]
select = { index = [1] }
devices = [ { profile = "7g" } ]
"#;
    sim.up(profile, &[]).ended(0);
    let list = sim.list();
    let mig: Vec<bool> = (0..3)
        .map(|gpu| list["gpus"][gpu]["mig"]["current"].as_bool().unwrap())
        .collect();
    assert_eq!(mig, [false, true, false]);
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0", "2"]);
}

#[test]
fn names_whole_gpus_and_settings_are_as_the_profile_says() {
    needs_root!();
    let sim = Sim::with("h200", 3);
    let profile = r#"
[mps]
active-thread-percentage = 50

[[gpu]]
select = { index = [2] }
mig = false
name = "whole"
mps = { server = "lazy", active-thread-percentage = 33.3 }

[[gpu]]
select = { product = "H200" }
devices = [
  { name = "trainer-{gpu}", profile = "3g.71gb", at = 4, mps = { serve = "all" } },
  { name = "small-{gpu}-{n}", profile = "1g", count = 2 },
  { profile = "1g+me" },
]
"#;
    sim.up(profile, &[]).ended(0);
    let status = sim.status();
    assert_eq!(
        in_state(&status, "ready"),
        [
            "small-0-0",
            "small-0-1",
            "0.2",
            "trainer-0",
            "small-1-0",
            "small-1-1",
            "1.2",
            "trainer-1"
        ]
    );
    assert_eq!(in_state(&status, "no server yet"), ["whole"]);
    assert_eq!(sim.device("whole")["active_thread_percentage"], 33.3);
    assert_eq!(sim.device("small-1-0")["active_thread_percentage"], 50.0);
    assert_eq!(sim.device("trainer-1")["serve"], "all");
    assert_eq!(sim.device("0.2")["profile"], "1g.18gb+me");
    assert_eq!(sim.device("small-0-0")["profile"], "1g.18gb");
    sim.up_does_nothing(profile);
}

#[test]
fn compute_instances_share_a_gpu_instance() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g", compute = ["2c", "1c"] } ]
"#;
    sim.up(profile, &[]).ended(0);
    let list = sim.list();
    let devices = list["gpus"][0]["devices"].as_array().unwrap();
    let profiles: Vec<_> = devices
        .iter()
        .map(|device| device["profile"].clone())
        .collect();
    assert_eq!(profiles, ["2c.3g.40gb", "1c.3g.40gb"]);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0.c0", "0.0.c1"]);
    sim.up_does_nothing(profile);
}

#[test]
fn the_double_memory_profile_gets_all_its_multiprocessors() {
    // The compute instance with the slice's number has 16 of the 26 SMs.
    let sim = Sim::with("h200", 1);
    let profile = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "1g.35gb" } ]
"#;
    sim.up(profile, &[]).ended(0);
    assert_eq!(sim.list()["gpus"][0]["devices"][0]["multiprocessors"], 26);
}

#[test]
fn instances_make_room_only_with_consent() {
    let sim = Sim::small();
    let before = sim.list();
    let other = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "7g" } ]
"#;
    let ran = sim.up(other, &[]).ended(4);
    assert_snapshot!(plain(&format!("{}{}", ran.stdout, ran.stderr)), @"
    GPU 0  NVIDIA A100-SXM4-80GB  GPU-…
      |2g.20gb    |1g   |.....|.....|.....|.....|.....|  now
      |7g.80gb                                        |  then
      - stop 2 daemons (their instances are destroyed): 0.0, 0.2
      - destroy 2g.20gb at slices 0-1, 1g.10gb at slice 2 (7g.80gb at slices 0-7 needs this space)
      + create 7g.80gb at slices 0-7
      + start 1 daemon (new instance): 0.0
    note: 0.0 was 2g.20gb and will be 7g.80gb; check scripts that use this name
    error: confirmation required: this would stop 2 daemons and destroy 2 instances
    hint: pass --yes to confirm
    ");
    assert_eq!(sim.list(), before);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    sim.up(other, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    assert_eq!(sim.device("0.0")["profile"], "7g.80gb");
}

#[test]
fn a_neighbours_change_disturbs_nobody() {
    let sim = Sim::with("a100-80gb", 1);
    let halves =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", count = 2 } ]\n";
    sim.up(halves, &[]).ended(0);
    let client = sim.client("0.4");
    let before = sim.device("0.4");
    let quarters = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g" }, { profile = "2g" }, { profile = "1g", count = 2 } ]
"#;
    sim.up(quarters, &["--yes"]).ended(0);
    let after = sim.device("0.4");
    for key in ["uuid", "daemon_pid", "servers", "clients"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    assert!(client.finish().status.success());
    assert_eq!(
        in_state(&sim.status(), "ready"),
        ["0.0", "0.1", "0.2", "0.4"]
    );
}

#[test]
fn clients_are_disturbed_only_by_force() {
    let sim = Sim::with("a100-80gb", 1);
    let halves =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", count = 2 } ]\n";
    sim.up(halves, &[]).ended(0);
    // Only a 3g at 4 leaves room for the rest.
    let client = sim.client("0.0");
    let quarters = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g" }, { profile = "2g" }, { profile = "1g", count = 2 } ]
"#;
    let path = sim.profile(quarters);
    let plan = ["plan", path.to_str().unwrap(), "--exit-code"];
    let ran = sim.run(&plan).ended(3);
    assert_snapshot!(ran.tidy(), @"
    GPU 0  NVIDIA A100-SXM4-80GB  GPU-…
      |3g.40gb  |3g.40gb  |  now
      |1g  |1g  |2g.20gb  |3g.40gb  |  then
      - stop 1 daemon (its instance is destroyed): 0.0
      - destroy 3g.40gb at slices 0-3 (1g.10gb at slice 0 needs this space)
      + create 2g.20gb at slices 2-3, 2 × 1g.10gb at slices 0-1
      + start 3 daemons (new instance): 0.0, 0.1, 0.2

    1 client would be disrupted (refused, unless --drain lets them exit in time or --force ends them):
      0.0: pid N (USER, /tmp/…/node/bin/cuda-app hold)

    Plan: destroy 1 GPU instance, create 3, stop 1 daemon and start 3 (1 client of USER disrupted).
    Apply with: mig-mps up profile.toml --drain 1h
    note: 0.0 was 3g.40gb and will be 1g.10gb; check scripts that use this name
    ");
    let before = sim.list();
    let ran = sim.up(quarters, &["--yes"]).ended(4);
    assert_contains(&ran.stderr, &format!("0.0: pid {} (", client.pid()));
    assert_contains(&ran.stderr, "--force");
    assert_eq!(sim.list(), before);
    sim.up(quarters, &["--yes", "--force"]).ended(0);
    assert!(!client.await_end().status.success());
    let kept = sim.device("0.4");
    assert_eq!(kept["profile"], "3g.40gb");
}

#[test]
fn clients_in_the_way_are_waited_for() {
    let sim = Sim::small();
    let client = sim.client("0.0");
    let other = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\" } ]\n";
    let ran = sim.up(other, &["--yes", "--drain", "1"]).ended(4);
    assert_contains(&ran.stderr, "waiting up to 1 s more");
    let path = sim.profile(other);
    let mut up = sim.talk(&["up", path.to_str().unwrap(), "--yes", "--drain", "600"]);
    up.await_text("waiting up to");
    assert!(client.finish().status.success());
    up.end().ended(0);
    assert_eq!(sim.device("0.0")["profile"], "7g.80gb");
}

#[test]
fn instances_that_others_left_are_finished_or_removed() {
    let sim = Sim::small();
    sim.foreign_instance(0, 3);
    sim.foreign_instance(0, 6);
    let more = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"2g\" }, { profile = \"1g\", count = 2 } ]\n";
    let ran = sim.up(more, &["--yes", "--destroy-unmanaged"]).ended(0);
    let plan = plain(&ran.stdout);
    let plan: Vec<&str> = plan.lines().take(6).collect();
    assert_snapshot!(plan.join("\n"), @"
    GPU 0  NVIDIA A100-SXM4-80GB  GPU-…
      |2g.20gb    |1g   |1g   |.....|.....|1g   |.....|  now
      |2g.20gb    |1g   |1g   |.....|.....|.....|.....|  then
      - destroy 1g.10gb at slice 6 (left without a compute instance, and not in the profile; mig-mps has no record of creating it)
      + create the full compute instance in slice 3 (its GPU instance is there without it)
      + start 1 daemon (no daemon yet): 0.3
    ");
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2", "0.3"]);
}

#[test]
fn compute_instances_are_exchanged_within_their_gpu_instance() {
    let sim = Sim::with("a100-80gb", 1);
    let split = |compute: &str| {
        format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ profile = \"3g\"{compute} }} ]\n"
        )
    };
    sim.up(&split(", compute = [\"1c\", \"1c\", \"1c\"]"), &[])
        .ended(0);
    assert_eq!(
        in_state(&sim.status(), "ready"),
        ["0.0.c0", "0.0.c1", "0.0.c2"]
    );
    let client = sim.client("0.0.c2");
    let created = sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement");
    sim.up(
        &split(", compute = [\"2c\", \"1c\"]"),
        &["--yes", "--force"],
    )
    .ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0.c0", "0.0.c1"]);
    assert_eq!(
        sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement"),
        created
    );
    drop(client);
    sim.up(&split(""), &["--yes", "--force"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
    assert_eq!(
        sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement"),
        created
    );
}

#[test]
fn a_profile_that_asks_for_more_adds_it() {
    let sim = Sim::small();
    let before = sim.device("0.2");
    let more = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g" }, { profile = "2g" }, { profile = "1g" } ]
"#;
    sim.up(more, &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2", "0.4"]);
    let after = sim.device("0.2");
    assert_eq!(
        (&after["uuid"], &after["daemon_pid"]),
        (&before["uuid"], &before["daemon_pid"])
    );
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_touched() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g", count = 2 }, { profile = "1g" } ]
"#;
    let ran = sim.up(profile, &[]).ended(5);
    assert_snapshot!(plain(&format!("{}{}", ran.stdout, ran.stderr)), @"
    error: profile.toml:3:10: this does not fit on a selected GPU
      |
    3 | select = { all = true }
      |          ^^^^^^^^^^^^^^
    GPU 0 (NVIDIA A100-SXM4-80GB): 2 × 3g.40gb + 1 × 1g.10gb does not fit: it needs 9 of 8 memory slices
      |3g.40gb                |3g.40gb                |  2 × 3g.40gb
    hint: request 2 × 3g.40gb, or 4g.40gb + 3g.40gb, or 1 × 3g.40gb + 1 × 2g.20gb + 2 × 1g.10gb instead
    ");
    assert_eq!(sim.list()["gpus"][0]["mig"]["current"], false);
    assert!(!sim.node.run_dir().exists());
}

#[test]
fn a_dead_daemon_is_started_again() {
    let sim = Sim::small();
    let dead = sim.device("0.2");
    sim.kill_daemon("0.2");
    assert_eq!(sim.device("0.2")["state"], "dead");
    let ran = sim.up(SMALL, &[]).ended(0);
    assert_contains(&ran.stdout, "(its daemon has died): 0.2");
    let healed = sim.device("0.2");
    assert_eq!(healed["state"], "ready");
    assert_ne!(healed["daemon_pid"], dead["daemon_pid"]);
}

#[test]
fn changed_settings_restart_an_idle_daemon_and_leave_one_with_clients_alone() {
    let sim = Sim::small();
    let half = format!("{SMALL}\n[mps]\nnofile = 4096\nactive-thread-percentage = 50\n");
    let app = sim.client("0.2");
    let before = sim.status();
    let ran = sim.up(&half, &["--yes"]).ended(4);
    assert!(
        ran.stderr
            .contains(&format!("0.2: pid {} ({}, ", app.pid(), user())),
        "{}",
        ran.stderr
    );
    assert_eq!(sim.status()["devices"], before["devices"]);
    assert!(app.finish().status.success());

    let nobody_asked = sim.up(&half, &[]).ended(4);
    assert_contains(&nobody_asked.stderr, "--yes");
    assert_eq!(sim.device("0.2")["active_thread_percentage"], 100.0);

    sim.up(&half, &["--yes"]).ended(0);
    assert_eq!(sim.device("0.2")["active_thread_percentage"], 50.0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn what_is_no_longer_asked_for_on_a_whole_gpu_makes_way() {
    let sim = Sim::served("a100-80gb", 1, WHOLE);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.up(SMALL, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    sim.up(WHOLE, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    assert_eq!(sim.list()["gpus"][0]["mig"]["current"], false);
}

#[test]
fn a_second_change_waits_and_names_the_holder() {
    let sim = Sim::with("a100-80gb", 1);
    std::fs::create_dir(sim.node.run_dir()).unwrap();
    let lock = std::fs::File::create(sim.node.run_dir().join("lock")).unwrap();
    std::fs::write(
        sim.node.run_dir().join("lock"),
        std::process::id().to_string(),
    )
    .unwrap();
    lock.lock().unwrap();
    sim.node.node().show_process(std::process::id());
    let ran = sim.up(SMALL, &[]).ended(4);
    let holder = format!("process {} ({}, ", std::process::id(), user());
    assert_contains(&ran.stderr, &holder);
    assert_contains(&ran.stderr, "is changing this node");
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
    // Reading takes no lock.
    sim.run(&["status"]).ended(0);
    sim.run(&["list"]).ended(0);
    // It says that it waits, and goes on once the other one has ended.
    let profile = sim.profile(SMALL);
    let mut up = sim.talk(&["up", profile.to_str().unwrap()]);
    up.await_text(&format!("waiting up to 10 s: {holder}"));
    drop(lock);
    up.end().ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn an_up_that_was_killed_is_gone_on_with() {
    let sim = Sim::with("a100-80gb", 4);
    let path = sim.profile(SMALL);
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    // The last GPU has one of its instances, and others are served.
    let held = sim.node.fault(create).nth(8).waits().unwrap();
    let up = sim.talk(&["up", path.to_str().unwrap()]);
    sim.await_event("fault", 1);
    sim.await_event("daemon start", 2);
    up.signal(Signal::KILL);
    let _ = up.end().ended(-1);
    drop(held);
    sim.up(SMALL, &["--yes"]).ended(0);
    let status = sim.status();
    assert_eq!(in_state(&status, "ready").len(), 8, "{status:#}");
    assert_eq!(sim.happened(create), 8, "no instance is made twice");
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    // MIG mode is still on, and mig-mps's doing: --disable-mig switches it off.
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
    assert_eq!(sim.list()["gpus"][3]["devices"], serde_json::json!([]));
}

#[test]
fn an_up_whose_output_nobody_reads_goes_on() {
    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(SMALL);
    let mut up = sim.command(&["up", path.to_str().unwrap()]);
    let mut child = up
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn a_daemon_without_its_record_is_taken_over() {
    let sim = Sim::small();
    let before = sim.device("0.2");
    let record = sim
        .node
        .run_dir()
        .join(before["uuid"].as_str().unwrap())
        .join("device.json");
    std::fs::write(&record, "{").unwrap();
    assert_eq!(sim.device("0.2")["state"], "hidden");
    sim.up(SMALL, &[]).ended(0);
    let after = sim.device("0.2");
    assert_eq!(
        (&after["state"], &after["daemon_pid"]),
        (&"ready".into(), &before["daemon_pid"])
    );
    // One that serves otherwise is ended, unless it has clients.
    if is_root("a_daemon_without_its_record_is_taken_over") {
        std::fs::write(&record, "{").unwrap();
        let all = format!("{SMALL}\n[mps]\nserve = \"all\"\n");
        let client = sim.client("0.2");
        let ran = sim.up(&all, &["--yes"]).ended(1);
        assert_contains(&ran.stderr, "has other settings");
        assert_contains(&ran.stderr, &format!("has clients: {}\n", client.pid()));
        assert!(client.finish().status.success());
        sim.up(&all, &["--yes"]).ended(0);
        let last = sim.device("0.2");
        assert_eq!(last["serve"], "all");
        assert!(!is_alive(&after["daemon_pid"]));
    }
}

#[test]
fn a_plan_says_which_reset_or_reboot_is_due() {
    let profile = |sim: &Sim| sim.profile(SMALL).to_str().unwrap().to_owned();
    let sim = Sim::with("a100-80gb", 2);
    let ran = sim.run(&["plan", &profile(&sim)]).ended(0);
    assert_contains(
        &ran.stdout,
        "\nGPUs 0-1: changing the MIG mode resets the GPU. ",
    );
    let hopper = Sim::with("h200", 1);
    let ran = hopper.run(&["plan", &profile(&hopper)]).ended(0);
    assert!(!ran.stdout.contains("reset"), "{}", ran.stdout);
    let json = sim.run(&["plan", &profile(&sim), "--json"]).json();
    assert_eq!(json["changes"], true);
    assert_contains(json["gpus"][0]["due"].as_str().unwrap(), "reboot instead");
}

#[test]
fn a_name_means_one_device() {
    let sim = Sim::served("a100-80gb", 2, ONE_EACH);
    sim.run(&["down"]).ended(0);
    let profile = r#"
[[gpu]]
select = { index = [0] }
devices = [ { profile = "3g", name = "1.0" } ]
"#;
    let ran = sim.up(profile, &[]).ended(2);
    assert_contains(
        &ran.stderr,
        "would be the name of a device of GPU 0 and of a device of another GPU",
    );
}

#[test]
fn a_process_that_holds_a_gpu_for_a_moment_fails_nothing() {
    // The driver decides there: an A100 is looked at before.
    let sim = Sim::with("h100-80gb-sxm", 1);
    let holder = sim.node.holder(&[0]);
    let path = sim.profile(SMALL);
    let up = sim.spawn(&["up", path.to_str().unwrap()]);
    sim.await_event("nvmlDeviceSetMigMode", 2);
    drop(holder);
    assert!(up.wait_with_output().unwrap().status.success());
    assert_eq!(in_state(&sim.status(), "ready").len(), 2);
}
