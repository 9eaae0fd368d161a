//! Settings that change while a daemon runs: by another profile, or by hand.

use insta::assert_snapshot;

use testkit::{Ran, Sim, assert_contains, plain, tidy, wait_until, whole};

fn servers(sim: &Sim) -> serde_json::Value {
    sim.device("0")["servers"].clone()
}

/// The multiprocessors and the memory that a new client of the device gets.
fn gets(sim: &Sim) -> String {
    let mut app = sim.app("0", &["run", "0", "--alloc", "1500"]);
    let up = app.wait_up();
    let sms = up.split(" sm ").nth(1).unwrap_or_default();
    let sms = sms.split(' ').next().unwrap_or_default().to_owned();
    let ended = app.finish().output;
    let allocated = ended.contains("-> 0 no error");
    format!("{sms} SMs, 1500 MiB: {allocated}")
}

#[test]
fn a_changed_profile_reaches_new_clients_and_harms_nobody() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    let before = servers(&sim);
    assert_eq!(gets(&sim), "132 SMs, 1500 MiB: true");
    let changed = whole(
        r#"active-thread-percentage = 25, pinned-memory-limit = "1G", client-priority = "below-normal", max-clients = 4"#,
    );
    let path = sim.profile(&changed);
    let plan = sim.run(&["plan", path.to_str().unwrap()]).ended(0);
    assert_snapshot!(plan.tidy(), @"
    GPU 0  NVIDIA H200  GPU-…
      ~ set 1 daemon: 0
      active-thread-percentage  100 → 25
      pinned-memory-limit  none → 1G
      client-priority  normal → below-normal
      max-clients  none → 4
    1 client keeps the settings that it started with; new programs get the new ones:
      0: pid N (USER, /tmp/…/node/bin/cuda-app hold)

    Plan: change the settings of 1 daemon.
    Apply with: mig-mps up profile.toml
    ");
    // Nobody need agree to it: nobody is disturbed.
    sim.up(&changed, &[]).ended(0);
    assert_eq!(servers(&sim), before, "the server goes on");
    assert_eq!(sim.device("0")["client_count"], 1);
    assert_eq!(gets(&sim), "32 SMs, 1500 MiB: false");
    sim.up_does_nothing(&changed);
    assert!(client.finish().status.success());
    // All of it is taken back as it came, the limit too.
    let path = sim.profile(&whole(""));
    let plan = sim.run(&["plan", path.to_str().unwrap()]).ended(0);
    assert_snapshot!(tidy(&plain(&plan.stdout)), @"
    GPU 0  NVIDIA H200  GPU-…
      ~ set 1 daemon: 0
      active-thread-percentage  25 → 100
      pinned-memory-limit  1G → none
      client-priority  below-normal → normal
      max-clients  4 → none

    Plan: change the settings of 1 daemon.
    Apply with: mig-mps up profile.toml
    ");
    sim.up(&whole(""), &[]).ended(0);
    assert_eq!(servers(&sim), before, "the server goes on");
    assert_eq!(gets(&sim), "132 SMs, 1500 MiB: true");
    sim.run(&["set", "0", "pinned-memory-limit=1G"]).ended(0);
    assert_eq!(gets(&sim), "132 SMs, 1500 MiB: false");
    sim.run(&["set", "0", "pinned-memory-limit=none"]).ended(0);
    assert_eq!(gets(&sim), "132 SMs, 1500 MiB: true");
    sim.up_does_nothing(&whole(""));
    assert_eq!(servers(&sim), before, "the server goes on");
}

/// A setting that takes another daemon says so, and does not touch a daemon that has a client.
#[test]
fn what_takes_another_daemon_says_so() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    for (settings, because) in [
        (r#"cpus = "0""#, "cpus is all, not 0"),
        ("nofile = 4096", "nofile is the default, not 4096"),
        (
            r#"compute-mode = "exclusive-process""#,
            "compute-mode is as it was, not exclusive-process",
        ),
    ] {
        let ran = sim.up(&whole(settings), &["--yes"]).ended(4);
        let stop = format!("- stop 1 daemon ({because}): 0");
        assert_contains(&ran.stdout, &stop);
    }
    assert!(client.finish().status.success());
    sim.up(&whole(r#"cpus = "0""#), &["--yes"]).ended(0);
}

#[test]
fn what_is_set_by_hand_is_recorded_and_shows_as_drift() {
    let sim = Sim::with("h200", 1);
    let profile = whole(r#"active-thread-percentage = 50, pinned-memory-limit = "2G""#);
    sim.up(&profile, &[]).ended(0);
    let client = sim.client("0");
    let before = servers(&sim);
    let set = [
        "set",
        "0",
        "active-thread-percentage=25",
        "pinned-memory-limit=1.5G",
    ];
    let dry = sim.run(&[&set[..], &["--dry-run"]].concat()).ended(0);
    assert_contains(&dry.stdout, "active-thread-percentage  50 → 25");
    assert_eq!(
        sim.ask("0", "get_default_active_thread_percentage\n"),
        "50.0\n"
    );
    sim.run(&set).ended(0);
    let answers = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0\n";
    assert_eq!(sim.ask("0", answers), "25.0\n1G\n");
    assert_eq!(servers(&sim), before);
    assert_eq!(gets(&sim), "32 SMs, 1500 MiB: false");
    let again = sim.run(&set).ended(0);
    assert!(
        again.stderr.starts_with("Nothing to do"),
        "{}",
        again.stderr
    );

    let path = sim.profile(&profile);
    let plan = ["plan", path.to_str().unwrap(), "--exit-code"];
    let drift = sim.run(&plan).ended(3).stdout;
    assert_contains(
        &drift,
        "active-thread-percentage  25 (set by hand) → 50\n      pinned-memory-limit       1536M (set by hand) → 2G",
    );
    let exported = sim.run(&["export"]).ended(0).stdout;
    assert_contains(&exported, "active-thread-percentage = 25");
    sim.up(&profile, &[]).ended(0);
    assert_eq!(sim.ask("0", answers), "50.0\n2G\n");
    sim.run(&plan).ended(0);
    // Nobody is to be blamed for what is as the profile says, and MPS learns nothing of this: no client keeps anything.
    let set = sim.run(&["set", "0", "max-clients=8"]).ended(0).stdout;
    assert!(!set.contains("keeps what it started with"), "{set}");
    assert!(client.finish().status.success());
    let drift = sim.run(&plan).ended(3).stdout;
    assert_contains(&drift, "max-clients  8 (set by hand) → none");
    assert!(!drift.contains("percentage"), "{drift}");
}

/// Every setting that the owner of a daemon has changed with NVIDIA's own program is seen, and mended.
#[test]
fn settings_changed_behind_our_back_show_as_drift() {
    let sim = Sim::with("h200", 1);
    let profile = whole(r#"pinned-memory-limit = "2G""#);
    sim.up(&profile, &[]).ended(0);
    let input = "set_default_device_pinned_mem_limit 0 1G\nset_default_client_priority 1\n\
                 get_default_active_thread_percentage\n";
    assert_eq!(sim.ask("0", input), "100.0\n");
    let client = sim.client("0");
    let status = sim.run(&["status"]).ended(0).stdout;
    let drift = "pinned-memory-limit is 1G, but mig-mps set it to 2G; client-priority is below-normal, but mig-mps set it to normal; it was changed from outside mig-mps";
    assert_contains(&status, drift);
    let path = sim.profile(&profile);
    let plan = ["plan", path.to_str().unwrap(), "--exit-code"];
    let because = "pinned-memory-limit  1G in the daemon → 2G\n      client-priority      below-normal in the daemon → normal";
    let ran = sim.run(&plan).ended(3).stdout;
    assert_contains(&ran, because);
    let answers = "get_default_device_pinned_mem_limit 0\nget_default_client_priority\n";
    sim.up(&profile, &[]).ended(0);
    assert_eq!(sim.ask("0", answers), "2G\n0\n");
    sim.run(&plan).ended(0);
    assert_eq!(sim.ask("0", input), "100.0\n");
    let set = ["set", "0", "client-priority=normal"];
    sim.run(&set).ended(0);
    assert_eq!(sim.ask("0", answers), "2G\n0\n");
    assert!(client.finish().status.success());

    // A limit that nobody asked for is taken away.
    sim.up(&whole(""), &[]).ended(0);
    let input = "set_default_device_pinned_mem_limit 0 1G\nget_default_active_thread_percentage\n";
    assert_eq!(sim.ask("0", input), "100.0\n");
    let ran = sim.up(&whole(""), &[]).ended(0).stdout;
    let because = "pinned-memory-limit  1G in the daemon → none";
    assert_contains(&ran, because);
    assert_eq!(sim.ask("0", answers), "0\n");
}

/// Seen: `up` went on from an interrupted `set`, left the daemon its priority and called that done.
#[test]
fn an_interrupted_set_is_taken_back_by_up() {
    let sim = Sim::with("h200", 1);
    let profile = whole("");
    for (wanted, back) in [("below-normal", "normal"), ("normal", "below-normal")] {
        let back = whole(&format!("client-priority = {back:?}"));
        sim.up(&back, &["--yes"]).ended(0);
        let before = sim.device("0")["daemon_pid"].clone();
        let was = sim.ask("0", "get_default_client_priority\n");
        sim.node
            .fault("set_active_thread_percentage")
            .kills()
            .unwrap();
        let set = ["set", "0", &format!("client-priority={wanted}")];
        let ran = sim.run(&set);
        assert_ne!(ran.status, 0, "{}", ran.stderr);
        let refused = sim.run(&set).ended(4).stderr;
        assert_contains(
            &refused,
            "an interrupted change did not finish starting the daemon of device 0",
        );
        sim.up(&back, &["--yes"]).ended(0);
        assert_eq!(sim.ask("0", "get_default_client_priority\n"), was);
        assert_eq!(sim.device("0")["daemon_pid"], before);
    }
    sim.up(&profile, &["--yes"]).ended(0);
}

#[test]
fn what_cannot_be_set_by_hand_is_refused() {
    let sim = Sim::with("h200", 1);
    let nobody = sim.run(&["set", "0", "max-clients=8"]).ended(4);
    assert_snapshot!(plain(&nobody.stderr), @"
    error: cannot change settings of device 0: mig-mps does not serve it
    hint: run `mig-mps up PROFILE` to start a daemon, with a profile that contains the device
    ");
    sim.up(&whole(""), &[]).ended(0);
    let mut all = String::new();
    for setting in ["serve=all", "percentage=5", "client-priority=2"] {
        let ran = sim.run(&["set", "0", setting]).ended(2);
        all += ran.stderr.lines().next().unwrap_or_default();
        all.push('\n');
    }
    assert_snapshot!(all, @r#"
    error: invalid value 'serve=all' for '[KEY=VALUE]...': serve cannot be changed while the daemon runs; change the profile and run up, which starts the daemon again
    error: invalid value 'percentage=5' for '[KEY=VALUE]...': there is no setting percentage: did you mean threads?
    error: invalid value 'client-priority=2' for '[KEY=VALUE]...': client-priority = "2" is not one of "normal", "below-normal"
    "#);
    sim.run(&["set", "nine", "max-clients=8"]).ended(2);
}

#[test]
fn a_limit_above_the_memory_of_the_device_is_said_to_limit_nothing() {
    let sim = Sim::whole("");
    let set = ["set", "0", "pinned-memory-limit=200G", "--dry-run"];
    let ran = sim.run(&set).ended(0);
    assert_contains(
        &ran.stdout,
        "(the device has 143771 MiB, so this limit has no effect): 0\n      pinned-memory-limit  none → 200G",
    );
}

/// A live change that is not read back is undone with everything else.
#[test]
fn a_live_change_is_undone_when_the_run_fails() {
    let sim = Sim::with("h200", 2);
    let both = |settings: &str| whole(settings);
    sim.up(
        &both(r#"active-thread-percentage = 50, pinned-memory-limit = "2G""#),
        &[],
    )
    .ended(0);
    let before = [servers(&sim), sim.device("1")["servers"].clone()];
    // One of the two daemons takes the new limit and does not keep it.
    sim.node
        .fault("set_device_pinned_mem_limit")
        .fails(0)
        .unwrap();
    let changed = both(r#"active-thread-percentage = 25, pinned-memory-limit = "1G""#);
    let ran = sim.up(&changed, &[]).ended(1);
    assert_contains(
        &ran.stderr,
        "the server's pinned-memory-limit was set to 1G but reads back as 2G",
    );
    assert!(!ran.stderr.contains("still there"), "{}", ran.stderr);
    let answers = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0\n";
    for device in ["0", "1"] {
        assert_eq!(sim.ask(device, answers), "50.0\n2G\n", "{device}");
    }
    assert_eq!([servers(&sim), sim.device("1")["servers"].clone()], before);
    assert_eq!(gets(&sim), "66 SMs, 1500 MiB: true");
    let plan = sim.up(
        &both(r#"active-thread-percentage = 50, pinned-memory-limit = "2G""#),
        &["--dry-run"],
    );
    assert!(plan.stderr.starts_with("Nothing to do"), "{}", plan.stderr);
    sim.up(&changed, &[]).ended(0);
}

/// Seen: a limit where there was none stayed, since nobody knew how to take one away.
#[test]
fn a_limit_where_there_was_none_is_undone_too() {
    let sim = Sim::whole("");
    sim.node
        .fault("set_default_client_priority")
        .fails(0)
        .unwrap();
    let changed = whole(r#"client-priority = "below-normal", pinned-memory-limit = "1G""#);
    let ran = sim.up(&changed, &[]).ended(1);
    let why = "client-priority was set to below-normal but reads back as normal";
    assert_contains(&ran.stderr, why);
    assert!(!ran.stderr.contains("still there"), "{}", ran.stderr);
    sim.up_does_nothing(&whole(""));
    assert_eq!(gets(&sim), "132 SMs, 1500 MiB: true");
}

/// Drivers answer limits of 1 GiB and more in whole GiB: within one, only the log of a server tells which.
#[test]
fn a_limit_that_was_changed_within_a_gibibyte_is_known_from_the_log_of_a_server() {
    let sim = Sim::with("h200", 1);
    let profile = whole(r#"pinned-memory-limit = "1.5G""#);
    sim.up(&profile, &[]).ended(0);
    let path = sim.profile(&profile);
    let plan = ["plan", path.to_str().unwrap(), "--exit-code"];
    sim.run(&plan).ended(0);
    let server = sim.device("0")["servers"][0]["pid"].clone();
    let tell = |limit: &str| {
        let input = format!(
            "set_default_device_pinned_mem_limit 0 {limit}\nset_device_pinned_mem_limit {server} 0 {limit}\n\
             get_default_active_thread_percentage\n"
        );
        assert_eq!(sim.ask("0", &input), "100.0\n");
    };
    tell("1280M");
    // The daemon writes the server's log when it comes to that.
    wait_until("the server logs its limit", || {
        let log = sim.run(&["logs", "0", "--server"]).ended(0);
        log.stdout.contains(" 0x50000000 ")
    });
    let client = sim.client("0");
    let status = sim.run(&["status"]).ended(0).stdout;
    let drift = "pinned-memory-limit is 1280M, but mig-mps set it to 1536M; it was changed from outside mig-mps";
    assert_contains(&status, drift);
    let ran = sim.run(&plan).ended(3).stdout;
    let because = "pinned-memory-limit  1280M in the daemon → 1536M";
    assert_contains(&ran, because);
    sim.up(&profile, &[]).ended(0);
    sim.run(&plan).ended(0);
    assert!(client.finish().status.success());
    let mut app = sim.app("0", &["run", "0", "--alloc", "900"]);
    app.wait_up();
    assert_contains(&app.finish().output, "alloc 900 MiB -> 0 no error");
}

/// Killed between the daemon and its record, it is gone on with.
#[test]
fn a_live_change_that_was_killed_is_finished() {
    let sim = Sim::whole("active-thread-percentage = 50");
    let client = sim.client("0");
    let before = servers(&sim);
    let changed = whole(r#"active-thread-percentage = 25, pinned-memory-limit = "1G""#);
    sim.node
        .fault("set_device_pinned_mem_limit")
        .kills()
        .unwrap();
    let killed = Ran::of(
        sim.command(&["up", sim.profile(&changed).to_str().unwrap()])
            .arg("--yes"),
    );
    assert_ne!(killed.status, 0);
    sim.up(&changed, &["--yes"]).ended(0);
    assert_eq!(servers(&sim), before);
    assert_eq!(gets(&sim), "32 SMs, 1500 MiB: false");
    assert!(client.finish().status.success());
}
