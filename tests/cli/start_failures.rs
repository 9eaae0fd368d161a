//! Why a daemon or its server does not start, in words.

use std::fs;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use serde_json::json;
use simnode::node::ControlVersion;

use testkit::{Ran, Sim, in_state, tidy, whole};

/// What `up` says, but for the logs' last lines; nothing is left of it.
fn said(sim: &Sim, script: Option<(&str, &str)>) -> String {
    let profile = sim.profile(&whole(""));
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let bin = sim.node.dir().join("bin");
    if let Some((program, script)) = script {
        let replaced = sim.program_script(program, script);
        let replaced = replaced.parent().unwrap().display();
        let path = format!("{replaced}:{}:/usr/bin:/bin", bin.display());
        up.env("PATH", path);
    }
    let ran = Ran::of(&mut up).ended(1);
    assert_eq!(sim.device("0")["state"], "no daemon");
    assert_eq!(sim.run_dir(), ["lock"]);
    let said = tidy(&ran.stderr);
    said.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_launchers_exit_status_is_told_in_words() {
    let sim = Sim::with("h200", 1);
    let mut all = String::new();
    for status in [100, 244, 34, 35, 1, 7] {
        sim.node.fault("daemon start").fails(status).unwrap();
        all += &said(&sim, None);
        all.push('\n');
    }
    assert_snapshot!(all, @"
    error: GPU 0 (GPU-…): start the daemon of 0: the control daemon of GPU-… did not start (exit status 100): CUDA sees no device GPU-…
    error: GPU 0 (GPU-…): start the daemon of 0: the control daemon of GPU-… did not start (exit status 244): CUDA's driver library libcuda.so.1 cannot be loaded
    error: GPU 0 (GPU-…): start the daemon of 0: the control daemon of GPU-… did not start (exit status 34): CUDA says the system is not ready (is the fabric manager running?)
    error: GPU 0 (GPU-…): start the daemon of 0: the control daemon of GPU-… did not start (exit status 35): the CUDA driver library and the kernel module differ in version
    error: GPU 0 (GPU-…): start the daemon of 0: the control daemon of GPU-… did not start (exit status 1): it said nothing, as where it cannot use its pipe directory
    error: GPU 0 (GPU-…): start the daemon of 0: the control daemon of GPU-… did not start (exit status 7): it said nothing
    ");
}

#[test]
fn an_option_that_is_not_known_ends_the_launcher_with_0() {
    let sim = Sim::with("h200", 1);
    let script =
        r#"case " $* " in *" -d "*) echo "Unrecognized option"; exit 0;; esac; exec "$real" "$@""#;
    assert_snapshot!(said(&sim, Some(("nvidia-cuda-mps-control", script))), @"error: GPU 0 (GPU-…): start the daemon of 0: the control daemon of GPU-… did not start (exit status 0): Unrecognized option");
}

/// Driver 550's daemon starts whatever devices it is given; its server is the first to find none.
#[test]
fn cudas_words_in_the_servers_log_are_told() {
    let sim = Sim::with("h200", 1);
    let update = sim
        .node
        .node()
        .update(|state| state.policy.control = ControlVersion::R550);
    update.unwrap();
    let script = r#"case " $* " in *" -d "*) export CUDA_VISIBLE_DEVICES=GPU-gone;; esac; exec "$real" "$@""#;
    assert_snapshot!(said(&sim, Some(("nvidia-cuda-mps-control", script))), @"error: GPU 0 (GPU-…): start the daemon of 0: the MPS server did not start: the MPS server could not start: no CUDA-capable device is detected");
}

#[test]
fn a_server_without_a_word_is_told_with_the_likely_cause() {
    let sim = Sim::with("h200", 1);
    assert_snapshot!(said(&sim, Some(("nvidia-cuda-mps-server", "exit 1"))), @"error: GPU 0 (GPU-…): start the daemon of 0: the MPS server did not start: the MPS server ended with status 1, and wrote nothing: its program is not found in the daemon's PATH, or its user may not enter one of the directories above the pipe directory");
}

/// A daemon that is not root's cannot become another user for a server; the simulator's says so by this status.
#[test]
fn a_server_for_another_user_is_not_permitted() {
    let sim = Sim::with("h200", 1);
    let user = format!("user {}:", rustix::process::geteuid());
    let said = said(&sim, Some(("nvidia-cuda-mps-server", "exit 126"))).replace(&user, "user UID:");
    assert_snapshot!(said, @"error: GPU 0 (GPU-…): start the daemon of 0: the MPS server did not start: the daemon may not start a server for user UID: Operation not permitted (a daemon that is not root's serves its own user alone)");
}

/// A client knocks before `up` gets to its server: the daemon starts one after another for it.
#[test]
fn a_crash_loop_is_told_as_one() {
    let sim = Sim::with("h200", 1);
    sim.node.fault("server start").every().fails(1).unwrap();
    let script = r#"case " $* " in *" -d "*)
  "$real" "$@"; status=$?
  "${real%/*}/cuda-app" > /dev/null 2>&1 < /dev/null
  exit $status;;
esac
exec "$real" "$@""#;
    assert_snapshot!(said(&sim, Some(("nvidia-cuda-mps-control", script))), @"error: GPU 0 (GPU-…): start the daemon of 0: the MPS server did not start: the MPS server ended with status 1, 7 times over: with a client waiting, the daemon tries again and again, and wrote nothing: its program is not found in the daemon's PATH, or its user may not enter one of the directories above the pipe directory");
}

#[test]
fn a_missing_server_program_is_told_before_anything_is_touched() {
    let sim = Sim::with("h200", 1);
    let alone = sim.node.dir().join("alone");
    fs::create_dir(&alone).unwrap();
    let control = fs::canonicalize(sim.node.dir().join("bin/nvidia-cuda-mps-control")).unwrap();
    std::os::unix::fs::symlink(control, alone.join("nvidia-cuda-mps-control")).unwrap();
    let profile = sim.profile(&whole(""));
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let path = format!("{}:/usr/bin:/bin", alone.display());
    let ran = Ran::of(up.env("PATH", path)).ended(1);
    assert_snapshot!(ran.stderr, @"
    error: nvidia-cuda-mps-server is not in PATH, where nvidia-cuda-mps-control looks for it
    hint: both programs come with the NVIDIA driver (Debian: nvidia-cuda-mps); MIG_MPS_CONTROL may give the path of the control program
    ");
    assert_eq!(sim.happened("daemon start"), 0);
}

#[test]
fn what_fails_everywhere_for_one_reason_is_told_once() {
    let sim = Sim::with("a100-80gb", 2);
    let profile = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7 } ]";
    // All start at once where the instances are there.
    sim.up(profile, &[]).ended(0);
    sim.run(&["down"]).ended(0);
    sim.node.fault("daemon start").every().fails(244).unwrap();
    let said = sim.up(profile, &[]).ended(1).stderr;
    let times = |what: &str| said.matches(what).count();
    assert_eq!(times("libcuda.so.1 cannot be loaded"), 1, "{said}");
    assert_eq!(times("and likewise "), 1, "{said}");
    assert_eq!(
        times("hint: mig-mps doctor finds known causes; the whole logs are in"),
        1,
        "{said}"
    );
}

/// Kills an `up` while the server of its only device starts.
fn kill_up(sim: &Sim) {
    let profile = sim.profile(&whole(""));
    let mut up = sim.spawn(&["up", profile.to_str().unwrap(), "--yes"]);
    while sim.happened("server start") == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    up.kill().unwrap();
    up.wait().unwrap();
}

#[test]
fn a_server_that_an_interrupted_up_has_started_is_waited_for() {
    let sim = Sim::with("h200", 1);
    let fault = sim.node.fault("server start");
    fault.slow(Duration::from_secs(2)).unwrap();
    kill_up(&sim);
    let said = sim.up(&whole(""), &["--yes"]).ended(0).stderr;
    assert!(said.contains("1 device on 1 GPU ready"), "{said}");
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    assert_eq!(sim.happened("server start"), 1);
}

#[test]
fn one_that_an_interrupted_up_has_left_hanging_is_ended_at_once() {
    for words in [&["restart", "0", "--yes"][..], &["down", "--yes"]] {
        let sim = Sim::with("h200", 1);
        sim.node.fault("server start").hangs().unwrap();
        kill_up(&sim);
        let begun = Instant::now();
        sim.run(words).ended(0);
        let elapsed = begun.elapsed();
        assert!(elapsed < Duration::from_secs(10), "{words:?}: {elapsed:?}");
        sim.up(&whole(""), &["--yes"]).ended(0);
        assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
        assert_eq!(sim.status()["problems"], json!([]));
    }
}
