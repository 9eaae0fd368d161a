//! `metrics`: the status as Prometheus reads it, judged by promtool and by a real Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use mig_mps::internals::manual::TOPICS;
use rustix::process::Signal;
use serde_json::Value;
use simnode::node::{ControlVersion, Health};
use testkit::{
    Dialogue, NOBODY, Ran, SMALL, Sim, assert_contains, can_run, in_state, needs_root, wait_until,
    whole,
};

use crate::cli::status::foreign_programs::{beside, unmanaged_daemon};

/// The value of a series, by its text up to the blank.
fn value(text: &str, series: &str) -> Option<f64> {
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.map(|value| value.parse().unwrap())
}

fn metrics(sim: &Sim, args: &[&str]) -> String {
    let ran = sim.run(&[&["metrics"], args].concat()).ended(0);
    assert_eq!(ran.stderr, "");
    ran.stdout
}

/// The state that a device has by its series.
fn state(text: &str, device: &str) -> String {
    let start = format!("mig_mps_device_state{{device=\"{device}\",state=\"");
    let lines = text.lines().filter_map(|line| line.strip_prefix(&start));
    let states: Vec<&str> = lines
        .filter_map(|line| line.strip_suffix("\"} 1"))
        .collect();
    assert_eq!(states.len(), 1, "{text}");
    states[0].to_owned()
}

#[track_caller]
fn has(text: &str, series: &str, expected: f64) {
    assert_eq!(value(text, series), Some(expected), "{series} in\n{text}");
}

fn has_promtool(test: &str) -> bool {
    let found = Command::new("promtool").arg("--version").output().is_ok();
    can_run(test, found, "promtool is not installed")
}

/// Has promtool judge metrics, which it reads from standard input.
#[track_caller]
fn promtool_takes(text: &str) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}\n{text}",
        String::from_utf8_lossy(&said)
    );
}

#[test]
fn changes_foreign_daemons_and_versions_are_counted() {
    let sim = Sim::small();
    let text = metrics(&sim, &[]);
    for series in [
        "change_in_progress",
        "change_interrupted",
        "unmanaged_daemons",
    ] {
        has(&text, &format!("mig_mps_{series}"), 0.0);
    }
    let version = env!("CARGO_PKG_VERSION");
    has(
        &text,
        &format!("mig_mps_build_info{{version=\"{version}\"}}"),
        1.0,
    );
    let driver = sim.status()["driver"].as_str().unwrap().to_owned();
    has(
        &text,
        &format!("mig_mps_driver_info{{version=\"{driver}\"}}"),
        1.0,
    );

    unmanaged_daemon(&sim, &beside(&sim, "theirs"), None);
    has(&metrics(&sim, &[]), "mig_mps_unmanaged_daemons", 1.0);

    sim.node.fault("daemon start").hangs().unwrap();
    let restart = sim.talk(&["restart", "0.2", "--yes"]);
    sim.await_event("fault", 1);
    let text = metrics(&sim, &[]);
    has(&text, "mig_mps_change_in_progress", 1.0);
    has(&text, "mig_mps_change_interrupted", 0.0);
    restart.signal(Signal::KILL);
    restart.end();
    let text = metrics(&sim, &[]);
    has(&text, "mig_mps_change_in_progress", 0.0);
    has(&text, "mig_mps_change_interrupted", 1.0);
}

#[test]
fn what_status_shows_is_counted() {
    let sim = Sim::small();
    let devices = in_state(&sim.status(), "ready");
    let (first, second) = (devices[0].as_str(), devices[1].as_str());
    let client = sim.client(first);
    sim.kill_daemon(second);
    let text = metrics(&sim, &[]);
    let of = |name: &str, device: &str| format!("mig_mps_device_{name}{{device=\"{device}\"}}");
    assert_eq!(
        (state(&text, first), state(&text, second)),
        ("ready".into(), "dead".into())
    );
    has(&text, &of("clients", first), 1.0);
    assert_eq!(
        value(&text, &of("clients", second)),
        None,
        "a dead daemon has no clients that could be counted"
    );
    has(&text, &of("clients_waiting", first), 0.0);
    has(&text, &of("restarts_total", second), 0.0);
    has(&text, "mig_mps_problems{id=\"daemon-dead\"}", 1.0);
    has(&text, "mig_mps_driver_answers", 1.0);
    assert_eq!(value(&text, "mig_mps_drift"), None, "no profile was named");
    assert_eq!(
        value(&text, &of("utilization_ratio", first)),
        None,
        "of a MIG device"
    );
    let used = value(&text, &of("memory_used_bytes", first)).unwrap();
    assert!(used > 0.0 && used < value(&text, &of("memory_size_bytes", first)).unwrap());
    let device = sim.device(first);
    let [uuid, serve] = ["uuid", "serve"].map(|key| device[key].as_str().unwrap());
    has(
        &text,
        &format!(
            "mig_mps_device_info{{device=\"{first}\",uuid=\"{uuid}\",gpu=\"0\",profile=\"2g.20gb\",serve=\"{serve}\"}}"
        ),
        1.0,
    );
    sim.run(&["heal"]).ended(0);
    let text = metrics(&sim, &[]);
    has(&text, &of("restarts_total", second), 1.0);
    assert_eq!(state(&text, second), "ready");
    let now = jiff::Timestamp::now().as_second();
    let changed = value(&text, &of("last_change_timestamp_seconds", second)).unwrap();
    #[allow(
        clippy::cast_precision_loss,
        reason = "seconds since 1970 are far below 2^52"
    )]
    let age = now as f64 - changed;
    assert!((0.0..600.0).contains(&age), "{age}");
    client.finish();
}

#[test]
fn a_hung_device_a_program_outside_mps_and_a_busy_gpu() {
    let sim = Sim::served("h200", 2, &whole(""));
    let outside = sim.outside("0");
    sim.hang("0");
    let text = metrics(&sim, &[]);
    assert_eq!(
        (state(&text, "0"), state(&text, "1")),
        ("hung".into(), "ready".into())
    );
    has(
        &text,
        "mig_mps_device_outside_mps_programs{device=\"0\"}",
        1.0,
    );
    has(
        &text,
        "mig_mps_device_outside_mps_programs{device=\"1\"}",
        0.0,
    );
    has(&text, "mig_mps_problems{id=\"outside-mps\"}", 1.0);
    has(&text, "mig_mps_device_utilization_ratio{device=\"1\"}", 0.0);
    outside.finish();
}

#[test]
fn drift_is_reported_for_a_profile() {
    let sim = Sim::with("h200", 1);
    let path = sim.profile(&whole("active-thread-percentage = 50"));
    let profile = path.to_str().unwrap();
    has(
        &metrics(&sim, &["--profile", profile]),
        "mig_mps_drift",
        1.0,
    );
    sim.run(&["up", profile]).ended(0);
    let text = metrics(&sim, &["--profile", profile]);
    has(&text, "mig_mps_drift", 0.0);
    has(&text, "mig_mps_device_drift{device=\"0\"}", 0.0);
    sim.run(&["set", "0", "active-thread-percentage=25"])
        .ended(0);
    let text = metrics(&sim, &["--profile", profile]);
    has(&text, "mig_mps_drift", 1.0);
    has(&text, "mig_mps_device_drift{device=\"0\"}", 1.0);
    // A device that was stopped by name is drift, as for `plan --exit-code` and the next `up`.
    sim.run(&["up", profile]).ended(0);
    sim.run(&["down", "0"]).ended(0);
    let text = metrics(&sim, &["--profile", profile]);
    assert_eq!(state(&text, "0"), "stopped");
    has(&text, "mig_mps_drift", 1.0);
    has(&text, "mig_mps_device_drift{device=\"0\"}", 1.0);
    sim.run(&["plan", profile, "--exit-code"]).ended(3);
    sim.run(&["up", profile]).ended(0);
    // A profile that cannot be planned leaves the rest.
    let path =
        sim.profile("[[gpu]]\nselect = { index = [7] }\ndevices = [ { profile = \"1g\" } ]\n");
    let ran = sim
        .run(&["metrics", "--profile", path.to_str().unwrap()])
        .ended(0);
    assert_contains(
        &ran.stderr,
        "it is unknown whether the node matches its profile",
    );
    assert_eq!(value(&ran.stdout, "mig_mps_drift"), None);
    has(&ran.stdout, "mig_mps_drift_known", 0.0);
    assert_eq!(state(&ran.stdout, "0"), "ready");
}

#[test]
fn without_the_driver_only_what_records_tell_is_there() {
    let sim = Sim::whole("");
    sim.node.fault("nvmlInit_v2").every().fails(9).unwrap();
    let text = metrics(&sim, &[]);
    has(&text, "mig_mps_driver_answers", 0.0);
    let path = sim.profile(&whole(""));
    let compared = metrics(&sim, &["--profile", path.to_str().unwrap()]);
    has(&compared, "mig_mps_drift_known", 0.0);
    assert_eq!(
        value(&text, "mig_mps_device_outside_mps_programs{device=\"0\"}"),
        None
    );
    assert_eq!(
        value(&text, "mig_mps_device_memory_used_bytes{device=\"0\"}"),
        None
    );
    assert_ne!(state(&text, "0"), "dead");
}

#[test]
fn programs_outside_mps_are_not_counted_where_they_are_hidden() {
    let sim = Sim::whole("");
    let processes = "nvmlDeviceGetMPSComputeRunningProcesses_v3";
    sim.node.fault(processes).every().fails(4).unwrap();
    let text = metrics(&sim, &[]);
    let counted = value(&text, "mig_mps_device_outside_mps_programs{device=\"0\"}");
    assert_eq!(counted, None);
    assert_eq!(state(&text, "0"), "ready");
}

#[test]
fn a_change_in_progress_is_not_waited_for() {
    let sim = Sim::whole("");
    let lock = fs::File::open(sim.node.run_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(state(&metrics(&sim, &[]), "0"), "ready");
}

#[test]
fn the_drift_is_written_alone() {
    let sim = Sim::with("h200", 1);
    let text = whole("active-thread-percentage = 50");
    let path = sim.profile(&text);
    let profile = path.to_str().unwrap();
    sim.run(&["up", profile]).ended(0);
    let samples = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let as_it_is = [
        "mig_mps_drift_known 1",
        "mig_mps_drift 0",
        "mig_mps_device_drift{device=\"0\"} 0",
    ];
    let named = metrics(&sim, &["--drift", profile]);
    assert_eq!(samples(&named), as_it_is);
    // Together, the two files have no series twice.
    let mut both = samples(&metrics(&sim, &[]));
    both.extend(samples(&named));
    let series: BTreeSet<&str> = both
        .iter()
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    assert_eq!(series.len(), both.len(), "{both:#?}");
    // The profile of the boot is the one that is meant without a name.
    sim.prepare("etc/mig-mps/profile.toml", &text);
    assert_eq!(samples(&metrics(&sim, &["--drift"])), as_it_is);
    sim.run(&["set", "0", "active-thread-percentage=25"])
        .ended(0);
    let text = metrics(&sim, &["--drift"]);
    has(&text, "mig_mps_drift", 1.0);
    has(&text, "mig_mps_device_drift{device=\"0\"}", 1.0);
    // Unknown is no series of the drift, and a fresh file says so.
    sim.node.fault("nvmlInit_v2").every().fails(9).unwrap();
    let ran = sim.run(&["metrics", "--drift"]).ended(0);
    assert_eq!(samples(&ran.stdout), ["mig_mps_drift_known 0"]);
    assert_contains(
        &ran.stderr,
        "it is unknown whether the node matches its profile",
    );
}

/// The alert for a lost GPU reads the series that such a GPU has, and that of the drift says why there is none.
#[test]
fn a_lost_gpu_is_counted_and_its_drift_is_unknown() {
    let sim = Sim::served("h200", 2, &whole(""));
    let lost = "mig_mps_problems{id=\"gpu-lost\"}";
    has(&metrics(&sim, &[]), lost, 0.0);
    sim.node.node().lose_gpu(1).unwrap();
    let text = metrics(&sim, &[]);
    assert!(value(&text, lost) > Some(0.0), "{text}");
    assert_eq!(
        (state(&text, "0"), state(&text, "1")),
        ("ready".into(), "gpu lost".into())
    );
    let path = sim.profile("[[gpu]]\nselect = { index = [0, 1] }\nmig = false\n");
    let ran = sim
        .run(&["metrics", "--drift", path.to_str().unwrap()])
        .ended(0);
    has(&ran.stdout, "mig_mps_drift_known", 0.0);
    assert_eq!(value(&ran.stdout, "mig_mps_drift"), None);
    assert_contains(
        &ran.stderr,
        "it is unknown whether the node matches its profile: ",
    );
}

/// What the driver does not tell has no series, and no count of problems that is 0.
#[test]
fn faults_of_gpus_are_series_by_gpu() {
    let sim = Sim::with("a100-80gb", 2);
    let of = |gpu: u32, id: &str| {
        let uuid = sim.node.node().state().unwrap().gpus[gpu as usize]
            .uuid
            .clone();
        format!("mig_mps_gpu_fault{{gpu=\"{gpu}\",uuid=\"{uuid}\",id=\"{id}\"}}")
    };
    let health = Health {
        row_remap_pending: true,
        recovery_action: 4,
        ..Health::default()
    };
    sim.node.node().set_health(1, health).unwrap();
    let text = metrics(&sim, &[]);
    for (id, is) in [
        ("gpu-recovery", 1.0),
        ("row-remap-pending", 1.0),
        ("row-remap-failed", 0.0),
        ("ecc-pending", 0.0),
        ("mig-pending", 0.0),
    ] {
        has(&text, &of(0, id), 0.0);
        has(&text, &of(1, id), is);
        has(&text, &format!("mig_mps_problems{{id=\"{id}\"}}"), is);
    }
    assert_eq!(value(&text, &of(1, "retired-pages-pending")), None);
    // A GPU with instances does not tell of rows, and nothing is counted.
    sim.up(SMALL, &[]).ended(0);
    let text = metrics(&sim, &[]);
    assert_eq!(value(&text, &of(1, "row-remap-pending")), None, "{text}");
    let counted = "mig_mps_problems{id=\"row-remap-pending\"}";
    assert_eq!(value(&text, counted), None, "{text}");
    has(&text, &of(1, "gpu-recovery"), 1.0);
    // An action that is not known, and a driver that knows none.
    let unknown = Health {
        recovery_action: 8,
        ..Health::default()
    };
    sim.node.node().set_health(0, unknown).unwrap();
    assert_eq!(value(&metrics(&sim, &[]), &of(0, "gpu-recovery")), None);
    sim.node.node().set_health(0, Health::default()).unwrap();
    has(&metrics(&sim, &[]), &of(0, "gpu-recovery"), 0.0);
    let install = sim
        .node
        .node()
        .update(|state| state.install(ControlVersion::R555));
    install.unwrap();
    assert_eq!(value(&metrics(&sim, &[]), &of(0, "gpu-recovery")), None);
}

#[test]
fn the_limits_of_clients_are_those_of_the_daemon() {
    let sim = Sim::whole("active-thread-percentage = 33.3, pinned-memory-limit = \"1536M\"");
    let [ratio, memory, read_back] = [
        "client_active_thread_ratio",
        "client_memory_limit_bytes",
        "settings_read_back",
    ]
    .map(|name| format!("mig_mps_device_{name}{{device=\"0\"}}"));
    let limits = || {
        let text = metrics(&sim, &[]);
        [&ratio, &memory, &read_back].map(|series| value(&text, series))
    };
    let in_mebibytes = |count: u32| Some(f64::from(count) * 1_048_576.0);
    let configured = [Some(0.333), in_mebibytes(1536)];
    assert_eq!(limits(), [configured[0], configured[1], Some(0.0)]);
    // A client makes the daemon be asked.
    let client = sim.client("0");
    assert_eq!(limits(), [configured[0], configured[1], Some(1.0)]);
    let commands = "set_default_active_thread_percentage 70\nset_default_device_pinned_mem_limit 0 512M\n\
                    get_default_active_thread_percentage\n";
    sim.ask("0", commands);
    assert_eq!(limits(), [Some(0.7), in_mebibytes(512), Some(1.0)]);
    client.finish();
    // A dead daemon limits nobody, and no limit is no series.
    sim.kill_daemon("0");
    assert_eq!(limits(), [None; 3]);
    let sim = Sim::whole("");
    let text = metrics(&sim, &[]);
    has(&text, &ratio, 1.0);
    assert_eq!(value(&text, &memory), None);
}

/// A daemon that somebody else talks to does not say who waits for it, either.
#[test]
fn the_clients_of_a_busy_daemon_are_unknown() {
    let sim = Sim::whole("");
    let _session = sim.session("0");
    let _client = sim.client("0");
    let text = metrics(&sim, &[]);
    assert_eq!(state(&text, "0"), "busy");
    for name in ["clients", "clients_waiting", "clients_over_memory_limit"] {
        let series = format!("mig_mps_device_{name}{{device=\"0\"}}");
        assert_eq!(value(&text, &series), None, "{text}");
    }
}

/// A change that exchanges two names is half done. Prometheus takes nothing from a file that has a series twice.
#[test]
fn two_devices_of_one_name_have_different_series() {
    let sim = Sim::small();
    let uuid = sim.uuid("0.2");
    sim.edit("by-name/0.2/device.json", |record| {
        record["name"] = "0.0".into();
    });
    let text = metrics(&sim, &[]);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<&str> = lines.map(|line| line.rsplit_once(' ').unwrap().0).collect();
    let different: BTreeSet<&str> = series.iter().copied().collect();
    assert_eq!(series.len(), different.len(), "{text}");
    assert_eq!(
        (state(&text, "0.0"), state(&text, &uuid)),
        ("ready".into(), "ready".into())
    );
}

#[test]
fn clients_are_counted_by_user_and_workload() {
    needs_root!();
    let sim = Sim::whole("serve = \"all\"");
    let clients = [(); 3].map(|()| sim.client("0"));
    let mut hers = sim.app_of_nobody("0", &["hold"]);
    assert!(hers.wait_up().ends_with("mps yes"));
    let id = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
    let uid = "6dbbf17e-94e1-4b10-8555-9bfe510c25d5";
    let put = |pid: u32, group: &str| sim.node.node().show_in_cgroup(pid, group).unwrap();
    put(clients[0].pid(), "/slurm/uid_0/job_7/step_0");
    put(clients[1].pid(), "/slurm/uid_0/job_7/step_1");
    put(hers.pid(), &format!("/kubepods/pod{uid}/{id}"));
    let text = metrics(&sim, &[]);
    let of = |name: &str, user: &str, job: &str, pod: &str| {
        format!(
            "mig_mps_device_user_{name}{{device=\"0\",user=\"{user}\",slurm_job=\"{job}\",batch_job=\"\",pod_uid=\"{pod}\",pod_name=\"\",container_id=\"\"}}"
        )
    };
    has(&text, &of("clients", "root", "7", ""), 2.0);
    has(&text, &of("clients", "root", "", ""), 1.0);
    has(&text, &of("clients", "nobody", "", uid), 1.0);
    let memory = "memory_used_bytes";
    let one = value(&text, &of(memory, "root", "", "")).unwrap();
    assert!(one > 0.0);
    has(&text, &of(memory, "root", "7", ""), 2.0 * one);
    has(&text, &of(memory, "nobody", "", uid), one);
    // The kubelet's logs tell the name of the pod.
    fs::create_dir_all(sim.machine(&format!("var/log/pods/ml_train-0_{uid}"))).unwrap();
    let named = of("clients", "nobody", "", uid).replace("pod_name=\"", "pod_name=\"ml/train-0");
    has(&metrics(&sim, &[]), &named, 1.0);
    // In a container and in no pod, the container is named.
    put(hers.pid(), &format!("/system.slice/docker-{id}.scope"));
    let in_container =
        of("clients", "nobody", "", "").replace("container_id=\"", &format!("container_id=\"{id}"));
    has(&metrics(&sim, &[]), &in_container, 1.0);
}

/// The query of the manual, as Prometheus understands it.
#[test]
fn the_name_of_a_pod_comes_from_kube_state_metrics() {
    if !has_promtool("the_name_of_a_pod_comes_from_kube_state_metrics") {
        return;
    }
    let manual = TOPICS.iter().find(|topic| topic.name == "monitoring");
    let (_, query) = manual.unwrap().text.split_once("```promql\n").unwrap();
    let (query, _) = query.split_once("```").unwrap();
    let query = query.replace('\n', " ").replace('\'', "''");
    let tests = format!(
        "evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n\
         \x20     - {{ series: 'mig_mps_device_user_clients{{device=\"0\",user=\"alice\",pod_uid=\"u-1\"}}', values: '2' }}\n\
         \x20     - {{ series: 'mig_mps_device_user_clients{{device=\"0\",user=\"bob\",slurm_job=\"7\"}}', values: '1' }}\n\
         \x20     - {{ series: 'kube_pod_info{{uid=\"u-1\",namespace=\"ml\",pod=\"train-0\",node=\"n1\"}}', values: '1' }}\n\
         \x20   promql_expr_test:\n      - expr: '{query}'\n        eval_time: 0m\n        exp_samples:\n\
         \x20         - labels: '{{device=\"0\",user=\"alice\",pod_uid=\"u-1\",namespace=\"ml\",pod=\"train-0\"}}'\n            value: 2\n"
    );
    let sim = Sim::with("h200", 1);
    fs::write(sim.node.dir().join("query.yml"), tests).unwrap();
    let mut promtool = Command::new("promtool");
    promtool.args(["test", "rules", "query.yml"]);
    Ran::of(promtool.current_dir(sim.node.dir())).ended(0);
}

/// A whole GPU has more than a MIG device.
#[test]
fn a_device_has_as_many_series_as_the_manual_says() {
    let sim = Sim::with("h200", 1);
    let path = sim.profile(&whole("pinned-memory-limit = \"10G\""));
    let profile = path.to_str().unwrap();
    sim.run(&["up", profile]).ended(0);
    let text = metrics(&sim, &["--profile", profile]);
    let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    let (all, states) = (count("mig_mps_device_"), count("mig_mps_device_state{"));
    let said = format!("A device has {all} series at most: {states} are its states.");
    let manual = TOPICS.iter().find(|topic| topic.name == "monitoring");
    assert_contains(manual.unwrap().text, &said);
}

#[test]
fn a_plain_user_sees_the_states_and_the_file_is_for_all() {
    needs_root!();
    let sim = Sim::whole("");
    let mut by_nobody = sim.command(&["metrics"]);
    let ran = Ran::of(by_nobody.uid(NOBODY).gid(NOBODY)).ended(0);
    assert_eq!(state(&ran.stdout, "0"), "ready");
    let path = sim.node.dir().join("mig-mps.prom");
    sim.run(&["metrics", "--output", path.to_str().unwrap()])
        .ended(0);
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o644);
    let ran = sim
        .run(&["metrics", "--output", "/nowhere/mig-mps.prom"])
        .ended(1);
    assert_contains(&ran.stderr, "cannot write /nowhere/mig-mps.prom");
}

#[test]
fn promtool_finds_no_fault() {
    if !has_promtool("promtool_finds_no_fault") {
        return;
    }
    let sim = Sim::with("h200", 2);
    promtool_takes(&metrics(&sim, &[]));
    let path = sim.profile(&whole("serve = \"all\""));
    sim.run(&["up", path.to_str().unwrap(), "--yes"]).ended(0);
    let client = sim.client("1");
    promtool_takes(&metrics(&sim, &["--profile", path.to_str().unwrap()]));
    promtool_takes(&metrics(&sim, &["--drift", path.to_str().unwrap()]));
    client.finish();
    let sim = Sim::small();
    promtool_takes(&metrics(&sim, &[]));
}

#[test]
fn the_alert_rules_fire_when_they_should() {
    if !has_promtool("the_alert_rules_fire_when_they_should") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let directory = sim.node.dir();
    let rules = sim.run(&["metrics", "--rules"]).ended(0).stdout;
    fs::write(directory.join("alerts.yml"), rules).unwrap();
    fs::write(directory.join("tests.yml"), include_str!("alerts_test.yml")).unwrap();
    for arguments in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "tests.yml"],
    ] {
        let mut promtool = Command::new("promtool");
        Ran::of(promtool.args(arguments).current_dir(directory)).ended(0);
    }
}

/// Starts a server of another project, and returns its port, which the kernel has chosen.
fn server(program: &str, arguments: &[String]) -> (Dialogue, u16) {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg("--web.listen-address=127.0.0.1:0");
    let mut server = Dialogue::start(command);
    server.await_text("msg=\"Listening on\" address=127.0.0.1:");
    let port = server.await_text("\n").trim().parse().unwrap();
    (server, port)
}

/// The body of an answer to GET.
fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let body = answer.split_once("\r\n\r\n");
    body.map_or(String::new(), |(_, body)| body.to_owned())
}

#[test]
fn a_real_prometheus_has_them_from_a_real_collector() {
    let name = "a_real_prometheus_has_them_from_a_real_collector";
    let installed = ["prometheus", "prometheus-node-exporter"];
    let installed = installed
        .iter()
        .all(|program| Command::new(program).arg("--version").output().is_ok());
    if !can_run(
        name,
        installed,
        "Prometheus or node_exporter is not installed",
    ) {
        return;
    }
    let sim = Sim::small();
    let devices = in_state(&sim.status(), "ready");
    let client = sim.client(&devices[0]);
    let files = sim.node.dir().join("collected");
    fs::create_dir(&files).unwrap();
    let file = files.join("mig-mps.prom");
    sim.run(&["metrics", "--output", file.to_str().unwrap()])
        .ended(0);
    let (_collector, port) = server(
        "prometheus-node-exporter",
        &[
            "--collector.disable-defaults".to_owned(),
            "--collector.textfile".to_owned(),
            format!("--collector.textfile.directory={}", files.display()),
        ],
    );
    let configuration = sim.node.dir().join("prometheus.yml");
    let rules = sim.node.dir().join("alerts.yml");
    fs::write(&rules, sim.run(&["metrics", "--rules"]).ended(0).stdout).unwrap();
    let text = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [ {} ]\n\
         scrape_configs: [ {{ job_name: node, static_configs: [ {{ targets: [ '127.0.0.1:{port}' ] }} ] }} ]\n",
        rules.display(),
    );
    fs::write(&configuration, text).unwrap();
    let database = sim.node.dir().join("tsdb");
    let (_prometheus, port) = server(
        "prometheus",
        &[
            format!("--config.file={}", configuration.display()),
            format!("--storage.tsdb.path={}", database.display()),
        ],
    );
    let query = |query: &str| -> Option<String> {
        let answer = get(port, &format!("/api/v1/query?query={query}"));
        let answer: Value = serde_json::from_str(&answer).ok()?;
        let value = &answer["data"]["result"][0]["value"][1];
        value.as_str().map(str::to_owned)
    };
    let clients = format!("mig_mps_device_clients%7Bdevice=%22{}%22%7D", devices[0]);
    wait_until("Prometheus has the clients", || {
        query(&clients).as_deref() == Some("1")
    });
    let ready = "sum(mig_mps_device_state%7Bstate=%22ready%22%7D)";
    assert_eq!(query(ready).as_deref(), Some("2"));
    assert_eq!(query("node_textfile_scrape_error").as_deref(), Some("0"));
    let rules: Value = serde_json::from_str(&get(port, "/api/v1/rules")).unwrap();
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap();
    assert!(
        rules.len() >= 3 && rules.iter().all(|rule| rule["health"] != "err"),
        "{rules:?}"
    );
    client.finish();
}

/// No daemon was asked whether somebody has changed its settings: that none has is not said.
#[test]
fn settings_that_were_not_read_back_are_unknown() {
    let sim = Sim::whole("");
    let changed = "mig_mps_problems{id=\"settings-changed\"}";
    let text = metrics(&sim, &[]);
    assert_eq!(value(&text, changed), None);
    has(&text, "mig_mps_problems{id=\"daemon-dead\"}", 0.0);
    let client = sim.client("0");
    has(&metrics(&sim, &[]), changed, 0.0);
    let percentage =
        "set_default_active_thread_percentage 70\nget_default_active_thread_percentage\n";
    sim.ask("0", percentage);
    has(&metrics(&sim, &[]), changed, 1.0);
    drop(client);
}
