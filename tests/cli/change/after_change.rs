//! The programs in `/etc/mig-mps/after-change.d`, which follow a change of the devices.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::Value;

use testkit::{
    NOBODY, Ran, SMALL, Sim, WHOLE, assert_contains, is_alive, kill, needs_root, wait_until, whole,
    write_program,
};

use crate::cli::devices::uuids::nvidia_smi;

/// A node with so many GPUs whose run directory is the system's, with an empty directory for programs.
pub(super) fn node(gpus: usize) -> Sim {
    let sim = Sim::with("h200", gpus);
    fs::create_dir_all(sim.machine("run")).unwrap();
    symlink(sim.node.run_dir(), sim.machine("run/mig-mps")).unwrap();
    fs::create_dir_all(directory(&sim)).unwrap();
    sim
}

fn directory(sim: &Sim) -> PathBuf {
    sim.machine("etc/mig-mps/after-change.d")
}

/// A file for a program, in the directory of the node.
fn file(sim: &Sim, name: &str) -> PathBuf {
    sim.node.dir().join(name)
}

/// Writes a program, a shell script that runs in the directory of the node.
pub(super) fn write(sim: &Sim, name: &str, script: &str) -> PathBuf {
    let path = directory(sim).join(name);
    let at = sim.node.dir().display();
    write_program(&path, format!("#!/bin/sh\ncd {at}\n{script}\n"));
    path
}

/// The programs that have run since the last call, in order.
pub(super) fn ran(sim: &Sim) -> Vec<String> {
    let path = file(sim, "ran");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(&path);
    text.lines().map(str::to_owned).collect()
}

/// Writes a program that only notes that it has run.
pub(super) fn write_noting(sim: &Sim, name: &str) -> PathBuf {
    write(sim, name, &format!("echo {name} >>ran"))
}

fn document(sim: &Sim, name: &str) -> Value {
    serde_json::from_slice(&fs::read(file(sim, name)).unwrap()).unwrap()
}

/// What a command says, without the path of the directory.
fn said(sim: &Sim, ran: &Ran) -> String {
    let shown = directory(sim).display().to_string();
    ran.stderr.replace(&shown, "DIR")
}

#[test]
fn programs_follow_a_change_of_the_devices_in_the_order_of_their_names() {
    needs_root!();
    let sim = node(1);
    write(&sim, "20-second", "echo second >>ran; cat >second.json");
    let first = "echo first >>ran; cat >first.json; echo out; echo err >&2; env >env";
    write(&sim, "10-first", first);
    for other in [".hidden", "30-old~", "40-dot.sh", "50-x.dpkg-new"] {
        write_noting(&sim, other);
    }
    let quiet = write_noting(&sim, "60-not-executable");
    fs::set_permissions(quiet, fs::Permissions::from_mode(0o644)).unwrap();
    fs::create_dir(directory(&sim).join("70-directory")).unwrap();

    let up = sim.up(WHOLE, &["--json"]).ended(0);
    assert_eq!(ran(&sim), ["first", "second"]);
    assert_contains(&up.stderr, "10-first: out\n10-first: err\n");
    let shown = up.json();
    assert_eq!(document(&sim, "first.json"), shown);
    assert_eq!(document(&sim, "second.json"), shown);
    assert_eq!(shown["status"]["devices"][0]["name"], "0");
    let environment = fs::read_to_string(file(&sim, "env")).unwrap();
    assert_contains(&environment, "MIG_MPS_ROOT=");
    assert!(!environment.contains("LD_LIBRARY_PATH"), "{environment}");

    // What does not change the devices.
    sim.up_does_nothing(WHOLE);
    for args in [
        &["restart", "0", "--yes"][..],
        &["set", "0", "active-thread-percentage=50"],
        &["heal"],
        &["down", "--dry-run"],
        &["up", "--dry-run"],
    ] {
        let _ = sim.run(args).ended(0);
        assert_eq!(ran(&sim), [""; 0], "{args:?}");
    }
    sim.kill_daemon("0");
    let _ = sim.run(&["heal"]).ended(0);
    assert_eq!(ran(&sim), [""; 0]);

    // What does.
    let _ = sim.up(&whole("share = 2"), &["--yes"]).ended(0);
    assert_eq!(ran(&sim), ["first", "second"]);
    let _ = sim.run(&["down"]).ended(0);
    assert_eq!(ran(&sim), ["first", "second"]);
    let last = document(&sim, "second.json");
    assert_eq!(last["status"]["devices"][0]["daemon"], Value::Null);
    assert_eq!(last["changed"], true);
    let _ = sim.run(&["down"]).ended(0);
    assert_eq!(ran(&sim), [""; 0]);
}

#[test]
fn after_a_reboot_the_devices_are_new() {
    needs_root!();
    let sim = node(1);
    write_noting(&sim, "10-a");
    let _ = sim.up(WHOLE, &[]).ended(0);
    assert_eq!(ran(&sim), ["10-a"]);
    sim.node.reboot();
    let _ = sim.up(WHOLE, &[]).ended(0);
    assert_eq!(ran(&sim), ["10-a"]);
}

#[test]
fn nothing_follows_in_the_directories_of_users_and_of_tests() {
    needs_root!();
    let sim = node(1);
    write_noting(&sim, "10-a");
    let _ = sim.up(WHOLE, &[]).ended(0);
    let _ = sim.run(&["down"]).ended(0);
    assert_eq!(ran(&sim), ["10-a", "10-a"]);
    let profile = sim.profile(WHOLE);
    let up = ["up", profile.to_str().unwrap()];
    let other = file(&sim, "r");
    let _ = Ran::of(sim.command(&up).env("MIG_MPS_RUN_DIR", &other)).ended(0);
    let _ = Ran::of(sim.command(&["down"]).env("MIG_MPS_RUN_DIR", &other)).ended(0);
    assert_eq!(ran(&sim), [""; 0]);
    let _ = Ran::of(&mut sim.by_nobody(&up)).ended(0);
    let _ = Ran::of(&mut sim.by_nobody(&["down"])).ended(0);
    assert_eq!(ran(&sim), [""; 0]);
}

#[test]
fn what_a_user_can_change_is_refused_and_named() {
    needs_root!();
    let sim = node(1);
    let open = write_noting(&sim, "10-open");
    fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
    let group = write_noting(&sim, "15-group");
    fs::set_permissions(group, fs::Permissions::from_mode(0o775)).unwrap();
    let theirs = write_noting(&sim, "20-theirs");
    chown(theirs, Some(NOBODY), None).unwrap();
    let target = file(&sim, "target");
    write_program(&target, "#!/bin/sh\n");
    chown(&target, Some(NOBODY), None).unwrap();
    symlink(target, directory(&sim).join("30-link")).unwrap();
    write_noting(&sim, "40-good");

    let up = sim.up(WHOLE, &[]).ended(1);
    assert_eq!(ran(&sim), ["40-good"]);
    assert_eq!(sim.device("0")["state"], "ready");
    let text = said(&sim, &up).replace(&sim.node.dir().display().to_string(), "NODE");
    let (_, errors) = text.split_once("error: ").unwrap();
    assert_snapshot!(errors, @r"
    some programs in DIR failed or did not run after the last change of the devices:
      10-open was not run: DIR/10-open: others can write to it
      15-group was not run: DIR/15-group: its group can write to it
      20-theirs was not run: DIR/20-theirs: it belongs to user nobody
      30-link was not run: NODE/target: it belongs to user nobody
    hint: examine DIR/10-open, then run `chown root DIR/10-open` and `chmod go-w DIR/10-open`
    hint: examine DIR/15-group, then run `chown root DIR/15-group` and `chmod go-w DIR/15-group`
    hint: examine DIR/20-theirs, then run `chown root DIR/20-theirs` and `chmod go-w DIR/20-theirs`
    hint: examine NODE/target, then run `chown root NODE/target` and `chmod go-w NODE/target`
    hint: run `mig-mps heal` to run the failed programs again
    ");
    let doctor = sim.run(&["doctor"]).stdout;
    assert_eq!(doctor.matches("[after-change]").count(), 4, "{doctor}");

    for name in ["10-open", "15-group", "20-theirs", "30-link"] {
        fs::remove_file(directory(&sim).join(name)).unwrap();
    }
    let _ = sim.run(&["heal"]).ended(0);
    assert!(!sim.run(&["doctor"]).stdout.contains("[after-change]"));
    // Nothing runs from a directory that others can write to.
    fs::set_permissions(directory(&sim), fs::Permissions::from_mode(0o777)).unwrap();
    let down = sim.run(&["down"]).ended(1);
    assert_contains(&said(&sim, &down), "DIR: others can write to it");
    assert_contains(&sim.run(&["doctor"]).stdout, "[after-change]");
    assert_eq!(ran(&sim), [""; 0]);
    fs::set_permissions(directory(&sim), fs::Permissions::from_mode(0o755)).unwrap();
    let _ = sim.run(&["heal"]).ended(0);
    assert_eq!(ran(&sim), ["40-good"]);
}

#[test]
fn a_program_that_fails_is_run_again_by_heal_and_up_until_it_succeeds() {
    needs_root!();
    let sim = node(1);
    write(
        &sim,
        "10-fails",
        "echo fails >>ran; cat >10.json; test -e good",
    );
    write_noting(&sim, "20-good");
    let up = sim.up(WHOLE, &["--json"]).ended(1);
    let text = said(&sim, &up);
    let (_, error) = text.split_once("error: ").unwrap();
    assert_snapshot!(error, @r"
    some programs in DIR failed or did not run after the last change of the devices:
      10-fails failed (exit status: 1)
    hint: run `mig-mps heal` to run the failed programs again
    ");
    assert_eq!(ran(&sim), ["fails", "20-good"]);
    let shown: Value = serde_json::from_str(&up.stdout).unwrap();
    assert_eq!(document(&sim, "10.json"), shown);
    let doctor = sim.run(&["doctor"]).ended(3).stdout;
    assert_contains(&doctor, "10-fails failed (exit status: 1)");

    // Only a change and a heal try again.
    let _ = sim.run(&["restart", "0", "--yes"]).ended(0);
    assert_eq!(ran(&sim), [""; 0]);
    let _ = sim.run(&["heal"]).ended(1);
    let _ = sim.up(WHOLE, &[]).ended(1);
    let _ = sim.run(&["heal", "--dry-run"]).ended(0);
    assert_eq!(ran(&sim), ["fails", "fails"]);
    // The document is that of the change.
    assert_eq!(document(&sim, "10.json"), shown);
    fs::write(file(&sim, "good"), "").unwrap();
    let _ = sim.run(&["heal"]).ended(0);
    assert_eq!(ran(&sim), ["fails"]);
    let _ = sim.run(&["heal"]).ended(0);
    sim.up_does_nothing(WHOLE);
    assert_eq!(ran(&sim), [""; 0]);
    assert!(!sim.run(&["doctor"]).stdout.contains("[after-change]"));
}

#[test]
fn a_program_without_end_is_ended_with_all_that_it_started() {
    needs_root!();
    let sim = node(1);
    write(&sim, "10-hangs", "sleep 1000 & echo $! >child; wait");
    write_noting(&sim, "20-good");
    let profile = sim.profile(WHOLE);
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let up = Ran::of(up.env("MIG_MPS_TEST_PROGRAM_LIMIT", "1000")).ended(1);
    assert_contains(
        &said(&sim, &up),
        "\n  10-hangs did not exit within 1 s, and was ended\n",
    );
    let child = fs::read_to_string(file(&sim, "child")).unwrap();
    wait_until("its child has ended", || !is_alive(child.trim()));
    assert_eq!(ran(&sim), ["20-good"]);
}

#[test]
fn what_a_killed_command_has_not_run_the_next_heal_runs() {
    needs_root!();
    let sim = node(1);
    let script = "cat >10.json; echo waits >>ran; echo $$ >pid; test -e good || exec sleep 1000";
    write(&sim, "10-waits", script);
    write_noting(&sim, "20-later");
    let profile = sim.profile(WHOLE);
    let mut up = sim.spawn(&["up", profile.to_str().unwrap()]);
    let pid = || fs::read_to_string(file(&sim, "pid")).unwrap_or_default();
    wait_until("the program runs", || pid().ends_with('\n'));
    kill(up.id());
    up.wait().unwrap();
    kill(pid().trim());
    assert_eq!(ran(&sim), ["waits"]);
    let before = document(&sim, "10.json");
    fs::write(file(&sim, "good"), "").unwrap();
    let _ = sim.run(&["heal"]).ended(0);
    assert_eq!(ran(&sim), ["waits", "20-later"]);
    assert_eq!(document(&sim, "10.json"), before);
}

/// The command was killed before it could write down that the devices have changed. A program that is new has seen none.
#[test]
fn heal_finds_devices_that_no_program_was_told_of() {
    needs_root!();
    let sim = node(1);
    let _ = sim.up(WHOLE, &[]).ended(0);
    write(&sim, "10-a", "echo a >>ran; cat >10.json");
    let _ = sim.run(&["heal"]).ended(0);
    assert_eq!(ran(&sim), ["a"]);
    let told = document(&sim, "10.json");
    assert_eq!(told["status"]["devices"][0]["state"], "ready");
    write_noting(&sim, "20-b");
    let _ = sim.run(&["heal"]).ended(0);
    assert_eq!(ran(&sim), ["20-b"]);
    fs::remove_dir_all(sim.node.run_dir().join("after-change")).unwrap();
    let _ = sim.run(&["heal"]).ended(0);
    assert_eq!(ran(&sim), ["a", "20-b"]);
    let told_again = document(&sim, "10.json");
    assert_eq!(
        (&told["changed"], &told_again["changed"]),
        (&Value::Bool(true), &Value::Bool(false))
    );
    assert_eq!(
        told_again["status"]["devices"][0]["uuid"],
        told["status"]["devices"][0]["uuid"]
    );
}

/// Root's command ends with an error, and the devices are others all the same.
#[test]
fn programs_follow_a_change_of_which_a_part_failed_or_that_was_killed() {
    needs_root!();
    let sim = node(2);
    write(&sim, "10-a", "echo a >>ran; cat >10.json");
    sim.node.fault("daemon start").nth(2).fails(100).unwrap();
    let _ = sim.up(WHOLE, &["--keep-going"]).ended(1);
    assert_eq!(ran(&sim), ["a"]);
    let told = document(&sim, "10.json");
    assert_contains(told["error"]["what"].as_str().unwrap(), "applied in part");
    let _ = sim.run(&["down"]).ended(0);
    assert_eq!(ran(&sim), ["a"]);
    sim.node.fault("daemon start").nth(2).kills().unwrap();
    assert_ne!(sim.up(WHOLE, &[]).status, 0);
    assert_eq!(ran(&sim), [""; 0]);
    let _ = sim.run(&["heal"]);
    assert_eq!(ran(&sim), ["a"]);
    // It has started the daemon of which the start was killed.
    assert_eq!(document(&sim, "10.json")["changed"], true);
}

#[test]
fn of_two_commands_at_once_the_first_runs_the_programs_for_both() {
    needs_root!();
    let sim = node(1);
    let script =
        "cat >seen.json; echo a >>ran; touch begun; while ! test -e go; do sleep 0.05; done";
    write(&sim, "10-a", script);
    let profile = sim.profile(WHOLE);
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let up = up
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the program runs", || file(&sim, "begun").exists());
    // Nobody is kept waiting.
    for args in ["heal", "down"] {
        let second = sim.run(&[args]).ended(0);
        assert_contains(
            &said(&sim, &second),
            "is already running the programs in DIR and will also run them for this change",
        );
    }
    assert_eq!(ran(&sim), ["a"]);
    fs::write(file(&sim, "go"), "").unwrap();
    let _ = Ran::from(up.wait_with_output().unwrap()).ended(0);
    assert_eq!(ran(&sim), ["a"]);
    let seen = document(&sim, "seen.json");
    assert_eq!(seen["status"]["devices"][0]["daemon"], Value::Null);
    let _ = sim.run(&["heal"]).ended(0);
    assert_eq!(ran(&sim), [""; 0]);
}

#[test]
fn a_program_may_run_mig_mps_itself() {
    needs_root!();
    let sim = node(1);
    let (program, profile) = (sim.program(), sim.profile(WHOLE));
    let up = format!("{program} up {} --yes", profile.display());
    write(
        &sim,
        "10-a",
        &format!("echo a >>ran; {up} && {program} heal"),
    );
    let _ = Ran::of(
        sim.command(&["up", profile.to_str().unwrap()])
            .args(["--yes"]),
    )
    .ended(0);
    assert_eq!(ran(&sim), ["a"]);
    // It changes the devices itself: the programs follow that, too, and end.
    write(&sim, "20-b", &format!("echo b >>ran; {program} down"));
    let heal = sim.run(&["heal"]).ended(1);
    assert_eq!(ran(&sim), ["b", "a", "a", "b", "a", "b"]);
    assert_contains(&heal.stderr, "\n  10-a has not run since the last change\n");
}

#[test]
fn a_large_document_is_complete_and_need_not_be_read() {
    needs_root!();
    let sim = node(8);
    write(&sim, "10-slow", "sleep 0.2; cat >10.json");
    write(&sim, "20-deaf", "exec true");
    write(&sim, "30-closes", "exec <&-; sleep 0.2");
    write(&sim, "40-reads", "cat >40.json");
    let seven = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7 } ]\n";
    let up = sim.up(seven, &["--json"]).ended(0);
    assert!(up.stdout.len() > 64 << 10, "{}", up.stdout.len());
    let shown = up.json();
    assert_eq!(document(&sim, "10.json"), shown);
    assert_eq!(document(&sim, "40.json"), shown);
}

/// What waits for mig-mps.service finds what the programs have written.
#[test]
fn systemd_learns_of_success_after_the_programs() {
    needs_root!();
    let sim = node(1);
    let script = "touch begun; while ! test -e go; do sleep 0.05; done";
    write(&sim, "10-a", script);
    let socket = UnixDatagram::bind(file(&sim, "notify")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let profile = sim.profile(WHOLE);
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    up.env("NOTIFY_SOCKET", file(&sim, "notify"));
    let mut up = up
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the program runs", || file(&sim, "begun").exists());
    assert!(socket.recv(&mut [0; 64]).is_err());
    fs::write(file(&sim, "go"), "").unwrap();
    assert!(up.wait().unwrap().success());
    assert!(socket.recv(&mut [0; 64]).is_ok());
}

#[test]
fn a_shutdown_of_the_machine_waits_for_no_program() {
    needs_root!();
    let sim = node(1);
    write_noting(&sim, "10-a");
    let _ = sim.up(WHOLE, &[]).ended(0);
    let node = sim.node.node();
    node.update(|state| state.policy.shutting_down = true)
        .unwrap();
    let _ = sim.run(&["down", "--yes", "--at-shutdown", "1"]).ended(0);
    assert_eq!(ran(&sim), ["10-a"]);
}

/// A stopped device is none that programs can use.
#[test]
fn programs_follow_a_device_that_is_stopped_and_started() {
    needs_root!();
    let sim = node(1);
    write_noting(&sim, "10-note");
    sim.up(WHOLE, &[]).ended(0);
    assert_eq!(ran(&sim), ["10-note"]);
    sim.run(&["down", "0"]).ended(0);
    assert_eq!(ran(&sim), ["10-note"]);
    sim.run(&["start", "0"]).ended(0);
    assert_eq!(ran(&sim), ["10-note"]);
    sim.run(&["restart", "0", "--yes"]).ended(0);
    assert_eq!(ran(&sim), [""; 0]);
}

/// NVIDIA's CDI file lists them, too.
#[test]
fn programs_follow_instances_without_daemons() {
    needs_root!();
    let sim = node(1);
    write_noting(&sim, "10-a");
    let profile = |devices: &str| {
        format!("mps = false\n[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ {devices} }} ]\n")
    };
    for devices in ["profile = \"3g\"", "profile = \"1g\", count = 2"] {
        let profile = profile(devices);
        let _ = sim.up(&profile, &["--yes"]).ended(0);
        assert_eq!(ran(&sim), ["10-a"], "{devices}");
        sim.up_does_nothing(&profile);
        let _ = sim.run(&["heal"]).ended(0);
        assert_eq!(ran(&sim), [""; 0], "{devices}");
    }
    // A killed command has noted nothing.
    fs::remove_dir_all(sim.node.run_dir().join("after-change")).unwrap();
    let _ = sim.run(&["heal"]).ended(0);
    assert_eq!(ran(&sim), ["10-a"]);
    let _ = sim.run(&["down"]).ended(0);
    assert_eq!(ran(&sim), [""; 0]);
    let destroy = ["down", "*", "--destroy-mig", "--yes"];
    let _ = sim.run(&destroy).ended(0);
    assert_eq!(ran(&sim), ["10-a"]);
    let _ = sim.run(&destroy).ended(0);
    assert_eq!(ran(&sim), [""; 0]);
}

#[test]
fn programs_follow_the_end_of_instances_whose_daemons_have_ended_before() {
    needs_root!();
    let sim = node(1);
    write_noting(&sim, "10-a");
    let _ = sim.up(SMALL, &[]).ended(0);
    assert_eq!(ran(&sim), ["10-a"]);
    let _ = sim.run(&["down"]).ended(0);
    assert_eq!(ran(&sim), ["10-a"]);
    nvidia_smi(&sim, "mig -i 0 -cgi 19:6 -C");
    for which in ["--destroy-mig", "--destroy-unmanaged"] {
        let destroy = ["down", "*", which, "--yes"];
        let _ = sim.run(&destroy).ended(0);
        assert_eq!(ran(&sim), ["10-a"], "{which}");
        let _ = sim.run(&destroy).ended(0);
        let _ = sim.run(&["heal"]).ended(0);
        assert_eq!(ran(&sim), [""; 0], "{which}");
    }
}
