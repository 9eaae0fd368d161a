//! The output of `mig-mps __complete`, and what it needs for that.

use std::fs;
use std::os::unix::fs::symlink;

use testkit::{Ran, SMALL, Sim, needs_root, repository, shell, user};

/// The values for the last word: where there are none, options are offered.
fn values(sim: &Sim, words: &[&str]) -> Vec<String> {
    let mut found = candidates(sim, words);
    found.retain(|line| !line.starts_with("--"));
    found
}

/// The candidates for the last word.
fn candidates(sim: &Sim, words: &[&str]) -> Vec<String> {
    let ran = sim
        .run(&[&["__complete", "mig-mps"], words].concat())
        .ended(0);
    assert_eq!(ran.stderr, "");
    ran.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn a_client_is_offered_with_its_user_and_command() {
    let sim = Sim::small();
    let client = sim.client("0.0");
    let found = candidates(&sim, &["kill", "0.0", ""]);
    assert_eq!(found.len(), 1, "{found:?}");
    let begins = format!("{}\t{}, ", client.pid(), user());
    assert!(found[0].starts_with(&begins), "{found:?}");
    assert!(found[0].contains("cuda-app hold"), "{found:?}");
    assert_eq!(values(&sim, &["kill", "0.2", ""]), [""; 0]);
    let pid = client.pid().to_string();
    assert_eq!(values(&sim, &["kill", "0.0", &pid, ""]), [""; 0]);
}

#[test]
fn a_stopped_device_is_offered_where_it_can_start() {
    let sim = Sim::served(
        "h200",
        3,
        "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\nname = \"trainers\"\njoint = true\n\
         [[gpu]]\nselect = { index = [2] }\nmig = false\n",
    );
    sim.run(&["down", "*", "--yes"]).ended(0);
    let stopped = [
        "2\tGPU 2, whole GPU, stopped",
        "trainers\tGPUs 0-1, joint, stopped",
    ];
    for command in ["start", "restart"] {
        let mut found = values(&sim, &[command, ""]);
        found.sort();
        assert_eq!(found, stopped, "{command}");
        assert_eq!(values(&sim, &[command, "trainers", ""]), [stopped[0]]);
    }
    assert_eq!(values(&sim, &["set", ""]), [""; 0]);
    sim.run(&["start", "*"]).ended(0);
    let found = values(&sim, &["start", ""]);
    assert!(
        found.iter().all(|line| line.ends_with(", running")),
        "{found:?}"
    );
}

#[test]
fn the_words_and_the_default_of_a_setting_are_offered() {
    let sim = Sim::small();
    assert_eq!(
        candidates(&sim, &["set", "0.0", "active-thread-percentage="]),
        ["active-thread-percentage=100\tdefault"]
    );
    let found = candidates(&sim, &["set", "0.0", "mem"]);
    assert!(found[0].starts_with("memory=\t"), "{found:?}");
    let found = candidates(&sim, &["set", "0.0", "memory="]);
    assert_eq!(found, ["memory=none\tdefault"]);
    // A setting that restarts the daemon is no matter of `set`.
    assert_eq!(candidates(&sim, &["set", "0.0", "cpus"]), [""; 0]);
}

/// `set` and `kill` take no device then.
#[test]
fn settings_and_clients_follow_a_gpu() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    let client = sim.client("1.0");
    let pid = client.pid().to_string();
    for gpu in [&["--gpu", "1"][..], &["--gpu=1"]] {
        let found = values(&sim, &[&["kill"], gpu, &[""]].concat());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&pid), "{found:?}");
        let found = values(&sim, &[&["set"], gpu, &["client-priority=n"]].concat());
        assert_eq!(found, ["client-priority=normal\tdefault"]);
    }
    assert_eq!(values(&sim, &["kill", "--gpu", "0", ""]), [""; 0]);
}

#[test]
fn the_configurations_of_a_file_are_offered() {
    let sim = Sim::with("a100-80gb", 1);
    let file = repository().join("fixtures/mig-parted/dgx-station-80gb-config.yaml");
    assert_eq!(
        candidates(
            &sim,
            &["import", file.to_str().unwrap(), "--config", "all-1g"]
        ),
        ["all-1g.10gb-dgx-station-80"]
    );
    let none = candidates(&sim, &["import", "/dev/null", "--config", ""]);
    assert_eq!(none, [""; 0]);
}

/// A change may hold the lock for minutes.
#[test]
fn a_lock_that_is_held_does_not_keep_completion_waiting() {
    let sim = Sim::small();
    let lock = fs::File::open(sim.node.run_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(values(&sim, &["down", ""]).len(), 2);
}

#[test]
fn hidden_subcommands_are_not_offered() {
    let sim = Sim::with("a100-80gb", 1);
    assert_eq!(candidates(&sim, &["__com"]), [""; 0]);
    assert_eq!(candidates(&sim, &["laun"]), [""; 0]);
}

#[test]
fn hidden_options_are_not_offered() {
    let sim = Sim::with("a100-80gb", 1);
    for [subcommand, hidden, begun] in [
        ["compare", "--device", "--de"],
        ["doctor", "--explain", "--expl"],
        ["systemd", "--package", "--pack"],
    ] {
        let all = candidates(&sim, &[subcommand, "--"]);
        assert!(all.len() > 3, "{all:?}");
        let offered = |line: &String| line.split('\t').next() == Some(hidden);
        assert!(!all.iter().any(offered), "{all:?}");
        assert_eq!(candidates(&sim, &[subcommand, begun]), [""; 0]);
    }
}

#[test]
fn a_value_that_needs_an_equals_sign_is_offered_after_it() {
    let sim = Sim::small();
    let devices = candidates(&sim, &["kill", "--signal", ""]);
    assert_eq!(devices[0], "0.0\tGPU 0, 2g.20gb, running");
    assert_eq!(devices.len(), 2, "{devices:?}");
    assert_eq!(
        candidates(&sim, &["kill", "--signal=K"])[0]
            .split('\t')
            .next(),
        Some("--signal=KILL")
    );
}

/// Whatever is in the run directory: no message, no end, and the devices that can be read.
#[test]
fn a_run_directory_full_of_anything_keeps_completion_alive() {
    let sim = Sim::small();
    let run = sim.node.run_dir();
    fs::write(run.join(sim.uuid("0.2")).join("device.json"), "{\u{1b}[31m").unwrap();
    for name in ["x", "y", "\u{1b}[2J"] {
        fs::create_dir(run.join(name)).unwrap();
    }
    shell(format!("mkfifo {}", run.join("x/device.json").display())).ended(0);
    symlink("/dev/zero", run.join("y/device.json")).unwrap();
    assert_eq!(
        candidates(&sim, &["down", ""]),
        ["0.0\tGPU 0, 2g.20gb, running"]
    );
    fs::remove_dir_all(run.join("by-name")).unwrap();
    assert_eq!(
        candidates(&sim, &["down", ""]),
        ["0.0\tGPU 0, 2g.20gb, running"]
    );
}

#[test]
fn a_record_of_an_earlier_version_is_offered_by_its_name() {
    let sim = Sim::small();
    sim.edit("by-name/0.0/device.json", |record| {
        let record = record.as_object_mut().unwrap();
        assert_eq!(record.remove("gpu"), Some(0.into()));
        assert_eq!(record.remove("profile"), Some("2g.20gb".into()));
    });
    assert_eq!(candidates(&sim, &["down", "0.0"]), ["0.0\trunning"]);
}

#[test]
fn a_file_that_could_control_the_terminal_is_not_offered() {
    let sim = Sim::with("a100-80gb", 1);
    let files = sim.node.dir().join("files");
    fs::create_dir(&files).unwrap();
    for name in ["a.toml", "b\u{1b}[31m.toml", "c\n.toml"] {
        fs::write(files.join(name), "").unwrap();
    }
    let mut command = sim.command(&["__complete", "mig-mps", "up", ""]);
    let ran = Ran::of(command.current_dir(&files)).ended(0);
    let mut offered = ran.stdout.lines();
    assert!(offered.any(|line| line == "a.toml"), "{}", ran.stdout);
    assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
    assert!(
        !ran.stdout
            .lines()
            .any(|line| line == "c" || line == ".toml")
    );
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_plain_user_is_offered_what_that_user_can_read() {
    needs_root!();
    let sim = Sim::small();
    let client = sim.client("0.0");
    let ask = |words: &[&str]| {
        let words = [&["__complete", "mig-mps"], words].concat();
        let ran = Ran::of(&mut sim.by_other(&words)).ended(0);
        assert_eq!(ran.stderr, "");
        ran.stdout
    };
    assert!(ask(&["status", "0.0"]).starts_with("0.0\tGPU 0, 2g.20gb, running"));
    // The environment of root's programs is hidden.
    let clients = ask(&["kill", "0.0", ""]);
    assert!(
        clients.lines().all(|line| line.starts_with("--")),
        "{clients}"
    );
    drop(client);
}

#[test]
fn a_script_says_where_it_goes() {
    let sim = Sim::with("a100-80gb", 1);
    for shell in ["bash", "zsh", "fish"] {
        let help = sim.run(&["completions", "--help"]).ended(0).stdout;
        let script = sim.run(&["completions", shell]).ended(0);
        assert_eq!(script.stderr, "");
        let shown = sim.in_80_columns(&format!("completions {shell}")).stdout;
        let (_, place) = shown.rsplit_once("Write it to ").unwrap();
        let place = place
            .split_whitespace()
            .next()
            .unwrap()
            .trim_end_matches(',');
        assert!(help.contains(place), "{place}: {help}");
        assert!(script.stdout.contains(place), "{place}");
    }
}
