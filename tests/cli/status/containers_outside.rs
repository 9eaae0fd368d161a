//! Programs that run outside MPS because their mount namespace, such as a container's, has another pipe directory.

use std::fs;
use std::process::Command;

use serde_json::Value;
use testkit::{App, Ran, SMALL, Sim, assert_contains, needs_root};

/// `mig-mps run 0.2` of a program that holds on, in a mount namespace in which this was done before.
fn contained(sim: &Sim, options: &[&str], script: &str) -> Command {
    let inside = format!("{script} && exec cuda-app hold");
    let program = ["--", "unshare", "-m", "sh", "-ec", &inside];
    sim.command(&[&["run", "0.2"], options, &program].concat())
}

fn cause(sim: &Sim) -> Value {
    sim.status()["outside_mps"][0]["cause"].clone()
}

/// As Apptainer and Enroot do, which have no `/run` of the host: the check of `run` passes before.
#[test]
fn a_container_without_the_directory_is_the_cause() {
    needs_root!();
    let sim = Sim::small();
    let run_dir = sim.node.run_dir().display().to_string();
    let link = sim.pipe_link("0.2").display().to_string();
    let hidden = format!("mount -t tmpfs none {run_dir}");
    for script in [
        hidden.clone(),
        format!("{hidden} && mkdir -p {link}"),
        // The device's directory lies below another mount that covers it.
        format!("mount --bind {link} {link} && {hidden}"),
    ] {
        let mut app = App::start(contained(&sim, &[], &script));
        assert!(app.wait_up().ends_with("mps no"), "{script}");
        let expected =
            format!("its mount namespace (a container) does not have the directory {link}");
        assert_eq!(cause(&sim), expected.as_str(), "{script}");
        let said = sim.run(&["doctor"]).ended(3).stdout;
        // What was done already is no remedy.
        assert_contains(&said, &format!("$ apptainer exec --bind {run_dir}"));
        assert!(!said.contains("mig-mps run"), "{said}");
    }
    let guarded = format!("{hidden} && exec cuda-app run 600");
    let guarded = [
        "run",
        "0.2",
        "--require-mps",
        "--",
        "unshare",
        "-m",
        "sh",
        "-ec",
        &guarded,
    ];
    let ran = sim.run(&guarded).ended(125);
    assert_contains(
        &ran.stderr,
        &format!(
            "(cuda-app run 600) used device 0.2 outside MPS, and the program was ended\nhint: bind {run_dir} into the container"
        ),
    );
}

/// Private mounts of other directories change nothing, like those of a service with `PrivateTmp`.
#[test]
fn a_mount_namespace_with_the_directory_is_not_the_cause() {
    needs_root!();
    let sim = Sim::small();
    let (run_dir, link) = (sim.node.run_dir().display(), sim.pipe_link("0.2"));
    let link = link.display();
    let (kept, pipe) = (sim.machine("kept"), sim.pipe("0.2"));
    fs::create_dir(&kept).unwrap();
    let kept = kept.display();
    for script in [
        "true".to_owned(),
        format!(
            "mount --bind {pipe} {kept} && mount -t tmpfs none {run_dir} && mkdir -p {link} && mount --bind -o ro {kept} {link}"
        ),
        format!(
            "mount --bind {run_dir} {kept} && mount -t tmpfs none {run_dir} && mount --move {kept} {run_dir}"
        ),
    ] {
        let mut app = App::start(contained(&sim, &[], &script));
        assert!(app.wait_up().ends_with("mps yes"), "{script}");
    }
    // The directory of a device whose daemon is dead, and one that mig-mps does not know.
    sim.kill_daemon("0.0");
    let other = sim.pipe("0.0");
    for (pipe, expected) in [
        (
            other.as_str(),
            "its pipe directory is that of 0.0, whose daemon is dead",
        ),
        ("/nowhere", "its pipe directory is /nowhere"),
    ] {
        let script = format!("export CUDA_MPS_PIPE_DIRECTORY={pipe}");
        let mut app = App::start(contained(&sim, &[], &script));
        assert!(app.wait_up().ends_with("mps no"), "{script}");
        assert_eq!(cause(&sim), expected);
    }
    // A list of mounts that cannot be read leaves the cause unknown.
    let script = format!("mount -t tmpfs none {run_dir}");
    let mut app = App::start(contained(&sim, &[], &script));
    assert!(app.wait_up().ends_with("mps no"));
    sim.fake_proc(app.pid(), "mountinfo", "");
    assert_eq!(cause(&sim), "unknown: its mount namespace is hidden");
    drop(app);
    let mut app = App::start(contained(&sim, &[], "unset CUDA_MPS_PIPE_DIRECTORY"));
    assert!(app.wait_up().ends_with("mps no"));
    assert_eq!(
        cause(&sim),
        "CUDA_MPS_PIPE_DIRECTORY is not set in its container"
    );
}

/// A container that runs while its device is taken down and made again keeps the directory that was removed.
#[test]
fn a_directory_that_was_removed_is_the_cause() {
    needs_root!();
    let sim = Sim::small();
    let (kept, go_on) = (sim.machine("kept"), sim.machine("go-on"));
    fs::create_dir(&kept).unwrap();
    let script = format!(
        "mount --bind {} {kept} && echo mounted && until [ -e {} ]; do sleep 0.05; done && export CUDA_MPS_PIPE_DIRECTORY={kept}",
        sim.pipe("0.2"),
        go_on.display(),
        kept = kept.display(),
    );
    let mut app = App::start(contained(&sim, &[], &script));
    assert_eq!(app.wait_up(), "mounted");
    sim.run(&["down"]).ended(0);
    sim.up(SMALL, &["--yes"]).ended(0);
    fs::write(&go_on, "").unwrap();
    assert!(app.wait_up().ends_with("mps no"));
    let expected = format!(
        "its mount namespace (a container) has a removed directory as {}",
        kept.display()
    );
    assert_eq!(cause(&sim), expected.as_str());
}

/// A root directory of its own in the same mount namespace.
#[test]
fn another_root_without_the_directory_is_the_cause() {
    needs_root!();
    let sim = Sim::small();
    let root = sim.node.run_dir().with_file_name("jail");
    fs::create_dir(&root).unwrap();
    let (root, program, link) = (root.display(), sim.program(), sim.pipe_link("0.2"));
    let run_dir = sim.node.run_dir().display();
    let script = format!(
        "set -e; mount --rbind / {root}; mount -t tmpfs none {root}{run_dir}; \
         coproc {program} run 0.2 -- chroot {root} cuda-app hold; read -r said <&\"${{COPROC[0]}}\"; echo \"$said\" >&2; \
         {program} status --json; kill $COPROC_PID"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", &script]);
    let ran = Ran::of(command.env_clear().envs(sim.node.env())).ended(0);
    assert_contains(&ran.stderr, "mps no");
    let expected = format!(
        "its mount namespace (a container) does not have the directory {}",
        link.display()
    );
    let status = ran.json();
    let cause = &status["outside_mps"][0]["cause"];
    assert_eq!(cause, expected.as_str(), "{status:#}");
}
