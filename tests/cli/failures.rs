//! Steps that fail half-way, and changes that meet.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use testkit::{Ran, SMALL, Sim, assert_contains, in_state};

/// Fails when a certain number of daemons have been started.
fn fails_after(sim: &Sim, starts: u32) -> PathBuf {
    let count = sim.node.dir().join("starts");
    let script = format!(
        r#"case " $* " in *" -d "*)
  echo start >> {count}
  [ "$(wc -l < {count})" -gt {starts} ] && exit 100;;
esac
exec "$real" "$@""#,
        count = count.display()
    );
    sim.control_script(&script)
}

#[test]
fn a_failed_up_leaves_the_node_as_it_was() {
    let sim = Sim::with("a100-80gb", 2);
    let control = fails_after(&sim, 2);
    let profile = sim.profile(SMALL);
    let up = ["up", profile.to_str().unwrap()];
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_CONTROL", control)).ended(1);
    assert!(
        ran.stderr
            .contains("did not start (exit status 100): CUDA sees no device MIG-"),
        "{}",
        ran.stderr
    );
    assert_contains(&ran.stderr, "what had been done before was undone");
    let list = sim.list();
    for gpu in list["gpus"].as_array().unwrap() {
        assert_eq!(
            gpu["gpu_instances"].as_array().unwrap().len(),
            0,
            "{list:#}"
        );
    }
    // MIG mode stays on: on an A100 it takes a reset to switch it off. Whose doing that is stays known.
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
    assert_eq!(sim.happened("daemon start"), sim.happened("daemon end"));
    // Nothing stands in the way of the next one.
    sim.up(SMALL, &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
}

#[test]
fn what_ran_before_a_failed_up_runs_after_it() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let before = sim.status();
    let half = format!("{SMALL}\n[mps]\nnofile = 4096\nactive-thread-percentage = 50\n");
    let profile = sim.profile(&half);
    let control = fails_after(&sim, 1);
    // One of two daemons is started with the new setting; then both get the old one back.
    let script = fs::read_to_string(&control)
        .unwrap()
        .replace("-gt 1", "-eq 2");
    fs::write(&control, script).unwrap();
    let up = ["up", profile.to_str().unwrap(), "--yes"];
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_CONTROL", control)).ended(1);
    assert!(!ran.stderr.contains("still there"), "{}", ran.stderr);
    let after = sim.status();
    assert_eq!(in_state(&after, "ready"), in_state(&before, "ready"));
    for device in after["devices"].as_array().unwrap() {
        assert_eq!(device["active_thread_percentage"], 100.0);
    }
    sim.up_does_nothing(SMALL);
}

#[test]
fn a_server_that_does_not_start_is_reported_with_the_logs() {
    let sim = Sim::with("h200", 1);
    let server = sim.program_script("nvidia-cuda-mps-server", "exit 1");
    let profile = sim.profile("[[gpu]]\nselect = { all = true }\nmig = false\n");
    let path = format!(
        "{}:{}:/usr/bin:/bin",
        server.parent().unwrap().display(),
        sim.node.dir().join("bin").display()
    );
    let up = ["up", profile.to_str().unwrap()];
    let ran = Ran::of(sim.command(&up).env("PATH", path)).ended(1);
    assert_contains(&ran.stderr, "start the daemon of 0: ");
    assert_contains(&ran.stderr, "exited with status 1");
    assert!(
        ran.stderr
            .contains("hint: mig-mps doctor finds known causes; the whole logs are in /"),
        "{}",
        ran.stderr
    );
    assert_eq!(sim.run_dir(), ["lock"]);
    assert_eq!(in_state(&sim.status(), "no daemon"), ["0"]);
}

#[test]
fn of_two_changes_at_once_the_second_waits() {
    let sim = Sim::with("a100-80gb", 2);
    let path = sim.profile(SMALL);
    let up = ["up", path.to_str().unwrap()];
    let both = [(); 2].map(|()| {
        let mut command = sim.command(&up);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().unwrap()
    });
    for up in both {
        let _ = Ran::from(up.wait_with_output().unwrap()).ended(0);
    }
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
    assert_eq!(sim.happened("daemon start"), 4);
    assert_eq!(sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement"), 4);
}

#[test]
fn a_record_that_cannot_be_read_is_reported_and_not_overlooked() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    fs::write(sim.node.run_dir().join(&uuid).join("device.json"), "{").unwrap();
    let ran = sim.run(&["status"]).ended(0);
    let reported = ran
        .stdout
        .lines()
        .any(|line| line.starts_with("not seen: ") && line.contains(&uuid));
    assert!(reported, "{}", ran.stdout);
}

#[test]
fn a_node_that_cannot_be_read_back_is_said_to_be_changed() {
    let sim = Sim::with("a100-80gb", 1);
    // Each look asks for it twice. There are two looks before the change, and one after it.
    let version = "nvmlSystemGetDriverVersion";
    sim.node.fault(version).nth(5).fails(999).unwrap();
    let ran = sim.up(SMALL, &[]).ended(1);
    for said in [
        "error: the node was changed as planned, but cannot be read back: ",
        "nvmlSystemGetDriverVersion: Unknown Error",
        "hint: nothing is undone: every step has reported success",
    ] {
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    let ran = sim.up(SMALL, &[]).ended(0);
    assert_contains(&ran.stderr, "Nothing to do");
}
