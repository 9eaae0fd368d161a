//! A plugin that stays registered: kubelets that come, go and refuse, sockets that vanish, and calls that no kubelet makes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use insta::assert_snapshot;
use mig_mps::internals::kubernetes::v1beta1::{AllocateRequest, Empty};
use rustix::process::{Pid, Signal, kill_process};
use testkit::{NOBODY, Ran, Sim, assert_contains, is_alive, needs_root, wait_until};
use tonic::codegen::http::uri::Authority;

use super::kubelet::Kubelet;
use super::{Plugin, SHARES, SMALL, TRAINER, command, shared};

/// The time that a report may take in a test.
const LIMIT: Duration = Duration::from_secs(120);

const GPU: &str = "mig-mps.io/gpu";
const HEALTHY: [&str; 1] = ["mig-mps.io/gpu 0::0 Healthy"];

#[test]
fn it_waits_for_a_kubelet_and_outlives_it() {
    let sim = shared();
    let mut kubelet = Kubelet::of(&sim);
    // The kubelet has never run on this node.
    let plugin = Plugin::on(&sim);
    wait_until("it waits", || {
        plugin.said().contains("waiting for a kubelet: ")
    });
    for times in 1..=3 {
        kubelet.start();
        kubelet.await_shares(&SHARES);
        plugin.await_line(&format!("{SMALL}: registered"), times);
        plugin.await_line(&format!("{TRAINER}: registered"), times);
        kubelet.end();
    }
    kubelet.start();
    kubelet.await_shares(&SHARES);
    assert_eq!(
        kubelet.sockets(),
        ["kubelet.sock", "mig-mps-0.sock", "mig-mps-1.sock"]
    );
}

/// The kubelet forgets a plugin whose stream ends, and does not come by itself.
#[test]
fn it_registers_again_when_its_stream_ends() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    for times in 2..=3 {
        kubelet.close_stream(GPU);
        kubelet.await_shares(&HEALTHY);
        plugin.await_line(&format!("{GPU}: registered"), times);
    }
    plugin.await_line(
        &format!("{GPU}: the kubelet has closed the stream of devices"),
        2,
    );
}

#[test]
fn a_socket_that_vanishes_is_made_again() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    fs::remove_file(kubelet.path("mig-mps-0.sock")).unwrap();
    plugin.await_line(&format!("{GPU}: the socket was removed"), 1);
    plugin.await_line(&format!("{GPU}: registered"), 2);
    kubelet.await_shares(&HEALTHY);
    assert_eq!(kubelet.sockets().len(), 2);
}

/// On many file systems a new socket gets the inode of the one that was removed.
#[test]
fn a_kubelet_whose_socket_has_the_inode_of_the_last_one_starts_anew() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    let socket = kubelet.path("kubelet.sock");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    plugin.await_line(&format!("{GPU}: the kubelet was restarted"), 1);
    plugin.await_line(&format!("{GPU}: registered"), 2);
    kubelet.await_shares(&HEALTHY);
}

#[test]
fn a_kubelet_that_refuses_is_asked_again_and_named_once() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    kubelet.refuse(Some("the ResourceName \"mig-mps.io/gpu\" is invalid"));
    let plugin = Plugin::on(&sim);
    wait_until("it has tried three times", || kubelet.registrations() >= 3);
    let said = format!(
        "{GPU}: the kubelet does not register it: the ResourceName \"mig-mps.io/gpu\" is invalid\n"
    );
    assert_eq!(plugin.said().matches(&said).count(), 1, "{}", plugin.said());
    kubelet.refuse(None);
    kubelet.await_shares(&HEALTHY);
}

/// The kubelet connects after its answer, and may fail at that. It says so in its own log only.
#[test]
fn a_kubelet_that_does_not_connect_is_registered_at_again() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    kubelet.forget_next();
    let plugin = Plugin::on(&sim);
    plugin.await_line(&format!("{GPU}: the kubelet has not asked for devices"), 1);
    kubelet.await_shares(&HEALTHY);
}

/// Its socket stays after a crash, and nobody listens there.
#[test]
fn a_kubelet_that_died_is_waited_for() {
    let sim = Sim::whole("");
    let mut kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    kubelet.end();
    wait_until("nobody answers", || {
        plugin
            .said()
            .contains("the kubelet does not register it: Connection refused")
    });
    kubelet.start();
    kubelet.await_shares(&HEALTHY);
}

/// The plugin does not know the users of pods: a line for each resource, once.
#[test]
fn resources_for_one_user_are_remarked_on() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let profile = r#"
[[gpu]]
select = { all = true }
devices = [
  { name = "trainer-{n}", profile = "1g", count = 2, mps = { serve = "user:nobody" } },
  { profile = "1g", count = 2, mps = { share = 2 } },
  { name = "all", profile = "1g", mps = { serve = "all" } },
  { name = "alone", profile = "1g" },
]
"#;
    let of_nobody = "pods need runAsUser with the uid of nobody; a pod of uid 0 also becomes a client, and the programs of nobody then wait";
    let up = sim.up(profile, &[]).ended(0);
    assert!(!up.stderr.contains("pods"), "{}", up.stderr);
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&[
        "mig-mps.io/1g.10gb 0.2::0 Healthy",
        "mig-mps.io/1g.10gb 0.2::1 Healthy",
        "mig-mps.io/1g.10gb 0.3::0 Healthy",
        "mig-mps.io/1g.10gb 0.3::1 Healthy",
        "mig-mps.io/all all::0 Healthy",
        "mig-mps.io/alone alone::0 Healthy",
        "mig-mps.io/trainer trainer-0::0 Healthy",
        "mig-mps.io/trainer trainer-1::0 Healthy",
    ]);
    let said = plugin.said();
    let remarks: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("serve = "))
        .collect();
    assert_eq!(
        remarks,
        [
            "note: mig-mps.io/1g.10gb, serve = \"one-at-a-time\": a second user's pod waits until the programs of the first user's pods \
             have exited; serve = \"all\" lets users share",
            &format!("note: mig-mps.io/trainer, serve = \"user:nobody\": {of_nobody}"),
        ]
    );
    sim.run(&["down", "--force", "--yes"]).ended(0);
    let up = sim.up(profile, &[]).ended(0);
    assert_contains(&up.stderr, &format!("serve = \"user:nobody\": {of_nobody}"));
}

/// A node whose systemd would start the kubelet after the plugin.
#[test]
fn systemd_hears_when_the_devices_are_known() {
    let sim = shared();
    let socket = sim.node.dir().join("notify");
    let notified = UnixDatagram::bind(&socket).unwrap();
    notified.set_read_timeout(Some(LIMIT)).unwrap();
    let is_ready = || {
        let mut message = [0; 64];
        let length = notified.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
    };
    // The kubelet has never run here: its unit may wait for this one.
    let _plugin = Plugin::start(&sim, command(&sim).env("NOTIFY_SOCKET", &socket));
    is_ready();
    let kubelet = Kubelet::on(&sim);
    kubelet.await_shares(&SHARES);
    is_ready();
}

#[test]
fn a_second_plugin_is_refused() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    let of_first = format!("proc/{}", plugin.pid());
    symlink(format!("/{of_first}"), sim.machine(&of_first)).unwrap();
    // The port of its metrics is taken as well.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let second = Ran::of(command(&sim).args(["--metrics", &address])).ended(4);
    let first = format!("error: process {} (", plugin.pid());
    assert!(second.stderr.starts_with(&first), "{second:?}");
    let (_, said) = second.stderr.rsplit_once('/').unwrap();
    assert_snapshot!(said, @"
    mig-mps-device-plugin) already serves this kubelet
    hint: run `systemctl status mig-mps-device-plugin` to see the plugin of the service
    ");
    assert!(is_alive(plugin.pid()));
    assert_eq!(kubelet.shares(), HEALTHY);
}

#[test]
fn sigterm_ends_it_and_removes_its_sockets() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let mut plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    let pid = Pid::from_child(&plugin.running.0);
    kill_process(pid, Signal::TERM).unwrap();
    assert!(plugin.running.0.wait().unwrap().success());
    assert_eq!(kubelet.sockets(), ["kubelet.sock"]);
    // What is not served is not healthy.
    kubelet.await_shares(&[]);
    assert!(!kubelet.plugin(SMALL).is_connected);
}

#[test]
fn one_that_was_killed_is_followed_by_the_next() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    drop(plugin);
    kubelet.await_shares(&[]);
    assert_eq!(kubelet.sockets().len(), 3);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
}

#[test]
fn only_the_user_of_the_kubelet_reaches_it() {
    needs_root!();
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    let path = kubelet.path("mig-mps-0.sock");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    let script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])";
    let mut connect = Command::new("python3");
    connect.args(["-c", script]).arg(path);
    Ran::of(&mut connect).ended(0);
    let refused = Ran::of(connect.uid(NOBODY).gid(NOBODY)).ended(1);
    assert_contains(&refused.stderr, "Permission denied");
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    needs_root!();
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let directory = kubelet.path("");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Ran::of(&mut command(&sim)).ended(1);
    let root = sim.node.dir().join("root").display().to_string();
    assert_snapshot!(refused.stderr.replace(&root, ""), @"
    error: cannot use the kubelet's directory: /var/lib/kubelet/device-plugins: others can write to it
    hint: examine the files in /var/lib/kubelet/device-plugins, then run `chmod go-w /var/lib/kubelet/device-plugins`
    ");
}

/// Bytes that are no HTTP/2, connections without a call, and many calls at once.
#[test]
fn garbage_and_a_flood_disturb_nobody() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    let path = kubelet.path("mig-mps-0.sock");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let too_long = [preface.as_slice(), &[0xff; 9000]].concat();
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 9000], &too_long] {
        let mut stream = UnixStream::connect(&path).unwrap();
        // It may be closed before all is written.
        let _ = stream.write_all(garbage);
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let idle: Vec<UnixStream> = (0..300)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    let client = kubelet.plugin(GPU).client;
    let answers = kubelet.wait(async move {
        let mut calls = Vec::new();
        for _ in 0..2000 {
            let mut client = client.clone();
            calls.push(tokio::spawn(async move {
                client.allocate(AllocateRequest::default()).await.is_ok()
            }));
        }
        let mut answers = 0;
        for call in calls {
            answers += usize::from(call.await.unwrap());
        }
        answers
    });
    assert_eq!(answers, 2000);
    kubelet.allocate(GPU, &["0::0"]).unwrap();
    assert_eq!(kubelet.plugin(GPU).lists, 1, "{}", plugin.said());
    drop(idle);
}

/// A reader that does not read misses what was overtaken, and keeps nobody else waiting.
#[test]
fn a_slow_reader_gets_the_last_state() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    let mut client = kubelet.plugin(GPU).client;
    let stream = kubelet.wait(async move { client.list_and_watch(Empty {}).await.unwrap() });
    for _ in 0..3 {
        sim.kill_daemon("0");
        kubelet.await_shares(&["mig-mps.io/gpu 0::0 Unhealthy"]);
        sim.run(&["restart", "0", "--yes"]).ended(0);
        kubelet.await_shares(&HEALTHY);
    }
    sim.run(&["down"]).ended(0);
    kubelet.await_shares(&[]);
    let lists = kubelet.wait(async move {
        let mut stream = stream.into_inner();
        let mut lists = 0;
        loop {
            let list = stream.message().await.unwrap().unwrap();
            lists += 1;
            if list.devices.is_empty() {
                return lists;
            }
        }
    });
    assert!(lists <= 8, "{lists}");
}

/// The kubelet also finds plugins in `plugins_registry`, and calls them by the path of their socket. The library refuses
/// that name.
#[test]
fn the_other_way_of_registration_is_not_open_to_us() {
    let of_path = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fmig-mps.sock";
    assert!(Authority::try_from(of_path).is_err());
    assert!(Authority::try_from("localhost").is_ok());
}
