//! `down --force` ends within its limit, whatever state the daemon is in.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use testkit::{
    Ran, Sim, assert_contains, in_state, is_alive, needs_root, stop, under, whole, without_sigkill,
};

/// The manual promises a third of it, and a machine of tests may have much else to do. To ask a daemon that does not answer
/// takes as long.
const LIMIT: Duration = Duration::from_secs(30);

/// A node whose only device serves.
fn serving() -> Sim {
    Sim::whole("")
}

/// The pids of the daemons and servers on the node.
fn mps_programs(sim: &Sim) -> Vec<String> {
    let dir = sim.node.run_dir().to_str().unwrap().to_owned();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_mps = |path: &PathBuf| {
        let read = |file: &str| fs::read(path.join(file)).unwrap_or_default();
        let text = |file: &str| String::from_utf8_lossy(&read(file)).into_owned();
        let command = text("cmdline");
        let is_one =
            command.ends_with("-control\0-d\0") || command.contains("nvidia-cuda-mps-server");
        // A zombie has no environment.
        is_one && text("environ").contains(&dir)
    };
    let found = processes.map(|entry| entry.path()).filter(is_mps);
    found.map(|path| path.display().to_string()).collect()
}

#[track_caller]
fn goes(sim: &Sim) {
    let begun = Instant::now();
    sim.run(&["down", "--force"]).ended(0);
    let elapsed = begun.elapsed();
    assert!(elapsed < LIMIT, "{elapsed:?}");
    assert_eq!(sim.run_dir(), ["lock"]);
    assert_eq!(mps_programs(sim), [""; 0]);
}

#[test]
fn ready_with_clients() {
    let sim = serving();
    let _worker = sim.client("0");
    assert!(!mps_programs(&sim).is_empty(), "they can be found");
    goes(&sim);
}

#[test]
fn hung() {
    let sim = serving();
    sim.hang("0");
    goes(&sim);
}

#[test]
fn hung_with_working_clients() {
    let sim = serving();
    let _worker = sim.client("0");
    sim.hang("0");
    sim.run(&["down"]).ended(4);
    goes(&sim);
}

#[test]
fn hung_and_stopped() {
    let sim = serving();
    let _worker = sim.client("0");
    sim.hang("0");
    stop(&sim.device("0")["daemon_pid"]);
    goes(&sim);
}

#[test]
fn stopped() {
    let sim = serving();
    let _worker = sim.client("0");
    let device = sim.device("0");
    stop(&device["daemon_pid"]);
    goes(&sim);
}

#[test]
fn its_server_stopped() {
    let sim = serving();
    let _worker = sim.client("0");
    stop(&sim.device("0")["servers"][0]["pid"]);
    goes(&sim);
}

#[test]
fn an_orphan() {
    let sim = serving();
    let _worker = sim.client("0");
    fs::remove_dir_all(sim.pipe_link("0")).unwrap();
    assert_eq!(in_state(&sim.status(), "orphan"), ["0"]);
    goes(&sim);
}

#[test]
fn without_its_socket() {
    let sim = serving();
    let _worker = sim.client("0");
    fs::remove_file(sim.pipe_link("0").join("control")).unwrap();
    assert_eq!(in_state(&sim.status(), "no answer"), ["0"]);
    goes(&sim);
}

#[test]
fn dead_with_a_stray_server() {
    let sim = serving();
    sim.hang("0");
    sim.kill_daemon("0");
    assert_eq!(in_state(&sim.status(), "dead"), ["0"]);
    assert_eq!(mps_programs(&sim).len(), 1, "the server outlived it");
    goes(&sim);
}

#[test]
fn busy_with_another_session() {
    let sim = serving();
    let _worker = sim.client("0");
    let _session = sim.session("0");
    assert_eq!(in_state(&sim.status(), "busy"), ["0"]);
    goes(&sim);
}

#[test]
fn logging_without_pause() {
    let (sim, _waits) = crate::cli::faults::hung::accepts_nobody();
    goes(&sim);
}

/// A daemon that is ended by signals might start a server until it has ended.
#[test]
fn a_server_that_would_start_meanwhile() {
    let sim = Sim::with("h200", 1);
    let control = sim.control_script("trap '' TERM\nexec $real \"$@\"");
    let profile = sim.profile(&whole("server = \"lazy\""));
    let mut up = sim.command(&["up", profile.to_str().unwrap(), "--yes"]);
    Ran::of(up.env("MIG_MPS_CONTROL", &control)).ended(0);
    stop(&sim.device("0")["daemon_pid"]);
    // The server would start if `down` had the daemon go on.
    sim.node.fault("server start").hangs().unwrap();
    let _waits = sim.app("0", &["hold"]);
    goes(&sim);
    assert_eq!(sim.happened("server start"), 0);
}

#[test]
fn whose_record_cannot_be_read() {
    let sim = Sim::with("a100-80gb", 1);
    let named = "[[gpu]]\nselect = { all = true }\ndevices = [ { name = \"trainer\", profile = \"3g\" } ]\n";
    sim.up(named, &[]).ended(0);
    let client = sim.client("trainer");
    let uuid = sim.uuid("trainer");
    fs::write(sim.node.run_dir().join(&uuid).join("device.json"), "{").unwrap();
    let refused = sim.run(&["down"]).ended(4).stderr;
    assert_contains(&refused, "`mig-mps down --force` to end the daemon");
    assert!(!mps_programs(&sim).is_empty());
    sim.run(&["down", "--force"]).ended(0);
    assert_eq!(mps_programs(&sim), [""; 0]);
    assert_eq!(sim.run_dir(), ["lock", "node.json"]);
    drop(client);
    // Nothing of it is in the way.
    sim.up(named, &["--yes"]).ended(0);
    sim.client("trainer").finish();
}

#[test]
fn damaged_files_of_the_whole_node_are_kept_aside_and_in_nobodys_way() {
    type Damage = fn(PathBuf);
    let damaged: [(&str, Damage); 3] = [
        ("node.json", |path| fs::write(path, "{\n").unwrap()),
        ("node.json", |path| {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "").unwrap();
        }),
        ("journal.json", |path| fs::write(path, "[]").unwrap()),
    ];
    for (name, damage) in damaged {
        let sim = serving();
        let client = sim.client("0");
        damage(sim.node.run_dir().join(name));
        sim.run(&["down", "--force", "--dry-run"]).ended(0);
        let ran = sim.run(&["down", "--force"]).ended(0);
        let kept = format!(
            "it is now {}/{name}.unreadable;",
            sim.node.run_dir().display()
        );
        assert_contains(&ran.stderr, &kept);
        assert_eq!(mps_programs(&sim), [""; 0]);
        let kept = format!("{name}.unreadable");
        assert!(
            sim.run_dir()
                .iter()
                .all(|entry| ["lock", &kept].contains(&entry.as_str()))
        );
        drop(client);
        sim.up(&whole(""), &["--yes"]).ended(0);
        sim.client("0").finish();
    }
}

#[test]
fn a_record_that_cannot_be_read_is_in_the_way_of_its_own_device_alone() {
    let sim = Sim::small();
    let uuid = sim.uuid("0.2");
    fs::write(sim.node.run_dir().join(&uuid).join("device.json"), "{").unwrap();
    sim.run(&["down", "0.0"]).ended(0);
    sim.run(&["down", "0.2"]).ended(4);
    assert!(!mps_programs(&sim).is_empty());
    sim.run(&["down", "0.2", "--force"]).ended(0);
    assert_eq!(mps_programs(&sim), [""; 0]);
    assert!(!sim.run_dir().contains(&uuid));
}

/// As root with a daemon that runs as a user.
#[test]
fn of_a_user_whose_record_cannot_be_read() {
    needs_root!();
    let sim = Sim::whole("serve = \"user:nobody\"");
    let uuid = sim.uuid("0");
    fs::write(sim.node.run_dir().join(&uuid).join("device.json"), "").unwrap();
    assert!(!mps_programs(&sim).is_empty());
    goes(&sim);
}

/// `up` was killed when its daemon had started and was not yet recorded.
#[test]
fn started_half_way() {
    for step in ["daemon start", "start_server"] {
        let sim = Sim::with("h200", 1);
        sim.node.fault(step).kills().unwrap();
        assert_eq!(sim.up(&whole(""), &["--yes"]).status, -1, "{step}");
        assert_ne!(sim.run_dir(), ["lock"]);
        goes(&sim);
    }
}

#[test]
fn a_process_that_the_kernel_cannot_end_is_named_and_not_forgotten() {
    let sim = serving();
    let device = sim.device("0");
    let (daemon, server) = (&device["daemon_pid"], &device["servers"][0]["pid"]);
    sim.hang("0");
    let mut down = sim.command(&["down", "--force"]);
    without_sigkill(&mut down);
    let said = Ran::of(&mut down).ended(1).stderr;
    let named = format!(
        "cannot stop the daemon of 0\n  cause: pids {daemon} and {server} were sent SIGKILL but have not exited"
    );
    assert_contains(&said, &named);
    assert!(is_alive(server));
    assert!(sim.run_dir().contains(&sim.uuid("0")));
    goes(&sim);
}

#[test]
fn a_daemon_that_cannot_be_named_is_not_forgotten() {
    needs_root!();
    let sim = Sim::small();
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    let down = sim.command(&["down", "0.2", "--force"]);
    let mut inside = under(&["unshare", "-p", "-f", "--mount-proc"], &down);
    let _ = Ran::of(&mut inside).ended(1);
    assert!(is_alive(&daemon));
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}
