//! What thousands of processes of others cost: how often the programs look at each of them, and at which of its files.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use testkit::{Sim, kill, stop};

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
/// of a process that has nothing to do with MPS. Before a command, `KILL` or `STOP` is what befalls every daemon.
fn opened_by_commands(
    gpus: usize,
    commands: &[&str],
) -> Vec<(String, BTreeMap<&'static str, usize>)> {
    let sim = Sim::with("a100-80gb", gpus);
    let other = sim.node.node().show_crowd(1).unwrap().remove(0);
    let profile =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7 } ]\n";
    let path = sim.profile(profile);
    let path = path.to_str().unwrap();
    let counts_of = |command: &&str| {
        let mut args: Vec<&str> = command.split(' ').collect();
        let befalls: Option<fn(u32)> = match args[0] {
            "KILL" => Some(kill),
            "STOP" => Some(stop),
            _ => None,
        };
        if let Some(befalls) = befalls {
            args.remove(0);
            let status = sim.status();
            for device in status["devices"].as_array().unwrap() {
                befalls(device["daemon_pid"].as_u64().unwrap().try_into().unwrap());
            }
        }
        for arg in &mut args {
            if *arg == "PROFILE" {
                *arg = path;
            }
        }
        let counts = opened(&other, || {
            sim.run(&args).ended(0);
        });
        ((*command).to_owned(), counts)
    };
    commands.iter().map(counts_of).collect()
}

/// Compares the number of passes over the names of processes, and over their open files, with what is expected, on nodes of 7 and
/// of 21 devices.
fn check_passes(expected: &[(&str, usize, usize)]) {
    let commands: Vec<&str> = expected.iter().map(|(command, ..)| *command).collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|(command, names, open_files)| {
            let mut counts = BTreeMap::from([("comm", *names), ("fd", *open_files)]);
            counts.retain(|_, count| *count > 0);
            ((*command).to_owned(), counts)
        })
        .collect();
    assert_eq!(opened_by_commands(1, &commands), expected);
    assert_eq!(
        opened_by_commands(3, &commands),
        expected,
        "with three times the devices"
    );
}

#[test]
fn processes_of_others_are_told_apart_by_their_names() {
    check_passes(&[
        ("list", 1, 0),
        // What has a GPU open may keep its MIG mode from changing.
        ("plan PROFILE", 1, 1),
        ("up PROFILE --yes", 3, 3),
        ("status", 1, 0),
        ("metrics", 1, 0),
        ("heal", 1, 0),
        ("doctor", 2, 1),
        ("plan PROFILE", 1, 0),
        ("up PROFILE --yes", 1, 0),
        ("set 0.0 active-thread-percentage=50", 3, 0),
        ("restart 0.0 --yes", 3, 0),
        ("down 0.0 --yes", 3, 0),
        ("start 0.0", 3, 0),
        ("restart * --yes", 3, 0),
        ("down --yes", 3, 0),
    ]);
}

#[test]
fn daemons_that_are_dead_or_suspended_cost_no_more_passes() {
    check_passes(&[
        ("up PROFILE --yes", 3, 3),
        ("KILL down --yes", 3, 0),
        ("up PROFILE --yes", 3, 0),
        ("KILL down --force --yes", 3, 0),
        ("up PROFILE --yes", 3, 0),
        ("KILL heal", 3, 0),
        ("STOP down --force --yes", 3, 0),
        ("up PROFILE --yes", 3, 0),
        ("STOP restart * --force --yes", 3, 0),
    ]);
}

/// A start that fails leaves processes of which nothing is known.
#[test]
fn a_start_that_fails_costs_few_passes() {
    for gpus in [1, 3] {
        let sim = Sim::with("a100-80gb", gpus);
        let other = sim.node.node().show_crowd(1).unwrap().remove(0);
        let profile =
            "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7 } ]\n";
        let path = sim.profile(profile);
        sim.run(&["up", path.to_str().unwrap(), "--yes"]).ended(0);
        for daemon in sim.node.processes("nvidia-cuda-mps-control") {
            kill(daemon);
        }
        sim.node
            .node()
            .fault("daemon start")
            .every()
            .fails(1)
            .unwrap();
        let counts = opened(&other, || {
            sim.run(&["heal"]).ended(1);
        });
        let most = 5 + 2 * 7 * gpus;
        assert!(counts["comm"] <= most, "{counts:?}, and not {most}");
    }
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
