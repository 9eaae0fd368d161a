//! Processes and answers that claim to be what they are not.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::{
    App, NOBODY, Ran, Running, Sim, assert_contains, copy_program, in_state, is_alive, needs_root,
    whole,
};

use super::HERS;

/// A program that answers in a user's directory may say anything, at any length, or nothing.
#[test]
fn an_answer_without_end_is_cut_off() {
    needs_root!();
    let sim = Sim::whole("");
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
fn forged(sim: &Sim, name: &str, pipe: &Path) -> Running {
    let program = sim.node.dir().join(name);
    copy_program(Path::new("/bin/bash"), &program);
    let mut forged = Command::new(&program);
    forged.args(["-c", "sleep 60; exit", "-d"]);
    forged.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    let forged = Running(forged.uid(NOBODY).gid(NOBODY).spawn().unwrap());
    sim.node.node().show_process(forged.0.id());
    forged
}

/// A process may call itself an MPS server of ours: without a context it keeps nothing, and is in nobody's way.
#[test]
fn a_process_that_calls_itself_a_server_is_no_stray() {
    needs_root!();
    let sim = Sim::whole("");
    let claimed = fs::canonicalize(sim.pipe_link("0")).unwrap();
    let forged = forged(&sim, "nvidia-cuda-mps-server", &claimed);
    let status = sim.status();
    assert_eq!(status["problems"], Value::Array(Vec::new()));
    sim.up_does_nothing(&whole(""));
    // It is shown, with its owner and what it claims.
    let unmanaged = &status["unmanaged"][0];
    assert_eq!(unmanaged["pid"], forged.0.id(), "{status:#}");
    assert_eq!(unmanaged["user"], "nobody");
    assert_eq!(unmanaged["pipe_directory"], claimed.to_str().unwrap());
    assert!(is_alive(forged.0.id()), "it goes on");
}

/// So does one that calls itself the daemon of a device that is recorded: it is shown beside the true one.
#[test]
fn a_process_that_calls_itself_our_daemon_is_shown() {
    needs_root!();
    let sim = Sim::whole(HERS);
    let claimed = fs::canonicalize(sim.pipe_link("0")).unwrap();
    let forged = forged(&sim, "nvidia-cuda-mps-control", &claimed);
    let pid = forged.0.id().to_string();
    let status = sim.status();
    let unmanaged = status["unmanaged"].as_array().unwrap();
    assert_eq!(unmanaged.len(), 1, "{status:#}");
    assert_eq!(unmanaged[0]["pid"], forged.0.id());
    assert_eq!(unmanaged[0]["user"], "nobody");
    assert_eq!(unmanaged[0]["pipe_directory"], claimed.to_str().unwrap());
    assert_eq!(in_state(&status, "ready"), ["0"]);
    let said = sim.run(&["status"]).ended(0).stdout;
    assert!(said.contains("UNMANAGED") && said.contains(&pid), "{said}");
}

/// Nor does it become the daemon of a device whose record names none.
#[test]
fn a_process_that_claims_a_device_without_a_daemon_is_not_ended() {
    needs_root!();
    let sim = Sim::whole("");
    let claimed = fs::canonicalize(sim.pipe_link("0")).unwrap();
    sim.kill_daemon("0");
    sim.edit("by-name/0/device.json", |record| {
        record["daemon"] = Value::Null;
    });
    let forged = forged(&sim, "nvidia-cuda-mps-control", &claimed);
    assert_eq!(sim.device("0")["state"], "dead");
    sim.run(&["down", "--force", "--yes"]).ended(0);
    assert!(is_alive(forged.0.id()));
}

/// A process is sent a signal only if it is the server's user's.
#[test]
fn kill_signals_nobody_elses_process() {
    needs_root!();
    let sim = Sim::whole(HERS);
    // A root service that has the GPU open, and a control program that calls it her client.
    let service = sim.node.holder(&[0]);
    let server = sim.device("0")["servers"][0]["pid"].clone();
    let liar = sim.control_script(&format!(
        "cat >/dev/null; echo 0; echo {server}; echo ACTIVE; echo {}; echo ACTIVE; echo 100.0",
        service.pid()
    ));
    let pid = service.pid().to_string();
    let mut kill = sim.command(&["kill", "0", &pid, "--signal=KILL", "--yes"]);
    let ran = Ran::of(kill.env("MIG_MPS_CONTROL", &liar));
    assert_eq!(ran.status, 4, "{}", ran.stdout);
    assert_contains(
        &ran.stderr,
        "does not belong to the user of its server, and the driver does not list it",
    );
    assert!(is_alive(service.pid()), "a root service was killed");
}

/// A user's processes may call themselves what they like, at any length: little of that is read.
#[test]
fn long_command_lines_hold_nobody_up() {
    let sim = Sim::whole("");
    let program = sim.node.dir().join("nvidia-cuda-mps-control");
    copy_program(Path::new("/bin/sh"), &program);
    let long = vec!["\u{1b}".repeat(100_000); 15];
    let posing: Vec<App> = (0..20)
        .map(|_| {
            let mut process = Command::new(&program);
            process.args(["-c", "echo; read x", "-d"]).args(&long);
            let mut process = App::start(process);
            process.wait_up();
            sim.node.node().show_process(process.pid());
            process
        })
        .collect();
    // The shell counts what the programs that it runs read.
    let mut shell = Command::new("/bin/sh");
    let script = "\"$0\" status --json; sed -n 's/rchar: //p' /proc/$$/io >&2";
    shell.args(["-c", script]).arg(sim.program());
    let ran = Ran::of(shell.env_clear().envs(sim.node.env())).ended(0);
    assert_eq!(ran.stdout.matches("\"pipe_directory\"").count(), 21);
    assert!(ran.stdout.len() < 1 << 20, "{}", ran.stdout.len());
    // All of it is 30 MB.
    let read: usize = ran.stderr.trim().parse().unwrap();
    assert!(read < 10_000_000, "{read} bytes");
    drop(posing);
}
