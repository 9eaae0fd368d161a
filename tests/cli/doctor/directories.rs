//! Run, pipe and log directories.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use super::{Report, doctor, healthy};
use testkit::{NOBODY, Sim, assert_contains, needs_root, shell};

#[test]
fn a_run_directory_that_cannot_be_made() {
    let sim = healthy();
    fs::set_permissions(sim.node.run_dir(), Permissions::from_mode(0o777)).unwrap();
    doctor(&sim, &[])
        .check("run-directory")
        .is("fail", None, sim.node.run_dir().to_str().unwrap());
    fs::set_permissions(sim.node.run_dir(), Permissions::from_mode(0o755)).unwrap();
    assert!(doctor(&sim, &[]).ills().is_empty());
    needs_root!();
    let report = Report::of(
        sim.by_nobody(&["doctor", "--json"])
            .env("MIG_MPS_RUN_DIR", "/proc/x"),
    );
    report
        .check("run-directory")
        .is("fail", None, "/proc cannot be written to");
    let report = Report::of(
        sim.by_nobody(&["doctor", "--json"])
            .env_remove("XDG_RUNTIME_DIR"),
    );
    report
        .check("run-directory")
        .is("fail", None, "XDG_RUNTIME_DIR is not set");
    report
        .check("log-directory")
        .is("unknown", None, "which does not exist");
}

#[test]
fn a_log_directory_that_another_user_could_change() {
    let sim = healthy();
    fs::set_permissions(sim.node.log_dir(), Permissions::from_mode(0o777)).unwrap();
    doctor(&sim, &[])
        .check("log-directory")
        .is("fail", None, sim.node.log_dir().to_str().unwrap());
}

#[test]
fn a_path_that_is_too_long_for_a_socket() {
    let sim = Sim::with("h200", 1);
    let long = sim.node.run_dir().with_file_name("x".repeat(60));
    let mut command = sim.command(&["doctor", "--json"]);
    let report = Report::of(command.env("MIG_MPS_RUN_DIR", &long));
    let command = report
        .check("pipe-too-long")
        .is("fail", Some("0"), "and 87 are the most");
    assert_eq!(command, "export MIG_MPS_RUN_DIR=/run/mig-mps");
    assert!(!doctor(&sim, &[]).ills().contains("pipe-too-long"));
}

#[test]
fn a_pipe_directory_that_its_users_may_not_enter() {
    needs_root!();
    let sim = healthy();
    let pipe = sim.pipe("0.2");
    fs::set_permissions(&pipe, Permissions::from_mode(0o700)).unwrap();
    let report = doctor(&sim, &[]);
    let command = report.check("pipe-access").is(
        "fail",
        Some("0.2"),
        "the users of the device may not enter",
    );
    assert_eq!(command, "mig-mps up");
    sim.run(&["restart", "0.2", "--yes"]).ended(0);
    // A directory above is in the way as well, of every device.
    fs::set_permissions(sim.node.run_dir(), Permissions::from_mode(0o700)).unwrap();
    let report = doctor(&sim, &[]);
    let run_dir = sim.node.run_dir().display();
    let seen = format!("enter {run_dir}");
    let status = sim.run(&["status", "--exit-code"]).ended(3);
    let plain = status
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert_contains(&plain, &seen);
    assert_contains(&plain, "[pipe-access]");
    let command = report.check("pipe-access").is("fail", Some("0.0"), &seen);
    assert_eq!(command, format!("chmod o+x {run_dir}"));
    shell(command).ended(0);
    assert!(!doctor(&sim, &[]).ills().contains("pipe-access"));
    // A user's own directory is closed to others.
    let sim = Sim::whole("serve = \"user:nobody\"");
    assert!(!doctor(&sim, &[]).ills().contains("pipe-access"));
    // The user comes in as a member of a group, too.
    fs::set_permissions(sim.node.run_dir(), Permissions::from_mode(0o750)).unwrap();
    let report = doctor(&sim, &[]);
    let seen = format!("enter {}", sim.node.run_dir().display());
    report.check("pipe-access").is("fail", Some("0"), &seen);
    std::os::unix::fs::chown(sim.node.run_dir(), None, Some(NOBODY)).unwrap();
    assert!(!doctor(&sim, &[]).ills().contains("pipe-access"));
    let sim = Sim::whole("serve = \"group:nogroup\"");
    assert!(!doctor(&sim, &[]).ills().contains("pipe-access"));
}

#[test]
fn a_pipe_directory_that_every_user_may_write_into() {
    let sim = healthy();
    let pipe = sim.pipe("0.2");
    fs::set_permissions(&pipe, Permissions::from_mode(0o777)).unwrap();
    let command = doctor(&sim, &[])
        .check("pipe-writable")
        .is("fail", Some("0.2"), "has mode 0777");
    assert_eq!(command, format!("chmod go-w {pipe}"));
}

/// A sticky one, such as /tmp, does no harm: there users replace only what is theirs.
#[test]
fn a_directory_above_the_pipe_that_every_user_may_write_into() {
    let sim = healthy();
    let of_device = sim.pipe("0.2");
    let of_device = Path::new(&of_device).parent().unwrap();
    let above = sim.node.run_dir().parent().unwrap();
    for directory in [of_device, above] {
        let before = fs::metadata(directory).unwrap().permissions();
        for (mode, is_told) in [(0o777, true), (0o1777, directory == of_device)] {
            fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
            let ills = doctor(&sim, &[]).ills();
            let shown = directory.display();
            assert_eq!(!ills.is_empty(), is_told, "{shown} {mode:o}: {ills:?}");
            let mut fresh = sim.command(&["doctor", "--json"]);
            fresh.env("MIG_MPS_RUN_DIR", directory.join("new"));
            let ills = Report::of(&mut fresh).ills();
            let is_told = mode == 0o777;
            assert_eq!(ills.contains("run-directory"), is_told, "{shown}: {ills:?}");
        }
        fs::set_permissions(directory, before).unwrap();
    }
    assert!(doctor(&sim, &[]).ills().is_empty());
}

#[test]
fn links_by_name() {
    let sim = healthy();
    let links = sim.node.run_dir().join("by-name");
    fs::remove_file(links.join("0.2")).unwrap();
    symlink("../MIG-gone", links.join("old")).unwrap();
    let report = doctor(&sim, &[]);
    let command = report
        .check("by-name")
        .is("fail", Some("0.2"), "does not lead to MIG-");
    assert_eq!(command, "mig-mps restart 0.2");
    symlink("../MIG-gone", links.join("0.2")).unwrap();
    doctor(&sim, &[])
        .check("by-name")
        .is("fail", Some("0.2"), "does not lead to MIG-");
    assert!(!doctor(&sim, &["0.0"]).ills().contains("by-name"));
    sim.run(&["restart", "0.2", "--yes"]).ended(0);
    let command =
        doctor(&sim, &[])
            .check("by-name")
            .is("warn", None, "by-name/old is a broken link");
    assert_eq!(command, format!("rm {}", links.join("old").display()));
}

#[test]
fn a_directory_without_a_record() {
    let sim = healthy();
    let gone = sim.node.run_dir().join("MIG-gone");
    let shown = gone.display();
    fs::create_dir_all(gone.join("pipe")).unwrap();
    let is = |severity: &str, seen: &str| {
        let report = doctor(&sim, &[]);
        report
            .check("leftover-directories")
            .is(severity, None, seen)
    };
    let command = is("warn", "MIG-gone: it contains only directories");
    assert_eq!(command, format!("rm -r {shown}"));
    File::create(gone.join("pipe/control")).unwrap();
    let command = is("warn", "MIG-gone has no record");
    assert_eq!(command, format!("ls -lA {shown}"));
    File::create(gone.join("file")).unwrap();
    let command = is("fail", "MIG-gone/file: it is not a file of mig-mps");
    assert_eq!(command, format!("mv {shown}/file ~/"));
}

#[test]
fn a_log_that_is_large() {
    let sim = healthy();
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    let log = sim.node.log_dir().join(uuid).join("server.log");
    let file = File::options().append(true).open(log).unwrap();
    file.set_len(65 << 20).unwrap();
    let command =
        doctor(&sim, &[])
            .check("log-size")
            .is("warn", Some("0.2"), "server.log has 65 MiB");
    assert_eq!(command, "mig-mps logs 0.2");
}

/// Runs a script in a mount namespace of its own.
fn in_namespace(sim: &Sim, script: &str) -> Report {
    let program = sim.command(&[]).get_program().to_owned();
    let mut shell = Command::new("unshare");
    shell.args(["-m", "/bin/sh", "-ec", script]).arg(program);
    shell.arg(sim.node.log_dir());
    Report::after_any(shell.env_clear().envs(sim.node.env()))
}

#[test]
fn a_file_system_that_is_full_or_read_only() {
    needs_root!();
    let sim = healthy();
    let with = |options: &str| {
        let script =
            format!("mount -t tmpfs -o {options} tmpfs \"$1\"; \"$0\" doctor --json || [ $? = 3 ]");
        in_namespace(&sim, &script)
    };
    let report = with("size=2m");
    let command = report
        .check("disk-space")
        .is("fail", None, " has 2 MiB left");
    assert!(command.starts_with("df -h "), "{command}");
    with("size=32m")
        .check("disk-space")
        .is("warn", None, " has 32 MiB left");
    with("size=32m,ro")
        .check("disk-space")
        .is("fail", None, "on a read-only file system");
}
