//! Processes and answers that claim to be what they are not.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use serde_json::Value;
use testkit::{
    NOBODY, Ran, Sim, assert_contains, copy_program, in_state, is_alive, needs_root, whole,
};

use super::HERS;

/// What answers in a user's directory may say anything, at any length, or nothing.
#[test]
fn an_answer_without_end_is_cut_off() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &[]).ended(0);
    let endless = sim.control_script("exec yes 'all is well'");
    let _client = sim.client("0");
    let status = Ran::of(
        sim.command(&["status", "--json"])
            .env("MIG_MPS_CONTROL", &endless),
    )
    .json();
    let problem = status["problems"].to_string();
    assert_contains(&problem, "wrote more than 1024 KiB");
}

/// A process of a plain user that calls itself a program of MPS and claims a pipe directory.
fn forged(sim: &Sim, name: &str, pipe: &Path) -> Child {
    let program = sim.node.dir().join(name);
    copy_program(Path::new("/bin/bash"), &program);
    let mut forged = Command::new(&program);
    forged.args(["-c", "sleep 60; exit", "-d"]);
    forged.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    let forged = forged.uid(NOBODY).gid(NOBODY).spawn().unwrap();
    let proc = sim
        .node
        .dir()
        .join("root/proc")
        .join(forged.id().to_string());
    symlink(format!("/proc/{}", forged.id()), proc).unwrap();
    forged
}

/// A process may call itself an MPS server of ours: without a context it keeps nothing, and is in nobody's way.
#[test]
fn a_process_that_calls_itself_a_server_is_no_stray() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &[]).ended(0);
    let claimed = fs::canonicalize(sim.pipe_link("0")).unwrap();
    let mut forged = forged(&sim, "nvidia-cuda-mps-server", &claimed);
    let status = sim.status();
    assert_eq!(status["problems"], Value::Array(Vec::new()));
    sim.up_does_nothing(&whole(""));
    // It is shown, with its owner and what it claims.
    let unmanaged = &status["unmanaged"][0];
    assert_eq!(unmanaged["pid"], forged.id(), "{status:#}");
    assert_eq!(unmanaged["user"], "nobody");
    assert_eq!(unmanaged["pipe_directory"], claimed.to_str().unwrap());
    assert!(forged.try_wait().unwrap().is_none(), "it goes on");
    forged.kill().unwrap();
    forged.wait().unwrap();
}

/// So does one that calls itself the daemon of a device that is recorded: it is shown beside the true one.
#[test]
fn a_process_that_calls_itself_our_daemon_is_shown() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let claimed = fs::canonicalize(sim.pipe_link("0")).unwrap();
    let mut forged = forged(&sim, "nvidia-cuda-mps-control", &claimed);
    let pid = forged.id().to_string();
    let status = sim.status();
    let unmanaged = status["unmanaged"].as_array().unwrap();
    assert_eq!(unmanaged.len(), 1, "{status:#}");
    assert_eq!(unmanaged[0]["pid"], forged.id());
    assert_eq!(unmanaged[0]["user"], "nobody");
    assert_eq!(unmanaged[0]["pipe_directory"], claimed.to_str().unwrap());
    assert_eq!(in_state(&status, "ready"), ["0"]);
    let said = sim.run(&["status"]).ended(0).stdout;
    assert!(said.contains("UNMANAGED") && said.contains(&pid), "{said}");
    forged.kill().unwrap();
    forged.wait().unwrap();
}

/// A process is sent a signal only if it is the server's user's.
#[test]
fn kill_signals_nobody_elses_process() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    // A root service that has the GPU open, and a control program that calls it her client.
    let service = sim.node.holder(&[0]);
    let server = sim.device("0")["servers"][0]["pid"].clone();
    let liar = sim.control_script(&format!(
        "cat >/dev/null; echo 0; echo {server}; echo ACTIVE; echo {}; echo 100.0",
        service.pid()
    ));
    let pid = service.pid().to_string();
    let mut kill = sim.command(&["kill", "0", &pid, "--signal=KILL", "--yes"]);
    let ran = Ran::of(kill.env("MIG_MPS_CONTROL", &liar));
    assert_eq!(ran.status, 4, "{}", ran.stdout);
    assert_contains(&ran.stderr, "runuser -u nobody -- mig-mps kill 0");
    assert!(
        is_alive(Value::from(service.pid())),
        "a root service was killed"
    );
}

/// A user's processes may call themselves what they like, at any length: little of that is read.
#[test]
fn long_command_lines_hold_nobody_up() {
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &[]).ended(0);
    let program = sim.node.dir().join("nvidia-cuda-mps-control");
    copy_program(Path::new("/bin/sh"), &program);
    let long = vec!["\u{1b}".repeat(100_000); 15];
    let mut posing: Vec<_> = (0..20)
        .map(|_| {
            let mut process = Command::new(&program);
            process.args(["-c", "echo; read x", "-d"]).args(&long);
            let process = process.stdin(std::process::Stdio::piped());
            let process = process.stdout(std::process::Stdio::piped());
            let mut process = process.spawn().unwrap();
            let mut line = String::new();
            let stdout = process.stdout.take().unwrap();
            std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
            let pid = process.id().to_string();
            let shown = sim.node.dir().join("root/proc").join(&pid);
            symlink(format!("/proc/{pid}"), shown).unwrap();
            process
        })
        .collect();
    let begun = std::time::Instant::now();
    let status = sim.run(&["status", "--json"]).ended(0);
    let elapsed = begun.elapsed();
    for process in &mut posing {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert_eq!(status.stdout.matches("\"pipe_directory\"").count(), 21);
    assert!(status.stdout.len() < 1 << 20, "{}", status.stdout.len());
    assert!(elapsed.as_secs() < 10, "{elapsed:?}");
}
