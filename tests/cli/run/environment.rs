use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::Command;

use testkit::{NOBODY, Ran, SMALL, Sim, assert_contains, in_state, needs_root, shell};

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
        for format in ["json", "dotenv", "slurm", "docker", "k8s", "compose"] {
            let refused = run(&["env", "0.0", "--format", format]).ended(1);
            let remedy = format!("hint: set {variable} to a directory whose name is UTF-8 text");
            // A program that reads JSON gets its document.
            assert_eq!(refused.stdout.is_empty(), format != "json", "{refused:?}");
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

/// The variable of the caller is at fault then, whichever engine it is for.
#[test]
fn a_list_of_directories_that_is_no_text_is_named() {
    let sim = Sim::served("a100-80gb", 1, SMALL);
    let list = OsStr::from_bytes(b"/d\xe9");
    for variable in ["APPTAINER_BINDPATH", "SINGULARITY_BINDPATH"] {
        let mut command = sim.command(&["env", "0.0"]);
        let refused = Ran::of(command.env(variable, list)).ended(1);
        let hint =
            format!("hint: remove the directory whose name is not UTF-8 text from {variable}\n");
        assert!(refused.stderr.ends_with(&hint), "{refused:?}");
    }
}

/// Their owner could replace what root runs.
#[test]
fn root_is_warned_of_programs_that_another_user_can_change() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 1, SMALL);
    let theirs = sim.node.dir().join("theirs");
    let of_node = sim.node.dir().join("bin");
    let control = "nvidia-cuda-mps-control";
    fs::create_dir(&theirs).unwrap();
    symlink(of_node.join(control), theirs.join(control)).unwrap();
    let path = format!("{}:{}:/usr/bin:/bin", theirs.display(), of_node.display());
    let warnings = |mut command: Command| {
        let said = Ran::of(command.env("PATH", &path)).stderr;
        let lines = said
            .lines()
            .filter(|line| line.contains(" from PATH, but "));
        let shown = theirs.display().to_string();
        lines
            .map(|line| line.replace(&shown, "/theirs"))
            .collect::<Vec<_>>()
    };
    let expected = |program: &str, why: &str| {
        vec![format!(
            "warning: root runs /theirs/{program} from PATH, but another user can change it: {why}"
        )]
    };
    let of = |words: &[&str]| warnings(sim.command(words));
    assert_eq!(of(&["status"]), [""; 0]);
    // A link of root's in a directory of theirs.
    chown(&theirs, Some(NOBODY), None).unwrap();
    let found = expected(control, "/theirs: it belongs to user nobody");
    for words in [
        &["status"][..],
        &["doctor"],
        &["heal"],
        &["up", "--dry-run"],
        &["down", "--dry-run"],
        &["slurm", "health"],
        &["run", "--private", "--", "true"],
        &["metrics"],
    ] {
        assert_eq!(of(words), found, "{words:?}");
    }
    for words in [&["check", "balanced", "--gpu", "h200"][..], &["profiles"]] {
        assert_eq!(of(words), [""; 0], "{words:?}");
    }
    assert_eq!(warnings(sim.by_nobody(&["status"])), [""; 0]);
    // A program of theirs in a directory of root's.
    chown(&theirs, Some(0), None).unwrap();
    fs::remove_file(theirs.join(control)).unwrap();
    let program = theirs.join("scontrol");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(
        of(&["status"]),
        expected("scontrol", "/theirs/scontrol: others can write to it")
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(of(&["status"]), [""; 0]);
}

/// Programs start in `/`, where `bin` is another directory.
#[test]
fn only_absolute_entries_of_the_search_path_count() {
    let sim = Sim::small();
    let directory = sim.node.dir().join("work");
    fs::create_dir_all(directory.join("bin")).unwrap();
    let control = "nvidia-cuda-mps-control";
    for place in ["bin", "."] {
        let link = directory.join(place).join(control);
        std::os::unix::fs::symlink(sim.node.dir().join("bin").join(control), link).unwrap();
    }
    let path = sim.node.env().into_iter().find(|(name, _)| name == "PATH");
    let path = path.unwrap().1.into_string().unwrap();
    for args in [&["restart", "0.0", "--yes"][..], &["doctor"], &["status"]] {
        let mut command = sim.command(args);
        command.current_dir(&directory);
        command.env("PATH", format!("bin::.:{path}"));
        Ran::of(&mut command).ended(0);
    }
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

/// The words of the system for an error are enough.
#[test]
fn no_number_of_the_system_is_shown() {
    let sim = Sim::small();
    let control = sim.node.dir().join("no-interpreter");
    testkit::write_program(&control, "#!/no/such/interpreter\n");
    let profile = sim.profile(SMALL).display().to_string();
    let mut has_words = 0;
    for words in [
        "status",
        "status --json",
        "doctor --all",
        "doctor --json",
        &format!("plan {profile}"),
        &format!("plan {profile} --json"),
        "metrics",
        "down",
        "down --json",
        "down --force --dry-run --json",
        "restart 0.0",
        "set 0.0 share=2",
        "set 0.0 share=2 --json",
        "heal --json",
        "verify --json",
        "list --json",
    ] {
        let args: Vec<&str> = words.split(' ').collect();
        let mut command = sim.command(&args);
        let ran = Ran::of(command.env("MIG_MPS_CONTROL", &control));
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!said.contains("os error"), "{words}: {said}");
        has_words += usize::from(said.contains("No such file or directory"));
    }
    assert!(has_words > 5, "{has_words}");
}

/// CUDA finds no daemon by a longer path, and says nothing.
#[test]
fn the_directory_of_a_device_with_a_long_name_fits_a_socket() {
    let sim = Sim::with("h200", 1);
    let name = "x".repeat(64);
    sim.up(
        &format!("[[gpu]]\nselect = {{ all = true }}\nmig = false\nname = \"{name}\"\n"),
        &[],
    )
    .ended(0);
    assert!(sim.pipe_link(&name).as_os_str().len() > 87);
    let env = sim.run(&["env", &name, "--shell", "sh"]).ended(0).stdout;
    let pipe = env
        .lines()
        .find_map(|line| line.strip_prefix("export CUDA_MPS_PIPE_DIRECTORY="))
        .unwrap();
    assert!(pipe.len() <= 87, "{env}");
    let ran = sim.run(&["run", &name, "--", "cuda-app", "run", "0"]);
    assert!(ran.ended(0).stdout.contains("mps yes"));
}

/// The output is for scripts: it stays as it is.
#[test]
fn env_notes_that_programs_would_run_outside_mps() {
    needs_root!();
    let sim = Sim::whole("serve = \"user:root\"");
    let outside = "; programs with these variables run outside MPS";
    let own = sim.run(&["env", "0", "--format", "dotenv"]).ended(0);
    assert!(!own.stderr.contains("outside MPS"), "{}", own.stderr);
    let others = Ran::of(&mut sim.by_other(&["env", "0"])).ended(0);
    let pipe = own.stdout.lines().next().unwrap();
    assert_contains(&others.stdout, &format!("export {pipe}\n"));
    let note = format!("note: device 0 serves only user root, not user nobody{outside}");
    assert_contains(&others.stderr, &note);
    sim.kill_daemon("0");
    let dead = sim.run(&["env", "0", "--format", "dotenv"]).ended(0);
    assert_eq!(dead.stdout, own.stdout);
    let note = format!("note: the daemon of device 0 has died{outside}");
    assert_contains(&dead.stderr, &note);
}
