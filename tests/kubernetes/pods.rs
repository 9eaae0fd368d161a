//! Pods that hold shares, and changes of the node: a pod that runs nothing at the moment is known by the kubelet only.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::Value;
use testkit::{App, Running, Sim, assert_contains, eventually, needs_root, wait_until};

use super::kubelet::Kubelet;
use super::{Plugin, SHARED, SHARES, SMALL, TRAINER, shared};
use crate::cli::change::stable_files::{Files, go_on_from_earlier_files};

const UID: &str = "6dbbf17e-94e1-4b10-8555-9bfe510c25d5";

/// A node with a kubelet and a plugin.
fn cluster() -> (Sim, Kubelet, Plugin) {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    (sim, kubelet, plugin)
}

fn pods_file(sim: &Sim) -> Value {
    let text = fs::read(sim.node.run_dir().join("pods.json"));
    text.map_or(Value::Null, |text| serde_json::from_slice(&text).unwrap())
}

/// Waits until the plugin has written that these pods hold shares.
#[track_caller]
fn await_pods(sim: &Sim, expected: &[&str]) {
    eventually("the plugin has written the pods", || {
        let file = pods_file(sim);
        let pods: Vec<&str> = file["pods"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|share| share["pod"].as_str().unwrap())
            .collect();
        if pods == expected { Ok(()) } else { Err(file) }
    });
}

#[test]
fn an_idle_pod_is_asked_about() {
    let (sim, kubelet, _plugin) = cluster();
    kubelet.admit("default/small-0", SMALL, "0.0::1");
    kubelet.admit("ml/train", TRAINER, "trainer-0::0");
    kubelet.admit("default/other", "nvidia.com/gpu", "0.1::0");
    await_pods(&sim, &["default/small-0", "ml/train"]);
    let refused = sim.run(&["down", "0.0"]).ended(4);
    assert_snapshot!(refused.stderr, @"
    error: 1 pod holds a share of a device:
      0.0: pod default/small-0
    hint: delete the pods, or wait for them with --drain DURATION; with --force, programs that they start later run outside MPS
    ");
    let refused = sim.run(&["down"]).ended(4);
    assert_contains(
        &refused.stderr,
        "error: 2 pods hold shares of devices:\n  0.0: pod default/small-0\n  trainer-0: pod ml/train\n",
    );
    assert_eq!(sim.happened("session quit"), 0);
    // Another layout takes the device away.
    let other = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\" } ]\n";
    let plan = sim.profile(other);
    let shown = sim.run(&["plan", plan.to_str().unwrap()]).ended(0);
    assert_contains(
        &shown.stdout,
        "2 pods would lose a share (refused, unless --drain lets them end in time or --force takes it from them):\n  \
         0.0: pod default/small-0\n",
    );
    let document = sim.run(&["plan", plan.to_str().unwrap(), "--json"]).json();
    assert_eq!(
        document["gpus"][0]["idle_pods"][0]["pod"],
        "default/small-0"
    );
    sim.up(other, &[]).ended(4);
    // The file is no problem of the node.
    sim.run(&["status", "--exit-code"]).ended(0);
    let doctor = sim.run(&["doctor", "--all"]);
    assert!(!doctor.stdout.contains("pods.json"), "{}", doctor.stdout);
    // These keep the pipe directory that the pods have.
    sim.run(&["restart", "0.0", "--yes"]).ended(0);
    sim.run(&["set", "0.1", "share=4"]).ended(0);
    sim.run(&["down", "0.1"]).ended(0);
    sim.run(&["down", "--force", "--yes"]).ended(0);
}

#[test]
fn a_change_waits_for_idle_pods() {
    let (sim, kubelet, _plugin) = cluster();
    kubelet.admit("default/small-0", SMALL, "0.0::1");
    await_pods(&sim, &["default/small-0"]);
    let mut down = sim.command(&["down", "0.0", "--drain", "100"]);
    let log = sim.node.dir().join("down.log");
    let child = down
        .stdin(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .spawn();
    let mut down = Running(child.unwrap());
    wait_until("it waits for the pod", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("0.0: pod default/small-0")
    });
    kubelet.delete("default/small-0");
    assert!(down.0.wait().unwrap().success());
}

/// The pod of a client is named beside its process, and counted once.
#[test]
fn a_refusal_names_the_pods_of_clients() {
    let (sim, kubelet, _plugin) = cluster();
    kubelet.admit("default/small-0", SMALL, "0.0::1");
    sim.prepare(&format!("var/log/pods/default_small-0_{UID}/0.log"), "");
    let client: App = sim.client("0.0");
    let group = format!(
        "/kubepods.slice/kubepods-pod{}.slice",
        UID.replace('-', "_")
    );
    let node = sim.node.node();
    node.show_in_cgroup(client.pid(), &group).unwrap();
    await_pods(&sim, &["default/small-0"]);
    let refused = sim.run(&["down", "0.0"]).ended(4);
    let pid = client.pid().to_string();
    assert_contains(
        &refused.stderr,
        &format!("error: 1 client is still running:\n  0.0: pid {pid} ("),
    );
    assert_contains(
        &refused.stderr,
        "cuda-app hold), pod default/small-0\nhint: wait for running clients",
    );
}

/// As a kubelet answers on a node with many pods and devices: its limit is 16 MiB.
#[test]
fn a_long_list_of_pods_is_read() {
    let (sim, kubelet, _plugin) = cluster();
    kubelet.admit("default/many", "example.org/x", &"x".repeat(5 << 20));
    kubelet.admit("default/small-0", SMALL, "0.0::1");
    await_pods(&sim, &["default/small-0"]);
}

#[test]
fn a_list_that_cannot_be_got_or_written_is_named_with_its_reason() {
    let (sim, _kubelet, plugin) = cluster();
    let file = sim.node.run_dir().join("pods.json");
    wait_until("the plugin has written the pods", || file.exists());
    let unknown = "warning: a change of the node cannot take pods without programs into account: ";
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    fs::write(file.join("of-somebody"), "").unwrap();
    let why = format!("{}: it is a directory with other files", file.display());
    plugin.await_line(&format!("{unknown}{why}"), 1);
    fs::remove_file(sim.machine("var/lib/kubelet/pod-resources/kubelet.sock")).unwrap();
    let why = "the kubelet does not list them: No such file or directory";
    plugin.await_line(&format!("{unknown}{why}"), 1);
}

#[test]
fn pods_are_known_from_the_stable_file_of_an_earlier_plugin() {
    let node = || {
        let (sim, kubelet, plugin) = cluster();
        kubelet.admit("default/small-0", SMALL, "0.0::1");
        await_pods(&sim, &["default/small-0"]);
        // It would write the file again.
        drop(plugin);
        (sim, kubelet)
    };
    let files = |sim: &Sim| {
        let path = sim.node.run_dir().join("pods.json");
        Files::from([("pods".to_owned(), path)])
    };
    go_on_from_earlier_files(node, files, |sim, _kubelet| {
        let refused = sim.run(&["down", "0.0"]).ended(4);
        assert_contains(&refused.stderr, "0.0: pod default/small-0\n");
    });
}

/// Pods that were not listed for a minute are unknown.
#[test]
fn an_old_list_of_pods_is_no_evidence() {
    let (sim, kubelet, plugin) = cluster();
    kubelet.admit("default/small-0", SMALL, "0.0::1");
    await_pods(&sim, &["default/small-0"]);
    drop(plugin);
    sim.run(&["down", "0.0"]).ended(4);
    sim.edit("pods.json", |file| {
        file["at"] = "2026-01-01T00:00:00Z".into();
    });
    let without_it = sim.profile(&SHARED.replace("count = 2", "count = 1"));
    for command in [
        &["plan", without_it.to_str().unwrap()][..],
        &["down", "0.0"],
    ] {
        assert_contains(
            &sim.run(command).ended(0).stderr,
            "pods that hold shares are unknown: mig-mps-device-plugin has not reported them for a minute",
        );
    }
    // A restart takes nothing from a pod.
    let restarted = sim.run(&["restart", "0.1", "--yes"]).ended(0);
    assert!(!restarted.stderr.contains("pods"), "{}", restarted.stderr);
}

/// A plugin to which the kubelet does not list the pods writes no file.
#[test]
fn without_a_list_the_pods_of_an_enabled_plugin_are_unknown() {
    let sim = shared();
    let without_it = sim.profile(&SHARED.replace("count = 2", "count = 1"));
    let plan = || {
        let ran = sim.run(&["plan", without_it.to_str().unwrap()]);
        ran.ended(0).stderr
    };
    assert!(!plan().contains("pods"), "no plugin is enabled");
    let wants = sim.machine("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    symlink("/dev/null", wants.join("mig-mps-device-plugin.service")).unwrap();
    assert_contains(
        &plan(),
        "pods that hold shares are unknown: mig-mps-device-plugin has not reported them\n",
    );
}

/// Another daemon in the same pipe directory takes nothing from a pod, unless it serves fewer users.
#[test]
fn a_daemon_that_follows_keeps_the_shares() {
    needs_root!();
    let (sim, kubelet, _plugin) = cluster();
    kubelet.admit("default/small-0", SMALL, "0.0::1");
    await_pods(&sim, &["default/small-0"]);
    let lazy = SHARED.replace(
        "serve = \"all\"",
        "serve = \"all\"\nserver = \"lazy\"\nnofile = 5000",
    );
    let inode = || fs::metadata(sim.pipe("0.0")).unwrap().ino();
    let before = inode();
    let up = sim.up(&lazy, &["--yes"]).ended(0);
    assert_contains(&up.stdout, "stop 3 daemons");
    assert_eq!(inode(), before);
    let narrow = SHARED.replace("serve = \"all\"", "serve = \"user:nobody\"");
    let refused = sim.up(&narrow, &["--yes"]).ended(4);
    assert_contains(&refused.stderr, "0.0: pod default/small-0");
    assert_contains(&refused.stderr, "will serve only the user nobody");
    assert_eq!(inode(), before);
}
