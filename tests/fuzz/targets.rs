//! Text that strangers write, read as mig-mps reads it: whatever it is, reading it ends, and without a panic.

use std::path::Path;

use mig_mps::internals::advise::smallest_layout;
use mig_mps::internals::convert::{ConfigTexts, ImportOptions, import};
use mig_mps::internals::host::Pid;
use mig_mps::internals::mps::{DaemonStatus, LogFile, LogLine};
use mig_mps::internals::plan::check::{EmptyNode, plan_on};
use mig_mps::internals::profile::{Profile, WantedPrograms};
use mig_mps::internals::slurm::{GresConf, SlurmJob, gres_of_node, numbered};
use mig_mps::internals::state::DeviceRecord;

/// Reads bytes as one kind of text.
pub(crate) type Target = fn(&[u8]);

/// All targets, by the names of their directories of seeds.
pub(crate) const TARGETS: [(&str, Target); 7] = [
    ("profile", profile),
    ("mig-parted", mig_parted_file),
    ("control", control),
    ("logs", logs),
    ("record", record),
    ("slurm", slurm),
    ("wanted", wanted),
];

/// A profile, and its mistakes as they are shown.
pub(crate) fn profile(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    if let Err(error) = Profile::parse(Path::new("profile.toml"), text) {
        assert!(!error.to_string().is_empty());
    }
}

/// A configuration of mig-parted. What it is converted to is a profile.
pub(crate) fn mig_parted_file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let found = ConfigTexts::find(Path::new("config.yaml"), text);
    for (_, fault) in &found.faults {
        assert!(!fault.to_string().is_empty());
    }
    for choice in found.choices() {
        if let Ok(converted) = import(choice.spec, choice.name, ImportOptions::default()) {
            Profile::parse(Path::new("imported.toml"), converted.draft.to_string())
                .expect("what import writes is a profile");
        }
    }
}

/// The output of a control session.
pub(crate) fn control(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // The daemon has as many child processes as the output has numbers in its first line.
    let first = text.lines().next().unwrap_or_default();
    let children: Vec<Pid> = first
        .split(' ')
        .filter_map(|word| word.parse().ok().map(Pid))
        .collect();
    for with_defaults in [false, true] {
        if let Some(status) = DaemonStatus::of_output(&text, &children, with_defaults) {
            assert_eq!(status.defaults.is_some(), with_defaults);
        }
    }
}

/// Lines of control.log and server.log, and their meanings.
pub(crate) fn logs(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for file in [LogFile::Control, LogFile::Server] {
        for line in text.lines() {
            let _ = LogLine::parse(file, line).meaning();
        }
    }
}

/// The record of a device. What was read is written as it was.
pub(crate) fn record(bytes: &[u8]) {
    if let Ok(record) = serde_json::from_slice::<DeviceRecord>(bytes) {
        let written = serde_json::to_vec(&record).expect("a record is written as JSON");
        let again: DeviceRecord = serde_json::from_slice(&written).expect("and read again");
        assert_eq!(record, again);
    }
}

/// Slurm's files, and the variables of a job.
pub(crate) fn slurm(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let node_gres = gres_of_node(&text, "n1");
    if let Ok(conf) = GresConf::parse(&text, "n1") {
        let count = conf.gpus.len();
        let gpus = numbered(conf.gpus, node_gres.as_deref()).unwrap_or_default();
        assert!(gpus.len() <= count && gpus.iter().all(|gpu| !gpu.files.is_empty()));
    }
    let mut lines = text.lines();
    let variables: Vec<(&str, &str)> = lines
        .by_ref()
        .filter_map(|line| line.split_once('='))
        .collect();
    let variable = |name: &str| {
        let found = variables.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let _ = SlurmJob::of_task(variable);
}

/// Programs with what they want, and figures. The profile of a layout for these is one that `up` can plan.
pub(crate) fn wanted(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    match WantedPrograms::parse(Path::new("wanted.toml"), text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        // The commands refuse to plan for no program.
        Ok(wanted) if wanted.programs.is_empty() => {}
        Ok(wanted) => {
            let gpus = ["a30:2", "a100-80gb:2"].map(|gpu| gpu.parse().expect("they are known"));
            let node = EmptyNode::of_models(&gpus);
            if let Ok(layout) = smallest_layout(&node, &wanted) {
                let profile = Profile::parse(Path::new("advised.toml"), layout.to_string());
                let profile = profile.expect("an advice is a profile");
                plan_on(&node.node, &profile).expect("it fits");
            }
        }
    }
}
