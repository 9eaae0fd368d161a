//! A command does exactly what was shown and agreed to.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use testkit::{ONE_EACH, SMALL, Sim, assert_contains, in_state, is_alive, stop};

#[test]
fn a_user_who_agreed_beforehand_is_not_advised_to_agree_beforehand() {
    let sim = Sim::served("a100-80gb", 1, ONE_EACH);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    let lock = fs::File::create(sim.node.run_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    let path = sim.profile(ONE_EACH);
    let path = path.to_str().unwrap();
    let mut command = sim.command(&["up", path, "--yes", "--destroy-unmanaged"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut up = command.spawn().unwrap();
    let mut shown = BufReader::new(up.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("+ start") {
        line.clear();
        assert_ne!(shown.read_line(&mut line).unwrap(), 0);
    }
    // Somebody makes an instance while it waits for the lock.
    sim.foreign_instance(0, 6);
    drop(lock);
    std::io::copy(&mut shown, &mut std::io::sink()).unwrap();
    let ended = up.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(4), "{stderr}");
    assert!(!stderr.contains("--yes"), "{stderr}");
    assert_contains(
        &stderr,
        "this would now destroy GPU 0 1g.10gb at slice 6; nothing was changed",
    );
}

#[test]
fn force_names_the_clients_it_ends() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    let app = sim.client("1.2");
    let ran = sim.up(ONE_EACH, &["--force", "--dry-run"]).ended(0);
    let named = format!("This ends 1 client:\n  1.2: pid {} (", app.pid());
    assert_contains(&ran.stdout, &named);
    // Both are treated alike, no matter which one has a client.
    assert!(ran.stdout.starts_with("GPUs 0-1  "), "{}", ran.stdout);
}

#[test]
fn json_has_the_plan_that_was_carried_out() {
    let sim = Sim::small();
    let app = sim.client("0.2");
    let path = sim.profile(ONE_EACH);
    let args = [
        "up",
        path.to_str().unwrap(),
        "--json",
        "--yes",
        "--drain",
        "60",
    ];
    let mut command = sim.command(&args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut up = command.spawn().unwrap();
    let mut said = BufReader::new(up.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("waiting up to") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0);
    }
    app.finish();
    std::io::copy(&mut said, &mut std::io::sink()).unwrap();
    let ended = up.wait_with_output().unwrap();
    let outcome: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(outcome["changed"], true);
    let disturbed = &outcome["plan"]["gpus"][0]["disrupts"];
    assert_eq!(disturbed, &serde_json::json!([]), "nobody was disturbed");
}

#[test]
fn switching_mig_off_is_asked_for() {
    let sim = Sim::small();
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    let whole = "[[gpu]]\nselect = { all = true }\nmig = false\n";
    let ran = sim.up(whole, &[]).ended(4);
    assert_contains(&ran.stderr, "switch MIG mode off on GPU 0");
    sim.up(whole, &["--yes"]).ended(0);
}

/// The plan does what was agreed to, also if clients of other devices come and go.
#[test]
fn clients_elsewhere_do_not_change_a_plan() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    let before = sim.client("1.0");
    let mut down = sim.dialogue("down 0.2 --destroy-mig");
    down.await_text("Go on?");
    let _after = sim.client("1.2");
    before.finish();
    down.press("y\n");
    let said = down.end().ended(0).stdout;
    assert!(!said.contains("The node has changed"), "{said}");
    assert_contains(&said, "1 daemon stopped, 1 GPU instance destroyed");

    let victim = sim.client("1.0");
    let mut kill = sim.dialogue(&format!("kill 1.0 {}", victim.pid()));
    kill.await_text("Go on?");
    let _other = sim.client("1.0");
    kill.press("y\n");
    let said = kill.end().ended(0).stdout;
    assert!(!said.contains("The node has changed"), "{said}");
}

/// A daemon that was stopped since the question may have clients that nobody can see.
#[test]
fn clients_that_cannot_be_seen_any_more_are_asked_about() {
    let sim = Sim::small();
    let path = sim.profile(ONE_EACH).display().to_string();
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    let mut up = sim.dialogue(&format!("up {path} --force"));
    up.await_text("Go on?");
    let app = sim.client("0.2");
    stop(&daemon);
    up.press("y\n");
    up.await_text("Go on?");
    up.press("n\n");
    up.end().ended(4);
    assert!(is_alive(app.pid()));
}

/// Two GPUs of which the second has been taken down, on a driver that lists the profiles of a GPU only in MIG mode.
fn one_out_of_mig_mode() -> Sim {
    let sim = Sim::served("h200", 2, SMALL);
    sim.run(&["down", "--gpu", "1", "--disable-mig", "--yes"])
        .ended(0);
    let node = sim.node.node();
    node.update(|state| state.policy.profiles_need_mig_mode = true)
        .unwrap();
    sim
}

#[test]
fn a_gpu_whose_profiles_are_listed_in_mig_mode_is_partitioned_then() {
    let sim = one_out_of_mig_mode();
    sim.up(SMALL, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    sim.up_does_nothing(SMALL);
}

#[test]
fn what_comes_while_mig_mode_is_switched_on_was_not_agreed_to() {
    for flags in ["", "--yes --destroy-unmanaged"] {
        let sim = one_out_of_mig_mode();
        let switching = sim.node.node().fault("nvmlDeviceSetMigMode").waits();
        let path = sim.profile(SMALL).display().to_string();
        let up = sim.dialogue(&format!("up {path} {flags}"));
        sim.await_event("fault", 1);
        // Another administrator makes an instance on the GPU that the plan leaves as it is.
        sim.foreign_instance(0, 6);
        drop(switching.unwrap());
        let ran = up.end().ended(4);
        assert_contains(&ran.stdout, "- destroy 1g.18gb at slice 6");
        let refused = "error: MIG mode is on now, but the rest of the profile was refused: the node has changed, and this plan disrupts more than you confirmed";
        assert_contains(&ran.stdout, refused);
        assert_eq!(sim.happened("nvmlGpuInstanceDestroy"), 2, "{flags}");
    }
}
