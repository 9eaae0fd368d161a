//! Devices that come, go, fall ill and recover while the plugin runs.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use testkit::{App, Sim, WHOLE, assert_contains, kill, stop, wait_until, whole};
use tonic::Code;

use super::kubelet::Kubelet;
use super::{Plugin, SHARED, SHARES, SMALL, TRAINER, command, shared};

const GPU: &str = "mig-mps.io/gpu";
const HEALTHY: [&str; 1] = ["mig-mps.io/gpu 0::0 Healthy"];
const ILL: [&str; 1] = ["mig-mps.io/gpu 0::0 Unhealthy"];

/// Waits until the kubelet knows these shares, and returns after how many seconds.
fn follows(kubelet: &Kubelet, shares: &[&str], what: &str) -> f64 {
    let begun = Instant::now();
    kubelet.await_shares(shares);
    let took = begun.elapsed().as_secs_f64();
    println!("{what}: {took:.1} s");
    took
}

/// All shares while the daemon of the first device is dead.
const FIRST_ILL: [&str; 5] = [
    "mig-mps.io/1g.10gb 0.0::0 Unhealthy",
    "mig-mps.io/1g.10gb 0.0::1 Unhealthy",
    SHARES[2],
    SHARES[3],
    SHARES[4],
];

#[test]
fn a_daemon_that_died_is_unhealthy_until_it_is_healed() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    sim.kill_daemon("0.0");
    follows(&kubelet, &FIRST_ILL, "died");
    let refused = kubelet.allocate(SMALL, &["0.0::0"]).unwrap_err();
    assert_eq!(
        refused.message(),
        "device 0.0 is not healthy: its daemon has died"
    );
    kubelet.allocate(SMALL, &["0.1::0"]).unwrap();
    sim.run(&["heal"]).ended(0);
    follows(&kubelet, &SHARES, "healed");
    plugin.await_line("device 0.0 is unhealthy: its daemon has died", 1);
    plugin.await_line("device 0.0 is healthy", 1);
    kubelet.allocate(SMALL, &["0.0::0"]).unwrap();
}

/// No new pod gets a share of it, and no container starts again.
#[test]
fn a_closing_device_is_unhealthy_until_its_new_daemon_runs() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    let client = sim.client("trainer-0");
    let restart = ["restart", "trainer-0", "--drain", "1h", "--no-new", "--yes"];
    let mut restart = sim.talk(&restart);
    restart.await_text("closed device ");
    let closing = "mig-mps.io/trainer trainer-0::0 Unhealthy";
    let mut shares = SHARES;
    shares[4] = closing;
    follows(&kubelet, &shares, "closed");
    let refused = kubelet.allocate(TRAINER, &["trainer-0::0"]).unwrap_err();
    let ill = "it is closed to new programs by root since 20";
    let why = format!("device trainer-0 is not healthy: {ill}");
    let until = "mig-mps restart trainer-0 --drain 1h --no-new --yes), which waits until 20";
    for said in [
        refused.message().to_owned(),
        refused_start(&kubelet, TRAINER, "trainer-0::0"),
    ] {
        assert!(said.starts_with(&why) && said.contains(until), "{said}");
    }
    let line = format!("device trainer-0 is unhealthy: {ill}");
    wait_until("the plugin says so", || plugin.said().contains(&line));
    kubelet.allocate(SMALL, &["0.1::0"]).unwrap();
    assert!(client.finish().status.success());
    let _ = restart.end().ended(0);
    follows(&kubelet, &SHARES, "reopened");
    plugin.await_line("device trainer-0 is healthy", 1);
    kubelet.allocate(TRAINER, &["trainer-0::0"]).unwrap();
}

/// The words by which a container's start is refused.
fn refused_start(kubelet: &Kubelet, resource: &str, share: &str) -> String {
    let refused = kubelet.start_container(resource, &[share]).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    refused.message().to_owned()
}

/// A kubelet starts a container again without Allocate, a second after its program has ended.
#[test]
fn a_container_waits_until_its_daemon_is_there_again() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    kubelet.allocate(SMALL, &["0.0::0"]).unwrap();
    kubelet.start_container(SMALL, &["0.0::0"]).unwrap();
    // Before the kubelet knows of its death, and after.
    sim.kill_daemon("0.0");
    let died = "device 0.0 is not healthy: its daemon has died";
    assert_eq!(refused_start(&kubelet, SMALL, "0.0::0"), died);
    kubelet.await_shares(&FIRST_ILL);
    assert_eq!(refused_start(&kubelet, SMALL, "0.0::0"), died);
    kubelet.start_container(SMALL, &["0.1::0"]).unwrap();
    sim.run(&["heal"]).ended(0);
    kubelet.await_shares(&SHARES);
    kubelet.start_container(SMALL, &["0.0::0"]).unwrap();
}

#[test]
fn no_container_starts_on_a_device_that_takes_no_client() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    stop(&sim.device("trainer-0")["daemon_pid"]);
    assert_eq!(
        refused_start(&kubelet, TRAINER, "trainer-0::0"),
        "device trainer-0 is not healthy: its daemon is stopped by a signal"
    );
    fs::remove_dir_all(sim.pipe("0.1")).unwrap();
    assert_eq!(
        refused_start(&kubelet, SMALL, "0.1::0"),
        "device 0.1 is not healthy: its pipe directory was removed"
    );
    sim.hang("0.0");
    wait_until("all shares are unhealthy", || {
        let shares = kubelet.shares();
        shares.len() == 5 && shares.iter().all(|share| share.ends_with("Unhealthy"))
    });
    assert_eq!(
        refused_start(&kubelet, SMALL, "0.0::0"),
        "device 0.0 is not healthy: it is hung, so new clients would wait forever"
    );
    sim.run(&["down", "--force", "--yes"]).ended(0);
    let gone = "device 0.0 is not healthy: mig-mps no longer serves it";
    assert_eq!(refused_start(&kubelet, SMALL, "0.0::0"), gone);
    kubelet.await_shares(&[]);
    assert_eq!(refused_start(&kubelet, SMALL, "0.0::0"), gone);
}

/// A control program that can be held up: it waits while a file exists, and so no longer than the node does.
struct SlowControl {
    program: PathBuf,
    called: PathBuf,
    held_up: PathBuf,
}

impl SlowControl {
    fn of(sim: &Sim) -> Self {
        let [called, held_up] = ["called", "held-up"].map(|name| sim.node.dir().join(name));
        let script = format!(
            "if [ -e {held_up} ]; then touch {called}; while [ -e {held_up} ]; do sleep 0.05; done; fi; exec $real \"$@\"",
            held_up = held_up.display(),
            called = called.display(),
        );
        Self {
            program: sim.control_script(&script),
            called,
            held_up,
        }
    }

    /// Waits until the plugin asks a daemon because of a new client.
    fn hold_up_a_question(&self, sim: &Sim) -> App {
        fs::write(&self.held_up, "").unwrap();
        let client = sim.client("0");
        wait_until("the daemon is asked", || self.called.exists());
        client
    }

    fn go_on(&self) {
        fs::remove_file(&self.held_up).unwrap();
    }
}

/// The last offers are older than the death of the daemon: the plugin is busy with its question.
#[test]
fn a_start_is_refused_while_the_plugin_waits_for_a_daemon() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let control = SlowControl::of(&sim);
    let _plugin = Plugin::start(&sim, command(&sim).env("MIG_MPS_CONTROL", &control.program));
    kubelet.await_shares(&HEALTHY);
    let client = control.hold_up_a_question(&sim);
    sim.kill_daemon("0");
    assert_eq!(
        refused_start(&kubelet, GPU, "0::0"),
        "device 0 is not healthy: its daemon has died"
    );
    control.go_on();
    drop(client);
}

#[test]
fn a_device_that_hangs_is_unhealthy_until_it_is_restarted() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    sim.hang("0");
    follows(&kubelet, &ILL, "hung");
    plugin.await_line(
        "device 0 is unhealthy: it is hung, so new clients would wait forever",
        1,
    );
    sim.run(&["restart", "0"]).ended(0);
    follows(&kubelet, &HEALTHY, "restarted");
}

/// Of a daemon that was not asked, it is only known that it runs: its server may have a fault.
#[test]
fn a_daemon_that_somebody_else_talks_to_is_unhealthy_until_it_has_answered() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let session = sim.session("0");
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&ILL);
    plugin.await_line(
        "device 0 is unhealthy: its daemon has not been asked yet",
        1,
    );
    drop(session);
    kubelet.await_shares(&HEALTHY);
}

/// No record counts without the id of the boot.
#[test]
fn daemons_that_cannot_be_seen_are_unhealthy() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    let boot = sim.machine("proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(&boot).unwrap();
    fs::remove_file(&boot).unwrap();
    kubelet.await_shares(&ILL);
    assert_contains(
        &plugin.said(),
        "device 0 is unhealthy: its daemon cannot be seen: ",
    );
    fs::write(&boot, id).unwrap();
    kubelet.await_shares(&HEALTHY);
}

/// Its processes, its log and its record stay as they were.
#[test]
fn a_daemon_that_takes_no_program_any_more_is_unhealthy() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    sim.node.fault("daemon accept").hangs().unwrap();
    let _waits = sim.app("0", &["hold"]);
    follows(&kubelet, &ILL, "takes no program");
}

/// A client with a fault: newcomers fail until all have exited.
#[test]
fn a_device_after_a_fault_is_unhealthy_until_its_clients_have_exited() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&HEALTHY);
    let clients = sim.faulty("0");
    // The log shows it. Without a sign the daemon would be asked half a minute after its last answer.
    assert!(follows(&kubelet, &ILL, "fault") < 15.0);
    drop(clients);
    follows(&kubelet, &HEALTHY, "recovered");
}

#[test]
fn a_lost_gpu_and_a_driver_that_fails_are_unhealthy() {
    let sim = Sim::whole("");
    sim.node
        .fault("nvmlDeviceGetHandleByIndex_v2")
        .fails(15)
        .unwrap();
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&ILL);
    assert_contains(&plugin.said(), "device 0 is unhealthy: GPU 0 is lost");
    drop(plugin);
    // The driver is asked by another process: the plugin goes on.
    let sim = Sim::whole("");
    sim.node.fault("nvmlInit_v2").fails(999).unwrap();
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&ILL);
    assert_contains(
        &plugin.said(),
        "device 0 is unhealthy: the driver does not answer: ",
    );
}

/// The daemons run on, and would take a client.
#[test]
fn a_device_that_is_gone_or_was_made_again_is_unhealthy() {
    let sim = Sim::with("a100-80gb", 2);
    let on = |gpu: u32| SHARED.replace("all = true", &format!("index = [{gpu}]"));
    sim.up(&on(0), &[]).ended(0);
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    let change = sim.node.node().update(|state| {
        let instances = &mut state.gpus[0].instances;
        instances.retain(|instance| instance.placement.start != 0);
        for instance in instances.iter_mut() {
            let uuid = &mut instance.compute[0].uuid;
            let other = if uuid.starts_with("MIG-0") { "1" } else { "0" };
            uuid.replace_range(4..5, other);
        }
        state.contexts.clear();
    });
    change.unwrap();
    sim.up(&on(1), &[]).ended(0);
    plugin.await_line("device 0.0 is unhealthy: the device does not exist", 1);
    plugin.await_line("device 0.1 is unhealthy: the device was created again", 1);
}

#[test]
fn up_and_down_are_followed_without_a_restart() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    sim.run(&["down", "0.0"]).ended(0);
    follows(&kubelet, &SHARES[2..], "down");
    plugin.await_line("mig-mps.io/1g.10gb: 2 shares of 0.1", 1);
    sim.up(SHARED, &[]).ended(0);
    follows(&kubelet, &SHARES, "up");
    // Another profile, with another resource.
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    kubelet.await_shares(&[]);
    plugin.await_line("mig-mps.io/trainer: no device", 1);
    let halves =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", count = 2 } ]\n";
    sim.up(halves, &[]).ended(0);
    kubelet.await_shares(&[
        "mig-mps.io/3g.40gb 0.0::0 Healthy",
        "mig-mps.io/3g.40gb 0.4::0 Healthy",
    ]);
    // The resources that have gone stay registered, with no share, until their devices come back.
    assert!(kubelet.plugin(SMALL).is_connected);
}

/// The number of shares changes with the setting, and the variables of a container with another.
#[test]
fn a_change_of_settings_is_followed() {
    let sim = Sim::whole("share = 2");
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&["mig-mps.io/gpu 0::0 Healthy", "mig-mps.io/gpu 0::1 Healthy"]);
    sim.up(&whole(""), &[]).ended(0);
    kubelet.await_shares(&HEALTHY);
    sim.run(&["set", "0", "visible=index"]).ended(0);
    wait_until("a container sees the device as number 0", || {
        let answer = kubelet.allocate(GPU, &["0::0"]);
        answer.is_ok_and(|answer| answer.envs["CUDA_VISIBLE_DEVICES"] == "0")
    });
}

/// A kubelet waits for Allocate with every pod of its node.
#[test]
fn an_answer_does_not_wait_for_a_daemon() {
    let sim = Sim::whole("");
    let kubelet = Kubelet::on(&sim);
    let control = SlowControl::of(&sim);
    let _plugin = Plugin::start(&sim, command(&sim).env("MIG_MPS_CONTROL", &control.program));
    kubelet.await_shares(&HEALTHY);
    let client = control.hold_up_a_question(&sim);
    let answer = kubelet.allocate(GPU, &["0::0"]);
    // On a slow machine the daemon may have been given up before.
    if let Err(refused) = answer {
        assert_eq!(
            refused.message(),
            "device 0 is not healthy: its daemon does not answer"
        );
    }
    control.go_on();
    client.finish();
    kubelet.await_shares(&HEALTHY);
}

/// Daemons are asked where something has changed, and nothing is written.
#[test]
fn an_idle_daemon_is_left_alone() {
    let sim = Sim::served("h200", 2, WHOLE);
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&["mig-mps.io/gpu 0::0 Healthy", "mig-mps.io/gpu 1::0 Healthy"]);
    let daemon = sim.device("1")["daemon_pid"].clone();
    let before = (sim.happened("session open"), sim.run_dir());
    kill(&daemon);
    kubelet.await_shares(&[
        "mig-mps.io/gpu 0::0 Healthy",
        "mig-mps.io/gpu 1::0 Unhealthy",
    ]);
    assert_eq!((sim.happened("session open"), sim.run_dir()), before);
}
