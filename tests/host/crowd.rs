//! What thousands of processes of others cost: how often the programs look at each of them, and at which of its files.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use testkit::Sim;

/// The files of a process that a command may read.
const FILES: [&str; 7] = [
    "comm", "stat", "cmdline", "environ", "cgroup", "status", "fd",
];

/// Returns how often each file of a process was opened while `work` ran.
fn opened(process: &Path, work: impl FnOnce()) -> BTreeMap<&'static str, usize> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let mut names = BTreeMap::new();
    for name in FILES {
        // The kernel merges two equal events, but not with another one between them.
        let flags = WatchFlags::OPEN | WatchFlags::CLOSE_NOWRITE;
        let descriptor = inotify::add_watch(&watch, process.join(name), flags).unwrap();
        names.insert(descriptor, name);
    }
    work();
    let mut counts = BTreeMap::new();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(&watch, &mut buffer);
    while let Ok(event) = events.next() {
        if event.events().contains(ReadFlags::OPEN) {
            *counts.entry(names[&event.wd()]).or_default() += 1;
        }
    }
    counts
}

/// Runs commands on a node with this number of GPUs, each with seven devices. Returns how often each command opened which file
/// of a process that has nothing to do with MPS.
fn opened_by_commands(gpus: usize) -> Vec<(String, BTreeMap<&'static str, usize>)> {
    let sim = Sim::with("a100-80gb", gpus);
    let other = sim.node.node().show_crowd(1).unwrap().remove(0);
    let profile =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7 } ]\n";
    let path = sim.profile(profile);
    let path = path.to_str().unwrap();
    [
        "list",
        "plan PROFILE",
        "up PROFILE --yes",
        "status",
        "metrics",
        "heal",
        "doctor",
        "plan PROFILE",
        "up PROFILE --yes",
        "restart * --yes",
        "down --yes",
    ]
    .map(|command| {
        let args: Vec<&str> = command
            .split(' ')
            .map(|word| if word == "PROFILE" { path } else { word })
            .collect();
        let counts = opened(&other, || {
            sim.run(&args).ended(0);
        });
        (command.to_owned(), counts)
    })
    .into()
}

#[test]
fn processes_of_others_are_told_apart_by_their_names() {
    let one = opened_by_commands(1);
    let expected = [
        ("list", 1, 0),
        // What has a GPU open may keep its MIG mode from changing.
        ("plan PROFILE", 1, 1),
        ("up PROFILE --yes", 4, 3),
        ("status", 1, 0),
        ("metrics", 1, 0),
        ("heal", 1, 0),
        ("doctor", 2, 1),
        ("plan PROFILE", 1, 0),
        ("up PROFILE --yes", 1, 0),
        ("restart * --yes", 4, 0),
        ("down --yes", 4, 0),
    ];
    let expected = expected.map(|(command, names, open_files)| {
        let mut counts = BTreeMap::from([("comm", names), ("fd", open_files)]);
        counts.retain(|_, count| *count > 0);
        (command.to_owned(), counts)
    });
    assert_eq!(one, expected);
    assert_eq!(opened_by_commands(3), one, "with three times the devices");
}

/// Many processes are read on several CPUs.
#[test]
fn a_crowd_hides_nothing() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    sim.node.node().show_crowd(2000).unwrap();
    let status = sim.status();
    assert_eq!(status["devices"][0]["state"], "ready");
    assert_eq!(status["clients"].as_array().unwrap().len(), 1);
    let doctor = sim.run(&["doctor", "--json"]).json();
    assert_eq!(doctor["severity"], "ok", "{doctor:#}");
    sim.run(&["down", "--force", "--yes"]).ended(0);
    let left = sim.node.processes("nvidia-cuda-mps");
    assert!(left.is_empty(), "{left:?}");
    client.finish();
}
