//! `-v`, `-q` and the trace file.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use regex::Regex;

use testkit::{Ran, SMALL, Sim, assert_contains};

#[test]
fn verbose_shows_calls_commands_and_programs_with_their_times() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.up(SMALL, &["-v"]).ended(0);
    let time = r"\(\d+\.\d ms\)";
    for line in [
        format!(r"(?m)^nvml: nvmlDeviceSetMigMode GPU-[0-9a-f-]{{36}} {time}$"),
        format!(r"(?m)^nvml: nvmlDeviceCreateGpuInstanceWithPlacement \S+ {time}$"),
        format!(r"(?m)^mps: \S+/MIG-[0-9a-f-]{{36}}/pipe: start {time}$"),
        format!(
            r"(?m)^mps: \S+/MIG-[0-9a-f-]{{36}}/pipe: .*start_server .*; get_default_active_thread_percentage: 100\.0.* {time}$"
        ),
    ] {
        assert!(
            Regex::new(&line).unwrap().is_match(&ran.stderr),
            "{line}\n{}",
            ran.stderr
        );
    }
    assert!(!ran.stdout.contains("nvml:"), "{}", ran.stdout);
    // Before the subcommand, and beside JSON.
    let ran = sim.run(&["-v", "status", "--json"]).ended(0);
    serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap();
    assert_contains(&ran.stderr, "nvml: nvmlDeviceGet");
    // What is refused says so.
    sim.node.fault("nvmlDeviceGetMigMode").fails(999).unwrap();
    let ran = sim.run(&["list", "-v"]);
    assert_contains(&ran.stderr, ": Unknown Error (999) (");
    sim.run(&["list", "-v", "-q"]).ended(2);
}

#[test]
fn quiet_leaves_errors_and_what_was_asked_for() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.up(SMALL, &["-q"]).ended(0);
    assert_eq!(
        (
            ran.stdout.as_str(),
            ran.stderr.as_str(),
            ran.progress.as_str()
        ),
        ("", "", "")
    );
    let ran = sim.run(&["-q", "status"]).ended(0);
    assert_contains(&ran.stdout, "0.2");
    let ran = sim.up(SMALL, &["-q", "--dry-run"]).ended(0);
    assert_eq!(ran.stderr, "");
    let client = sim.client("0.2");
    let ran = sim.run(&["down", "-q"]).ended(4);
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    drop(client);
    let ran = sim.run(&["down", "--quiet"]).ended(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
}

/// The consequences are shown where somebody is asked.
#[test]
fn quiet_questions_are_asked_all_the_same() {
    let sim = Sim::small();
    let path =
        sim.profile("[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\" } ]\n");
    let ran = sim.answered(&format!("-q up {}", path.display()), "y\n");
    assert_eq!(ran.status, 0, "{}", ran.stdout);
    assert_contains(&ran.stdout, "This will ");
    assert!(!ran.stdout.contains("destroy 2g"), "{}", ran.stdout);
}

#[test]
fn options_of_a_program_are_its_own() {
    let sim = Sim::small();
    let ran = sim.run(&["run", "0.2", "--", "echo", "-v", "-q"]).ended(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("-v -q\n", ""));
    let ran = sim
        .run(&["-v", "run", "0.2", "--", "sh", "-c", "umask"])
        .ended(0);
    let umask = testkit::shell("umask").stdout;
    assert_eq!(ran.stdout, umask);
    assert_contains(&ran.stderr, "mps: ");
}

/// A trace file that cannot be written ends a command before it begins: `run` has its own status for that.
#[test]
fn without_its_trace_nothing_runs() {
    let sim = Sim::small();
    let place = sim.node.dir().join("place");
    let touch = ["run", "0.2", "--", "touch", place.to_str().unwrap()];
    for (args, status) in [(&touch[..], 125), (&["status"], 2)] {
        let mut command = sim.command(args);
        let ran = Ran::of(command.env("MIG_MPS_LOG", "/nowhere/trace")).ended(status);
        assert_contains(&ran.stderr, "cannot write the trace file of MIG_MPS_LOG");
    }
    assert!(!place.exists());
}

#[test]
fn the_trace_file_has_what_happened() {
    let sim = Sim::with("a100-80gb", 1);
    let file = sim.node.dir().join("trace");
    let path = sim.profile(SMALL);
    let mut up = sim.command(&["up", path.to_str().unwrap()]);
    up.env("MIG_MPS_LOG", &file).output().unwrap();
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(&file).unwrap();
    let form = Regex::new(
        r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \d+ (debug|error) (nvml|mps|program|mig_mps): ",
    )
    .unwrap();
    for line in text.lines() {
        assert!(form.is_match(line), "{line}");
    }
    assert_contains(&text, "nvmlDeviceSetMigMode");
    assert_contains(&text, "mig_mps: exit status 0\n");
    // It is appended to, errors too.
    let mut fails = sim.command(&["status", "nosuch"]);
    fails.env("MIG_MPS_LOG", &file).output().unwrap();
    let longer = fs::read_to_string(&file).unwrap();
    let added = longer.strip_prefix(&text).unwrap();
    assert_contains(added, " error mig_mps: ");
    assert!(
        added.ends_with(" debug mig_mps: exit status 2\n"),
        "{added}"
    );
    // The daemons that were started did not get the variable.
    let pid = sim.device("0.2")["daemon_pid"].clone();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&environment).contains("MIG_MPS_LOG"));
}

/// A server's answer that would clear the screen.
#[test]
fn text_of_others_steers_no_terminal() {
    let sim = Sim::small();
    let script = sim.control_script(
        "if [ $# -eq 0 ]; then cat >/dev/null; printf '\\033[2J\\n100.0\\n'; else exec $real \"$@\"; fi",
    );
    let file = sim.node.dir().join("trace");
    let mut command = sim.command(&["set", "0.2", "active-thread-percentage=50", "-v"]);
    command
        .env("MIG_MPS_CONTROL", script)
        .env("MIG_MPS_LOG", &file);
    let ran = testkit::Ran::of(&mut command);
    let written = fs::read_to_string(&file).unwrap();
    for text in [&ran.stderr, &written] {
        assert_contains(text, "[2J");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
