//! Directories, rights and limits.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE, as_nobody};
use testkit::SMALL;

pub(crate) fn play(topic: &mut Topic) {
    directories_and_limits(topic);
    files(topic);
}

fn directories_and_limits(topic: &mut Topic) {
    let stage = Stage::a100();
    stage.profile(SMALL);
    stage.show(
        topic,
        "A trace file without a directory",
        "MIG_MPS_LOG=/no/trace mig-mps list",
    );
    stage.show(
        topic,
        "A trace file that others can write to",
        "touch trace; chmod a+w trace; MIG_MPS_LOG=trace mig-mps list",
    );
    let up = "mig-mps up profile.toml";
    stage.show(
        topic,
        "A run directory that is too long",
        &format!("MIG_MPS_RUN_DIR=/tmp/{} {up}", "x".repeat(40)),
    );
    stage.show(
        topic,
        "One directory for both",
        &format!("MIG_MPS_LOG_DIR=$MIG_MPS_RUN_DIR {up}"),
    );
    stage.show(
        topic,
        "A log directory below a file",
        &format!("MIG_MPS_LOG_DIR=/etc/passwd/log {up}"),
    );
    stage.show(
        topic,
        "Too little memory",
        &format!("ulimit -v 1000000; {up}"),
    );
    let served = Stage::with_profile("h200", 1, WHOLE);
    served.show(
        topic,
        "Too little room for a file",
        "ulimit -f 0; mig-mps set 0 active-thread-percentage=50",
    );
    limits(topic);
    let _ = fs::remove_dir_all(stage.sim.node.run_dir());
    fs::create_dir(stage.sim.node.run_dir()).unwrap();
    let mode = |mode| {
        fs::set_permissions(stage.sim.node.run_dir(), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o777);
    stage.show(topic, "A run directory that others can write to", up);
    mode(0o755);
    let lock = stage.sim.node.run_dir().join("lock");
    fs::create_dir(&lock).unwrap();
    stage.show(topic, "A directory in place of the lock", up);
    fs::remove_dir(&lock).unwrap();
    let held = fs::File::create(&lock).unwrap();
    fs::write(&lock, std::process::id().to_string()).unwrap();
    held.lock().unwrap();
    stage.show(topic, "Another change is under way", up);
    drop(held);
    stage.show(
        topic,
        "There is no /proc",
        "MIG_MPS_ROOT=/nonexistent mig-mps status",
    );
    stage.show_raw(topic, "A user without a runtime directory", up, |command| {
        as_nobody(command);
        command
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("MIG_MPS_RUN_DIR");
    });
    stage.show_raw(topic, "A user without a home directory", up, |command| {
        as_nobody(command);
        command.env("XDG_RUNTIME_DIR", "/tmp").env_remove("HOME");
        command
            .env_remove("MIG_MPS_RUN_DIR")
            .env_remove("MIG_MPS_LOG_DIR");
    });
    stage.show_raw(
        topic,
        "A user may not use root's directories",
        up,
        as_nobody,
    );
    let _ = stage.run(up).ended(0);
    fs::write(stage.sim.node.run_dir().join("node.json"), "{\n").unwrap();
    stage.show(topic, "A state file that cannot be read", "mig-mps down");
    fs::remove_file(stage.sim.node.run_dir().join("node.json")).unwrap();
    fs::write(stage.sim.node.run_dir().join("journal.json"), "{").unwrap();
    stage.show(topic, "A journal that cannot be read", "mig-mps down");
    fs::remove_file(stage.sim.node.run_dir().join("journal.json")).unwrap();
    let uuid = stage.sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    fs::write(stage.sim.node.run_dir().join(uuid).join("device.json"), "{").unwrap();
    stage.show(topic, "A record that cannot be read", "mig-mps down");
}

fn files(topic: &mut Topic) {
    let lines = Stage::with("h200", 1);
    lines.profile(WHOLE);
    let run_dir = "export MIG_MPS_RUN_DIR=\"$PWD/a\nb\"";
    let _ = lines
        .run(&format!("{run_dir}; mig-mps up profile.toml"))
        .ended(0);
    lines.show(
        topic,
        "A value with a line break",
        &format!("{run_dir}; mig-mps env 0 --format dotenv"),
    );
    let stage = Stage::with_profile("h200", 1, &format!("cdi = true\n{WHOLE}"));
    let cdi = stage.sim.node.dir().join("root/var/run/cdi/mig-mps.json");
    fs::write(&cdi, "{}").unwrap();
    let up = "mig-mps up profile.toml";
    stage.show(topic, "A CDI file of somebody else", up);
    fs::remove_file(&cdi).unwrap();
    fs::create_dir(&cdi).unwrap();
    stage.show(topic, "A directory in place of the CDI file", up);
    stage.show(
        topic,
        "A file that cannot be written: cdi",
        "mig-mps cdi --output /no/cdi.json",
    );
    stage.show(
        topic,
        "A link in the place of a file",
        "ln -s cdi.json link; mig-mps cdi --output link",
    );
    stage.show(
        topic,
        "A FIFO that nobody reads",
        "mkfifo fifo; mig-mps cdi --output fifo",
    );
    stage.show(
        topic,
        "A file that cannot be written: metrics",
        "mig-mps metrics --output /no/mig-mps.prom",
    );
    let logs = stage
        .sim
        .node
        .log_dir()
        .join(stage.sim.device("0")["uuid"].as_str().unwrap());
    for name in ["control.log", "server.log"] {
        fs::remove_file(logs.join(name)).unwrap();
        fs::create_dir(logs.join(name)).unwrap();
    }
    stage.show(topic, "Logs that are no files", "mig-mps logs 0");
    stage.show(topic, "Standard output is full", "mig-mps list > /dev/full");
}

/// Limits that a plain user cannot lift.
fn limits(topic: &mut Topic) {
    let stage = Stage::with("h200", 1);
    stage.profile(WHOLE);
    for (title, before) in [
        ("A limit of CPU time", "ulimit -t 600; "),
        ("A limit of file sizes", "ulimit -f 100; "),
        ("A shell that was started with nice", "nice -n 5 "),
    ] {
        let line = format!("{before}mig-mps up profile.toml");
        show_to_nobody(topic, &stage, title, &line);
    }
    stage.profile(&format!("{WHOLE}mps = {{ nofile = 65536 }}\n"));
    show_to_nobody(
        topic,
        &stage,
        "A limit of open files",
        "ulimit -n 20000; mig-mps up profile.toml",
    );
}

/// Has a line typed by a plain user who has no run directory.
fn show_to_nobody(topic: &mut Topic, stage: &Stage, title: &str, line: &str) {
    stage.show_raw(topic, title, line, |command| {
        as_nobody(command);
        command.env("XDG_RUNTIME_DIR", "/tmp");
        command
            .env_remove("MIG_MPS_RUN_DIR")
            .env_remove("MIG_MPS_LOG_DIR");
    });
}
