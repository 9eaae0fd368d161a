//! File systems that a user mounts on our directories.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::{NOBODY, Ran, Sim, can_run, has_python, in_state, is_root, whole};

use super::HERS;

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

/// True if the test can mount such a file system; it needs root.
fn can_mount(test: &str) -> bool {
    let has_fuse = Path::new("/dev/fuse").exists();
    is_root(test) && has_python(test) && can_run(test, has_fuse, "it needs /dev/fuse")
}

/// A shell command after which such a file system is mounted on a directory, by the job `%1`.
fn hang_on(directory: &str) -> String {
    let is_mounted = "until grep -q mig-mps-hang /proc/self/mounts; do sleep 0.05; done";
    format!("python3 -c '{HANG}' {directory} & timeout 60 sh -c '{is_mounted}'")
}

/// Runs a script on the node in a mount namespace of its own.
fn with_mounts(sim: &Sim, script: &str) -> Ran {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", script]);
    Ran::of(command.env_clear().envs(sim.node.env()))
}

/// A file system that somebody has mounted on one of our directories is taken away, and never looked into.
#[test]
fn a_mount_on_a_pipe_directory_is_detached() {
    if !can_mount("a_mount_on_a_pipe_directory_is_detached") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(HERS));
    let program = sim.program();
    // In a mount namespace of its own. The file system answers nobody, as one of a user's may.
    let script = format!(
        "set -e; {program} up {profile} >/dev/null; \
         {}; \
         timeout 20 {program} status --json; echo; \
         timeout 30 {program} restart 0 --force --yes >&2; \
         timeout 20 {program} status --json; timeout 30 {program} down >&2; \
         grep -c mig-mps-hang /proc/self/mounts || true; kill %1",
        hang_on(&format!("$(readlink -f {})", sim.pipe_link("0").display())),
        profile = profile.display(),
    );
    let ran = with_mounts(&sim, &script);
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
            .contains("another file system is mounted"),
        "{}",
        documents[0]
    );
    assert_eq!(in_state(&documents[1], "ready"), ["0"], "{}", ran.stderr);
    assert_eq!(documents[2], 0, "no mount is left");
}

/// A program may say that its pipe directory is anywhere: nobody waits for the file system there.
#[test]
fn a_claimed_directory_that_hangs_holds_nobody_up() {
    if !can_mount("a_claimed_directory_that_hangs_holds_nobody_up") {
        return;
    }
    let sim = Sim::served(
        "h200",
        2,
        "[[gpu]]\nselect = { index = [0] }\nmig = false\n",
    );
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
    let program = sim.program();
    let script = format!(
        "{}; timeout -s KILL 20 {program} status --json; kill %1",
        hang_on(&hers.display().to_string()),
    );
    let status = with_mounts(&sim, &script);
    let status: Value = serde_json::from_str(&status.stdout).expect("status ends");
    let pipe = hers.display().to_string();
    assert_eq!(status["unmanaged"][0]["pipe_directory"], pipe, "{status:#}");
    assert_eq!(status["unmanaged"][0]["is_orphan"], false, "{status:#}");
    let cause = status["outside_mps"][0]["cause"].as_str();
    assert_eq!(
        cause,
        Some(format!("its pipe directory is {pipe}/elsewhere").as_str()),
        "{status:#}"
    );
}

/// The files that a user has put into her log directory hold `down --purge` up no more than anything else.
#[test]
fn a_log_directory_is_removed_with_what_is_mounted_there() {
    if !can_mount("a_log_directory_is_removed_with_what_is_mounted_there") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole(HERS));
    sim.up(&whole(HERS), &[]).ended(0);
    let uuid = sim.uuid("0");
    sim.run(&["down"]).ended(0);
    let log = sim.node.log_dir().join(uuid);
    fs::create_dir_all(log.join("a/b")).unwrap();
    symlink(&profile, log.join("a/link")).unwrap();
    let program = sim.program();
    let script = format!(
        "set -e; {}; timeout 20 {program} down --purge; kill %1; ls {1} || echo removed",
        hang_on(&format!("{}/a/b", log.display())),
        log.display()
    );
    let ran = with_mounts(&sim, &script);
    assert!(
        ran.stdout.contains("removed"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
    assert!(profile.exists(), "a link was followed");
}
