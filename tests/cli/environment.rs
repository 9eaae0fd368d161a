use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use insta::assert_snapshot;

use testkit::{Ran, SMALL, Sim, in_state, shell};

#[test]
fn no_nvml_library() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = Ran::of(
        sim.command(&["list"])
            .env("MIG_MPS_NVML_LIBRARY", "/no/libnvidia-ml.so.1"),
    )
    .ended(1);
    assert_snapshot!(ran.tidy(), @"
    error: cannot load the NVML library /no/libnvidia-ml.so.1: /no/libnvidia-ml.so.1: cannot open shared object file: No such file or directory
    hint: install the NVIDIA driver, or set MIG_MPS_NVML_LIBRARY to the path of libnvidia-ml.so.1
    ");
}

#[test]
fn no_driver() {
    let sim = Sim::with("a100-80gb", 1);
    let library = sim
        .node
        .dir()
        .join("lib/libnvidia-ml.so.1")
        .canonicalize()
        .unwrap();
    let mut command = sim.command(&["list"]);
    command
        .env_remove("SIMNODE")
        .env("MIG_MPS_NVML_LIBRARY", library);
    assert_snapshot!(Ran::of(&mut command).ended(1).tidy(), @"
    error: the driver: nvmlInit_v2: Driver Not Loaded (9)
    hint: load the NVIDIA kernel module; nvidia-smi shows whether it works
    ");
}

#[test]
fn no_control_program() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let up = ["up", profile.to_str().unwrap()];
    let ran = Ran::of(sim.command(&up).env("PATH", "/usr/bin:/bin")).ended(1);
    assert_snapshot!(ran.tidy(), @"
    error: nvidia-cuda-mps-control is not in PATH
    hint: both programs come with the NVIDIA driver (Debian: nvidia-cuda-mps); MIG_MPS_CONTROL may give the path of the control program
    ");
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_CONTROL", "/no/control")).ended(1);
    assert_snapshot!(ran.tidy(), @"
    error: MIG_MPS_CONTROL is /no/control, where there is no program
    hint: both programs come with the NVIDIA driver (Debian: nvidia-cuda-mps); MIG_MPS_CONTROL may give the path of the control program
    ");
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
    // Looking needs none.
    Ran::of(sim.command(&["status"]).env("PATH", "/usr/bin:/bin")).ended(0);
}

#[test]
fn a_run_directory_too_long_for_a_socket() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let long = format!("/tmp/{}", "x".repeat(40));
    let up = ["up", profile.to_str().unwrap()];
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_RUN_DIR", &long)).ended(1);
    assert_snapshot!(ran.tidy(), @"
    error: the pipe directory /tmp/…/MIG-000000000000000000000000000000000000/pipe is 91 bytes long: a socket path allows 87
    hint: set MIG_MPS_RUN_DIR to a shorter directory
    ");
    assert!(!std::path::Path::new(&long).exists());
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
}

#[test]
fn a_run_directory_that_others_can_write_to_is_not_used() {
    let sim = Sim::with("a100-80gb", 1);
    fs::create_dir(sim.node.run_dir()).unwrap();
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(sim.node.run_dir(), open).unwrap();
    let ran = sim.up(SMALL, &[]).ended(1);
    assert_snapshot!(ran.tidy(), @"
    error: cannot use the run directory: /tmp/…/run: others can write to it
    hint: chmod go-w /tmp/…/run
    ");
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
}

#[test]
fn an_ignored_sigchld_is_taken_back() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let ignoring = |args: &[&str]| {
        let program = sim.command(args);
        let mut command = Command::new("/usr/bin/env");
        command
            .arg("--ignore-signal=CHLD")
            .arg(program.get_program())
            .args(program.get_args())
            .env_clear()
            .envs(sim.node.env());
        Ran::of(&mut command)
    };
    ignoring(&["up", profile.to_str().unwrap(), "--yes"]).ended(0);
    let status = ignoring(&["status", "--json"]).json();
    let devices = status["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    for device in devices {
        assert_eq!(device["state"], "ready");
        // What it starts has the default again: a daemon that ignored it would not know its servers' ends.
        let pid = &device["daemon_pid"];
        let ignored = shell(format!("grep SigIgn /proc/{pid}/status"))
            .ended(0)
            .stdout;
        let mask = ignored.split_whitespace().nth(1).unwrap();
        assert_eq!(
            u64::from_str_radix(mask, 16).unwrap() >> 16 & 1,
            0,
            "{ignored}"
        );
    }
    ignoring(&["down"]).ended(0);
}

#[test]
fn without_proc_nothing_is_said_and_nothing_done() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    for args in [&["status"][..], &["down"]] {
        let ran = Ran::of(sim.command(args).env("MIG_MPS_ROOT", "/nonexistent")).ended(1);
        assert!(ran.stderr.contains("cannot read /proc"), "{}", ran.stderr);
    }
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn directories_that_were_there_keep_their_permissions() {
    let sim = Sim::with("a100-80gb", 1);
    fs::create_dir(sim.node.log_dir()).unwrap();
    fs::set_permissions(sim.node.log_dir(), fs::Permissions::from_mode(0o750)).unwrap();
    sim.up(SMALL, &[]).ended(0);
    let mode = fs::metadata(sim.node.log_dir())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o750);
}

#[test]
fn relative_directories_are_made_absolute() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let parent = sim.node.run_dir().parent().unwrap();
    up.current_dir(parent)
        .env("MIG_MPS_RUN_DIR", "run")
        .env("MIG_MPS_LOG_DIR", "log");
    Ran::of(&mut up).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    assert_eq!(fs::read_dir(sim.node.log_dir()).unwrap().count(), 2);
}

#[test]
fn logs_are_found_whatever_the_bytes_of_their_directory() {
    for name in ["l\u{200b}".as_bytes(), b"l\nog", b"l\xff"] {
        let sim = Sim::with("a100-80gb", 1);
        let logs = sim.node.run_dir().with_file_name(OsStr::from_bytes(name));
        let run = |args: &[&str]| Ran::of(sim.command(args).env("MIG_MPS_LOG_DIR", &logs));
        let profile = sim.profile(SMALL);
        run(&["up", profile.to_str().unwrap()]).ended(0);
        let shown = run(&["logs", "0.0"]).ended(0).stdout;
        assert!(shown.contains("NEW SERVER"), "{shown}");
    }
}

#[test]
fn no_text_names_a_directory_whose_name_is_none() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let bytes = OsStr::from_bytes(b"\xff");
    let directory = sim.node.run_dir().with_file_name(bytes);
    for (variable, tool) in [("MIG_MPS_RUN_DIR", "run"), ("MIG_MPS_LOG_DIR", "log")] {
        let run = |args: &[&str]| Ran::of(sim.command(args).env(variable, directory.join(tool)));
        run(&["up", profile.to_str().unwrap()]).ended(0);
        for format in ["json", "dotenv", "slurm", "docker", "k8s"] {
            let refused = run(&["env", "0.0", "--format", format]).ended(1);
            let remedy = format!("hint: set {variable} to a directory whose name is UTF-8 text");
            assert!(refused.stdout.is_empty(), "{refused:?}");
            assert!(
                refused.stderr.contains(" is not UTF-8 text, "),
                "{refused:?}"
            );
            assert!(refused.stderr.contains(&remedy), "{refused:?}");
        }
        let refused = run(&["env", "0.0", "--shell", "bash"]).ended(1);
        assert!(refused.stdout.is_empty(), "{refused:?}");
        // It needs no text.
        run(&["run", "0.0", "--", "true"]).ended(0);
        run(&["down"]).ended(0);
    }
}

#[test]
fn what_cannot_work_is_found_before_anything_is_touched() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let up = ["up", profile.to_str().unwrap()];
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_CONTROL", "/etc/passwd")).ended(1);
    assert!(
        ran.stderr.contains("where there is no program"),
        "{}",
        ran.stderr
    );
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_LOG_DIR", "/proc/log")).ended(1);
    assert!(
        ran.stderr
            .contains("cannot use the log directory: /proc/log: "),
        "{}",
        ran.stderr
    );
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
}
