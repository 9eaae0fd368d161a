use std::fs;

use rustix::process::Signal;

use testkit::{ONE_EACH, Ran, SMALL, Sim, assert_contains, in_state, is_alive, user, wait_until};

#[test]
fn daemons_are_ended_and_what_was_made_is_removed() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    let before = sim.status();
    let ran = sim.run(&["down"]).ended(0);
    assert!(
        ran.stderr.starts_with("4 daemons stopped in "),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.stderr.lines().count(), 1);
    for device in before["devices"].as_array().unwrap() {
        assert!(!is_alive(&device["daemon_pid"]));
    }
    assert_eq!(
        in_state(&sim.status(), "no daemon"),
        ["0.0", "0.2", "1.0", "1.2"]
    );
    let again = sim.run(&["down"]).ended(0);
    assert!(
        again.stderr.starts_with("Nothing to do"),
        "{}",
        again.stderr
    );
    // The instances stay, and stay known as ours.
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
    sim.up(SMALL, &[]).ended(0);
    assert_eq!(sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement"), 4);
}

#[test]
fn one_device_can_be_taken_down_alone() {
    let sim = Sim::small();
    sim.run(&["down", "0.2"]).ended(0);
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), ["0.0"]);
    assert_eq!(in_state(&status, "stopped"), ["0.2"]);
    sim.run(&["down", "0.9"]).ended(2);
}

#[test]
fn clients_are_never_ended_unasked() {
    let sim = Sim::small();
    let app = sim.client("0.2");
    sim.run(&["down"]).ended(4);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    let drained = sim.run(&["down", "--drain", "1"]).ended(4);
    assert_contains(&drained.stderr, "waiting up to 1 s more");
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    // The server has not even heard of it.
    let finished = app.finish();
    assert!(finished.status.success(), "{}", finished.output);
}

#[test]
fn drain_waits_for_the_last_client_and_admits_others_meanwhile() {
    let sim = Sim::small();
    let first = sim.client("0.2");
    let mut down = sim.talk(&["down", "--drain", "60"]);
    down.await_text("waiting up to");
    let second = sim.client("0.2");
    assert!(first.finish().status.success());
    assert!(second.finish().status.success());
    let _ = down.end().ended(0);
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0.0", "0.2"]);
}

#[test]
fn ctrl_c_in_a_wait_for_clients_says_that_nothing_was_changed() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let mut down = sim.talk(&["down", "--drain", "60"]);
    down.await_text(" s more\n");
    down.signal(Signal::INT);
    let said = down.end().ended(130).stdout;
    assert!(
        said.ends_with(" more\nInterrupted. Nothing was changed.\n"),
        "{said}"
    );
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    assert!(client.finish().status.success());
}

/// As before maintenance: nobody else is disturbed, or waited for.
#[test]
fn a_gpu_is_taken_out_of_service_when_its_programs_have_ended() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    let (neighbour, client) = (sim.client("0.2"), sim.client("1.2"));
    let mut down = sim.talk(&["down", "--gpu", "1", "--drain", "1h"]);
    let waits = down.await_text("waiting up to 3");
    assert_contains(&waits, &format!("1.2: pid {}", client.pid()));
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    assert!(client.finish().status.success());
    let _ = down.end().ended(0);
    let status = sim.status();
    assert_eq!(in_state(&status, "ready"), ["0.0", "0.2"]);
    assert_eq!(in_state(&status, "stopped"), ["1.0", "1.2"]);
    assert!(neighbour.finish().status.success());
}

#[test]
fn force_ends_clients_and_the_daemon() {
    let sim = Sim::small();
    let app = sim.client("0.2");
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    sim.run(&["down", "--force"]).ended(0);
    assert!(!is_alive(&daemon));
    let finished = app.finish();
    // Terminated one by one before the server ends, which would be 806.
    assert_contains(&finished.output, "err 810");
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0.0", "0.2"]);
}

#[test]
fn drain_and_force_refuse_newcomers_and_end_the_rest_in_time() {
    let sim = Sim::small();
    let app = sim.client("0.2");
    let daemon = &sim.device("0.2")["daemon_pid"];
    let down = sim.talk(&["down", "--drain", "3", "--force"]);
    wait_until("its daemon is asked to quit", || {
        let mut events = sim.node.events().into_iter();
        events.any(|event| event.what == "quit" && *daemon == event.pid)
    });
    let mut newcomer = sim.app("0.2", &["hold"]);
    let refused = newcomer.wait_up();
    assert_contains(&refused, "805");
    let _ = down.end().ended(0);
    assert!(app.await_end().output.contains("806"));
    drop(newcomer);
}

/// The plan saw no client of it, and one comes before the daemon hears `quit`.
#[test]
fn a_client_that_joins_at_the_last_moment_is_spared() {
    let sim = Sim::small();
    let held = sim.node.fault("quit").nth(1).waits().unwrap();
    let down = sim.talk(&["down", "0.2"]);
    sim.await_event("fault", 1);
    let client = sim.client("0.2");
    drop(held);
    let ran = down.end().ended(1);
    assert_contains(&ran.stdout, "a client connected in the last moment");
    // Its daemon admits no others, and heal starts another when that one has left.
    assert_eq!(sim.device("0.2")["state"], "closing");
    assert!(client.finish().status.success());
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("0.2")["state"], "ready");
}

/// A control program that fails says nothing of clients, so its daemon is not ended by signals.
#[test]
fn a_daemon_that_cannot_be_asked_to_quit_goes_on() {
    let sim = Sim::small();
    let control = sim.control_script(
        r#"commands=$(/bin/cat)
case $commands in quit*) exec /usr/bin/yes ;; esac
echo "$commands" | "$real" "$@""#,
    );
    let daemon = &sim.device("0.2")["daemon_pid"];
    let down = |args: &[&str]| Ran::of(sim.command(args).env("MIG_MPS_CONTROL", &control));
    let ran = down(&["down", "0.2"]).ended(1);
    assert_contains(&ran.stderr, "wrote more than 1024 KiB");
    assert!(is_alive(daemon));
    // By force it is.
    let _ = down(&["down", "0.2", "--force"]).ended(0);
    assert!(!is_alive(daemon));
}

#[test]
fn a_plan_says_in_which_state_a_daemon_is_stopped() {
    let sim = Sim::small();
    sim.kill_daemon("0.0");
    sim.hang("0.2");
    let plan = sim.run(&["down", "--force", "--dry-run"]).ended(0).stdout;
    assert_contains(&plan, "(its daemon has already exited): 0.0");
    assert_contains(&plan, "(it is hung");
}

#[test]
fn destroy_mig_destroys_what_mig_mps_made_and_nothing_else() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    sim.foreign_instance(1, 6);
    let refused = sim.run(&["down", "--destroy-mig"]).ended(4);
    assert_contains(&refused.stderr, "pass --yes to confirm");
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    let ran = sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_contains(
        &ran.stderr,
        "4 daemons stopped, 4 GPU instances destroyed in ",
    );
    let list = sim.list();
    assert_eq!(
        list["gpus"][0]["gpu_instances"].as_array().unwrap().len(),
        0
    );
    assert_eq!(
        list["gpus"][1]["gpu_instances"].as_array().unwrap().len(),
        1
    );
    // MIG mode is still on, and mig-mps's doing: --disable-mig switches it off.
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
}

#[test]
fn a_program_outside_mps_keeps_its_instance() {
    let sim = Sim::small();
    let app = sim.outside("0.2");
    let named = format!("GPU 0: pid {} ({}, ", app.pid(), user());
    for ran in [
        sim.run(&["down", "--destroy-mig", "--yes"]),
        sim.up(ONE_EACH, &["--yes", "--force"]),
    ] {
        let refused = ran.ended(4).stderr;
        assert_contains(&refused, &named);
        assert_contains(&refused, ") uses 0.2 outside MPS\n");
        assert_contains(&refused, "--force ends only MPS clients");
    }
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    app.finish();
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
}

#[test]
fn logs_stay_unless_they_are_purged() {
    let sim = Sim::small();
    let logs = || fs::read_dir(sim.node.log_dir()).unwrap().count();
    sim.run(&["down", "0.2"]).ended(0);
    assert_eq!(logs(), 2);
    let shown = sim.run(&["down", "0.0", "--purge", "--dry-run"]).ended(0);
    assert_contains(
        &shown.stdout,
        "  - remove logs, and what users left in pipe directories\n",
    );
    assert_eq!(logs(), 2);
    let ran = sim.run(&["down", "0.0", "--purge"]).ended(0);
    assert_contains(&ran.stderr, "1 daemon stopped, logs removed in ");
    assert_eq!(
        logs(),
        1,
        "only the logs of what was taken down are removed"
    );
    // Those of a device that was down already, and of earlier daemons, too.
    sim.up(SMALL, &[]).ended(0);
    sim.run(&["down"]).ended(0);
    sim.run(&["down", "0.2", "--purge"]).ended(0);
    assert_eq!(logs(), 1);
    sim.run(&["down", "--purge"]).ended(0);
    assert_eq!(logs(), 0);
}

/// A server in a fault answers no `terminate_client` before its clients have gone: nobody waits for that.
#[test]
fn a_daemon_in_a_fault_is_ended_without_its_servers_help() {
    let sim = Sim::small();
    let _clients = sim.faulty("0.2");
    sim.run(&["down", "0.2"]).ended(4);
    sim.run(&["down", "0.2", "--force"]).ended(0);
    assert_eq!(sim.happened("terminate_client"), 0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
}

#[test]
fn a_gpu_instance_without_devices_is_not_chosen_by_a_device_name() {
    let sim = Sim::served("a100-80gb", 2, ONE_EACH);
    sim.run(&["down", "1.0"]).ended(0);
    let id = sim.list()["gpus"][1]["gpu_instances"][0]["gpu_instance_id"]
        .as_u64()
        .unwrap();
    let id = u32::try_from(id).unwrap();
    let destroy = sim
        .node
        .node()
        .update(|state| state.destroy_compute_instance(1, id, 0));
    destroy.unwrap().unwrap();
    sim.run(&["down", "0.0", "--destroy-mig", "--yes"]).ended(0);
    let list = sim.list();
    assert_eq!(
        list["gpus"][0]["gpu_instances"].as_array().unwrap().len(),
        0
    );
    assert_eq!(
        list["gpus"][1]["gpu_instances"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn what_destroy_mig_leaves_is_said() {
    let sim = Sim::small();
    sim.edit("node.json", |node| {
        node["boot-id"] = "another".into();
    });
    let ran = sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_contains(&ran.stderr, "these GPU instances remain");
    assert_contains(&ran.stderr, "GPU 0 2g.20gb at slices 0-1");
}

#[test]
fn a_time_may_have_a_unit() {
    let sim = Sim::with("a100-80gb", 1);
    sim.run(&["down", "--drain", "30s"]).ended(0);
    sim.run(&["down", "--drain", "1m"]).ended(0);
    sim.run(&["down", "--drain", "soon"]).ended(2);
}
