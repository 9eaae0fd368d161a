//! The program beside mig-mps: what a build without it does without, and its own words.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use insta::assert_snapshot;
use testkit::{Ran, Sim, eventually, needs_root, repository, terminate, whole};

use super::{Plugin, command, shared};

/// The crates that the plugin alone needs.
const OF_PLUGIN: [&str; 5] = ["h2", "hyper", "prost", "tokio", "tonic"];

fn tree(features: &[&str]) -> Vec<String> {
    let mut tree = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    tree.args([
        "tree",
        "--package",
        "mig-mps",
        "--edges",
        "normal",
        "--prefix",
        "none",
    ]);
    tree.args(["--format", "{p}", "--locked", "--offline"])
        .args(features);
    let ran = Ran::of(tree.current_dir(repository())).ended(0);
    let names = ran.stdout.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn mig_mps_needs_no_async_runtime() {
    let without = tree(&[]);
    assert!(without.iter().any(|name| name == "clap"), "{without:?}");
    let with = tree(&["--features", "kubernetes"]);
    for name in OF_PLUGIN.map(str::to_owned) {
        assert!(!without.contains(&name), "{name}");
        assert!(with.contains(&name), "{name}");
    }
}

/// Text whose lines have no blanks at their ends.
fn without_blanks(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

#[test]
fn its_help_says_what_it_is() {
    let sim = Sim::with("h200", 1);
    let help = Ran::of(command(&sim).arg("--help")).ended(0);
    let help = help.stdout.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    assert_snapshot!(without_blanks(&help), @"
    Offer the devices of this node to the kubelet

    A pod requests a share of a resource, such as mig-mps.io/1g.10gb, or a name from the profile. The
    plugin runs until SIGTERM, and follows the kubelet and every change of the node. It changes nothing.
    To run it as a service, use `mig-mps systemd --kubernetes`.

    Usage: mig-mps-device-plugin [OPTIONS]

    Manifest:
          --manifest [<PROFILE>]   Print a manifest for nodes [default: /etc/mig-mps/profile.toml]
          --image <NAME>           Image of the pods [default: localhost/mig-mps:VERSION]
          --name <NAME>            Name of the daemon set; another one for nodes with another profile
                                   [default: mig-mps]
          --node-selector <LABEL>  Select nodes with this label, such as mig-mps=true

    Options:
          --kubelet <DIR>   Directory of the kubelet [default: /var/lib/kubelet]
          --list            Print the resources and their devices, then exit
          --metrics <ADDR>  Serve metrics over HTTP, such as at 0.0.0.0:19835
      -h, --help            Print help
      -V, --version         Print version

    Examples:
      mig-mps-device-plugin --list  Show the resources of this node
      mig-mps-device-plugin --manifest profile.toml | kubectl apply -f -

    See also: mig-mps help kubernetes
    ");
    Ran::of(command(&sim).arg("--nothing")).ended(2);
}

const FEATURES: &str = "etc/kubernetes/node-feature-discovery/features.d";

/// Waits until the file of labels has these lines, without their domain.
#[track_caller]
fn await_labels(sim: &Sim, expected: &str) {
    eventually("the labels", || {
        let found = fs::read_to_string(sim.machine(FEATURES).join("mig-mps")).unwrap_or_default();
        let found = found.replace("mig-mps.io/", "");
        if found == expected {
            Ok(())
        } else {
            Err(found)
        }
    });
}

#[test]
fn the_labels_of_the_node_follow_its_devices() {
    needs_root!();
    let sim = shared();
    fs::create_dir_all(sim.machine("var/lib/kubelet/device-plugins")).unwrap();
    fs::create_dir_all(sim.machine(FEATURES)).unwrap();
    let plugin = Plugin::on(&sim);
    await_labels(
        &sim,
        "1g.10gb.count=2\n1g.10gb.shares=4\n1g.10gb.memory-mib=9728\n\
         trainer.count=1\ntrainer.shares=1\ntrainer.memory-mib=40192\n",
    );
    // NFD's worker is not root.
    let file = sim.machine(FEATURES).join("mig-mps");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o644);
    sim.run(&["set", "0.0", "share=3"]).ended(0);
    sim.up(&format!("name = \"Night / 1\"\n{}", whole("")), &["--yes"])
        .ended(0);
    await_labels(
        &sim,
        "profile=Night---1\ngpu.count=1\ngpu.shares=1\ngpu.memory-mib=81920\n",
    );
    // NFD would take another file there for labels, too.
    let names = fs::read_dir(sim.machine(FEATURES)).unwrap();
    assert_eq!(names.count(), 1);
    // A node without a plugin has no shares.
    terminate(plugin.pid());
    eventually("the labels are gone", || {
        if file.exists() {
            Err(plugin.said())
        } else {
            Ok(())
        }
    });
}

#[test]
fn without_nfd_no_labels_are_written() {
    needs_root!();
    let sim = shared();
    fs::create_dir_all(sim.machine("var/lib/kubelet/device-plugins")).unwrap();
    let plugin = Plugin::on(&sim);
    plugin.await_line("mig-mps.io/trainer: waiting for the kubelet", 1);
    assert!(!sim.machine("etc/kubernetes").exists());
}
