//! Private daemons whose directory, keeper or programs meet what they do not expect.

use testkit::{needs_root, stop};

use super::*;

/// A second node stands for another machine, to which each lock of the first one seems free: NFS has no locks of directories.
#[test]
fn a_daemon_of_another_machine_is_left_alone_in_a_shared_directory() {
    let (sim, other) = (Sim::with("h200", 1), Sim::with("h200", 1));
    let app = holding(&sim, &[]);
    for keeper in keepers(&sim) {
        kill(keeper);
    }
    kill(app.pid());
    let shared = directories(place(&sim));
    let mut on_other = private(&other, &["--", "cuda-app", "run", "0"]);
    let ran = Ran::of(on_other.env("TMPDIR", place(&sim))).ended(0);
    assert_contains(&ran.stdout, "mps yes");
    assert_eq!((directories(place(&sim)), daemons(&sim)), (shared, 1));
    // Its own machine ends it.
    let _ = Ran::of(&mut private(&sim, &["--", "true"])).ended(0);
    nothing_is_left(&sim);
}

/// A command in a container: it has its own processes, and the host's network and /tmp. They end with the command.
fn contained(command: &Command) -> Command {
    let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    testkit::under(&namespace, command)
}

/// The end of a container is the end of every daemon in it.
#[test]
fn containers_do_not_share_a_daemon() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let start = || {
        let hold = private(&sim, &["--", "cuda-app", "hold"]);
        let mut app = App::start(contained(&hold));
        let up = app.wait_up();
        assert!(up.ends_with("mps yes"), "{up}");
        app
    };
    let (first, second) = (start(), start());
    assert_eq!((daemons(&sim), keepers(&sim).len()), (2, 2));
    kill(first.pid());
    wait_until("the first container ends", || daemons(&sim) == 1);
    let ended = second.finish();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(daemons(&sim), 0);
}

/// Its pids mean nothing elsewhere, and its processes are not seen.
#[test]
fn what_is_left_in_a_container_is_left_alone_by_others() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let hold = private(&sim, &["--", "cuda-app", "hold"]);
    // The first process of a container ends all others with it.
    let init = ["sh", "-c", "\"$@\"; read line || true", "sh"];
    let mut app = App::start(contained(&testkit::under(&init, &hold)));
    assert!(app.wait_up().ends_with("mps yes"));
    // Others have these words behind their own.
    let found = |words: &str, program: &str| {
        let mut found = sim.node.processes(words);
        found.retain(|pid| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path.ends_with(program))
        });
        found
    };
    for words in [" keep --device ", "run --private"] {
        let running = found(words, "mig-mps");
        assert_eq!(running.len(), 1);
        kill(running[0]);
    }
    wait_until("the program ends", || {
        found("cuda-app hold", "cuda-app").is_empty()
    });
    let left = directories(place(&sim));
    let record = left[0].join(sim.uuid("0")).join("device.json");
    let recorded = fs::read(&record).unwrap();
    assert_eq!((left.len(), daemons(&sim)), (1, 1));
    let mut other = contained(&private(&sim, &["--", "cuda-app", "run", "0"]));
    let ran = Ran::of(&mut other).ended(0);
    assert_contains(&ran.stdout, "mps yes");
    assert_eq!((directories(place(&sim)), daemons(&sim)), (left, 1));
    assert_eq!(fs::read(&record).unwrap(), recorded);
    assert!(app.finish().status.success());
}

/// As with `apptainer exec --contain`: the ranks of a job see each other's processes, and not each other's directories.
#[test]
fn a_directory_in_another_mount_namespace_is_named() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let shared = place(&sim).join("tmp");
    fs::create_dir(&shared).unwrap();
    let with_shared = |words: &[&str]| {
        let mut command = private(&sim, words);
        command.env("TMPDIR", &shared);
        command
    };
    let mut app = App::start(with_shared(&["--", "cuda-app", "hold"]));
    assert!(app.wait_up().ends_with("mps yes"));
    let script = format!("mount -t tmpfs none {} && exec \"$@\"", shared.display());
    let contained = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    let joining = testkit::under(&contained, &with_shared(&["--", "true"]));
    let refused = Ran::of(&mut { joining }).ended(125).stderr;
    assert_contains(
        &refused,
        &format!(
            "error: cannot join the programs on device 0: the mount namespace of this program (a container) does not have the directory of their daemon, {}\nhint: set TMPDIR to a directory that is visible to all programs of the job\n",
            directories(&shared)[0].display()
        ),
    );
    assert!(app.finish().status.success());
}

/// As by `trap 'rm -rf $TMPDIR/*' EXIT` of a job's script.
fn remove_directories(sim: &Sim) {
    for directory in directories(place(sim)) {
        fs::remove_dir_all(directory).unwrap();
    }
}

#[test]
fn a_daemon_whose_directory_is_gone_ends_with_the_last_program() {
    let sim = Sim::with("h200", 1);
    let app = holding(&sim, &[]);
    remove_directories(&sim);
    let joining = Ran::of(&mut private(&sim, &["--", "true"]))
        .ended(125)
        .stderr;
    assert_contains(
        &joining,
        "error: cannot join the programs on device 0: the directory",
    );
    assert_contains(&joining, "hint: wait until these programs have exited");
    assert_eq!(daemons(&sim), 1);
    app.finish();
    nothing_is_left(&sim);
    // Emptied, and without the keeper.
    let app = holding(&sim, &[]);
    for keeper in keepers(&sim) {
        kill(keeper);
    }
    fs::remove_dir_all(directories(place(&sim))[0].join(sim.uuid("0"))).unwrap();
    app.finish();
    nothing_is_left(&sim);
    let first = holding(&sim, &[]);
    let second = holding(&sim, &[]);
    for keeper in keepers(&sim) {
        kill(keeper);
    }
    remove_directories(&sim);
    first.finish();
    assert_eq!(daemons(&sim), 1);
    second.finish();
    nothing_is_left(&sim);
}

/// A keeper whose first program is on its way.
fn keeper_for(sim: &Sim, device: &str, first: u32) -> Child {
    let (uuid, first) = (sim.uuid(device), first.to_string());
    let socket = format!("mig-mps test {uuid}");
    let mut keeper = sim.command(&["keep", "--device", &uuid, "--first", &first]);
    keeper.args(["--socket", &socket]);
    keeper
        .env("TMPDIR", place(sim))
        .env_remove("MIG_MPS_LOG_DIR");
    keeper.spawn().unwrap()
}

#[test]
fn the_daemon_of_a_program_that_has_ended_early_ends_at_once() {
    let sim = Sim::with("h200", 2);
    let mut first = Command::new("sleep").arg("600").spawn().unwrap();
    // The one waits for its program, which comes too late.
    let mut patient = keeper_for(&sim, "0", std::process::id());
    sim.await_event("server ready", 1);
    let mut hasty = keeper_for(&sim, "1", first.id());
    sim.await_event("server ready", 2);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(hasty.wait().unwrap().success());
    assert!(patient.try_wait().unwrap().is_none());
    assert!(patient.wait().unwrap().success());
    nothing_is_left(&sim);
    // Without a program there is no daemon.
    assert!(keeper_for(&sim, "0", first.id()).wait().unwrap().success());
    assert_eq!(sim.happened("server ready"), 2);
}

#[test]
fn a_stopped_keeper_is_named() {
    let sim = Sim::with("h200", 1);
    let app = holding(&sim, &[]);
    let keeper = keepers(&sim)[0];
    stop(keeper);
    let joining = Ran::of(&mut private(&sim, &["--", "true"]))
        .ended(125)
        .stderr;
    let error = format!("pid {keeper}, which keeps their private daemon, is stopped\n");
    assert_contains(&joining, &error);
    assert_contains(&joining, &format!("kill -CONT {keeper}"));
    let ended = app.finish();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(daemons(&sim), 1);
    testkit::shell(format!("kill -CONT {keeper}")).ended(0);
    nothing_is_left_soon(&sim);
}

/// `restart` knows no private daemon.
#[test]
fn a_daemon_that_died_has_a_remedy_that_helps() {
    let sim = Sim::with("h200", 1);
    let mut first = App::start(private(&sim, &["--", "sh", "-c", "echo up; cat"]));
    assert_eq!(first.wait_up(), "up");
    for daemon in sim.node.processes("nvidia-cuda-mps-control -d") {
        kill(daemon);
    }
    let joining = Ran::of(&mut private(&sim, &["--", "true"]))
        .ended(125)
        .stderr;
    assert_contains(
        &joining,
        "error: device 0 accepts no programs: its daemon has died\nhint: wait until the programs that share its private daemon have exited",
    );
    assert!(first.finish().status.success());
    let ran = Ran::of(&mut private(&sim, &["--", "cuda-app", "run", "0"])).ended(0);
    assert_contains(&ran.stdout, "mps yes");
    nothing_is_left(&sim);
}

#[test]
fn variables_that_are_no_text_are_not_taken_as_unset() {
    let sim = Sim::with("h200", 2);
    let wrong = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"GPU-\xff");
    for variable in ["CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "LOCAL_RANK"] {
        let mut command = private(&sim, &["--", "true"]);
        let refused = Ran::of(command.env(variable, wrong)).ended(125).stderr;
        assert_contains(&refused, &format!("error: {variable} "));
    }
}

/// The user has not called the process that keeps the daemon.
#[test]
fn no_hint_has_an_internal_command() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let mut command = sim.by_nobody(&["run", "--private", "--", "true"]);
    command.env("MIG_MPS_LOG_DIR", "/root/logs");
    let refused = Ran::of(&mut command).ended(125).stderr;
    assert_contains(&refused, "cannot use the log directory");
    assert!(!refused.contains("keep"), "{refused}");
}
