//! The boundary between root and the users it serves: what a user can write, answer or hold is input.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common::{NOBODY, Ran, Sim, in_state, is_alive, is_root, shell};
use crate::settings::whole;

const HERS: &str = r#"serve = "user:nobody""#;

fn pipe(sim: &Sim) -> PathBuf {
    sim.node.run_dir().join("by-name/0/pipe")
}

/// A field of `/proc/PID/stat` after the name.
fn stat(pid: &Value, field: usize) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let tail = stat.rsplit(')').next().unwrap();
    tail.split_whitespace().nth(field).unwrap().to_owned()
}

/// A shell script run as root on a terminal of its own.
fn on_a_terminal(sim: &Sim, script: &str) -> Ran {
    let mut command = Command::new("script");
    command.args(["-qec", script, "/dev/null"]);
    Ran::of(command.env_clear().envs(sim.node.env()))
}

/// A control program that says what it holds before it becomes the real one.
fn spying_control(sim: &Sim) -> PathBuf {
    let real = sim.node.dir().join("bin/nvidia-cuda-mps-control");
    let spy = sim.node.dir().join("nvidia-cuda-mps-control");
    let report = sim.node.dir().join("report");
    File::create(&report).unwrap();
    fs::set_permissions(&report, fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!(
        "#!/bin/sh\n{{ echo \"uid $(id -u) session $(cut -d' ' -f6 /proc/$$/stat | sed \"s/^$$\\$/own/\") \
         terminal $(cut -d' ' -f7 /proc/$$/stat) secrets $(ls -l /proc/$$/fd | grep -c -e secret -e pts) umask $(umask) cwd $(pwd) \
         ignored $(grep SigIgn /proc/$$/status | cut -f2) keys $(grep mig-mps-key /proc/keys | grep -vc \" $(id -u) \")\"; }} >>{}\nexec {} \"$@\"\n",
        report.display(),
        real.display(),
    );
    fs::write(&spy, script).unwrap();
    fs::set_permissions(&spy, fs::Permissions::from_mode(0o755)).unwrap();
    spy
}

/// Becomes a program whose session keyring has a key, where the kernel keeps keys.
const WITH_A_KEY: &str = r#"
import ctypes, os, sys
if os.path.exists("/proc/keys"):
    libc = ctypes.CDLL(None, use_errno=True)
    KEYCTL, ADD_KEY = {"x86_64": (250, 248), "aarch64": (219, 217)}[os.uname().machine]
    if libc.syscall(KEYCTL, 1, None) < 0 or libc.syscall(ADD_KEY, b"user", b"mig-mps-key", b"secret", 6, -3) < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Neither a root's daemon nor a user's, nor a session, has root's terminal, open files, signals or directory.
#[test]
fn children_hold_nothing_of_roots() {
    if !is_root("children_hold_nothing_of_roots") {
        return;
    }
    for serve in ["", HERS] {
        let sim = Sim::with("h200", 1);
        let spy = spying_control(&sim);
        let secret = sim.node.dir().join("secret");
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let profile = sim.profile(&whole(serve));
        let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
        let script = format!(
            "exec 7<{}; umask 077; trap '' USR1 CHLD; cd /tmp; MIG_MPS_CONTROL={} \
             python3 -c '{WITH_A_KEY}' {program} up {} --yes",
            secret.display(),
            spy.display(),
            profile.display(),
        );
        let ran = on_a_terminal(&sim, &script);
        assert_eq!(ran.status, 0, "{}", ran.stdout);
        let report = fs::read_to_string(sim.node.dir().join("report")).unwrap();
        assert!(
            report.lines().count() >= 2,
            "a daemon and a session: {report}"
        );
        let uid = if serve.is_empty() { 0 } else { NOBODY };
        for line in report.lines() {
            let expected = format!(
                "uid {uid} session own terminal 0 secrets 0 umask 0022 cwd / ignored 0000000000000000 keys 0"
            );
            assert_eq!(line, expected, "{serve}");
        }
        // The processes that stay.
        let device = sim.device("0");
        for pid in [&device["daemon_pid"], &device["servers"][0]["pid"]] {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let files: Vec<PathBuf> = open
                .filter_map(|fd| fs::read_link(fd.path()).ok())
                .collect();
            assert!(!files.contains(&secret), "{serve}: {files:?}");
            assert!(
                !files.iter().any(|file| file.starts_with("/dev/pts")),
                "{files:?}"
            );
            assert_eq!(stat(pid, 4), "0", "a terminal");
        }
    }
}

/// Root's commands do not look into a user's run directory, whatever its owner has put there.
#[test]
fn root_reads_no_users_records() {
    if !is_root("root_reads_no_users_records") {
        return;
    }
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
            ran.stderr.contains("it belongs to nobody")
                || ran.stdout.contains("it belongs to nobody"),
            "{args:?}: {}{}",
            ran.stdout,
            ran.stderr
        );
    }
    // By its process it is seen, with its owner and what it claims.
    let status = sim.status();
    let foreign = &status["foreign"][0];
    assert_eq!(foreign["user"], "nobody", "{status:#}");
    assert!(
        foreign["pipe_directory"]
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
            "hint: runuser -u nobody -- env XDG_RUNTIME_DIR={runtime} mig-mps {} 0",
            args[0]
        );
        assert!(ran.stderr.contains(&hint), "{}", ran.stderr);
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

/// Whoever holds the lock of the daemon's lock file, and whatever lies there, is in nobody's way.
#[test]
fn a_lock_that_somebody_holds_means_nothing() {
    if !is_root("a_lock_that_somebody_holds_means_nothing") {
        return;
    }
    for serve in [HERS, "serve = \"all\""] {
        let sim = Sim::with("h200", 1);
        sim.up(&whole(serve), &[]).ended(0);
        let lock = pipe(&sim).join("control_lock");
        let mut holder = Command::new("python3");
        holder.args(["-c", HOLD]).arg(&lock).uid(NOBODY).gid(NOBODY);
        let before = sim.device("0");
        if serve == HERS {
            // In her own directory she may put another file there, and hold that.
            fs::remove_file(&lock).unwrap();
            File::create(&lock).unwrap();
            fs::set_permissions(&lock, fs::Permissions::from_mode(0o666)).unwrap();
        } else {
            assert_eq!(
                fs::metadata(&lock).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        let mut holder = holder.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = holder.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        assert_eq!(line.trim(), if serve == HERS { "held" } else { "no" });
        // The daemon lives, and is known by its process.
        assert_eq!(in_state(&sim.status(), "dead"), [""; 0]);
        let pid = before["daemon_pid"].clone();
        shell(format!("kill -9 {pid}")).ended(0);
        while is_alive(&pid) {
            std::thread::yield_now();
        }
        assert_eq!(in_state(&sim.status(), "dead"), ["0"]);
        sim.run(&["restart", "0"]).ended(0);
        assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
        let daemon = sim.device("0")["daemon_pid"].clone();
        sim.run(&["down"]).ended(0);
        assert!(!is_alive(&daemon));
        assert_eq!(sim.run_dir(), ["lock"]);
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
}

/// Takes the lock of a file, says whether that worked, and waits.
const HOLD: &str = "
import fcntl, os, sys, time
try:
    f = open(sys.argv[1], 'r+')
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print('held', flush=True)
except OSError:
    print('no', flush=True)
time.sleep(60)
";

/// `down` is not told by a file that the daemon has ended.
#[test]
fn a_replaced_lock_file_hides_no_living_daemon() {
    if !is_root("a_replaced_lock_file_hides_no_living_daemon") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let device = sim.device("0");
    fs::remove_file(pipe(&sim).join("control_lock")).unwrap();
    File::create(pipe(&sim).join("control_lock")).unwrap();
    sim.run(&["down", "--force"]).ended(0);
    assert!(!is_alive(&device["daemon_pid"]) && !is_alive(&device["servers"][0]["pid"]));
}

/// A start cannot be raced: until the daemon holds its lock nobody else can enter its directory.
#[test]
fn a_daemon_starts_where_nobody_else_can_enter() {
    let sim = Sim::with("h200", 1);
    let (control, report) = (
        sim.node.dir().join("nvidia-cuda-mps-control"),
        sim.node.dir().join("modes"),
    );
    let script = format!(
        "#!/bin/sh\n[ \"$1\" != -d ] || stat -c %a \"$CUDA_MPS_PIPE_DIRECTORY\" >>{}\nexec {} \"$@\"\n",
        report.display(),
        sim.node.dir().join("bin/nvidia-cuda-mps-control").display(),
    );
    fs::write(&control, script).unwrap();
    fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
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
    if !is_root("a_lock_file_or_directory_of_a_users_is_not_followed") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(""));
    let up = ["up", profile.to_str().unwrap(), "--yes"];
    let victim = sim.node.dir().join("victim");
    fs::write(&victim, "root's").unwrap();
    fs::create_dir(sim.node.run_dir()).unwrap();
    symlink(&victim, sim.node.run_dir().join("lock")).unwrap();
    let ran = sim.run(&up).ended(1);
    assert!(
        ran.stderr.contains("it is a link: not followed"),
        "{}",
        ran.stderr
    );
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root's");

    let hers = sim.node.run_dir().with_file_name("h");
    fs::create_dir(&hers).unwrap();
    std::os::unix::fs::chown(&hers, Some(NOBODY), Some(NOBODY)).unwrap();
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_RUN_DIR", hers.join("run"))).ended(1);
    assert!(
        ran.stderr.contains("it belongs to nobody"),
        "{}",
        ran.stderr
    );
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_LOG_DIR", hers.join("log"))).ended(1);
    assert!(
        ran.stderr.contains("it belongs to nobody"),
        "{}",
        ran.stderr
    );
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
    assert!(
        ran.stderr.contains("it is a link that belongs to nobody"),
        "{}",
        ran.stderr
    );
    assert_eq!(sim.happened("daemon start"), 0);
}

/// What answers in a user's directory may say anything, at any length, or nothing.
#[test]
fn an_answer_without_end_is_cut_off() {
    if !is_root("an_answer_without_end_is_cut_off") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &[]).ended(0);
    let endless = sim.node.dir().join("endless");
    fs::write(&endless, "#!/bin/sh\nexec yes 'all is well'\n").unwrap();
    fs::set_permissions(&endless, fs::Permissions::from_mode(0o755)).unwrap();
    let _client = sim.client("0");
    let status = Ran::of(
        sim.command(&["status", "--json"])
            .env("MIG_MPS_CONTROL", &endless),
    )
    .json();
    let problem = status["problems"].to_string();
    assert!(problem.contains("wrote more than 1024 KiB"), "{problem}");
}

/// FIFOs and directories in place of logs hold up neither a start nor a look.
#[test]
fn a_fifo_as_a_log_holds_nobody_up() {
    if !is_root("a_fifo_as_a_log_holds_nobody_up") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let uuid = sim.device("0")["uuid"].as_str().unwrap().to_owned();
    sim.run(&["down"]).ended(0);
    let log = sim.node.log_dir().join(uuid);
    for name in ["control.log", "server.log"] {
        fs::remove_file(log.join(name)).unwrap();
        shell(format!(
            "mkfifo {0}; chown nobody {0}",
            log.join(name).display()
        ))
        .ended(0);
    }
    let begun = std::time::Instant::now();
    sim.up(&whole(HERS), &[]).ended(0);
    assert!(begun.elapsed() < std::time::Duration::from_secs(10));
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    sim.run(&["down"]).ended(0);
}

/// A control program in whose place a script runs first, where it becomes a daemon.
fn control_that(sim: &Sim, script: &str) -> PathBuf {
    let control = sim.node.dir().join("nvidia-cuda-mps-control");
    let real = sim.node.dir().join("bin/nvidia-cuda-mps-control");
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = -d ]; then\n{script}\nfi\nexec {} \"$@\"\n",
        real.display()
    );
    fs::write(&control, text).unwrap();
    fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
    control
}

/// She has the time between the check of her logs and her daemon's start: what she puts there then holds `up` for a
/// short while, and is named.
#[test]
fn a_fifo_that_comes_between_check_and_start_is_named() {
    if !is_root("a_fifo_that_comes_between_check_and_start_is_named") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let swap = "cd $CUDA_MPS_LOG_DIRECTORY && rm -f control.log && mkfifo control.log; cd /";
    let control = control_that(&sim, swap);
    let profile = sim.profile(&whole(HERS));
    let begun = std::time::Instant::now();
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &control)).ended(1);
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(25),
        "{:?}",
        begun.elapsed()
    );
    assert!(
        ran.stderr
            .contains("control.log is a FIFO that nobody has put there"),
        "{}",
        ran.stderr
    );
    sim.up(&whole(HERS), &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// The failure of her daemon is hers: the others are served, and what is missing is tried again.
#[test]
fn a_users_daemon_that_does_not_start_undoes_nobody_elses() {
    if !is_root("a_users_daemon_that_does_not_start_undoes_nobody_elses") {
        return;
    }
    let sim = Sim::with("a100-80gb", 2);
    let profile = sim.profile(
        r#"
        [[gpu]]
        select = { index = [0] }
        devices = [
          { name = "hers", profile = "3g", mps = { serve = "user:nobody" } },
          { name = "ours", profile = "2g" },
        ]
        [[gpu]]
        select = { index = [1] }
        mig = false
        "#,
    );
    let profile = profile.to_str().unwrap();
    let refuse = control_that(&sim, "[ $(id -u) = 0 ] || exit 1");
    let mut up = sim.command(&["up", profile]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &refuse)).ended(1);
    for said in [
        "start the daemon of hers, which runs as nobody: ",
        "\neverything else was done\n",
        "hint: run the same command again",
    ] {
        assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("undone"), "{}", ran.stderr);
    // The summary.
    let row = |name: &str| ran.stdout.lines().find(|line| line.starts_with(name));
    assert!(
        row("0.4").is_some_and(|row| row.contains("no daemon")),
        "{}",
        ran.stdout
    );
    assert_eq!(in_state(&sim.status(), "ready"), ["1", "ours"]);
    assert_eq!(sim.happened("nvmlDeviceCreateGpuInstanceWithPlacement"), 2);
    assert_eq!(sim.happened("nvmlGpuInstanceDestroy"), 0);
    assert!(!sim.run_dir().contains(&"journal.json".to_owned()));

    let plan = sim.run(&["plan", profile]).ended(0);
    let steps: Vec<&str> = plan
        .stdout
        .lines()
        .filter(|line| line.trim_start().starts_with(['+', '-', '~']))
        .collect();
    assert_eq!(steps.len(), 1, "{}", plan.stdout);
    assert!(
        steps[0].contains("start 1 daemon") && steps[0].ends_with(": hers"),
        "{steps:?}"
    );
    let daemon = sim.device("ours")["daemon_pid"].clone();
    sim.run(&["up", profile]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["1", "hers", "ours"]);
    assert_eq!(sim.device("ours")["daemon_pid"], daemon);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);

    // A daemon of root's that does not start undoes everything, hers too.
    let refuse = control_that(&sim, "[ $(id -u) != 0 ] || exit 1");
    let mut up = sim.command(&["up", profile]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &refuse)).ended(1);
    assert!(ran.stderr.contains("was undone"), "{}", ran.stderr);
    assert_eq!(in_state(&sim.status(), "ready"), [""; 0]);
    assert_eq!(sim.run_dir().first().map(String::as_str), Some("lock"));
}

/// So it is with settings that her daemon does not take: she keeps those from before.
#[test]
fn a_users_daemon_that_takes_no_settings_undoes_nobody_elses() {
    if !is_root("a_users_daemon_that_takes_no_settings_undoes_nobody_elses") {
        return;
    }
    let sim = Sim::with("h200", 2);
    let profile = |percentage: u32| {
        format!(
            "[mps]\nactive-thread-percentage = {percentage}\n\
             [[gpu]]\nselect = {{ index = [0] }}\nmig = false\nmps = {{ {HERS} }}\n\
             [[gpu]]\nselect = {{ index = [1] }}\nmig = false\n"
        )
    };
    sim.up(&profile(100), &[]).ended(0);
    let refuse = sim.node.dir().join("nvidia-cuda-mps-control");
    let real = sim.node.dir().join("bin/nvidia-cuda-mps-control");
    let script = format!(
        "#!/bin/sh\n[ $(id -u) = 0 ] && exec {real} \"$@\"\n\
         sed 's/^set_default_active_thread_percentage .*/nonsense/' | exec {real}\n",
        real = real.display()
    );
    fs::write(&refuse, script).unwrap();
    fs::set_permissions(&refuse, fs::Permissions::from_mode(0o755)).unwrap();
    let path = sim.profile(&profile(50));
    let mut up = sim.command(&["up", path.to_str().unwrap()]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &refuse)).ended(1);
    assert!(
        ran.stderr.contains("which runs as nobody: "),
        "{}",
        ran.stderr
    );
    assert_eq!(sim.device("1")["active_thread_percentage"], 50.0);
    let plan = sim.run(&["plan", path.to_str().unwrap()]).ended(0);
    assert!(plan.stdout.contains("GPU 0"), "{}", plan.stdout);
    assert!(!plan.stdout.contains("GPU 1"), "{}", plan.stdout);
    sim.run(&["up", path.to_str().unwrap()]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0", "1"]);
}

/// She may also take every name under which a FIFO would be put aside: that is said, and nothing waits for it.
#[test]
fn a_fifo_that_cannot_be_put_aside_is_refused_at_once() {
    if !is_root("a_fifo_that_cannot_be_put_aside_is_refused_at_once") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let uuid = sim.device("0")["uuid"].as_str().unwrap().to_owned();
    sim.run(&["down"]).ended(0);
    let log = sim.node.log_dir().join(uuid).join("control.log");
    fs::remove_file(&log).unwrap();
    shell(format!("mkfifo {0}; chown nobody {0}", log.display())).ended(0);
    for number in 1..=u16::MAX {
        File::create(format!("{}.no-file.{number}", log.display())).unwrap();
    }
    let begun = std::time::Instant::now();
    let ran = sim.up(&whole(HERS), &[]).ended(1);
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(9),
        "{:?}",
        begun.elapsed()
    );
    let said = format!(
        "{0} is no regular file, and no name is left to put it aside under: remove it, or {0}.no-file.*",
        log.display()
    );
    assert!(ran.stderr.contains(&said), "{}", ran.stderr);
    fs::remove_file(&log).unwrap();
    sim.up(&whole(HERS), &[]).ended(0);
}

/// What she has put into her pipe directory is kept until it is purged, however deep it is nested.
#[test]
fn what_she_left_is_removed_by_a_purge() {
    if !is_root("what_she_left_is_removed_by_a_purge") {
        return;
    }
    let sim = Sim::with("h200", 2);
    let profile = format!("[mps]\n{HERS}\n[[gpu]]\nselect = {{ all = true }}\nmig = false\n");
    let kept = sim.node.dir().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "root's").unwrap();
    let left = sim.node.run_dir().join("left");
    let leave = || {
        sim.up(&profile, &[]).ended(0);
        for name in ["0", "1"] {
            let pipe = sim.node.run_dir().join("by-name").join(name).join("pipe");
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
        let pipe = sim.node.run_dir().join("by-name").join(name).join("pipe");
        fs::write(pipe.join("file"), "hers").unwrap();
    }
    let uuid = sim.device("1")["uuid"].as_str().unwrap().to_owned();
    sim.run(&["down", "0", "--purge"]).ended(0);
    assert!(!left.exists());
    sim.run(&["down"]).ended(0);
    assert!(left.join(format!("{uuid}.1")).join("file").exists());
    sim.run(&["down", "--purge"]).ended(0);
    assert_eq!(sim.run_dir(), ["lock"]);
    assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), "root's");
}

/// A file system that somebody has mounted on one of our directories is taken away, and never looked into.
#[test]
fn a_mount_on_a_pipe_directory_is_detached() {
    if !is_root("a_mount_on_a_pipe_directory_is_detached") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(HERS));
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    // In a mount namespace of its own. The file system answers nobody, as one of a user's may.
    let script = format!(
        "set -e; {program} up {profile} >/dev/null; \
         python3 -c '{HANG}' $(readlink -f {pipe}) & \
         while ! grep -q mig-mps-hang /proc/self/mounts; do sleep 0.05; done; \
         timeout 20 {program} status --json; echo; \
         timeout 30 {program} restart 0 --force --yes >&2; \
         timeout 20 {program} status --json; timeout 30 {program} down >&2; \
         grep -c mig-mps-hang /proc/self/mounts || true; kill %1",
        profile = profile.display(),
        pipe = pipe(&sim).display(),
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", &script]);
    let ran = Ran::of(command.env_clear().envs(sim.node.env()));
    let documents: Vec<Value> = serde_json::Deserializer::from_str(&ran.stdout)
        .into_iter::<Value>()
        .map_while(Result::ok)
        .collect();
    assert_eq!(documents.len(), 3, "{}{}", ran.stdout, ran.stderr);
    assert_eq!(
        in_state(&documents[0], "ready"),
        [""; 0],
        "{}",
        documents[0]
    );
    assert!(
        documents[0]["problems"]
            .to_string()
            .contains("mounted a file system"),
        "{}",
        documents[0]
    );
    assert_eq!(in_state(&documents[1], "ready"), ["0"], "{}", ran.stderr);
    assert_eq!(documents[2], 0, "no mount is left");
}

/// A program may say that its pipe directory is anywhere: nobody waits for the file system there.
#[test]
fn a_claimed_directory_that_hangs_holds_nobody_up() {
    if !is_root("a_claimed_directory_that_hangs_holds_nobody_up") {
        return;
    }
    let sim = Sim::with("h200", 2);
    sim.up("[[gpu]]\nselect = { index = [0] }\nmig = false\n", &[])
        .ended(0);
    let hers = sim.node.run_dir().with_file_name("hers");
    fs::create_dir(&hers).unwrap();
    std::os::unix::fs::chown(&hers, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut daemon = Command::new(sim.node.dir().join("bin/nvidia-cuda-mps-control"));
    daemon
        .env_clear()
        .envs(sim.node.env())
        .uid(NOBODY)
        .gid(NOBODY);
    daemon.env("CUDA_MPS_PIPE_DIRECTORY", &hers);
    daemon.env("CUDA_MPS_LOG_DIRECTORY", &hers);
    Ran::of(daemon.env("CUDA_VISIBLE_DEVICES", "1").arg("-d")).ended(0);
    let mut app = sim.node.cuda_app(&hers.join("elsewhere"), &["hold"]);
    assert!(app.wait_up().ends_with("mps no"));
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let script = format!(
        "python3 -c '{HANG}' {} & \
         while ! grep -q mig-mps-hang /proc/self/mounts; do sleep 0.05; done; \
         timeout -s KILL 20 {program} status --json; kill %1",
        hers.display(),
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", &script]);
    let status = Ran::of(command.env_clear().envs(sim.node.env()));
    let status: Value = serde_json::from_str(&status.stdout).expect("status ends");
    let pipe = hers.display().to_string();
    assert_eq!(status["foreign"][0]["pipe_directory"], pipe, "{status:#}");
    assert_eq!(status["foreign"][0]["state"], "foreign", "{status:#}");
    let cause = status["outside_mps"][0]["cause"].as_str();
    assert_eq!(
        cause,
        Some(format!("its pipe directory is {pipe}/elsewhere").as_str()),
        "{status:#}"
    );
}

/// A process may call itself an MPS server of ours: without a context it keeps nothing, and is in nobody's way.
#[test]
fn a_process_that_calls_itself_a_server_is_no_stray() {
    if !is_root("a_process_that_calls_itself_a_server_is_no_stray") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &[]).ended(0);
    let program = sim.node.dir().join("nvidia-cuda-mps-server");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut forged = Command::new(&program);
    forged.env(
        "CUDA_MPS_PIPE_DIRECTORY",
        fs::canonicalize(pipe(&sim)).unwrap(),
    );
    let mut forged = forged.arg("60").uid(NOBODY).gid(NOBODY).spawn().unwrap();
    let pid = forged.id().to_string();
    symlink(
        format!("/proc/{pid}"),
        sim.node.dir().join("root/proc").join(&pid),
    )
    .unwrap();
    let status = sim.status();
    assert_eq!(status["problems"], Value::Array(Vec::new()));
    let ran = sim.up(&whole(""), &[]).ended(0);
    assert!(ran.stderr.starts_with("Nothing to do"), "{}", ran.stderr);
    // It is shown, with its owner and what it claims.
    let claimed = fs::canonicalize(pipe(&sim)).unwrap();
    let foreign = &status["foreign"][0];
    assert_eq!(foreign["pid"], forged.id(), "{status:#}");
    assert_eq!(foreign["user"], "nobody");
    assert_eq!(foreign["pipe_directory"], claimed.to_str().unwrap());
    assert!(forged.try_wait().unwrap().is_none(), "it goes on");
    forged.kill().unwrap();
    forged.wait().unwrap();
}

/// So does one that calls itself the daemon of a device that is recorded: it is shown beside the true one.
#[test]
fn a_process_that_calls_itself_our_daemon_is_shown() {
    if !is_root("a_process_that_calls_itself_our_daemon_is_shown") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let claimed = fs::canonicalize(pipe(&sim)).unwrap();
    let program = sim.node.dir().join("nvidia-cuda-mps-control");
    fs::copy("/bin/bash", &program).unwrap();
    let mut forged = Command::new(&program);
    forged.args(["-c", "sleep 60; exit", "-d"]);
    forged.env("CUDA_MPS_PIPE_DIRECTORY", &claimed);
    let mut forged = forged.uid(NOBODY).gid(NOBODY).spawn().unwrap();
    let pid = forged.id().to_string();
    symlink(
        format!("/proc/{pid}"),
        sim.node.dir().join("root/proc").join(&pid),
    )
    .unwrap();
    let status = sim.status();
    let foreign = status["foreign"].as_array().unwrap();
    assert_eq!(foreign.len(), 1, "{status:#}");
    assert_eq!(foreign[0]["pid"], forged.id());
    assert_eq!(foreign[0]["user"], "nobody");
    assert_eq!(foreign[0]["pipe_directory"], claimed.to_str().unwrap());
    assert_eq!(in_state(&status, "ready"), ["0"]);
    let said = sim.run(&["status"]).ended(0).stdout;
    assert!(said.contains("FOREIGN") && said.contains(&pid), "{said}");
    forged.kill().unwrap();
    forged.wait().unwrap();
}

/// A served user may give her directories any mode: the next start gives them theirs.
#[test]
fn a_mode_of_hers_stops_no_start() {
    if !is_root("a_mode_of_hers_stops_no_start") {
        return;
    }
    let sim = Sim::with("h200", 1);
    for mode in [0o000, 0o500, 0o777] {
        sim.up(&whole(HERS), &[]).ended(0);
        let log = sim
            .node
            .log_dir()
            .join(sim.device("0")["uuid"].as_str().unwrap());
        for hers in [pipe(&sim), log] {
            fs::set_permissions(&hers, fs::Permissions::from_mode(mode)).unwrap();
        }
        sim.run(&["restart", "0", "--force", "--yes"]).ended(0);
        assert_eq!(in_state(&sim.status(), "ready"), ["0"], "{mode:o}");
        assert_eq!(fs::metadata(pipe(&sim)).unwrap().mode() & 0o777, 0o700);
        sim.run(&["down"]).ended(0);
    }
}

/// A user's daemon may say that its logs are anywhere: root reads those of its device.
#[test]
fn logs_are_not_where_a_users_daemon_says() {
    if !is_root("logs_are_not_where_a_users_daemon_says") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let other = sim.node.dir().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("server.log"), "a line of somebody else's\n").unwrap();
    fs::write(other.join("control.log"), "").unwrap();
    let control = sim.node.dir().join("nvidia-cuda-mps-control");
    let script = format!(
        "#!/bin/sh\n[ -z \"$CUDA_MPS_LOG_DIRECTORY\" ] || export CUDA_MPS_LOG_DIRECTORY={}\nexec {} \"$@\"\n",
        other.display(),
        sim.node.dir().join("bin/nvidia-cuda-mps-control").display(),
    );
    fs::write(&control, script).unwrap();
    fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
    for (serve, is_shown) in [(HERS, false), ("", true)] {
        let profile = sim.profile(&whole(serve));
        let mut up = sim.command(&["up", profile.to_str().unwrap(), "--yes"]);
        Ran::of(up.env("MIG_MPS_CONTROL", &control)).ended(0);
        let logs = sim.run(&["logs", "0"]);
        assert_eq!(
            logs.stdout.contains("somebody else's"),
            is_shown,
            "{serve}: {}{}",
            logs.stdout,
            logs.stderr
        );
    }
}

/// Mounts a FUSE file system that never answers.
const HANG: &str = r#"
import ctypes, os, sys, time
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
data = ("fd=%d,rootmode=40000,user_id=65534,group_id=65534,allow_other" % fd).encode()
if libc.mount(b"mig-mps-hang", sys.argv[1].encode(), b"fuse", 0, data) != 0:
    sys.exit("mount: %s" % os.strerror(ctypes.get_errno()))
time.sleep(120)
"#;

/// A process is sent a signal only if it is the server's user's.
#[test]
fn kill_signals_nobody_elses_process() {
    if !is_root("kill_signals_nobody_elses_process") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    // A root service that has the GPU open, and a control program that calls it her client.
    let service = sim.node.holder(&[0]);
    let server = sim.device("0")["servers"][0]["pid"].clone();
    let liar = sim.node.dir().join("liar");
    fs::write(
        &liar,
        format!(
            "#!/bin/sh\ncat >/dev/null; echo 0; echo {server}; echo ACTIVE; echo {}; echo 100.0\n",
            service.pid()
        ),
    )
    .unwrap();
    fs::set_permissions(&liar, fs::Permissions::from_mode(0o755)).unwrap();
    let pid = service.pid().to_string();
    let mut kill = sim.command(&["kill", "0", &pid, "--signal=KILL", "--yes"]);
    let ran = Ran::of(kill.env("MIG_MPS_CONTROL", &liar));
    assert_eq!(ran.status, 4, "{}", ran.stdout);
    assert!(
        ran.stderr.contains("runuser -u nobody -- mig-mps kill 0"),
        "{}",
        ran.stderr
    );
    assert!(
        is_alive(&Value::from(service.pid())),
        "a root service was killed"
    );
}

/// Her directories stay hers, and root's are root's.
#[test]
fn directories_have_the_modes_that_serve_says() {
    if !is_root("directories_have_the_modes_that_serve_says") {
        return;
    }
    let sim = Sim::with("h200", 1);
    for (serve, owner, mode) in [
        ("", 0, 0o755),
        ("serve = \"all\"", 0, 0o755),
        ("serve = \"group:daemon\"", 0, 0o750),
        (HERS, NOBODY, 0o700),
    ] {
        sim.up(&whole(serve), &["--yes"]).ended(0);
        let meta = fs::metadata(pipe(&sim)).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777), (owner, mode), "{serve}");
    }
}

/// Clients of a user's device have the time that `--drain` gives them, also where no session can be opened.
#[test]
fn force_with_drain_waits_for_a_users_clients() {
    if !is_root("force_with_drain_waits_for_a_users_clients") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let mut app = sim.node.program("cuda-app");
    app.args(["run", "2"])
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe(&sim));
    let app = app
        .uid(NOBODY)
        .gid(NOBODY)
        .stdout(std::process::Stdio::piped());
    let app = app.spawn().unwrap();
    while sim.device("0")["clients"] != 1 {
        std::thread::yield_now();
    }
    sim.run(&["down", "--drain", "30", "--force"]).ended(0);
    let output = app.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("done"), "{said}");
}

/// What a user has put into her log directory holds `down --purge` up no more than anything else.
#[test]
fn a_log_directory_is_removed_with_what_is_mounted_there() {
    if !is_root("a_log_directory_is_removed_with_what_is_mounted_there") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(HERS));
    sim.up(&whole(HERS), &[]).ended(0);
    let uuid = sim.device("0")["uuid"].as_str().unwrap().to_owned();
    sim.run(&["down"]).ended(0);
    let log = sim.node.log_dir().join(uuid);
    fs::create_dir_all(log.join("a/b")).unwrap();
    symlink(&profile, log.join("a/link")).unwrap();
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let script = format!(
        "set -e; python3 -c '{HANG}' {0}/a/b & while ! grep -q mig-mps-hang /proc/self/mounts; do sleep 0.05; done; \
         timeout 20 {program} down --purge; kill %1; ls {0} || echo removed",
        log.display()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", &script]);
    let ran = Ran::of(command.env_clear().envs(sim.node.env()));
    assert!(
        ran.stdout.contains("removed"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
    assert!(profile.exists(), "a link was followed");
}

/// Traces a process and never takes its exit status.
const TRACE: &str = r"
import ctypes, os, sys, time
os.setsid()
SEIZE = 0x4206
ctypes.CDLL(None).ptrace(SEIZE, int(sys.argv[1]), None, None)
time.sleep(120)
";

/// A user may trace what runs as her, and keep its exit status from whoever started it: root does not wait for that.
#[test]
fn a_user_who_traces_her_session_holds_nobody_up() {
    if !is_root("a_user_who_traces_her_session_holds_nobody_up") {
        return;
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(scope.trim(), "" | "0") {
        return;
    }
    let sim = Sim::with("h200", 1);
    sim.up(&whole(HERS), &[]).ended(0);
    let control = sim.node.dir().join("nvidia-cuda-mps-control");
    let tracers = sim.node.dir().join("tracers");
    File::create(&tracers).unwrap();
    fs::set_permissions(&tracers, fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!(
        "#!/bin/sh\npython3 -c '{TRACE}' $$ </dev/null >/dev/null 2>&1 &\necho $! >>{}\n\
         while grep -q 'TracerPid:.0$' /proc/$$/status; do sleep 0.01; done\nexec {} \"$@\"\n",
        tracers.display(),
        sim.node.dir().join("bin/nvidia-cuda-mps-control").display(),
    );
    fs::write(&control, script).unwrap();
    fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let mut set = Command::new("timeout");
    set.args(["-s", "KILL", "60", &program, "set", "0", "max-clients=3"]);
    set.arg("active-thread-percentage=50");
    set.env_clear().envs(sim.node.env());
    let ran = Ran::of(set.env("MIG_MPS_CONTROL", &control));
    for tracer in fs::read_to_string(&tracers).unwrap().lines() {
        shell(format!("kill -9 {tracer}")).ended(0);
    }
    // Not killed by `timeout`.
    assert_eq!(ran.status, 4, "{ran:?}");
    sim.run(&["down"]).ended(0);
}

/// A user may stop every process that runs as her: together they delay a change, and its lock, for some seconds.
#[test]
fn a_user_who_stops_her_sessions_delays_a_change_by_seconds() {
    if !is_root("a_user_who_stops_her_sessions_delays_a_change_by_seconds") {
        return;
    }
    let sim = Sim::with("h200", 3);
    let control = sim.node.dir().join("nvidia-cuda-mps-control");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -d ] || [ $(id -u) = 0 ] || kill -STOP $$\nexec {} \"$@\"\n",
        sim.node.dir().join("bin/nvidia-cuda-mps-control").display(),
    );
    fs::write(&control, script).unwrap();
    fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
    let profile = sim.profile(
        "[[gpu]]\nselect = { index = [0, 1] }\nmig = false\nmps = { serve = \"user:nobody\" }\n\
         [[gpu]]\nselect = { index = [2] }\nmig = false\n",
    );
    let begun = std::time::Instant::now();
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let ran = Ran::of(up.env("MIG_MPS_CONTROL", &control));
    let elapsed = begun.elapsed();
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(elapsed.as_secs() < 25, "{elapsed:?}");
    assert_eq!(in_state(&sim.status(), "ready"), ["2"]);
    // Once she lets them go on, everything is as the profile says.
    sim.up(&fs::read_to_string(&profile).unwrap(), &[]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 3);
    let begun = std::time::Instant::now();
    let mut restart = sim.command(&["restart", "0", "--yes"]);
    let ran = Ran::of(restart.env("MIG_MPS_CONTROL", &control));
    let elapsed = begun.elapsed();
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(elapsed.as_secs() < 25, "{elapsed:?}");
}

/// Directories that a user nests deeply are removed with her logs, and save nobody else's.
#[test]
fn purge_removes_logs_however_deeply_directories_are_nested() {
    if !is_root("purge_removes_logs_however_deeply_directories_are_nested") {
        return;
    }
    let sim = Sim::with("h200", 2);
    sim.up(
        "[mps]\nserve = \"user:nobody\"\n[[gpu]]\nselect = { all = true }\nmig = false\n",
        &[],
    )
    .ended(0);
    for name in ["0", "1"] {
        let uuid = sim.device(name)["uuid"].as_str().unwrap().to_owned();
        let nest = "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range(1000):\n    os.mkdir('d'); os.mkdir('e'); os.chdir('d')\n";
        let mut python = Command::new("python3");
        python.args(["-c", nest]).arg(sim.node.log_dir().join(uuid));
        Ran::of(python.uid(NOBODY).gid(NOBODY)).ended(0);
    }
    sim.run(&["down", "--purge"]).ended(0);
    assert_eq!(fs::read_dir(sim.node.log_dir()).unwrap().count(), 0);
}

/// A user's processes may call themselves what they like, at any length: little of that is read.
#[test]
fn long_command_lines_hold_nobody_up() {
    let sim = Sim::with("h200", 1);
    sim.up(&whole(""), &[]).ended(0);
    let program = sim.node.dir().join("nvidia-cuda-mps-control");
    fs::copy("/bin/sh", &program).unwrap();
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
