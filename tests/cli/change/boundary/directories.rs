//! Run and pipe directories: whose they are, who may enter, what is left in them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use super::{HERS, let_nobody};
use testkit::{NOBODY, Ran, Sim, assert_contains, has_python, needs_root, whole};

/// Groups that are on no machine: of users, from 1000 on, and of the system.
const OF_USERS: u32 = 54_321;
const OF_SYSTEM: u32 = 543;

/// Root's commands do not read a user's run directory, whatever its owner has put there.
#[test]
fn root_reads_no_users_records() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(""));
    Ran::of(&mut sim.by_nobody(&["up", profile.to_str().unwrap()])).ended(0);
    let theirs = sim.node.run_dir().with_file_name("nobody").join("mig-mps");
    for args in [
        &["status"][..],
        &["down"],
        &["up", profile.to_str().unwrap()],
        &["logs", "0"],
    ] {
        let ran = Ran::of(sim.command(args).env("MIG_MPS_RUN_DIR", &theirs));
        assert!(
            ran.stderr.contains("it belongs to user nobody")
                || ran.stdout.contains("it belongs to user nobody"),
            "{args:?}: {}{}",
            ran.stdout,
            ran.stderr
        );
    }
    // By its process it is seen, with its owner and what it claims.
    let status = sim.status();
    let unmanaged = &status["unmanaged"][0];
    assert_eq!(unmanaged["user"], "nobody", "{status:#}");
    assert!(
        unmanaged["pipe_directory"]
            .as_str()
            .unwrap()
            .starts_with(theirs.to_str().unwrap())
    );
    assert!(status["devices"][0]["daemon_pid"].is_null(), "{status:#}");
    let runtime = theirs.parent().unwrap().display();
    for args in [
        &["restart", "0"][..],
        &["set", "0", "max-clients=3"],
        &["kill", "0", "1"],
    ] {
        let ran = sim.run(args).ended(4);
        let hint = format!(
            "hint: run `runuser -u nobody -- env XDG_RUNTIME_DIR={runtime} mig-mps {} 0`",
            args[0]
        );
        assert_contains(&ran.stderr, &hint);
    }
    for args in [&["down"][..], &["logs", "0"]] {
        let ran = sim.run(args);
        assert!(
            ran.stderr.contains("runuser -u nobody"),
            "{args:?}: {}",
            ran.stderr
        );
    }
    Ran::of(&mut sim.by_nobody(&["down"])).ended(0);
}

/// A start cannot be raced: until the daemon holds its lock nobody else can enter its directory.
#[test]
fn a_daemon_starts_where_nobody_else_can_enter() {
    let sim = Sim::with("h200", 1);
    let report = sim.node.dir().join("modes");
    let control = sim.control_script(&format!(
        "[ \"$1\" != -d ] || stat -c %a \"$CUDA_MPS_PIPE_DIRECTORY\" >>{}\nexec $real \"$@\"",
        report.display(),
    ));
    let profile = sim.profile(&whole(""));
    for args in [
        &["up", profile.to_str().unwrap()][..],
        &["restart", "0", "--yes"],
    ] {
        Ran::of(sim.command(args).env("MIG_MPS_CONTROL", &control)).ended(0);
    }
    assert_eq!(fs::read_to_string(report).unwrap(), "700\n700\n");
}

/// The run directory is reached by directories that root controls, and by no link of a user's.
#[test]
fn a_lock_file_or_directory_of_a_users_is_not_followed() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(""));
    let up = ["up", profile.to_str().unwrap(), "--yes"];
    let victim = sim.node.dir().join("victim");
    fs::write(&victim, "root's").unwrap();
    fs::create_dir(sim.node.run_dir()).unwrap();
    symlink(&victim, sim.node.run_dir().join("lock")).unwrap();
    let ran = sim.run(&up).ended(1);
    assert_contains(
        &ran.stderr,
        "it is a symbolic link, which mig-mps does not follow",
    );
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root's");

    let hers = sim.node.run_dir().with_file_name("h");
    fs::create_dir(&hers).unwrap();
    chown(&hers, Some(NOBODY), Some(NOBODY)).unwrap();
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_RUN_DIR", hers.join("run"))).ended(1);
    assert_contains(&ran.stderr, "it belongs to user nobody");
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_LOG_DIR", hers.join("log"))).ended(1);
    assert_contains(&ran.stderr, "it belongs to user nobody");
    // A link of hers on the way.
    let link = sim.node.run_dir().with_file_name("l");
    symlink(sim.node.dir(), &link).unwrap();
    rustix::fs::chownat(
        rustix::fs::CWD,
        &link,
        Some(rustix::fs::Uid::from_raw(NOBODY)),
        None,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_RUN_DIR", link.join("run"))).ended(1);
    assert_contains(&ran.stderr, "it is a link that belongs to user nobody");
    assert_eq!(sim.happened("daemon start"), 0);
}

/// A list can let a user or a group write where the mode of the directory does not show it.
#[test]
fn a_directory_that_a_list_lets_somebody_change_is_refused() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let shared = sim.node.run_dir().with_file_name("g");
    fs::create_dir(&shared).unwrap();
    let profile = sim.profile(&whole(""));
    let up = || {
        let mut up = sim.command(&["up", profile.to_str().unwrap(), "--yes"]);
        Ran::of(up.env("MIG_MPS_RUN_DIR", shared.join("run")))
    };
    let_nobody(&shared, 7);
    let refused = up().ended(1).stderr;
    assert_contains(&refused, "the user nobody can write to it");
    let shown = shared.display();
    let hint = format!("hint: examine the files in {shown}, then run `chmod go-w {shown}`");
    assert_contains(&refused, &hint);
    // As the hint has it. The list's mask then lets nobody write.
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
    up().ended(0);
    let mut down = sim.command(&["down"]);
    let _ = Ran::of(down.env("MIG_MPS_RUN_DIR", shared.join("run"))).ended(0);
}

/// Who can write to a directory on the way can put another one in the place of what follows.
#[test]
fn a_directory_that_users_of_a_group_can_change_is_refused() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let shared = sim.node.run_dir().with_file_name("g");
    fs::create_dir(&shared).unwrap();
    let link = sim.node.run_dir().with_file_name("l");
    symlink(&shared, &link).unwrap();
    let profile = sim.profile(&whole(""));
    let up = |run: &Path| {
        let mut up = sim.command(&["up", profile.to_str().unwrap(), "--yes"]);
        Ran::of(up.env("MIG_MPS_RUN_DIR", run))
    };
    let with = |group: u32, mode: u32| {
        chown(&shared, None, Some(group)).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
    };
    for run in [shared.join("run"), shared.clone(), link.join("run")] {
        with(OF_USERS, 0o775);
        let refused = up(&run).ended(1).stderr;
        assert_contains(&refused, &format!("the group {OF_USERS} can write to it"));
        let shown = shared.display();
        let hint = format!("hint: examine the files in {shown}, then run `chmod go-w {shown}`");
        assert_contains(&refused, &hint);
    }
    assert_eq!(sim.happened("daemon start"), 0);
    // A system group, root's own, and one that may read alone. A link of root's is followed.
    for (group, mode) in [(OF_SYSTEM, 0o775), (0, 0o775), (OF_USERS, 0o755)] {
        with(group, mode);
        up(&link.join("run")).ended(0);
        let mut down = sim.command(&["down"]);
        let _ = Ran::of(down.env("MIG_MPS_RUN_DIR", shared.join("run"))).ended(0);
    }
}

/// Everything that somebody has put into a pipe directory is kept until it is purged, however deep it is nested.
#[test]
fn what_was_left_is_removed_by_a_purge() {
    needs_root!();
    let sim = Sim::with("h200", 2);
    let profile = format!("[mps]\n{HERS}\n[[gpu]]\nselect = {{ all = true }}\nmig = false\n");
    let kept = sim.node.dir().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "root's").unwrap();
    let left = sim.node.run_dir().join("left");
    let leave = || {
        sim.up(&profile, &[]).ended(0);
        for name in ["0", "1"] {
            let pipe = sim.pipe_link(name);
            symlink(&kept, pipe.join("link")).unwrap();
            fs::write(pipe.join("file"), "hers").unwrap();
            fs::create_dir_all(pipe.join("d/".repeat(300))).unwrap();
            fs::create_dir_all(pipe.join("d/".repeat(200)).join("e/".repeat(50))).unwrap();
        }
        sim.run(&["down"]).ended(0);
        assert_eq!(fs::read_dir(&left).unwrap().count(), 2);
    };
    leave();
    sim.run(&["down", "--purge"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock"]);
    // Of one device alone.
    sim.up(&profile, &[]).ended(0);
    for name in ["0", "1"] {
        let pipe = sim.pipe_link(name);
        fs::write(pipe.join("file"), "hers").unwrap();
    }
    let uuid = sim.uuid("1");
    sim.run(&["down", "0", "--purge"]).ended(0);
    assert!(!left.exists());
    sim.run(&["down"]).ended(0);
    assert!(left.join(format!("{uuid}.1")).join("file").exists());
    sim.run(&["down", "--purge"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock"]);
    assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), "root's");
}

/// Directories that somebody nests deeply are removed with the logs, and save nobody else's.
#[test]
fn purge_removes_logs_however_deeply_directories_are_nested() {
    if !has_python("purge_removes_logs_however_deeply_directories_are_nested") {
        return;
    }
    let sim = Sim::served("h200", 2, "[[gpu]]\nselect = { all = true }\nmig = false\n");
    for name in ["0", "1"] {
        let uuid = sim.uuid(name);
        let nest = "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range(1000):\n    os.mkdir('d'); os.mkdir('e'); os.chdir('d')\n";
        let mut python = Command::new("python3");
        python.args(["-c", nest]).arg(sim.node.log_dir().join(uuid));
        Ran::of(&mut python).ended(0);
    }
    sim.run(&["down", "--purge"]).ended(0);
    assert_eq!(fs::read_dir(sim.node.log_dir()).unwrap().count(), 0);
}

/// All directories are root's, for every value of `serve`.
#[test]
fn directories_have_the_modes_that_serve_says() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let log = || sim.node.log_dir().join(sim.uuid("0"));
    // With a list, the mode shows the most that the list allows instead of the group's permissions.
    for (serve, pipe_mode, log_mode) in [
        ("", 0o755, 0o755),
        (HERS, 0o710, 0o750),
        ("serve = \"all\"", 0o755, 0o755),
        ("serve = \"group:daemon\"", 0o750, 0o750),
        (HERS, 0o710, 0o750),
    ] {
        sim.up(&whole(serve), &["--yes"]).ended(0);
        for (directory, mode) in [(sim.pipe_link("0"), pipe_mode), (log(), log_mode)] {
            let meta = fs::metadata(directory).unwrap();
            assert_eq!((meta.uid(), meta.mode() & 0o777), (0, mode), "{serve}");
        }
    }
}
